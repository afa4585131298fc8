"""The model families that planner reads from a Hub config.json: one row each.

A row says which values of `model_type` and `architectures` mean it, what its class fixes (norms, biases, gating, positions) and the
class defaults of keys that files leave out. Source: transformers 5.24 configuration and modelling files, counted on the meta device;
qwen, baichuan, chatglm and internlm2: the makers' modelling files. To add a family, add a row (and a quirk if a key has a meaning of its own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cost_models.hub import quirks as q

BOTH = ("qkv_bias", "attn_out_bias")
QKV = ("qkv_bias",)
MLP = ("mlp_bias",)
EVERY = ("qkv_bias", "attn_out_bias", "mlp_bias")

LAYER_NORM: Mapping[str, object] = {"norm": "layer", "norm_bias": True}
ALL_BIASES: Mapping[str, object] = {"qkv_bias": True, "attn_out_bias": True, "mlp_bias": True}
GPT: Mapping[str, object] = {**LAYER_NORM, **ALL_BIASES, "gated_mlp": False}
LLAMA_SWITCHES: Mapping[str, tuple[bool, tuple[str, ...]]] = {"attention_bias": (False, BOTH), "mlp_bias": (False, MLP)}
ATTENTION_SWITCH: Mapping[str, tuple[bool, tuple[str, ...]]] = {"attention_bias": (False, BOTH)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How a class uses a sliding window."""

    default: int | None = None
    """Width where the file has no `sliding_window` key."""
    every: int = 0
    """Every n-th layer attends to all; 0: every layer slides."""
    switched: bool = False
    """Only with `use_sliding_window` true."""
    key: str = "sliding_window"
    full_first: int | None = None
    """Class default of `max_window_layers`: layers before it attend to all; None: the class has no such key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family: names, fixed facts, class defaults."""

    name: str
    """`Architecture.family`."""
    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    tied: bool = False
    activation: str = "silu"
    switches: Mapping[str, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)
    """Boolean key -> its class default and the bias fields it turns on."""
    kv_heads: int | None = None
    """Class default; None: as many as heads."""
    head_dim: int | None = None
    """Class default; None: hidden / heads."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Class defaults of sizes that real files of this family leave out."""
    ffn_factor: int | None = None
    """MLP width = this × hidden where the file gives none."""
    positions_extra: int = 0
    """Rows of the learned position table beyond the stated positions."""
    window: Window | None = None
    quirk: q.Quirk | None = None


GEMMA3_SIZES = {"layers": 26, "hidden": 2304, "ffn_hidden": 9216, "heads": 8, "vocab": 262208}
LLAMA4_SIZES = {"layers": 48, "hidden": 5120, "ffn_hidden": 8192, "heads": 40, "vocab": 202048}
QWEN_WINDOW = Window(default=4096, switched=True, full_first=28)

