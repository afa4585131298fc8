"""Multi-head, grouped-query and multi-query attention of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.blocks.linear import bias, enter, leave, lora_gemms, weight
from cost_models.blocks.norm import norm
from cost_models.numeric import Num, num
from cost_models.op import AttentionCore, Comm, Gemm, Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training

SOURCE = "Vaswani et al. 2017; grouped queries: Ainslie et al. 2023 (arXiv 2305.13245); Megatron-LM core/transformer/attention.py"


def attention(
    architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool, saved: dict[str, tuple[Saved, ...]]
) -> list[Op]:
    """Return norm, qkv, core and output projection of one layer, per rank and micro-batch."""
    h = d.hidden
    q_width = d.heads * d.qk_dim
    kv_width = d.kv_heads * d.qk_dim
    norms = 1.0 if architecture.norms_per_layer < 4 else 2.0
    qkv_params = (
        weight(training, "q", h, q_width),
        weight(training, "k", h, kv_width),
        weight(training, "v", h, kv_width),
        *((bias(q_width + 2.0 * kv_width),) if architecture.qkv_bias else ()),
    )
    adapters = tuple(
        g for t, n in (("q", q_width), ("k", kv_width), ("v", kv_width)) for g in lora_gemms(training, t, d.tokens, h, n)
    )
    rotary = d.tokens * (q_width + kv_width) * d.act_bytes
    out_bias = (bias(h),) if architecture.attn_out_bias else ()
    return [
        norm(architecture, d, name="attention.norm", count=norms, saved=saved.get("norm", ())),
        Op(
            name="attention.qkv",
            kind="gemm",
            params=qkv_params,
            gemm=(Gemm(m=d.tokens, n=q_width + 2.0 * kv_width, k=h), *adapters),
            saved=saved.get("qkv", ()),
            comm=enter(d, choices, h),
            source=SOURCE,
        ),
        Op(
            name="attention.rotary",
            kind="memory",
            params=_qk_norm(architecture, d),
            bytes_moved=2.0 * rotary * (2.0 if architecture.qk_norm != "none" else 1.0),
            backward_bytes_moved=2.0 * rotary * (2.0 if architecture.qk_norm != "none" else 1.0),
            kernels=1.0 if architecture.positional == "rope" else 0.0,
            saved=saved.get("rotary", ()),
            source="rotary embedding and q/k norm read and write q and k once",
        ),
        core(architecture, d, sliding=sliding, saved=saved.get("core", ())),
        Op(
            name="attention.out",
            kind="gemm",
            params=(weight(training, "o", q_width, h), *out_bias),
            gemm=(Gemm(m=d.tokens, n=h, k=q_width), *lora_gemms(training, "o", d.tokens, q_width, h)),
            saved=saved.get("out", ()),
            comm=leave(d, choices, h),
            source=SOURCE,
        ),
    ]


def core(architecture: Architecture, d: Dims, *, sliding: bool, saved: tuple[Saved, ...]) -> Op:
    """Return the attention core: every query of this rank against the keys that the mask leaves it."""
    window = float(architecture.sliding_window or d.full_seq) if sliding else d.full_seq
    return Op(
        name="attention.core",
        kind="attention",
        params=(Params(count=d.heads, kind="norm"),) if architecture.attn_sinks else (),
        attention=AttentionCore(
            batch=d.batch,
            heads=d.heads,
            q_len=d.seq,
            kv_len=d.full_seq,
            qk_dim=d.qk_dim,
            v_dim=d.v_dim,
            kv_heads=d.kv_heads,
            causal_fraction=visible_fraction(d.full_seq, window),
        ),
        saved=saved,
        comm=ring(d),
        modules=("core_attn",),
        source="Dao 2023 (arXiv 2307.08691); causal mask leaves half of the scores",
    )


def ring(d: Dims) -> tuple[Comm, ...]:
    """Return context parallelism's exchange of keys and values (Liu et al., Ring Attention, arXiv 2310.01889; Megatron p2p)."""
    whole = d.batch * d.full_seq * d.kv_heads * (d.qk_dim + d.v_dim) * d.act_bytes
    return (
        Comm(kind="all_gather", backward="all_gather", group="cp", bytes=whole, overlappable=True),
        Comm(kind="reduce_scatter", backward="reduce_scatter", group="cp", bytes=whole, forward_times=0.0, overlappable=True),
    )


def visible_fraction(seq: Num, window: Num) -> Num:
    """Return the part of the seq × seq scores that a causal mask with a window leaves: w/s − w²/(2 s²), one half for w = s."""
    part = np.minimum(num(window), seq) / seq
    return part - part * part / 2.0


def _qk_norm(architecture: Architecture, d: Dims) -> tuple[Params, ...]:
    if not architecture.qk_norm_weights:
        return ()
    per_rank = architecture.qk_norm_weights / d.tp if architecture.qk_norm == "full" else float(architecture.qk_norm_weights)
    return (Params(count=per_rank, kind="norm", shared=True),)
