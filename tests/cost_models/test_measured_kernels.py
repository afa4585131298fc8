"""Kernels and collectives against published timings (tests/published/hardware): the shape of the curves, and their level.

The level of a benchmark differs from that of a training run (clocks at the power limit, kernels beside each other), and sources differ
among themselves; hence each group of rows is compared after its own median, and the median itself is only held within bounds.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pytest

from cost_models.layout import Choices
from cost_models.op import AttentionCore
from cost_models.throughput.collectives import collective_seconds, fabric, place
from cost_models.throughput.ranks import Group
from cost_models.throughput.roofline import Rates, attention_seconds, product_seconds, rates
from cost_models.throughput.software import Software, software
from cost_models.training import Training
from hardware.catalog import load_gpu
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

    from cost_models.op import Collective

FEWEST = 30
"""Rows of a group from which it is judged."""


class Spread(NamedTuple):
    """Measured / predicted of a group: its median, and how far rows lie from it."""

    level: float
    median: float
    p90: float


def spread(ratios: Iterable[float]) -> Spread:
    x = np.asarray(list(ratios))
    level = float(np.median(x))
    aside: npt.NDArray[np.float64] = np.abs(x / level - 1.0)
    return Spread(level, float(np.median(aside)), float(np.quantile(aside, 0.9)))


def read(published: Path, name: str) -> list[dict[str, str]]:
    with (published / "hardware" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def machine(gpu: str, precision: str, kernel: str) -> tuple[Rates, Software]:
    training = Training.model_validate({"precision": precision, "extra": {"attention_backend": kernel}})
    stack = software(training, Choices(), load_gpu(gpu))
    return rates(training, stack, load_gpu(gpu)), stack


def product(row: dict[str, str]) -> float:
    """Measured / predicted seconds of a GEMM, of the pass that the row names."""
    r, _ = machine(row["gpu_id"], "bf16", "flash2")
    m, n, k = (float(row[x]) for x in "mnk")
    groups = float(row["batch"] or 1)
    rate = r.gemm_flop_per_second * (r.weight_gradient if row["pass"] == "wgrad" else 1.0)
    seconds, _, _ = product_seconds(r, rate, m, n, k, groups, 4.0, weight=False)
    return 2.0 * m * n * k * groups / (float(row["achieved_tflops"]) * 1e12) / float(seconds)


def test_gemms_by_shape(published: Path) -> None:
    """1,200 16-bit GEMMs, small and skinny ones among them: half lie within 9 % of the curve, nine in ten within a third."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in read(published, "gemm.csv"):
        if row["op"] == "gemm" and row["dtype"] == "bf16" and row["gpu_id"] and row["m"] and row["achieved_tflops"]:
            found[row["gpu_id"], row["pass"], row["source"].partition("@")[0]].append(product(row))
    judged = {group: spread(ratios) for group, ratios in found.items() if len(ratios) >= FEWEST}
    assert len(judged) >= 12
    for group, s in judged.items():
        assert s.median <= 0.09 and s.p90 <= 0.33, (group, s)
        assert 0.7 <= s.level <= 1.1, (group, s)


def attention(row: dict[str, str], kernel: str) -> float:
    r, stack = machine(row["gpu_id"], "bf16", kernel)
    length, width, heads = float(row["seqlen"]), float(row["head_dim"]), 2048.0 / float(row["head_dim"])
    fraction = 0.5 if row["causal"].lower() in ("true", "1", "yes", "causal") else 1.0
    batch = 16384.0 / length
    core = AttentionCore(
        batch=batch, heads=heads, kv_heads=heads, q_len=length, kv_len=length, qk_dim=width, v_dim=width, causal_fraction=fraction
    )
    forward, backward = (float(np.asarray(x)) for x in attention_seconds(r, stack, core, act_bytes=2.0))
    flop = 4.0 * batch * heads * length * length * width * fraction
    both = "bwd" in row["pass"]
    measured = flop * (3.5 if both else 1.0) / (float(row["achieved_tflops"]) * 1e12)
    return measured / (forward + (backward if both else 0.0))


def test_attention_by_length_and_mask(published: Path) -> None:
    """FlashAttention-2, -3 and cuDNN, 512 to 16,384 tokens, with a causal mask and without, per head size."""
    kernels = {"flash_attention_2": "flash2", "flash_attention_3": "flash3", "cudnn_attention": "flash3"}
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in read(published, "gemm.csv"):
        if row["op"] in kernels and row["gpu_id"] and row["seqlen"] and row["pass"]:
            found[row["gpu_id"], row["op"], row["pass"], row["head_dim"]].append(attention(row, kernels[row["op"]]))
    assert sum(len(ratios) for ratios in found.values()) >= 150
    every = [abs(ratio / spread(ratios).level - 1.0) for ratios in found.values() for ratio in ratios]
    assert np.median(every) <= 0.04
    assert np.quantile(every, 0.9) <= 0.12


SERVERS = {
    "8x A100-SXM4-80GB": "8xA100-80G",
    "8x A100-SXM4-40GB": "8xA100-40G",
    "8x H100 80GB HBM3": "8xH100-80G",
    "DGX H100": "8xH100-80G",
    "8x H200": "8xH200",
    "8x B200": "8xB200",
    "8x B300": "8xB300",
    "GB200 tray (4 GPUs)": "4xGB200",
    "GB300 tray (4 GPUs)": "4xGB300",
}
LARGE = 2.0**26
"""Bytes from which the rate of the links decides; training sends messages of this size."""


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_large_messages_inside_a_server(published: Path, kind: str) -> None:
    """NCCL tests of 2, 4 and 8 GPUs, from 64 MiB on, by their absolute times: no level is taken out."""
    errors = []
    for row in read(published, "collectives.csv"):
        if row["op"] != kind or row["system"] not in SERVERS or float(row["message_bytes"] or 0) < LARGE or not row["latency_us"]:
            continue
        group = place(fabric(parse_cluster(SERVERS[row["system"]]).pools[0]), Group(size=float(row["gpus"]), stride=1.0))
        predicted = float(collective_seconds(group, cast("Collective", kind), float(row["message_bytes"])))
        errors.append(abs(predicted / (float(row["latency_us"]) * 1e-6) - 1.0))
    assert len(errors) >= 50
    assert np.median(errors) <= 0.18
    assert np.quantile(errors, 0.9) <= 0.3
