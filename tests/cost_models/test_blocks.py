"""Blocks: sharding sums to the whole, and work is conserved over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cost_models.architecture import Architecture, Mla, Moe
from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.training import Training
from cost_models.transformer import count_parameters, model_ops

if TYPE_CHECKING:
    from cost_models.model_ops import ModelOps
    from cost_models.op import Op

powers = st.sampled_from([1, 2, 4, 8])


def model(*, moe: bool = False, mla: bool = False, gated: bool = True) -> Architecture:
    """A model whose widths divide by 8."""
    return Architecture(
        id="toy",
        family="toy",
        layers=4,
        hidden=256,
        ffn_hidden=512,
        heads=16,
        kv_heads=8,
        head_dim=24 if mla else 16,
        vocab=1024,
        gated_mlp=gated,
        moe=Moe(num_experts=16, topk=2, moe_ffn_hidden=64, shared_experts=1, shared_ffn_hidden=64) if moe else None,
        mla=Mla(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16) if mla else None,
    )


def gemm_flop(ops: tuple[Op, ...]) -> float:
    """FLOP of the matrix products of one rank's forward."""
    return sum(float(2.0 * num(g.m) * g.n * g.k * g.count) for op in ops for g in op.gemm)


def core_flop(ops: tuple[Op, ...]) -> float:
    """FLOP of the attention cores of one rank's forward."""
    total = 0.0
    for op in ops:
        if op.attention is not None:
            a = op.attention
            total += float(2.0 * num(a.batch) * a.heads * a.q_len * a.kv_len * (a.qk_dim + a.v_dim) * a.causal_fraction)
    return total


def ops_of(architecture: Architecture, training: Training, choices: Choices, **degrees: float) -> ModelOps:
    return model_ops(architecture, training, Layout(degrees=Degrees(**degrees), choices=choices))


@given(powers, st.booleans(), st.booleans(), st.booleans())
def test_tensor_parallel_ranks_hold_the_model_once(tp: int, moe: bool, mla: bool, sp: bool) -> None:
    """Divided parameters times tp, plus what is replicated, is the whole."""
    architecture = model(moe=moe, mla=mla)
    training = Training(vocab_multiple=1)
    whole = ops_of(architecture, training, Choices(sequence_parallel=sp))
    part = ops_of(architecture, training, Choices(sequence_parallel=sp), tp=float(tp), etp=float(tp))
    for (_, full), (_, shard) in zip(whole.kinds, part.kinds, strict=True):
        for a, b in zip(full, shard, strict=True):
            for p, q in zip(a.params, b.params, strict=True):
                replicated = q.kind in ("norm", "router") or (a.name == "attention.qkv_down") or a.name == "moe.shared.gate"
                assert float(num(q.count)) * (1 if replicated else tp) == float(num(p.count))


@given(powers, powers, st.booleans(), st.booleans())
def test_tensor_and_context_parallel_ranks_share_the_flop(tp: int, cp: int, mla: bool, gated: bool) -> None:
    architecture = model(mla=mla, gated=gated)
    training = Training(seq=1024, vocab_multiple=1)
    choices = Choices(sequence_parallel=True)
    whole = ops_of(architecture, training, choices)
    part = ops_of(architecture, training, choices, tp=float(tp), cp=float(cp))
    for (_, full), (_, shard) in zip(whole.kinds, part.kinds, strict=True):
        assert np.isclose(gemm_flop(full), tp * cp * gemm_flop(shard))
        assert np.isclose(core_flop(full), tp * cp * core_flop(shard))


@given(powers, powers, powers)
def test_routed_tokens_are_conserved(tp: int, ep: int, etp: int) -> None:
    """Every rank of the ep × etp group computes its share of the group's tokens × top-k."""
    architecture = model(moe=True)
    training = Training(seq=1024, vocab_multiple=1)
    ops = ops_of(architecture, training, Choices(), tp=float(tp), ep=float(ep), etp=float(etp))
    d = ops.dims
    group_tokens = ep * etp * 1024 / tp
    computed = ep * float(num(d.routed_tokens))
    assert computed == group_tokens * 2
    assert float(num(d.local_experts)) * ep == 16


def test_tied_head_is_held_again_on_the_last_stage_of_a_pipeline() -> None:
    architecture = model().model_copy(update={"tied_embeddings": True})
    training = Training(vocab_multiple=1)
    alone = ops_of(architecture, training, Choices())
    piped = ops_of(architecture, training, Choices(), pp=2.0)
    matrix = 1024 * 256

    def held(ops: ModelOps) -> float:
        return sum(float(num(p.count)) for op in ops.head for p in op.params if p.kind == "head")

    assert held(alone) == 0
    assert held(piped) == matrix


def test_gpt3_flop_per_token_follow_narayanan() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), appendix: forward FLOP = 24 B s l h² (1 + s / 6h) + 2 B s h V, scores whole."""
    b, s, layers, h, v = 1, 2048, 96, 12288, 51200
    architecture = Architecture(
        id="gpt3", family="gpt2", layers=layers, hidden=h, ffn_hidden=4 * h, heads=96, kv_heads=96, head_dim=128, vocab=v, gated_mlp=False
    )
    ops = ops_of(architecture, Training(seq=s, vocab_multiple=1), Choices())
    per_layer = gemm_flop(ops.kinds[0][1]) + 2.0 * core_flop(ops.kinds[0][1])
    forward = layers * per_layer + gemm_flop(ops.head)
    assert np.isclose(forward, 24.0 * b * s * layers * h * h * (1.0 + s / (6.0 * h)) + 2.0 * b * s * h * v, rtol=1e-12)


def test_count_of_a_small_model_by_hand() -> None:
    """V h twice, two norms and a final norm, q k v o of 16/8 heads of 16, gated MLP of 512."""
    h = 256
    layer = h * (256 + 2 * 128) + 256 * h + 3 * h * 512 + 2 * h
    counts = count_parameters(model())
    assert counts.parameters == 2 * 1024 * h + 4 * layer + h
    assert counts.non_embedding == 4 * layer + h
