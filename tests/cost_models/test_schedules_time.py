"""Pipeline time against the event simulation of each schedule's order of passes, and the orders against published tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.choices.pipeline import Line, longest_path
from cost_models.choices.schedules import names, schedule
from cost_models.throughput.simulate import Durations, Event, seconds, simulate

if TYPE_CHECKING:
    from cost_models.choices.orders import Step

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


MODEL = st.tuples(st.floats(1.0, 3.2), st.floats(0.6, 1.25), st.floats(0.5, 1.6), st.floats(0.9, 1.1))
"""Backward / forward; first and last stage / those between them; backward / forward of the last stage / that of the others."""
FEW_SECONDS = st.one_of(st.floats(0.1, 4.0), st.sampled_from((0.01, 1.0, 5.0)))


@given(st.lists(st.tuples(FEW_SECONDS, FEW_SECONDS), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_interleaved_is_exact_for_any_stages(stages: list[tuple[float, float]], groups: int, chunks: int) -> None:
    """Paths that go round the stages included: with m = p, and where the last stage is not the slowest."""
    f, b = [s[0] for s in stages], [s[1] for s in stages]
    closed, simulated = both("interleaved", f, b, [0.0] * len(stages), len(stages) * groups, chunks)
    assert closed == pytest.approx(simulated, rel=1e-9)


@given(MODEL, st.integers(1, 8), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_interleaved_is_exact_from_the_decisive_stages_of_models(
    model: tuple[float, float, float, float], p: int, groups: int, chunks: int
) -> None:
    """The middle alike: fewer or more layers with the embedding, a head and its loss at the end, recompute or none."""
    more, first, last, unlike = model
    f = [first, *[1.0] * (p - 2), last][:p]
    b = [more * x for x in f]
    b[-1] *= unlike
    simulated = seconds(simulate("interleaved", Durations(forward=f, backward=b), p * groups, chunks))
    few = float(schedule("interleaved").seconds(decisive(line(f, b, [0.0] * p, p * groups, chunks))))
    assert few <= simulated * (1 + 1e-12)
    if max(f) <= (1.0 + more) / 2.0:
        assert few == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize(
    ("stages", "groups", "chunks"),
    [
        ([(2.0, 2.0), (0.1, 2.0), (0.5, 0.2), (1.5, 2.0)], 3, 2),
        ([(1.0, 1.5), (1.0, 2.0), (0.1, 0.2), (2.0, 0.1)], 2, 3),
        ([(1.5, 0.1), (0.2, 0.1), (0.1, 0.1), (0.5, 1.5)], 3, 3),
        ([(0.713, 0.007), (0.005, 0.012), (0.005, 0.012), (0.005, 0.012), (0.005, 0.012), (0.742, 0.013)], 4, 4),
        ([(1.5, 3.0), (0.5, 1.5)], 1, 2),
        ([(2.0, 3.0), (0.5, 0.2), (0.2, 1.0), (0.1, 2.0)], 1, 2),
        ([(0.907, 1.314), (0.605, 0.054), (0.605, 0.054), (1.006, 0.131)], 1, 3),
    ],
)
def test_the_longest_path_goes_round_the_stages(stages: list[tuple[float, float]], groups: int, chunks: int) -> None:
    """Each of another kind: between two groups, in warm-up, in the last group, from the first stage's warm-up; with m = p a rest behind
    the turn, a rest on both sides of it, and one way round in place of the rest. The path that goes round no stages is too short."""
    f, b = [s[0] for s in stages], [s[1] for s in stages]
    m, p = len(stages) * groups, len(stages)
    closed, simulated = both("interleaved", f, b, [0.0] * p, m, chunks)
    assert closed == pytest.approx(simulated, rel=1e-12)
    short = longest_path(line(f, b, [0.0] * p, m, chunks), 2.0, (chunks - 1.0) * p, chunks, 0.0)
    assert float(short) < simulated * (1.0 - 1e-6)


FOLLOWED = ("zb-h1", "zb-v", "dualpipe")
"""Schedules whose longest path is followed through their order."""
PART = st.one_of(st.floats(0.1, 4.0), st.floats(1e-3, 0.1), st.just(1.0))
STAGES = st.lists(st.tuples(PART, PART, PART), min_size=1, max_size=8)
"""Forward, input gradients and weight gradients of each stage."""


def apart(stages: list[tuple[float, float, float]]) -> tuple[list[float], list[float], list[float]]:
    return [s[0] for s in stages], [s[1] + s[2] for s in stages], [s[2] for s in stages]


@pytest.mark.parametrize("name", FOLLOWED)
@given(STAGES, st.integers(1, 48))
@settings(max_examples=200, deadline=None)
def test_longest_path_is_exact_for_any_stages(name: str, stages: list[tuple[float, float, float]], m: int) -> None:
    closed, simulated = both(name, *apart(stages), m)
    assert closed == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("name", FOLLOWED)
def test_thousands_of_micro_batches_are_not_followed_one_by_one(name: str) -> None:
    """The last of them takes as long as that of few, at the slowest rank."""
    stages = [(1.0, 1.3, 0.7), (0.9, 1.0, 0.8), (1.2, 1.1, 0.6), (1.4, 1.0, 1.0)]
    few, many = (float(schedule(name).seconds(line(*apart(stages), m))) for m in (998, 100_000))
    assert many - few == pytest.approx((100_000 - 998) * (3.2 if name == "dualpipe" else 3.4), rel=1e-12)
    assert few == pytest.approx(both(name, *apart(stages), 998)[1], rel=1e-9)


@pytest.mark.parametrize("name", FOLLOWED)
@given(st.lists(st.tuples(PART, PART, PART), min_size=3, max_size=3), st.integers(1, 8), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_decisive_stages_tell_all_where_the_middle_is_alike(name: str, stages: list[tuple[float, float, float]], p: int, m: int) -> None:
    whole = apart([stages[0], *[stages[1]] * (p - 2), stages[2]][:p])
    assert float(schedule(name).seconds(decisive(line(*whole, m)))) == pytest.approx(both(name, *whole, m)[1], rel=1e-9)


@pytest.mark.parametrize("name", names())
@given(
    st.lists(
        st.tuples(st.lists(st.tuples(PART, PART, PART), min_size=3, max_size=3), st.integers(1, 6), st.integers(1, 40)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_a_batch_is_its_rows_bit_for_bit(name: str, rows: list[tuple[list[tuple[float, float, float]], int, int]]) -> None:
    lines = [decisive(line(*apart([s[0], *[s[1]] * (p - 2), s[2]][:p]), m)) for s, p, m in rows]
    fields = {f: np.stack([np.asarray(getattr(x, f)).reshape(-1) for x in lines]) for f in Line.__dataclass_fields__ if f != "listed"}
    together = np.asarray(schedule(name).seconds(Line(**fields, listed=False)))
    assert together.tolist() == [float(schedule(name).seconds(x)) for x in lines]


@given(st.tuples(TIMES, TIMES), st.floats(0.05, 1.0), st.integers(1, 8), st.integers(0, 20))
def test_zero_bubble_h1_has_the_published_bubble(two: tuple[float, float], part: float, p: int, more: int) -> None:
    """Qi et al. 2023, table 2: (p - 1)(F + B - W) with equal stages and at least p micro-batches; W at most the shorter of F and B."""
    f, inputs = two
    w = part * min(f, inputs)
    closed, simulated = both("zb-h1", [f] * p, [inputs + w] * p, [w] * p, p + more)
    assert closed == pytest.approx(simulated, rel=1e-12)
    assert closed == pytest.approx((p + more) * (f + inputs + w) + (p - 1) * (f + inputs - w), rel=1e-12)


@given(TIMES, st.floats(0.0, 1.0), st.sampled_from((2, 4, 6, 8)), st.integers(0, 12))
def test_dualpipe_has_the_published_bubble(f: float, part: float, p: int, more: int) -> None:
    """DeepSeek-V3, table 2: (p / 2 - 1)(F&B + B - 3 W), B both gradients, with F = B - W, F&B = F + B and W at most F."""
    w, m = part * f, 2 * p + 2 * more
    b = f + w
    closed, simulated = both("dualpipe", [f] * p, [b] * p, [w] * p, m)
    assert closed == pytest.approx(simulated, rel=1e-12)
    assert closed == pytest.approx(m * (f + b) + (p / 2 - 1) * (f + b + b - 3 * w), rel=1e-12)


@given(TIMES, st.integers(1, 8), st.integers(0, 12))
def test_zero_bubble_v_has_none(f: float, p: int, more: int) -> None:
    """Qi et al. 2023, section 6: with F = B = W no rank waits once it has begun; the last begins after p - 1 chunk forwards."""
    m = 2 * p - 1 + more
    events = simulate("zb-v", Durations(forward=[f] * p, backward=[2.0 * f] * p, weight=[f] * p), m)
    for rank in range(p):
        mine = [e for e in events if e.stage == rank]
        assert min(e.start_seconds for e in mine) == pytest.approx(rank * f / 2.0)
        assert max(e.end_seconds for e in mine) == pytest.approx(rank * f / 2.0 + 3.0 * f * m)
    assert float(schedule("zb-v").seconds(line([f] * p, [2.0 * f] * p, [f] * p, m))) == pytest.approx((3.0 * m + (p - 1) / 2.0) * f)


def most_held(order: list[Step], parts: dict[int, float]) -> float:
    """Return how many micro-batches are alive at once at most, each from the start of its forward to the end of its (weight) gradients,
    counted as the part of the stage that its chunk is."""
    held = most = 0.0
    for step in order:
        held += sum(parts[p.chunk] for p in step if p.kind == "forward")
        most = max(most, held)
        held -= sum(parts[p.chunk] for p in step if p.kind in ("backward", "weight"))
    return most


@pytest.mark.parametrize("name", names())
@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 4))
def test_order_runs_every_pass_once_and_holds_what_in_flight_says(name: str, p: int, m: int, chunks: int) -> None:
    """Each rank: forward, then both gradients (together or apart), of every micro-batch of its chunks; the most held at once."""
    found = schedule(name)
    m, chunks = m * (p if name == "interleaved" else 1), found.CHUNKS or chunks
    for rank in range(p):
        order = found.order(rank, p, chunks, m)
        passes = [q for step in order for q in step]
        assert len(set(passes)) == len(passes)
        kinds: dict[tuple[int, int], list[str]] = {}
        for q in passes:
            kinds.setdefault((q.chunk, q.micro_batch), []).append(q.kind)
        assert all(k in (["forward", "backward"], ["forward", "inputs", "weight"]) for k in kinds.values())
        way = range(2) if name == "dualpipe" else None
        assert set(kinds) == ({(i % 2, i) for i in range(m)} if way else {(c, i) for c in range(chunks) for i in range(m)})
        parts = {c: found.place(rank, c, p, chunks).part for c in range(chunks)}
        assert most_held(order, parts) == pytest.approx(
            float(found.in_flight(np.float64(rank), np.float64(p), np.float64(chunks), np.float64(m)))
        )


def test_orders_that_are_published() -> None:
    """ZB-V of PyTorch's ScheduleZBVZeroBubble on the first of two ranks; DualPipe's second rank of four with eight micro-batches."""
    short = {"forward": "F", "inputs": "I", "weight": "W", "backward": "B"}

    def text(name: str, *size: int) -> str:
        return " ".join("&".join(f"{short[q.kind]}{q.chunk}.{q.micro_batch}" for q in s) for s in schedule(name).order(*size))

    assert text("zb-v", 0, 2, 2, 4) == (
        "F0.0 F0.1 F0.2 F1.0 I1.0 W1.0 F1.1 I1.1 W1.1 F0.3 I0.0 W0.0 F1.2 I1.2 W1.2 I0.1 W0.1 F1.3 I1.3 W1.3 I0.2 W0.2 I0.3 W0.3"
    )
    assert text("zb-h1", 1, 3, 1, 4) == "F0.0 F0.1 I0.0 F0.2 I0.1 W0.0 F0.3 I0.2 W0.1 I0.3 W0.2 W0.3"
    assert text("dualpipe", 1, 4, 2, 8) == ("F0.0 F1.1 F0.2 F1.3 F0.4 B1.1 F1.5&B0.0 F0.6&B1.3 F1.7&B0.2 B1.5 B0.4 I1.7 I0.6 W1.7 W0.6")


FORK = (
    ("zb-h1", 2, 4, (10, 12, 8), 134.0),
    ("zb-h1", 3, 10, (10, 9, 7), 284.0),
    ("zb-h1", 4, 2, (20, 22, 17), 227.0),
    ("zb-h1", 4, 8, (20, 22, 17), 547.0),
    ("zb-h1", 4, 32, (10, 10, 10), 990.0),
    ("zb-h1", 8, 3, (10, 9, 7), 197.0),
    ("zb-h1", 8, 8, (20, 22, 17), 647.0),
    ("zb-h1", 8, 25, (10, 12, 8), 848.0),
    ("zb-h1", 8, 32, (10, 9, 7), 916.0),
    ("zb-v", 2, 7, (10, 12, 8), 216.0),
    ("zb-v", 3, 6, (20, 22, 17), 376.0),
    ("zb-v", 4, 8, (10, 10, 10), 255.0),
    ("zb-v", 4, 13, (10, 9, 7), 354.5),
    ("zb-v", 8, 16, (20, 22, 17), 1021.0),
    ("zb-v", 8, 25, (10, 9, 7), 688.5),
    ("zb-v", 8, 32, (10, 12, 8), 1002.0),
)
"""Length of what the zero-bubble fork's own schedulers (zb.py with memory for p micro-batches, zbv.py; 39f2c186) made of ranks,
micro-batches and seconds of forward, input and weight gradients of a stage, without sends."""


@pytest.mark.parametrize(("name", "p", "m", "parts", "length"), FORK)
def test_the_zero_bubble_fork_takes_as_long(name: str, p: int, m: int, parts: tuple[int, int, int], length: float) -> None:
    """Its order for a V is at most half a unit longer where the passes are unlike."""
    f, inputs, w = (float(x) for x in parts)
    closed, simulated = both(name, [f] * p, [inputs + w] * p, [w] * p, m)
    assert closed == pytest.approx(simulated, rel=1e-12)
    assert closed == pytest.approx(length, abs=1e-9 if name == "zb-h1" else 0.5)


@pytest.mark.parametrize("name", names())
def test_one_stage_has_no_bubble(name: str) -> None:
    assert float(schedule(name).seconds(line([1.0], [2.0], [1.0], 7))) == pytest.approx(21.0)


@pytest.mark.parametrize(("better", "worse"), [("interleaved", "1f1b"), ("zb-h1", "1f1b"), ("zb-v", "zb-h1"), ("1f1b", "gpipe")])
def test_order_of_schedules(better: str, worse: str) -> None:
    given_line = line([1.0] * 4, [2.0] * 4, [1.0] * 4, 8, 2)
    assert float(schedule(better).seconds(given_line)) <= float(schedule(worse).seconds(given_line))


@pytest.mark.parametrize("name", names())
def test_no_stage_runs_two_passes_at_once(name: str) -> None:
    events = simulate(name, Durations(forward=[1.0, 1.5, 1.0], backward=[2.0, 2.0, 3.0], weight=[1.0, 1.0, 1.5]), 6, 2)
    for stage in range(3):
        own: list[Event] = sorted((e for e in events if e.stage == stage), key=lambda e: e.start_seconds)
        assert all(a.end_seconds <= b.start_seconds + 1e-12 for a, b in zip(own, own[1:], strict=False))
        assert sum(e.end_seconds - e.start_seconds for e in own) == pytest.approx(
            6 * ([3.5, 3.5, 3.5] if name == "dualpipe" else [3.0, 3.5, 4.0])[stage]
        )


def test_simulation_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="multiples of the 2 stages"):
        simulate("interleaved", Durations(forward=[1.0, 1.0], backward=[1.0, 1.0]), 3, 2)
    with pytest.raises(KeyError, match="no schedule is called"):
        simulate("looped", Durations(forward=[1.0], backward=[1.0]), 2)
