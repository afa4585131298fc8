"""Dims: the sizes of one rank's share of one micro-batch, after tensor, sequence, context and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import Num, num, round_up

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Layout
    from cost_models.training import Training

TYPE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0}
"""Bytes of an activation element; fp8 training keeps 16-bit activations outside its GEMMs."""
LINEAR_INPUT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of a GEMM input kept for the weight gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dims:
    """Sizes per rank. Num fields have the shape of the degrees: () or (N, 1)."""

    batch: Num
    """Samples of a micro-batch."""
    seq: Num
    """Tokens of one sample on this rank (sequence / cp)."""
    full_seq: float
    """Tokens of one sample."""
    tokens: Num
    """batch × seq: tokens of tensor-parallel regions."""
    sp_tokens: Num
    """Tokens of the regions between them: tokens / tp under sequence parallelism, else tokens."""
    hidden: float
    heads: Num
    """Query heads of this rank."""
    kv_heads: Num
    """Key-value heads of this rank; at least one (replicated where tp exceeds them)."""
    qk_dim: float
    v_dim: float
    ffn: Num
    """Width of the dense MLP on this rank."""
    vocab: Num
    """Rows of the (padded) vocabulary on this rank."""
    tp: Num
    cp: Num
    ep: Num
    etp: Num
    pp: Num
    routed_tokens: Num
    """Token-expert pairs that this rank's experts compute when routing is balanced."""
    local_experts: Num
    expert_ffn: Num
    """Width of one routed expert on this rank."""
    shared_ffn: Num
    """Width of the shared experts on this rank."""
    act_bytes: float
    """Bytes of an activation element."""
    linear_bytes: float
    """Bytes of a GEMM input element kept for the weight gradient."""


def dims(architecture: Architecture, training: Training, layout: Layout, vocab_multiple: float = 1.0) -> Dims:
    """Return the sizes of one rank.

    Assumes: query heads, ffn and experts divide evenly (rules see to it). Routed pairs: a rank's experts get
    etp × (tokens / tp) × top-k, since its ep × etp group holds ep × etp × tokens/tp tokens and splits them over ep shards
    (Megatron core, token dispatcher with parallel folding).
    """
    d = layout.degrees
    tp, cp = num(d.tp), num(d.cp)
    seq = training.seq / cp
    tokens = num(d.micro_batch) * seq
    sp = layout.choices.sequence_parallel
    moe, mla = architecture.moe, architecture.mla
    topk = 0 if moe is None else moe.topk
    experts = 0 if moe is None else moe.num_experts
    return Dims(
        batch=num(d.micro_batch),
        seq=seq,
        full_seq=float(training.seq),
        tokens=tokens,
        sp_tokens=tokens / tp if sp else tokens,
        hidden=float(architecture.hidden),
        heads=architecture.heads / tp,
        kv_heads=np.maximum(architecture.kv_heads / tp, 1.0),
        qk_dim=float(architecture.head_dim),
        v_dim=float(architecture.head_dim if mla is None else mla.v_head_dim),
        ffn=architecture.ffn_hidden / tp,
        vocab=round_up(float(architecture.vocab), vocab_multiple * tp) / tp if vocab_multiple > 1 else architecture.vocab / tp,
        tp=tp,
        cp=cp,
        ep=num(d.ep),
        etp=num(d.etp),
        pp=num(d.pp),
        routed_tokens=num(d.etp) * tokens / tp * topk,
        local_experts=experts / num(d.ep),
        expert_ffn=(0 if moe is None else moe.moe_ffn_hidden) / num(d.etp),
        shared_ffn=(0 if moe is None else moe.shared_ffn_hidden) / tp,
        act_bytes=TYPE_BYTES[training.precision],
        linear_bytes=LINEAR_INPUT_BYTES[training.precision],
    )


def norm_elements(architecture: Architecture, width: float | None = None) -> float:
    """Return the weights of one norm: one per element, two with a bias."""
    elements = float(architecture.hidden if width is None else width)
    return 2.0 * elements if architecture.norm_bias else elements
