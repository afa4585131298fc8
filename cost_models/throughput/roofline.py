"""Seconds of one kernel on one GPU, from its shape: GEMM, grouped GEMM, attention, and work bound by memory.

Legend: m, n, k = rows, columns, inner length; a tile is 128 × 128 outputs; u = tiles that run at once (multiprocessors);
k0 = inner length a tile costs on top of k; the last wave counts in part (`smooth` of it is won back by other tiles and split-k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from hardware.calibration import value

if TYPE_CHECKING:
    from cost_models.numeric import Num
    from cost_models.op import AttentionCore
    from cost_models.throughput.software import Software
    from cost_models.training import Training
    from hardware.spec import Gpu

TILE = 128.0
ALIGNED = 8.0
"""Elements: tensor cores want 16-bit operands whose rows begin at multiples of 16 bytes (NVIDIA, matrix multiplication guide)."""
SOURCE = "roofline with tile and wave quantisation; constants: hardware/measured, fitted on public GEMM timings"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What one GPU does with the types of one training."""

    gemm_flop_per_second: float
    """Large GEMMs of the linear layers in the type of the training."""
    wide_flop_per_second: float
    """Large GEMMs in the 16-bit (or fp32) type: head, router, weight gradients kept wide."""
    dense_peak_flop_per_second: float
    """Datasheet peak of the type used: the denominator of MFU."""
    k0: float
    smooth: float
    units: float
    grouped: float
    weight_gradient: float
    """Rate of weight-gradient products / rate of the others."""
    launch_seconds: float
    hbm_bytes_per_second: float
    attention_forward_flop_per_second: float
    attention_backward_flop_per_second: float
    attention_start: float
    """Keys that every row of queries costs on top of those it attends to."""
    attention_diagonal: float
    """Scores that a causal mask lets a kernel compute in vain, per row of queries and edge of the mask, doubled."""
    attention_backward_edges: float
    """Both of them in the backward / in the forward."""
    attention_head0: float
    eager_flop_per_second: float
    eager_forward_bytes: float
    """HBM bytes per 16-bit score of unfused attention."""
    eager_backward_bytes: float
    eager_unaligned: float
    """Rate of the batched products of unfused attention with a head size that is no multiple of ALIGNED / with one that is."""
    element_bytes: float
    """Bytes of a GEMM operand."""
    quantised: bool
    """Operands are cast to fp8 before each product."""


def rates(training: Training, stack: Software, gpu: Gpu) -> Rates:
    """Return the rates of `gpu` for `training`. Raises ValueError for a type that the GPU lacks."""
    wide_type = "fp32" if training.precision == "fp32" else "fp16" if training.precision == "fp16" else "bf16"
    wide_peak = _peak(gpu, wide_type)
    fraction = value(gpu, "gemm_fraction_fp32" if wide_type == "fp32" else "gemm_fraction")
    quantised = training.precision == "fp8"
    peak = _peak(gpu, "fp8") if quantised else wide_peak
    forward = value(gpu, "attention_forward_flash3" if stack.attention == "flash3" else "attention_forward_flash2")
    if stack.attention == "triton":
        forward *= value(gpu, "attention_triton")
    narrow = wide_peak * fraction
    if quantised and stack.narrow_type == "fp4":
        narrow = _peak(gpu, "fp4") * value(gpu, "gemm_fraction_fp4")
    elif quantised:
        narrow = peak * value(gpu, "gemm_fraction_fp8") * stack.fp8_factor
    return Rates(
        gemm_flop_per_second=narrow,
        wide_flop_per_second=wide_peak * fraction,
        dense_peak_flop_per_second=peak,
        k0=value(gpu, "gemm_k0"),
        smooth=value(gpu, "gemm_smooth"),
        units=value(gpu, "multiprocessors"),
        grouped=value(gpu, "grouped_fraction"),
        weight_gradient=value(gpu, "gemm_weight_gradient"),
        launch_seconds=value(gpu, "launch_seconds"),
        hbm_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * value(gpu, "hbm_fraction"),
        attention_forward_flop_per_second=wide_peak * forward,
        attention_backward_flop_per_second=wide_peak * forward * value(gpu, "attention_backward"),
        attention_start=value(gpu, "attention_start"),
        attention_diagonal=value(gpu, "attention_diagonal"),
        attention_backward_edges=value(gpu, "attention_backward_edges"),
        attention_head0=value(gpu, "attention_head0"),
        eager_flop_per_second=wide_peak * fraction * value(gpu, "attention_eager_fraction"),
        eager_forward_bytes=value(gpu, "attention_eager_forward_bytes"),
        eager_backward_bytes=value(gpu, "attention_eager_backward_bytes"),
        eager_unaligned=value(gpu, "attention_eager_unaligned"),
        element_bytes=4.0 if training.precision == "fp32" else 1.0 if quantised else 2.0,
        quantised=quantised,
    )


