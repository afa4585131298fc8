"""Whole searches of one small pipeline against every split, recompute and offload, evaluated one by one; wrong bounds are noticed."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from planner import bounds as bounds_module
from planner import scan as scan_module
from planner import space as space_module
from planner.asked import make_request
from planner.bounds import balanced_seconds
from planner.evaluate import as_batch, evaluate, fitting, totals
from planner.request import Resolved, resolve
from planner.rules import binding
from planner.search import search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planner.case import Case

PARTS = (0.5, 1.0)


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "OFFLOAD_PARTS", PARTS)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """One pipeline of two or three stages on cards whose memory may be short."""
    pp = draw(st.sampled_from((2, 2, 3)))
    schedule, m = draw(st.sampled_from(("1f1b", "1f1b", "gpipe", "interleaved"))), draw(st.sampled_from((1, 2, 4, 6)))
    layers = draw(st.integers(2 * pp, 7)) if schedule == "interleaved" else draw(st.integers(4, 7 if pp == 2 else 5))
    moe = draw(st.integers(0, 3)) == 0 and schedule != "interleaved"
    asked: dict[str, Any] = {
        "dimensions": {
            "layers": layers,
            "hidden": draw(st.sampled_from((2048, 4096))),
            "heads": 16,
            "vocab": draw(st.sampled_from((32_000, 256_000))),
            **({"num_experts": 4, "topk": 2, "first_k_dense": draw(st.integers(0, 2))} if moe else {}),
        },
        "cluster": f"{pp * 2}xA100-80G",
        "framework": "torchtitan" if schedule == "gpipe" else "megatron",
        "seq": 2048,
        "global_batch": 2 * m * (pp if schedule == "interleaved" else 1),
        "pp": pp,
        "tp": 1,
        "cp": 1,
        "dp": 2,
        "micro_batch": 1,
        "schedule": schedule,
        "zero": 2 if schedule == "gpipe" else draw(st.sampled_from((0, 1))),
        "shard_group": None,
        "free_memory": f"{draw(st.floats(8.0, 60.0)):.1f}GiB",
        "margin": 0.0,
    }
    if schedule == "interleaved":
        asked["vpp"] = 2
    if moe:
        asked.update(ep=1, etp=1)
    return {k: v for k, v in asked.items() if v is not None}


def splits(layers: int, pp: int, least: int) -> Iterator[tuple[int, ...]]:
    if pp == 1:
        yield (layers,)
        return
    for n in range(least, layers - least * (pp - 1) + 1):
        yield from ((n, *rest) for rest in splits(layers - n, pp - 1, least))


def every_layout(case: Case) -> Iterator[Layout]:
    """Every split of the layers with every recompute of every stage and every offload."""
    g, layers = case.given, case.architecture.layers
    d = Degrees(**{n: float(g.get(n, 1)) for n in ("tp", "pp", "cp", "dp", "vpp", "micro_batch")})
    megatron = case.framework == "megatron"
    modules = [("core_attn",)]
    wide = ["core_attn", "layernorm", "moe_act" if case.architecture.moe else "mlp"]
    kinds: list[tuple[str, tuple[str, ...]]] = [("none", ("core_attn",)), ("full", ("core_attn",))]
    kinds += [("selective", tuple(m)) for m in (*modules, wide)]
    offloads = [("none", 1.0), *((("optimizer", f) for f in PARTS) if megatron and g["zero"] else ())]
    for held, (recompute, named), (offload, part) in product(splits(layers, int(g["pp"]), int(g.get("vpp", 1))), kinds, offloads):
        choices = Choices(
            zero=g["zero"], sequence_parallel=False, schedule=g["schedule"], recompute=recompute, recompute_modules=named, offload=offload
        )
        counts = product(*(range(n + 1) for n in held)) if recompute == "full" and megatron else [held]
        for again in counts:
            degrees = Degrees(**{**{n: getattr(d, n) for n in Degrees.__dataclass_fields__}, "offload_fraction": part})
            yield Layout(degrees=degrees, choices=choices, stage_layers=held, stage_recompute=tuple(again) if recompute == "full" else None)


def brute(resolved: Resolved) -> float:
    """Least step of all layouts that fit, among those where no stage recomputes more layers than it must."""
    case = resolved.case()
    fits: dict[Any, float] = {}
    lawful: dict[Any, bool] = {}
    for layout in every_layout(case):
        key = (layout.choices, layout.degrees.offload_fraction)
        if key not in lawful:
            lawful[key] = all(np.all(rule.holds(case, layout)) for rule in binding(case))
        found = totals(case, layout) if lawful[key] else None
        if found is not None and fitting(case, found)[0]:
            fits[(*key, layout.stage_layers, layout.stage_recompute)] = float(found.step_seconds[0])
    return min((seconds for key, seconds in fits.items() if not any(less in fits for less in _leaner(key))), default=float("inf"))


def _leaner(key: Any) -> Iterator[Any]:
    """The same with one recomputed layer less on one stage."""
    again = key[-1] or ()
    for s, k in enumerate(again):
        if k:
            yield (*key[:-1], (*again[:s], k - 1, *again[s + 1 :]))


def compare(request: dict[str, Any]) -> None:
    resolved = resolve(make_request(request))
    wanted, result = brute(resolved), search(resolved, top=1, remedies=False)
    if not result.plans:
        assert wanted == float("inf")
        return
    plan, certificate = result.plans[0], result.searched.certificate
    got = float(num(plan.cost.time.step_seconds))
    assert certificate is not None
    assert certificate.proved
    assert certificate.gap == 0.0
    # even splits stand beside the listed ones: the search may find one of them, and never less than the best of all
    assert got <= wanted * (1.0 + 3e-5), (plan.layout, certificate)
    listed = plan.layout.stage_layers is not None
    if listed:
        assert got >= wanted * (1.0 - 1e-12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(requests())
def test_search_equals_brute_force(request_: dict[str, Any]) -> None:
    compare(request_)


@pytest.mark.bench
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(requests())
def test_search_equals_brute_force_500_times(request_: dict[str, Any]) -> None:
    compare(request_)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests(), st.randoms(use_true_random=False))
def test_no_split_beats_the_balance_bound(request_: dict[str, Any], random: Any) -> None:
    """The bound that discards families, against random splits with random recompute."""
    case = resolve(make_request(request_)).case()
    layouts = list(every_layout(case))
    for layout in random.sample(layouts, min(8, len(layouts))):
        plain = Layout(degrees=layout.degrees, choices=Choices(**{**_plain(layout), "recompute": "none", "offload": "none"}))
        bound = float(balanced_seconds(case, as_batch(plain))[0])
        assert bound <= float(num(evaluate(case, layout).time.step_seconds))


def _plain(layout: Layout) -> dict[str, Any]:
    return {n: getattr(layout.choices, n) for n in Choices.__dataclass_fields__}


HEAVY_HEAD = {
    "model": "llama-3.1-8b",
    "cluster": "8xA100-80G",
    "pp": 8,
    "schedule": "1f1b",
    "framework": "megatron",
    "zero": 0,
    "global_batch": 32,
    "micro_batch": 1,
    "offload": "none",
}


def test_a_wrong_balance_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the tests above: were the bound twice as high, the best split would be lost."""
    resolved = resolve(make_request(HEAVY_HEAD))
    right = search(resolved, top=1, remedies=False)
    assert right.plans[0].layout.stage_layers is not None
    monkeypatch.setattr(scan_module, "balanced_seconds", lambda case, layout: 2.0 * bounds_module.balanced_seconds(case, layout))
    wrong = search(resolved, top=1, remedies=False)
    seconds = [float(num(r.plans[0].cost.time.step_seconds)) if r.plans else float("inf") for r in (right, wrong)]
    assert seconds[0] < seconds[1]


def test_rules_are_kept_by_every_level() -> None:
    """No plan of a pipeline breaks a law, whatever the solver chose."""
    resolved = resolve(make_request({**HEAVY_HEAD, "zero": 1, "offload": "auto", "free_memory": "34GiB", "dp": 1}))
    result = search(resolved, remedies=False)
    assert result.plans
    for plan in result.plans:
        case = resolved.case(plan.pool, plan.training.framework)
        assert all(np.all(rule.holds(case, plan.layout)) for rule in binding(case))
