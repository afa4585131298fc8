"""Near misses: the lawful layouts that come closest to fitting, with the stage, the phase and the bucket that are too big."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from cost_models.numeric import num
from cost_models.result import BUCKETS, MemoryCost
from planner.evaluate import plan
from planner.plan import NearMiss, Plan

if TYPE_CHECKING:
    from cost_models.ledger import Ledger
    from planner.board import Entry

SHOWN = 3
"""Near misses of a result."""


def near_misses(entries: list[Entry]) -> tuple[NearMiss, ...]:
    """Return the nearest of `entries` that differ in their main degrees, by missing bytes."""
    best: dict[tuple[float, ...], Entry] = {}
    for entry in entries:
        if entry.key not in best or entry.missing_bytes < best[entry.key].missing_bytes:
            best[entry.key] = entry
    nearest = sorted(best.values(), key=lambda e: (e.missing_bytes, e.rank))[:SHOWN]
    return tuple(miss_of(plan(entry.case, entry.layout), entry.case.host_limit_bytes) for entry in nearest)


def miss_of(made: Plan, host_limit_bytes: float | None) -> NearMiss:
    """Return what a plan that does not fit lacks, and where."""
    memory = made.cost.memory
    limit = made.pool.capacity_bytes - made.margin_bytes
    device = float(num(memory.peak_device_bytes)) - limit
    host = 0.0 if host_limit_bytes is None else float(num(memory.host_bytes_per_node)) - host_limit_bytes
    nvme = 0.0 if made.pool.node.nvme_bytes is None else float(num(memory.nvme_bytes_per_node)) - made.pool.node.nvme_bytes
    if device >= max(host, nvme):
        stage, phase, bucket, size = largest_bucket(memory)
        return NearMiss(plan=made, missing_bytes=device, stage=stage, phase=phase, bucket=bucket, bucket_bytes=size)
    where: Literal["host", "nvme"] = "host" if host >= nvme else "nvme"
    terms = memory.host.terms
    name = max(terms, key=lambda t: float(num(t.value).max())).name if terms else where
    size = float(num(memory.host_bytes_per_node if where == "host" else memory.nvme_bytes_per_node))
    return NearMiss(
        plan=made,
        missing_bytes=max(host, nvme),
        stage=int(num(memory.peak_stage)),
        phase="optimizer",
        bucket=name,
        bucket_bytes=size,
        where=where,
    )


def largest_bucket(memory: MemoryCost) -> tuple[int, str, str, float]:
    """Return (stage, phase, bucket, bytes) of the largest bucket of the fullest stage at its fullest phase."""
    stages = num(memory.stage_index).reshape(-1)
    at = int(np.argmax(stages == float(num(memory.peak_stage))))
    phases = tuple(memory.phases)
    phase = phases[int(num(memory.stage_phase).reshape(-1)[at])]
    sizes = {b: _at(memory.phases[phase], b, at) for b in BUCKETS}
    bucket = max(sizes, key=lambda b: (sizes[b], -BUCKETS.index(b)))
    return int(stages[at]), phase, bucket, sizes[bucket]


def _at(ledger: Ledger, bucket: str, stage: int) -> float:
    values = num(ledger.bucket(bucket)).reshape(-1)
    return float(values[stage] if values.size > 1 else values[0])
