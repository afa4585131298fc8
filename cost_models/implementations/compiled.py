"""Layers under torch.compile, and torchtitan's per-op selective recompute.

The min-cut partitioner keeps what is dear to make again (matmul and attention results, residual stream) and recomputes what fuses
(norms, gated products). Per-op selective recompute keeps attention, collectives and every second matmul of a layer, eager or not.
"""

from __future__ import annotations

from cost_models.architecture import Architecture
from cost_models.blocks.dims import Dims
from cost_models.implementations import Kept, hf
from cost_models.layout import Choices
from cost_models.numeric import Num
from cost_models.op import Saved
from cost_models.stack import resolve
from cost_models.training import Training


def attention(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Residual stream, rotated q and k, v, output."""
    b = d.act_bytes
    q, kv = d.tokens * d.heads * d.qk_dim * b, d.tokens * d.kv_heads * d.qk_dim * b
    if choices.recompute == "selective":
        return per_op_attention(d, q, kv)
    return {
        "norm": _stream(architecture, d),
        "rotary": (Saved(name="qk_before_norm", bytes=q + kv),) if architecture.qk_norm != "none" else (),
        "core": _core(training, d, (Saved(name="q", bytes=q), Saved(name="kv", bytes=2.0 * kv))),
    }


def per_op_attention(d: Dims, q: Num, kv: Num) -> Kept:
    """Layer input, first and third matmul (q, v), the attention kernel's output and log-sum-exp."""
    return {
        "norm": (Saved(name="layer_input", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
        "qkv": (Saved(name="q", bytes=q), Saved(name="v", bytes=kv)),
        "core": (
            Saved(name="output", bytes=d.tokens * d.heads * d.v_dim * d.act_bytes),
            Saved(name="logsumexp", bytes=d.tokens * d.heads * 4.0),
        ),
    }


def _stream(architecture: Architecture, d: Dims) -> tuple[Saved, ...]:
    rows = d.sp_tokens
    return (
        Saved(name="residual", bytes=rows * d.hidden * d.act_bytes),
        Saved(name="normalised", bytes=rows * d.hidden * d.linear_bytes),
        Saved(name="norm_statistics", bytes=rows * (4.0 if architecture.norm == "rms" else 8.0)),
    )


def _core(training: Training, d: Dims, qkv: tuple[Saved, ...]) -> tuple[Saved, ...]:
    output = Saved(name="output", bytes=d.tokens * d.heads * d.v_dim * d.act_bytes)
    if resolve(training).kernel == "eager":
        return (*qkv, output, Saved(name="softmax", bytes=d.batch * d.heads * d.seq * d.full_seq * d.act_bytes))
    return (*qkv, output, Saved(name="logsumexp", bytes=d.tokens * d.heads * 4.0))


def mla(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Residual stream, latents, up-projected q, k, v."""
    m = architecture.mla
    if m is None:
        raise ValueError(f"{architecture.id} has no multi-head latent attention")
    b = d.act_bytes
    q = d.tokens * d.heads * d.qk_dim * b
    latent = d.sp_tokens * float(m.kv_lora_rank + (m.q_lora_rank or 0)) * b
    if choices.recompute == "selective":
        return per_op_attention(d, q, latent)
    kv = (Saved(name="k", bytes=q), Saved(name="kv_up", bytes=d.tokens * d.heads * float(m.qk_nope_head_dim + m.v_head_dim) * b))
    return {
        "norm": _stream(architecture, d),
        "qkv_up": (Saved(name="latents", bytes=2.0 * latent),),
        "core": _core(training, d, (Saved(name="q", bytes=q), *kv)),
    }


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Residual stream and the results of the first linears; the product is made again."""
    b, one = d.act_bytes, d.tokens * d.ffn
    if choices.recompute == "selective":
        return {"up": (Saved(name="gate", bytes=one * b),), "down": (Saved(name="output", bytes=d.sp_tokens * d.hidden * b),)}
    gates = 2.0 if architecture.gated_mlp else 1.0
    return {
        "norm": _stream(architecture, d),
        "activation": (Saved(name="pre_activation", bytes=one * gates * b), Saved(name="product", bytes=one * d.linear_bytes)),
    }


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Permuted input, pre-activations, expert output; per-op recompute keeps every second grouped matmul's result."""
    m = architecture.moe
    if m is None:
        raise ValueError(f"{architecture.id} has no experts")
    b, pairs = d.act_bytes, d.routed_tokens
    shared = d.tokens * d.shared_ffn
    router = Saved(name="scores", bytes=d.sp_tokens * float(m.num_experts) * 8.0)
    if choices.recompute == "selective":
        kept: Kept = {
            "router": (router,),
            "up": (Saved(name="permuted_input", bytes=pairs * d.hidden * b), Saved(name="gate", bytes=pairs * d.expert_ffn * b)),
            "down": (Saved(name="expert_output", bytes=pairs * d.hidden * b),),
        }
        return kept | ({"shared_up": (Saved(name="gate", bytes=shared * b),)} if m.shared_ffn_hidden else {})
    kept = {
        "norm": _stream(architecture, d),
        "router": (router,),
        "up": (Saved(name="permuted_input", bytes=pairs * d.hidden * b),),
        "activation": (Saved(name="pre_activation", bytes=pairs * 2.0 * d.expert_ffn * b),),
        "down": (Saved(name="product", bytes=pairs * d.expert_ffn * b),),
        "combine": (Saved(name="expert_output", bytes=pairs * d.hidden * b),),
    }
    return kept | ({"shared_activation": (Saved(name="pre_activation", bytes=shared * 3.0 * b),)} if m.shared_ffn_hidden else {})


def embedding(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """As eager modules."""
    return hf.embedding(architecture, training, d, choices)


def head(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Final norm and head input; an eager loss keeps its log-softmax."""
    kept: Kept = {
        "norm": _stream(architecture, d)[:1],
        "logits": (Saved(name="input", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
    }
    bytes_per_logit = 4.0 if resolve(training).loss == "eager" else d.act_bytes
    return kept | {"loss": (Saved(name="log_softmax", bytes=d.tokens * d.vocab * bytes_per_logit),)}
