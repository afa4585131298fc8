"""Architecture + training + layout -> ops of every kind of layer, of the embedding and of the head, per rank and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_models.alike import alike
from cost_models.blocks.attention import attention
from cost_models.blocks.embedding import embedding
from cost_models.blocks.head import head
from cost_models.blocks.mla import mla
from cost_models.blocks.mlp import mlp
from cost_models.blocks.moe import moe
from cost_models.dims import Dims, dims, norm_elements
from cost_models.implementations import implementation
from cost_models.layout import Choices, Degrees, Layout
from cost_models.model_ops import ModelOps
from cost_models.numeric import num
from cost_models.op import Gemm, Op, Params
from cost_models.stack import resolve
from cost_models.stages import LayerKind, layer_kinds
from cost_models.training import Training

if TYPE_CHECKING:
    from cost_models.architecture import Architecture


def model_ops(architecture: Architecture, training: Training, layout: Layout) -> ModelOps:
    """Return the ops of `architecture` as one rank of `layout` runs them."""
    stack = resolve(training)
    d = dims(architecture, training, layout, stack.vocab_multiple)
    kinds, _ = layer_kinds(architecture)
    code = implementation(stack.implementation)
    heads = tuple(head(architecture, d, layout.choices, saved=code.head(architecture, training, d, layout.choices)))
    return ModelOps(
        kinds=tuple((kind, layer(architecture, training, d, layout.choices, kind)) for kind in kinds),
        embedding=tuple(embedding(architecture, d, layout.choices, saved=code.embedding(architecture, training, d, layout.choices))),
        head=heads,
        mtp=_mtp(architecture, training, d, layout.choices, kinds[-1], heads) if training.mtp and architecture.mtp_layers else (),
        dims=d,
        layout=layout,
    )


def shared_ops(architecture: Architecture, training: Training, layout: Layout) -> ModelOps:
    """Return the ops of a batch, made once for all of its layouts that have the same: `spread` gives each layout its own."""
    few, rows = alike(layout)
    return replace(model_ops(architecture, training, few), rows=rows)


def layer(architecture: Architecture, training: Training, d: Dims, choices: Choices, kind: LayerKind) -> tuple[Op, ...]:
    """Return the ops of one layer of `kind`: attention block, then dense or MoE block."""
    code = implementation(resolve(training).implementation)
    if architecture.mla is not None:
        kept = code.mla(architecture, training, d, choices, sliding=kind.sliding)
        first = mla(architecture, training, d, choices, sliding=kind.sliding, saved=kept)
    else:
        kept = code.attention(architecture, training, d, choices, sliding=kind.sliding)
        first = attention(architecture, training, d, choices, sliding=kind.sliding, saved=kept)
    if kind.moe:
        return (*first, *moe(architecture, training, d, choices, saved=code.moe(architecture, training, d, choices)))
    return (*first, *mlp(architecture, training, d, choices, saved=code.mlp(architecture, training, d, choices)))


def _mtp(
    architecture: Architecture, training: Training, d: Dims, choices: Choices, kind: LayerKind, heads: tuple[Op, ...]
) -> tuple[Op, ...]:
    """One module (DeepSeek-V3, arXiv 2412.19437, section 2.2): two norms, a 2h × h projection, one layer, a final norm; head and
    embedding are shared, so the head's matrix is not held again."""
    h = d.hidden
    join = Op(
        name="mtp.project",
        kind="gemm",
        params=(
            Params(count=2.0 * h * h, kind="linear", quantizable=True),
            Params(count=3.0 * norm_elements(architecture), kind="norm", shared=True),
        ),
        gemm=(Gemm(m=d.sp_tokens, n=h, k=2.0 * h),),
        source="DeepSeek-V3 (arXiv 2412.19437), section 2.2",
    )
    shared = tuple(
        Op(
            name=f"mtp.{op.name}",
            kind=op.kind,
            gemm=op.gemm,
            bytes_moved=op.bytes_moved,
            backward_bytes_moved=op.backward_bytes_moved,
            kernels=op.kernels,
            saved=op.saved,
            comm=op.comm,
            source=op.source,
        )
        for op in heads
    )
    return (join, *layer(architecture, training, d, choices, kind), *shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Exact parameter counts of a text model."""

    parameters: int
    """All of them; a tied matrix once; without multi-token-prediction modules and vision tower."""
    active_parameters: int
    """With only top-k of the routed experts."""
    non_embedding: int
    """Without token embedding, learned positions and an untied head."""
    active_without_token_embedding: int
    """Active, without the input matrix where it is not tied to the head."""
    mtp_parameters: int
    """Of the multi-token-prediction modules."""


def count_parameters(architecture: Architecture) -> Counts:
    """Count by summing the blocks at degree one (the same ops that memory and time are computed from)."""
    training = Training(vocab_multiple=1, mtp=True)
    layout = Layout(degrees=Degrees(), choices=Choices())
    ops = model_ops(architecture, training, layout)
    kinds, before = layer_kinds(architecture)
    by_kind: dict[str, float] = {}
    for (_, rows), table in zip(ops.kinds, before, strict=True):
        _tally(by_kind, rows, float(table[-1]))
    _tally(by_kind, ops.embedding, 1.0)
    _tally(by_kind, ops.head, 1.0)
    total = add_up(by_kind)
    moe_part = architecture.moe
    idle = 0.0 if moe_part is None else by_kind.get("expert", 0.0) * (1.0 - moe_part.topk / moe_part.num_experts)
    tokens = float(architecture.vocab * (architecture.embed_proj_dim or architecture.hidden))
    unshared = 0.0 if architecture.tied_embeddings else tokens
    positions = float(architecture.learned_positions * architecture.hidden)
    modules: dict[str, float] = {}
    _tally(modules, ops.mtp, float(architecture.mtp_layers))
    return Counts(
        parameters=round(total),
        active_parameters=round(total - idle),
        non_embedding=round(total - tokens - positions - by_kind.get("head", 0.0)),
        active_without_token_embedding=round(total - idle - unshared),
        mtp_parameters=round(add_up(modules)),
    )


def _tally(by_kind: dict[str, float], ops: tuple[Op, ...], times: float) -> None:
    for op in ops:
        for p in op.params:
            by_kind[p.kind] = by_kind.get(p.kind, 0.0) + times * float(num(p.count))


def add_up(values: dict[str, float]) -> float:
    """Return the sum of a tally."""
    return float(sum(values.values()))
