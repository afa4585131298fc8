"""Splits: how many consecutive layers each stage of a pipeline holds, from tables of what stages cost.

Every split is enumerated where there are at most ENUMERATED; else, for each bound on the slowest stage from the least possible upwards, the
split of least total time that keeps it (a shortest path over the layers). Either way the schedule's own formula decides between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
ENUMERATED = 40_000
BOUNDS = 24
"""Bounds on the slowest stage that are tried beyond the least possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Seconds of one micro-batch of each stage, by first layer and layers held: (stages, L, L + 1); infinite where it does not fit."""

    forward: Array
    backward: Array
    once: tuple[Array, ...] = ()
    """Seconds of each term that occurs once a step, of which the slowest stage counts; in the same shape."""

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.forward.shape[1])

    @property
    def both(self) -> Array:
        """Forward and backward together."""
        return self.forward + self.backward

    def of(self, splits: Whole) -> tuple[Array, Array, Array]:
        """Return (forward, backward) of splits (S, stages), each (S, stages), and what comes once a step, (S,)."""
        starts = np.concatenate([np.zeros((len(splits), 1), dtype=np.int64), np.cumsum(splits, axis=1)[:, :-1]], axis=1)
        stage = np.arange(splits.shape[1])[None, :]
        once = np.zeros(len(splits))
        for term in self.once:
            once = once + np.max(term[stage, starts, splits], axis=1)
        return self.forward[stage, starts, splits], self.backward[stage, starts, splits], once


Formula = Callable[[Array, Array], Array]
"""(forward, backward) of splits, (S, stages) -> seconds of all micro-batches, (S,)."""


def best_split(tables: Tables, formula: Formula) -> tuple[tuple[int, ...], float, bool] | None:
    """Return (layers of each stage, seconds of a step, whether all splits were compared); None where none fits. The first of equals."""
    splits = _all(tables)
    exhaustive = splits is not None
    if splits is None:
        splits = _fastest(tables)
    if not len(splits):
        return None
    forward, backward, once = tables.of(splits)
    seconds = formula(forward, backward) + once
    at = int(np.argmin(seconds))
    return tuple(int(n) for n in splits[at]), float(seconds[at]), exhaustive


def _all(tables: Tables) -> Whole | None:
    """Return every split that fits, in lexicographic order; None where there are too many."""
    stages, layers = len(tables.forward), tables.layers
    fits = np.isfinite(tables.both)
    reachable = _reachable(fits)
    found, ends = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for stage in range(stages):
        held = np.arange(1, layers + 1)
        after = ends[:, None] + held[None, :]
        inside = after <= layers
        good = inside & fits[stage][np.minimum(ends, layers - 1)[:, None], held[None, :]] & reachable[stage + 1][np.minimum(after, layers)]
        row, column = np.nonzero(good)
        if len(row) > ENUMERATED:
            return None
        found = np.concatenate([found[row], held[column][:, None]], axis=1)
        ends = after[row, column]
    return found


def _reachable(fits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return, before each stage, from which layers the stages from there on can hold all the rest: (stages + 1, L + 1)."""
    stages, layers = fits.shape[0], fits.shape[1]
    found = np.zeros((stages + 1, layers + 1), dtype=bool)
    found[stages, layers] = True
    for stage in reversed(range(stages)):
        for start in range(layers):
            held = np.arange(1, layers - start + 1)
            found[stage, start] = bool(np.any(fits[stage, start, held] & found[stage + 1, start + held]))
    return found


def _fastest(tables: Tables) -> Whole:
    """Return for each of several bounds on the slowest stage the split of least total time."""
    both = tables.both
    values = np.unique(both[np.isfinite(both)])
    if not len(values):
        return np.zeros((0, len(both)), dtype=np.int64)
    low, high = 0, len(values) - 1
    if _least_total(both, values[high]) is None:
        return np.zeros((0, len(both)), dtype=np.int64)
    while low < high:
        middle = (low + high) // 2
        if _least_total(both, values[middle]) is None:
            low = middle + 1
        else:
            high = middle
    found = [split for value in values[low : low + BOUNDS] if (split := _least_total(both, value)) is not None]
    return np.unique(np.array(found, dtype=np.int64), axis=0)


def _least_total(both: Array, bound: float) -> tuple[int, ...] | None:
    """Return the split of least total seconds whose stages all take at most `bound`."""
    stages, layers = both.shape[0], both.shape[1]
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0
    picks = np.zeros((stages, layers + 1), dtype=np.int64)
    for stage in range(stages):
        after = np.full(layers + 1, np.inf)
        table = np.where(both[stage] <= bound, both[stage], np.inf)
        for held in np.flatnonzero(np.any(np.isfinite(table), axis=0)):
            if held == 0:
                continue
            value = best[: layers + 1 - held] + np.append(table[:, held], np.inf)[: layers + 1 - held]
            better = value < after[held:]
            after[held:] = np.where(better, value, after[held:])
            picks[stage, held:] = np.where(better, held, picks[stage, held:])
        best = after
    if not np.isfinite(best[layers]):
        return None
    split, end = [], layers
    for stage in reversed(range(stages)):
        split.append(int(picks[stage, end]))
        end -= split[-1]
    return tuple(reversed(split))
