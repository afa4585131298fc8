"""CP-SAT against exhaustive enumeration; the bound; scaling; determinism."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solver.chain import MAX_VALUE, Chain, Option, ScaleError, Solution, longest, quantum_for
from planner.solver.solve import solve


def exhaustive(chain: Chain) -> tuple[float, tuple[int, ...]] | None:
    """The best choice by trying all of them."""
    best = None
    for chosen in product(*(range(len(s)) for s in chain.stages)):
        layer = 0
        for options, i in zip(chain.stages, chosen, strict=True):
            if options[i].start != layer:
                break
            layer += options[i].layers
        else:
            if layer == chain.layers and (best is None or longest(chain, chosen) < best[0]):
                best = (longest(chain, chosen), chosen)
    return best


def one_f_one_b(stages: int, m: int) -> tuple[tuple[float, ...], ...]:
    """Weights of 1F1B's paths: all stages once, stage j for the steady part, the stages after it once more."""
    return tuple(
        tuple(1.0 + (m - 1.0 - (stages - 1 - j) if s == j else 0.0) + (1.0 if s > j else 0.0) for s in range(stages)) for j in range(stages)
    )


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    stages = draw(st.integers(1, 4))
    layers = draw(st.integers(stages, 8))
    seconds = st.floats(1e-4, 2.0, allow_nan=False)
    filled = []
    for s in range(stages):
        starts = [0] if s == 0 else list(range(s, layers - (stages - s) + 1))
        options = []
        for start in starts:
            sizes = [layers - start] if s == stages - 1 else list(range(1, layers - start - (stages - s - 1) + 1))
            options += [Option(start=start, layers=n, seconds=draw(seconds)) for n in sizes if draw(st.booleans()) or s == stages - 1]
        filled.append(tuple(options))
    m = draw(st.integers(stages, 3 * stages))
    return Chain(stages=tuple(filled), layers=layers, paths=one_f_one_b(stages, m))


@settings(max_examples=120, deadline=None)
@given(chains())
def test_solver_equals_enumeration(chain: Chain) -> None:
    """Same optimum as trying everything, within the quantum times the weights; infeasible alike; the bound is a bound."""
    best, found = exhaustive(chain), solve(chain)
    if best is None or not all(chain.stages):
        assert found is None
        return
    assert found is not None
    assert found.proved
    slack = found.quantum_seconds * max(sum(p) for p in chain.paths)
    assert best[0] <= found.seconds + 1e-12
    assert found.seconds <= best[0] + slack
    assert found.bound_seconds <= best[0] + 1e-12
    assert found.seconds - found.bound_seconds <= 2.0 * slack


@settings(max_examples=25, deadline=None)
@given(chains(), st.floats(0.2, 1.2))
def test_a_ceiling_hides_only_what_is_above_it(chain: Chain, part: float) -> None:
    best = exhaustive(chain)
    if best is None or not all(chain.stages):
        return
    ceiling = best[0] * part
    found = solve(chain, below_seconds=ceiling)
    slack = quantum_for(chain)[0] * max(sum(p) for p in chain.paths)
    if part >= 1.0:
        assert found is not None
    elif best[0] - ceiling > slack:
        assert found is None


def equal_chain(stages: int, layers: int, m: int) -> Chain:
    filled = []
    for s in range(stages):
        starts = [0] if s == 0 else list(range(s, layers - (stages - s) + 1))
        filled.append(tuple(Option(start=a, layers=n, seconds=0.01 * n) for a in starts for n in range(1, 4) if a + n <= layers))
    return Chain(stages=tuple(filled), layers=layers, paths=one_f_one_b(stages, m))


def test_equal_optima_are_told_apart_the_same_way_each_time() -> None:
    found: list[Solution | None] = [solve(equal_chain(6, 13, 24)) for _ in range(3)]
    assert found[0] is not None
    assert found[0] == found[1] == found[2]


def test_numbers_that_do_not_fit_are_refused() -> None:
    long = Chain(stages=((Option(start=0, layers=1, seconds=1e15),),), layers=1, paths=((1.0,),))
    with pytest.raises(ScaleError, match=str(MAX_VALUE)):
        quantum_for(long)
    coarse = Chain(stages=((Option(start=0, layers=1, seconds=1e11),),), layers=1, paths=((1.0,),))
    assert 1e-6 < quantum_for(coarse)[0] <= 1e-3


def test_fractions_of_weights_stay_whole() -> None:
    thirds = Chain(
        stages=((Option(start=0, layers=1, seconds=0.3),), (Option(start=1, layers=1, seconds=0.6),)),
        layers=2,
        paths=((1 / 3, 4.0), (4.0, 1 / 3)),
    )
    found = solve(thirds)
    assert found is not None
    assert found.seconds == pytest.approx(0.1 + 2.4)
    assert quantum_for(thirds)[1] == 3
