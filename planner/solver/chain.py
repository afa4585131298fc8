"""The stage problem: one option for each stage of a pipeline, chained so that they cover all layers, minimising the longest path.

minimise  max over paths j of  sum over stages s of  weight[j][s] × seconds[s][chosen option]
subject to  each stage takes one option, each option starts at the layer where the one before it ends, and the last ends at the last layer.
Times are integers of a declared quantum. Equal optima are told apart by a second objective (the earliest options in the order given),
so that the answer does not depend on the solver's mood.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

MAX_VALUE = 2**52
"""Largest objective: CP-SAT's sums stay far below 2**63, and float64 holds every value exactly."""
QUANTUM_SECONDS = 1e-6
"""Finest quantum; a coarser one is taken where the sums would pass MAX_VALUE."""
COARSEST_SECONDS = 1e-3
WEIGHT_DENOMINATOR = 1000


class ScaleError(ValueError):
    """Numbers too large for the integers of the solver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to fill a stage."""

    start: int
    """First layer."""
    layers: int
    seconds: float
    """Time of one micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A stage problem."""

    stages: tuple[tuple[Option, ...], ...]
    layers: int
    """Layers to cover, from 0."""
    paths: tuple[tuple[float, ...], ...]
    """Weights of the stages' seconds, one row per path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """What the solver found."""

    chosen: tuple[int, ...]
    """Index of the option of each stage."""
    seconds: float
    """Longest path, recomputed in float64 from the options."""
    bound_seconds: float
    """No choice is shorter than this (rounding to the quantum allowed for)."""
    proved: bool
    """True where the choice is optimal within the quantum."""
    quantum_seconds: float
    """Step of the integer times: each path is exact within this times the sum of its weights."""


def longest(chain: Chain, chosen: tuple[int, ...]) -> float:
    """Return the longest path of a choice, in seconds."""
    times = [options[i].seconds for options, i in zip(chain.stages, chosen, strict=True)]
    return max(sum(w * t for w, t in zip(path, times, strict=True)) for path in chain.paths)


def quantum_for(chain: Chain) -> tuple[float, int]:
    """Return (quantum in seconds, common denominator of the weights). Raises ScaleError where no quantum up to 1 ms fits."""
    denominator = 1
    for path in chain.paths:
        for weight in path:
            denominator = lcm(denominator, Fraction(weight).limit_denominator(WEIGHT_DENOMINATOR).denominator)
    most = max(sum(w * max(o.seconds for o in s) for w, s in zip(p, chain.stages, strict=True)) for p in chain.paths)
    quantum = QUANTUM_SECONDS
    while most * denominator / quantum > MAX_VALUE:
        quantum *= 10.0
        if quantum > COARSEST_SECONDS:
            raise ScaleError(f"a path of {most:g} s over {denominator} passes {MAX_VALUE} at a quantum of {COARSEST_SECONDS:g} s")
    return quantum, denominator


def slack(chain: Chain) -> float:
    """Most quanta by which rounding can move a path: half of one per unit of weight."""
    return 0.5 * max(sum(path) for path in chain.paths)
