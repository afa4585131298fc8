"""Serving: weights and the key-value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.ledger import Term
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.model_ops import ModelOps
    from cost_models.stages import LayerKind, Stages
    from cost_models.training import Training

QUANT_GROUP = 64.0
"""Elements per scale of a quantised cache or weight."""
SCALE_BYTES = 4.0
"""A 16-bit scale and zero point per group."""


def scale_bytes(bits: int) -> float:
    """Return the bytes of scales per element of a tensor kept at `bits`."""
    return 0.0 if bits == 16 else SCALE_BYTES / QUANT_GROUP


def cache(architecture: Architecture, training: Training, ops: ModelOps, stages: Stages) -> Term:
    """Return the key-value cache of a micro-batch of full-length sequences, per stage.

    Keys and values of every kv head of this rank; a sliding window keeps its window; latent attention keeps the latent and the
    rotary key, whole on every rank (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
    """
    d = ops.dims
    width = training.kv_bits / 8.0 + scale_bytes(training.kv_bits)
    total: Num = 0.0
    for (kind, _), count in zip(ops.kinds, stages.kind_layers, strict=True):
        one = d.batch * _positions(architecture, kind, d.seq) * _elements(architecture, d.kv_heads, d.qk_dim) * width
        total = total + count * ops.spread(one)
    return Term(
        name="kv_cache.keys_and_values",
        value=total,
        source="one key and one value per layer, kv head and position",
        formula="batch × positions × 2 × kv heads × head dim × bytes × layers",
    )


def _positions(architecture: Architecture, kind: LayerKind, seq: Num) -> Num:
    return np.minimum(num(seq), float(architecture.sliding_window)) if kind.sliding and architecture.sliding_window else num(seq)


def _elements(architecture: Architecture, kv_heads: Num, head_dim: float) -> Num:
    m = architecture.mla
    return num(m.kv_lora_rank + m.qk_rope_head_dim) if m is not None else 2.0 * kv_heads * head_dim
