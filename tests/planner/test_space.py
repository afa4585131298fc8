"""The space is exactly the lawful part of the full grid, and its counts add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.layout import Choices, Degrees, Layout
from planner import space as space_module
from planner.asked import make_request
from planner.request import resolve
from planner.rules import binding
from planner.space import Counts, Group, candidates, groups

if TYPE_CHECKING:
    from planner.case import Case

SMALL: list[dict[str, Any]] = [
    {"model": "Qwen/Qwen2.5-0.5B", "cluster": "4xA100-80G", "global_batch": 4, "framework": "megatron", "vpp": 1, "cp": 1},
    {
        "model": "Qwen/Qwen2.5-0.5B",
        "cluster": "4xA100-80G",
        "global_batch": 4,
        "framework": "megatron",
        "recompute": "selective",
        "offload": "none",
    },
    {"model": "Qwen/Qwen2.5-0.5B", "cluster": "4xA100-80G", "global_batch": 4, "framework": "deepspeed"},
    {"model": "llama-3.1-8b", "cluster": "2x2xA100-80G", "global_batch": 4, "framework": "torchtitan", "tp": 1, "vpp": 1},
    {
        "model": "mistralai/Mixtral-8x7B-v0.1",
        "cluster": "4xA100-80G",
        "global_batch": 2,
        "framework": "megatron",
        "recompute": "full",
        "zero": 1,
        "vpp": 1,
        "offload": "none",
    },
    {"model": "llama-3.1-8b", "cluster": "4xA100-80G", "global_batch": 4, "framework": "fsdp", "offload": "none"},
]


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of the optimizer and one of the activations: brute force walks every point."""
    monkeypatch.setattr(space_module, "OFFLOAD_PARTS", (0.5, 1.0))
    monkeypatch.setattr(space_module, "ACTIVATION_PARTS", (1.0,))


def case_of(request: dict[str, Any]) -> Case:
    resolved = resolve(make_request(request))
    return resolved.case(framework=request["framework"])


def listed(case: Case, counts: Counts) -> list[Group]:
    return [g for offloaded in (False, True) for g in groups(case, counts, offloaded=offloaded)]


def name(layout: Layout) -> tuple[Any, ...]:
    d = layout.degrees
    return (layout.choices, *(float(np.asarray(getattr(d, f))) for f in Degrees.__dataclass_fields__))


def points(g: Group, v: int, i: int) -> list[Layout]:
    """All points that one lawful row stands for: the row with every value of its reliefs."""
    r, row = g.reliefs[v], g.layouts(v).row(i)
    held = int(g.held()[i])
    layers = (*r.recompute_layers[: held - 1], r.recompute_layers[-1]) if r.counts_layers else r.recompute_layers
    moved = (float(np.asarray(row.degrees.activation_offload)), *(r.activation_offload if g.movable[v][i] else ()))
    return [
        replace(row, degrees=replace(row.degrees, recompute_layers=k, offload_fraction=f, activation_offload=a))
        for k, f, a in product(layers, r.offload_fraction, moved)
    ]


def rows(found: list[Group]) -> list[tuple[Any, ...]]:
    return [name(p) for g in found for v in range(len(g.variants)) for i in np.flatnonzero(g.lawful[v]) for p in points(g, v, int(i))]


@pytest.mark.parametrize("request_", SMALL, ids=lambda r: f"{r['framework']} {r['model']}")
def test_space_is_the_lawful_grid(request_: dict[str, Any]) -> None:
    """Brute force: every point of every family's grid, judged by all binding rules, is in the space or not, once."""
    case, counts = case_of(request_), Counts()
    found = rows(listed(case, counts))
    assert len(found) == len(set(found)) == counts.lawful > 0
    choices = {(v, r) for g in listed(case, Counts()) for v, r in zip(g.variants, g.reliefs, strict=True)}
    laws, axes = binding(case), candidates(case)
    names = [n for n in axes if n != "dp"]
    fixed = {k: (float(v),) for k, v in case.given.items() if k in axes}
    wanted = set()
    for variant, relief in choices:
        reliefs = {
            "recompute_layers": relief.recompute_layers,
            "offload_fraction": relief.offload_fraction,
            "activation_offload": (*fixed.get("activation_offload", (0.0,)), *relief.activation_offload),
        }
        grid = np.array(list(product(*(reliefs.get(n) or fixed.get(n, axes[n]) for n in names))), dtype=np.float64)
        degrees: dict[str, Any] = {n: grid[:, [i]] for i, n in enumerate(names)}
        degrees["dp"] = case.world / (degrees["tp"] * degrees["pp"] * degrees["cp"])
        batch = Layout(degrees=Degrees(**degrees), choices=variant)
        keep = degrees["dp"] == np.floor(degrees["dp"])
        if relief.counts_layers:
            keep &= degrees["recompute_layers"] < np.ceil(case.architecture.layers / degrees["pp"])
        for rule in laws:
            keep &= np.broadcast_to(np.asarray(rule.holds(case, batch)), keep.shape)
        wanted |= {name(batch.row(int(i))) for i in np.flatnonzero(keep)}
    assert set(found) == wanted


@pytest.mark.parametrize("request_", SMALL, ids=lambda r: f"{r['framework']} {r['model']}")
def test_counts_add_up(request_: dict[str, Any]) -> None:
    """Every layout of the space is lawful or fell to exactly one rule."""
    counts = Counts()
    listed(case_of(request_), counts)
    assert counts.layouts == counts.lawful + sum(counts.by_rule.values())


def test_fixed_fields_are_the_only_value() -> None:
    request = {"model": "llama-3.1-8b", "cluster": "16xA100-80G", "framework": "megatron", "tp": 2, "pp": 4, "zero": 1, "micro_batch": 2}
    found = listed(case_of(request), Counts())
    assert found
    for g in found:
        assert set(g.columns["tp"]) == {2.0}
        assert set(g.columns["pp"]) == {4.0}
        assert set(g.columns["micro_batch"]) == {2.0}
        assert g.choices.zero == 1


def test_fixing_lifts_a_preference() -> None:
    base = {"model": "llama-3.1-70b", "cluster": "4x8xA100-80G", "framework": "megatron"}
    assert max(np.max(g.columns["tp"]) for g in listed(case_of(base), Counts())) == 8.0
    assert {float(np.max(g.columns["tp"])) for g in listed(case_of({**base, "tp": 16}), Counts())} == {16.0}


def test_codes_name_the_same_degrees_in_every_group() -> None:
    seen: dict[int, tuple[float, ...]] = {}
    for g in listed(case_of(SMALL[0]), Counts()):
        for i, code in enumerate(g.codes):
            degrees = tuple(float(g.columns[n][i]) for n in sorted(g.columns))
            assert seen.setdefault(int(code), degrees) == degrees
        same = {}
        for i, family in enumerate(g.families):
            states = tuple(float(g.columns[n][i]) for n in sorted(g.columns) if n != "micro_batch")
            assert same.setdefault(int(family), states) == states


def test_a_space_of_65536_gpus_stays_small() -> None:
    request = {"model": "kimi-k2", "cluster": "65536xGB200", "seq": 4096, "global_batch": 16384, "framework": "megatron"}
    counts = Counts()
    assert max(len(g) for g in listed(case_of(request), counts)) < 100_000
    assert counts.layouts > 10**9
    assert Choices().zero == 1
