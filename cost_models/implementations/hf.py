"""Hugging Face transformers modules run eagerly: every op keeps its own inputs (traced tensor by tensor, tests/published/truth.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.implementations import Kept, per_op
from cost_models.implementations.hf_dense import (
    FUSED_QKV_VIEW,
    Code,
    activation,
    code_of,
    core,
    linear_inputs,
    norm,
    output_held,
    padded_updates,
    qk_norm,
)
from cost_models.numeric import Num, num
from cost_models.op import Saved
from cost_models.stack import resolve

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training


def attention(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Attention block: norms, projections, core, output."""
    if choices.recompute == "selective":
        return per_op.attention(architecture, d)
    c = code_of(architecture, training, d)
    qkv_width = (d.heads + 2.0 * d.kv_heads) * d.qk_dim
    fused = architecture.family in FUSED_QKV_VIEW or c.litgpt
    view = qkv_width if fused and architecture.positional == "rope" else None
    held = output_held(architecture, c, d)
    width = d.heads * d.v_dim
    widths = (d.heads * d.qk_dim, d.kv_heads * d.qk_dim, d.kv_heads * d.qk_dim)
    projections = linear_inputs(c, d.tokens, ("q", "k", "v"), d.hidden, widths, fused=fused)
    return {
        "norm": norm(architecture, d, c, count=1.0 if architecture.norms_per_layer < 4 else 2.0),
        "qkv": (*projections, *padded_updates(c, d.tokens, widths)),
        "rotary": qk_norm(architecture, d, c),
        "core": core(architecture, d, c, sliding=sliding, value_whole=view),
        "out": (*_out_input(c, d.tokens, width, d.hidden, held), *_residual_dropout(c, d), *_prompt_attention(c, d, width)),
    }


def _prompt_attention(c: Code, d: Dims, width: Num) -> tuple[Saved, ...]:
    """LLaMA-Adapter adds an attention over prompts, scaled by a trained gate, whose gradient needs it (litgpt adapter.py)."""
    if c.own_lora or not c.frozen:
        return ()
    return (Saved(name="prompt_attention", bytes=d.tokens * width * c.compute),)


def _out_input(c: Code, tokens: Num, width: Num, hidden: float, held: bool) -> tuple[Saved, ...]:
    return (
        linear_inputs(c, tokens, ("o",), width, (hidden,), held=held) if not (held and c.autocast) else _held_cast(c, width, hidden, tokens)
    )


def _held_cast(c: Code, width: Num, hidden: float, tokens: Num) -> tuple[Saved, ...]:
    return (Saved(name="weight_cast", bytes=width * hidden * c.compute + 0.0 * tokens),)


def _residual_dropout(c: Code, d: Dims) -> tuple[Saved, ...]:
    return (Saved(name="dropout_mask", bytes=d.tokens * d.hidden),) if c.dropout else ()


