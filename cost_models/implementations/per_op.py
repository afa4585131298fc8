"""torchtitan's per-op selective recompute: each layer keeps its input, attention and collective results, and every second matmul."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.op import Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.implementations import Kept

SOURCE = "torchtitan distributed/activation_checkpoint.py (_get_custom_policy: every second aten.mm is recomputed)"


def attention(architecture: Architecture, d: Dims) -> Kept:
    """Layer input; of the matmuls q, k, v, o the first and the third; the attention kernel's output and log-sum-exp."""
    b = d.act_bytes
    third = d.kv_heads * d.qk_dim
    if architecture.mla is not None:
        third = d.heads * float(architecture.mla.qk_nope_head_dim + architecture.mla.v_head_dim)
    return {
        "norm": (Saved(name="layer_input", bytes=d.sp_tokens * d.hidden * b),),
        "qkv": (Saved(name="q", bytes=d.tokens * d.heads * d.qk_dim * b),),
        "qkv_up": (Saved(name="kv_up", bytes=d.tokens * third * b),) if architecture.mla is not None else (),
        "rotary": (Saved(name="v", bytes=d.tokens * third * b),) if architecture.mla is None else (),
        "core": (
            Saved(name="output", bytes=d.tokens * d.heads * d.v_dim * b),
            Saved(name="logsumexp", bytes=d.tokens * d.heads * 4.0),
        ),
    }


def mlp(d: Dims) -> Kept:
    """Of the matmuls w1, w3, w2 the first and the third."""
    return {
        "up": (Saved(name="gate", bytes=d.tokens * d.ffn * d.act_bytes),),
        "down": (Saved(name="output", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
    }


def moe(architecture: Architecture, d: Dims) -> Kept:
    """Router scores, the exchanged tokens (collectives are kept), and every second grouped matmul."""
    b, pairs = d.act_bytes, d.routed_tokens
    m = architecture.moe
    experts = 0.0 if m is None else float(m.num_experts)
    kept: Kept = {
        "router": (Saved(name="scores", bytes=d.sp_tokens * experts * 8.0),),
        "up": (Saved(name="permuted_input", bytes=pairs * d.hidden * b), Saved(name="gate", bytes=pairs * d.expert_ffn * b)),
        "down": (Saved(name="expert_output", bytes=pairs * d.hidden * b),),
    }
    if m is not None and m.shared_ffn_hidden:
        kept |= {"shared_up": (Saved(name="gate", bytes=d.tokens * d.shared_ffn * b),)}
    return kept
