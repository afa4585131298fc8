"""Labels against every choice, tried one by one: their floors, their optimum under a ceiling, and the choice that they prove."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.choices.schedules import schedule
from planner import earliest as earliest_module
from planner import labels as labels_module
from planner.earliest import earliest, in_ticks
from planner.label_rules import PACES, RULES
from planner.labels import least, searches, within
from planner.paths import VALUES, passes
from planner.solver.chain import Chain, objective, quantum_for
from planner.solver.solve import solve
from planner.spans import Spans
from planner.windows import Shape
from tests.planner.test_solver import chains, covers, equal_chain, line_of, option, stage_times

Times = tuple[str, int, float, float, list[tuple[float, float, float]]]


def shape_of(name: str, stages: int, layers: int, m: float, vpp: float) -> Shape:
    """What labels read of a shape: the schedule."""
    return Shape(
        schedule=name,
        stages=stages,
        vpp=int(vpp),
        micro_batches=m,
        passes=passes(name, stages, m, vpp),
        layers=layers,
        send=(0.0, 0.0),
        first=(0.0, 0.0),
        last=(0.0, 0.0),
        kinds=((0.0, 0.0),),
        before=np.arange(layers + 1).reshape(1, -1),
        whole=(0.0, 0.0),
        once_seconds=0.0,
        share=1.0,
        constant_seconds=0.0,
    )


def of_labels(shape: Shape, chain: Chain, chosen: tuple[int, ...]) -> float:
    """What the labels of a whole choice come to, without floors or ceilings."""
    label, extend, _, finish = RULES[shape.schedule]
    taken = [options[i].values for options, i in zip(chain.stages, chosen, strict=True)]
    for stage, values in enumerate(taken):
        label = extend(shape, stage)(values, label)
    return finish(shape, label) + max(sum(values[VALUES[shape.schedule] :]) for values in taken)


def choices(chain: Chain) -> list[tuple[int, ...]]:
    return [c for c in product(*(range(len(options)) for options in chain.stages)) if covers(chain, c)]


@settings(max_examples=1000, deadline=None)
@given(stage_times())
def test_floors_are_below_the_schedule(drawn: Times) -> None:
    """From no stage to all: what a label and the stages to go come to at least is no more than the schedule's own formula gives."""
    name, stages, m, vpp, times = drawn
    whole = float(np.asarray(schedule(name).seconds(line_of(stages, m, vpp, times))))
    chain = Chain(stages=tuple((option(name, stages, m, t),) for t in times), layers=stages, nodes=())
    (search,) = searches(shape_of(name, stages, stages, m, vpp), chain)
    label = search.start
    assert search.floors[0](label, search.to_go[0][0]) <= whole * (1.0 + 1e-12)
    for stage, options in enumerate(chain.stages):
        label = search.extends[stage](options[0].values, label)
        assert search.floors[stage](label, search.to_go[stage + 1][stage + 1]) <= whole * (1.0 + 1e-12)


@settings(max_examples=400, deadline=None)
@given(chains(), st.floats(0.9, 1.3))
def test_a_ceiling_and_floors_hide_no_choice_below_it(drawn: tuple[Shape, Chain], part: float) -> None:
    """The optimum of the labels is the least of all choices' labels, whatever is pruned on the way."""
    shape, chain = drawn
    best = min((of_labels(shape, chain, c) for c in choices(chain)), default=None)
    if best is None:
        assert least(shape, chain, float("inf")) == (float("inf"), ())
        return
    found, chosen = least(shape, chain, part * best)
    if part > 1.0 + 1e-9:
        assert found == pytest.approx(best, rel=1e-12)
        assert of_labels(shape, chain, chosen) == pytest.approx(best, rel=1e-12)
    elif part < 1.0 - 1e-9:
        assert (found, chosen) == (float("inf"), ())
    level = min(o.level for options in chain.stages for o in options)
    one = Chain(stages=tuple(tuple(o for o in options if o.level == level) for options in chain.stages), layers=chain.layers, nodes=())
    own = min((of_labels(shape, one, c) for c in choices(one)), default=float("inf"))
    if own < float("inf") and abs(part - 1.0) > 1e-9:
        assert within(shape, one, part * own) == (part > 1.0)


