"""Closed forms of pipeline time against the event simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.choices.pipeline import Line
from cost_models.choices.schedules import names, schedule
from cost_models.throughput.simulate import SIMULATED, Durations, Event, seconds, simulate

TIMES = st.floats(0.1, 4.0)


def line(forward: list[float], backward: list[float], weight: list[float], micro_batches: int, chunks: int = 1) -> Line:
    """All stages of a pipeline."""
    f, b, w = (np.asarray(x, dtype=np.float64) for x in (forward, backward, weight))
    t, p = f + b, len(f)
    return Line(
        forward=f,
        backward=b,
        weight=w,
        behind=np.arange(p, dtype=np.float64)[::-1],
        before=np.array([t[:i].sum() for i in range(p)]),
        forward_sum=f.sum(),
        backward_sum=b.sum(),
        weight_sum=w.sum(),
        pp=float(p),
        vpp=float(chunks),
        micro_batches=float(micro_batches),
        listed=True,
    )


def decisive(whole: Line) -> Line:
    """First, second and last stage stand for all, as in a batch."""
    p = len(np.asarray(whole.forward))
    at = [0, min(1, p - 1), p - 1]
    picked = {n: np.asarray(getattr(whole, n))[at] for n in ("forward", "backward", "weight", "behind", "before")}
    return replace(whole, **picked, listed=False)


def both(name: str, f: list[float], b: list[float], w: list[float], m: int, chunks: int = 1) -> tuple[float, float]:
    simulated = seconds(simulate(name, Durations(forward=f, backward=b, weight=w), m, chunks))
    return float(schedule(name).seconds(line(f, b, w, m, chunks))), simulated


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8), st.integers(1, 20))
def test_gpipe_is_exact_for_any_stages(stages: list[tuple[float, float]], m: int) -> None:
    closed, simulated = both("gpipe", [s[0] for s in stages], [s[1] for s in stages], [0.0] * len(stages), m)
    assert closed == pytest.approx(simulated, rel=1e-12)


@given(TIMES, TIMES, st.integers(1, 8), st.integers(1, 24))
def test_1f1b_is_exact_for_equal_stages(f: float, b: float, p: int, m: int) -> None:
    closed, simulated = both("1f1b", [f] * p, [b] * p, [0.0] * p, m)
    assert closed == pytest.approx(simulated, rel=1e-12)
    assert simulated == pytest.approx((m + p - 1) * (f + b), rel=1e-12)


@given(st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.1, 20.0)), min_size=1, max_size=9), st.integers(1, 20))
@settings(max_examples=400)
def test_1f1b_is_exact_for_any_stages(stages: list[tuple[float, float]], m: int) -> None:
    closed, simulated = both("1f1b", [s[0] for s in stages], [s[1] for s in stages], [0.0] * len(stages), m)
    assert closed == pytest.approx(simulated, rel=1e-12)


@given(st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.1, 20.0)), min_size=3, max_size=3), st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=400)
def test_1f1b_is_exact_from_the_decisive_stages_where_the_middle_is_alike(stages: list[tuple[float, float]], p: int, m: int) -> None:
    """What a batch evaluates: the first, the second and the last stage, whatever their times."""
    all_of_them = [stages[0], *[stages[1]] * (p - 2), stages[2]][:p]
    f, b = [x[0] for x in all_of_them], [x[1] for x in all_of_them]
    simulated = seconds(simulate("1f1b", Durations(forward=f, backward=b), m))
    assert float(schedule("1f1b").seconds(decisive(line(f, b, [0.0] * p, m)))) == pytest.approx(simulated, rel=1e-12)


@given(TIMES, TIMES, st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_interleaved_is_exact_for_equal_stages(f: float, b: float, p: int, groups: int, chunks: int) -> None:
    closed, simulated = both("interleaved", [f] * p, [b] * p, [0.0] * p, p * groups, chunks)
    assert closed == pytest.approx(simulated, rel=1e-12)


MODEL = st.tuples(st.floats(1.8, 3.2), st.floats(0.7, 1.05), st.floats(0.7, 1.5))
"""Backward / forward; first and last stage / those between them: fewer layers with the embedding, a head and its loss at the end."""


@given(MODEL, st.integers(2, 8), st.integers(2, 6), st.integers(2, 5))
@settings(max_examples=200)
def test_interleaved_is_close_for_the_stages_of_models(model: tuple[float, float, float], p: int, groups: int, chunks: int) -> None:
    """Never above: each term is a path through the passes. Below only where the longest path wraps around the stages."""
    f = [model[1], *[1.0] * (p - 2), model[2]]
    b = [model[0] * x for x in f]
    closed, simulated = both("interleaved", f, b, [0.0] * p, p * groups, chunks)
    assert 0.98 * simulated <= closed <= simulated * (1 + 1e-12)
    few = float(schedule("interleaved").seconds(decisive(line(f, b, [0.0] * p, p * groups, chunks))))
    assert 0.98 * simulated <= few <= simulated * (1 + 1e-12)


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(1.0, 4.0)), min_size=2, max_size=6), st.integers(2, 5), st.integers(2, 4))
@settings(max_examples=200)
def test_interleaved_is_a_lower_bound_for_any_stages(stages: list[tuple[float, float]], groups: int, chunks: int) -> None:
    f, b = [s[0] for s in stages], [s[1] for s in stages]
    closed, simulated = both("interleaved", f, b, [0.0] * len(stages), len(stages) * groups, chunks)
    assert 0.9 * simulated <= closed <= simulated * (1 + 1e-12)


@given(TIMES, st.integers(1, 6), st.integers(1, 16))
def test_zero_bubble_h1_for_equal_passes(f: float, p: int, m: int) -> None:
    """F = B = W: the paper's bubble is (p - 1) F; a greedy simulation comes within 12 % above it and never below."""
    closed, simulated = both("zb-h1", [f] * p, [2.0 * f] * p, [f] * p, m)
    assert 0.88 * simulated <= closed <= simulated * (1 + 1e-12)
    if m >= p:
        assert closed == pytest.approx((3 * m + p - 1) * f, rel=1e-12)


