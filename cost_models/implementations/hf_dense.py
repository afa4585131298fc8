"""Hugging Face modules, dense parts: norms, projections with adapters, attention, MLP (transformers 4.4x-5.x, modeling_*.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.op import Drop, Saved
from cost_models.stack import Kernel, resolve, stream_bytes

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.numeric import Num
    from cost_models.training import Training

CONCATENATING = frozenset({"gpt_neox", "phi", "phi3", "glm", "glm4", "glm4_moe", "chatglm", "gpt_oss", "gptj", "nemotron"})
"""Families whose rotary code joins rotated and untouched parts with `cat`: q loses its (batch, sequence, head) order, so the attention
output is copied once more for the output projection."""
FUSED_QKV_VIEW = frozenset({"gpt_neox", "phi3", "gpt2", "bloom", "mpt", "falcon", "glm", "chatglm"})
"""Families whose v is a view of the fused projection's output: the whole output stays alive."""
FP32_WEIGHT_NORM = frozenset({"gemma", "gemma2", "gemma3"})
"""Families that multiply by (1 + weight) in fp32: the normalised copy and the factor stay in fp32."""
FP32_NORM = frozenset({*FP32_WEIGHT_NORM, "gpt_oss"})
PYTHON_GELU_COPIES = {"gelu_new": 4.0, "gelu_fast": 7.0}
"""Activations written in Python: copies of the ffn-wide tensor that their autograd graph keeps (traced)."""
FUSED_COPIES = {"relu": 0.0, "relu2": 1.0}
"""Activations whose backward needs their output: it is the next linear's input already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What of the training decides the tensors: types, adapters, kernels."""

    stream: float
    """Bytes of a residual-stream element."""
    compute: float
    """Bytes of a linear layer's input."""
    autocast: bool
    cpu_autocast: bool
    """CPU autocast's lists: LayerNorm and pow stay in 16 bits; an attention operator that it does not list gets the fp32 q and k that the
    rotary tables make, and returns fp32 (traced)."""
    frozen: bool
    """The base weights do not train: no normalised copies, no linear inputs of their own."""
    quantised: bool
    """4-bit matmuls, which keep their inputs."""
    adapter: float
    """Bytes of an adapter's input element; 0 without adapters."""
    kernel: Kernel
    """litgpt computes capped scores by single ops (model.py, scaled_dot_product_attention)."""
    targets: tuple[str, ...]
    rank: float
    adapter_dropout: bool
    dropout: bool
    masked: bool
    input_copies: float
    """Micro-batches whose inputs a 4-bit matmul keeps. bitsandbytes keeps them as attributes of the graph's node (autograd/_functions.py,
    MatMul4Bit: ctx.tensors), which backward does not free: they live until the training loop lets go of the loss. litgpt's does so when
    the next loss is there (finetune/lora.py), Hugging Face's Trainer before the next forward."""
    own_lora: bool
    """True low-rank adapters, not prompts or scales."""
    scaled_outputs: bool
    """LLaMA-Adapter V2: every linear's output is scaled by a trained vector, whose gradient needs the unscaled output but no input; the
    norms train too, by fp32 copies (litgpt adapter_v2.py, rmsnorm.py)."""
    fused_norm: bool
    """A fused RMSNorm kernel, which keeps its input and one number a row (nanotron's TritonRMSNorm)."""
    fused_mlp: bool
    """A fused gated activation, which keeps gate and up alone (Liger, unsloth)."""
    litgpt: bool
    """litgpt's own modules: one qkv buffer that v is a view of, `cat` in the rotary code, fused GELU."""


