"""Megatron layers, tensor by tensor: what Transformer Engine's fused modules keep, and plain torch modules in Megatron's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.op import Drop, Saved
from cost_models.stack import resolve
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.implementations import Kept
    from cost_models.numeric import Num
    from cost_models.training import Training

SOURCE = "Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1; TransformerEngine pytorch/module/layernorm_linear.py, attention"


def norm(architecture: Architecture, d: Dims, *, fused: bool, count: float = 1.0, width: float | None = None) -> tuple[Saved, ...]:
    """Norm input in the compute type and fp32 statistics; a plain torch RMSNorm works on fp32 copies."""
    h = d.hidden if width is None else width
    rows = d.sp_tokens * count
    if architecture.norm == "rms" and not fused:
        return (
            Saved(name="norm_input_fp32", bytes=rows * h * 4.0, modules=("layernorm",)),
            Saved(name="normalised_fp32", bytes=rows * h * 4.0, modules=("layernorm",)),
            Saved(name="norm_rsqrt", bytes=rows * 4.0),
        )
    statistics = 1.0 if architecture.norm == "rms" else 2.0
    return (
        Saved(name="norm_input", bytes=rows * h * d.act_bytes),
        Saved(name="norm_statistics", bytes=rows * statistics * (4.0 if fused else d.act_bytes)),
    )


def linear_input(training: Training, name: str, targets: tuple[str, ...], bytes_: Num, modules: tuple[Drop, ...] = ()) -> tuple[Saved, ...]:
    """Input that a linear layer keeps for its weight gradient; a frozen one keeps it for its adapters alone."""
    if training.method in ("lora", "qlora") and not set(targets) & set(training.lora_targets):
        return ()
    return (Saved(name=name, bytes=bytes_, modules=modules),)


def dropout_mask(training: Training, d: Dims) -> tuple[Saved, ...]:
    """One byte per element of the residual branch."""
    return (Saved(name="dropout_mask", bytes=d.sp_tokens * d.hidden),) if training.dropout > 0.0 else ()


def core(architecture: Architecture, training: Training, d: Dims, *, qkv: tuple[Saved, ...], unfused: bool) -> tuple[Saved, ...]:
    """Attention core: q, k, v; flash keeps output and log-sum-exp, the unfused core the softmax, its mask and its dropped copy."""
    b, scores = d.act_bytes, d.batch * d.heads * d.seq * d.full_seq
    output = Saved(name="output", bytes=d.tokens * d.heads * d.v_dim * b)
    if not unfused:
        return (*qkv, Saved(name="logsumexp", bytes=d.tokens * d.heads * 4.0), output)
    softmax = 4.0 if _softmax_fp32(training) else b
    kept = [Saved(name="softmax", bytes=scores * softmax, modules=("core_attn",))]
    if training.dropout > 0.0:
        kept.append(Saved(name="dropout_mask", bytes=scores, modules=("core_attn",)))
        kept.append(Saved(name="dropped_softmax", bytes=scores * b, modules=("core_attn",)))
    elif softmax > b:
        kept.append(Saved(name="softmax_cast", bytes=scores * b, modules=("core_attn",)))
    return (*qkv, *kept, output)


def _softmax_fp32(training: Training) -> bool:
    """Megatron's own softmax without its fused kernel works on an fp32 copy where query-key scaling asks for it
    (core/fusions/fused_softmax.py, forward_torch_softmax)."""
    extra = training.extra
    plain = extra.get("masked_softmax_fusion") == "no" and extra.get("query_key_layer_scaling") == "yes"
    return plain or extra.get("softmax") == "fp32"


def attention(architecture: Architecture, training: Training, d: Dims, *, fused: bool) -> Kept:
    """Attention block. The core's output is the output projection's input, kept once."""
    b = d.act_bytes
    count = 1.0 if architecture.norms_per_layer < 4 else 2.0
    width = (d.heads + 2.0 * d.kv_heads) * d.qk_dim
    qkv = [Saved(name="qkv", bytes=d.tokens * width * b)]
    if training.extra.get("rope_inputs") == "kept" and architecture.positional == "rope":
        rotated = 2.0 * d.tokens * (d.heads + d.kv_heads) * d.qk_dim * b
        qkv.append(Saved(name="rotary_inputs", bytes=rotated))
    if architecture.qk_norm != "none":
        rows = d.tokens * (d.heads + d.kv_heads)
        qkv.append(Saved(name="qk_norm_input", bytes=rows * d.qk_dim * b))
        qkv.append(Saved(name="qk_norm_statistics", bytes=rows * 4.0))
    return {
        "norm": norm(architecture, d, fused=fused, count=count),
        "qkv": linear_input(training, "input", ("q", "k", "v"), d.sp_tokens * d.hidden * d.linear_bytes, ("layernorm",)),
        "core": core(architecture, training, d, qkv=tuple(qkv), unfused=resolve(training).kernel == "eager"),
        "out": (*_fp8_input(d, d.heads * d.v_dim), *dropout_mask(training, d)),
    }


def _fp8_input(d: Dims, width: Num) -> tuple[Saved, ...]:
    """fp8 linear layers keep an fp8 copy of an input that another op keeps in 16 bits."""
    return (Saved(name="input_fp8", bytes=d.tokens * width * d.linear_bytes),) if d.linear_bytes < d.act_bytes else ()


def mla(architecture: Architecture, training: Training, d: Dims, *, fused: bool) -> Kept:
    """Latent attention: latents, their norms and the up-projected q, k, v."""
    m = architecture.mla
    if m is None:
        raise ValueError(f"{architecture.id} has no multi-head latent attention")
    b, kv = d.act_bytes, float(m.kv_lora_rank)
    q_width = d.heads * d.qk_dim
    k_width = d.heads * d.qk_dim
    v_width = d.heads * d.v_dim
    latents = [*norm(architecture, d, fused=fused, width=kv), Saved(name="kv_latent", bytes=d.sp_tokens * kv * d.linear_bytes)]
    if m.q_lora_rank is not None:
        q = float(m.q_lora_rank)
        latents += [*norm(architecture, d, fused=fused, width=q), Saved(name="q_latent", bytes=d.sp_tokens * q * d.linear_bytes)]
    up: tuple[Drop, ...] = ("mla_up_proj",)
    qkv = (
        Saved(name="q", bytes=d.tokens * q_width * b, modules=up),
        Saved(name="k", bytes=d.tokens * k_width * b, modules=up),
        Saved(name="v", bytes=d.tokens * v_width * b, modules=up),
    )
    return {
        "norm": norm(architecture, d, fused=fused),
        "qkv_down": (Saved(name="input", bytes=d.sp_tokens * d.hidden * d.linear_bytes, modules=("layernorm",)),),
        "qkv_up": tuple(latents),
        "core": core(architecture, training, d, qkv=qkv, unfused=resolve(training).kernel == "eager"),
        "out": (*_fp8_input(d, v_width), *dropout_mask(training, d)),
    }


def feed_forward(
    architecture: Architecture,
    training: Training,
    d: Dims,
    tokens: Num,
    width: Num,
    *,
    fused: bool,
    module: Drop = "mlp",
    inner: tuple[Drop, ...] = (),
) -> Kept:
    """Activation and second linear. Fused activations keep their input alone; plain torch keeps each step."""
    gates = 2.0 if architecture.gated_mlp else 1.0
    drop: tuple[Drop, ...] = (module, *inner)
    kept = [Saved(name="pre_activation", bytes=tokens * gates * width * d.act_bytes, modules=(module,))]
    if architecture.gated_mlp and (not fused or training.extra.get("swiglu_fusion") == "no"):
        kept.append(Saved(name="activated_gate", bytes=tokens * width * d.act_bytes, modules=drop))
    return {
        "activation": tuple(kept),
        "down": linear_input(training, "input", ("down",), tokens * width * d.linear_bytes, drop),
    }


def mlp(architecture: Architecture, training: Training, d: Dims, *, fused: bool) -> Kept:
    """Dense MLP."""
    norms = float(architecture.norms_per_layer) - (1.0 if architecture.norms_per_layer < 4 else 2.0)
    kept = feed_forward(architecture, training, d, d.tokens, d.ffn, fused=fused)
    kept["norm"] = norm(architecture, d, fused=fused, count=norms) if norms else ()
    if norms:
        kept["up"] = linear_input(training, "input", ("gate", "up"), d.sp_tokens * d.hidden * d.linear_bytes, ("mlp", "layernorm"))
    kept["down"] = (*kept["down"], *dropout_mask(training, d))
    return kept


def imbalance(training: Training) -> float:
    """Tokens of the busiest rank's experts over the balanced share; 1 where the router is forced to balance or drops tokens."""
    if training.balanced_routing or "capacity_factor" in training.extra:
        return 1.0
    return calibration("memory").value("routing_imbalance")


