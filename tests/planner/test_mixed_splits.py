"""Splits of layers over stages against enumeration by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.mixed import splits as module
from planner.mixed.splits import Tables, best_split


def slowest_then_total(forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """A stand-in for a schedule: many micro-batches through the slowest stage, one through all."""
    time = forward + backward
    return 20.0 * np.max(time, axis=-1) + np.sum(time, axis=-1)


def compositions(layers: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(layers,)]
    return [(first, *rest) for first in range(1, layers - parts + 2) for rest in compositions(layers - first, parts - 1)]


def tables_of(seed: int, stages: int, layers: int) -> Tables:
    """Random tables; some options do not fit."""
    draw = np.random.default_rng(seed)
    each = draw.uniform(0.5, 3.0, size=(stages, 1, 1)) * np.arange(layers + 1) * draw.uniform(0.8, 1.2, size=(stages, layers, layers + 1))
    forward = np.where(draw.uniform(size=each.shape) < 0.2, np.inf, each)
    for start in range(layers):
        forward[:, start, layers - start + 1 :] = np.inf
    once = draw.uniform(0.0, 5.0, size=each.shape)
    return Tables(forward=forward, backward=2.0 * forward, once=(once,))


def by_hand(tables: Tables) -> float:
    best = float("inf")
    for held in compositions(tables.layers, len(tables.forward)):
        starts = np.cumsum([0, *held[:-1]])
        picked = [(i, s, n) for i, (s, n) in enumerate(zip(starts, held, strict=True))]
        f = np.array([tables.forward[p] for p in picked])
        b = np.array([tables.backward[p] for p in picked])
        value = float(slowest_then_total(f, b)) + max(float(tables.once[0][p]) for p in picked)
        best = min(best, value)
    return best


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 4), layers=st.integers(4, 9))
def test_every_split_is_compared(seed: int, stages: int, layers: int) -> None:
    tables = tables_of(seed, stages, layers)
    wanted, found = by_hand(tables), best_split(tables, slowest_then_total)
    if found is None:
        assert wanted == float("inf")
        return
    held, seconds, exhaustive = found
    assert exhaustive
    assert sum(held) == layers
    assert seconds == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.integers(2, 5), layers=st.integers(5, 10))
def test_the_shortest_paths_are_near_where_splits_are_too_many(seed: int, stages: int, layers: int) -> None:
    tables = tables_of(seed, stages, layers)
    tables = Tables(forward=tables.forward, backward=tables.backward)
    whole = best_split(tables, slowest_then_total)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ENUMERATED", 0)
        found = best_split(tables, slowest_then_total)
    assert (found is None) == (whole is None)
    if found is None or whole is None:
        return
    assert not found[2]
    assert sum(found[0]) == layers
    assert found[1] == pytest.approx(whole[1], rel=1e-9)  # this stand-in is a function of slowest and total alone
