"""The closed form of parameter counts for all families: a second implementation that shares no code with the blocks.

total  = V e [+ 2 e h if e != h] + P h + n(h) [embedding norm] + sum over layers + n(h) [final norm] + (0 if tied else V e) [+ V head bias]
layer  = attention + norms + (dense MLP | router + shared + E experts)
active = the same with k experts instead of E
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cost_models.architecture import Architecture


@dataclass(frozen=True)
class Totals:
    """Exact counts."""

    total: int
    active: int
    active_without_token_embedding: int
    mtp: int


def closed_form(a: Architecture) -> Totals:
    """Return the counts of `a`."""
    norm = a.hidden * (1 + a.norm_bias)
    width = a.embed_proj_dim or a.hidden
    tokens = a.vocab * width
    fixed = tokens + (2 * width * a.hidden if width != a.hidden else 0) + a.learned_positions * a.hidden
    fixed += norm * (a.embedding_norm + a.final_norm) + (0 if a.tied_embeddings else tokens) + a.lm_head_bias * a.vocab
    counts = []
    for experts in ("num_experts", "topk"):
        layers = sum(_attention(a) + a.norms_per_layer * norm + _feed_forward(a, index, experts) for index in range(a.layers))
        counts.append(fixed + layers)
    last = _attention(a) + a.norms_per_layer * norm + _feed_forward(a, a.layers - 1, "num_experts")
    return Totals(
        total=counts[0],
        active=counts[1],
        active_without_token_embedding=counts[1] - (0 if a.tied_embeddings else tokens),
        mtp=a.mtp_layers * (last + 2 * a.hidden * a.hidden + 3 * norm),
    )


def _attention(a: Architecture) -> int:
    h, heads = a.hidden, a.heads
    if a.mla is not None:
        m = a.mla
        query = heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
        q = h * query if m.q_lora_rank is None else h * m.q_lora_rank + m.q_lora_rank + m.q_lora_rank * query
        kv = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank + m.kv_lora_rank * heads * (m.qk_nope_head_dim + m.v_head_dim)
        return q + kv + heads * m.v_head_dim * h
    qkv = a.head_dim * (heads + 2 * a.kv_heads)
    count = h * qkv + heads * a.head_dim * h + a.qkv_bias * qkv + a.attn_out_bias * h + a.attn_sinks * heads
    per_head = {"none": 0, "l2": 0, "head": 2 * a.head_dim, "full": (heads + a.kv_heads) * a.head_dim}[a.qk_norm]
    return count + max(per_head, a.qk_norm_weights)


def _feed_forward(a: Architecture, index: int, experts: str) -> int:
    h = a.hidden
    if a.moe is None or index < a.moe.first_k_dense or (index - a.moe.first_k_dense + 1) % a.moe.layer_freq:
        up = 2 if a.gated_mlp else 1
        return (up + 1) * h * a.ffn_hidden + a.mlp_bias * (up * a.ffn_hidden + h)
    m = a.moe
    up = 2 if a.gated_mlp else 1
    one = (up + 1) * h * m.moe_ffn_hidden + m.expert_bias * (up * m.moe_ffn_hidden + h)
    shared_bias = a.mlp_bias * (up * m.shared_ffn_hidden + h) if m.shared_ffn_hidden else 0
    router = h * m.num_experts + m.router_bias * m.num_experts
    return router + getattr(m, experts) * one + (up + 1) * h * m.shared_ffn_hidden + m.shared_gate * h + shared_bias
