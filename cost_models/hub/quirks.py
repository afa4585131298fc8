"""What single families do with their keys beyond the table in families.py: expert layers, latent attention, odd switches.

Each function takes the keys and the fields read so far and changes the fields. Sources: transformers 5.24 `modeling_*.py` and
`configuration_*.py`, and for qwen, baichuan and chatglm the makers' own modelling files on the Hub.
"""

from __future__ import annotations

from collections.abc import Callable

from cost_models.hub.keys import Keys
from cost_models.model_laws import shown

Fields = dict[str, object]
Quirk = Callable[[Keys, Fields], None]

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
TOPK = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")


def whole(fields: Fields, key: str) -> int:
    """Return a size that was read before."""
    value = fields[key]
    assert isinstance(value, int)
    return value


def _experts(keys: Keys, fields: Fields, width: int, **more: object) -> None:
    fields["moe"] = {
        "num_experts": keys.size("num_experts", *EXPERTS),
        "topk": keys.size("topk", *TOPK),
        "moe_ffn_hidden": width,
        **more,
    }


def all_experts(keys: Keys, fields: Fields) -> None:
    """Mixtral, PhiMoE, OLMoE, GraniteMoE: every layer is MoE and `intermediate_size` is the width of one expert."""
    _experts(keys, fields, whole(fields, "ffn_hidden"))


def scored_experts(keys: Keys, fields: Fields) -> None:
    """MiniMax-M2: as Mixtral, with a correction bias (a buffer) on the router's scores."""
    _experts(keys, fields, whole(fields, "ffn_hidden"), score_correction_bias=True)


def granite_shared(keys: Keys, fields: Fields) -> None:
    """GraniteMoeShared: one shared MLP beside the experts where `shared_intermediate_size` is above 0."""
    shared = keys.size("shared_ffn_hidden", "shared_intermediate_size", default=0, minimum=0)
    _experts(keys, fields, whole(fields, "ffn_hidden"), shared_experts=int(shared > 0), shared_ffn_hidden=shared)


def gpt_oss(keys: Keys, fields: Fields) -> None:
    """Experts and router carry biases; the width of an expert is `intermediate_size`."""
    _experts(keys, fields, whole(fields, "ffn_hidden"), router_bias=True, expert_bias=True)


def qwen2_moe(keys: Keys, fields: Fields) -> None:
    """Qwen1.5-MoE and Qwen2-MoE: one gated shared expert of its own width."""
    shared = keys.size("shared_ffn_hidden", "shared_expert_intermediate_size")
    _sparse(keys, fields, shared_experts=1, shared_ffn_hidden=shared, shared_gate=True)


def qwen3_moe(keys: Keys, fields: Fields) -> None:
    """Qwen3-MoE: no shared expert."""
    _sparse(keys, fields)


def _sparse(keys: Keys, fields: Fields, **more: object) -> None:
    step = keys.size("layer_freq", "decoder_sparse_step", default=1)
    dense = sorted(keys.items("mlp_only_layers") or [], key=str)
    if dense and (step != 1 or dense != list(range(len(dense)))):
        keys.problem(f"mlp_only_layers = {shown(dense)} with decoder_sparse_step = {step}: planner knows dense layers only at the front")
    _experts(keys, fields, keys.size("moe_ffn_hidden", "moe_intermediate_size"), first_k_dense=len(dense), layer_freq=step, **more)


def deepseek_v2(keys: Keys, fields: Fields) -> None:
    """MLA and shared experts."""
    latent_attention(keys, fields)
    _deepseek_experts(keys, fields, corrected=False, dense_default=0)


def deepseek_v3(keys: Keys, fields: Fields) -> None:
    """As V2, with the router's correction bias (a buffer)."""
    latent_attention(keys, fields)
    _deepseek_experts(keys, fields, corrected=True, dense_default=3)


def glm4_moe(keys: Keys, fields: Fields) -> None:
    """GLM-4.5: DeepSeek-V3's experts on grouped-query attention."""
    _deepseek_experts(keys, fields, corrected=True, dense_default=1)


def dots1(keys: Keys, fields: Fields) -> None:
    """dots.llm1: as GLM-4.5, but no dense layer unless stated."""
    _deepseek_experts(keys, fields, corrected=True, dense_default=0)


