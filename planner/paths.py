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


def _longest_path(p: Passes) -> tuple[Node, ...]:
    """Forward and backward are values 0 and 1. Of each: the slowest stage up to each one; the way to a turn at it or later; then the
    path round each stage."""
    share, stages = 1.0 / p.chunks, range(p.stages)
    found: list[Node] = []
    slowest: dict[tuple[int, int], int] = {}
    way: dict[tuple[int, int], int] = {}
    for v in (0, 1):
        for s in stages:
            before: tuple[Path, ...] = (((NODE, slowest[v, s - 1], 1.0),),) if s else ()
            slowest[v, s] = len(found)
            found.append(Node((((s, v, share),), *before)))
        for s in reversed(stages):
            turn: Path = (*_reached(s, share), (NODE, slowest[v, s], p.warm[s]))
            later: tuple[Path, ...] = (((NODE, way[v, s + 1], 1.0),),) if s + 1 in stages else ()
            way[v, s] = len(found)
            found.append(Node((turn, *later)))
    paths = []
    for s in stages:
        if p.turns[s]:
            own = [(i, v, -share + (p.steady[s] * share if i == s else 0.0)) for i in range(s + 1) for v in (0, 1)]
            paths.append((*own, (NODE, way[0, s], 1.0), (NODE, way[1, s], 1.0)))
    return (*found, Node(tuple(paths), counts=True))


def _reached(stage: int, share: float) -> Path:
    return tuple((i, v, share) for i in range(stage + 1) for v in (0, 1))


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
        paths.append(_joined(ended[step], left[step], _times(works[step], -1.0), _times(round_, more)))
    return (*found, Node(tuple(paths), counts=True))


def _worked(rows: list[int], stages: int, part: float) -> Path:
    """Return what a step takes, from the rows of works of cost_models.choices.played."""
    found: list[tuple[int, int, float]] = []
    for row in rows:
        kind, stage = divmod(row, stages)
        found += [(stage, value, weight * part) for value, weight in _KINDS[kind]]
    return _joined(tuple(found))


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
        ends[step] = _joined(begun, works[step])
    return ends


def _joined(*paths: Path) -> Path:
    """Return one path with the weights of all, each value named once."""
    weights: dict[tuple[int, int], float] = {}
    for stage, value, weight in (part for path in paths for part in path):
        weights[stage, value] = weights.get((stage, value), 0.0) + weight
    return tuple((*key, weight) for key, weight in weights.items() if weight)


def _times(path: Path, factor: float) -> Path:
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
