"""The time of a pipeline as nodes of the stage problem: maxima over weighted sums of the stages' times, which the solver minimises.

Each schedule's formula (cost_models.choices.schedules) is taken apart here once; a test holds both against each other on random stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.choices.played import Index, Recipe, graph_of
from cost_models.choices.schedules import zb_v
from planner.solver.chain import NODE, Node, Path

Array = npt.NDArray[np.float64]
Values = tuple[Array, ...]
"""Values of each option of one stage, (options,) each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """How the stages of 1F1B, interleaved or not, warm up (cost_models.choices.pipeline), in passes of a chunk."""

    stages: int
    each: float
    """Warm-up passes for each stage behind."""
    more: float
    chunks: float
    last: float
    """Passes of each kind, less one."""
    idle: float
    """Passes that a stage waits beside."""
    warm: tuple[float, ...]
    """Warm-up passes of each stage."""
    turns: tuple[bool, ...]
    """Whether each stage has more passes than it warms up with: only round such stages a path goes on."""
    steady: tuple[float, ...]
    """Passes of each stage that a path round it spends there."""


@lru_cache(maxsize=4096)
def passes(schedule: str, stages: int, micro_batches: float, vpp: float) -> Passes:
    """Return the passes of 1F1B or its interleaved form."""
    if schedule == "1f1b":
        each, more, chunks, last, idle = 1.0, 0.0, 1.0, micro_batches - 1.0, 0.0
    else:
        rest = micro_batches % stages
        each, more, chunks, last = 2.0, (vpp - 1.0) * stages, vpp, micro_batches * vpp - 1.0
        idle = (vpp - 1.0) * (stages - rest) if rest and stages > 1 else 0.0
    wanted = [each * (stages - 1.0 - s) + more for s in range(stages)]
    warm = tuple(min(w, last) for w in wanted)
    return Passes(
        stages=stages,
        each=each,
        more=more,
        chunks=chunks,
        last=last,
        idle=idle,
        warm=warm,
        turns=tuple(w <= last or s == stages - 1 for s, w in enumerate(wanted)),
        steady=tuple(last - w + idle for w in warm),
    )


def nodes(schedule: str, stages: int, micro_batches: float, vpp: float, terms: int) -> tuple[Node, ...]:
    """Return the nodes of a pipeline, then one for each of `terms` that come once a step, of which the slowest stage counts."""
    found = _NODES[schedule](stages, micro_batches, vpp)
    first = VALUES[schedule]
    once = (Node(tuple(((s, first + t, 1.0),) for s in range(stages)), counts=True) for t in range(terms))
    return (*found, *once)


class _Built:
    """Nodes of 1F1B, interleaved or not. Forward and backward are values 0 and 1; what is kept for each of both has two entries."""

    def __init__(self, p: Passes) -> None:
        self.p, self.share, self.stages = p, 1.0 / p.chunks, range(p.stages)
        self.found: list[Node] = []
        self.around = p.chunks > 1.0 and p.stages > 1 and not p.idle
        """Ways round the stages are open (cost_models.choices.around)."""
        self.wanted = [p.each * (p.stages - 1.0 - s) + p.more for s in self.stages]
        self.slowest: list[list[Path]] = []
        self.turn: list[list[Path]] = []
        self.way: list[list[Path]] = []
        for v in (0, 1):
            slowest: list[Path] = []
            for s in self.stages:
                slowest.append(self.node(((s, v, self.share),), *slowest[-1:]))
            self.slowest.append(slowest)
            self.turn.append([self._turn(v, s) for s in self.stages])
            way = [self.turn[v][-1]]
            for s in reversed(self.stages[:-1]):
                way.insert(0, self.node(self.turn[v][s], way[0]))
            self.way.append(way)

    def node(self, *paths: Path) -> Path:
        """Put a node, and return the path that is it alone."""
        self.found.append(Node(paths))
        return ((NODE, len(self.found) - 1, 1.0),)

    def reached(self, stage: int) -> Path:
        """All stages up to this one."""
        return tuple((s, v, self.share) for s in range(stage + 1) for v in (0, 1))

    def time(self, stage: int, count: float) -> Path:
        """`count` forwards and backwards of a stage."""
        return tuple((stage, v, count * self.share) for v in (0, 1))

    def all_stages(self, v: int) -> Path:
        return tuple((s, v, self.share) for s in self.stages)

    def _turn(self, v: int, s: int) -> Path:
        """The way to a turn at a stage and up from it."""
        rests, p = self.p.warm[s], self.p
        own = joined(self.reached(s), times(self.slowest[v][s], rests))
        if not self.around:
            return own
        before = min(rests - p.stages, p.more - 1.0)
        rounds = joined(times(self.slowest[v][-1], before), times(self.slowest[v][s], rests - p.stages - before))
        return self.node(own, joined(self.reached(s), self.all_stages(v), rounds))

    def path_round(self, s: int, rounds: float) -> Path:
        """What a path takes that goes round a stage, beside both ways to it."""
        return joined(self.time(s, rounds), times(self.reached(s), -1.0))

    def round_until(self, v: int, index: float) -> Path:
        """The way to the last stage's pass `index`, and all round from it."""
        able = [s for s in self.stages if self.wanted[s] <= index]
        return self.node(*(joined(self.way[v][s], self.path_round(s, index - self.wanted[s]), self.all_stages(v)) for s in able))


