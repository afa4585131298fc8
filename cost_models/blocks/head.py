"""Final norm, language-model head and cross entropy of the last stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.blocks.linear import enter
from cost_models.dims import Dims, norm_elements
from cost_models.op import Comm, Gemm, Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Choices
    from cost_models.numeric import Num

SOURCE = "Megatron-LM core/models/gpt/gpt_model.py, core/tensor_parallel/cross_entropy.py"
LOSS_BYTES_PER_LOGIT = 14.0
"""HBM bytes per logit of one pass of an unfused cross entropy: read bf16, write and read fp32 copies and the exponentials."""


def head(architecture: Architecture, d: Dims, choices: Choices, *, saved: dict[str, tuple[Saved, ...]]) -> list[Op]:
    """Return final norm, logits and loss, per rank and micro-batch.

    A tied head holds no matrix of its own on a single stage, and a copy of the embedding on the last stage of a pipeline.
    """
    width = float(architecture.embed_proj_dim or architecture.hidden)
    matrix: Num = d.vocab * width
    if architecture.tied_embeddings:
        matrix = np.where(d.pp > 1.0, matrix, 0.0)
    params = [Params(count=matrix, kind="head")]
    if architecture.lm_head_bias:
        params.append(Params(count=d.vocab, kind="head"))
    gemms = [Gemm(m=d.tokens, n=d.vocab, k=width)]
    if architecture.embed_proj_dim is not None:
        params.append(Params(count=width * d.hidden, kind="linear"))
        gemms.append(Gemm(m=d.tokens, n=width, k=d.hidden))
    stream = d.sp_tokens * d.hidden * d.act_bytes
    elements = norm_elements(architecture) if architecture.final_norm else 0.0
    row = d.tokens * 4.0
    return [
        Op(
            name="head.norm",
            kind="memory",
            params=(Params(count=elements, kind="norm", shared=True),) if elements else (),
            bytes_moved=2.0 * stream,
            backward_bytes_moved=4.0 * stream,
            saved=saved.get("norm", ()),
            source=SOURCE,
        ),
        Op(
            name="head.logits",
            kind="gemm",
            params=tuple(params),
            gemm=tuple(gemms),
            saved=saved.get("logits", ()),
            comm=enter(d, choices, d.hidden),
            source=SOURCE,
        ),
        Op(
            name="head.loss",
            kind="loss",
            bytes_moved=d.tokens * d.vocab * LOSS_BYTES_PER_LOGIT,
            backward_bytes_moved=d.tokens * d.vocab * LOSS_BYTES_PER_LOGIT,
            kernels=8.0,
            saved=saved.get("loss", ()),
            comm=(Comm(kind="all_reduce", backward=None, group="tp", bytes=3.0 * row),),
            source=SOURCE,
        ),
    ]
