"""Mixture-of-experts and latent-attention parts of a row's architecture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cost_models.architecture import Architecture, Mla, Moe
from planner.runs.frameworks import named_mla

if TYPE_CHECKING:
    from planner.runs.assumed import Assumptions
    from planner.runs.notes import Stated
    from planner.runs.row import Run

DEEPSEEK_V3 = Mla(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
"""DeepSeek-V3's latent attention (arXiv 2412.19437, section 4.2), what an MLA model without stated ranks is taken to have."""


def latent_attention(run: Run, said: Stated, base: Architecture | None, assumed: Assumptions) -> Mla | None:
    """Return the latent attention of a row that has one, None otherwise."""
    inherited = base.mla if base is not None else None
    if not (said.says("mla") or "multi-latent-attention" in said.arguments or inherited is not None):
        return None
    kv_rank = said.argument("kv-lora-rank") or said.integer("kv_lora")
    if kv_rank is None and inherited is not None:
        return inherited
    like = inherited or named_mla(run.model) or DEEPSEEK_V3
    if kv_rank is None:
        assumed.note("mla", f"kv rank {like.kv_lora_rank}, heads {like.qk_nope_head_dim} + {like.qk_rope_head_dim}", "by the model's name")
        return like
    return Mla(
        q_lora_rank=said.argument("q-lora-rank") or said.integer("q_lora"),
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=said.argument("qk-head-dim") or like.qk_nope_head_dim,
        qk_rope_head_dim=said.argument("qk-pos-emb-head-dim") or like.qk_rope_head_dim,
        v_head_dim=said.argument("v-head-dim") or like.v_head_dim,
    )


def mixture(run: Run, said: Stated, base: Architecture | None, values: dict[str, Any], assumed: Assumptions) -> Moe | None:
    """Return the experts of a row that has some; sets `values["ffn_hidden"]` to the width of its dense layers."""
    inherited = base.moe if base is not None else None
    experts = run.experts or (inherited.num_experts if inherited else 1)
    if experts <= 1:
        return None
    topk = run.topk or (inherited.topk if inherited else None)
    if topk is None:
        topk = min(2, experts)
        assumed.note("topk", topk, "two experts a token")
    width = _expert_width(run, said, inherited, values, assumed)
    dense = said.integer("dense_ffn")
    if dense is not None:
        values["ffn_hidden"] = dense
    elif said.says("ffn_is_expert") and base is not None:
        values["ffn_hidden"] = base.ffn_hidden
    shared_width = said.integer("shared_width") or said.argument("moe-shared-expert-intermediate-size")
    shared = said.integer("shared_experts") or (1 if shared_width else 0)
    if shared and shared_width is None:
        same = inherited is not None and inherited.shared_ffn_hidden > 0 and inherited.moe_ffn_hidden == width
        shared_width = inherited.shared_ffn_hidden if same and inherited is not None else shared * width
    if not shared and inherited is not None:
        shared, shared_width = inherited.shared_experts, inherited.shared_ffn_hidden
    kept = ("groups", "topk_groups", "router_bias", "expert_bias", "shared_gate", "score_correction_bias")
    taken = {} if inherited is None else {name: getattr(inherited, name) for name in kept}
    return Moe(
        num_experts=experts,
        topk=min(topk, experts),
        moe_ffn_hidden=width,
        shared_experts=shared,
        shared_ffn_hidden=shared_width or 0,
        first_k_dense=min(_dense_layers(said, inherited), (run.layers or 1) - 1),
        layer_freq=said.integer("layer_freq") or (inherited.layer_freq if inherited else 1),
        **taken,
    )


def _expert_width(run: Run, said: Stated, inherited: Moe | None, values: dict[str, Any], assumed: Assumptions) -> int:
    """Width of one routed expert."""
    stated = said.integer("moe_ffn") or said.argument("moe-ffn-hidden-size")
    if stated is not None:
        return stated
    if said.says("ffn_is_expert") and run.ffn_hidden is not None:
        return run.ffn_hidden
    if inherited is not None:
        return inherited.moe_ffn_hidden
    width = int(values["ffn_hidden"])
    if not said.arguments:
        assumed.note("moe_ffn_hidden", width, "as ffn_hidden")
    return width


def _dense_layers(said: Stated, inherited: Moe | None) -> int:
    """Leading layers without experts."""
    stated = said.integer("dense_layers")
    if stated is not None:
        return stated
    pattern = re.match(r"\(\[0\]\*(\d+)\+", said.arguments.get("moe-layer-freq", ""))
    if pattern:
        return int(pattern.group(1))
    return inherited.first_k_dense if inherited is not None else 0
