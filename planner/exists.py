"""Exists: whether a request has any plan on the grid; quicker than a search for the best, as it ends at the first that fits.

Three facts carry it, and the tests hold it to the search: device bytes never fall as the micro-batch grows; they never rise as more is
recomputed or offloaded; and a step never gets shorter by either. So each family of rows is judged by its smallest lawful micro-batch at
its leanest, and a pace that a row misses without recompute and offload it always misses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.board import entry_of
from planner.evaluate import CHUNK, fitting, plan, totals
from planner.plan import Plan
from planner.space import Counts, Group, groups

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.case import Case
    from planner.request import Resolved

FIRST = 64
"""Rows of the first look at a group; later looks are at four times as many, up to CHUNK."""
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The answer: a plan, none, or that neither is sure."""

    plan: Plan | None
    sure: bool = True
    """False: nothing was found at the extremes, and something between them may fit."""


def any_plan(
    resolved: Resolved, frameworks: Callable[[Resolved], tuple[Framework, ...]], search: Callable[[Resolved], Plan | None]
) -> Plan | None:
    """Return some plan, of no particular merit; None where there is none. `search` decides where the extremes leave it open."""
    found = at_extremes(resolved, frameworks)
    return found.plan if found.sure else search(resolved)


def at_extremes(resolved: Resolved, frameworks: Callable[[Resolved], tuple[Framework, ...]]) -> Found:
    """Return the first plan that fits with everything recomputed or offloaded that a variant allows, or with nothing."""
    sure = True
    for pool in resolved.cluster.pools:
        for offloaded in (False, True):
            for framework in frameworks(resolved):
                case = resolved.case(pool, framework)
                for group in groups(case, Counts(), offloaded=offloaded):
                    look = _Look(group=group)
                    if (made := look.first()) is not None:
                        return Found(plan=made)
                    sure = sure and not look.open
    return Found(plan=None, sure=sure)


@dataclass(kw_only=True, slots=True)
class _Look:
    """One group, looked at."""

    group: Group
    open: bool = False
    """Whether a row fits the device at its leanest and fails otherwise, so that something less lean may do."""
    settled: dict[bool, Mask] = field(default_factory=dict)
    """Activations offloaded or not -> rows that exceed the device so, and therefore under every variant that is less lean."""

    def first(self) -> Plan | None:
        """Return the first plan found, the leanest variants looked at first."""
        group, alive = self.group, self._fast_enough()
        self.settled = {moved: np.zeros(len(group), dtype=bool) for moved in (False, True)}
        for variant in reversed(range(len(group.variants))):
            for moved in (True, False):
                rows = alive & group.lawful[variant] & ~self.settled[True] & (group.movable[variant] if moved else ~self.settled[False])
                if (made := self._tried(variant, self._leaders(rows), lean=True, moved=moved)) is not None:
                    return made
        if not self._asks_more():
            return None
        plain = np.flatnonzero(alive & group.lawful[0] & ~self.settled[True] & ~self.settled[False])
        return self._tried(0, plain, lean=False, moved=False)

    def _asks_more(self) -> bool:
        """Tell whether a wish about results goes beyond memory."""
        return any(wish.needs_results and wish.most("memory") is None for wish in self.group.case.wishes)

    def _fast_enough(self) -> npt.NDArray[np.bool_]:
        """Return the rows that keep the asked pace as long as nothing is recomputed and offloaded."""
        case: Case = self.group.case
        paces = tuple(wish for wish in case.wishes if wish.about_speed)
        keep = np.ones(len(self.group), dtype=bool)
        if paces:
            for piece in _pieces(np.arange(len(self.group))):
                fastest = self.group.layouts(0, piece, **self._reliefs(0, piece, lean=False, moved=False))
                keep[piece] = totals(replace(case, wishes=paces), fastest).wished
        return keep

    def _leaders(self, mask: Mask) -> Rows:
        """Return the smallest micro-batch of each family among some rows; all of them where a wish may favour larger ones."""
        rows = np.flatnonzero(mask)
        return rows if self._asks_more() else rows[np.unique(self.group.families[rows], return_index=True)[1]]

    def _settle(self, rows: Rows, *, moved: bool) -> None:
        """Settle rows that exceed the device at their leanest, with the larger micro-batches of their families."""
        families, first = np.unique(self.group.families[rows], return_index=True)
        if not len(families):
            return
        at = np.minimum(np.searchsorted(families, self.group.families), len(families) - 1)
        beyond = (families[at] == self.group.families) & (self.group.codes >= self.group.codes[rows[first]][at])
        self.settled[moved] = self.settled[moved] | beyond

    def _reliefs(self, variant: int, rows: Rows, *, lean: bool, moved: bool) -> dict[str, npt.NDArray[np.float64]]:
        """Return the values of the reliefs: the leanest of each, or the fastest."""
        r, at = self.group.reliefs[variant], -1 if lean else 0
        values = {"offload_fraction": r.offload_fraction[at], "recompute_layers": r.recompute_layers[at]}
        if moved:
            values["activation_offload"] = r.activation_offload[at]
        return {name: np.full(len(rows), value) for name, value in values.items()}

    def _tried(self, variant: int, rows: Rows, *, lean: bool, moved: bool) -> Plan | None:
        case = self.group.case
        for piece in _pieces(rows):
            layouts = self.group.layouts(variant, piece, **self._reliefs(variant, piece, lean=lean, moved=moved))
            found = totals(case, layouts)
            fits = fitting(case, found)
            good = np.flatnonzero(fits)
            if len(good):
                return plan(case, entry_of(case, layouts, found, int(good[0])).layout)
            beyond = found.device_bytes > case.limit_bytes
            self.open = self.open or not bool(beyond.all())
            if lean:
                self._settle(piece[beyond], moved=moved)
        return None


def _pieces(rows: Rows) -> Iterator[Rows]:
    start, size = 0, FIRST
    while start < len(rows):
        yield rows[start : start + size]
        start, size = start + size, min(4 * size, CHUNK)
