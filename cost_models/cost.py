"""The one door: ops once, then the memory ledger and the step ledger."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from cost_models.memory.total import memory
from cost_models.numeric import keep_freed_memory
from cost_models.result import Cost
from cost_models.stages import Stages, stages
from cost_models.throughput.step import step_time
from cost_models.transformer import count_parameters, shared_ops

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Layout
    from cost_models.training import Training
    from hardware.spec import Pool


keep_freed_memory()


def cost(
    architecture: Architecture, training: Training, layout: Layout, pool: Pool, *, every: bool = False, held: Stages | None = None
) -> Cost:
    """Return memory and time of `layout` on `pool`.

    `layout` may be a batch of N layouts with common choices (degrees of shape (N, 1)): then totals are (N,) and stage values
    (N, K). `every` evaluates all pipeline stages of a single layout instead of the decisive ones. `held` evaluates the stages that it
    describes, whether or not they make up a model: their stage values (bytes and seconds) are then meant, not the totals.
    """
    ops = shared_ops(architecture, training, layout)
    looked_at = stages(architecture, layout, every=every) if held is None else held
    return Cost(
        memory=memory(architecture, training, layout, pool, ops, looked_at),
        time=step_time(architecture, training, layout, pool, ops, looked_at, parameters_used=parameters_used(architecture)),
    )


@lru_cache(maxsize=64)
def parameters_used(architecture: Architecture) -> float:
    """Return the parameters that a token meets: the active ones without the input matrix (what model FLOP counts)."""
    return float(count_parameters(architecture).active_without_token_embedding)