FAMILIES: tuple[Family, ...] = (
    Family(name="llama", model_types=("llama", "Yi", "yi"), classes=("LlamaForCausalLM", "YiForCausalLM"), switches=LLAMA_SWITCHES),
    Family(
        name="mistral",
        model_types=("mistral",),
        classes=("MistralForCausalLM",),
        kv_heads=8,
        window=Window(default=4096),
    ),
    Family(name="ministral3", model_types=("ministral3",), classes=("Ministral3ForCausalLM",), kv_heads=8, head_dim=128, window=Window()),
    Family(
        name="mixtral",
        model_types=("mixtral",),
        classes=("MixtralForCausalLM",),
        kv_heads=8,
        window=Window(),
        quirk=q.all_experts,
    ),
    Family(
        name="qwen2",
        model_types=("qwen2",),
        classes=("Qwen2ForCausalLM",),
        facts={"qkv_bias": True},
        window=QWEN_WINDOW,
    ),
    Family(
        name="qwen2_moe",
        model_types=("qwen2_moe",),
        classes=("Qwen2MoeForCausalLM",),
        switches={"qkv_bias": (True, QKV)},
        window=QWEN_WINDOW,
        quirk=q.qwen2_moe,
    ),
    Family(
        name="qwen3",
        model_types=("qwen3",),
        classes=("Qwen3ForCausalLM",),
        facts={"qk_norm": "head"},
        switches=ATTENTION_SWITCH,
        head_dim=128,
        window=QWEN_WINDOW,
    ),
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        classes=("Qwen3MoeForCausalLM",),
        facts={"qk_norm": "head"},
        switches=ATTENTION_SWITCH,
        kv_heads=4,
        window=Window(default=4096, switched=True),
        quirk=q.qwen3_moe,
    ),
    Family(
        name="gemma",
        model_types=("gemma",),
        classes=("GemmaForCausalLM",),
        tied=True,
        activation="gelu_pytorch_tanh",
        switches=ATTENTION_SWITCH,
        kv_heads=16,
        head_dim=256,
    ),
    Family(
        name="gemma2",
        model_types=("gemma2",),
        classes=("Gemma2ForCausalLM",),
        facts={"norms_per_layer": 4},
        tied=True,
        activation="gelu_pytorch_tanh",
        switches=ATTENTION_SWITCH,
        kv_heads=4,
        head_dim=256,
        window=Window(default=4096, every=2),
        quirk=q.softcaps,
    ),
    Family(
        name="gemma3",
        model_types=("gemma3_text",),
        classes=("Gemma3ForCausalLM",),
        facts={"norms_per_layer": 4, "qk_norm": "head"},
        tied=True,
        activation="gelu_pytorch_tanh",
        switches=ATTENTION_SWITCH,
        kv_heads=4,
        head_dim=256,
        sizes=GEMMA3_SIZES,
        window=Window(default=4096, every=6),
        quirk=q.gemma3,
    ),
    Family(
        name="vaultgemma",
        model_types=("vaultgemma",),
        classes=("VaultGemmaForCausalLM",),
        tied=True,
        activation="gelu_pytorch_tanh",
        switches=ATTENTION_SWITCH,
        kv_heads=4,
        head_dim=256,
        window=Window(default=4096, every=2),
        quirk=q.softcaps,
    ),
    Family(
        name="phi",
        model_types=("phi",),
        classes=("PhiForCausalLM",),
        facts={**GPT, "norms_per_layer": 1, "parallel_block": True, "lm_head_bias": True},
        activation="gelu_new",
        quirk=q.phi,
    ),
    Family(name="phi3", model_types=("phi3",), classes=("Phi3ForCausalLM",), window=Window()),
    Family(
        name="phimoe",
        model_types=("phimoe",),
        classes=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
        facts=LAYER_NORM,
        switches={"attention_bias": (False, BOTH), "lm_head_bias": (False, ("lm_head_bias",))},
        kv_heads=8,
        window=Window(),
        quirk=q.all_experts,
    ),
    Family(
        name="gpt2",
        model_types=("gpt2",),
        classes=("GPT2LMHeadModel",),
        facts={**GPT, "positional": "learned"},
        tied=True,
        activation="gelu_new",
        ffn_factor=4,
        sizes={"max_positions": 1024},
    ),
    Family(
        name="gpt_bigcode",
        model_types=("gpt_bigcode",),
        classes=("GPTBigCodeForCausalLM", "GPTBigCodeLMHeadModel"),
        facts={**GPT, "positional": "learned"},
        tied=True,
        activation="gelu_pytorch_tanh",
        ffn_factor=4,
        sizes={"max_positions": 1024},
        quirk=q.bigcode,
    ),
    Family(
        name="gpt_neo",
        model_types=("gpt_neo",),
        classes=("GPTNeoForCausalLM",),
        facts={**GPT, "qkv_bias": False, "positional": "learned"},
        tied=True,
        activation="gelu_new",
        ffn_factor=4,
        sizes={"max_positions": 2048},
        quirk=q.gpt_neo,
    ),
    Family(
        name="gptj",
        model_types=("gptj", "codegen"),
        classes=("GPTJForCausalLM", "CodeGenForCausalLM"),
        facts={**LAYER_NORM, "gated_mlp": False, "mlp_bias": True, "norms_per_layer": 1, "parallel_block": True, "lm_head_bias": True},
        activation="gelu_new",
        ffn_factor=4,
    ),
    Family(
        name="gpt_neox",
        model_types=("gpt_neox",),
        classes=("GPTNeoXForCausalLM",),
        facts={**LAYER_NORM, "gated_mlp": False, "mlp_bias": True},
        activation="gelu",
        switches={"attention_bias": (True, BOTH)},
        quirk=q.parallel("use_parallel_residual", True, 2),
    ),
    Family(
        name="opt",
        model_types=("opt",),
        classes=("OPTForCausalLM",),
        facts={**LAYER_NORM, "gated_mlp": False, "positional": "learned"},
        tied=True,
        activation="relu",
        switches={"enable_bias": (True, EVERY)},
        sizes={"max_positions": 2048},
        positions_extra=2,
        quirk=q.opt,
    ),
    Family(
        name="bloom",
        model_types=("bloom",),
        classes=("BloomForCausalLM",),
        facts={**GPT, "positional": "alibi", "embedding_norm": True},
        tied=True,
        activation="gelu",
        ffn_factor=4,
    ),
    Family(
        name="falcon",
        model_types=("falcon", "RefinedWeb", "RefinedWebModel"),
        classes=("FalconForCausalLM", "RWForCausalLM"),
        facts={**LAYER_NORM, "gated_mlp": False},
        tied=True,
        activation="gelu",
        switches={"bias": (False, EVERY)},
        ffn_factor=4,
        sizes={"max_positions": 2048},
        quirk=q.falcon,
    ),
    Family(
        name="mpt",
        model_types=("mpt",),
        classes=("MptForCausalLM", "MPTForCausalLM"),
        facts={"norm": "layer", "gated_mlp": False, "positional": "alibi"},
        tied=True,
        activation="gelu",
        ffn_factor=4,
        quirk=q.mpt,
    ),
    Family(
        name="starcoder2",
        model_types=("starcoder2",),
        classes=("Starcoder2ForCausalLM",),
        facts={**LAYER_NORM, "gated_mlp": False},
        tied=True,
        activation="gelu_pytorch_tanh",
        switches={"use_bias": (True, EVERY)},
        kv_heads=2,
        window=Window(),
    ),
    Family(
        name="stablelm",
        model_types=("stablelm",),
        classes=("StableLmForCausalLM",),
        facts=LAYER_NORM,
        switches={"use_qkv_bias": (False, QKV)},
        quirk=q.both(q.parallel("use_parallel_residual", False, 1), q.full_norm("qk_layernorm")),
    ),
    Family(
        name="cohere",
        model_types=("cohere",),
        classes=("CohereForCausalLM",),
        facts={"norm": "layer", "norms_per_layer": 1, "parallel_block": True},
        tied=True,
        switches=ATTENTION_SWITCH,
        quirk=q.full_norm("use_qk_norm"),
    ),
    Family(
        name="cohere2",
        model_types=("cohere2",),
        classes=("Cohere2ForCausalLM",),
        facts={"norm": "layer", "norms_per_layer": 1, "parallel_block": True},
        tied=True,
        switches=ATTENTION_SWITCH,
        window=Window(default=4096, every=4),
    ),
    Family(
        name="nemotron",
        model_types=("nemotron",),
        classes=("NemotronForCausalLM",),
        facts={**LAYER_NORM, "gated_mlp": False},
        activation="relu2",
        switches=LLAMA_SWITCHES,
    ),
    Family(name="deepseek", model_types=("deepseek_v2",), classes=("DeepseekV2ForCausalLM",), quirk=q.deepseek_v2),
    Family(name="deepseek", model_types=("deepseek_v3",), classes=("DeepseekV3ForCausalLM",), quirk=q.deepseek_v3),
    Family(name="glm4_moe_lite", model_types=("glm4_moe_lite",), classes=("Glm4MoeLiteForCausalLM",), quirk=q.glm4_moe_lite),
    Family(
        name="glm",
        model_types=("glm",),
        classes=("GlmForCausalLM",),
        switches={"attention_bias": (True, QKV)},
        kv_heads=2,
        head_dim=128,
    ),
    Family(
        name="glm4",
        model_types=("glm4",),
        classes=("Glm4ForCausalLM",),
        facts={"norms_per_layer": 4},
        switches={"attention_bias": (True, QKV)},
        kv_heads=2,
        head_dim=128,
    ),
    Family(
        name="glm4_moe",
        model_types=("glm4_moe",),
        classes=("Glm4MoeForCausalLM",),
        switches={"attention_bias": (False, QKV)},
        kv_heads=8,
        quirk=q.both(q.glm4_moe, q.head_norm("use_qk_norm", False)),
    ),
    Family(
        name="dots1",
        model_types=("dots1",),
        classes=("Dots1ForCausalLM",),
        facts={"qk_norm": "head"},
        switches=ATTENTION_SWITCH,
        kv_heads=32,
        window=Window(default=4096, full_first=62),
        quirk=q.dots1,
    ),
    Family(name="smollm3", model_types=("smollm3",), classes=("SmolLM3ForCausalLM",), tied=True, switches=LLAMA_SWITCHES, kv_heads=4),
    Family(
        name="olmo2",
        model_types=("olmo2",),
        classes=("Olmo2ForCausalLM",),
        facts={"qk_norm": "full"},
        switches=ATTENTION_SWITCH,
    ),
    Family(
        name="olmo3",
        model_types=("olmo3",),
        classes=("Olmo3ForCausalLM",),
        facts={"qk_norm": "full"},
        switches=ATTENTION_SWITCH,
        window=Window(default=4096, every=4),
    ),
    Family(
        name="olmoe",
        model_types=("olmoe",),
        classes=("OlmoeForCausalLM",),
        facts={"qk_norm": "full"},
        switches=ATTENTION_SWITCH,
        quirk=q.all_experts,
    ),
    Family(
        name="minimax_m2",
        model_types=("minimax_m2",),
        classes=("MiniMaxM2ForCausalLM",),
        facts={"qk_norm": "full"},
        kv_heads=8,
        head_dim=128,
        quirk=q.scored_experts,
    ),
    Family(name="granite", model_types=("granite",), classes=("GraniteForCausalLM",), switches=LLAMA_SWITCHES),
    Family(
        name="granitemoe",
        model_types=("granitemoe",),
        classes=("GraniteMoeForCausalLM",),
        switches=ATTENTION_SWITCH,
        quirk=q.all_experts,
    ),
    Family(
        name="granitemoeshared",
        model_types=("granitemoeshared",),
        classes=("GraniteMoeSharedForCausalLM",),
        switches=ATTENTION_SWITCH,
        quirk=q.granite_shared,
    ),
    Family(
        name="seed_oss",
        model_types=("seed_oss",),
        classes=("SeedOssForCausalLM",),
        switches={"attention_bias": (True, QKV), "attention_out_bias": (False, ("attn_out_bias",)), "mlp_bias": (False, MLP)},
        kv_heads=8,
        head_dim=128,
    ),
    Family(
        name="ernie4_5",
        model_types=("ernie4_5",),
        classes=("Ernie4_5ForCausalLM",),
        tied=True,
        switches={"use_bias": (False, EVERY)},
        kv_heads=2,
        head_dim=128,
    ),
    Family(
        name="exaone4",
        model_types=("exaone4",),
        classes=("Exaone4ForCausalLM",),
        facts={"qk_norm": "head"},
        kv_heads=32,
        window=Window(default=4096, every=4),
    ),
    Family(
        name="hunyuan_v1_dense",
        model_types=("hunyuan_v1_dense",),
        classes=("HunYuanDenseV1ForCausalLM",),
        facts={"qk_norm": "head"},
        switches=ATTENTION_SWITCH,
    ),
    Family(
        name="arcee",
        model_types=("arcee",),
        classes=("ArceeForCausalLM",),
        facts={"gated_mlp": False},
        activation="relu2",
        switches=LLAMA_SWITCHES,
    ),
    Family(
        name="gpt_oss",
        model_types=("gpt_oss",),
        classes=("GptOssForCausalLM",),
        facts={"attn_sinks": True, "mlp_bias": True},
        switches={"attention_bias": (True, BOTH)},
        kv_heads=8,
        head_dim=64,
        window=Window(default=128, every=2),
        quirk=q.gpt_oss,
    ),
    Family(
        name="llama4",
        model_types=("llama4_text",),
        classes=("Llama4ForCausalLM",),
        switches=ATTENTION_SWITCH,
        kv_heads=8,
        head_dim=128,
        sizes=LLAMA4_SIZES,
        window=Window(default=8192, every=4, key="attention_chunk_size"),
        quirk=q.llama4,
    ),
    Family(
        name="dbrx",
        model_types=("dbrx",),
        classes=("DbrxForCausalLM",),
        facts={"norm": "layer"},
        ffn_factor=1,
        quirk=q.dbrx,
    ),
    Family(name="internlm2", model_types=("internlm2",), classes=("InternLM2ForCausalLM",), switches={"bias": (True, BOTH)}),
    Family(
        name="baichuan",
        model_types=("baichuan",),
        classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
        quirk=q.baichuan,
    ),
    Family(
        name="chatglm",
        model_types=("chatglm",),
        classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
        quirk=q.chatglm,
    ),
    Family(
        name="qwen",
        model_types=("qwen",),
        classes=("QWenLMHeadModel",),
        facts={"qkv_bias": True},
        quirk=q.qwen1,
    ),
)

WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "kimi_k25": "deepseek_v3",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Multimodal model_type -> the family of its `text_config` where that does not say one."""

WRAPPER_CLASSES: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma3",
    "Llama4ForConditionalGeneration": "llama4",
    "Mistral3ForConditionalGeneration": "mistral3",
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
}

BY_TYPE: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.model_types}
BY_CLASS: Mapping[str, Family] = {name: family for family in FAMILIES for name in family.classes}
