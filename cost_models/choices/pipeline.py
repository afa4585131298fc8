"""What a schedule needs to know of a pipeline to say how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.numeric import Num, num


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Seconds of the stages of a pipeline, for one micro-batch.

    Stage arrays have shape (K,) or (N, K) and hold the stages that were evaluated; the others are () or (N, 1).
    """

    forward: Num
    """All chunks of the stage."""
    backward: Num
    """Input and weight gradients together."""
    weight: Num
    """The part of `backward` that computes weight gradients (zero-bubble schedules run it apart)."""
    behind: Num
    """Stages after this one."""
    after: Num
    """Sum of forward + backward of the stages after this one."""
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
