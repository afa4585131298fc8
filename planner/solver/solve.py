"""Solve a stage problem with CP-SAT. Importing this file loads ortools (about half a second): do so only where something is solved."""

from __future__ import annotations

from planner.solver.chain import Chain, Solution, objective, quantum_for, slack
from planner.solver.model import ChainModel


def solve(
    chain: Chain, *, time_limit_seconds: float = 5.0, below_seconds: float = float("inf"), hint: tuple[int, ...] | None = None
) -> Solution | None:
    """Return the best choice whose objective is at most `below_seconds`; None where nothing was found and nothing proved in time.

    Where it is proved that no choice covers the layers and keeps the ceiling, the solution has no choice. `hint`: a choice to start from.
    Deterministic: one worker, a fixed seed, and a limit in the solver's own deterministic seconds.
    Raises ScaleError for numbers that no integers hold.
    """
    none = Solution(chosen=(), seconds=float("inf"), bound_seconds=below_seconds, proved=True, quantum_seconds=0.0)
    if not all(chain.stages):
        return none
    quantum, denominator = quantum_for(chain)
    rounding = quantum * slack(chain)
    model = ChainModel(chain, quantum, denominator)
    unit = quantum / model.unit
    if below_seconds < float("inf"):
        model.at_most(int((below_seconds + rounding) / unit))
    if hint is not None:
        model.hint(hint)
    first = model.minimise(time_limit_seconds)
    if first is None:
        return None
    if isinstance(first, bool):
        return Solution(chosen=(), seconds=float("inf"), bound_seconds=below_seconds, proved=True, quantum_seconds=quantum)
    chosen, value, bound, proved = first
    if proved:
        chosen = model.earliest(value, time_limit_seconds) or chosen
    return Solution(
        chosen=chosen,
        seconds=objective(chain, chosen),
        bound_seconds=bound * unit - rounding,
        proved=proved,
        quantum_seconds=quantum,
    )
