"""Board: the best distinct layouts found so far, and the time that a further one must beat."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cost_models.layout import Layout
from cost_models.numeric import num
from planner.case import Case
from planner.evaluate import Totals, take

DISTINCT = ("tp", "pp", "cp", "ep", "dp")
"""Degrees (with the ZeRO stage) that tell one shown plan from another."""
ORDER = ("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "shard_group", "rank_order", "recompute_layers")
"""Ties in step time are broken by device bytes, then by these degrees, smallest first, then by the order of finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One layout on the board."""

    case: Case
    layout: Layout
    """Single."""
    step_seconds: float
    device_bytes: float
    missing_bytes: float = 0.0
    """How far over a limit (near misses only)."""

    @property
    def key(self) -> tuple[float, ...]:
        """What tells it from others."""
        d = self.layout.degrees
        return (*(float(num(getattr(d, name))) for name in DISTINCT), float(self.layout.choices.zero))

    @property
    def rank(self) -> tuple[float, ...]:
        """Order among plans, best first."""
        d = self.layout.degrees
        return (self.step_seconds, self.device_bytes, *(float(num(getattr(d, name))) for name in ORDER))


@dataclass(kw_only=True, slots=True)
class Board:
    """The `size` best entries with distinct keys."""

    size: int
    entries: dict[tuple[float, ...], Entry] = field(default_factory=dict)
    cutoff: float = float("inf")
    """Step seconds of the last entry of a full board: a slower layout can no longer be shown."""

    @property
    def fastest(self) -> float:
        """Step seconds of the best entry; infinite while there is none."""
        return min((e.step_seconds for e in self.entries.values()), default=float("inf"))

    def add(self, entry: Entry) -> bool:
        """Put an entry on the board if it is the best of its key and among the best; tell whether it was."""
        before = self.entries.get(entry.key)
        if entry.step_seconds > self.cutoff or (before is not None and before.rank <= entry.rank):
            return False
        self.entries[entry.key] = entry
        if len(self.entries) > self.size:
            worst = max(self.entries.values(), key=lambda e: e.rank)
            del self.entries[worst.key]
        if len(self.entries) == self.size:
            self.cutoff = max(e.step_seconds for e in self.entries.values())
        return True

    def offer(self, case: Case, layout: Layout, found: Totals, fits: npt.NDArray[np.bool_]) -> None:
        """Offer the fitting rows of a batch."""
        rows = np.flatnonzero(fits & (found.step_seconds <= self.cutoff))
        for row in _leaders(layout, rows, found.step_seconds[rows], found.device_bytes[rows]):
            self.add(entry_of(case, layout, found, int(row)))

    def best(self) -> list[Entry]:
        """Return the entries, best first."""
        return sorted(self.entries.values(), key=lambda e: e.rank)


def entry_of(case: Case, layout: Layout, found: Totals, row: int, missing_bytes: float = 0.0) -> Entry:
    """Return one row of a batch as an entry."""
    return Entry(
        case=case,
        layout=canonical(layout.row(row)),
        step_seconds=float(found.step_seconds[row]),
        device_bytes=float(found.device_bytes[row]),
        missing_bytes=missing_bytes,
    )


def canonical(layout: Layout) -> Layout:
    """Return a single layout with plain floats, so that equal layouts compare and print alike."""
    d = layout.degrees
    return replace(layout, degrees=replace(d, **{name: float(num(getattr(d, name))) for name in type(d).__dataclass_fields__}))


def _leaders(
    layout: Layout, rows: npt.NDArray[np.intp], seconds: npt.NDArray[np.float64], size_bytes: npt.NDArray[np.float64]
) -> npt.NDArray[np.intp]:
    """Return for each distinct key its best row, best first."""
    if not len(rows):
        return rows
    degrees = take(layout, rows).degrees
    columns = [np.broadcast_to(num(getattr(degrees, name)).reshape(-1), len(rows)) for name in ORDER]
    order = np.lexsort((*reversed(columns), size_bytes, seconds))
    keys = np.stack([np.broadcast_to(num(getattr(degrees, name)).reshape(-1), len(rows)) for name in DISTINCT], axis=1)[order]
    _, first = np.unique(keys, axis=0, return_index=True)
    return rows[order[np.sort(first)]]
