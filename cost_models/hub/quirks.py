"""What single families do with their keys beyond families.toml: switches and sizes with a meaning of their own.

Each function takes the keys and the fields read so far and changes the fields. Sources: transformers 5.24.0 modelling and
configuration files, and for qwen, baichuan and chatglm the makers' own modelling files on the Hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cost_models.hub import experts
from cost_models.hub.experts import Fields, whole
from cost_models.model_laws import shown

if TYPE_CHECKING:
    from cost_models.hub.keys import Keys

Quirk = Callable[["Keys", Fields], None]


def head_norm(switch: str, default: bool) -> Quirk:
    """Return a quirk: per-head q/k norm where `switch` is true."""

    def quirk(keys: Keys, fields: Fields) -> None:
        if keys.flag(switch, default):
            fields["qk_norm"] = "head"

    return quirk


def full_norm(switch: str) -> Quirk:
    """Return a quirk: q/k norm with weights over all heads where `switch` is true (Command-R+, StableLM-2-12B)."""

    def quirk(keys: Keys, fields: Fields) -> None:
        if keys.flag(switch, False):
            fields["qk_norm"] = "full"

    return quirk


def parallel(switch: str, default: bool, norms_if_parallel: int) -> Quirk:
    """Return a quirk: attention and MLP run side by side where `switch` is true."""

    def quirk(keys: Keys, fields: Fields) -> None:
        if keys.flag(switch, default):
            fields["parallel_block"] = True
            fields["norms_per_layer"] = norms_if_parallel

    return quirk


def phi(keys: Keys, fields: Fields) -> None:
    """Phi-1 and 2: optional LayerNorms with bias on each head's q and k."""
    if keys.flag("qk_layernorm", False):
        fields["qk_norm"], fields["qk_norm_weights"] = "head", 4 * whole(fields, "head_dim")


def softcaps(keys: Keys, fields: Fields) -> None:
    """Gemma 2: both caps are on unless the file says null."""
    fields["attn_softcap"] = not keys.has("attn_logit_softcapping") or keys.get("attn_logit_softcapping") is not None
    fields["final_softcap"] = not keys.has("final_logit_softcapping") or keys.get("final_logit_softcapping") is not None


def gemma3(keys: Keys, fields: Fields) -> None:
    """Gemma 3 caps only where the file says so; EmbeddingGemma attends both ways and is no decoder."""
    fields["attn_softcap"] = keys.get("attn_logit_softcapping") is not None
    fields["final_softcap"] = keys.get("final_logit_softcapping") is not None
    if keys.flag("use_bidirectional_attention", False):
        keys.problem("use_bidirectional_attention = true: an encoder, planner plans decoders")


def opt(keys: Keys, fields: Fields) -> None:
    """OPT-350M has its norms after the sublayers, no final norm, and a narrower embedding with two projections."""
    fields["final_norm"] = keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm", False)
    width = keys.optional_size("embed_proj_dim", "word_embed_proj_dim")
    fields["embed_proj_dim"] = None if width == fields["hidden"] else width
    if not keys.flag("layer_norm_elementwise_affine", True):
        keys.problem("layer_norm_elementwise_affine = false: planner knows norms with weights only")


def falcon(keys: Keys, fields: Fields) -> None:
    """`num_kv_heads` counts only with the new decoder architecture (or without multi-query), else multi-query means one."""
    new = keys.flag("new_decoder_architecture", False)
    heads = whole(fields, "heads")
    if new or not keys.flag("multi_query", True):
        fields["kv_heads"] = keys.size("kv_heads", "num_kv_heads", "n_head_kv", default=heads)
        if not new and fields["kv_heads"] != heads:
            keys.problem(f"num_kv_heads = {fields['kv_heads']} has no effect without new_decoder_architecture or multi_query")
    else:
        fields["kv_heads"] = 1
    side_by_side = keys.flag("parallel_attn", True)
    fields["parallel_block"] = side_by_side
    in_parallel = keys.size("norms", "num_ln_in_parallel_attn", default=2 if new else 1)
    fields["norms_per_layer"] = in_parallel if side_by_side else 2
    if keys.flag("alibi", False):
        fields["positional"] = "alibi"