def mla(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Latent attention: x shared by both down-projections, two latent norms, expanded k, v as a view of kv_b_proj's output."""
    if choices.recompute == "selective":
        return per_op.attention(architecture, d)
    c, m = code_of(architecture, training, d), architecture.mla
    if m is None:
        raise ValueError(f"{architecture.id} has no multi-head latent attention")
    kv, rope = float(m.kv_lora_rank), float(m.qk_rope_head_dim)
    kv_out = d.heads * float(m.qk_nope_head_dim + m.v_head_dim)
    q_out = d.heads * d.qk_dim
    if m.q_lora_rank is None:
        down = linear_inputs(c, d.tokens, ("q", "kv_a"), d.hidden, (q_out, kv + rope))
        up: tuple[Saved, ...] = ()
    else:
        q = float(m.q_lora_rank)
        down = linear_inputs(c, d.tokens, ("q_a", "kv_a"), d.hidden, (q, kv + rope))
        up = (*norm(architecture, d, c, width=q), *linear_inputs(c, d.tokens, ("q_b",), q, (q_out,)))
    latent = (*norm(architecture, d, c, width=kv), *linear_inputs(c, d.tokens, ("kv_b",), kv, (kv_out,)))
    held = output_held(architecture, c, d)
    return {
        "norm": norm(architecture, d, c),
        "qkv_down": down,
        "qkv_up": (*up, *latent),
        "core": core(architecture, d, c, sliding=sliding, value_whole=kv_out),
        "out": _out_input(c, d.tokens, d.heads * d.v_dim, d.hidden, held),
    }


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Dense MLP; a parallel block shares the attention norm's input."""
    if choices.recompute == "selective":
        return per_op.mlp(d)
    c = code_of(architecture, training, d)
    norms = float(architecture.norms_per_layer) - (1.0 if architecture.norms_per_layer < 4 else 2.0)
    kept = feed_forward(architecture, d, c, d.tokens, d.ffn, held=architecture.parallel_block and norms == 0.0)
    kept["norm"] = norm(architecture, d, c, count=norms, shared_input=architecture.parallel_block) if norms else ()
    kept["down"] = (*kept["down"], *_residual_dropout(c, d))
    return kept


def feed_forward(architecture: Architecture, d: Dims, c: Code, tokens: Num, width: Num, *, held: bool = False) -> Kept:
    """Up, activation, down of one MLP."""
    fused = architecture.family in ("phi3", "glm", "glm4", "chatglm")
    ups = ("gate", "up") if architecture.gated_mlp else ("up",)
    down = linear_inputs(c, tokens, ("down",), width, (d.hidden,))
    return {
        "up": linear_inputs(c, tokens, ups, d.hidden, tuple(width for _ in ups), fused=fused, held=held),
        "activation": activation(architecture, c, tokens, width),
        "down": down,
    }


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Routed experts over grouped matmuls (transformers 5): permuted input, fused gate and up, product, unscaled output."""
    if choices.recompute == "selective":
        return per_op.moe(architecture, d)
    c, m = code_of(architecture, training, d), architecture.moe
    if m is None:
        raise ValueError(f"{architecture.id} has no experts")
    pairs, k, width = d.routed_tokens, float(m.topk), d.expert_ffn
    h = d.hidden
    deepseek = m.score_correction_bias
    router = (
        Saved(name="router_input", bytes=d.tokens * h * (4.0 if deepseek else c.compute)),
        Saved(name="router_scores", bytes=d.tokens * (_router_bytes(architecture, float(m.num_experts), k))),
    )
    steps = 5.0 if architecture.attn_sinks else 1.0
    wide = Saved(name="gate_up", bytes=pairs * 2.0 * width * c.compute, modules=("moe",))
    middle = Saved(name="activated", bytes=pairs * width * c.compute * (steps - 1.0 if steps > 1.0 else 1.0), modules=("moe", "moe_act"))
    kept: Kept = {
        "norm": norm(architecture, d, c, count=float(architecture.norms_per_layer) - (1.0 if architecture.norms_per_layer < 4 else 2.0)),
        "router": router,
        "dispatch": (Saved(name="indices", bytes=pairs * (24.0 if architecture.attn_sinks else 16.0) + d.local_experts * 4.0),),
        "up": (Saved(name="permuted_input", bytes=pairs * h * c.compute, modules=("moe",)),),
        "activation": (wide, middle),
        "down": (Saved(name="input", bytes=pairs * width * c.compute, modules=("moe",)),),
        "combine": (
            Saved(name="expert_output", bytes=pairs * h * c.compute, modules=("moe",)),
            Saved(name="weights", bytes=pairs * ((4.0 if c.stream == 4.0 or not _narrow_weights(architecture) else c.compute) + 8.0)),
        ),
    }
    if m.shared_ffn_hidden:
        shared = feed_forward(architecture, d, c, d.tokens, d.shared_ffn)
        kept |= {f"shared_{name}": value for name, value in shared.items()}
    return kept


def _narrow_weights(architecture: Architecture) -> bool:
    return architecture.family in ("qwen3_moe", "qwen2_moe", "gpt_oss")


def _router_bytes(architecture: Architecture, experts: float, k: float) -> float:
    """Bytes a token: fp32 scores, chosen indices and weights, their sum."""
    if architecture.attn_sinks:
        return 10.0 * k
    if architecture.moe is not None and architecture.moe.score_correction_bias:
        return experts * 4.0 + experts + 128.0 + 32.0 + 12.0 * k + 4.0
    return experts * 4.0 + 12.0 * k + 4.0


def embedding(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Rotary tables (once a model, whatever the batch), or positions and the embedding's dropout mask."""
    c = code_of(architecture, training, d)
    if architecture.positional == "learned":
        mask = (Saved(name="dropout_mask", bytes=d.tokens * d.hidden),) if c.dropout else ()
        return {"lookup": (Saved(name="positions", bytes=d.seq * 8.0), *mask)}
    if architecture.positional != "rope":
        return {}
    width = d.qk_dim if architecture.mla is None else float(architecture.mla.qk_rope_head_dim)
    tables = 2.0 if architecture.family == "gemma3" else 1.0
    return {"lookup": (Saved(name="rotary_tables", bytes=tables * 2.0 * width * c.stream * d.seq),)}


def head(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Final norm, head input, log-softmax in fp32 (eager loss), shifted labels."""
    c = code_of(architecture, training, d)
    loss = [Saved(name="labels", bytes=d.tokens * 8.0)]
    if resolve(training).loss == "eager":
        loss.append(Saved(name="log_softmax_fp32", bytes=d.tokens * d.vocab * 4.0))
    if architecture.final_softcap:
        loss.append(Saved(name="softcap_tanh", bytes=d.tokens * d.vocab * c.compute))
    logits: tuple[Saved, ...] = ()
    if "head" in c.targets:
        logits = linear_inputs(c, d.tokens, ("head",), d.hidden, (d.vocab,))
    if not c.frozen:
        logits = (Saved(name="input", bytes=d.tokens * d.hidden * c.compute),)
        if c.autocast:
            cast = num(d.vocab) * d.hidden * c.compute
            logits = (*logits, Saved(name="weight_cast", bytes=cast + 0.0 * d.tokens))
    return {"norm": norm(architecture, d, c) if architecture.final_norm else (), "logits": logits, "loss": tuple(loss)}
