"""What a stack hides behind compute, by framework, date and switches. `overlap_all` = no: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Training

OVERLAP_SENDS_SINCE = "2023-10"
"""From then on Megatron-LM overlaps the sends of interleaved schedules by default (4eeff55d; an option since f9283c5a, May 2023)."""
FSDP2_SINCE = "2026"
"""From then on FSDP is taken to be fully_shard (FSDP2), whose prefetch hides as torchtitan's does, where a run does not say."""
ZERO_BUBBLE = "megatron-zb"
"""Its runtime splits the backward of Megatron's own (local) layers, not Transformer Engine's; it sends beside compute, and neither reduces
gradients nor gathers parameters beside it (megatron/core/zbpp_utils.py, 39f2c186)."""
ASYNC_TP_SINCE = "2022"
"""From then on Megatron-LM reduces the input gradient of a column-parallel layer behind its weight gradient (v3.0,
core/tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication)."""


def forbidden(training: Training) -> bool:
    """Tell whether the run hides no traffic that a switch or a framework could leave exposed."""
    return training.extra.get("overlap_all") == "no"


def part(training: Training, switch: str, constant: str, *, usual: bool) -> float:
    """Return the part of some traffic that hides: `constant` where `switch` is on, or not given and hiding is `usual`."""
    if forbidden(training) or training.extra.get(switch, "yes" if usual else "no") != "yes":
        return 0.0
    return calibration("software").value(constant)


def tensor_part(training: Training) -> float:
    """Return the part of tensor parallel collectives that hides: none by default."""
    return part(training, "async_tp" if training.extra.get("async_tp") == "yes" else "overlap_tp", "tp_hidden_te", usual=False)


def sends_hide(training: Training, choices: Choices, *, modern: bool) -> bool:
    """Return whether sends run beside compute, with more than one chunk a rank or split passes. `modern`: Megatron-LM with TE."""
    if choices.schedule in ("gpipe", "1f1b") or not (modern or training.framework == ZERO_BUBBLE):
        return False
    late = not "" < training.date < OVERLAP_SENDS_SINCE
    return not forbidden(training) and training.extra.get("overlap_p2p", "yes" if late else "no") == "yes"


def weights_hide(training: Training, choices: Choices, name: str) -> bool:
    """Return whether the reduction of a column-parallel input gradient runs beside the weight gradient in a stack of class `name`.

    Not where the weight gradient waits for a pass of its own (the zero-bubble fork's core/tensor_parallel/layers.py).
    """
    late = not "" < training.date < ASYNC_TP_SINCE
    mine = training.framework == "megatron" or (training.framework == ZERO_BUBBLE and choices.schedule not in ("zb-h1", "zb-v"))
    return not forbidden(training) and late and mine and name in ("megatron_local", "megatron_te")


def early_zero3(training: Training) -> bool:
    """Return whether ZeRO-3 is that of 2021: no prefetch, each parameter gathered by a collective of its own, once more to recompute."""
    return training.framework == "deepspeed" and "" < training.date < "2022"


def fsdp_part(training: Training) -> float:
    """Return the part of the gathers and reductions of ZeRO-3 and FSDP that hides."""
    if forbidden(training) or early_zero3(training):
        return 0.0
    kind = training.framework if training.framework in ("torchtitan", "deepspeed") else "fsdp"
    second = training.extra.get("fsdp_version", "1" if "" < training.date < FSDP2_SINCE else "2") == "2"
    prefetches = training.framework == "megatron" or (kind == "fsdp" and second)
    return calibration("software").value(f"fsdp_hidden_{'torchtitan' if prefetches else kind}")
