"""Layers under torch.compile.

Its min-cut partitioner keeps what eager modules keep unless it is told a memory budget: torchtitan's runs without recompute and with
every second layer recomputed (torchao, Llama-3-8B) lie within 1 % of that. Only the final norm differs. Where a code base's norms keep
their 16-bit input alone, `Training.extra["norm_kernel"]` says so. torchtitan's per-op selective recompute stands in `per_op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.implementations import Kept, hf
from cost_models.op import Saved
from cost_models.stack import resolve

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training


def attention(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """As eager modules."""
    return hf.attention(architecture, training, d, choices, sliding=sliding)


def mla(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """As eager modules."""
    return hf.mla(architecture, training, d, choices, sliding=sliding)


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """As eager modules."""
    return hf.mlp(architecture, training, d, choices)


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """As eager modules."""
    return hf.moe(architecture, training, d, choices)


def embedding(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """As eager modules."""
    return hf.embedding(architecture, training, d, choices)


def head(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Residual stream, head input; an eager loss keeps its log-softmax in fp32."""
    stream = d.sp_tokens * d.hidden * d.act_bytes
    bytes_per_logit = 4.0 if resolve(training).loss == "eager" else d.act_bytes
    return {
        "norm": (Saved(name="residual", bytes=stream),),
        "logits": (Saved(name="input", bytes=stream),),
        "loss": (Saved(name="log_softmax", bytes=d.tokens * d.vocab * bytes_per_logit),),
    }
