"""How many layouts go through memory and time together in a second of one core. Run with -m bench on a quiet machine."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest

from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Training
from hardware.cluster import parse_cluster

ROWS = 4096
"""A chunk of the search."""
LEAST_PER_SECOND = 500_000
FAMILIES = [
    Choices(zero=1),
    Choices(zero=1, recompute="full", schedule="interleaved"),
    Choices(zero=1, recompute="selective", recompute_modules=("core_attn", "mlp")),
    Choices(zero=3, sequence_parallel=False),
    Choices(zero=1, offload="optimizer"),
]


def column(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)[:, None]


def grid(choices: Choices) -> Layout:
    draw = np.random.default_rng(0).integers
    tp, pp, cp = 2.0 ** draw(0, 4, ROWS), 2.0 ** draw(0, 5, ROWS), 2.0 ** draw(0, 3, ROWS)
    degrees = Degrees(
        tp=column(tp),
        pp=column(pp),
        cp=column(cp),
        dp=column(512.0 / tp / pp / cp),
        vpp=column(2.0 ** draw(0, 2, ROWS)),
        micro_batch=column(2.0 ** draw(0, 4, ROWS)),
        recompute_layers=column(draw(-1, 4, ROWS).astype(np.float64)),
    )
    return Layout(degrees=degrees, choices=choices)


@pytest.mark.bench
def test_layouts_per_second_and_core() -> None:
    """The fastest of twenty passes of each family, in seconds of the processor: other work on the machine slows all passes."""
    pool = parse_cluster("512xH100-80G").pools[0]
    architecture, training = load("llama-3.1-70b"), Training(seq=4096, global_batch=1024)
    rates = []
    for choices in FAMILIES:
        layout = grid(choices)
        cost(architecture, training, layout, pool)
        best = float("inf")
        for _ in range(20):
            start = time.process_time()
            cost(architecture, training, layout, pool)
            best = min(best, time.process_time() - start)
        rates.append(ROWS / best)
    mean = len(rates) / sum(1.0 / r for r in rates)
    print(f"{mean:,.0f} layouts a second and core; by family: {', '.join(f'{r:,.0f}' for r in rates)}")
    print(f"aim: {LEAST_PER_SECOND:,}; {mean / LEAST_PER_SECOND:.0%} of it")
    assert mean > 0
