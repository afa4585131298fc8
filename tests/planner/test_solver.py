"""CP-SAT and the labels against exhaustive enumeration; paths and bounds against the schedules; scaling; determinism."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.choices.pipeline import Line
from cost_models.choices.schedules import schedule
from planner import labels as labels_module
from planner.bounds import SPLIT, longest_path_part
from planner.label_rules import NEVER, RULES
from planner.labels import least
from planner.mixed.ways import convex_from
from planner.paths import VALUES, nodes, passes, values
from planner.paths import least as least_path
from planner.solver.chain import MAX_VALUE, NODE, Chain, Node, Option, ScaleError, Solution, objective, quantum_for, slack
from planner.solver.solve import solve
from planner.windows import Shape

TERMS = 2


@st.composite
def stage_times(draw: st.DrawFn) -> tuple[str, int, float, float, list[tuple[float, float, float]]]:
    """A schedule, its stages, micro-batches and chunks, and forward, backward and weight gradient of each stage."""
    name = draw(st.sampled_from(SPLIT))
    stages = draw(st.integers(2, 7))
    m = draw(st.integers(1, 20))
    vpp = draw(st.integers(2, 4)) if name == "interleaved" else 1
    seconds = st.floats(1e-3, 2.0, allow_nan=False)
    times = [(draw(seconds), b := draw(seconds), b * draw(st.floats(0.0, 0.9))) for _ in range(stages)]
    return name, stages, float(m), float(vpp), times


def covers(chain: Chain, chosen: tuple[int, ...]) -> bool:
    """Tell whether a choice keeps the constraints."""
    start, levels = 0, set()
    for options, i in zip(chain.stages, chosen, strict=True):
        starts = options[i].starts
        if starts is not None and start not in starts:
            return False
        start += options[i].layers
        levels.add(options[i].level)
    return start == chain.layers and len(levels) == 1


def line_of(stages: int, m: float, vpp: float, times: list[tuple[float, float, float]]) -> Line:
    f, b, w = (np.array(x) for x in zip(*times, strict=True))
    return Line(
        forward=f,
        backward=b,
        weight=w,
        behind=stages - 1.0 - np.arange(stages),
        before=np.concatenate([[0.0], np.cumsum(f + b)[:-1]]),
        forward_sum=np.float64(f.sum()),
        backward_sum=np.float64(b.sum()),
        weight_sum=np.float64(w.sum()),
        pp=np.float64(stages),
        vpp=np.float64(vpp),
        micro_batches=np.float64(m),
        listed=True,
    )


def option(
    name: str,
    stages: int,
    m: float,
    time: tuple[float, float, float],
    once: tuple[float, ...] = (),
    *,
    layers: int = 1,
    level: int = 0,
) -> Option:
    f, b, w = time
    taken = values(name, np.array([f]), np.array([b]), np.array([w]))
    return Option(layers=layers, values=(*(float(v[0]) for v in taken), *once), level=level)


@settings(max_examples=400, deadline=None)
@given(stage_times())
def test_paths_are_the_schedules(drawn: tuple[str, int, float, float, list[tuple[float, float, float]]]) -> None:
    """What the solver minimises is the schedule's own formula; both bounds of it are bounds."""
    name, stages, m, vpp, times = drawn
    wanted = float(np.asarray(schedule(name).seconds(line_of(stages, m, vpp, times))))
    chain = Chain(stages=tuple((option(name, stages, m, t),) for t in times), layers=stages, nodes=nodes(name, stages, m, vpp, 0))
    assert objective(chain, (0,) * stages) == pytest.approx(wanted, rel=1e-12)
    f, b = (np.array([t[i] for t in times]) for i in (0, 1))
    floors = least_path(name, np.arange(stages, dtype=np.float64), stages, m, vpp, (f, b), (float(f.sum()), float(b.sum())))
    assert np.all(floors <= wanted * (1.0 + 1e-9))
    if name in ("1f1b", "interleaved"):
        assert longest_path_part(name, stages, int(m), vpp) * float((f + b).sum()) <= wanted * (1.0 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(stage_times(), st.integers(0, 12), st.integers(1, 9), st.integers(1, 9))
def test_time_is_convex_in_the_micro_batches(
    drawn: tuple[str, int, float, float, list[tuple[float, float, float]]], first: int, more: int, further: int
) -> None:
    """From so many on as `convex_from` says: what bounds the shares of unlike pools rests on it."""
    name, stages, _, vpp, times = drawn
    group = stages if name == "interleaved" else 1
    counts = [convex_from(name, stages) + group * k for k in (first, first + more, first + more + further)]
    a, b, c = (float(np.asarray(schedule(name).seconds(line_of(stages, m, vpp, times)))) for m in counts)
    assert b <= (a * further + c * more) / (more + further) * (1.0 + 1e-9)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Shape, Chain]:
    """A small stage problem: layers whose times add up, recompute as further options, two levels of offload, terms of once a step."""
    name = draw(st.sampled_from(SPLIT))
    stages, vpp = draw(st.integers(2, 4)), 2 if name == "interleaved" else 1
    layers = draw(st.integers(stages, 8))
    m = float(draw(st.integers(1, 3 * stages)))
    seconds = st.floats(1e-3, 1.0, allow_nan=False)
    layer, ends = (draw(seconds), draw(seconds)), [(draw(seconds), draw(seconds)) for _ in range(2)]
    filled = []
    for s in range(stages):
        options = []
        for n in range(1, layers - stages + 2):
            for level in (0, 1):
                if not draw(st.integers(0, 4)):
                    continue
                again = draw(st.integers(0, n)) * draw(st.floats(0.0, 1.0))
                f, b = (n * layer[i] + ends[0][i] * (s == 0) + ends[1][i] * (s == stages - 1) for i in (0, 1))
                once = tuple(n * draw(seconds) + 3.0 * level for _ in range(TERMS))
                options.append(option(name, stages, m, (f, b + again, 0.3 * b), once, layers=n, level=level))
        filled.append(tuple(options))
    whole = tuple(layers * layer[i] + ends[0][i] + ends[1][i] for i in (0, 1))
    shape = Shape(
        schedule=name,
        stages=stages,
        vpp=vpp,
        micro_batches=m,
        passes=passes(name, stages, m, float(vpp)),
        layers=layers,
        send=(0.0, 0.0),
        first=ends[0],
        last=ends[1],
        kinds=(layer,),
        before=np.arange(layers + 1).reshape(1, -1),
        whole=(whole[0], whole[1]),
        once_seconds=0.0,
        share=1.0,
        constant_seconds=0.0,
    )
    return shape, Chain(stages=tuple(filled), layers=layers, nodes=nodes(name, stages, m, float(vpp), TERMS))


