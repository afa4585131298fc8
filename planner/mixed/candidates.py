"""Candidates: pipelines over several pools whose layers are still open, and bounds of how fast they could be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.stages import layer_kinds
from cost_models.throughput.collectives import fabric, send_seconds
from cost_models.throughput.ranks import Chain
from planner.mixed.grid import Grid, grids

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case
    from planner.mixed.link import Link

Array = npt.NDArray[np.float64]
ORDERED = 3
"""Pools up to which every order along the pipeline is tried; beyond, the given one and that by memory."""
COUNTED = 8
"""Stages of a pool up to which every number is tried; beyond, all of them, a half, a quarter, …"""
CANDIDATES = 100_000
TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A grid, an order of the pools, and how many stages each has."""

    grid: Grid
    order: tuple[int, ...]
    """Pools along the pipeline."""
    counts: tuple[int, ...]
    """Stages of each, in that order."""
    variant: int
    bound_seconds: float
    """No split of the layers makes the pipeline faster (a wide bound until its turn comes)."""

    @property
    def pp(self) -> int:
        """Stages of the pipeline."""
        return sum(self.counts)

    @property
    def owner(self) -> tuple[int, ...]:
        """Pool of each stage."""
        return tuple(k for k, n in zip(self.order, self.counts, strict=True) for _ in range(n))

    @property
    def layout(self) -> Layout:
        """The pipeline, its layers still open."""
        base = self.grid.layout
        return replace(base, degrees=replace(base.degrees, pp=float(self.pp)), choices=self.grid.variants[self.variant])


def promising(candidates: Sequence[Candidate], cases: Sequence[Case], sends: Sends) -> Iterator[Candidate]:
    """Yield pipelines by their bound, the least first: a cheap bound for all, better ones for those whose turn it is."""
    alike = len(layer_kinds(cases[0].architecture)[0]) == 1
    waiting = [(c.bound_seconds, c.pp, number, 0, c) for number, c in enumerate(candidates)]
    heapify(waiting)
    while waiting:
        bound, pp, number, level, candidate = heappop(waiting)
        if level == 2:
            yield candidate
            continue
        sent = sends(candidate.grid, candidate.order, candidate.counts)
        if level == 0:
            better = path_bound(candidate, cases[0].architecture.layers, sent)
        else:
            better = candidate.grid.micro_batches * pace(candidate, cases[0].architecture.layers, sent) if alike else 0.0
        if np.isfinite(better):
            bound = max(bound, better)
            heappush(waiting, (bound, pp, number, level + 1, replace(candidate, bound_seconds=bound)))


