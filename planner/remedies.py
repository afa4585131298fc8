"""Remedies: single changes of an infeasible request that make it feasible, each verified by a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.changes import Change, between, changes, doublings, found_flags
from planner.plan import Plan, Remedy

if TYPE_CHECKING:
    from planner.request import Resolved

SEARCHES = 160
"""Changes that are tried at most: a count, so that the answer is the same on any machine."""
LARGE, LARGE_SEARCHES = 1024, 60
"""GPUs from which a search takes long, and the changes that are tried there."""

Exists = Callable[["Resolved"], "Plan | None"]
"""A quick search for any plan."""
Best = Callable[["Resolved"], "Plan | None"]
"""A search for the best plan."""


@dataclass(kw_only=True, slots=True)
class _Tries:
    """Searches made so far, and when they end."""

    exists: Exists
    best: Best
    left: int
    deadline: float | None

    def fits(self, change: Change) -> bool:
        """Tell whether the change helps; always false once the searches are used up."""
        if self.left <= 0 or (self.deadline is not None and time.monotonic() > self.deadline):
            return False
        self.left -= 1
        return self.exists(change.resolved) is not None

    def remedy(self, change: Change) -> Remedy | None:
        """Return the remedy that a change which helps is, with the best plan after it."""
        plan = self.best(change.resolved)
        if plan is None:
            return None
        words, flags = found_flags(change, plan)
        return Remedy(change=words, flags=flags, plan=plan)


def remedies_for(resolved: Resolved, exists: Exists, best: Best, *, deadline: float | None = None) -> tuple[Remedy, ...]:
    """Return the single changes after which a plan fits, the gentlest first, each with the best plan after it.

    A `deadline` is the user's own time limit; without one the number of searches alone bounds the work.
    """
    large = max(pool.count for pool in resolved.cluster.pools) >= LARGE
    tries = _Tries(exists=exists, best=best, left=LARGE_SEARCHES if large else SEARCHES, deadline=deadline)
    found: list[Remedy] = []
    helped: set[str] = set()
    cards: list[Remedy] = []
    for change in changes(resolved):
        if change.family in helped or not tries.fits(change):
            continue
        if (remedy := tries.remedy(change)) is not None:
            helped.add(change.family)
            (cards if change.family == "card" else found).append(remedy)
    if (more := _fewest(resolved, tries)) is not None:
        found.append(more)
    return (*found, *cards)


def _fewest(resolved: Resolved, tries: _Tries) -> Remedy | None:
    """Return the change to the fewest more GPUs that help: the first doubling, then every number below it from the smallest on."""
    doubled = doublings(resolved)
    first = next((change for change in doubled if tries.fits(change)), None)
    if first is None:
        return None
    failed = {change.flags for change in doubled[: doubled.index(first)]}
    fewer = [change for change in between(resolved, first.resolved.cluster.pools[0].count) if change.flags not in failed]
    return tries.remedy(next((change for change in fewer if tries.fits(change)), first))
