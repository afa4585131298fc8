"""Column- and row-parallel linear layers: the collectives and the low-rank adapters that every block shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.op import Comm, Gemm, Params
from cost_models.stack import MEGATRON

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.numeric import Num
    from cost_models.training import Training

SOURCE = "Megatron-LM core/tensor_parallel/layers.py; Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2"


def enter(d: Dims, choices: Choices, width: float) -> tuple[Comm, ...]:
    """Return the collectives of a column-parallel input of `width` elements a token.

    Without sequence parallelism forward needs none and backward all-reduces the input gradient. With it forward gathers the
    sequence, backward scatters the gradient and gathers the input once more for the weight gradient. The input gradient is sent as
    soon as it is there: the product of the weight gradient may run beside.
    """
    whole = d.tokens * width * d.act_bytes
    if not choices.sequence_parallel:
        return (Comm(kind="all_reduce", backward="all_reduce", group="tp", bytes=whole, forward_times=0.0, behind_weights=True),)
    again = Comm(kind="all_gather", backward="all_gather", group="tp", bytes=whole, forward_times=0.0, overlappable=True)
    return (Comm(kind="all_gather", backward="reduce_scatter", group="tp", bytes=whole, behind_weights=True), again)


def leave(d: Dims, choices: Choices, width: float) -> tuple[Comm, ...]:
    """Return the collective of a row-parallel output: all-reduce, or reduce-scatter whose backward gathers."""
    whole = d.tokens * width * d.act_bytes
    if not choices.sequence_parallel:
        return (Comm(kind="all_reduce", backward=None, group="tp", bytes=whole),)
    return (Comm(kind="reduce_scatter", backward="all_gather", group="tp", bytes=whole),)


def adapter(training: Training, target: str, inputs: Num, outputs: Num) -> Num:
    """Return the trainable elements of a LoRA adapter (Hu et al., arXiv 2106.09685): r × (in + out), 0 where it is not a target."""
    if training.method not in ("lora", "qlora") or target not in training.lora_targets:
        return 0.0
    return training.lora_rank * (inputs + outputs)


def weight(training: Training, target: str, inputs: Num, outputs: Num, count: Num = 1.0, kind: str = "linear") -> Params:
    """Return the parameters of `count` matrices of in × out elements (per rank), with their adapters."""
    return Params(
        count=count * inputs * outputs,
        kind="expert" if kind == "expert" else "linear",
        adapter=count * adapter(training, target, inputs, outputs),
        quantizable=True,
        largest=inputs * outputs,
    )


def bias(elements: Num, *, kind: str = "linear") -> Params:
    """Return a bias vector of `elements` (per rank)."""
    return Params(count=elements, kind="expert" if kind == "expert" else "norm")


def joint_lora_gemms(training: Training, widths: tuple[tuple[str, Num], ...], tokens: Num, inputs: Num) -> tuple[Gemm, ...]:
    """Return the products of the adapters of matrices with a common input: Megatron-LM joins the matrices (linear_qkv, linear_fc1), and so
    one adapter serves them all; elsewhere each has its own, unless `training.extra` says `fused_qkv` (a code base's q, k, v are one)."""
    joined = training.framework in MEGATRON or widths[0][0] == "q" and training.extra.get("fused_qkv") == "yes"
    if not joined or any(target not in training.lora_targets for target, _ in widths):
        return tuple(g for target, width in widths for g in lora_gemms(training, target, tokens, inputs, width))
    first, *others = (width for _, width in widths)
    outputs = first
    for width in others:
        outputs = outputs + width
    return lora_gemms(training, widths[0][0], tokens, inputs, outputs)


def lora_gemms(training: Training, target: str, tokens: Num, inputs: Num, outputs: Num) -> tuple[Gemm, ...]:
    """Return the two thin products of an adapter, none where the matrix is not a target."""
    if not np.any(adapter(training, target, inputs, outputs)):
        return ()
    rank = float(training.lora_rank)
    return (Gemm(m=tokens, n=rank, k=inputs), Gemm(m=tokens, n=outputs, k=rank))