@settings(max_examples=300, deadline=None)
@given(chains(), st.floats(1.0, 1.5))
def test_what_labels_prove_is_what_cp_sat_proves(drawn: tuple[Shape, Chain], part: float) -> None:
    """The same solution to the last digit: the first in the order of the options among all whose whole quanta are fewest."""
    shape, chain = drawn
    _, hint = least(shape, chain, float("inf"))
    if not hint:
        return
    below = part * objective(chain, hint)
    found = earliest(shape, chain, below, hint)
    if found is None:
        assert shape.schedule in ("interleaved", "zb-v")
        return
    ticks = in_ticks(chain, quantum_for(chain)[0])
    fewest = min(objective(ticks, c) for c in choices(chain))
    assert found.chosen == min(c for c in choices(chain) if objective(ticks, c) == fewest)
    assert found == solve(chain, below_seconds=below, hint=hint)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=3, max_size=14), st.integers(1, 4), st.data())
def test_spans_are_the_runs_of_layers(kinds: list[int], stages: int, data: st.DataObject) -> None:
    """Each run of layers within the windows once, with the starts that give it, whatever other models were asked for before."""
    stages, layers = min(stages, len(kinds)), len(kinds)
    low = tuple(data.draw(st.integers(0, layers // stages)) for _ in range(stages))
    high = tuple(data.draw(st.integers(max(n, layers // stages), layers)) for n in low)
    if sum(high) < layers:
        return
    before = np.array([[kinds[:i].count(kind) for i in range(layers + 1)] for kind in dict.fromkeys(kinds)], dtype=np.int64)
    spans = Spans(low=low, high=high, before=before)
    found: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for stage, starts in enumerate(spans.starts):
        for held, start in product(range(low[stage], high[stage] + 1), starts):
            if start + held <= layers:
                mix = tuple(kinds[start : start + held].count(kind) for kind in dict.fromkeys(kinds))
                found.setdefault((stage, held, mix), []).append(start)
    if len(before) == 1:
        found = {key: [start for start in good[:1] if start == spans.starts[key[0]][0]] for key, good in found.items()}
    assert spans.keys == [key for key, good in found.items() if good]
    for key, good in found.items():
        everywhere = len(before) == 1 or key[0] == 0 or len(good) == len(spans.starts[key[0]])
        assert spans.begins(key) == (None if everywhere else tuple(good))


def test_a_choice_beyond_the_ceiling_proves_nothing() -> None:
    chain = equal_chain(4, 8, 9)
    shape = shape_of("gpipe", 4, 8, 9.0, 1.0)
    _, hint = least(shape, chain, float("inf"))
    assert earliest(shape, chain, 0.9 * objective(chain, hint), hint) is None


def test_equal_optima_are_told_apart_as_cp_sat_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in lexicographic order, from any of them; past the steps that are allowed nothing is said."""
    chain, shape = equal_chain(5, 11, 20), shape_of("gpipe", 5, 11, 20.0, 1.0)
    solution = solve(chain)
    assert solution is not None
    equal = [c for c in choices(chain) if objective(chain, c) <= solution.seconds + 1e-9]
    assert len(equal) > 1
    for hint in equal:
        found = earliest(shape, chain, float("inf"), hint)
        assert found is not None
        assert found.chosen == min(equal) == solution.chosen
    monkeypatch.setattr(earliest_module, "MAX_STEPS", 3)
    assert earliest(shape, chain, 10.0, equal[0]) is None


def test_a_pace_that_is_too_slow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the tests above: a pace of the stages to go that is a twentieth too long makes them fail."""

    def planted(name: str) -> object:
        return lambda shape, stage: lambda values: 1.05 * PACES[name](shape, stage)(values)

    monkeypatch.setattr(labels_module, "PACES", {name: planted(name) for name in PACES})
    for test in (test_floors_are_below_the_schedule, test_a_ceiling_and_floors_hide_no_choice_below_it):
        with pytest.raises(AssertionError):
            test()
