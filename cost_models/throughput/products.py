"""Matrix products and attention cores of an op: their seconds, and the HBM bytes that casts, adapters and dequantisation add."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import Num, num
from cost_models.throughput.roofline import attention_seconds, product_seconds

if TYPE_CHECKING:
    from cost_models.op import AttentionCore, Gemm, Op
    from cost_models.throughput.unit import Context, Unit
    from cost_models.training import Training

FROZEN_CAST = 0.75
"""Traffic of a cast to fp8 beside a frozen weight / beside a trained one: without a weight gradient nobody needs the transposed copy, and
2 bytes are read and 1 written in place of 2 (Transformer Engine module/linear.py: columnwise usage where the weight is trained)."""
WIDE = ("moe.router", "head.logits", "embedding.lookup", "mtp.head.logits")
"""Products that stay in the 16-bit type under fp8."""


def products(u: Unit, op: Op, c: Context, load: Num, rerun: bool) -> tuple[Num, Num]:
    """Add the GEMMs and the attention core of `op`; return HBM bytes that come on top in forward and backward (casts, dequantisation)."""
    r = c.rates
    wide = not r.quantised or op.name in WIDE
    rate = r.wide_flop_per_second if wide else r.gemm_flop_per_second
    if op.kind == "grouped_gemm":
        rate = rate * r.grouped
    kept = _kept(op, c)
    more_f: Num = 0.0
    more_b: Num = 0.0
    for g in op.gemm:
        adapted = _is_adapter(g, c.training)
        trained = adapted or c.training.method not in ("lora", "qlora")
        m = g.m * load
        seconds, inputs, weights = product_seconds(r, rate, m, g.n, g.k, g.count, c.accumulate_bytes, weight=trained)
        u.gemm_f = u.gemm_f + seconds
        u.gemm_b = u.gemm_b + inputs
        u.gemm_w = u.gemm_w + weights
        if kept:
            u.kept_f = u.kept_f + seconds
        elif rerun:
            u.again_products = u.again_products + seconds
        if not wide and not adapted:
            cast = c.stack.quantise_bytes * (1.0 if trained else FROZEN_CAST)
            if not (c.stack.fused_experts and op.name == "moe.down"):
                more_f = more_f + cast * (m * g.k * g.count)
            if not (c.stack.fused_experts and op.name == "moe.up"):
                more_b = more_b + cast * (m * g.n * g.count)
        if adapted:
            traffic = _adapter_bytes(g, m, c)
            more_f, more_b = more_f + traffic[0], more_b + traffic[1]
        elif c.training.method == "qlora" and op.name not in WIDE:
            once = c.stack.dequantise_bytes * (g.n * g.k * g.count)
            more_f, more_b = more_f + once, more_b + once
    if op.attention is not None:
        forward, backward = attention_seconds(r, c.stack, _packed(op.attention, c.training), act_bytes=c.act_bytes)
        if "cp" in c.groups:
            extra = _ring_bytes(op.attention, c)
            more_f, more_b = more_f + extra, more_b + 2.0 * extra
        u.attention_f = u.attention_f + forward
        u.attention_b = u.attention_b + backward
        if rerun:
            u.again_products = u.again_products + forward
    return more_f, more_b


def _kept(op: Op, c: Context) -> bool:
    """Tell whether recomputation leaves a product out: its output is kept (policy save_qkv_proj), or compilers see that no gradient
    needs it (the last product of a layer ends in the next one's input, which is kept)."""
    if op.name == "attention.qkv":
        return c.training.extra.get("recompute_policy") == "save_qkv_proj"
    return op.name == "mlp.down" and c.stack.name in ("compiled", "xla")


def _packed(a: AttentionCore, training: Training) -> AttentionCore:
    """Short documents packed into one sequence attend to themselves only: the switch `document_tokens` names their mean length."""
    given = training.extra.get("document_tokens")
    if given is None:
        return a
    length = float(given)
    return replace(a, kv_len=np.minimum(a.kv_len, length))


def _ring_bytes(a: AttentionCore, c: Context) -> Num:
    """HBM bytes of ring attention beside its kernels: every step corrects and adds up a partial output of the rank; none for cp = 1."""
    steps = c.groups["cp"].size * np.where(num(c.groups["cp"].size) > 1.0, 1.0, 0.0)
    return c.stack.ring_passes * c.act_bytes * steps * (a.batch * a.q_len * a.heads * a.v_dim)


def _adapter_bytes(g: Gemm, m: Num, c: Context) -> tuple[Num, Num]:
    """HBM bytes beside the two thin products of an adapter: dropout of its input, the sum with the frozen output, the sum of gradients."""
    wide = c.act_bytes * c.stack.adapter_factor
    if isinstance(g.n, float) and g.n == float(c.training.lora_rank):
        dropped = 2.0 if c.training.lora_dropout else 0.0
        return (dropped * wide) * (m * g.k), ((dropped + 3.0) * wide) * (m * g.k)
    return (3.0 * wide) * (m * g.n), 0.0


def _is_adapter(g: Gemm, training: Training) -> bool:
    if training.method not in ("lora", "qlora"):
        return False
    rank = float(training.lora_rank)
    return (isinstance(g.n, float) and g.n == rank) or (isinstance(g.k, float) and g.k == rank)
