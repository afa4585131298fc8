"""What the search's pruning takes for granted, held against the cost models on random lawful layouts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.ledger import add
from cost_models.numeric import num
from planner.asked import make_request
from planner.evaluate import STATES, evaluate, take, totals
from planner.request import Resolved, resolve
from planner.search import spaces
from planner.space import Counts, Group

if TYPE_CHECKING:
    from cost_models.layout import Layout

REQUESTS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "cluster": "4x8xA100-80G", "global_batch": 64},
    "experts": {"model": "deepseek-ai/DeepSeek-V2-Lite", "cluster": "2x8xH100-80G", "global_batch": 32, "seq": 4096},
    "learned positions": {"model": "facebook/opt-13b", "cluster": "2x8xA100-40G", "global_batch": 32, "precision": "fp16"},
    "sliding": {"model": "google/gemma-2-9b", "cluster": "8xA100-80G", "global_batch": 16, "seq": 8192},
    "lora": {"model": "llama-3.1-8b", "cluster": "8xA100-40G", "method": "lora", "global_batch": 16},
}  # fmt: skip
ROWS = 40


@cache
def asked(name: str) -> Resolved:
    return resolve(make_request(REQUESTS[name]))


def drawn(name: str, seed: int) -> list[tuple[Group, np.ndarray[Any, np.dtype[np.intp]]]]:
    """Some rows of every group, drawn at random."""
    random = np.random.default_rng(seed)
    resolved = asked(name)
    found = []
    for group in spaces(resolved, resolved.cluster.pools[0], Counts()):
        found.append((group, np.sort(random.permutation(len(group))[:ROWS])))
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_less_recompute_is_never_slower(name: str) -> None:
    for group, rows in drawn(name, 1):
        seconds = [totals(group.case, group.layouts(v, rows)).step_seconds for v in range(len(group.variants))]
        for less, more in zip(seconds, seconds[1:], strict=False):
            assert np.all(less <= more * (1.0 + 1e-12)), (group.case.framework, group.choices)


@pytest.mark.parametrize("name", REQUESTS)
def test_no_offload_is_never_slower(name: str) -> None:
    plain: dict[tuple[Any, ...], dict[int, float]] = {}
    for group, rows in drawn(name, 2):
        c = group.choices
        key = (group.case.framework, c.zero, c.schedule, c.sequence_parallel)
        if c.offload == "none":
            every = totals(group.case, group.layouts(0)).step_seconds
            plain[key] = dict(zip(group.codes.tolist(), every.tolist(), strict=True))
            continue
        seconds = totals(group.case, group.layouts(0, rows)).step_seconds
        for code, mine in zip(group.codes[rows].tolist(), seconds.tolist(), strict=True):
            assert plain.get(key, {}).get(code, 0.0) <= mine * (1.0 + 1e-12)


@pytest.mark.parametrize("name", REQUESTS)
def test_states_are_those_of_the_family(name: str) -> None:
    """States depend on neither recompute nor micro-batch, and are a lower bound of the device bytes."""
    for group, _ in drawn(name, 3):
        known: dict[int, float] = {}
        for v in range(len(group.variants)):
            found = totals(group.case, group.layouts(v))
            assert np.all(found.states_bytes <= found.device_bytes)
            for family, states in zip(group.families.tolist(), found.states_bytes.tolist(), strict=True):
                assert known.setdefault(family, states) == pytest.approx(states, rel=1e-12)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_batch_equals_its_rows_bit_for_bit(name: str) -> None:
    """Totals of a row in a batch, alone, and with every stage listed are the same floats."""
    for group, rows in drawn(name, 4):
        for v in range(len(group.variants)):
            batch = group.layouts(v, rows)
            found = totals(group.case, batch)
            for i in range(0, len(rows), 7):
                one: Layout = batch.row(i)
                for every in (False, True):
                    alone = evaluate(group.case, one, every=every)
                    assert float(num(alone.time.step_seconds)) == found.step_seconds[i]
                    assert float(num(alone.memory.peak_device_bytes)) == found.device_bytes[i]
                    assert float(num(alone.memory.host_bytes_per_node)) == found.host_bytes[i]
                states = (add(t.value for t in x.terms if t.bucket in STATES) for x in alone.memory.phases.values())
                assert max(float(np.max(x)) for x in states) == found.states_bytes[i]
                picked = totals(group.case, take(batch, np.array([i])))
                assert picked.step_seconds[0] == found.step_seconds[i]


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_higher_zero_stages_hold_no_more_states(name: str) -> None:
    """States under ZeRO 3 ≤ 2 ≤ 1 ≤ 0 for the same degrees, per framework."""
    best: dict[tuple[Any, ...], dict[int, tuple[int, float]]] = {}
    for group, _ in drawn(name, 5):
        c = group.choices
        if c.offload != "none":
            continue
        key = (group.case.framework, c.schedule, c.sequence_parallel)
        states = totals(group.case, group.layouts(0)).states_bytes
        seen = best.setdefault(key, {})
        for code, size in zip(group.codes.tolist(), states.tolist(), strict=True):
            zero, before = seen.get(code, (c.zero, size))
            if c.zero >= zero:
                assert size <= before * (1.0 + 1e-12)
            else:
                assert size >= before * (1.0 - 1e-12)
            seen[code] = (c.zero, size)


AXES = {"tp": ("tp", "etp"), "sp": ("tp",), "cp": ("cp",), "ep": ("ep",), "pp": ("pp",)}
"""First part of a time term -> the degrees of which one is above 1 where the term is."""


@pytest.mark.parametrize("name", REQUESTS)
def test_terms_of_a_step_are_possible(name: str) -> None:
    """No term is negative or exposed for longer than it is busy; traffic is of groups that are there; no step outruns its peak."""
    for group, rows in drawn(name, 5):
        for v in (0, len(group.variants) - 1):
            layout = group.layouts(v, rows[:1]).row(0) if len(rows) else None
            if layout is None:
                continue
            time = evaluate(group.case, layout).time
            assert 0.0 < float(num(time.mfu)) <= float(num(time.hfu)) * (1.0 + 1e-12) < 0.9
            for term in time.ledger.terms:
                busy = float(np.max(num(term.value)))
                shown = busy if term.exposed is None else float(np.max(num(term.exposed)))
                assert -1e-9 <= shown <= busy * (1.0 + 1e-9) + 1e-12, (term.name, layout)
                axes = AXES.get(term.bucket)
                if axes and busy > 1e-9:
                    assert any(float(num(getattr(layout.degrees, axis))) > 1.0 for axis in axes), (term.name, layout)