def code_of(architecture: Architecture, training: Training, d: Dims) -> Code:
    """Read the code paths off the training."""
    stack = resolve(training)
    frozen = training.method in ("lora", "qlora")
    return Code(
        stream=stream_bytes(training, d.act_bytes),
        compute=d.act_bytes,
        autocast=stack.autocast,
        cpu_autocast=stack.autocast and training.extra.get("autocast_device") == "cpu",
        frozen=frozen,
        quantised=training.method == "qlora",
        adapter=0.0 if not frozen else (4.0 if stack.adapter_fp32 else d.act_bytes),
        kernel="eager" if training.framework == "litgpt" and architecture.attn_softcap else stack.kernel,
        targets=training.lora_targets if frozen else (),
        rank=float(training.lora_rank),
        adapter_dropout=frozen and training.lora_dropout > 0.0,
        dropout=training.dropout > 0.0,
        masked=training.padding_mask,
        input_copies=2.0 if training.framework == "litgpt" and training.extra.get("longest_first") != "yes" else 1.0,
        own_lora=frozen and "other_adapter" not in training.extra,
        scaled_outputs=training.extra.get("other_adapter") == "Adapter V2",
        fused_norm=training.framework == "nanotron" or training.extra.get("norm_kernel") == "fused",
        fused_mlp=training.extra.get("mlp_kernel") in ("fused", "recomputed"),
        litgpt=training.framework == "litgpt",
    )


def norm(
    architecture: Architecture, d: Dims, c: Code, *, count: float = 1.0, shared_input: bool = False, width: float | None = None
) -> tuple[Saved, ...]:
    """`count` norms of the stream: RMSNorm in fp32 steps, or a fused LayerNorm. `width` elements a row (None: hidden)."""
    h = d.hidden if width is None else width
    rows = d.sp_tokens * count
    if architecture.norm == "layer":
        x = () if shared_input else (Saved(name="norm_input", bytes=rows * h * c.stream, modules=("layernorm",)),)
        return (*x, Saved(name="norm_statistics", bytes=rows * 2.0 * c.stream))
    if c.fused_norm:
        return (
            Saved(name="norm_input", bytes=rows * h * c.stream, modules=("layernorm",)),
            Saved(name="norm_rsqrt", bytes=rows * 4.0),
        )
    fp32 = architecture.family in FP32_NORM
    kept = [Saved(name="norm_input_fp32", bytes=rows * h * 4.0, modules=("layernorm",)), Saved(name="norm_rsqrt", bytes=rows * 4.0)]
    if not c.frozen or c.scaled_outputs:
        width_bytes = 4.0 if fp32 or c.scaled_outputs else c.stream
        kept.append(Saved(name="normalised", bytes=rows * h * width_bytes, modules=("layernorm",)))
    if architecture.family in FP32_WEIGHT_NORM:
        kept.append(Saved(name="norm_factor", bytes=count * h * 4.0 + 0.0 * rows))
    return tuple(kept)


def linear_inputs(
    c: Code, tokens: Num, groups: tuple[str, ...], width: Num, outputs: tuple[Num, ...], *, fused: bool = False, held: bool = False
) -> tuple[Saved, ...]:
    """What linears that read one input of `width` keep of it: `groups` names them (q, k, v …), `outputs` their widths.

    Training: the input once, under autocast one cast per linear (one for a `fused` projection) and a cast of each weight. `held`:
    another op keeps the same tensor already. LoRA: an fp32 adapter keeps its own copy, with dropout one copy and a 1-byte mask each.
    """
    whole = tokens * width
    if not c.frozen:
        casts = float(1 if fused else len(groups)) if c.autocast else 1.0
        kept = [] if held and not c.autocast else [Saved(name="input", bytes=whole * c.compute * casts)]
        if c.autocast:
            kept.append(_cast(c, width, outputs, tokens))
        return tuple(kept)
    adapted = float(sum(1 for g in groups if g in c.targets))
    if c.litgpt and fused and adapted:
        adapted = 1.0
    if not c.own_lora:
        adapted = 0.0
    kept = []
    if c.autocast:
        kept.append(_cast(c, width, outputs, tokens))
    own_copies = c.adapter > c.compute or c.adapter_dropout
    if c.quantised and (own_copies or not adapted) and not held:
        kept.append(Saved(name="quantised_matmul_input", bytes=whole * c.compute * c.input_copies))
    if c.scaled_outputs:
        for out in outputs:
            kept.append(Saved(name="unscaled_output", bytes=tokens * out * c.compute))
    if adapted and not (held and not own_copies):
        kept.append(Saved(name="adapter_input", bytes=whole * c.adapter * (adapted if own_copies else 1.0)))
    if adapted:
        kept.append(Saved(name="adapter_middle", bytes=tokens * c.rank * c.adapter * adapted))
        if c.adapter_dropout:
            kept.append(Saved(name="adapter_dropout_mask", bytes=whole * adapted))
    return tuple(kept)


