"""ModelOps: all ops of a model, made by cost_models.transformer and read by memory and throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.dims import Dims
from cost_models.layout import Layout
from cost_models.op import Op
from cost_models.stages import LayerKind

if TYPE_CHECKING:
    from cost_models.numeric import Num


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOps:
    """Ops of a model, per rank and micro-batch; how often each kind of layer occurs on a stage is `stages.kind_layers`."""

    kinds: tuple[tuple[LayerKind, tuple[Op, ...]], ...]
    """One layer of each kind, in the order of `stages.layer_kinds`."""
    embedding: tuple[Op, ...]
    head: tuple[Op, ...]
    mtp: tuple[Op, ...]
    """One multi-token-prediction module with its own pass through the head; empty unless trained."""
    dims: Dims
    layout: Layout
    """The layouts whose ops these are."""
    rows: npt.NDArray[np.intp] | None = None
    """For each layout of the batch that is evaluated the row of its ops, (N,); None: ops and batch have the same rows."""

    def spread(self, value: Num) -> Num:
        """Return a value made of ops for each layout of the batch, (N, 1); what is equal for all stays one number."""
        if self.rows is None or not isinstance(value, np.ndarray) or value.size == 1:
            return value
        return value.take(self.rows, axis=0)
