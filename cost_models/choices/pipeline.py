"""What a schedule needs to know of a pipeline to say how long it takes, and the longest path through 1F1B, interleaved or not.

The passes of all stages form a graph: a stage runs its passes in a fixed order, and a pass waits for its input. The time is the longest
path. A path goes down the stages by forwards, turns at a stage into its backward, goes up, turns again, and so on. A turn from forward to
backward at stage i falls back by its w_i warm-up passes, a turn to forward at j gains w_j + 1; each way down and up costs one pass of each
stage it covers. Hence going round the stages j..i costs their times and gains their number: it never pays to go round more than one stage,
j, and what remains is the way there and back. Both ways may rest in warm-up or drain, w_i passes of one kind at one stage up to i.
With T = forward + backward, u = min(w, M - 1), M passes of each kind, and i, k any stages from j on:

    time = max over j, i, k of  T_0 + … + T_{j-1} + (M - u_j) T_j
                              + (T_{j+1} + … + T_i) + u_i max(f_0..f_i) + (T_{j+1} + … + T_k) + u_k max(b_0..b_k)

Interleaved stages have more paths: from the last stage a pass leads to the first stage's next chunk (cost_models.choices.around).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.numeric import Num, num


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Seconds of the stages of a pipeline, for one micro-batch.

    Stage arrays have shape (K,) or (N, K) and hold the stages that were evaluated, in their order; the others are () or (N, 1).
    """

    forward: Num
    """All chunks of the stage."""
    backward: Num
    """Input and weight gradients together."""
    weight: Num
    """The part of `backward` that computes weight gradients (zero-bubble schedules run it apart)."""
    behind: Num
    """Stages after this one."""
    before: Num
    """Sum of forward + backward of the stages before this one."""
    forward_sum: Num
    """Over all stages of the pipeline."""
    backward_sum: Num
    weight_sum: Num
    pp: Num
    vpp: Num
    micro_batches: Num
    listed: bool = False
    """All stages of the pipeline are here, not the decisive ones alone."""


def longest(value: Num) -> Num:
    """Return the maximum over the stage axis, () or (N,): column by column, which is much faster than a reduction over a short axis."""
    x = num(value)
    if x.ndim == 0:
        return x
    best = x[..., 0]
    for stage in range(1, x.shape[-1]):
        best = np.maximum(best, x[..., stage])
    return best


def longest_path(line: Line, each: float, more: Num, chunks: Num, idle: Num) -> Num:
    """Return the longest path, () or (N,), where a stage warms up with `each` passes for every stage behind it and `more` beside, of
    chunks that are 1 / `chunks` of the stage; `idle`: passes that every stage waits beside.

    Exact for 1F1B where all stages were evaluated; else the stages between the second and the last are taken as alike.
    """
    stages = num(line.forward).shape[-1] if num(line.forward).ndim else 1
    share = 1.0 / _flat(chunks)
    last, extra = _flat(line.micro_batches * chunks) - 1.0, _flat(more)
    behind = [_column(line.behind, s) for s in range(stages)]
    warm = [np.minimum(each * x + extra, last) for x in behind]
    forward, backward, before = ([_column(x, s) * share for s in range(stages)] for x in (line.forward, line.backward, line.before))
    time = [f + b for f, b in zip(forward, backward, strict=True)]
    total = _flat(line.forward_sum + line.backward_sum) * share
    place = _Place(
        reached=[x + t for x, t in zip(before, time, strict=True)],
        warm=warm,
        end=total - time[-1],
        end_warm=np.where(behind[max(stages - 2, 0)] > 0.0, np.minimum(each + extra, last), 0.0),
    )
    down, up = place.ways(forward), place.ways(backward)
    best = (last - warm[-1] + _flat(idle)) * time[-1] - place.reached[-1] + down[-1] + up[-1]
    for s in range(stages - 1):
        path = (last - warm[s] + _flat(idle)) * time[s] - place.reached[s] + down[s] + up[s]
        best = np.maximum(best, np.where(each * behind[s] + extra <= last, path, 0.0))
    if stages < 3 or line.listed:
        return best
    return np.maximum(best, _middle(place, (forward, backward, time), behind[0], (last, each, extra)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the turns of a path may lie."""

    reached: list[Num]
    """Sum of the stages up to each one."""
    warm: list[Num]
    end: Num
    """Sum of the stages up to the last but one, which may not have been evaluated; 0 where there is none."""
    end_warm: Num

    def ways(self, passes: list[Num]) -> list[Num]:
        """Return for each stage the longest way to a turn at it or a later one: stages up to the turn, and its warm-up at the slowest."""
        slowest = list(passes)
        for s in range(1, len(passes)):
            slowest[s] = np.maximum(slowest[s - 1], passes[s])
        ways = [r + n * x for r, n, x in zip(self.reached, self.warm, slowest, strict=True)]
        if len(ways) > 1:
            ways[-2] = np.maximum(np.maximum(ways[-2], ways[-1]), self.end + self.end_warm * slowest[-2])
        for s in range(len(ways) - 3, -1, -1):
            ways[s] = np.maximum(ways[s], ways[s + 1])
        return ways


def _middle(place: _Place, times: tuple[list[Num], list[Num], list[Num]], most_behind: Num, law: tuple[Num, float, Num]) -> Num:
    """Return the path round one of the alike stages in the middle: the last of them, or where few micro-batches let the first stages
    only fill and drain, the first stage that turns."""
    forward, backward, time = times
    last, each, extra = law
    first = np.floor((last - extra) / each)
    behind = np.where((first >= 1.0) & (first < most_behind), first, 1.0)
    warm = each * behind + extra
    reached = place.end - (behind - 1.0) * time[1]
    path = (last - warm) * time[1] - reached
    for passes in (forward, backward):
        slowest = np.maximum(passes[0], passes[1])
        turn = np.maximum(place.reached[-1], place.end + place.end_warm * slowest)
        path = path + np.maximum(turn, reached + warm * slowest)
    return np.where((warm <= last) & (most_behind > 1.0), path, 0.0)


def _flat(value: Num) -> Num:
    x = num(value)
    return x[:, 0] if x.ndim == 2 else x


def _column(value: Num, stage: int) -> Num:
    x = num(value)
    return x if x.ndim == 0 else x[..., min(stage, x.shape[-1] - 1)]
