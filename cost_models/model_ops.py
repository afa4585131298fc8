"""ModelOps: all ops of a model, made by cost_models.transformer and read by memory and throughput."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.dims import Dims
from cost_models.op import Op
from cost_models.stages import LayerKind


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
