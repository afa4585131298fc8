"""Ops shared by layouts: the same figures to the bit as without sharing and alone, and no op that reads more than it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import alike as alike_module
from cost_models.alike import LEAST, READ, alike
from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.ledger import Ledger, Term, add
from cost_models.numeric import num
from cost_models.training import Training
from hardware.cluster import parse_cluster

POOL = parse_cluster("512xH100-80G").pools[0]
MODELS = tuple(load(name) for name in ("llama-3.1-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3", "gemma-3-12b"))
TRAININGS: tuple[dict[str, Any], ...] = (
    {"framework": "megatron"},
    {"framework": "megatron", "mtp": True, "precision": "fp8"},
    {"framework": "torchtitan"},
    {"framework": "deepspeed", "date": "2021-06"},
    {"framework": "hf", "method": "qlora"},
    {"framework": "litgpt", "method": "lora", "lora_targets": ("q", "v", "head")},
    {"framework": "megatron", "method": "inference"},
)
CHOICES = (
    Choices(zero=1),
    Choices(zero=1, schedule="interleaved", recompute="full"),
    Choices(zero=2, recompute="selective", schedule="gpipe"),
    Choices(zero=3, sequence_parallel=False, offload="optimizer+params"),
    Choices(zero=0, schedule="zb-h1", sequence_parallel=False),
)
ROWS = LEAST + 50


def column(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64)[:, None]


def drawn(seed: int, choices: Choices, *, experts: bool, rows: int = ROWS) -> Layout:
    """A batch in which most ops occur several times; one degree in three of those that ops read is a single number for all."""
    draw = np.random.default_rng(seed)
    most = {"tp": 3, "pp": 4, "cp": 2, "dp": 5, "micro_batch": 3, "vpp": 2 if choices.schedule == "interleaved" else 1}
    most |= {"ep": 3, "etp": 2} if experts else {}
    degrees = {
        name: column(2.0 ** draw.integers(0, high, rows))
        if draw.integers(3) or name not in READ
        else np.float64(2.0 ** draw.integers(0, high))
        for name, high in most.items()
    }
    degrees["recompute_layers"] = column(draw.integers(-1, 3, rows))
    degrees["offload_fraction"], degrees["activation_offload"] = (
        column(draw.integers(1, 5, rows) / 4.0),
        column(draw.integers(0, 3, rows) / 2.0),
    )
    return Layout(degrees=Degrees(**degrees), choices=choices)


def figures(result: Any, rows: int) -> dict[str, Any]:
    """Every number of a cost by name, (rows,) or (rows, K)."""
    memory, time = result.memory, result.time
    found = {f"memory.{n}": getattr(memory, n) for n in ("peak_device_bytes", "stage_device_bytes", "stage_phase", "host_bytes_per_node")}
    found |= {f"time.{n}": getattr(time, n) for n in ("step_seconds", "mfu", "hfu", "stage_forward_seconds", "stage_backward_seconds")}
    for phase, ledger in (*memory.phases.items(), ("overhead", memory.overhead), ("host", memory.host), ("time", time.ledger)):
        found |= {f"{phase}.{t.name}": t.value for t in ledger.terms}
        found |= {f"{phase}.{t.name}.exposed": t.exposed for t in ledger.terms if t.exposed is not None}
    return found


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    model=st.sampled_from(MODELS),
    training=st.sampled_from(TRAININGS),
    choices=st.sampled_from(CHOICES),
)
def test_shared_ops_change_no_bit(seed: int, model: Any, training: dict[str, Any], choices: Choices) -> None:
    """Every term, stage value and total of a batch, with shared ops and with ops of each layout."""
    task = Training(**{"seq": 1024, "global_batch": 512, **training})
    batch = drawn(seed, choices, experts=model.moe is not None)
    shared = figures(cost(model, task, batch, POOL), ROWS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(alike_module, "LEAST", ROWS + 1)
        apart = figures(cost(model, task, batch, POOL), ROWS)
    assert shared.keys() == apart.keys()
    for name, value in apart.items():
        assert np.array_equal(*np.broadcast_arrays(num(shared[name]), num(value))), name
        assert not np.any(np.isnan(num(value))), name


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), model=st.sampled_from(MODELS), choices=st.sampled_from(CHOICES))
def test_a_layout_among_shared_ops_equals_itself_alone(seed: int, model: Any, choices: Choices) -> None:
    task = Training(framework="megatron", seq=1024, global_batch=512)
    batch = drawn(seed, choices, experts=model.moe is not None)
    many = cost(model, task, batch, POOL)
    for i in (0, ROWS // 2, ROWS - 1):
        one = cost(model, task, batch.row(i), POOL)
        assert many.time.step_seconds[i] == one.time.step_seconds  # type: ignore[index]
        assert many.memory.peak_device_bytes[i] == one.memory.peak_device_bytes  # type: ignore[index]
        assert many.memory.peak_stage[i] == one.memory.peak_stage


@given(st.integers(0, 2**20))
def test_each_kind_of_ops_stands_once_and_every_layout_has_its_own(seed: int) -> None:
    batch = drawn(seed, Choices(), experts=True)
    few, rows = alike(batch)
    if rows is None:
        assert few is batch or few.size == 1
        return
    read = [name for name in READ if num(getattr(batch.degrees, name)).size > 1]
    kinds = np.concatenate([num(getattr(few.degrees, name)) for name in read], axis=1)
    piped = num(few.degrees.pp) * np.ones((len(kinds), 1))
    assert len(np.unique(np.concatenate([kinds, piped], axis=1), axis=0)) == len(kinds) <= ROWS // 2
    for name in read:
        assert np.array_equal(num(getattr(few.degrees, name))[rows], getattr(batch.degrees, name))
    assert np.array_equal(np.broadcast_to(num(few.degrees.pp) > 1.0, piped.shape)[rows], np.broadcast_to(batch.degrees.pp, (ROWS, 1)) > 1.0)
    assert np.isnan(num(few.degrees.dp)).all()


def test_nothing_is_shared_where_it_would_not_pay_or_keys_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    every = Layout(degrees=Degrees(micro_batch=column(np.arange(1.0, ROWS + 1.0)), dp=column(np.ones(ROWS))), choices=Choices())
    assert alike(every) == (every, None)
    few, rows = alike(Layout(degrees=Degrees(tp=column(np.full(ROWS, 2.0)), dp=column(np.arange(ROWS))), choices=Choices()))
    assert few.size == 1
    assert rows is None
    batch = drawn(3, Choices(), experts=True)
    assert alike(batch)[1] is not None
    monkeypatch.setattr(alike_module, "_WEIGHTS", (0.0,) * 6)
    assert alike(batch) == (batch, None)


SHAPES = ((), (7, 1), (7, 3), (1, 1), (1, 3), (3,))


@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.integers(0, 2**20)), max_size=9))
def test_sums_are_those_from_left_to_right(parts: list[tuple[tuple[int, ...], int]]) -> None:
    """Sums in one array, and ledgers that go on from another's sum, have the bits of plain additions; no value is written to."""
    values = [np.random.default_rng(seed).normal(size=shape) for shape, seed in parts]
    before = [v.copy() for v in values]
    wanted = np.zeros(())
    for value in values:
        wanted = wanted + value
    terms = tuple(Term(name=f"a.{i}", value=v, source="drawn") for i, v in enumerate(values))
    for cut in range(len(terms) + 1):
        ledger = Ledger("s").plus(*terms[:cut]).plus(*terms[cut:])
        assert np.array_equal(ledger.total, wanted)
        assert ledger.terms == terms
    assert np.array_equal(add(values), wanted)
    assert all(np.array_equal(a, b) for a, b in zip(values, before, strict=True))
