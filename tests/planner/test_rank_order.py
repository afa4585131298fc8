"""Rank order: where a search tries both, which it keeps, and how a plan says it."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.cost import cost
from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.throughput.collectives import fabric
from cost_models.throughput.replicas import placed_better
from planner.asked import make_request
from planner.assess import assess
from planner.cli.options import layout_words
from planner.evaluate import totals
from planner.exporters import exporter
from planner.report.documents import layout_record
from planner.report.look import Look
from planner.report.plans import plan_table
from planner.report.words import layout_name
from planner.request import resolve
from planner.rules import RULES
from planner.runs.layout import layout as layout_of_run
from planner.search import search
from planner.space import Counts, groups

if TYPE_CHECKING:
    from pathlib import Path

    from planner.case import Case

INNER = RANK_ORDERS[1]
BETTER = next(rule for rule in RULES if rule.id == "rank_order_better")
FABRICS = {
    "plain": "",
    "thin": 'oversubscription = 4.0\nleaf_servers = 2\nrails = true\nnetwork_per_gpu = "4 GB/s"\n',
    "few NICs": '[node]\nbase = "dgx-a100-80g"\nnic_count = 2\n',
    "pairs": '[node]\nbase = "dgx-a100-80g"\nlink_domain_size = 2\n',
}


def case_on(folder: Path, fabric_text: str, **request: Any) -> Case:
    file = folder / "cluster.toml"
    file.write_text(f'gpu = "A100-80G"\nnodes = 4\n{fabric_text}', encoding="utf-8")
    fields = {"model": "llama-3.1-8b", "framework": "megatron", "seq": 4096, "global_batch": 64, "cluster": str(file), **request}
    return resolve(make_request(fields)).case(framework="megatron")


def grid(case: Case, order: float) -> Layout:
    """Every division of 32 GPUs, with and without shard groups; experts with as many replicas as the rest."""
    experts = case.architecture.moe is not None
    rows = [
        (tp, pp, cp, 32 / tp / pp / cp, ep, tp * cp / ep, shard)
        for tp, pp, cp, ep, shard in product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4, 8) if experts else (1,), (0, 2, 8))
        if 32 % (tp * pp * cp) == 0 and (32 / tp / pp) % max(shard, 1) == 0 and (not experts or tp * cp % ep == 0)
    ]
    columns = [np.array(c, dtype=np.float64).reshape(-1, 1) for c in zip(*rows, strict=True)]
    tp, pp, cp, dp, ep, etp, shard = columns
    etp = etp if experts else np.ones_like(etp)
    degrees = Degrees(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, etp=etp, shard_group=shard, rank_order=np.full_like(tp, order))
    return Layout(degrees=degrees, choices=Choices(zero=1))


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b"])
def test_orders_that_are_not_tried_are_never_faster(name: str, model: str, tmp_path: Path) -> None:
    """And where no group is placed otherwise they cost the same to the bit."""
    case = case_on(tmp_path, FABRICS[name], model=model)
    inner, usual = grid(case, 1.0), grid(case, 0.0)
    tried = np.asarray(BETTER.holds(case, inner)).reshape(-1)
    taken, usually = (totals(case, layout).step_seconds for layout in (inner, usual))
    assert np.all(taken[~tried] >= usually[~tried])
    worse = placed_better(usual, inner, fabric(case.pool), experts=case.architecture.moe is not None)
    same = ~tried & ~worse
    assert same.any()
    assert np.array_equal(taken[same], usually[same])
    assert tried.any()
    moved = totals(case, inner).device_bytes
    assert np.array_equal(moved, totals(case, usual).device_bytes)


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize(("model", "framework", "zero"), [("llama-3.2-1b", "megatron", 1), ("mixtral-8x7b", "torchtitan", 3)])
def test_a_batch_of_both_orders_equals_its_rows_to_the_bit(name: str, model: str, framework: str, zero: int, tmp_path: Path) -> None:
    """Whatever the neighbours in the batch: groups that cross servers in some rows and not in others, hidden sends, shared networks."""
    case = case_on(tmp_path, FABRICS[name], model=model).under(framework)
    inner, usual = grid(case, 1.0), grid(case, 0.0)
    names = tuple(Degrees.__dataclass_fields__)
    columns = {n: np.concatenate([np.broadcast_to(num(getattr(g.degrees, n)), (g.size, 1)) for g in (inner, usual)]) for n in names}
    columns["vpp"] = np.where(columns["pp"] > 1.0, 2.0, 1.0)
    both = Layout(degrees=Degrees(**columns), choices=Choices(zero=zero, schedule="interleaved"))
    together = totals(case, both).step_seconds
    for row in range(0, both.size, max(1, both.size // 40)):
        assert float(totals(case, both.row(row)).step_seconds[0]) == float(together[row])


@pytest.mark.parametrize("cluster", ["8xA100-80G", "64xGB200"])
def test_inside_one_domain_every_order_is_the_same(cluster: str) -> None:
    case = resolve(make_request({"model": "llama-3.1-8b", "cluster": cluster, "framework": "megatron", "global_batch": 64})).case()
    world = case.world
    for tp, pp in ((1, 2), (2, 2), (1, 8), (4, 2)):
        both = [
            cost(
                case.architecture,
                case.training,
                Layout(
                    degrees=Degrees(tp=float(tp), pp=float(pp), dp=world / tp / pp, rank_order=order),
                    choices=Choices(zero=1),
                ),
                case.pool,
            ).time.step_seconds
            for order in (0.0, 1.0)
        ]
        assert float(num(both[0])) == float(num(both[1]))
    assert all(not g.columns["rank_order"].any() for g in groups(case, Counts(), offloaded=False))


def test_a_search_looks_at_each_layout_in_its_faster_order(tmp_path: Path) -> None:
    """Brute force over the rows of both orders: one of each pair is kept, the faster, the usual one where they are equal."""
    case = case_on(tmp_path, FABRICS["few NICs"], pp=4, vpp=1, micro_batch=1)
    fixed = {order: case_on(tmp_path, FABRICS["few NICs"], pp=4, vpp=1, micro_batch=1, rank_order=order) for order in RANK_ORDERS}
    names = ("tp", "cp", "dp", "shard_group", "micro_batch")
    step: dict[tuple[Any, ...], dict[float, float]] = {}
    for one in fixed.values():
        for g in groups(one, Counts(), offloaded=False):
            found = totals(one, g.layouts(0)).step_seconds
            for i in range(len(g)):
                key = (g.choices, *(g.columns[n][i] for n in names))
                step.setdefault(key, {})[float(g.columns["rank_order"][i])] = float(found[i])
    counts, seen = Counts(), 0
    for g in groups(case, counts, offloaded=False):
        for i in range(len(g)):
            times = step[(g.choices, *(g.columns[n][i] for n in names))]
            assert float(g.columns["rank_order"][i]) == min(times, key=lambda order: (times[order], order))
            seen += 1
    assert seen == len(step)
    assert counts.by_rule["rank_order_slower"] > 0


def found(order: str | None, **fields: Any) -> Any:
    request = {"model": "llama-2-13b", "cluster": "32xA100-80G", "framework": "megatron", "method": "lora", "seq": 4096, "tp": 1, "pp": 4}
    return search(resolve(make_request({**request, **({} if order is None else {"rank_order": order}), **fields})), remedies=False)


def test_stages_side_by_side_win_where_sends_outweigh_gradients() -> None:
    """Adapters have next to no gradients to reduce, and a pipeline of four fits into a server twice."""
    free, usual, inner = (found(order) for order in (None, *RANK_ORDERS))
    best = [float(r.plans[0].cost.time.step_seconds) for r in (free, usual, inner)]
    assert best[0] == best[2] < best[1]
    plan = free.plans[0]
    assert f"ranks {INNER}" in layout_name(plan.layout)
    assert "ranks" not in layout_name(usual.plans[0].layout)
    look = Look(width=100)
    assert any("--rank-order" in line for line in plan_table(free.plans, look))
    assert not any("ranks" in line for line in plan_table(usual.plans, look))
    assert layout_record(plan.layout, plan.micro_batches).rank_order == INNER
    words = layout_words(plan)
    assert words[words.index("--rank-order") + 1] == INNER
    assert "--rank-order" not in layout_words(usual.plans[0])
    assert free.searched.certificate is not None
    assert free.searched.certificate.proved


def test_export_writes_the_order_for_megatron_and_refuses_it_elsewhere() -> None:
    def stated(framework: str, **fields: Any) -> Any:
        request = {"model": "llama-3.1-8b", "cluster": "32xA100-80G", "framework": framework, "global_batch": 64, **fields}
        return assess(resolve(make_request(request)))

    flag = "--use-tp-pp-dp-mapping"
    for order, wanted in zip(RANK_ORDERS, (False, True), strict=True):
        made = stated("megatron", tp=2, pp=4, dp=4, rank_order=order)
        assert made.plan is not None
        assert (flag in json.loads(exporter("megatron").export(made.plan)["megatron.json"])) == wanted
    for framework in ("deepspeed", "torchtitan"):
        refused = stated(framework, pp=4, dp=8, rank_order=INNER)
        assert [b.rule for b in refused.broken if b.rule.startswith("rank_order")] == ["rank_order_framework"]
        assert any(f"rank_order={INNER}" in b.message and f"try rank_order={RANK_ORDERS[0]}" in b.message for b in refused.broken)


def test_experts_need_as_many_replicas_as_the_rest() -> None:
    request = {"model": "mixtral-8x7b", "cluster": "64xH100-80G", "framework": "megatron", "global_batch": 64, "rank_order": INNER}
    apart = assess(resolve(make_request({**request, "tp": 2, "pp": 4, "dp": 8, "ep": 8})))
    assert [b.rule for b in apart.broken] == ["rank_order_experts"]
    assert "etp × ep = 1 × 8 and tp × cp = 2 × 1 must be equal" in apart.broken[0].message
    assert "try ep=2" in apart.broken[0].message
    assert assess(resolve(make_request({**request, "tp": 2, "pp": 4, "dp": 8, "ep": 2}))).plan is not None


def test_nanotron_numbers_experts_stage_by_stage() -> None:
    request = {"model": "mixtral-8x7b", "cluster": "64xH100-80G", "framework": "nanotron", "global_batch": 64, "pp": 4, "dp": 16}
    made = assess(resolve(make_request(request)))
    assert made.plan is not None
    assert float(num(made.layout.degrees.rank_order)) == 1.0
    assert [b.rule for b in assess(resolve(make_request({**request, "rank_order": RANK_ORDERS[0]}))).broken] == ["rank_order_framework"]


def test_an_unknown_order_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tp-cp-ep-dp-pp' or 'tp-cp-ep-pp-dp"):
        make_request({"model": "7b", "cluster": "8xA100-80G", "rank_order": "pp-tp"})


def test_rows_of_a_run_table_say_their_order() -> None:
    from planner.runs.assumed import Assumptions
    from planner.runs.frameworks import Setting, habits
    from planner.runs.notes import stated
    from planner.runs.row import Run

    base = {"framework": "megatron", "tp": 2, "pp": 2, "layers": 12, "micro_batch": 1, "num_gpus": 8, "global_batch": 8, "date": "2026-01"}
    for extra, wanted in (
        ({}, 0.0),
        ({"notes": "args: use-tp-pp-dp-mapping=True"}, 1.0),
        ({"notes": "args: use-tp-pp-dp-mapping=False"}, 0.0),
    ):
        run = Run(id="r", **{**base, **extra})
        found_habits = habits("megatron", Setting())
        assert found_habits is not None
        made = layout_of_run(run, stated(run), found_habits, Assumptions())
        assert float(num(made.degrees.rank_order)) == wanted
