"""Normalisation before a sub-layer: weights, traffic, and the sub-layer's own residual addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.dims import Dims, norm_elements
from cost_models.op import Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture

SOURCE = "one read and one write of the stream for norm and residual each; backward reads twice (fused norm kernels)"


def norm(architecture: Architecture, d: Dims, *, name: str, count: float, saved: tuple[Saved, ...], weights: bool = True) -> Op:
    """Return `count` norms with the residual addition that follows the sub-layer, in the sequence-parallel region.

    Traffic per token and norm: read x, write y (2 h), residual read two, write one (3 h); backward about 7 h.
    """
    stream = d.sp_tokens * d.hidden * d.act_bytes
    elements = norm_elements(architecture) if weights else 0.0
    return Op(
        name=name,
        kind="memory",
        params=(Params(count=count * elements, kind="norm", shared=True),) if elements else (),
        bytes_moved=count * 2.0 * stream + 3.0 * stream,
        backward_bytes_moved=count * 4.0 * stream + 3.0 * stream,
        kernels=count + 1.0,
        saved=saved,
        modules=("layernorm",),
        source=SOURCE,
    )
