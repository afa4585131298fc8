"""The stage problem: one option for each stage of a pipeline, minimising a sum of maxima.

minimise  sum of the nodes that count, where a node is the largest of its paths, and a path is a weighted sum of values of the stages'
          options and of nodes before it (these with weights of at least 0, so that the least of the whole is the least of each)
subject to  each stage takes one option, all of one level; their layers add up to all layers; an option that names starts begins at one.
Times are integers of a declared quantum. Equal optima are told apart by a second, lexicographic objective: the first stage's option
comes as early as it can in the order given, then the second's, and so on. So the answer does not depend on the solver's mood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

MAX_VALUE = 2**52
"""Largest objective: CP-SAT's sums stay far below 2**63, and float64 holds every value exactly."""
QUANTUM_SECONDS = 1e-6
"""Usual quantum; a coarser one is taken where the sums would pass MAX_VALUE, a finer one for steps of milliseconds."""
COARSEST_SECONDS = 1e-3
FINEST_SECONDS = 1e-9
FINE = 1e-5
"""Rounding that a finer quantum is taken for, as a part of the objective."""
WEIGHT_DENOMINATOR = 1000


class ScaleError(ValueError):
    """Numbers too large for the integers of the solver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to fill a stage."""

    layers: int
    values: tuple[float, ...]
    """Seconds that the paths weigh."""
    level: int = 0
    """All stages take options of one level (what is chosen once for the whole pipeline)."""
    starts: tuple[int, ...] | None = None
    """First layers at which the option may begin; None: anywhere."""


Path = tuple[tuple[int, int, float], ...]
"""(stage, index of a value, weight); (NODE, number of a node, weight)."""
NODE = -1


@dataclass(frozen=True, slots=True)
class Node:
    """The largest of some paths."""

    paths: tuple[Path, ...]
    counts: bool = False
    """Part of the objective."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A stage problem."""

    stages: tuple[tuple[Option, ...], ...]
    layers: int
    """Layers to cover, from 0."""
    nodes: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """What the solver found."""

    chosen: tuple[int, ...]
    """Index of the option of each stage; empty where there is none that keeps the ceiling."""
    seconds: float
    """Objective, recomputed in float64 from the options."""
    bound_seconds: float
    """No choice has less (rounding to the quantum allowed for)."""
    proved: bool
    """True where the choice is optimal within the quantum, or where it is proved that no choice keeps the ceiling."""
    quantum_seconds: float
    """Step of the integer times: a path is exact within half of this times the sum of its weights."""


def objective(chain: Chain, chosen: tuple[int, ...]) -> float:
    """Return the objective of a choice, in seconds."""
    taken = [options[i].values for options, i in zip(chain.stages, chosen, strict=True)]
    return sum(value for node, value in zip(chain.nodes, _values(chain, lambda s, v, w: taken[s][v]), strict=True) if node.counts)


def _values(chain: Chain, read: Callable[[int, int, float], float]) -> list[float]:
    """Return every node, with `read` (stage, value, weight) in place of the stages' values."""
    values: list[float] = []
    for node in chain.nodes:
        values.append(max(sum(w * (values[v] if s == NODE else read(s, v, w)) for s, v, w in path) for path in node.paths))
    return values


def quantum_for(chain: Chain) -> tuple[float, int]:
    """Return (quantum in seconds, common denominator of the weights). Raises ScaleError where no quantum up to 1 ms fits."""
    denominator = 1
    for weight in {w for node in chain.nodes for path in node.paths for _, _, w in path}:
        denominator = lcm(denominator, Fraction(weight).limit_denominator(WEIGHT_DENOMINATOR).denominator)
    high = [[max(o.values[v] for o in options) for v in range(len(options[0].values))] for options in chain.stages]
    low = [[min(o.values[v] for o in options) for v in range(len(options[0].values))] for options in chain.stages]
    most = _sum(chain, _values(chain, lambda s, v, w: high[s][v] if w > 0.0 else 0.0))
    least = _sum(chain, _values(chain, lambda s, v, w: low[s][v] if w > 0.0 else high[s][v]))
    depth = denominator ** max(depths(chain))
    quantum = QUANTUM_SECONDS
    while most * depth / quantum > MAX_VALUE:
        quantum *= 10.0
        if quantum > COARSEST_SECONDS:
            raise ScaleError(f"a path of {most:g} s over {depth} passes {MAX_VALUE} at a quantum of {COARSEST_SECONDS:g} s")
    finer = quantum / 10.0
    while quantum * slack(chain) > FINE * least and finer >= 0.99 * FINEST_SECONDS and most * depth / finer <= MAX_VALUE:
        quantum, finer = finer, finer / 10.0
    return quantum, denominator


def slack(chain: Chain) -> float:
    """Most quanta by which rounding can move the objective: half of one per unit of weight of a stage's time."""
    moved: list[float] = []
    for node in chain.nodes:
        moved.append(max(sum(abs(w) * (moved[v] if s == NODE else 0.5) for s, v, w in path) for path in node.paths))
    return _sum(chain, moved)


def depths(chain: Chain) -> list[int]:
    """Return how often the denominator divides the unit of each node: once more than of what it weighs by a fraction."""
    found: list[int] = []
    for node in chain.nodes:
        terms = [(found[v] if s == NODE else 0) + (w != int(w)) for path in node.paths for s, v, w in path]
        found.append(max(terms, default=0))
    return found


def _sum(chain: Chain, values: list[float]) -> float:
    return sum(value for node, value in zip(chain.nodes, values, strict=True) if node.counts)