def moe(architecture: Architecture, training: Training, d: Dims, *, fused: bool) -> Kept:
    """Router, permuted inputs, grouped experts, shared expert. Routing weights are multiplied in the activation (core >= 0.12)."""
    m = architecture.moe
    if m is None:
        raise ValueError(f"{architecture.id} has no experts")
    experts, pairs, h = float(m.num_experts), d.routed_tokens * imbalance(training), d.hidden
    inner: tuple[Drop, ...] = ("moe_act",)
    kept = feed_forward(architecture, training, d, pairs, d.expert_ffn, fused=fused, module="moe", inner=inner)
    if training.extra.get("bias_gelu_fusion") == "no":
        weighted = Saved(name="activated", bytes=pairs * d.expert_ffn * d.act_bytes, modules=("moe", "moe_act"))
        kept["activation"] = (*kept["activation"], weighted)
    kept |= {
        "norm": norm(architecture, d, fused=fused),
        "router": (
            Saved(name="input", bytes=d.sp_tokens * h * d.act_bytes, modules=("layernorm",)),
            Saved(name="scores", bytes=d.sp_tokens * experts * 8.0, modules=("moe",)),
        ),
        "dispatch": (
            Saved(name="routing_map", bytes=d.sp_tokens * experts * 5.0, modules=("moe",)),
            Saved(name="weights", bytes=pairs * 8.0, modules=("moe",)),
        ),
        "up": linear_input(training, "permuted_input", ("gate", "up"), pairs * h * d.linear_bytes, ("moe",)),
    }
    if m.shared_ffn_hidden:
        shared = feed_forward(architecture, training, d, d.tokens, d.shared_ffn, fused=fused, module="shared_experts", inner=("moe",))
        kept |= {f"shared_{name}": value for name, value in shared.items()}
        kept["shared_up"] = ()
    kept["combine"] = dropout_mask(training, d)
    return kept


def embedding(architecture: Architecture, training: Training, d: Dims) -> Kept:
    """Ids and the embedding's dropout mask."""
    ids = Saved(name="token_ids", bytes=d.tokens * 8.0)
    return {"lookup": (ids, *dropout_mask(training, d))}


def head(architecture: Architecture, training: Training, d: Dims, *, fused: bool) -> Kept:
    """Final norm, head input, and the softmax that the vocabulary-parallel loss keeps in fp32."""
    loss = resolve(training).loss
    softmax = 4.0 if loss in ("vocab-parallel", "eager") else d.act_bytes
    return {
        "norm": norm(architecture, d, fused=fused) if architecture.final_norm else (),
        "logits": (Saved(name="input", bytes=d.sp_tokens * d.hidden * d.act_bytes),),
        "loss": (Saved(name="softmax", bytes=d.tokens * d.vocab * softmax),),
    }
