"""What a schedule needs to know of a pipeline to say how long it takes, and the longest path through 1F1B and its interleaved form.

The passes of all stages form a graph: a stage runs its passes in a fixed order, and a pass waits for its input. The time is the longest
path. A path goes down the stages by forwards, turns at a stage into its backward, goes up, turns again, and so on. A turn from forward to
backward at stage i falls back by its w_i warm-up passes, a turn to forward at j gains w_j + 1; each way down and up costs one pass of each
stage it covers. Hence going round the stages j..i costs their times and gains their number: it never pays to go round more than one stage,
j, and what remains is the way there and back. Both ways may rest in warm-up or drain, w_i passes of one kind at one stage up to i.
With T = forward + backward, u = min(w, M - 1), M passes of each kind, and i, k any stages from j on:

    time = max over j, i, k of  T_0 + … + T_{j-1} + (M - u_j) T_j + (T_{j+1} + … + T_i) + u_i max(f_0..f_i) + (T_{j+1} + … + T_k) + u_k max(b_0..b_k)
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


def longest(value: Num) -> Num:
    """Return the maximum over the stage axis, () or (N,): column by column, which is much faster than a reduction over a short axis."""
    x = num(value)
    if x.ndim == 0:
        return x
    best = x[..., 0]
    for stage in range(1, x.shape[-1]):
        best = np.maximum(best, x[..., stage])
    return best


def longest_path(line: Line, warm: Num, warm_before_last: Num, chunks: Num, idle: Num) -> Num:
    """Return the longest path, () or (N,), of stages that warm up with `warm` passes of a chunk, 1 / `chunks` of the stage each.

    `warm_before_last`: of the last stage but one, which may not have been evaluated; `idle`: passes that every stage waits beside.
    Exact where all stages were evaluated (1F1B) or those between the second and the last are alike.
    """
    stages = num(line.forward).shape[-1] if num(line.forward).ndim else 1
    passes = _flat(line.micro_batches * chunks)
    share = 1.0 / _flat(chunks)
    total = _flat(line.forward_sum + line.backward_sum) * share
    waited = _flat(idle)
    w = [_column(warm, s) for s in range(stages)]
    u = [np.minimum(x, passes - 1.0) for x in w]
    forward, backward = ([_column(x, s) * share for s in range(stages)] for x in (line.forward, line.backward))
    before = [_column(line.before, s) * share for s in range(stages)]
    time = [f + b for f, b in zip(forward, backward, strict=True)]
    end = total - time[-1]
    rest = np.minimum(_flat(warm_before_last), passes - 1.0)
    down = _ways([b + t for b, t in zip(before, time, strict=True)], u, forward, end, rest)
    up = _ways([b + t for b, t in zip(before, time, strict=True)], u, backward, end, rest)
    best: Num = 0.0
    for s in range(stages):
        path = (passes - u[s] - 1.0 + waited) * time[s] - before[s] - time[s] + down[s] + up[s]
        best = np.maximum(best, np.where(w[s] <= passes - 1.0, path, 0.0))
    return best


def _flat(value: Num) -> Num:
    x = num(value)
    return x[:, 0] if x.ndim == 2 else x


def _column(value: Num, stage: int) -> Num:
    x = num(value)
    return x if x.ndim == 0 else x[..., min(stage, x.shape[-1] - 1)]


def _ways(reached: list[Num], u: list[Num], passes: list[Num], end: Num, rest: Num) -> list[Num]:
    """For each stage the longest way to a turn at it or a later one: stages up to the turn, and its warm-up at the slowest of them."""
    slowest = list(passes)
    for s in range(1, len(passes)):
        slowest[s] = np.maximum(slowest[s - 1], passes[s])
    ways = [r + n * x for r, n, x in zip(reached, u, slowest, strict=True)]
    if len(ways) > 1:
        ways[-2] = np.maximum(np.maximum(ways[-2], ways[-1]), end + rest * slowest[-2])
    for s in range(len(ways) - 3, -1, -1):
        ways[s] = np.maximum(ways[s], ways[s + 1])
    return ways
