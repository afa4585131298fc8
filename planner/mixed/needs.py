"""Needs: what the framework must support to run a mixed plan, as sentences for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.numeric import num
from planner.exporters._megatron_layout import layout_string

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.plan import MixedPart, Plan

_UNEVEN_STAGES = {
    "megatron": "--pipeline-model-parallel-layout {layout} (Megatron-LM core/transformer/pipeline_parallel_layer_layout.py)",
    "torchtitan": "module lists of the stages, {layers} layers (torchtitan distributed/pipeline_parallel.py)",
}
_ONE_BATCH = {
    "megatron": "Megatron-LM gives all ranks one micro-batch and one count (core/num_microbatches_calculator.py): a change to it",
    "deepspeed": "DeepSpeed checks one micro-batch × accumulation × ranks for all (runtime/config.py): a configuration per rank",
    "torchtitan": "torchtitan gives all ranks one local batch (trainer.py): a change to it",
    "fsdp": "a training loop with its own accumulation on each rank (no_sync of FSDP or DDP)",
    "hf": "a training loop with its own accumulation on each rank (no_sync of DDP)",
}
_GRID = ("tp", "pp", "cp", "ep")


def stage_needs(framework: str, layout: Layout, parts: Sequence[MixedPart]) -> tuple[str, ...]:
    """Return what a pipeline over several pools needs."""
    held = layout.stage_layers or ()
    first = parts[0].plan
    mtp = first.architecture.mtp_layers if first.training.mtp else 0
    given = _UNEVEN_STAGES[framework].format(layout=layout_string(list(held), mtp), layers=", ".join(f"{n}" for n in held))
    order = ", then ".join(f"{p.plan.pool.count} × {p.plan.pool.gpu.name}" for p in parts)
    said = [f"stages of unequal size: {given}", f"ranks in the order of the stages (pipeline outermost): {order}"]
    again = layout.stage_recompute or ()
    if len(set(again)) > 1 and any(again):
        said.append(f"recompute per stage ({', '.join(f'{n}' for n in again)} layers): one --recompute-num-layers serves all ranks")
    return (*said, _one_build())


def replica_needs(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return what replicas with unequal shares need."""
    framework = plans[0].training.framework
    shares = " and ".join(
        f"{p.training.global_batch:,} = {_whole(p, 'dp')} × {_whole(p, 'micro_batch')} × {p.micro_batches} on {p.pool.gpu.name}"
        for p in plans
    )
    said = [
        f"a micro-batch and accumulation per pool (samples = dp × micro-batch × accumulation: {shares}):"
        f" {_ONE_BATCH.get(framework, 'one for all ranks in most frameworks')}",
        "gradients summed over samples, each loss divided by the global batch: a mean over ranks would weigh small shares too much",
    ]
    grids = [tuple(_whole(p, axis) for axis in _GRID) for p in plans]
    zeros = [p.layout.choices.zero for p in plans]
    if len(set(grids)) > 1 or len(set(zeros)) > 1 or (any(zeros) and len({_whole(p, "dp") for p in plans}) > 1):
        said.append(
            "gradients cut differently in the pools are exchanged by parameter: reduce inside each pool, average between pools, update"
            " each pool's own states (process groups of no stock framework, whose ranks form one grid)"
        )
    else:
        said.append("one process group per part of the model across pools, beside those inside (Megatron-LM's optimizer instances, HSDP)")
    return (*said, _one_build())


def _one_build() -> str:
    return "one build of framework and NCCL that has kernels for all GPUs, and a network that joins the pools"


def _whole(p: Plan, axis: str) -> int:
    return int(num(getattr(p.layout.degrees, axis)))
