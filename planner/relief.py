"""Reliefs: the least recompute and offload with which a row fits, found without walking all of their values.

More recomputed layers, a larger offloaded part of the optimizer or of the activations never make a step shorter nor the device fuller,
and the last two never ask less of the host (the tests hold the cost models to it). So of one relief the first value that fits the device
is the best, and bisection finds it; where two act together every value of the first is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import Layout
from planner.evaluate import Totals, excluded_by, fitting, some, take

if TYPE_CHECKING:
    from planner.space import Group

Rows = npt.NDArray[np.intp]
Evaluate = Callable[["Layout"], Totals]
_Pick = npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice
_Layouts = Callable[[_Pick, npt.NDArray[np.int64]], "Layout"]
AT_ONCE = 2048
"""Points that are evaluated together rather than searched by halves: an evaluation costs as much as some thousand points in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Relieved:
    """The points that fit: of each row the best, or one for each value of the first of two reliefs."""

    rows: Rows
    """Index into the rows that were given."""
    layout: Layout | None
    """None where no point fits."""
    found: Totals | None
    feasible: int
    """Points that fit: those found and all that are leaner in the last relief."""
    excluded: dict[str, int]
    """Limit -> points of the rows looked at that it excludes."""


def relieve(
    group: Group, variant: int, rows: Rows, bound: npt.NDArray[np.float64], evaluate: Evaluate, below: float, *, moved: bool = False
) -> Relieved:
    """Return the fitting points of those `rows` under one variant that may take less than `below` seconds.

    `bound`: seconds of each row without any relief. `moved`: with activations offloaded instead of on the device.
    """
    axes = _axes(group, variant, moved=moved)
    first, last = (axes[0], axes[1]) if len(axes) == 2 else (None, axes[0])
    at = np.flatnonzero(bound <= below)
    sizes = _sizes(group, rows[at], last)
    fixed = np.zeros(len(at), dtype=np.int64)
    if first is not None:
        outer = _sizes(group, rows[at], first)
        at, fixed, sizes = np.repeat(at, outer), _ranges(outer), np.repeat(sizes, outer)
    nothing = Relieved(rows=at[:0], layout=None, found=None, feasible=0, excluded={})
    if not len(at):
        return nothing

    def layouts(pick: _Pick, index: npt.NDArray[np.int64]) -> Layout:
        chosen = {last[0]: _value(last[1], index, sizes[pick])}
        if first is not None:
            chosen[first[0]] = _value(first[1], fixed[pick], _sizes(group, rows[at[pick]], first))
        return group.layouts(variant, rows[at[pick]], **chosen)

    least = _least(group, layouts, sizes, evaluate)
    good = least < sizes
    excluded = {"memory": int(least.sum())}
    if not good.any():
        return replace(nothing, excluded=excluded)
    layout = layouts(good, least[good])
    found = evaluate(layout)
    fits = fitting(group.case, found)
    left = (sizes - least)[good]
    for name, count in excluded_by(group.case, some(found, ~fits), left[~fits]).items():
        excluded[name] = excluded.get(name, 0) + count
    if not fits.any():
        return replace(nothing, excluded=excluded)
    return Relieved(
        rows=at[good][fits], layout=take(layout, fits), found=some(found, fits), feasible=int(left[fits].sum()), excluded=excluded
    )


Axis = tuple[str, tuple[float, ...]]


def _axes(group: Group, variant: int, *, moved: bool) -> list[Axis]:
    """Return the reliefs that a variant leaves open, the one to bisect last; one with a single value where there are none."""
    r = group.reliefs[variant]
    axes: list[Axis] = []
    if r.counts_layers:
        axes.append(("recompute_layers", r.recompute_layers))
    if moved:
        axes.append(("activation_offload", r.activation_offload))
    if len(r.offload_fraction) > 1 or not axes:
        axes.append(("offload_fraction", r.offload_fraction))
    return axes[-2:]


def _sizes(group: Group, rows: Rows, axis: Axis) -> npt.NDArray[np.int64]:
    """Values of an axis on each row: recomputed layers stop at the layers of a stage."""
    if axis[0] == "recompute_layers":
        return group.held()[rows].astype(np.int64)
    return np.full(len(rows), len(axis[1]), dtype=np.int64)


def _ranges(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, … of each row, one after the other."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) - np.repeat(starts, sizes)


def _value(values: tuple[float, ...], index: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The last index of a row is the leanest value, however many come before it."""
    return np.where(index >= sizes - 1, values[-1], np.array(values)[np.minimum(index, len(values) - 1)])


def _first(layouts: _Layouts, sizes: npt.NDArray[np.int64], fits: Callable[[Layout], npt.NDArray[np.bool_]]) -> npt.NDArray[np.int64]:
    """The same for few points: all of them in one evaluation."""
    rows = np.repeat(np.arange(len(sizes)), sizes)
    index = _ranges(sizes)
    found = np.where(fits(layouts(rows, index)), index, sizes[rows])
    return np.minimum.reduceat(found, np.cumsum(sizes) - sizes)


def _least(
    group: Group,
    layouts: _Layouts,
    sizes: npt.NDArray[np.int64],
    evaluate: Evaluate,
) -> npt.NDArray[np.int64]:
    """Return the first index at which each row fits the device; its size where none does."""
    limit = group.case.limit_bytes
    if int(sizes.sum()) <= AT_ONCE:
        return _first(layouts, sizes, lambda layout: evaluate(layout).device_bytes <= limit)
    low, high = np.zeros(len(sizes), dtype=np.int64), sizes.copy()
    leanest = evaluate(layouts(slice(None), sizes - 1)).device_bytes <= limit
    high = np.where(leanest, sizes - 1, sizes)
    low = np.where(leanest, low, sizes)
    while True:
        open_ = low < high
        if not open_.any():
            return high
        middle = (low + high) // 2
        fits = evaluate(layouts(open_, middle[open_])).device_bytes <= limit
        high[open_] = np.where(fits, middle[open_], high[open_])
        low[open_] = np.where(fits, low[open_], middle[open_] + 1)
