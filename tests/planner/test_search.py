"""Search against brute force, against single evaluation, and on requests that cannot be met."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.numeric import num
from planner import scan as scan_module
from planner.asked import make_request
from planner.evaluate import fitting, plan, totals
from planner.request import Resolved, resolve
from planner.rules import broken
from planner.search import frameworks, search, spaces
from planner.space import Counts

if TYPE_CHECKING:
    from planner.plan import SearchResult

REQUESTS: dict[str, dict[str, Any]] = {
    "8b on 8 small cards": {"model": "llama-3.1-8b", "cluster": "8xA100-40G", "global_batch": 32},
    "0.5b on 4 gaming cards": {"model": "Qwen/Qwen2.5-0.5B", "cluster": "4xRTX4090", "global_batch": 16},
    "20b, fp16, eager, V100": {
        "model": "gpt-neox-20b",
        "cluster": "2x8xV100-32G",
        "global_batch": 32,
        "precision": "fp16",
        "attention": "eager",
    },
    "lora": {"model": "llama-3.1-8b", "cluster": "4xA100-40G", "method": "lora", "global_batch": 16},
    "qlora on one card": {"model": "llama-3.1-8b", "cluster": "1xRTX4090", "method": "qlora", "global_batch": 4},
    "experts": {"model": "mistralai/Mixtral-8x7B-v0.1", "cluster": "2x8xA100-80G", "global_batch": 32},
    "fixed": {"model": "30b", "cluster": "32xA100-80G", "tp": 4, "pp": 4, "dp": 2},
    "serving": {"model": "llama-3.1-8b", "cluster": "2xA100-80G", "method": "inference"},
    "offload alone": {"model": "llama-3.1-8b", "cluster": "1xH100-80G", "offload": "optimizer"},
}


def asked(name: str, **more: Any) -> Resolved:
    """The request with offload searched too, unless it says otherwise."""
    return resolve(make_request({"offload": "any", **REQUESTS[name], **more}))


def brute(resolved: Resolved) -> tuple[dict[tuple[float, ...], float], int]:
    """Best step of every distinct combination by evaluating every lawful layout of the grid, reliefs included, and how many fit."""
    best: dict[tuple[float, ...], float] = {}
    fits = 0
    for group in spaces(resolved, resolved.cluster.pools[0], Counts()):
        for v, relief in enumerate(group.reliefs):
            for k, f, a in product(relief.recompute_layers, relief.offload_fraction, (None, *relief.activation_offload)):
                able = group.lawful[v] if a is None else group.movable[v]
                rows = np.flatnonzero(able & (k < group.held())) if relief.counts_layers else np.flatnonzero(able)
                if not len(rows):
                    continue
                point = {"recompute_layers": k, "offload_fraction": f, **({} if a is None else {"activation_offload": a})}
                found = totals(group.case, group.layouts(v, rows, **{n: np.full(len(rows), x) for n, x in point.items()}))
                good = fitting(group.case, found)
                fits += int(good.sum())
                keys = np.stack([group.columns[n][rows] for n in ("tp", "pp", "cp", "ep", "dp")], axis=1)
                for key, seconds in zip(keys[good], found.step_seconds[good], strict=True):
                    name = (*map(float, key), float(group.variants[v].zero))
                    best[name] = min(best.get(name, float("inf")), float(seconds))
    return best, fits


def step(p: Any) -> float:
    return float(num(p.cost.time.step_seconds))


@pytest.mark.parametrize("name", REQUESTS)
def test_brute_force_finds_nothing_better(name: str) -> None:
    """The pruned search finds what evaluating everything finds, in the same order; its refinements only improve on it."""
    resolved = asked(name)
    best, fits = brute(resolved)
    result = search(resolved, top=5, remedies=False)
    assert (result.status == "found") == bool(best)
    if not best:
        return
    wanted = sorted(best.values())[:5]
    got = [step(p) for p in result.plans]
    assert len(got) == len(wanted)
    assert all(g <= w for g, w in zip(got, wanted, strict=True))
    plain = [p for p in result.plans if p.layout.stage_layers is None and p.layout.stage_recompute is None]
    for p in plain:
        d = p.layout.degrees
        key = (*(float(num(getattr(d, n))) for n in ("tp", "pp", "cp", "ep", "dp")), float(p.layout.choices.zero))
        assert step(p) == best[key]
    assert result.searched.feasible > 0
    assert result.searched.lawful >= fits
    certificate = result.searched.certificate
    assert certificate is not None
    assert certificate.proved
    assert (certificate.gap, certificate.bound_seconds, certificate.unsolved) == (0.0, got[0], 0)
    assert certificate.families == certificate.solved + certificate.discarded


@pytest.mark.parametrize("name", REQUESTS)
def test_every_plan_keeps_its_laws_and_its_numbers(name: str) -> None:
    """Each plan, evaluated alone from its own layout, gives the same numbers bit for bit, breaks no law and fits."""
    resolved = asked(name)
    result = search(resolved, top=8, remedies=False)
    assert result.plans
    for p in result.plans:
        case = resolved.case(p.pool, p.training.framework)
        assert broken(case, p.layout) == ()
        again = plan(case, p.layout)
        assert step(again) == step(p)
        assert float(num(again.cost.memory.peak_device_bytes)) == float(num(p.cost.memory.peak_device_bytes))
        assert p.fits
        assert float(num(p.cost.memory.peak_device_bytes)) <= case.limit_bytes
        assert p.training.framework in p.frameworks
        assert p.limited_by.endswith("%")
        assert p.micro_batches * float(num(p.layout.degrees.micro_batch)) * float(num(p.layout.degrees.dp)) == p.training.global_batch
    assert [step(p) for p in result.plans] == sorted(step(p) for p in result.plans)
    keys = {
        (p.layout.degrees.tp, p.layout.degrees.pp, p.layout.degrees.cp, p.layout.degrees.ep, p.layout.degrees.dp, p.layout.choices.zero)
        for p in result.plans
    }
    assert len(keys) == len(result.plans)


def test_pruning_by_families_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny chunks the states of families are looked at first and every batch is cut: the answer is the same."""
    resolved = asked("8b on 8 small cards")
    whole = search(resolved, remedies=False)
    monkeypatch.setattr(scan_module, "CHUNK", 16)
    cut = search(resolved, remedies=False)
    assert [p.layout for p in whole.plans] == [p.layout for p in cut.plans]
    assert [step(p) for p in whole.plans] == [step(p) for p in cut.plans]


