"""DualPipe: a rank holds two stages. Memory and time of a rank against those of the stages, one by one, under 1F1B."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.choices.schedules import dualpipe, schedule
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.training import Training
from cost_models.transformer import count_parameters
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.result import Cost

POOL = parse_cluster("32xH100-80G").pools[0]
LLAMA, MOE, GEMMA = load("llama-3.1-8b"), load("qwen3-30b-a3b"), load("google/gemma-2-9b")
"""One kind of layer; experts; two kinds of layers, whose stages weigh unlike."""
MODELS = st.sampled_from((LLAMA, MOE, GEMMA))
STATES = ("weights", "gradients", "optimizer")


def layout(name: Any, pp: int, **changed: Any) -> Layout:
    choices = {"zero": 0, **{k: v for k, v in changed.items() if k in Choices.__dataclass_fields__}}
    degrees = {k: float(v) for k, v in changed.items() if k in Degrees.__dataclass_fields__}
    return Layout(degrees=Degrees(pp=float(pp), **degrees), choices=Choices(schedule=name, **choices))


def costed(architecture: Any, laid: Layout, batch: int = 128, *, every: bool = True, **training: Any) -> Cost:
    task = Training(framework="dualpipe", global_batch=batch, **training)
    return cost(architecture, task, laid, POOL, every=every)


def values(of: Cost, phase: str, *prefixes: str) -> Any:
    """Bytes by stage of the terms whose names begin so."""
    shape = np.shape(num(of.memory.stage_allocated_bytes))
    terms = [num(t.value) for t in of.memory.phases[phase].terms if t.name.startswith(prefixes)]
    return np.sum([np.broadcast_to(t, shape) for t in terms], axis=0)


@given(MODELS, st.integers(2, 12), st.sampled_from((0, 1)))
def test_two_stages_a_rank_double_the_parameters(architecture: Any, pp: int, zero: Any) -> None:
    """DeepSeek-V3 (arXiv 2412.19437), table 2: parameters 2 ×. The ranks hold the model twice, each its own and the mirrored stage."""
    double = costed(architecture, layout("dualpipe", pp, zero=zero, dp=2))
    single = costed(architecture, layout("1f1b", pp, zero=zero, dp=2))
    for bucket in STATES:
        of_stages = values(single, "optimizer", bucket)
        assert values(double, "optimizer", bucket) == pytest.approx(of_stages + of_stages[::-1], rel=1e-12)
        assert np.sum(values(double, "optimizer", bucket)) == pytest.approx(2.0 * np.sum(of_stages), rel=1e-12)


def test_the_ranks_hold_the_model_twice() -> None:
    """16-bit weights of all ranks: four bytes a parameter."""
    held = np.sum(values(costed(LLAMA, layout("dualpipe", 8)), "load", "weights"))
    assert held == pytest.approx(4.0 * count_parameters(LLAMA).parameters, rel=1e-12)


@given(MODELS, st.integers(1, 6).map(lambda half: 2 * half), st.integers(0, 9), st.sampled_from(("none", "full")))
def test_a_rank_keeps_what_1f1b_keeps_on_its_two_stages(architecture: Any, pp: int, more: int, recompute: Any) -> None:
    """p - i micro-batches of stage i and i + 1 of stage p - 1 - i: p + 1 in all, as table 2 has it."""
    m = 2 * pp + 2 * more
    double = costed(architecture, layout("dualpipe", pp, recompute=recompute), m)
    single = costed(architecture, layout("1f1b", pp, recompute=recompute), m)
    of_stages = values(single, "forward", "activations")
    assert values(double, "forward", "activations") == pytest.approx(of_stages + of_stages[::-1], rel=1e-12)


def alive(rank: int, pp: int, m: int) -> dict[int, int]:
    """Chunk -> the most micro-batches that are between their forward and their last backward, one pass after the other."""
    now: dict[int, int] = {0: 0, 1: 0}
    most = dict(now)
    apart = {(p.chunk, p.micro_batch) for step in dualpipe.order(rank, pp, 2, m) for p in step if p.kind == "inputs"}
    for step in dualpipe.order(rank, pp, 2, m):
        for p in step:
            ends = p.kind == "weight" if (p.chunk, p.micro_batch) in apart else p.kind == "backward"
            now[p.chunk] += (p.kind == "forward") - ends
            most[p.chunk] = max(most[p.chunk], now[p.chunk])
    return most


@given(st.integers(1, 6).map(lambda half: 2 * half), st.integers(1, 30).map(lambda half: 2 * half))
def test_micro_batches_in_flight_of_one_stage_are_those_of_the_order(pp: int, m: int) -> None:
    for rank in range(pp):
        most = alive(rank, pp, m)
        mine, other = (float(dualpipe.one_way(float(s), float(pp), float(m))) for s in (rank, pp - 1 - rank))
        assert most[0] <= mine
        assert most[1] <= other
        if m >= 2 * pp:
            assert (most[0], most[1]) == (mine, other) == (pp - rank, rank + 1)
        assert float(schedule("dualpipe").in_flight(float(rank), float(pp), 1.0, float(m))) == mine + other


@given(MODELS, st.lists(st.integers(1, 12), min_size=1, max_size=5), st.sampled_from(("none", "full")), st.sampled_from((16, 64, 96)))
def test_a_batch_equals_its_rows(architecture: Any, pp: list[int], recompute: Any, batch: int) -> None:
    """Rows of unlike pipelines, odd ones too, whose ranks weigh unlike: the decisive stages find the heaviest rank of each."""
    together = layout("dualpipe", 1, recompute=recompute)
    rows = replace(together, degrees=replace(together.degrees, pp=np.array(pp, dtype=np.float64)[:, None]))
    many = costed(architecture, rows, batch, every=False)
    for row, ranks in enumerate(pp):
        one = costed(architecture, layout("dualpipe", ranks, recompute=recompute), batch)
        for name in ("peak_allocated_bytes", "peak_device_bytes"):
            assert float(num(getattr(many.memory, name)).reshape(-1)[row]) == float(num(getattr(one.memory, name)))
        assert float(num(many.time.step_seconds).reshape(-1)[row]) == float(num(one.time.step_seconds))


def test_mirrored_ranks_add_up_their_gradients_and_update_both_stages() -> None:
    def term(of: Cost, name: str) -> float:
        return next((float(num(t.value)) for t in of.time.ledger.terms if t.name == name), 0.0)

    double, single = (costed(LLAMA, layout(name, 4)) for name in ("dualpipe", "1f1b"))
    assert term(single, "dp.mirror") == 0.0
    assert term(double, "dp.mirror") > 0.0
    held = values(costed(LLAMA, layout("1f1b", 4)), "load", "weights")
    expected = np.max(held + held[::-1]) / np.max(held)
    assert term(double, "optimizer.update") / term(single, "optimizer.update") == pytest.approx(expected, rel=1e-9)