@lru_cache(maxsize=4096)
def _longest_path(p: Passes) -> tuple[Node, ...]:
    """The paths of cost_models.choices.pipeline, and of cost_models.choices.around where stages hold several chunks."""
    b = _Built(p)
    paths = [joined(b.path_round(s, p.steady[s]), b.way[0][s], b.way[1][s]) for s in b.stages if p.turns[s]]
    if p.chunks > 1.0 and p.last + 1.0 >= 2.0 * p.stages * p.chunks and b.around:
        rounds = [b.round_until(v, p.stages * p.chunks) for v in (0, 1)]
        ends = [b.round_until(v, p.last - p.stages) for v in (0, 1)]
        paths += [joined(ends[v], b.way[1 - v][0]) for v in (0, 1)]
        for s in (s for s in b.stages if p.turns[s]):
            left, later = p.last - b.wanted[s], 2.0 * (s + 1.0)
            paths += [joined(rounds[v], b.way[1 - v][s], b.time(s, left - later)) for v in (0, 1)]
            paths += [joined(*rounds, b.time(s, left - 2.0 * later), b.reached(s))] if left >= 2.0 * later else []
    elif p.each > 1.0 and p.stages > 1 and not p.idle and b.wanted[0] > p.last:
        resting = [s for s in b.stages if b.wanted[s] >= p.last]
        rest = [_rest(b, v, resting) for v in (0, 1)]
        for s in b.stages:
            both = [joined(b.turn[0][s], b.turn[1][s], times(b.reached(s), -1.0))]
            paths += both if s in resting else [joined(b.turn[v][s], rest[1 - v]) for v in (0, 1)]
    return (*b.found, Node(tuple(paths), counts=True))


def _rest(b: _Built, v: int, resting: list[int]) -> Path:
    """All passes of one kind but one, at the slowest of the resting stages or with one way round."""
    paths = [((s, v, b.share * b.p.last),) for s in resting]
    more = [joined(b.all_stages(v), times(b.slowest[v][-1], b.p.last - b.p.stages))] if b.around else []
    return b.node(*paths, *more)


def _gpipe(stages: int, m: float, vpp: float) -> tuple[Node, ...]:
    """All forwards, then all backwards, each set by its slowest stage."""
    return tuple(
        Node(tuple(tuple((s, v, m if s == j else 1.0) for s in range(stages)) for j in range(stages)), counts=True) for v in (0, 1)
    )


@lru_cache(maxsize=256)
def _followed(recipe: Recipe, stages: int, m: int) -> tuple[Node, ...]:
    """The longest path through the order of passes (cost_models.choices.played), step by step. Forward, backward and weight gradients
    are values 0, 1 and 2."""
    followed = recipe.followed(stages, m)
    graph = graph_of(recipe, stages, followed)
    works = [_worked(rows, stages, recipe.place(0, 0, stages, recipe.chunks).part) for rows in graph.works.tolist()]
    found: list[Node] = []
    if not len(graph.middle):
        ended = _ends(graph.before, works, range(len(works)), found)
        return (*found, Node(tuple(ended[s] for s in graph.last), counts=True))
    ended, left = (_ends(levels, works, graph.middle.tolist(), found) for levels in (graph.before, graph.after))
    more = (m - followed) / recipe.round
    paths = []
    for step, rows in zip(graph.middle.tolist(), graph.rounds.tolist(), strict=True):
        round_ = _worked(rows, stages, recipe.place(0, 0, stages, recipe.chunks).part)
        paths.append(joined(ended[step], left[step], times(works[step], -1.0), times(round_, more)))
    return (*found, Node(tuple(paths), counts=True))


