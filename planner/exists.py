"""Exists: whether a request has any plan on the grid; quicker than a search for the best, as it ends at the first that fits.

Two facts carry it, and the tests hold it to the search: device bytes never fall as the micro-batch grows, and the states of a row depend
neither on recompute nor on the micro-batch. So each family of rows is judged by its smallest lawful micro-batch, unless a wish is about
something that may get better with a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.board import entry_of
from planner.evaluate import CHUNK, fitting, plan, totals
from planner.space import Counts, Group, groups

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.case import Case
    from planner.plan import Plan
    from planner.request import Resolved

FIRST = 64
"""Rows of the first look at a group; later looks are at four times as many, up to CHUNK."""
Rows = npt.NDArray[np.intp]


def any_plan(resolved: Resolved, frameworks: Callable[[Resolved], tuple[Framework, ...]]) -> Plan | None:
    """Return the first plan that is found, of no particular merit; None where the grid has none."""
    for pool in resolved.cluster.pools:
        for offloaded in (False, True):
            for framework in frameworks(resolved):
                case = resolved.case(pool, framework)
                for group in groups(case, Counts(), offloaded=offloaded):
                    if (found := _in_group(group)) is not None:
                        return found
    return None


def _in_group(group: Group) -> Plan | None:
    hopeless = np.zeros(0, dtype=np.int64)
    for variant in reversed(range(len(group.variants))):
        rows = np.flatnonzero(group.lawful[variant])
        rows = rows[~np.isin(group.families[rows], hopeless)]
        if not _open_ended(group.case):
            rows = rows[np.unique(group.families[rows], return_index=True)[1]]
        for piece in _pieces(rows):
            layouts = group.layouts(variant, piece)
            found = totals(group.case, layouts)
            good = np.flatnonzero(fitting(group.case, found))
            if len(good):
                return plan(group.case, entry_of(group.case, layouts, found, int(good[0])).layout)
            hopeless = np.union1d(hopeless, group.families[piece[found.states_bytes > group.case.limit_bytes]])
    return None


def _open_ended(case: Case) -> bool:
    """Tell whether a wish asks for more than little memory, so that no micro-batch speaks for the larger ones."""
    return any(wish.needs_results and wish.most("memory") is None for wish in case.wishes)


def _pieces(rows: Rows) -> Iterator[Rows]:
    start, size = 0, FIRST
    while start < len(rows):
        yield rows[start : start + size]
        start, size = start + size, min(4 * size, CHUNK)
