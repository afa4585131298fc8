"""What a schedule needs to know of a pipeline to say how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.numeric import Num


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