def padded_updates(c: Code, tokens: Num, widths: tuple[Num, Num, Num]) -> tuple[Saved, ...]:
    """litgpt's fused qkv adapter pads the updates of the adapted ones with zeros by `index_copy` (litgpt/lora.py, zero_pad), whose backward
    keeps the updates (PyTorch derivatives.yaml: grad.index_select(…).expand_as(source))."""
    adapted = [width for name, width in zip(("q", "k", "v"), widths, strict=True) if name in c.targets]
    if not (c.litgpt and c.own_lora and adapted) or len(adapted) == len(widths):
        return ()
    total: Num = 0.0
    for width in adapted:
        total = total + width
    return (Saved(name="padded_update", bytes=tokens * total * c.adapter),)


def _cast(c: Code, width: Num, outputs: tuple[Num, ...], tokens: Num) -> Saved:
    """The 16-bit copy of the weights that autocast's matmul keeps for the input gradient."""
    total: Num = 0.0
    for out in outputs:
        total = total + out
    return Saved(name="weight_cast", bytes=width * total * c.compute + 0.0 * tokens)


def qk_norm(architecture: Architecture, d: Dims, c: Code) -> tuple[Saved, ...]:
    """q and k norms: fp32 copy, normalised copy, one rsqrt a row (a row is a head, or all heads)."""
    if architecture.qk_norm == "none":
        return ()
    elements = d.tokens * (d.heads + d.kv_heads) * d.qk_dim
    rows = d.tokens * ((d.heads + d.kv_heads) if architecture.qk_norm != "full" else 2.0)
    factor = architecture.family in FP32_WEIGHT_NORM
    second = 0.0 if c.frozen else (4.0 if factor else c.compute)
    kept = (
        Saved(name="qk_norm_input_fp32", bytes=elements * 4.0),
        Saved(name="qk_normalised", bytes=elements * second),
        Saved(name="qk_norm_rsqrt", bytes=rows * 4.0),
    )
    return (*kept, Saved(name="qk_norm_factor", bytes=2.0 * d.qk_dim * 4.0 + 0.0 * d.tokens)) if factor else kept


def core(architecture: Architecture, d: Dims, c: Code, *, sliding: bool, value_whole: Num | None = None) -> tuple[Saved, ...]:
    """q, k, v, output and softmax of one attention core.

    `value_whole`: elements per token of the fused buffer that v is a view of (None: v has its own storage).
    """
    w, a = c.compute, d.heads
    q = d.tokens * a * d.qk_dim * w
    k = d.tokens * d.kv_heads * d.qk_dim * w
    v = d.tokens * d.kv_heads * d.v_dim * w
    out = d.tokens * a * d.v_dim * w
    if c.cpu_autocast and c.kernel == "flash2" and architecture.positional == "rope":
        q, k, out = q * (4.0 / w), k * (4.0 / w), out * (4.0 / w)
    lse = Saved(name="logsumexp", bytes=d.tokens * a * 4.0, modules=("core_attn",))
    needs_mask = c.masked or (sliding and architecture.sliding_window is not None and d.full_seq >= architecture.sliding_window)
    if c.kernel == "eager":
        return _eager(architecture, d, c, q, out, value_whole)
    if architecture.attn_sinks:
        lse = Saved(name="logsumexp", bytes=d.tokens * a * 4.0)
    if c.kernel == "sdpa" and needs_mask:
        mask = d.batch * d.seq * d.full_seq * w
        wide = d.tokens * a * (d.qk_dim + d.v_dim) * w
        kv: tuple[Saved, ...] = (Saved(name="kv_expanded", bytes=wide), Saved(name="mask", bytes=mask))
    elif architecture.positional not in ("rope",) and architecture.family in FUSED_QKV_VIEW:
        return (Saved(name="qkv", bytes=q + k + v), Saved(name="output", bytes=out), lse)
    elif value_whole is not None and c.kernel == "flash2" and d.v_dim != d.qk_dim:
        padded = d.tokens * a * d.qk_dim * w
        return (
            Saved(name="q", bytes=q),
            Saved(name="k", bytes=q),
            Saved(name="v_padded", bytes=padded),
            Saved(name="output_padded", bytes=padded),
            lse,
        )
    elif value_whole is not None:
        grouped = q if architecture.mla is not None else k
        kv = (Saved(name="k", bytes=grouped), Saved(name="v_buffer", bytes=d.tokens * value_whole * w))
    else:
        kv = (Saved(name="kv", bytes=k + v),)
    return (Saved(name="q", bytes=q), *kv, Saved(name="output", bytes=out), lse)