def _peak(gpu: Gpu, kind: str) -> float:
    peaks = {str(key): number for key, number in gpu.peak_flop_per_second.items()}
    if kind in peaks:
        return peaks[kind]
    raise ValueError(f"{gpu.name} has no known peak for {kind}; it has {', '.join(peaks)}")


def product_seconds(
    r: Rates, rate: float, m: Num, n: Num, k: Num, count: Num, gradient_bytes: float, *, weight: bool
) -> tuple[Num, Num, Num]:
    """Return forward, input-gradient and weight-gradient seconds of `count` products (m × k) · (k × n) that run as one kernel.

    Each is the greater of compute (whole and partial waves of tiles, each k deep and with ends that take as long as k0 of the 16-bit type,
    whatever the type) and of HBM traffic, plus one launch.

    `gradient_bytes` are moved per element of the weight gradient; `weight` is False for frozen weights, which have none.
    """
    rows, columns, inner = np.ceil(m / TILE), np.ceil(n / TILE), np.ceil(k / TILE)
    share = count / r.units
    tile = 2.0 * TILE * TILE * r.units / rate
    ends = r.k0 * (2.0 * TILE * TILE * r.units / r.wide_flop_per_second)
    left, right, out = m * k, k * n, m * n
    narrow, wide = r.element_bytes / r.hbm_bytes_per_second, 2.0 / r.hbm_bytes_per_second
    forward = _rounds(r, rows * columns * share) * (k * tile + ends)
    backward = _rounds(r, rows * inner * share) * (n * tile + ends)
    forward = np.maximum(forward, count * ((left + right) * narrow + out * wide)) + r.launch_seconds
    backward = np.maximum(backward, count * ((out + right) * narrow + left * wide)) + r.launch_seconds
    if not weight:
        return forward, backward, 0.0
    gradient = _rounds(r, inner * columns * share) * ((m * tile + ends) / r.weight_gradient)
    moved = count * ((left + out) * narrow + right * (gradient_bytes / r.hbm_bytes_per_second))
    return forward, backward, np.maximum(gradient, moved) + r.launch_seconds


def _rounds(r: Rates, tiles: Num) -> Num:
    """Waves of tiles: the last, partly filled one counts in part."""
    return r.smooth * np.maximum(tiles, 1.0) + (1.0 - r.smooth) * np.ceil(tiles)


def memory_seconds(r: Rates, moved_bytes: Num, kernels: float = 1.0) -> Num:
    """Return the seconds of kernels that are bound by HBM traffic."""
    return moved_bytes / r.hbm_bytes_per_second + kernels * r.launch_seconds


def attention_seconds(r: Rates, stack: Software, a: AttentionCore, *, act_bytes: float) -> tuple[Num, Num]:
    """Return forward and backward seconds of the attention core.

    Fused kernels: FLOP of the unmasked scores (backward 2.5 times, for it recomputes them), and of what a row of queries costs beside:
    a start, and the masked part of the tiles on the edge of the mask; at a rate that grows with head size. Unfused: two and four batched
    products over all scores, and the HBM traffic of each score.
    """
    scores = a.batch * a.heads * a.q_len * a.kv_len
    if stack.attention == "eager":
        products = scores * (2.0 * (a.qk_dim + a.v_dim))
        if a.qk_dim % ALIGNED or a.v_dim % ALIGNED:
            products = products / r.eager_unaligned
        wide = act_bytes / 2.0
        forward = products / r.eager_flop_per_second + memory_seconds(r, scores * (r.eager_forward_bytes * wide), 4.0)
        backward = products * (2.0 / r.eager_flop_per_second) + memory_seconds(r, scores * (r.eager_backward_bytes * wide), 6.0)
        return forward, backward
    flop = scores * (2.0 * (a.qk_dim + a.v_dim) * a.causal_fraction)
    width = (a.qk_dim + a.v_dim) / 2.0
    head = (width + r.attention_head0) / width / ((128.0 + r.attention_head0) / 128.0)
    masked = np.where(num(a.causal_fraction) < 1.0, 0.5 * r.attention_diagonal / a.causal_fraction, 0.0)
    edges = (r.attention_start + masked) / a.kv_len
    forward = flop * (head / r.attention_forward_flop_per_second) * (1.0 + edges) + r.launch_seconds
    backward = flop * (2.5 * head / r.attention_backward_flop_per_second) * (1.0 + r.attention_backward_edges * edges)
    return forward, backward + 2.0 * r.launch_seconds
