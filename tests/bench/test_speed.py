"""How many layouts go through memory and time together in a second of one core, and how that grows. Run with -m bench -s, quietly.

Seconds are those of the processor, the least of several passes: other work on the machine slows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Training
from hardware.cluster import parse_cluster
from planner.asked import make_request
from planner.evaluate import CHUNK as ROWS
from planner.evaluate import totals
from planner.request import resolve
from planner.search import spaces
from planner.space import Counts

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


def least_seconds(run: Callable[[], object], passes: int) -> float:
    """Processor seconds of the fastest of `passes` runs, after one more that warms up."""
    run()
    best = float("inf")
    for _ in range(passes):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.bench
def test_layouts_per_second_and_core() -> None:
    """Five families of random layouts of one model; the harmonic mean of their rates."""
    pool = parse_cluster("512xH100-80G").pools[0]
    architecture, training = load("llama-3.1-70b"), Training(seq=4096, global_batch=1024)
    rates = []
    for choices in FAMILIES:
        layout = grid(choices)
        rates.append(ROWS / least_seconds(lambda layout=layout: cost(architecture, training, layout, pool), 20))  # type: ignore[misc]
    mean = len(rates) / sum(1.0 / r for r in rates)
    print(f"\n{mean:,.0f} layouts a second and core; by family: {', '.join(f'{r:,.0f}' for r in rates)}")
    print(f"aim: {LEAST_PER_SECOND:,}; {mean / LEAST_PER_SECOND:.0%} of it")
    assert mean >= LEAST_PER_SECOND


GPUS = (8, 64, 512, 4096, 32768)
MODELS = ("llama-3.1-70b", "mixtral-8x7b", "deepseek-v3")


@pytest.mark.bench
@pytest.mark.parametrize("model", MODELS)
def test_growth_with_families_and_gpus(model: str) -> None:
    """The grids that a search really spans, family by family: at most one chunk of each, as the search evaluates it."""
    print(f"\n{model}: GPUs, families, layouts spanned, rows of the grid, rows timed, rows a family, layouts a second and core")
    for gpus in GPUS:
        request = {"model": model, "cluster": f"{gpus}xH100-80G", "global_batch": max(256, gpus // 4), "framework": "megatron"}
        resolved = resolve(make_request(request))
        counts, families, all_rows, timed, seconds = Counts(), 0, 0, 0, 0.0
        for group in spaces(resolved, resolved.cluster.pools[0], counts):
            for variant, lawful in enumerate(group.lawful):
                rows = np.flatnonzero(lawful)
                families, all_rows = families + 1, all_rows + len(rows)
                layout = group.layouts(variant, rows[:ROWS])
                timed += layout.size
                seconds += least_seconds(lambda case=group.case, layout=layout: totals(case, layout), 3)  # type: ignore[misc]
        print(f"{gpus:6,} {families:4} {counts.layouts:18,} {all_rows:9,} {timed:8,} {timed / families:7,.0f} {timed / seconds:9,.0f}")
        assert timed