def _worked(rows: list[int], stages: int, part: float) -> Path:
    """Return what a step takes, from the rows of works of cost_models.choices.played."""
    found: list[tuple[int, int, float]] = []
    for row in rows:
        kind, stage = divmod(row, stages)
        found += [(stage, value, weight * part) for value, weight in _KINDS[kind]]
    return joined(tuple(found))


_KINDS: tuple[tuple[tuple[int, float], ...], ...] = (((0, 1.0),), ((1, 1.0),), ((1, 1.0), (2, -1.0)), ((2, 1.0),), ())
"""Values of forward, backward, input gradients, weight gradients and nothing."""


def _ends(levels: tuple[tuple[Index, Index], ...], works: list[Path], wanted: Iterable[int], found: list[Node]) -> dict[int, Path]:
    """Return the ends of the wanted steps as paths, and put the nodes that they rest on behind those found so far."""
    waits = {
        s: [w for w in before if w < len(works)] for level, rest in levels for s, before in zip(level.tolist(), rest.tolist(), strict=True)
    }
    needed, open_ = set(wanted), list(wanted)
    while open_:
        more = [w for w in waits[open_.pop()] if w not in needed]
        needed.update(more)
        open_ += more
    ends: dict[int, Path] = {}
    for step in (s for level, _ in levels for s in level.tolist() if s in needed):
        begun: Path = ends[waits[step][0]] if len(waits[step]) == 1 else ()
        if len(waits[step]) > 1:
            begun = ((NODE, len(found), 1.0),)
            found.append(Node(tuple(ends[w] for w in waits[step])))
        ends[step] = joined(begun, works[step])
    return ends


def joined(*paths: Path) -> Path:
    """Return one path with the weights of all, each value named once."""
    weights: dict[tuple[int, int], float] = {}
    for stage, value, weight in (part for path in paths for part in path):
        weights[stage, value] = weights.get((stage, value), 0.0) + weight
    return tuple((*key, weight) for key, weight in weights.items() if weight)


def times(path: Path, factor: float) -> Path:
    return tuple((stage, value, weight * factor) for stage, value, weight in path)


_NODES: dict[str, Callable[[int, float, float], tuple[Node, ...]]] = {
    "1f1b": lambda stages, m, vpp: _longest_path(passes("1f1b", stages, m, vpp)),
    "interleaved": lambda stages, m, vpp: _longest_path(passes("interleaved", stages, m, vpp)),
    "gpipe": _gpipe,
    "zb-v": lambda stages, m, vpp: _followed(zb_v.RECIPE, stages, int(m)),
}
VALUES = {"1f1b": 2, "interleaved": 2, "gpipe": 2, "zb-v": 3}
"""Schedule -> how many of an option's values are the pipeline's: forward and backward, and weight gradients where they run apart."""


def values(schedule: str, forward: Array, backward: Array, weight: Array) -> Values:
    """Return the values of options."""
    return (forward, backward, weight)[: VALUES[schedule]]


def least(
    schedule: str, position: Array, stages: int, m: float, vpp: float, times: tuple[Array, Array], whole: tuple[float, float]
) -> Array:
    """Return what the pipeline takes at least if the stage at `position` takes `times` (forward, backward) for a micro-batch, and all
    stages together take `whole`, however the rest is split."""
    forward, backward = times
    total, work = forward + backward, whole[0] + whole[1]
    if schedule == "gpipe":
        return work + (m - 1.0) * total
    if schedule == "zb-v":
        return m * total
    p = passes(schedule, stages, m, vpp)
    rounds, behind = p.last + p.idle, p.each * (stages - 1.0 - position)
    round_it = np.maximum(work + rounds * total - behind * np.minimum(forward, backward), (rounds + 1.0) * total)
    # a stage that no path goes round: its passes are the slowest up to the first stage that a path goes round, or to the last
    first = np.floor(max(p.last - p.more, 0.0) / p.each)
    rest_there = np.maximum((p.each * first + min(p.more, p.last) + 1.0) * total, work + min(p.more, p.last) * total)
    return np.asarray(np.where(behind + p.more <= p.last, round_it, rest_there) / p.chunks)