def _eager(architecture: Architecture, d: Dims, c: Code, q: Num, out: Num, value_whole: Num | None) -> tuple[Saved, ...]:
    """Scores in memory: softmax (fp32 and its cast; GPT-2 in the compute type), dropout mask, expanded k and v."""
    w, a = c.compute, d.heads
    scores = d.batch * a * d.seq * d.full_seq
    wide_v = d.tokens * a * d.v_dim * w
    core_attn: tuple[Drop, ...] = ("core_attn",)
    narrow = architecture.positional == "learned" and not c.autocast
    if architecture.attn_sinks:
        softmax = scores * w
    elif narrow:
        softmax = scores * w * (2.0 if c.dropout else 1.0)
    else:
        softmax = scores * (4.0 + w) if w < 4.0 else scores * w * (2.0 if c.dropout else 1.0)
    kept = [Saved(name="softmax", bytes=softmax, modules=core_attn)]
    if c.dropout:
        kept.append(Saved(name="dropout_mask", bytes=scores, modules=core_attn))
    if architecture.attn_softcap:
        kept.append(Saved(name="softcap_tanh", bytes=scores * w, modules=core_attn))
    if architecture.positional != "rope" and architecture.family in FUSED_QKV_VIEW:
        return (Saved(name="qkv", bytes=q * 2.0 + wide_v), *kept)
    v = wide_v
    if value_whole is not None:
        v = np.where(d.batch > 1.0, wide_v, d.tokens * value_whole * w)
    return (Saved(name="q", bytes=q), Saved(name="k_expanded", bytes=q), Saved(name="v_expanded", bytes=v), *kept)


def output_held(architecture: Architecture, c: Code, d: Dims) -> bool:
    """Tell whether the output projection's input is the attention output that the core keeps already."""
    if c.kernel == "eager" or c.litgpt or (c.cpu_autocast and c.kernel == "flash2" and architecture.positional == "rope"):
        return False
    if architecture.mla is not None:
        return c.kernel != "flash2"
    return architecture.family not in CONCATENATING


def activation(architecture: Architecture, c: Code, tokens: Num, width: Num) -> tuple[Saved, ...]:
    """Tensors between the first and the last linear of an MLP, the last one's input not counted."""
    one = tokens * width
    if architecture.gated_mlp:
        names = ("gate", "up") if c.fused_mlp else ("gate", "up", "activated_gate")
        return tuple(Saved(name=name, bytes=one * c.compute, modules=("mlp",)) for name in names)
    name = architecture.activation
    if name in PYTHON_GELU_COPIES and not c.litgpt:
        copies = PYTHON_GELU_COPIES[name]
        wide = copies * c.compute
        if c.autocast and not c.cpu_autocast and name == "gelu_new":
            wide = (copies - 1.0) * 4.0 + c.compute
        return (Saved(name="gelu_steps", bytes=one * wide, modules=("mlp",)),)
    copies = FUSED_COPIES.get(name, 1.0)
    return (Saved(name="pre_activation", bytes=one * copies * c.compute, modules=("mlp",)),)
