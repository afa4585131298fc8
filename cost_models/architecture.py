"""The shape of a large language model: what its configuration states, and nothing about how it is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Norm = Literal["rms", "layer"]
QkNorm = Literal["none", "head", "full", "l2"]
Positional = Literal["rope", "learned", "alibi", "none"]


class Shape(BaseModel):
    """Base of the architecture records: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Moe(Shape):
    """Mixture-of-experts part of the layers that have one."""

    num_experts: int = Field(gt=0)
    topk: int = Field(gt=0)
    moe_ffn_hidden: int = Field(gt=0)
    """Width of one routed expert."""
    shared_experts: int = 0
    shared_ffn_hidden: int = 0
    """Width of all shared experts together (they are one MLP)."""
    first_k_dense: int = 0
    """Leading layers that keep a dense MLP of width `ffn_hidden`."""
    layer_freq: int = Field(default=1, gt=0)
    """After the dense prefix every `layer_freq`-th layer is MoE (the last of each group, as Llama 4 has it)."""
    groups: int = Field(default=1, gt=0)
    """Groups of experts of which a token chooses `topk_groups` first (group-limited routing); 1: none."""
    topk_groups: int = Field(default=1, gt=0)
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    """Qwen2-MoE's h -> 1 gate on the shared expert."""
    score_correction_bias: bool = False
    """A buffer (not trained, not counted) of `num_experts` values per MoE layer."""


class Mla(Shape):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora_rank: int | None = None
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)


class Architecture(Shape):
    """A decoder-only language model. Widths are elements, counts are integers; no bytes here."""

    id: str
    aliases: tuple[str, ...] = ()
    family: str
    """Which implementation quirks apply (llama, gpt2, qwen3, gemma2, deepseek, …)."""
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    ffn_hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    """Width of one head; with MLA the width of one query and key head (nope + rope)."""
    vocab: int = Field(gt=0)
    tied_embeddings: bool = False
    gated_mlp: bool = True
    activation: str = "silu"
    norm: Norm = "rms"
    norm_bias: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: QkNorm = "none"
    """`head`: 2 weights of head_dim; `full`: weights over all heads; `l2`: without weights."""
    qk_norm_weights: int = 0
    """Elements of the q/k norm weights of one layer."""
    qkv_bias: bool = False
    attn_out_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    positional: Positional = "rope"
    learned_positions: int = 0
    """Rows of a learned position table, OPT's two extra rows included; 0 without one."""
    max_positions: int | None = None
    parallel_block: bool = False
    embed_proj_dim: int | None = None
    """Width of the token embedding where it differs from `hidden` (OPT-350M)."""
    attn_sinks: bool = False
    sliding_window: int | None = None
    full_attention_every: int = 0
    """With a sliding window: every n-th layer attends to all (Gemma 3: 6, Gemma 2 and gpt-oss: 2); 0: every layer slides."""
    attn_softcap: bool = False
    final_softcap: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    mtp_layers: int = 0
    """Multi-token-prediction modules; they stand apart from `parameters`."""
    vision_parameters: int = 0
    """Parameters of a vision tower, which is not planned."""
    source: str = ""
    notes: str = ""

    def is_moe_layer(self, index: int) -> bool:
        """Tell whether layer `index` (from 0) has routed experts."""
        if self.moe is None or index < self.moe.first_k_dense:
            return False
        return (index - self.moe.first_k_dense + 1) % self.moe.layer_freq == 0

    def is_sliding_layer(self, index: int) -> bool:
        """Tell whether layer `index` (from 0) attends to a window only."""
        if self.sliding_window is None:
            return False
        return self.full_attention_every == 0 or (index + 1) % self.full_attention_every != 0
