"""What each framework can run: one table, from which the rules of the choices are made."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.layout import Offload, RankOrder, Recompute, ScheduleName, Zero
from cost_models.training import Framework, Method, Optimizer, TrainPrecision


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What one framework runs. Axes that are not named have degree one."""

    methods: tuple[Method, ...]
    precisions: tuple[TrainPrecision, ...]
    optimizers: tuple[Optimizer, ...]
    zero: tuple[Zero, ...]
    source: str
    zero_with_pp: tuple[Zero, ...] = ()
    """ZeRO stages that work beside a pipeline."""
    pipeline_methods: tuple[Method, ...] = ()
    axes: tuple[str, ...] = ()
    """Which of tp, pp, vpp, cp, ep, etp may exceed one."""
    sequence_parallel: bool = False
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    recompute: tuple[Recompute, ...] = ("none", "full")
    recompute_layers: bool = False
    """`full` for the first k layers of a stage alone."""
    offload: tuple[Offload, ...] = ("none",)
    nvme_zero: tuple[Zero, ...] = ()
    offload_optimizers: tuple[Optimizer, ...] = ()
    """Optimizers that can run on the host; empty: all of `optimizers`."""
    partial_offload_zero: tuple[Zero, ...] = ()
    """ZeRO stages at which a part of the optimizer may be offloaded."""
    activation_offload: bool = False
    shard_group_zero: tuple[Zero, ...] = ()
    """ZeRO stages that can shard over a part of the data-parallel ranks."""
    rank_orders: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp",)
    """Orders in which ranks can be numbered, the usual one first."""
    expert_rank_orders: tuple[RankOrder, ...] | None = None
    """The same for models with experts; None: as all others."""

    def orders(self, *, experts: bool) -> tuple[RankOrder, ...]:
        """Return the orders of a model with or without experts."""
        return self.expert_rank_orders if experts and self.expert_rank_orders is not None else self.rank_orders


_ALL: tuple[Method, ...] = ("full", "lora", "qlora", "inference")

