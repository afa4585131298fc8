"""Infeasible: what a search adds to its answer when nothing fits: which requirements clash, and what single changes would do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.clash import clash_for
from planner.exists import any_plan
from planner.remedies import remedies_for

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.plan import Plan, SearchResult
    from planner.request import Resolved


def explained(
    resolved: Resolved,
    result: SearchResult,
    best: Callable[[Resolved], Plan | None],
    frameworks: Callable[[Resolved], tuple[Framework, ...]],
    deadline: float | None = None,
) -> SearchResult:
    """Return an infeasible result with its clash and its remedies. `best` is the search, `frameworks` what it goes over."""

    def exists(asked: Resolved) -> Plan | None:
        return any_plan(asked, frameworks, best)

    clash = clash_for(resolved, exists)
    return replace(result, clash=clash, remedies=remedies_for(resolved, exists, best, deadline=deadline))
