"""Solve a stage problem with CP-SAT. Importing this file loads ortools (about half a second): do so only where something is solved."""

from __future__ import annotations

from planner.solver.chain import Chain, Solution, longest, quantum_for, slack
from planner.solver.model import ChainModel


def solve(chain: Chain, *, time_limit_seconds: float = 5.0, below_seconds: float = float("inf")) -> Solution | None:
    """Return the best choice whose longest path is at most `below_seconds`; None where no choice covers the layers and keeps it, or
    none was found in time. Deterministic: one worker, a fixed seed, and a limit in the solver's own deterministic seconds.

    Raises ScaleError for numbers that no integers hold.
    """
    if not all(chain.stages):
        return None
    quantum, denominator = quantum_for(chain)
    ceiling = None if below_seconds == float("inf") else int((below_seconds + quantum * slack(chain)) * denominator / quantum)
    model = ChainModel(chain, quantum, denominator, ceiling)
    first = model.minimise(time_limit_seconds)
    if first is None:
        return None
    chosen, value, bound, proved = first
    if proved:
        chosen = model.earliest(value, time_limit_seconds) or chosen
    unit = quantum / denominator
    return Solution(
        chosen=chosen,
        seconds=longest(chain, chosen),
        bound_seconds=bound * unit - quantum * slack(chain),
        proved=proved,
        quantum_seconds=quantum,
    )
