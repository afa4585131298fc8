"""Token and position embeddings of the first stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.blocks.linear import leave
from cost_models.dims import Dims, norm_elements
from cost_models.op import Gemm, Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Choices

SOURCE = "Megatron-LM core/models/common/embeddings/language_model_embedding.py (vocabulary-parallel look-up, then reduce)"


def embedding(architecture: Architecture, d: Dims, choices: Choices, *, saved: dict[str, tuple[Saved, ...]]) -> list[Op]:
    """Return the look-up, the learned positions and the embedding norm, per rank and micro-batch."""
    width = float(architecture.embed_proj_dim or architecture.hidden)
    params = [Params(count=d.vocab * width, kind="embedding")]
    gemm: tuple[Gemm, ...] = ()
    if architecture.embed_proj_dim is not None:
        params.append(Params(count=width * d.hidden, kind="linear"))
        gemm = (Gemm(m=d.tokens, n=d.hidden, k=width),)
    if architecture.learned_positions:
        params.append(Params(count=architecture.learned_positions * d.hidden, kind="embedding", shared=True))
    if architecture.embedding_norm:
        params.append(Params(count=norm_elements(architecture), kind="norm", shared=True))
    stream = d.tokens * d.hidden * d.act_bytes
    return [
        Op(
            name="embedding.lookup",
            kind="memory",
            params=tuple(params),
            gemm=gemm,
            bytes_moved=3.0 * stream,
            backward_bytes_moved=3.0 * stream,
            kernels=2.0,
            saved=saved.get("lookup", ()),
            comm=leave(d, choices, d.hidden),
            source=SOURCE,
        )
    ]
