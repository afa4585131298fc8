"""Earliest: the optimum of a stage problem by labels alone, where they bound it exactly; CP-SAT then need not run.

Times are the solver's integers, so that equal optima are the same ones and the first of them in the order of the options is the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.labels import Entry, Search, TooMany, searches, undercut, unwound
from planner.solver.chain import Chain, Solution, objective, quantum_for, slack

if TYPE_CHECKING:
    from planner.windows import Shape

MAX_STEPS = 20_000
"""Partial splits that are gone on from at most."""


def earliest(shape: Shape, chain: Chain, below_seconds: float, hint: tuple[int, ...]) -> Solution | None:
    """Return what `planner.solver.solve.solve` does, or None where the labels do not prove it: weights that are no whole numbers, a
    schedule whose labels only bound it, too many labels, or a hint (a choice of the chain) beyond the ceiling.

    Raises ScaleError for numbers that no integers hold.
    """
    quantum, denominator = quantum_for(chain)
    if denominator != 1:
        return None
    rounding, ticks = quantum * slack(chain), in_ticks(chain, quantum)
    most = objective(ticks, hint)
    if most > (below_seconds + rounding) / quantum:
        return None
    found = list(searches(shape, ticks, apart=True))
    try:
        least, behind = min(search.least(most) for search in found)
        if not behind or objective(ticks, behind) > least:
            return None
        firsts = [first for search in found if (first := _first(search, least))]
    except TooMany:
        return None
    chosen = min(firsts)
    if objective(ticks, chosen) > least:
        return None
    return Solution(
        chosen=chosen,
        seconds=objective(chain, chosen),
        bound_seconds=least * quantum - rounding,
        proved=True,
        quantum_seconds=quantum,
    )


def in_ticks(chain: Chain, quantum_seconds: float) -> Chain:
    """Return the chain with its times in whole quanta."""
    stages = [[replace(o, values=tuple(float(round(v / quantum_seconds)) for v in o.values)) for o in options] for options in chain.stages]
    return replace(chain, stages=tuple(map(tuple, stages)))


def _first(search: Search, most: float) -> tuple[int, ...]:
    """Return the first choice in the order of the options whose labels come to `most` at most; empty where there is none.

    Depth first: what a partial split cannot be completed to, one that it undercuts cannot either. Raises TooMany past MAX_STEPS.
    """
    failed: dict[tuple[int, int], list[Entry]] = {}
    root: Entry = (search.start, 0.0, ())
    path, steps = [(0, root, search.further(0, 0, [root], most))], 0
    while path:
        begin, entry, further = path[-1]
        end, reached = next(further, (0, None))
        if reached is None:
            failed.setdefault((len(path) - 1, begin), []).append(entry)
            path.pop()
            continue
        label, term, chosen = reached[1:]
        if len(path) == len(search.ways):
            if search.finish(search.shape, label) + term <= most:
                return unwound(chosen)
        elif not undercut(label, term, failed.get((len(path), end), [])):
            steps += 1
            if steps > MAX_STEPS:
                raise TooMany
            path.append((end, reached[1:], search.further(len(path), end, [reached[1:]], most)))
    return ()