def mpt(keys: Keys, fields: Fields) -> None:
    """MPT as transformers builds it: ALiBi, no bias, multi-head; other switches of its training code are refused."""
    if not keys.flag("no_bias", True):
        keys.problem("no_bias = false: planner knows MPT without biases only")
    attention = keys.part("attn_config")
    if attention is not None:
        if not attention.flag("alibi", True):
            attention.problem("alibi = false: planner knows MPT with ALiBi only")
        if attention.flag("qk_ln", False):
            attention.problem("qk_ln = true: planner knows MPT without it only")
        if attention.text("attn_type", default="multihead_attention") != "multihead_attention":
            attention.problem(f"attn_type = {shown(attention.get('attn_type'))}: planner knows multihead_attention only")
    fields["ffn_hidden"] = whole(fields, "hidden") * keys.size("ratio", "expansion_ratio", default=4)


def bigcode(keys: Keys, fields: Fields) -> None:
    """StarCoder 1: one key and value head unless `multi_query` is false."""
    fields["kv_heads"] = 1 if keys.flag("multi_query", True) else fields["heads"]


def qwen1(keys: Keys, fields: Fields) -> None:
    """Qwen v1 writes twice the real MLP width, and `no_bias` leaves the qkv bias on."""
    written = whole(fields, "ffn_hidden")
    if written % 2:
        keys.problem(f"intermediate_size = {written} must be even: Qwen v1 writes twice the MLP width")
    fields["ffn_hidden"] = written // 2 or 1
    if not keys.flag("no_bias", True):
        keys.problem("no_bias = false: planner knows Qwen v1 with no_bias = true only")


def baichuan(keys: Keys, fields: Fields) -> None:
    """The 13B uses ALiBi and states `model_max_length` alone; the 7B uses rope and states `max_position_embeddings`."""
    if keys.get("max_position_embeddings") is None and keys.get("model_max_length") is not None:
        fields["positional"] = "alibi"


def chatglm(keys: Keys, fields: Fields) -> None:
    """ChatGLM2 and 3; the first ChatGLM has two-dimensional positions and a prefix mask."""
    if keys.has("position_encoding_2d") or keys.has("inner_hidden_size"):
        keys.problem("the first ChatGLM (2D positions, prefix mask) is not described; ChatGLM2 and 3 are")
    heads = whole(fields, "heads")
    fields["kv_heads"] = keys.size("kv_heads", "multi_query_group_num") if keys.flag("multi_query_attention", False) else heads
    fields["norm"] = "rms" if keys.flag("rmsnorm", True) else "layer"
    fields["norm_bias"] = fields["norm"] == "layer"
    fields["final_norm"] = keys.flag("post_layer_norm", True)
    plain = keys.flag("add_bias_linear", False)
    fields["qkv_bias"] = plain or keys.flag("add_qkv_bias", False)
    fields["attn_out_bias"] = fields["mlp_bias"] = plain


def gpt_neo(keys: Keys, fields: Fields) -> None:
    """GPT-Neo: bias on the output projection only; every second layer attends to a window."""
    kinds = keys.items("attention_types")
    if kinds is not None and not (len(kinds) == 1 and isinstance(kinds[0], list) and kinds[0][:1] == [["global", "local"]]):
        keys.problem("attention_types: planner knows alternating global and local layers only")
    fields["sliding_window"] = keys.size("sliding_window", "window_size", default=256)
    fields["full_attention_every"] = 2


QUIRKS: Mapping[str, Quirk] = {
    **{
        one.__name__: one
        for one in (
            experts.all_experts,
            experts.scored_experts,
            experts.granite_shared,
            experts.gpt_oss,
            experts.qwen2_moe,
            experts.qwen3_moe,
            experts.deepseek_v2,
            experts.deepseek_v3,
            experts.glm4_moe,
            experts.dots1,
            experts.glm4_moe_lite,
            experts.llama4,
            experts.dbrx,
        )
    },
    **{one.__name__: one for one in (phi, softcaps, gemma3, opt, falcon, mpt, bigcode, qwen1, baichuan, chatglm, gpt_neo)},
    "glm4_norms": head_norm("use_qk_norm", False),
    "cohere_norms": full_norm("use_qk_norm"),
    "stablelm_norms": full_norm("qk_layernorm"),
    "parallel_neox": parallel("use_parallel_residual", True, 2),
    "parallel_stablelm": parallel("use_parallel_residual", False, 1),
}
"""Names in families.toml -> functions."""
