"""HBM traffic of element-wise work in single kernels, counted kernel by kernel, against that of one fused kernel.

Blocks state what fused kernels move: each tensor read and written once. Eager code runs one kernel for each operator, with fp32 copies
in between. Counts are bytes per element of a 16-bit tensor: what is read and written by each kernel that the source calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.stack import MEGATRON

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.throughput.software import Software
    from cost_models.training import Training

Factors = tuple[float, float]
"""Bytes of single kernels / bytes of a fused one, forward and backward."""

FUSED: Factors = 1.0, 1.0
FUSED_ACTIVATION_SINCE = "2023-12"
"""Megatron-LM's own fusion of gate and activation (core/fusions/fused_bias_swiglu.py) and of the rotary embedding (core 0.5)."""

_ADD = 6.0
"""Residual sum: two reads, one write; the block counts it with the norm. Backward adds gradients alike."""
_NORM = 36.0, 76.0
"""RMSNorm in single operators: to fp32 (6), square (8), mean (4), × rsqrt (8), to 16 bits (6), × weight (4). Backward: of the weight's
product (12), to fp32 (6), of the rsqrt's (24), of the square (16), sum of both (12), to 16 bits (6)."""
_ROTARY = 20.0, 20.0
"""x·cos (4), rotate-half: negate half (2) and join (4), · sin (4), sum (6); backward mirrors it."""
_GATED = 10.0, 18.0
"""Activation (4), product (6); backward: of the product (12), of the activation (6)."""
_SPLIT = 6.0
"""Gradients of the two halves of a joined gate-and-up product, put together again."""


def traffic(architecture: Architecture, training: Training, stack: Software) -> dict[str, Factors]:
    """Return the factors of the ops `norm`, `rotary` and `activation`, by the last part of their name.

    What is not counted kernel by kernel has the stack's own factor.
    """
    usual = stack.memory_factor, stack.memory_factor
    single = stack.name in ("hf", "eager")
    kernel = FUSED if single else usual
    fused_norm = training.framework == "nanotron" or training.extra.get("norm_kernel") == "fused"
    found = {"norm": kernel if fused_norm else usual, "rotary": kernel if architecture.positional == "rope" else usual, "activation": usual}
    legacy = training.framework in MEGATRON and "" < training.date < FUSED_ACTIVATION_SINCE
    if single and architecture.norm == "rms" and not fused_norm:
        found["norm"] = (_NORM[0] + _ADD) / 10.0, (_NORM[1] + _ADD) / 14.0
    rotary = training.extra.get("rope_fusion", "no" if single or legacy else "yes") == "no"
    if rotary and architecture.positional == "rope":
        normed = architecture.qk_norm != "none" and single
        more, fused = (_NORM, 8.0) if normed else ((0.0, 0.0), 4.0)
        found["rotary"] = (_ROTARY[0] + more[0]) / fused, (_ROTARY[1] + more[1]) / fused
    kernels = "single" if training.extra.get("swiglu_fusion", "no" if single or legacy else "yes") == "no" else "fused"
    gate = training.extra.get("swiglu_kernels", kernels)
    if "mlp_kernel" in training.extra or (gate == "fused" and architecture.gated_mlp):
        found["activation"] = kernel
    elif gate == "single" and architecture.gated_mlp:
        split = _SPLIT if training.framework in MEGATRON else 0.0
        found["activation"] = _GATED[0] / 6.0, (_GATED[1] + split) / 10.0
    return found