SUPPORT: dict[Framework, Support] = {
    "megatron": Support(
        methods=("full", "lora", "inference"),
        precisions=("fp32", "fp16", "bf16", "fp8"),
        optimizers=("adamw", "sgd", "muon"),
        zero=(0, 1),
        zero_with_pp=(0, 1),
        pipeline_methods=("full", "lora", "inference"),
        axes=("tp", "pp", "vpp", "cp", "ep", "etp"),
        sequence_parallel=True,
        schedules=("1f1b", "interleaved"),
        recompute=("none", "selective", "full"),
        recompute_layers=True,
        offload=("none", "optimizer"),
        offload_optimizers=("adamw",),
        partial_offload_zero=(1,),
        activation_offload=True,
        shard_group_zero=(1,),
        rank_orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        source="Megatron-LM megatron/training/arguments.py, training/initialize.py, core/optimizer/optimizer_config.py (d98e8a64)",
    ),
    "deepspeed": Support(
        methods=_ALL,
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd", "adam8bit", "lion", "muon"),
        zero=(0, 1, 2, 3),
        zero_with_pp=(0, 1),
        pipeline_methods=("full",),
        axes=("pp",),
        offload=("none", "optimizer", "params", "optimizer+params"),
        nvme_zero=(3,),
        offload_optimizers=("adamw", "lion"),
        partial_offload_zero=(3,),
        activation_offload=True,
        shard_group_zero=(3,),
        source="DeepSpeed runtime/config.py, runtime/pipe/engine.py:76, runtime/zero/config.py:389 (edaa7221)",
    ),
    "torchtitan": Support(
        methods=("full",),
        precisions=("fp32", "bf16", "fp8"),
        optimizers=("adamw",),
        zero=(2, 3),
        zero_with_pp=(2, 3),
        pipeline_methods=("full",),
        axes=("tp", "pp", "vpp", "cp", "ep", "etp"),
        sequence_parallel=True,
        schedules=("1f1b", "interleaved", "gpipe", "zb-v"),
        recompute=("none", "selective", "full"),
        offload=("none", "optimizer+params"),
        shard_group_zero=(2, 3),
        source=(
            "torchtitan distributed/parallel_dims.py, distributed/pipeline_parallel.py, config/configs.py (b5bcd76c); its"
            " InterleavedZeroBubble (two chunks a rank at least), DualPipeV and LoopedBFS are none of planner's schedules"
        ),
    ),
    "fsdp": Support(
        methods=_ALL,
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd", "adafactor", "adam8bit", "lion"),
        zero=(2, 3),
        axes=("tp", "cp"),
        offload=("none", "optimizer+params"),
        activation_offload=True,
        shard_group_zero=(2, 3),
        source="accelerate parallelism_config.py:329-377, utils/dataclasses.py:1827 (16cb6eb8); PyTorch fully_shard",
    ),
    "hf": Support(
        methods=_ALL,
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd", "adafactor", "adam8bit", "lion"),
        zero=(0,),
        activation_offload=True,
        source="transformers Trainer with DistributedDataParallel",
    ),
    "nanotron": Support(
        methods=("full",),
        precisions=("fp32", "bf16"),
        optimizers=("adamw",),
        zero=(0, 1),
        zero_with_pp=(0, 1),
        pipeline_methods=("full",),
        axes=("tp", "pp", "ep"),
        sequence_parallel=True,
        schedules=("1f1b", "gpipe"),
        expert_rank_orders=("tp-cp-ep-pp-dp",),
        source="nanotron config/parallelism_config.py, parallel/context.py",
    ),
    "litgpt": Support(
        methods=_ALL,
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd", "adam8bit"),
        zero=(0, 2, 3),
        shard_group_zero=(2, 3),
        source="litgpt finetune and pretrain scripts (Lightning Fabric FSDPStrategy)",
    ),
    "megatron-deepspeed": Support(
        methods=("full",),
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd"),
        zero=(0, 1, 2, 3),
        zero_with_pp=(0, 1),
        pipeline_methods=("full",),
        axes=("tp", "pp"),
        sequence_parallel=True,
        recompute=("none", "selective", "full"),
        recompute_layers=True,
        offload=("none", "optimizer", "params", "optimizer+params"),
        nvme_zero=(3,),
        offload_optimizers=("adamw", "lion"),
        partial_offload_zero=(3,),
        source="Megatron-DeepSpeed megatron/arguments.py; DeepSpeed runtime/pipe/engine.py:76",
    ),
    "megatron-zb": Support(
        methods=("full",),
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd"),
        zero=(0, 1),
        zero_with_pp=(0, 1),
        pipeline_methods=("full",),
        axes=("tp", "pp", "vpp"),
        sequence_parallel=True,
        schedules=("1f1b", "interleaved", "zb-h1", "zb-v"),
        recompute=("none", "selective", "full"),
        recompute_layers=True,
        rank_orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        source=(
            "sail-sg/zero-bubble-pipeline-parallelism megatron/core/zbpp_utils.py, megatron/training/arguments.py (39f2c186, on Megatron"
            " core 0.9): --enable-zero-bubble --zero-bubble-max-pending-backward PP runs zb-h1, --zero-bubble-v-schedule zb-v"
        ),
    ),
    "dualpipe": Support(
        methods=("full",),
        precisions=("fp32", "fp16", "bf16"),
        optimizers=("adamw", "sgd"),
        zero=(0,),
        zero_with_pp=(0,),
        pipeline_methods=("full",),
        axes=("pp",),
        schedules=("dualpipe",),
        source=(
            "deepseek-ai/DualPipe dualpipe/dualpipe.py, examples/example_dualpipe.py (3da1bbea): two modules of plain PyTorch a rank;"
            " optimizer, replicas and the exchange of mirrored gradients are the caller's"
        ),
    ),
}
"""Framework -> what it runs."""

SEARCHED: tuple[Framework, ...] = ("megatron", "torchtitan", "deepspeed", "fsdp", "hf")
"""Frameworks over which a search goes when none is asked for; the first that can run a plan is the one it is costed in."""

RARE: tuple[ScheduleName, ...] = ("zb-h1", "zb-v", "dualpipe")
"""Schedules that none of SEARCHED runs as it comes."""


def searched(schedule: str | None) -> tuple[Framework, ...]:
    """Return the frameworks to go over where none is asked for, but perhaps a schedule: for a rare one also those that run it."""
    return tuple(dict.fromkeys((*SEARCHED, *running(schedule)))) if schedule in RARE else SEARCHED


def running(schedule: str | None) -> tuple[Framework, ...]:
    """Return the frameworks that run a pipeline schedule."""
    return tuple(name for name, support in SUPPORT.items() if schedule in support.schedules)
