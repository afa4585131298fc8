"""The JSON of plans over several pools of a mixed cluster."""

from __future__ import annotations

from typing import Literal

from planner.record import Record

LayoutValue = int | float | bool | str | list[int] | list[str] | None


class MixedPartRecord(Record):
    """What one pool does."""

    gpu: str
    node: str
    gpus: int
    """GPUs that work: of a pipeline perhaps fewer than the pool has."""
    nodes: int
    layout: dict[str, LayoutValue]
    """Keys and values of a plan's `layout`: of the whole pipeline under `stages`, of the pool alone under `replicas`."""
    samples: int
    """Of the global batch: micro_batch × accumulation × dp. Under `stages` every pool sees all of it."""
    first_stage: int | None
    """Position of the pool's first pipeline stage; null under `replicas`."""
    stage_layers: list[int]
    """Layers of the pool's stages; empty under `replicas`."""
    stage_recompute: list[int]
    """Fully recomputed layers of the pool's stages; empty where recompute is the same on all."""
    busy_seconds: float
    """Forward and backward of a step: of the replicas with the reduction inside the pool, or of the pool's slowest stage."""
    verdict: Literal["fits", "tight", "no"]
    peak_device_bytes: float
    """Of the pool's fullest GPU; memory is per GPU."""
    capacity_bytes: float
    margin_bytes: float
    peak_stage: int
    phase: str
    """At which that GPU peaks."""
    buckets: dict[str, float]
    """Bytes there by bucket; they sum to peak_device_bytes."""
    host_bytes_per_node: float
    nvme_bytes_per_node: float
    warnings: list[str]


class MixedTermRecord(Record):
    """One named share of a step."""

    name: str
    seconds: float
    """Busy."""
    exposed_seconds: float
    """What lengthens the step; these sum to step_seconds."""
    formula: str
    source: str


class MixedPlanRecord(Record):
    """One plan over several pools."""

    kind: Literal["stages", "replicas"]
    """`stages`: each pool holds stages of one pipeline; `replicas`: each pool holds replicas with a layout and a share of its own."""
    framework: str
    gpus: int
    step_seconds: float
    tokens_per_second: float
    """Of all GPUs."""
    terms: list[MixedTermRecord]
    parts: list[MixedPartRecord]
    """In the order of the pipeline, or of the pools."""
    needs: list[str]
    """What the framework must support to run it."""


class MixedRecord(Record):
    """Plans over several pools, beside the document's `plans`, which are of one pool each."""

    comparison: str
    """What is won or lost against the best single pool."""
    gain: float | None
    """Tokens per second of the best over those of the best single pool, less one; null where either is missing."""
    plans: list[MixedPlanRecord]
    """Best first: the fastest found of each kind and framework; of kinds that cannot beat the best plan known only a few are tried."""
    links: list[str]
    """The links between pools, and what was assumed of them."""
    refusals: list[str]
    """Why pools or kinds of plans were left out."""
    proof: str
    """How far the search looked."""