def glm4_moe_lite(keys: Keys, fields: Fields) -> None:
    """GLM-4.7-Flash: MLA; which layers are dense stands in `mlp_layer_types`, or in `first_k_dense_replace` of older files."""
    latent_attention(keys, fields)
    kinds = keys.items("mlp_layer_types")
    if kinds is not None:
        front = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
        if any(kind != "sparse" for kind in kinds[front:]):
            keys.problem("mlp_layer_types: planner knows dense layers only at the front")
        keys = keys.replaced({"first_k_dense_replace": front})
    _deepseek_experts(keys, fields, corrected=True, dense_default=1)


def latent_attention(keys: Keys, fields: Fields) -> None:
    """MLA: queries and keys are nope + rope wide; `q_lora_rank` null means a plain query projection."""
    if keys.flag("attention_bias", False):
        keys.problem("attention_bias = true: planner knows latent attention without biases only")
    if not keys.has("q_lora_rank"):
        keys.problem("q_lora_rank is missing (null means none)")
    nope = keys.size("qk_nope_head_dim", "qk_nope_head_dim")
    rope = keys.size("qk_rope_head_dim", "qk_rope_head_dim")
    fields["mla"] = {
        "q_lora_rank": keys.optional_size("q_lora_rank", "q_lora_rank"),
        "kv_lora_rank": keys.size("kv_lora_rank", "kv_lora_rank"),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": keys.size("v_head_dim", "v_head_dim"),
    }
    fields["head_dim"] = nope + rope
    fields["kv_heads"] = fields["heads"]


def _deepseek_experts(keys: Keys, fields: Fields, *, corrected: bool, dense_default: int) -> None:
    fields["mtp_layers"] = keys.size("mtp_layers", "num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0)
    if keys.get(*EXPERTS) is None:
        return
    if keys.size("layer_freq", "moe_layer_freq", default=1) != 1:
        keys.problem(f"moe_layer_freq = {keys.get('moe_layer_freq')}: planner knows 1 only")
    shared = keys.size("shared_experts", "n_shared_experts", default=0, minimum=0)
    width = keys.size("moe_ffn_hidden", "moe_intermediate_size")
    if not keys.has("first_k_dense_replace"):
        keys.assumed.append(f"first_k_dense_replace {dense_default}, the default of its class")
    _experts(
        keys,
        fields,
        width,
        shared_experts=shared,
        shared_ffn_hidden=shared * width,
        first_k_dense=keys.size("first_k_dense", "first_k_dense_replace", default=dense_default, minimum=0),
        score_correction_bias=corrected,
    )


def llama4(keys: Keys, fields: Fields) -> None:
    """`intermediate_size` is the width of experts and of the shared expert; dense layers use `intermediate_size_mlp`."""
    width = whole(fields, "ffn_hidden")
    fields["ffn_hidden"] = keys.size("ffn_hidden", "intermediate_size_mlp", default=16384)
    step = keys.size("layer_freq", "interleave_moe_layer_step", default=1)
    layers = whole(fields, "layers")
    moe_layers = keys.items("moe_layers")
    if moe_layers and list(moe_layers) != list(range(step - 1, layers, step)):
        keys.problem(f"moe_layers = {shown(moe_layers)} is not every {step}-th layer, which is what planner knows")
    experts = {"num_local_experts": 16, "num_experts_per_tok": 1}
    given = {key: value for key, value in keys.values.items() if value is not None}
    _experts(keys.replaced({**experts, **given}), fields, width, layer_freq=step, shared_experts=1, shared_ffn_hidden=width)
    if keys.flag("use_qk_norm", True):
        fields["qk_norm"] = "l2"


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


def both(*quirks: Quirk) -> Quirk:
    """Return a quirk that applies several in order."""

    def quirk(keys: Keys, fields: Fields) -> None:
        for one in quirks:
            one(keys, fields)

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


def dbrx(keys: Keys, fields: Fields) -> None:
    """DBRX keeps its attention and expert sizes in two inner objects."""
    attention, experts = keys.part("attn_config"), keys.part("ffn_config")
    if attention is None or experts is None:
        keys.problem("attn_config and ffn_config must be objects")
        return
    width = experts.size("moe_ffn_hidden", "ffn_hidden_size")
    fields["kv_heads"] = attention.size("kv_heads", "kv_n_heads")
    fields["ffn_hidden"] = width
    fields["moe"] = {
        "num_experts": experts.size("num_experts", "moe_num_experts"),
        "topk": experts.size("topk", "moe_top_k"),
        "moe_ffn_hidden": width,
    }
