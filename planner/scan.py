"""Scan: evaluate the groups of a space, each row only as far as it can still matter.

Facts that carry the pruning, and that the tests hold the cost models to: less recompute and less offload are never slower for the same
degrees; the states of a row do not depend on recompute and micro-batch; no split of the layers is faster than a perfect balance. So a
row whose perfectly balanced, unrelieved time is past the board's cutoff, or whose states alone exceed the limit, needs no further look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.board import Board, Entry, entry_of
from planner.bounds import balanced_seconds, splittable
from planner.evaluate import CHUNK, Totals, chunks, excluded_by, fitting, over, some, totals
from planner.relief import Relieved, relieve
from planner.space import Counts, Group

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case

Rows = npt.NDArray[np.intp]
Seconds = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
NEAR = 24
"""Near misses that are remembered."""
BLOCK = 256
"""Rows that are relieved at once: the board is asked anew after each block."""


class OutOfTime(Exception):
    """The time limit is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What a group without offload tells of the same rows with offload."""

    codes: npt.NDArray[np.int64]
    """Sorted."""
    seconds: Seconds
    """Without any relief, or a bound of it."""
    best: Seconds
    """Of the best point that fits; infinite where none does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipelines:
    """Rows of one group whose layers may be split anew, with the time that no split beats."""

    group: Group
    rows: Rows
    bound_seconds: Seconds