def test_the_expected_layout_is_feasible() -> None:
    """TP 4, PP 4, DP 2 for 30b on 32 A100-80G."""
    result = search(asked("fixed"))
    d = result.plans[0].layout.degrees
    assert (d.tp, d.pp, d.dp) == (4.0, 4.0, 2.0)


def summary(result: SearchResult) -> str:
    return repr([(p.training.framework, p.layout, step(p)) for p in result.plans]) + repr(result.searched)


def test_same_request_same_answer() -> None:
    """In one process twice, and in a fresh one with another hash seed."""
    first = summary(search(asked("experts"), remedies=False))
    assert summary(search(asked("experts"), remedies=False)) == first
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('t', sys.argv[1]);"
        " t = importlib.util.module_from_spec(spec);"
        " spec.loader.exec_module(t); print(t.summary(t.search(t.asked('experts'), remedies=False)), end='')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, __file__],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    )
    assert run.stdout == first


def test_nothing_fits_and_what_would() -> None:
    """8B in full on one H100 without offload: infeasible, with the nearest miss and remedies that really fit."""
    resolved = resolve(make_request({"model": "llama-3.1-8b", "cluster": "1xH100-80G", "offload": "none", "margin": 0.05}))
    result = search(resolved)
    assert (result.status, result.plans) == ("infeasible", ())
    assert result.searched.by_rule["memory"] == result.searched.lawful
    miss = result.near_misses[0]
    assert miss.missing_bytes == pytest.approx(float(num(miss.plan.cost.memory.peak_device_bytes)) - resolved.case().limit_bytes)
    assert miss.missing_bytes == min(m.missing_bytes for m in result.near_misses)
    assert miss.bucket in ("optimizer", "weights", "gradients")
    assert 0 < miss.bucket_bytes <= float(num(miss.plan.cost.memory.peak_device_bytes))
    words = " | ".join(r.flags for r in result.remedies)
    for flag in (
        "--offload optimizer",
        "--method lora",
        "--method qlora",
        "--regime pure-bf16",
        "--optimizer adam8bit",
        "2xH100",
        "--cluster 1x",
    ):
        assert flag in words
    for remedy in result.remedies:
        assert remedy.plan.fits


