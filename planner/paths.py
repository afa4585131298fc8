"""The time of a pipeline as nodes of the stage problem: maxima over weighted sums of the stages' times, which the solver minimises.

Each schedule's formula (cost_models.choices.schedules) is taken apart here once; a test holds both against each other on random stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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


def _alone(stages: int, m: float, vpp: float) -> tuple[Node, ...]:
    """The slowest stage with its own bubble."""
    return (Node(tuple(((j, 0, 1.0),) for j in range(stages)), counts=True),)


_NODES: dict[str, Callable[[int, float, float], tuple[Node, ...]]] = {
    "1f1b": lambda stages, m, vpp: _longest_path(passes("1f1b", stages, m, vpp)),
    "interleaved": lambda stages, m, vpp: _longest_path(passes("interleaved", stages, m, vpp)),
    "gpipe": _gpipe,
    "zb-v": _alone,
}
VALUES = {"1f1b": 2, "interleaved": 2, "gpipe": 2, "zb-v": 1}
"""Schedule -> how many of an option's values are the pipeline's: forward and backward, or all micro-batches through the stage alone."""


def values(schedule: str, forward: Array, backward: Array, alone: Array) -> Values:
    """Return the values of options."""
    return (alone,) if VALUES[schedule] == 1 else (forward, backward)


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
