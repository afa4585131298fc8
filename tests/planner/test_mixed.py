"""Plans over several pools: against brute force, against the joined pool, and what they conserve."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.choices.schedules import schedule
from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.stages import Stages, stages
from cost_models.throughput.collectives import fabric, send_seconds
from cost_models.throughput.ranks import Chain
from cost_models.throughput.simulate import Durations, seconds, simulate
from cost_models.throughput.stagewise import line
from cost_models.transformer import count_parameters, model_ops
from hardware.calibration import calibration
from hardware.cluster import parse_cluster
from hardware.spec import Cluster
from planner.asked import make_request
from planner.evaluate import held_cost, plan
from planner.mixed.candidates import Sends, all_candidates, pace, path_bound
from planner.mixed.link import Link
from planner.mixed.replicas import Replicas
from planner.mixed.stages import Looked, Pipeline, best_stages
from planner.mixed.together import together
from planner.report.documents import search_document
from planner.report.look import Look
from planner.report.mixed_documents import mixed_record
from planner.report.search import search_lines
from planner.request import Resolved, resolve
from planner.rules import broken
from planner.search import frameworks, search

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hardware.spec import Pool
    from planner.case import Case
    from planner.plan import Mixed, MixedPlan

SMALL: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-0.5B", "dimensions": {"layers": 6}, "cluster": "2xA100-80G+2xRTX3090-24G", "global_batch": 8,
    "framework": "megatron", "cp": 1, "recompute": "none", "offload": "none", "schedule": "1f1b", "sequence_parallel": False,
}  # fmt: skip
FSDP = {"framework": "fsdp"}
ONCE = ("dp.reduce", "sp.gradients", "dp.gather", "optimizer.update", "host.between_steps")
AFTER = ONCE[2:]


def asked(**given: Any) -> Resolved:
    return resolve(make_request({**SMALL, **given}))


def mixed(resolved: Resolved) -> Mixed:
    result = search(resolved, remedies=False)
    assert result.mixed is not None
    return result.mixed


def shown(term: Any) -> float:
    return float(num(term.value if term.exposed is None else term.exposed).reshape(-1)[0])


def straggled(step: float, pools: list[Pool]) -> float:
    return step * (1.0 + calibration("software").value("straggler_per_doubling") * float(np.log2(sum(p.nodes for p in pools))))


def splits(layers: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (layers,)
        return
    for first in range(1, layers - parts + 2):
        yield from ((first, *rest) for rest in splits(layers - first, parts - 1))


def one_stage(described: Stages, i: int) -> Stages:
    return Stages(
        index=num(described.index)[[i]],
        layers=num(described.layers)[[i]],
        kind_layers=tuple(num(k)[[i]] for k in described.kind_layers),
        embedding=num(described.embedding)[[i]],
        head=num(described.head)[[i]],
        first_layer=num(described.first_layer)[[i]],
        recomputed=num(described.recomputed)[[i]],
    )


def pipeline_step(cases: list[Case], owner: tuple[int, ...], layout: Layout, link: Link) -> float:
    """A step by hand, stage after stage on the pool that holds it; infinite where a stage does not fit."""
    gpus = int(num(layout.degrees.tp) * num(layout.degrees.dp))
    m = int(cases[0].training.global_batch / (float(num(layout.degrees.micro_batch)) * float(num(layout.degrees.dp))))
    described = stages(cases[0].architecture, layout)
    used = {k: cases[k].pool.model_copy(update={"count": owner.count(k) * gpus}) for k in set(owner)}
    forward, backward, once = [], [], dict.fromkeys(ONCE, 0.0)
    for i, k in enumerate(owner):
        case = replace(cases[k], pool=used[k])
        result = held_cost(case, layout, one_stage(described, i))
        if float(num(result.memory.stage_device_bytes)[0]) > case.limit_bytes:
            return float("inf")
        forward.append(float(num(result.time.stage_forward_seconds)[0]))
        backward.append(float(num(result.time.stage_backward_seconds)[0]))
        for term in result.time.ledger.terms:
            if term.name in once:
                once[term.name] = max(once[term.name], shown(term))
    tokens = float(num(layout.degrees.micro_batch)) * cases[0].training.seq
    message = tokens * cases[0].architecture.hidden * 2.0 / float(num(layout.degrees.tp))
    sends = [
        link.send_seconds(used[a], used[b], gpus, message)
        if a != b
        else float(send_seconds(fabric(used[a]), Chain(stages=used[a].count / gpus, stride=float(gpus)), message))
        for a, b in zip(owner, owner[1:], strict=False)
    ]
    tied = 0.0
    if cases[0].architecture.tied_embeddings and owner[0] != owner[-1]:
        rows = float(num(model_ops(cases[0].architecture, cases[0].training, layout).dims.vocab))
        gradient = rows * cases[0].architecture.hidden * {"bf16": 4.0, "fp16": 2.0}[cases[0].training.precision]
        tied = link.send_seconds(used[owner[0]], used[owner[-1]], gpus, gradient)
    f = np.array(forward) + np.array([*sends, sends[-1]])
    b = np.array(backward) + np.array([sends[0], *sends])
    there = line(layout, described, num(float(m)), (f, b, 0.0 * b), (0.0, 0.0, 0.0))
    return straggled(float(num(schedule("1f1b").seconds(there)).reshape(-1)[0]) + tied + sum(once.values()), list(used.values()))


def brute_stages(resolved: Resolved) -> float:
    """Least step over every grid, number and order of stages, and split of the layers."""
    cases = [resolved.case(pool, "megatron") for pool in resolved.cluster.pools]
    link, layers, best = Link.of(resolved.cluster), resolved.architecture.layers, float("inf")
    for tp, dp, zero, micro in product((1, 2), (1, 2), (0, 1), (1, 2, 4, 8)):
        most = [case.world // (tp * dp) for case in cases]
        for order in ((0, 1), (1, 0)):
            for counts in product(*(range(1, most[k] + 1) for k in order)):
                pp = sum(counts)
                owner = tuple(k for k, n in zip(order, counts, strict=True) for _ in range(n))
                degrees = Degrees(tp=float(tp), dp=float(dp), pp=float(pp), micro_batch=float(micro))
                even = Layout(degrees=degrees, choices=Choices(zero=zero, sequence_parallel=False))
                whole = [replace(c, pool=c.pool.model_copy(update={"count": tp * dp * pp})) for c in cases]
                if resolved.training.global_batch // (micro * dp) < pp or any(broken(case, even) for case in whole):
                    continue
                for held in splits(layers, pp):
                    best = min(best, pipeline_step(cases, owner, replace(even, stage_layers=held), link))
    return best


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"global_batch": 4, "free_memory": "6 GiB"},
        {"cluster": "2xH100-80G+1xV100-32G", "attention": "eager", "precision": "fp16"},
    ],
)
def test_stages_equal_brute_force(given: dict[str, Any]) -> None:
    """The best pipeline over two pools is that of every assignment, order and split, enumerated stage by stage."""
    resolved = asked(**given)
    cases = [resolved.case(pool, "megatron") for pool in resolved.cluster.pools]
    made, looked = best_stages(cases, Link.of(resolved.cluster), None, float("inf"))
    assert made is not None
    assert looked.stopped_seconds is None
    assert not looked.windowed
    assert made.step_seconds == pytest.approx(brute_stages(resolved), rel=1e-9)


def ways_of(case: Case) -> list[tuple[float, float]]:
    """(before, after) of every lawful layout that fits."""
    found = []
    for tp, pp, dp, zero, micro in product((1, 2), (1, 2), (1, 2), (0, 1), range(1, 13)):
        degrees = Degrees(tp=float(tp), pp=float(pp), dp=float(dp), micro_batch=float(micro))
        layout = Layout(degrees=degrees, choices=Choices(zero=zero, sequence_parallel=False))
        if not broken(case, layout) and (made := plan(case, layout)).fits:
            terms = [t for t in made.cost.time.ledger.terms if t.name != "host.stragglers"]
            found.append((sum(shown(t) for t in terms if t.name not in AFTER), sum(shown(t) for t in terms if t.name in AFTER)))
    return found


@pytest.mark.parametrize("given", [{}, {"global_batch": 7}, {"cluster": "2xA100-80G+1xRTX3090-24G", "global_batch": 12}])
def test_replicas_equal_brute_force(given: dict[str, Any]) -> None:
    """The best shares of the batch and layouts of the pools are those of every split and every pair of layouts."""
    resolved = asked(**given)
    cases = [resolved.case(pool, "megatron") for pool in resolved.cluster.pools]
    batch, pools = resolved.training.global_batch, [case.pool for case in cases]
    at = {
        (k, b): ways_of(replace(c, training=c.training.model_copy(update={"global_batch": b})))
        for k, c in enumerate(cases)
        for b in range(1, batch)
    }
    gradients = 4.0 * count_parameters(resolved.architecture).parameters
    best = min(max(x[0], y[0]) + max(x[1], y[1]) for b in range(1, batch) for x in at[0, b] for y in at[1, batch - b])
    wanted = straggled(best + Link.of(resolved.cluster).reduce_seconds(pools, gradients), pools)
    made = Replicas(cases, Link.of(resolved.cluster), None).best()
    assert made is not None
    assert made.step_seconds == pytest.approx(wanted, rel=3e-3)  # the search's gap, and a padded vocabulary


def test_no_bound_exceeds_what_a_pipeline_takes() -> None:
    """Both bounds of every candidate lie below the pipeline that its best split makes."""
    resolved = asked(cluster="4xA100-80G+2xRTX3090-24G", global_batch=16, cp=None, sequence_parallel=None)
    cases = [resolved.case(pool, "megatron") for pool in resolved.cluster.pools]
    sends, seen = Sends(cases, Link.of(resolved.cluster)), 0
    for candidate in list(all_candidates(cases))[::7]:
        made = Pipeline(cases, sends, candidate).best(Looked(), float("inf"))
        if made is None:
            continue
        sent, layers = sends(candidate.grid, candidate.order, candidate.counts), resolved.architecture.layers
        taken = sum(shown(t) for t in made.ledger.terms[:4])
        assert path_bound(candidate, layers, sent) <= taken * (1.0 + 1e-9)
        assert candidate.grid.micro_batches * pace(candidate, layers, sent) <= taken * (1.0 + 1e-9)
        assert candidate.bound_seconds <= taken * (1.0 + 1e-9)
        seen += 1
    assert seen > 20


def check(made: MixedPlan, resolved: Resolved) -> None:
    """What every plan conserves."""
    batch, layers = resolved.training.global_batch, resolved.architecture.layers
    assert sum(shown(t) for t in made.ledger.terms) == pytest.approx(made.step_seconds, rel=1e-12)
    assert made.tokens_per_second == pytest.approx(batch * resolved.training.seq / made.step_seconds)
    assert made.needs
    for part in made.parts:
        d = part.plan.layout.degrees
        assert part.plan.fits
        assert part.plan.micro_batches * int(num(d.micro_batch)) * int(num(d.dp)) == part.samples
        assert part.busy_seconds <= made.step_seconds
        assert int(num(d.tp)) <= part.plan.pool.gpus_per_node
        assert part.plan.pool.count <= next(p.count for p in resolved.cluster.pools if p.gpu.id == part.plan.pool.gpu.id)
    if made.kind == "replicas":
        assert sum(part.samples for part in made.parts) == batch
        assert not any(part.stage_layers for part in made.parts)
        return
    layout = made.parts[0].plan.layout
    assert tuple(n for part in made.parts for n in part.stage_layers) == layout.stage_layers
    assert sum(layout.stage_layers or ()) == layers
    starts = [part.first_stage for part in made.parts]
    assert starts == list(np.cumsum([0, *(len(part.stage_layers) for part in made.parts)])[:-1])
    for part in made.parts:
        gpus = int(num(layout.degrees.tp) * num(layout.degrees.cp) * num(layout.degrees.dp))
        assert part.plan.pool.count == gpus * len(part.stage_layers)
        assert part.samples == batch


@pytest.mark.parametrize(
    "given",
    [
        {"model": "llama-2-7b", "cluster": "8xA100-80G+4xRTX3090-24G", "framework": "torchtitan"},
        {"model": "llama-2-7b", "cluster": "8xA100-80G+8xV100-32G", "precision": "fp16", "attention": "eager", "framework": "deepspeed"},
        {"model": "deepseek-ai/DeepSeek-V2-Lite", "cluster": "8xA100-80G+8xH100-80G", "framework": "megatron", "tp": 1, "ep": 4, "zero": 1},
        {"model": "llama-3.1-8b", "cluster": "4xA100-40G+2xRTX4090+2xRTX3090-24G", "method": "lora", "global_batch": 24, **FSDP},
    ],
)
def test_batch_layers_and_gpus_are_conserved(given: dict[str, Any]) -> None:
    resolved = resolve(make_request(given))
    found = mixed(resolved)
    assert found.plans
    assert [p.step_seconds for p in found.plans] == sorted(p.step_seconds for p in found.plans)
    for made in found.plans:
        check(made, resolved)


def test_a100s_and_3090s_training_7b() -> None:
    """Eight A100s alone are hard to help with four 3090s: with many micro-batches the pipeline over both wins, with few it loses, and
    either way the numbers are said."""
    request = {"model": "llama-2-7b", "cluster": "8xA100-80G+4xRTX3090-24G", "framework": "megatron"}
    few = search(resolve(make_request(request)), remedies=False)
    assert few.mixed is not None
    alone = float(few.plans[0].cost.time.step_seconds)
    assert few.plans[0].pool.count == 8
    if few.mixed.plans[0].step_seconds >= alone:
        assert few.mixed.comparison.startswith("4 × GeForce RTX 3090 do not help: best is ")
        assert "fewer tokens/s" in few.mixed.comparison
    many = search(resolve(make_request({**request, "global_batch": 1024})), remedies=False)
    assert many.mixed is not None
    best = many.mixed.plans[0]
    assert best.kind == "stages"
    assert best.step_seconds < float(many.plans[0].cost.time.step_seconds)
    assert "more tokens/s" in many.mixed.comparison
    assert best.step_seconds * (8 * 312 + 4 * 71) > 0.5 * alone * 8 * 8 * 312  # no faster than the cards' peaks allow
    layers = {part.plan.pool.gpu.id: sum(part.stage_layers) for part in best.parts}
    assert layers["a100-sxm-80g"] > 4 * layers["rtx3090"]


def test_the_schedule_formula_agrees_with_its_event_simulation() -> None:
    resolved = asked(cluster="4xA100-80G+2xRTX3090-24G", global_batch=32)
    cases = [resolved.case(pool, "megatron") for pool in resolved.cluster.pools]
    made, _ = best_stages(cases, Link.of(resolved.cluster), None, float("inf"))
    assert made is not None
    work = sum(shown(t) for t in made.ledger.terms[:4])
    times = [
        (float(f), float(b))
        for part in made.parts
        for f, b in zip(num(part.plan.cost.time.stage_forward_seconds), num(part.plan.cost.time.stage_backward_seconds), strict=True)
    ]
    grid = made.parts[0].plan.layout.degrees
    stages_ = Durations(forward=[f for f, _ in times], backward=[b for _, b in times])
    played = seconds(simulate("1f1b", stages_, made.parts[0].plan.micro_batches))
    assert int(num(grid.pp)) == len(times)
    assert played <= work * 1.001
    assert work < played * 1.35  # the rest is sends, which the simulation leaves out


def halves(resolved: Resolved) -> Resolved:
    """The same request with its one pool as two of half the servers."""
    (pool,) = resolved.cluster.pools
    half = pool.model_copy(update={"count": pool.count // 2})
    return replace(resolved, cluster=Cluster(name="halves", pools=(half, half)))


@pytest.mark.parametrize(
    "given",
    [
        {"cluster": "16xA100-80G", "framework": "megatron"},
        {"cluster": "16xA100-80G", "framework": "megatron", "tp": 4, "schedule": "1f1b", "pp": 4, "dp": 1},
    ],
)
def test_two_halves_of_a_pool_give_nearly_its_plan(given: dict[str, Any]) -> None:
    resolved = resolve(make_request({"model": "llama-2-7b", **given}))
    joined = search(resolved, remedies=False).plans[0]
    apart = together(halves(resolved), frameworks(resolved), None)
    assert apart.plans[0].step_seconds == pytest.approx(float(joined.cost.time.step_seconds), rel=0.06)


def test_equal_pools_in_a_string_are_one() -> None:
    cluster = parse_cluster("8xA100-80G+8xA100-80G")
    assert [pool.count for pool in cluster.pools] == [16]
    assert any("are one pool of 16" in text for text in cluster.assumed)
    assert [p.count for p in parse_cluster("8xA100-80G+4xRTX3090-24G+8xA100-80G").pools] == [16, 4]
    assert [p.count for p in parse_cluster("12xA100-80G+8xA100-80G").pools] == [12, 8]


def test_a_type_that_one_card_lacks_is_refused_by_name() -> None:
    """V100 has no bf16: no plan spans it and A100s in bf16; in fp16 with eager attention one does."""
    text = {"model": "llama-2-7b", "cluster": "8xA100-80G+8xV100-32G"}
    refused = mixed(resolve(make_request(text)))
    assert refused.plans == ()
    assert any("Tesla V100" in line and "bf16" in line and "--precision fp16" in line for line in refused.refusals)
    works = mixed(resolve(make_request({**text, "precision": "fp16", "attention": "eager", "framework": "megatron"})))
    assert {p.plan.pool.gpu.arch for p in works.plans[0].parts} == {"Ampere", "Volta"}
    assert works.single is not None
    assert works.plans[0].step_seconds < float(works.single.cost.time.step_seconds)


FILE = """
name = "two regions"
{between}
[[pool]]
gpu = "A100-80G"
count = 8
[[pool]]
gpu = "A100-80G"
count = 8
"""


def regions(folder: Path, between: str) -> Mixed:
    path = folder / "regions.toml"
    path.write_text(FILE.format(between=between), encoding="utf-8")
    return mixed(resolve(make_request({"model": "llama-3.1-8b", "cluster": str(path), "global_batch": 256, "framework": "megatron"})))


def test_a_slower_link_and_latency_between_regions_cost_time(tmp_path: Path) -> None:
    fast = regions(tmp_path, 'network_between_pools = "1600 Gb/s"')
    slow = regions(tmp_path, 'network_between_pools = "20 Gb/s"')
    far = regions(tmp_path, 'network_between_pools = "1600 Gb/s"\nlatency_between_pools = "30 ms"')
    assert fast.plans[0].step_seconds < far.plans[0].step_seconds < slow.plans[0].step_seconds
    assert "20.0 Gb/s" in " ".join(slow.links).replace("20 Gb/s", "20.0 Gb/s")
    assert "30 ms" in " ".join(far.links)


def test_inference_is_not_planned_over_pools() -> None:
    found = mixed(resolve(make_request({"model": "llama-3.1-8b", "cluster": "2xA100-80G+2xRTX3090-24G", "method": "inference"})))
    assert found.plans == ()
    assert any(text.startswith("inference is planned on each pool alone") for text in found.refusals)


def test_text_and_json_show_every_part() -> None:
    """The report prints the comparison, the parts and what they need; the document holds them with the same figures."""
    resolved = asked(cluster="2xA100-80G+2xRTX3090-24G")
    result = search(resolved, remedies=False)
    assert result.mixed is not None
    text = "\n".join(search_lines(result, 3, (), Look()))
    assert result.mixed.comparison.split(":")[0] in " ".join(text.split())
    assert all(len(row) <= 96 for row in text.splitlines())
    record = search_document(result, (), (), 3, mixed=mixed_record(result.mixed, 3)).mixed
    assert record is not None
    for made, shown_plan in zip(result.mixed.plans, record.plans, strict=False):
        assert shown_plan.step_seconds == made.step_seconds
        assert sum(t.exposed_seconds for t in shown_plan.terms) == pytest.approx(made.step_seconds)
        assert [p.gpus for p in shown_plan.parts] == [p.plan.pool.count for p in made.parts]
        for part in shown_plan.parts:
            assert sum(part.buckets.values()) == pytest.approx(part.peak_device_bytes)
            assert part.peak_device_bytes <= part.capacity_bytes - part.margin_bytes