def test_near_miss_is_the_nearest() -> None:
    """No lawful layout of the grid misses by less than the nearest miss that is told."""
    resolved = resolve(make_request({"model": "llama-3.1-70b", "cluster": "8xA100-40G", "offload": "none", "global_batch": 8}))
    result = search(resolved, remedies=False)
    least = float("inf")
    for group in spaces(resolved, resolved.cluster.pools[0], Counts()):
        for v in range(len(group.variants)):
            rows = np.flatnonzero(group.lawful[v])
            if len(rows):
                least = min(least, float(totals(group.case, group.layouts(v, rows)).device_bytes.min()) - group.case.limit_bytes)
    assert result.near_misses[0].missing_bytes == pytest.approx(least, rel=1e-12)


def test_a_task_that_no_framework_runs_is_explained() -> None:
    result = search(resolve(make_request({"model": "7b", "cluster": "8xV100-32G"})), remedies=False)
    assert result.status == "infeasible"
    assert any("V100" in note and "bf16" in note for note in result.notes)


def test_interrupt_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def progress(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise KeyboardInterrupt

    result = search(asked("8b on 8 small cards"), progress=progress)
    assert result.status == "interrupted"
    assert result.plans
    assert "interrupted" in result.searched.proof
    calls = 6
    first = search(asked("8b on 8 small cards"), progress=progress)
    assert (first.status, first.plans) == ("interrupted", ())


def test_time_limit() -> None:
    assert search(asked("experts"), time_limit=0.0).status == "interrupted"


def test_plans_of_single_pools_stand_beside_those_over_pools() -> None:
    resolved = resolve(make_request({"model": "7b", "cluster": "8xA100-80G+4xRTX3090-24G"}))
    result = search(resolved, remedies=False)
    assert {p.pool.count for p in result.plans} <= {8, 4}
    assert result.mixed is not None
    assert {part.plan.pool.count for made in result.mixed.plans for part in made.parts} <= {4, 8}
    alone = search(
        resolve(make_request({"model": "7b", "cluster": "8xA100-80G", "global_batch": resolved.training.global_batch})), remedies=False
    )
    assert step(result.plans[0]) == step(alone.plans[0])


def test_uneven_stages_are_found_and_better() -> None:
    """A head as heavy as two layers and a half on 1F1B over 8 stages: the solver takes layers from the last stage, and wins."""
    request = {"model": "llama-3.1-8b", "cluster": "8xA100-80G", "pp": 8, "schedule": "1f1b", "framework": "megatron", "zero": 0}
    resolved = resolve(make_request({**request, "global_batch": 32, "micro_batch": 1, "offload": "none"}))
    best, _ = brute(resolved)
    result = search(resolved, remedies=False)
    assert step(result.plans[0]) < 0.95 * min(best.values())
    held = result.plans[0].layout.stage_layers
    assert held is not None
    assert sum(held) == 32
    assert held[-1] < min(held[:-1])
    assert "proved optimal" in result.searched.proof


def test_frameworks_asked_for_are_the_only_ones() -> None:
    resolved = asked("8b on 8 small cards", framework="deepspeed")
    assert frameworks(resolved) == ("deepspeed",)
    assert {p.training.framework for p in search(resolved, remedies=False).plans} == {"deepspeed"}


@pytest.mark.parametrize(("name", "same_as"), [("0.5b on 4 gaming cards", "none"), ("qlora on one card", "none"), ("8b alone", "any")])
def test_offload_is_the_last_resort_where_the_request_leaves_it_open(name: str, same_as: str) -> None:
    """`auto` gives what `--offload none` gives where that has a plan, and searches everything where it has none."""
    request = REQUESTS.get(name, {"model": "llama-3.1-8b", "cluster": "1xH100-80G"})
    left_open = search(resolve(make_request(request)), top=3, remedies=False)
    stated = search(resolve(make_request({**request, "offload": same_as})), top=3, remedies=False)
    assert [step(p) for p in left_open.plans] == [step(p) for p in stated.plans]
    assert left_open.plans
    assert all((p.layout.choices.offload == "none") == (same_as == "none") for p in left_open.plans)
