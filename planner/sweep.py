"""Sweep: all layouts of the grid that fit, for aims other than time: the leanest plans, and the front of step time against memory.

A row is looked at no further where its states alone are past what could still be kept: states depend neither on recompute nor on the
micro-batch, and a plan never needs fewer bytes than its states, nor less time than it takes without recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from cost_models.numeric import num
from planner.board import DISTINCT, Entry, entry_of
from planner.evaluate import fitting, take, totals

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case
    from planner.evaluate import Totals
    from planner.space import Group

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
READABLE = 12
"""Points of a front that are shown."""


class Keeper(Protocol):
    """What is kept of a sweep."""

    def open(self, step_seconds: Array, least_bytes: Array) -> Mask:
        """Tell which rows could still be kept if they took at least these seconds and bytes."""

    def offer(self, case: Case, layout: Layout, found: Totals, rows: npt.NDArray[np.intp]) -> None:
        """Offer the rows of a batch that fit."""


@dataclass(kw_only=True, slots=True)
class Leanest:
    """The `size` plans with the least device bytes, one for each combination of degrees and ZeRO stage."""

    size: int
    entries: dict[tuple[float, ...], Entry] = field(default_factory=dict)
    cutoff_bytes: float = float("inf")

    def open(self, step_seconds: Array, least_bytes: Array) -> Mask:
        """Tell which rows may be leaner than the last one kept."""
        return least_bytes <= self.cutoff_bytes

    def offer(self, case: Case, layout: Layout, found: Totals, rows: npt.NDArray[np.intp]) -> None:
        """Keep the leanest of each combination; ties go to the faster."""
        rows = rows[found.device_bytes[rows] <= self.cutoff_bytes]
        if not len(rows):
            return
        rows = rows[np.lexsort((found.step_seconds[rows], found.device_bytes[rows]))]
        degrees = take(layout, rows).degrees
        columns = [np.broadcast_to(num(getattr(degrees, name)).reshape(-1), len(rows)) for name in DISTINCT]
        keys = np.stack(columns, axis=1)
        for row in rows[np.sort(np.unique(keys, axis=0, return_index=True)[1])]:
            self._add(entry_of(case, layout, found, int(row)))

    def _add(self, entry: Entry) -> None:
        before = self.entries.get(entry.key)
        if entry.device_bytes > self.cutoff_bytes or (before is not None and lean_rank(before) <= lean_rank(entry)):
            return
        self.entries[entry.key] = entry
        if len(self.entries) > self.size:
            del self.entries[max(self.entries.values(), key=lean_rank).key]
        if len(self.entries) == self.size:
            self.cutoff_bytes = max(e.device_bytes for e in self.entries.values())

    def best(self) -> list[Entry]:
        """Return the entries, leanest first."""
        return sorted(self.entries.values(), key=lean_rank)


def lean_rank(entry: Entry) -> tuple[float, ...]:
    """Return the order by device bytes, then as plans are ranked."""
    return (entry.device_bytes, *entry.rank)


@dataclass(kw_only=True, slots=True)
class Front:
    """The plans that no other beats in both step time and device bytes."""

    entries: list[Entry] = field(default_factory=list)
    """By step time, ascending; device bytes descend."""

    def open(self, step_seconds: Array, least_bytes: Array) -> Mask:
        """Tell which rows no entry beats in both."""
        if not self.entries:
            return np.ones(len(step_seconds), dtype=bool)
        steps = np.array([e.step_seconds for e in self.entries])
        sizes = np.array([e.device_bytes for e in self.entries])
        at = np.searchsorted(steps, step_seconds, side="right") - 1
        return np.asarray((at < 0) | (sizes[np.maximum(at, 0)] > least_bytes))

    def offer(self, case: Case, layout: Layout, found: Totals, rows: npt.NDArray[np.intp]) -> None:
        """Merge the rows that nothing beats."""
        rows = rows[self.open(found.step_seconds[rows], found.device_bytes[rows])]
        rows = rows[np.lexsort((found.device_bytes[rows], found.step_seconds[rows]))]
        if not len(rows):
            return
        sizes = found.device_bytes[rows]
        least = np.minimum.accumulate(sizes)
        new = [entry_of(case, layout, found, int(r)) for r in rows[np.concatenate([[True], sizes[1:] < least[:-1]])]]
        self.merge(new)

    def merge(self, new: list[Entry]) -> None:
        """Put entries on the front and take off what they beat."""
        merged: list[Entry] = []
        for entry in sorted((*self.entries, *new), key=lambda e: e.rank):
            if not merged or entry.device_bytes < merged[-1].device_bytes:
                merged.append(entry)
        self.entries = merged


def sweep(groups: Iterable[Group], keeper: Keeper, look: Callable[[], None]) -> int:
    """Offer every plan of the grid that could be kept; return how many layouts were evaluated. `look` is called once a group and may
    raise, to end the sweep."""
    evaluated = 0
    for group in groups:
        look()
        rows = np.flatnonzero(np.any(np.stack(group.lawful), axis=0))
        if not len(rows):
            continue
        base = totals(group.case, group.layouts(0, rows))
        evaluated += len(rows)
        _offer(keeper, group, 0, rows, base)
        for variant in range(1, len(group.variants)):
            alive = keeper.open(base.step_seconds, base.states_bytes) & (base.states_bytes <= group.case.limit_bytes)
            chosen = rows[alive & group.lawful[variant][rows]]
            if len(chosen):
                evaluated += len(chosen)
                _offer(keeper, group, variant, chosen, totals(group.case, group.layouts(variant, chosen)))
    return evaluated


def _offer(keeper: Keeper, group: Group, variant: int, rows: npt.NDArray[np.intp], found: Totals) -> None:
    good = np.flatnonzero(fitting(group.case, found) & group.lawful[variant][rows])
    if len(good):
        keeper.offer(group.case, group.layouts(variant, rows), found, good)


def thinned(entries: list[Entry], most: int = READABLE) -> list[Entry]:
    """Return at most `most` points of a front: both ends, and inside those whose absence would hide the largest trade."""
    kept = list(entries)
    if len(kept) < 3:
        return kept
    span = (kept[-1].step_seconds - kept[0].step_seconds) * (kept[0].device_bytes - kept[-1].device_bytes)
    while len(kept) > 2:
        trades = [
            (kept[i + 1].step_seconds - kept[i].step_seconds) * (kept[i - 1].device_bytes - kept[i].device_bytes)
            for i in range(1, len(kept) - 1)
        ]
        least = int(np.argmin(trades))
        if len(kept) <= most and trades[least] > SMALL_TRADE * span:
            break
        del kept[least + 1]
    return kept


SMALL_TRADE = 1e-4
"""Part of the front's whole rectangle below which a point says nothing new."""
