"""Stages: the balanced split, explicit splits and the three stages that stand for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.architecture import Architecture, Moe
from cost_models.layout import Choices, Degrees, Layout
from cost_models.stages import chunk_start, layer_kinds, stages


def model(layers: int, *, first_k_dense: int = 0, layer_freq: int = 1, every: int = 0) -> Architecture:
    """A small MoE model with `layers` layers."""
    return Architecture(
        id="toy",
        family="toy",
        layers=layers,
        hidden=64,
        ffn_hidden=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=256,
        sliding_window=8 if every else None,
        full_attention_every=every,
        moe=Moe(num_experts=4, topk=2, moe_ffn_hidden=32, first_k_dense=first_k_dense, layer_freq=layer_freq),
    )


def split(layers: int, pp: int, vpp: int = 1) -> list[int]:
    """Layers of each chunk of the balanced split, in model order."""
    starts = [int(chunk_start(layers, pp, vpp, float(c))) for c in range(pp * vpp + 1)]
    return [b - a for a, b in zip(starts, starts[1:], strict=False)]


shapes = st.integers(1, 24).flatmap(
    lambda pp: st.integers(1, 4 if pp > 1 else 1).flatmap(lambda vpp: st.tuples(st.integers(pp * vpp, 160), st.just(pp), st.just(vpp)))
)


@given(shapes)
def test_balanced_split_holds_every_layer_once_and_differs_by_one(shape: tuple[int, int, int]) -> None:
    layers, pp, vpp = shape
    sizes = split(layers, pp, vpp)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == min(sizes)


def test_llama_405b_on_16_stages_is_one_lighter_at_both_ends() -> None:
    """Llama 3 (arXiv 2407.21783, section 3.3.2): one layer less on the first and the last stage."""
    assert split(126, 16) == [7] + [8] * 14 + [7]


@given(shapes, st.integers(0, 3), st.integers(1, 3), st.integers(0, 3))
def test_all_stages_sum_to_the_model_and_the_three_stand_for_all(shape: tuple[int, int, int], dense: int, freq: int, every: int) -> None:
    layers, pp, vpp = shape
    architecture = model(layers, first_k_dense=dense, layer_freq=freq, every=every)
    layout = Layout(degrees=Degrees(pp=float(pp), vpp=float(vpp)), choices=Choices())
    whole = stages(architecture, layout, every=True)
    kinds, before = layer_kinds(architecture)
    for held, table in zip(whole.kind_layers, before, strict=True):
        assert np.sum(held) == table[-1]
    few = stages(architecture, layout)
    for position, layers_held in zip(few.index, few.layers, strict=True):
        assert layers_held == whole.layers[int(position)]
    assert np.max(few.layers) == np.max(whole.layers)
    assert np.sum(whole.embedding) == np.sum(whole.head) == 1.0


@given(st.lists(shapes, min_size=1, max_size=6))
def test_a_batch_equals_its_rows(rows: list[tuple[int, int, int]]) -> None:
    architecture = model(160, first_k_dense=3, layer_freq=2, every=6)
    pp = np.array([[float(r[1])] for r in rows])
    vpp = np.array([[float(r[2])] for r in rows])
    batch = Layout(degrees=Degrees(pp=pp, vpp=vpp), choices=Choices())
    many = stages(architecture, batch)
    for i in range(len(rows)):
        one = stages(architecture, batch.row(i))
        # a row with fewer decisive stages than another of its batch repeats its second
        assert set(many.index[i]) == set(one.index)
        at = [list(one.index).index(position) for position in many.index[i]]
        for a, b in zip(many.kind_layers, one.kind_layers, strict=True):
            assert np.array_equal(a[i], b[at])
        assert np.array_equal(many.recomputed[i], one.recomputed[at])


@given(shapes)
def test_no_stage_outweighs_the_decisive_ones(shape: tuple[int, int, int]) -> None:
    """For every kind and every stage but the first, a decisive stage at or before it (or the last) holds as many layers of the kind."""
    layers, pp, vpp = shape
    architecture = model(layers, first_k_dense=3, layer_freq=2, every=6)
    layout = Layout(degrees=Degrees(pp=float(pp), vpp=float(vpp)), choices=Choices())
    some, every = stages(architecture, layout), stages(architecture, layout, every=True)
    for few, all_ in zip(some.kind_layers, every.kind_layers, strict=True):
        for stage in range(1, pp - 1):
            before = [n for position, n in zip(some.index, few, strict=True) if 1 <= position <= stage]
            assert max(before) >= all_[stage]


@given(shapes)
def test_explicit_layers_equal_the_balanced_split_where_they_repeat_it(shape: tuple[int, int, int]) -> None:
    layers, pp, _ = shape
    architecture = model(layers, first_k_dense=2)
    balanced = Layout(degrees=Degrees(pp=float(pp)), choices=Choices())
    given_layers = Layout(degrees=balanced.degrees, choices=balanced.choices, stage_layers=tuple(split(layers, pp)))
    a, b = stages(architecture, balanced, every=True), stages(architecture, given_layers)
    for x, y in zip(a.kind_layers, b.kind_layers, strict=True):
        assert np.array_equal(x, y)


def test_explicit_layers_must_sum_to_the_model() -> None:
    layout = Layout(degrees=Degrees(pp=2.0), choices=Choices(), stage_layers=(3, 4))
    with pytest.raises(ValueError, match="sum to the 8 layers"):
        stages(model(8), layout)
