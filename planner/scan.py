"""Scan: evaluate the groups of a space, each row only as far as it can still matter.

Three facts carry the pruning, and the tests hold the cost models to them: less recompute and no offload are never slower for the same
degrees; the states of a row do not depend on recompute and micro-batch; so a row whose leanest time is past the board's cutoff, or whose
states alone exceed the limit, needs no further look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from cost_models.layout import Layout
from planner.board import Board, Entry, entry_of
from planner.case import Case
from planner.evaluate import CHUNK, Totals, excluded_by, fitting, over, totals
from planner.space import Counts, Group

Rows = npt.NDArray[np.intp]
NEAR = 24
"""Near misses that are remembered."""


class OutOfTime(Exception):
    """The time limit is over."""


_Known = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lean:
    """A row that needs recompute to fit: worth refining when its time without any beats the board."""

    case: Case
    layout: Layout
    """Single, under full recompute of all layers."""
    bound_seconds: float


@dataclass(kw_only=True, slots=True)
class Scan:
    """State of one search over one pool."""

    board: Board
    counts: Counts = field(default_factory=Counts)
    feasible: int = 0
    evaluated: int = 0
    near: list[Entry] = field(default_factory=list)
    lean: list[Lean] = field(default_factory=list)
    bounds: dict[tuple[object, ...], _Known] = field(default_factory=dict)
    """Choices without offload -> sorted codes, seconds without recompute, whether that fits."""
    near_wanted: bool = True
    """Whether near misses are looked for."""
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
        bound, settled = self._sibling(group)
        dropped = settled | (bound > self.board.cutoff)
        self._account("dominated", group, settled)
        self._account("slower", group, dropped & ~settled)
        alive = np.flatnonzero(~dropped)
        alive = self._without_hopeless(group, alive)
        if not len(alive):
            return
        base = self._evaluate(group, 0, alive)
        fits = fitting(group.case, base) & group.lawful[0][alive]
        self._remember(group, alive, base, fits)
        self._settle(group, alive, base, fits)

    def _sibling(self, group: Group) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return per row the seconds that the same layout takes without offload (0: unknown), and whether it fits there."""
        bound, settled = np.zeros(len(group)), np.zeros(len(group), dtype=bool)
        known = self.bounds.get(_plain(group))
        if group.choices.offload == "none" or known is None:
            return bound, settled
        codes, seconds, fits = known
        at = np.minimum(np.searchsorted(codes, group.codes), len(codes) - 1)
        same = codes[at] == group.codes
        return np.where(same, seconds[at], 0.0), same & fits[at]

    def _without_hopeless(self, group: Group, alive: Rows) -> Rows:
        """Return `alive` without rows whose states alone exceed the limit, found on one row of each family where there are many rows."""
        if len(alive) <= CHUNK // 4:
            return alive
        families, first, inverse = np.unique(group.families[alive], return_index=True, return_inverse=True)
        if len(families) * 2 > len(alive):
            return alive
        found = self._evaluate(group, 0, alive[first])
        hopeless = (found.states_bytes > group.case.limit_bytes)[inverse]
        beyond = found.states_bytes > group.case.limit_bytes
        self._hopeless(group, alive[hopeless], alive[first][beyond], found.states_bytes[beyond])
        return alive[~hopeless]

    def _hopeless(self, group: Group, rows: Rows, leaders: Rows, states: npt.NDArray[np.float64]) -> None:
        """Account for rows whose states exceed the limit; `leaders` are those of the smallest micro-batch, with their states."""
        if not len(rows):
            return
        mask = np.zeros(len(group), dtype=bool)
        mask[rows] = True
        self._account("memory", group, mask)
        self._nearest(group, leaders, states)

    def _remember(self, group: Group, alive: Rows, base: Totals, fits: npt.NDArray[np.bool_]) -> None:
        if group.choices.offload != "none":
            return
        order = np.argsort(group.codes[alive], kind="stable")
        self.bounds[_plain(group)] = (group.codes[alive][order], base.step_seconds[order], fits[order])

    def _settle(self, group: Group, alive: Rows, base: Totals, fits: npt.NDArray[np.bool_]) -> None:
        """Try the leaner variants on the rows that do not fit without recompute."""
        case, variants = group.case, len(group.variants)
        self.board.offer(case, group.layouts(0, alive), base, fits)
        self._count_fits(group, 0, alive[fits])
        self._count_misses(case, base, ~fits & group.lawful[0][alive])
        hopeless = base.states_bytes > case.limit_bytes
        self._hopeless_after(group, alive, base, hopeless)
        pending = ~fits & ~hopeless
        for variant in range(1, variants):
            slow = pending & (base.step_seconds > self.board.cutoff)
            self._count("slower", int((group.lawful[variant][alive] & slow).sum()))
            chosen = np.flatnonzero(pending & ~slow & group.lawful[variant][alive])
            if not len(chosen):
                continue
            found = self._evaluate(group, variant, alive[chosen])
            good = fitting(case, found)
            self.board.offer(case, group.layouts(variant, alive[chosen]), found, good)
            self._count_fits(group, variant, alive[chosen[good]])
            self._count_misses(case, found, ~good)
            self._refinable(group, variant, alive[chosen], base.step_seconds[chosen])
            self._miss(group, variant, alive[chosen[~good]], _some(found, ~good))
            pending[chosen[good]] = False
        missed = ~fits & group.lawful[0][alive]
        self._miss(group, 0, alive[missed], _some(base, missed))

    def _hopeless_after(self, group: Group, alive: Rows, base: Totals, hopeless: npt.NDArray[np.bool_]) -> None:
        """Account for the leaner variants of hopeless rows, and look at the least hopeless of them while nothing fits."""
        for variant in range(1, len(group.variants)):
            self._count("memory", int((group.lawful[variant][alive] & hopeless).sum()))
        self._nearest(group, alive[hopeless], base.states_bytes[hopeless])

    def _nearest(self, group: Group, rows: Rows, states: npt.NDArray[np.float64]) -> None:
        """While nothing fits, evaluate hopeless rows that may come nearer than the near misses known: their states alone miss by less."""
        if self.board.entries or not len(rows) or not self.near_wanted:
            return
        for variant in reversed(range(len(group.variants))):
            least = self.near[0].missing_bytes if self.near else float("inf")
            pick = rows[(states - group.case.limit_bytes < least) & group.lawful[variant][rows]]
            if len(pick):
                self._miss(group, variant, pick, self._evaluate(group, variant, pick))

    def _refinable(self, group: Group, variant: int, rows: Rows, bound: npt.NDArray[np.float64]) -> None:
        if group.variants[variant].recompute != "full" or "recompute_layers" in group.case.fixed:
            return
        layouts = group.layouts(variant, rows)
        for i in np.argsort(bound, kind="stable")[:NEAR]:
            self.lean.append(Lean(case=group.case, layout=layouts.row(int(i)), bound_seconds=float(bound[i])))

    def _miss(self, group: Group, variant: int, rows: Rows, found: Totals) -> None:
        """Remember the rows that miss by least."""
        if self.board.entries or not len(rows) or not self.near_wanted:
            return
        missing = over(group.case, found)
        layouts = group.layouts(variant, rows)
        best = np.lexsort((found.step_seconds, missing))[:NEAR]
        self.near += [entry_of(group.case, layouts, found, int(i), float(missing[i])) for i in best if missing[i] > 0.0]
        self.near = sorted(self.near, key=lambda e: (e.missing_bytes, e.rank))[:NEAR]

    def _evaluate(self, group: Group, variant: int, rows: Rows) -> Totals:
        """Evaluate rows of a group chunk by chunk, minding the clock between chunks."""
        parts = []
        for start in range(0, len(rows), CHUNK):
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise OutOfTime
            parts.append(totals(group.case, group.layouts(variant, rows[start : start + CHUNK])))
        self.evaluated += len(rows)
        if len(parts) == 1:
            return parts[0]
        return Totals(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Totals)})

    def _count_fits(self, group: Group, variant: int, rows: Rows) -> None:
        """A row that fits also fits with more recompute: count those variants too."""
        self.feasible += sum(int(group.lawful[v][rows].sum()) for v in range(variant, len(group.variants)))

    def _count_misses(self, case: Case, found: Totals, missed: npt.NDArray[np.bool_]) -> None:
        for name, count in excluded_by(case, _some(found, missed)).items():
            self._count(name, count)

    def _account(self, reason: str, group: Group, rows: npt.NDArray[np.bool_]) -> None:
        self._count(reason, sum(int((lawful & rows).sum()) for lawful in group.lawful))

    def _count(self, reason: str, count: int) -> None:
        self.counts.drop(reason, count)


def _plain(group: Group) -> tuple[object, ...]:
    c = group.choices
    return (group.case.framework, c.zero, c.schedule, c.sequence_parallel)


def _some(found: Totals, rows: npt.NDArray[np.bool_]) -> Totals:
    return Totals(**{f.name: getattr(found, f.name)[rows] for f in fields(Totals)})