@dataclass(kw_only=True, slots=True)
class Scan:
    """State of one search over one pool."""

    board: Board
    counts: Counts = field(default_factory=Counts)
    feasible: int = 0
    evaluated: int = 0
    near: list[Entry] = field(default_factory=list)
    pipelines: list[Pipelines] = field(default_factory=list)
    families: int = 0
    """Rows whose layers may be split anew, kept in `pipelines` or not."""
    bounds: dict[tuple[object, ...], _Known] = field(default_factory=dict)
    """Choices without offload -> what is known of them."""
    near_wanted: bool = True
    """Whether near misses are looked for."""
    splits: bool = True
    """Whether pipelines are collected for the stage problem."""
    deadline: float | None = None
    progress: Callable[[str], None] | None = None

    def run(self, groups: Iterable[Group]) -> None:
        """Evaluate all groups. Raises OutOfTime past the deadline."""
        for group in groups:
            self._group(group)

    def _group(self, group: Group) -> None:
        if self.progress is not None:
            c = group.choices
            self.progress(f"{group.case.framework} ZeRO-{c.zero} {c.schedule} offload {c.offload}: {len(group):,} rows")
        known = self._sibling(group)
        settled = known.best <= known.seconds
        bound = np.maximum(known.seconds, self._balance(group, ~settled))
        slow = ~settled & (bound > self.board.cutoff)
        self._account("dominated", group, settled)
        self._account("slower", group, slow)
        alive = self._without_hopeless(group, np.flatnonzero(~settled & ~slow))
        best = np.full(len(group), np.inf)
        if len(alive):
            bound[alive], best[alive] = self._settle(group, alive, known.best[alive])
        if group.choices.offload == "none":
            order = np.argsort(group.codes, kind="stable")
            self.bounds[_plain(group)] = _Known(codes=group.codes[order], seconds=bound[order], best=best[order])

    def _sibling(self, group: Group) -> _Known:
        """Return what the same rows without offload say of these: seconds 0 and best infinite where nothing is known."""
        none = _Known(codes=group.codes, seconds=np.zeros(len(group)), best=np.full(len(group), np.inf))
        known = self.bounds.get(_plain(group))
        if group.choices.offload == "none" or known is None:
            return none
        at = np.minimum(np.searchsorted(known.codes, group.codes), len(known.codes) - 1)
        same = known.codes[at] == group.codes
        return _Known(
            codes=group.codes,
            seconds=np.where(same, known.seconds[at], 0.0),
            best=np.where(same, known.best[at], np.inf),
        )

    def _balance(self, group: Group, wanted: Flags) -> Seconds:
        """Return the perfectly balanced seconds of the rows that may be split, 0 of the others, and keep them for the stage problem."""
        bound = np.zeros(len(group))
        if not self.splits or group.choices.offload != "none":
            return bound
        rows = np.flatnonzero(wanted & splittable(group))
        if not len(rows):
            return bound
        for start in range(0, len(rows), CHUNK):
            self._mind()
            part = rows[start : start + CHUNK]
            bound[part] = balanced_seconds(group.case, group.layouts(0, part))
        self.evaluated += len(rows)
        self.families += len(rows)
        kept = rows[bound[rows] < self.board.fastest]
        self.pipelines.append(Pipelines(group=group, rows=kept, bound_seconds=bound[kept]))
        return bound

    def _without_hopeless(self, group: Group, alive: Rows) -> Rows:
        """Return `alive` without rows whose states alone exceed the limit, found on one row of each family where there are many rows."""
        if len(alive) <= CHUNK // 4:
            return alive
        families, first, inverse = np.unique(group.families[alive], return_index=True, return_inverse=True)
        if len(families) * 2 > len(alive):
            return alive
        found = self._evaluate(group, 0, alive[first])
        beyond = found.states_bytes > group.case.limit_bytes
        hopeless = beyond[inverse]
        self._account("memory", group, _mask(group, alive[hopeless]))
        self._nearest(group, alive[first][beyond], found.states_bytes[beyond])
        return alive[~hopeless]

    def _settle(self, group: Group, alive: Rows, known_best: Seconds) -> tuple[Seconds, Seconds]:
        """Take each row as it is without relief, else with the least that makes it fit; return both seconds (infinite: none)."""
        case = group.case
        base = self._evaluate(group, 0, alive, unrelieved=True)
        lawful = group.lawful[0][alive]
        fits = fitting(case, base) & lawful
        best = np.where(fits, base.step_seconds, np.inf)
        self.board.offer(case, self._unrelieved(group, alive), base, fits)
        self.feasible += int(sum(group.points(v)[alive[fits]].sum() for v in range(len(group.variants))))
        states = base.states_bytes if len(group.reliefs[0].offload_fraction) == 1 else self._evaluate(group, 0, alive).states_bytes
        hopeless = ~fits & (states > case.limit_bytes)
        self._account("memory", group, _mask(group, alive[hopeless]))
        self._nearest(group, alive[hopeless], states[hopeless])
        pending = np.flatnonzero(~fits & ~hopeless)
        for at in _blocks(pending[np.argsort(base.step_seconds[pending], kind="stable")]):
            self._relieve(group, alive[at], base, at, known_best[at], best)
        return base.step_seconds, best

    def _unrelieved(self, group: Group, rows: Rows) -> Layout:
        part = group.reliefs[0].offload_fraction[0]
        return group.layouts(0, rows, offload_fraction=np.full(len(rows), part))

    def _relieve(self, group: Group, rows: Rows, base: Totals, at: Rows, known_best: Seconds, best: Seconds) -> None:
        """Try all variants and reliefs on rows that do not fit as they are. `best` of them is set."""
        seconds, case = base.step_seconds[at], group.case
        slow = (seconds > self.board.cutoff) | (seconds >= known_best)
        self._account("slower", group, _mask(group, rows[slow]))
        rows, at, seconds = rows[~slow], at[~slow], seconds[~slow]
        found_any = np.zeros(len(rows), dtype=bool)
        for variant in range(len(group.variants)):
            for moved in (False, True):
                able = group.movable[variant] if moved else group.lawful[variant]
                pick = np.flatnonzero(able[rows])
                if not len(pick) or (moved and not group.reliefs[variant].activation_offload):
                    continue
                if variant == 0 and not moved and len(group.reliefs[0].offload_fraction) == 1:
                    self._count_misses(case, _at(base, at[pick]))
                    continue
                answer = self._answer(group, variant, rows[pick], seconds[pick], moved)
                if answer.layout is None or answer.found is None:
                    continue
                where = pick[answer.rows]
                np.minimum.at(best, at[where], answer.found.step_seconds)
                found_any[where] = True
        if not self.board.entries and self.near_wanted:
            self._missed(group, rows[~found_any])

    def _answer(self, group: Group, variant: int, rows: Rows, seconds: Seconds, moved: bool) -> Relieved:
        """Relieve rows under one variant, put what fits on the board, and account for the rest."""
        below = self.board.cutoff
        answer = relieve(group, variant, rows, seconds, lambda layout: self._totals(group.case, layout), below, moved=moved)
        for reason, count in answer.excluded.items():
            self._count(reason, count)
        self.feasible += answer.feasible
        left = rows[seconds > below]
        parts = len(group.reliefs[variant].activation_offload) if moved else 1
        whole = group.points(variant)[left] // (1 + len(group.reliefs[variant].activation_offload) * group.movable[variant][left])
        self._count("slower", int(whole.sum()) * parts)
        if answer.layout is not None and answer.found is not None:
            self.board.offer(group.case, answer.layout, answer.found, np.ones(len(answer.found), dtype=bool))
        return answer

    def _nearest(self, group: Group, rows: Rows, states: Seconds) -> None:
        """While nothing fits, evaluate hopeless rows that may come nearer than the near misses known: their states alone miss by less."""
        if self.board.entries or not len(rows) or not self.near_wanted:
            return
        least = self.near[0].missing_bytes if self.near else float("inf")
        self._missed(group, rows[states - group.case.limit_bytes < least])

    def _missed(self, group: Group, rows: Rows) -> None:
        """Remember how near rows come to fitting with every relief that they have."""
        for variant in reversed(range(len(group.variants))):
            for moved in (False, True):
                pick = rows[(group.movable[variant] if moved else group.lawful[variant])[rows]]
                if not len(pick):
                    continue
                layouts = group.layouts(variant, pick, **({"activation_offload": np.ones(len(pick))} if moved else {}))
                self._miss(group.case, layouts, self._totals(group.case, layouts))

    def _miss(self, case: Case, layouts: Layout, found: Totals) -> None:
        """Remember the rows that miss by least."""
        missing = over(case, found)
        best = np.lexsort((found.step_seconds, missing))[:NEAR]
        self.near += [entry_of(case, layouts, found, int(i), float(missing[i])) for i in best if missing[i] > 0.0]
        self.near = sorted(self.near, key=lambda e: (e.missing_bytes, e.rank))[:NEAR]

    def _evaluate(self, group: Group, variant: int, rows: Rows, *, unrelieved: bool = False) -> Totals:
        return self._totals(group.case, self._unrelieved(group, rows) if unrelieved else group.layouts(variant, rows))

    def _totals(self, case: Case, layout: Layout) -> Totals:
        """Evaluate a batch chunk by chunk, minding the clock between chunks."""
        parts = []
        for chunk in chunks(layout):
            self._mind()
            parts.append(totals(case, chunk))
        self.evaluated += layout.size
        if len(parts) == 1:
            return parts[0]
        return Totals(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Totals)})

    def _mind(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def _count_misses(self, case: Case, found: Totals) -> None:
        for name, count in excluded_by(case, found).items():
            self._count(name, count)

    def _account(self, reason: str, group: Group, rows: Flags) -> None:
        if rows.any():
            self._count(reason, int(sum(group.points(v)[rows].sum() for v in range(len(group.variants)))))

    def _count(self, reason: str, count: int) -> None:
        self.counts.drop(reason, count)


def _mask(group: Group, rows: Rows) -> Flags:
    mask = np.zeros(len(group), dtype=bool)
    mask[rows] = True
    return mask


def _blocks(rows: Rows) -> Iterable[Rows]:
    return (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))


def _at(found: Totals, rows: Rows) -> Totals:
    mask = np.zeros(len(found), dtype=bool)
    mask[rows] = True
    return some(found, mask)


def _plain(group: Group) -> tuple[object, ...]:
    c = group.choices
    return (group.case.framework, c.zero, c.schedule, c.sequence_parallel)