def all_candidates(cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yield pipelines that their memory does not exclude, bounded by m × the balanced stage; with as many micro-batches as stages."""
    layers = cases[0].architecture.layers
    fixed = cases[0].given.get("pp")
    made = 0
    for grid in grids(cases):
        options = [_counts(case.world // grid.gpus) for case in cases]
        for order in _orders(cases):
            speeds = [grid.speeds[k] for k in order]
            work = layers + speeds[0].embedding_seconds / speeds[0].layer_seconds + speeds[-1].head_seconds / speeds[-1].layer_seconds
            for counts in product(*(options[k] for k in order)):
                pp = sum(counts)
                if pp > layers or grid.micro_batches < pp or (fixed is not None and pp != fixed) or made >= CANDIDATES:
                    continue
                balanced = grid.micro_batches * work / sum(n / s.layer_seconds for n, s in zip(counts, speeds, strict=True))
                for variant in range(len(grid.variants)):
                    if sum(n * max(0.0, s.most_layers[variant]) for n, s in zip(counts, speeds, strict=True)) >= layers:
                        made += 1
                        yield Candidate(grid=grid, order=order, counts=counts, variant=variant, bound_seconds=balanced)


def _counts(most: int) -> tuple[int, ...]:
    if most <= COUNTED:
        return tuple(range(1, most + 1))
    found = []
    while most >= 1:
        found.append(most)
        most //= 2
    return tuple(found)


def _orders(cases: Sequence[Case]) -> list[tuple[int, ...]]:
    pools = tuple(range(len(cases)))
    if len(pools) <= ORDERED:
        return list(permutations(pools))
    by_memory = tuple(sorted(pools, key=lambda k: (-cases[k].limit_bytes, k)))
    return list(dict.fromkeys((pools, by_memory)))


def path_bound(candidate: Candidate, layers: int, sent: tuple[Array, Array]) -> float:
    """Return a lower bound of a 1F1B pipeline's seconds over all splits of the layers, fractions of layers included.

    A stage's seconds t_i over its pool's seconds per layer sum to a constant c (layers, and embedding, head and sends in layers).
    The path that is steady at stage j takes total + (m - 1 - w_j) t_j + later stages; none is shorter than any weighted mean of them.
    Weights under which every stage counts alike per layer, v, give v × c; where such weights are negative, m × the balanced stage.
    """
    m, pp = float(candidate.grid.micro_batches), candidate.pp
    speeds = [candidate.grid.speeds[k] for k in candidate.owner]
    each = np.array([s.layer_seconds for s in speeds])
    edges = speeds[0].embedding_seconds / speeds[0].layer_seconds + speeds[-1].head_seconds / speeds[-1].layer_seconds
    work = layers + edges + float(np.sum((sent[0] + sent[1]) / each))
    balanced = m * work / float(np.sum(1.0 / each))
    slope, constant = np.zeros(pp), np.zeros(pp)
    for i, t in enumerate(each):
        steady = m - 1.0 - (pp - 1.0 - i)
        if steady <= 0.0:
            return balanced
        slope[i] = (1.0 / t - slope[:i].sum()) / steady
        constant[i] = -(1.0 + constant[:i].sum()) / steady
    value = (1.0 - constant.sum()) / slope.sum()
    weights = slope * value + constant
    return max(balanced, float(value) * work) if np.all(weights >= 0.0) else balanced


def pace(candidate: Candidate, layers: int, sent: tuple[Array, Array]) -> float:
    """Return the least seconds of the slowest stage over all splits into whole layers that memory might allow; infinite for none.

    The slowest stage is busy with every micro-batch, so that a pipeline takes at least micro-batches × these.
    """
    speeds = [candidate.grid.speeds[k] for k in candidate.owner]
    each = np.array([s.layer_seconds for s in speeds]) * (1.0 - TOLERANCE)
    room = np.floor(np.array([s.most_layers[candidate.variant] for s in speeds]) + TOLERANCE)
    if np.any(room < 1.0) or room.sum() < layers:
        return float("inf")
    edge = (sent[0] + sent[1]) * (1.0 - TOLERANCE)
    edge[0] += speeds[0].embedding_seconds
    edge[-1] += speeds[-1].head_seconds
    values = np.sort((edge[:, None] + each[:, None] * np.arange(1, layers + 1)[None, :]).reshape(-1))
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        held = np.minimum(np.floor((values[middle] - edge) / each + TOLERANCE), room)
        if held.min() >= 1.0 and held.sum() >= layers:
            high = middle
        else:
            low = middle + 1
    return float(values[low])


class Sends:
    """Seconds of the sends between stages: inside a pool by its own network, between pools by the link."""

    def __init__(self, cases: Sequence[Case], link: Link) -> None:
        self.pools, self.link = [case.pool for case in cases], link
        self.known: dict[tuple[object, ...], float] = {}

    def __call__(self, grid: Grid, order: Sequence[int], counts: Sequence[int]) -> tuple[Array, Array]:
        """Return what sends add to (forward, backward) of each stage: it waits for the link that it sends over. The last stage's forward
        and the first one's backward wait as long as their neighbours, as in the step of one pool."""
        found = []
        for at, (k, n) in enumerate(zip(order, counts, strict=True)):
            found += [self._inside(grid, k, n)] * (n - 1)
            if at + 1 < len(order):
                found.append(self._between(grid, k, order[at + 1]))
        return np.array([*found, found[-1]]), np.array([found[0], *found])

    def tied(self, grid: Grid, order: Sequence[int]) -> float:
        """Return the seconds in which first and last stage average the gradient of a matrix that both hold: each sends half of it and gets
        half of the sum back."""
        if not grid.embedding_bytes:
            return 0.0
        return self.link.send_seconds(self.pools[order[0]], self.pools[order[-1]], grid.gpus, grid.embedding_bytes)

    def _inside(self, grid: Grid, k: int, stages: int) -> float:
        key = (grid.message_bytes, k, grid.gpus, stages)
        if key not in self.known:
            chain = Chain(stages=float(stages), stride=float(grid.gpus))
            self.known[key] = float(send_seconds(fabric(self.pools[k]), chain, grid.message_bytes))
        return self.known[key]

    def _between(self, grid: Grid, one: int, other: int) -> float:
        key = (grid.message_bytes, one, other, grid.gpus, "between")
        if key not in self.known:
            self.known[key] = self.link.send_seconds(self.pools[one], self.pools[other], grid.gpus, grid.message_bytes)
        return self.known[key]
