"""The JSON of what a search proves."""

from __future__ import annotations

from planner.record import Record


class CertificateRecord(Record):
    """What a search proves about its best plan."""

    proved: bool
    """True only where no layout of the space has a shorter step than plan 1, up to the quantum."""
    layouts: int
    """Points of the grid that the search spans."""
    families: int
    """Pipelines of the grid whose layers, recompute and offload were open for each stage."""
    solved: int
    """Families that were answered: a best split, or the proof that none beats plan 1."""
    discarded: int
    """Families that a bound ruled out."""
    unsolved: int
    """Families that could still win, by their bound."""
    bound_seconds: float
    """No layout of the space has a shorter step."""
    gap: float
    """(step of plan 1 - bound) / step of plan 1."""
    quantum_seconds: float
    """Step of the solver's integer times; 0 where it solved nothing."""
