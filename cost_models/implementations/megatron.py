"""Fused Megatron / Transformer Engine layers (first version; the memory wing refines it)."""

from __future__ import annotations

from cost_models.architecture import Architecture
from cost_models.blocks.dims import Dims
from cost_models.implementations import Kept
from cost_models.layout import Choices
from cost_models.op import Saved
from cost_models.training import Training


def attention(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Norm input, qkv input, q, k, v, output and log-sum-exp."""
    h, b = d.hidden, d.act_bytes
    return {
        "norm": (Saved(name="norm_input", bytes=d.sp_tokens * h * b, modules=("layernorm",)),),
        "qkv": (Saved(name="input", bytes=d.sp_tokens * h * d.linear_bytes),),
        "core": (
            Saved(name="qkv", bytes=d.tokens * (d.heads + 2.0 * d.kv_heads) * d.qk_dim * b, modules=()),
            Saved(name="output", bytes=d.tokens * d.heads * d.v_dim * b),
            Saved(name="logsumexp", bytes=d.tokens * d.heads * 4.0, modules=("core_attn",)),
        ),
    }


def mla(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """As attention."""
    return attention(architecture, training, d, choices, sliding=sliding)


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Norm input, linear inputs and pre-activations."""
    gates = 2.0 if architecture.gated_mlp else 1.0
    return {
        "norm": (Saved(name="norm_input", bytes=d.sp_tokens * d.hidden * d.act_bytes, modules=("layernorm",)),),
        "up": (Saved(name="input", bytes=d.sp_tokens * d.hidden * d.linear_bytes, modules=("mlp",)),),
        "activation": (Saved(name="pre_activation", bytes=d.tokens * gates * d.ffn * d.act_bytes, modules=("mlp",)),),
        "down": (Saved(name="input", bytes=d.tokens * d.ffn * d.linear_bytes, modules=("mlp",)),),
    }


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Permuted inputs, pre-activations and products of the routed experts."""
    gates = 2.0 if architecture.gated_mlp else 1.0
    return {
        "norm": (Saved(name="norm_input", bytes=d.sp_tokens * d.hidden * d.act_bytes, modules=("layernorm",)),),
        "up": (Saved(name="input", bytes=d.routed_tokens * d.hidden * d.linear_bytes, modules=("moe",)),),
        "activation": (Saved(name="pre_activation", bytes=d.routed_tokens * gates * d.expert_ffn * d.act_bytes, modules=("moe", "moe_act")),),
        "down": (Saved(name="input", bytes=d.routed_tokens * d.expert_ffn * d.linear_bytes, modules=("moe",)),),
    }


def embedding(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Token ids only."""
    return {}


def head(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Norm input, head input and the softmax of the loss."""
    return {
        "norm": (Saved(name="norm_input", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
        "logits": (Saved(name="input", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
        "loss": (Saved(name="softmax", bytes=d.tokens * d.vocab * 4.0),),
    }
