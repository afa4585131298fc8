"""The JSON that every command prints with --json: these models are its schema (`planner schema`, docs/schema.md).

Base units throughout: bytes, seconds, FLOP, tokens; memory per GPU. The same request gives the same bytes; there are no wall times.
"""

from __future__ import annotations

from typing import Literal

from planner.answer_schema import AnswersRecord
from planner.certificate_schema import CertificateRecord
from planner.explanation_schema import ExplanationRecord
from planner.lengths_schema import LengthOptionRecord, LengthsRecord, LengthStepRecord
from planner.machine_schema import GpuRecord, NodeRecord
from planner.mixed_schema import MixedRecord
from planner.plan_schema import (
    BucketsRecord,
    LayoutRecord,
    MemoryRecord,
    ModelRecord,
    PlanRecord,
    PoolRecord,
    StageRecord,
    TimeRecord,
    TimeTermRecord,
    TrainingRecord,
)
from planner.record import Record
from planner.software_schema import SoftwareBandRecord

__all__ = [
    "BucketsRecord",
    "GpuRecord",
    "LayoutRecord",
    "LengthOptionRecord",
    "LengthStepRecord",
    "LengthsRecord",
    "MemoryRecord",
    "ModelRecord",
    "NodeRecord",
    "PlanRecord",
    "PoolRecord",
    "Record",
    "StageRecord",
    "TimeRecord",
    "TimeTermRecord",
    "TrainingRecord",
]
SCHEMA_VERSION = 1


class SearchedRecord(Record):
    """How far the search looked."""

    layouts: int
    lawful: int
    feasible: int
    excluded: dict[str, int]
    """Rule id, or memory, host_memory, nvme -> layouts that it excluded."""
    proof: str
    """What the result proves."""
    certificate: CertificateRecord | None = None
    """The same in numbers; null without a plan."""


class NearMissRecord(Record):
    """A lawful layout that does not fit, and what it lacks."""

    missing_bytes: float
    """Over capacity less margin."""
    stage: int
    phase: str
    bucket: str
    """Largest bucket there."""
    bucket_bytes: float
    where: Literal["device", "host", "nvme"]
    plan: PlanRecord


class RemedyRecord(Record):
    """One change of the request that makes it feasible, verified by a search."""

    change: str
    flags: str
    """Flags that make the change."""
    plan: PlanRecord


class Document(Record):
    """Base of all documents."""

    schema_version: Literal[1] = 1
    command: str


class LeadersRecord(Record):
    """The first plans, which step times cannot tell apart."""

    count: int
    """Plans from the first on that are within the error between layouts of one model and cluster; 1: the first is the fastest."""
    spread_fraction: float
    """That error: what a step may exceed the fastest by (80 % interval)."""
    least_memory: int
    """Rank, from 1, of the one that needs the least device memory."""


class SearchDocument(AnswersRecord, Document):
    """`planner search --json`."""

    command: Literal["search"] = "search"
    status: Literal["found", "infeasible", "interrupted"]
    assumed: list[str]
    """What the request left open, and how it was read."""
    notes: list[str]
    searched: SearchedRecord
    plans: list[PlanRecord]
    """Best first: --top of them. Of a mixed cluster each is of one pool."""
    near_misses: list[NearMissRecord]
    remedies: list[RemedyRecord]
    mixed: MixedRecord | None = None
    """Plans over several pools of a mixed cluster; null for one pool."""
    leaders: LeadersRecord | None = None
    """Which of the plans are as fast as the first, as far as predictions can tell; null without plans."""
    lengths: LengthsRecord | None = None
    """Of the best plan, with --lengths or --mean-seq."""
    explanation: ExplanationRecord | None = None
    """Of the best plan (of the nearest where none fits), with --explain or --sources."""


class EstimateDocument(PlanRecord, Document):
    """`planner estimate --json`: a plan, and what was assumed."""

    command: Literal["estimate"] = "estimate"
    status: Literal["found", "infeasible"]
    assumed: list[str]
    notes: list[str]
    near_misses: list[NearMissRecord]
    """Of this layout, where it does not fit."""
    lengths: LengthsRecord | None = None
    """With --lengths or --mean-seq."""
    explanation: ExplanationRecord | None = None
    """With --explain or --sources."""
    software_unknown: SoftwareBandRecord | None = None
    """With framework `unknown`: time.step_seconds is then that of the framework in training, one of many."""


class BareSizeRecord(Record):
    """What a bare size such as `30b` stands for."""

    size: str
    id: str
    """The public architecture that is taken."""
    could_mean: list[str]
    """What else the name could mean."""
    why: str
    """Why that one is taken."""


class ModelsDocument(Document):
    """`planner models --json`."""

    command: Literal["models"] = "models"
    models: list[ModelRecord]
    bare_sizes: list[BareSizeRecord]


class HardwareDocument(Document):
    """`planner hardware --json`."""

    command: Literal["hardware"] = "hardware"
    gpus: list[GpuRecord]
    servers: list[NodeRecord]
