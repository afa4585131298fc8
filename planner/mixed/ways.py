"""Ways: the layouts that one pool offers for a share of the batch that is not known yet, and how long each takes for n samples.

A row's time depends on the share only through its micro-batches m = share / (micro-batch × dp). Every row is evaluated at a few shares;
between them its time is bounded from below: forward and backward of a pipeline are a maximum of lines in m (cost_models/choices/schedules),
hence convex once there are so many that all of them count (`convex_from`), so that a line through two evaluated points lies below outside
them. Without a pipeline it is that line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
import numpy.typing as npt

from cost_models.choices.schedules import zb_v
from cost_models.layout import Layout
from cost_models.numeric import num
from planner.case import Case
from planner.evaluate import chunks, fitting, held_cost, totals_of
from planner.mixed.join import before_and_after
from planner.space import MAX_MICRO_BATCH, Counts, Group, groups

Array = npt.NDArray[np.float64]
Shares = npt.NDArray[np.int64]
EXACT = 16
"""Shares up to which each is evaluated: larger batches are evaluated at one, a quarter, a half and all of it."""
TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """Rows of one pool in one framework."""

    case: Case
    """With the whole global batch."""
    layouts: tuple[Layout, ...]
    """Single layouts, one per row."""
    grain: Array
    """A share is a multiple of this: micro-batch × dp, × pp where the schedule takes micro-batches in groups. (R,)"""
    step: Array
    """micro-batch × dp, (R,)."""
    stages: Array
    """pp, (R,)."""
    convex: Array
    """Micro-batches from which the time is convex in them, (R,)."""
    counts: Array
    """Micro-batches at the evaluated shares, ascending, (R, P)."""
    before: Array
    """Seconds up to the gradient reduction inside the pool at those; infinite where the row does not fit."""
    after: Array
    """Seconds of what follows, (R,)."""

    def __len__(self) -> int:
        return len(self.layouts)

    def bound(self, shares: Shares, row: int | None = None, more: Points | None = None) -> Array:
        """Return a lower bound of `before` for each row (or one, with `more` evaluated points) and share, (R, S): exact where the share was
        evaluated or pp is 1; infinite where the row cannot take the share."""
        rows = slice(None) if row is None else slice(row, row + 1)
        counts, before = self.counts[rows], self.before[rows]
        if more is not None:
            order = np.argsort(np.concatenate([counts, more[0]], axis=1), axis=1, kind="stable")
            counts = np.take_along_axis(np.concatenate([counts, more[0]], axis=1), order, axis=1)
            before = np.take_along_axis(np.concatenate([before, more[1]], axis=1), order, axis=1)
        m = shares[None, :] / self.step[rows, None]
        lines = _lines(m, counts, before, self.stages[rows], self.convex[rows], self.grain[rows] / self.step[rows])
        low = np.maximum(lines, _monotone(m, counts, before))
        return np.where(np.mod(shares[None, :], self.grain[rows, None]) == 0.0, np.maximum(low, 0.0), np.inf)


Points = tuple[Array, Array]
"""(counts, before) of one row, (1, P) each."""


def _lines(m: Array, counts: Array, before: Array, stages: Array, settled: Array, group: Array) -> Array:
    """Bound by the lines through neighbouring points: outside them, or anywhere without a pipeline. Points that hold no whole `group` of
    micro-batches are left out: an interleaved schedule idles there."""
    low = np.full(m.shape, -np.inf)
    usable = np.isfinite(before) & (np.mod(counts, group[:, None]) == 0.0)
    for i in range(counts.shape[1] - 1):
        left, right = counts[:, i : i + 1], counts[:, i + 1 : i + 2]
        known = usable[:, i] & usable[:, i + 1] & (right > left)[:, 0]
        if not known.any():
            continue
        finite = np.where(known[:, None], before[:, i : i + 2], 0.0)
        line = finite[:, :1] + (finite[:, 1:] - finite[:, :1]) / np.where(known[:, None], right - left, 1.0) * (m - left)
        convex = known & (counts[:, i] >= settled)
        outside = ((m <= left) | (m >= right)) & (m >= settled[:, None])
        valid = (known & (stages <= 1.0))[:, None] | (convex[:, None] & outside)
        low = np.where(valid, np.maximum(low, line * (1.0 - TOLERANCE)), low)
    return low


def convex_from(schedule: str, stages: float) -> float:
    """Return the micro-batches from which the time of a schedule is convex in them: then every path that counts is there, and each takes
    as much longer for every (group of) micro-batches more."""
    if schedule == "interleaved":
        return 3.0 * stages
    return 2.0 * stages + zb_v.RECIPE.more if schedule == zb_v.NAME else stages


def _monotone(m: Array, counts: Array, before: Array) -> Array:
    """Bound by the points below: more micro-batches never take less time nor memory."""
    low = np.full(m.shape, -np.inf)
    for i in range(counts.shape[1]):
        low = np.where(m >= counts[:, i : i + 1], np.maximum(low, before[:, i : i + 1] * (1.0 - TOLERANCE)), low)
    return low


def ways(case: Case, most: int, deadline: float | None) -> Ways | None:
    """Return the lawful rows of a pool for shares of 1 to `most` samples; None where none fits even one micro-batch.

    Offload is tried where nothing fits without it. Rows that another of the same grain beats at every evaluated share are left out where
    no wish may prefer them. Wishes are left to whoever knows the share.
    """
    wide = replace(case, training=case.training.model_copy(update={"global_batch": _divisible(case, most)}), wishes=())
    points = range(1, most + 1) if most <= EXACT else sorted({1, -(-most // 4), -(-most // 2), most})
    for offloaded in (False, True):
        spanned = groups(wide, Counts(), offloaded=offloaded)
        found = [piece for group in spanned for piece in _rows(group, case, list(points), most, deadline)]
        if found:
            return _pruned(case, found)
    return None


def _divisible(case: Case, most: int) -> int:
    """A batch that any dp of the pool times any micro-batch divides (of large shares: any power of two), since the true share is not
    known yet."""
    micro_batches = lcm(*range(1, most + 1)) if most <= EXACT else MAX_MICRO_BATCH
    return case.world * micro_batches * int(case.given.get("micro_batch", 1))


_Piece = tuple["Layout", Array, Array, Array]
"""Batch of rows, counts (R, P), before (R, P), after (R,)."""


def _rows(group: Group, case: Case, points: list[int], most: int, deadline: float | None) -> Iterator[_Piece]:
    """Evaluate a group, the leaner recompute only where a row does not fit the whole batch without."""
    size = group.columns["dp"] * group.columns["micro_batch"]
    pending = size <= most
    for variant, lawful in enumerate(group.lawful):
        rows = np.flatnonzero(pending & lawful)
        if not len(rows):
            continue
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        layout = group.layouts(variant, rows)
        counts = np.ceil(np.array(points)[None, :] / size[rows][:, None])
        times = [_at(replace(case, training=case.training.model_copy(update={"global_batch": b})), layout, len(rows)) for b in points]
        before = np.stack([b for b, _ in times], axis=1)
        alive = np.isfinite(before[:, 0])
        pending[rows[np.isfinite(before[:, -1])]] = False
        if alive.any():
            yield group.layouts(variant, rows[alive]), counts[alive], before[alive], times[-1][1][alive]


def _at(case: Case, layout: Layout, size: int) -> tuple[Array, Array]:
    """Return (before, after) of a batch of rows under one share."""
    parts = []
    for chunk in chunks(layout):
        result = held_cost(case, chunk)
        first, last = before_and_after(result.time.ledger)
        fits = fitting(case, totals_of(result, chunk.size))
        first = np.broadcast_to(num(first).reshape(-1), fits.shape)
        parts.append((np.where(fits, first, np.inf), np.broadcast_to(num(last).reshape(-1), fits.shape)))
    joined = tuple(np.concatenate([p[i] for p in parts]) for i in range(2))
    return joined[0], joined[1]


def _pruned(case: Case, pieces: list[_Piece]) -> Ways:
    layouts = [layout.row(i) for layout, counts, _, _ in pieces for i in range(len(counts))]
    counts, before = (np.concatenate([piece[i] for piece in pieces]) for i in (1, 2))
    after = np.concatenate([piece[3] for piece in pieces])
    d = [layout.degrees for layout in layouts]
    step = np.array([float(num(x.dp)) * float(num(x.micro_batch)) for x in d])
    stages = np.array([float(num(x.pp)) for x in d])
    grouped = np.array([layout.choices.schedule == "interleaved" for layout in layouts])
    grain = np.where(grouped, step * stages, step)
    convex = np.array([convex_from(layout.choices.schedule, pp) for layout, pp in zip(layouts, stages, strict=True)])
    everything = np.concatenate([before, after[:, None]], axis=1)
    keep = np.arange(len(grain)) if case.wishes else np.sort(_unbeaten(grain, everything))
    return Ways(
        case=case,
        layouts=tuple(layouts[i] for i in keep),
        grain=grain[keep],
        step=step[keep],
        stages=stages[keep],
        convex=convex[keep],
        counts=counts[keep],
        before=before[keep],
        after=after[keep],
    )


def _unbeaten(grain: Array, times: Array) -> npt.NDArray[np.int64]:
    """Return the rows that no other row of the same grain matches or beats in every column (the first of equals stays)."""
    kept: list[int] = []
    for value in np.unique(grain):
        rows = np.flatnonzero(grain == value)
        order = rows[np.lexsort((rows, *(times[rows, i] for i in reversed(range(times.shape[1])))))]
        best: list[int] = []
        for row in order:
            if not best or not np.any(np.all(times[best] <= times[row], axis=1)):
                best.append(int(row))
        kept += best
    return np.array(kept, dtype=np.int64)
