"""Expert layers and latent attention of a Hub config.json, family by family.

Each public function takes the keys and the fields read so far and changes the fields. Source: transformers 5.24.0 modelling and
configuration files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.model_laws import shown

if TYPE_CHECKING:
    from cost_models.hub.keys import Keys

Fields = dict[str, object]

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
        groups=keys.size("groups", "n_group", default=1),
        topk_groups=keys.size("topk_groups", "topk_group", default=1),
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