def exhaustive(chain: Chain) -> tuple[float, tuple[int, ...]] | None:
    """The best choice by trying all of them, the first in lexicographic order among equals."""
    best = None
    for chosen in product(*(range(len(s)) for s in chain.stages)):
        if covers(chain, chosen) and (best is None or objective(chain, chosen) < best[0]):
            best = (objective(chain, chosen), chosen)
    return best


@settings(max_examples=500, deadline=None)
@given(chains())
def test_solver_equals_enumeration(drawn: tuple[Shape, Chain]) -> None:
    """Same optimum as trying everything, within the quantum; infeasible alike; the bounds of solver and labels are bounds."""
    shape, chain = drawn
    best, found = exhaustive(chain), solve(chain)
    assert found is not None
    assert found.proved
    if best is None:
        assert found.chosen == ()
        return
    rounding = found.quantum_seconds * slack(chain)
    assert covers(chain, found.chosen)
    assert best[0] - 1e-12 <= found.seconds <= best[0] + 2.0 * rounding
    assert found.bound_seconds <= best[0] + 1e-12
    bound, hint = least(shape, chain, float("inf"))
    assert bound <= best[0] * (1.0 + 1e-12)
    assert covers(chain, hint)


@settings(max_examples=100, deadline=None)
@given(chains(), st.floats(0.2, 1.2))
def test_a_ceiling_hides_only_what_is_above_it(drawn: tuple[Shape, Chain], part: float) -> None:
    shape, chain = drawn
    best = exhaustive(chain)
    if best is None:
        return
    ceiling = best[0] * part
    found = solve(chain, below_seconds=ceiling)
    assert found is not None
    rounding = found.quantum_seconds * slack(chain)
    if part >= 1.0:
        assert found.chosen
        assert least(shape, chain, ceiling)[0] <= best[0] * (1.0 + 1e-12)
    elif best[0] - ceiling > 2.0 * rounding:
        assert not found.chosen