@pytest.mark.parametrize("name", names())
def test_one_stage_has_no_bubble(name: str) -> None:
    assert float(schedule(name).seconds(line([1.0], [2.0], [1.0], 7))) == pytest.approx(21.0)


@pytest.mark.parametrize(("better", "worse"), [("interleaved", "1f1b"), ("zb-h1", "1f1b"), ("zb-v", "zb-h1"), ("1f1b", "gpipe")])
def test_order_of_schedules(better: str, worse: str) -> None:
    given_line = line([1.0] * 4, [2.0] * 4, [1.0] * 4, 8, 2)
    assert float(schedule(better).seconds(given_line)) <= float(schedule(worse).seconds(given_line))


@pytest.mark.parametrize("name", SIMULATED)
def test_no_stage_runs_two_passes_at_once(name: str) -> None:
    events = simulate(name, Durations(forward=[1.0, 1.5, 1.0], backward=[2.0, 2.0, 3.0], weight=[1.0, 1.0, 1.5]), 6, 2)
    for stage in range(3):
        own: list[Event] = sorted((e for e in events if e.stage == stage), key=lambda e: e.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-12 for a, b in zip(own, own[1:], strict=False))
        assert sum(e.end_seconds - e.start_seconds for e in own) == pytest.approx(6 * ([3.0, 3.5, 4.0][stage]))


def test_simulation_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="multiples of the 2 stages"):
        simulate("interleaved", Durations(forward=[1.0, 1.0], backward=[1.0, 1.0]), 3, 2)
    with pytest.raises(ValueError, match="not simulated"):
        simulate("dualpipe", Durations(forward=[1.0], backward=[1.0]), 2)