def test_a_wrong_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the tests above: a floor of labels that is a twentieth too high makes them fail."""
    start, extend, floor, finish = RULES["1f1b"]
    planted = {name: (start, extend, floor, lambda shape, label: 1.05 * finish(shape, label)) for name in ("1f1b", "interleaved")}
    monkeypatch.setattr(labels_module, "RULES", {**RULES, **planted})
    with pytest.raises(AssertionError):
        test_solver_equals_enumeration()
    assert NEVER < 0.0


def equal_chain(stages: int, layers: int, m: int) -> Chain:
    filled = tuple(
        tuple(option("gpipe", stages, float(m), (0.01 * n, 0.02 * n, 0.0), layers=n) for n in range(1, 4)) for _ in range(stages)
    )
    return Chain(stages=filled, layers=layers, nodes=nodes("gpipe", stages, float(m), 1.0, 0))


def test_equal_optima_are_told_apart_the_same_way_each_time() -> None:
    """The first in lexicographic order, whatever the solver meets first."""
    chain = equal_chain(5, 11, 20)
    found: list[Solution | None] = [solve(chain) for _ in range(3)]
    assert found[0] is not None
    assert found[0] == found[1] == found[2]
    equal = [c for c in product(range(3), repeat=5) if covers(chain, c) and objective(chain, c) <= found[0].seconds + 1e-9]
    assert len(equal) > 1
    assert found[0].chosen == min(equal)


def test_layers_that_must_begin_somewhere() -> None:
    """An option that names starts is taken at those alone."""
    first = tuple(Option(layers=n, values=(1.0 * n,)) for n in (1, 2, 3))
    second = (Option(layers=2, values=(0.1,), starts=(3,)), Option(layers=3, values=(5.0,)))
    one = Node((((0, 0, 1.0), (1, 0, 1.0)),), counts=True)
    found = solve(Chain(stages=(first, second), layers=5, nodes=(one,)))
    assert found is not None
    assert found.chosen == (2, 0)


def test_numbers_that_do_not_fit_are_refused() -> None:
    def long(seconds: float) -> Chain:
        return Chain(stages=((Option(layers=1, values=(seconds,)),),), layers=1, nodes=(Node((((0, 0, 1.0),),), counts=True),))

    with pytest.raises(ScaleError, match=str(MAX_VALUE)):
        quantum_for(long(1e15))
    assert 1e-6 < quantum_for(long(1e11))[0] <= 1e-3
    assert quantum_for(long(1e-3))[0] < 1e-6


def test_fractions_of_weights_stay_whole() -> None:
    """Nodes that follow from each other keep their thirds."""
    inner = Node((((0, 0, 1 / 3),), ((1, 0, 1 / 3),)))
    outer = Node((((NODE, 0, 1 / 3), (0, 0, 4.0)),), counts=True)
    thirds = Chain(stages=((Option(layers=1, values=(0.3,)),), (Option(layers=1, values=(0.6,)),)), layers=2, nodes=(inner, outer))
    found = solve(thirds)
    assert found is not None
    assert found.seconds == pytest.approx(0.6 / 9.0 + 1.2)
    assert found.bound_seconds == pytest.approx(found.seconds, abs=1e-5)
    assert quantum_for(thirds)[1] == 3
    assert VALUES["1f1b"] == 2
