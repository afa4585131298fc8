"""The JSON of --explain and --sources: every term of memory and time, whatever the text puts together."""

from __future__ import annotations

from typing import Literal

from planner.record import Record

Sign = Literal["", "×", "/", "+", "−"]


class FigureRecord(Record):
    """One number that stands for a name of a formula."""

    name: str
    value: float
    unit: str
    """`bytes`, `seconds`, a noun, or empty for a ratio."""
    sign: Sign
    """What joins it to those before it; figures are taken from left to right."""


class MemoryTermRecord(Record):
    """One term of one stage and phase."""

    name: str
    """Dotted, from the bucket down."""
    bytes: float
    formula: str
    figures: list[FigureRecord]
    """They come to `bytes`; empty where the term is one figure."""
    source: str


class PhaseMemoryRecord(Record):
    """What is allocated at the peak of one phase."""

    phase: str
    total_bytes: float
    """Sum of the terms."""
    terms: list[MemoryTermRecord]


class StageMemoryRecord(Record):
    """The ranks of one pipeline stage."""

    stage: int
    layers: int
    highest_phase: str
    phases: list[PhaseMemoryRecord]
    reserved_terms: list[MemoryTermRecord]
    """On top of allocated."""
    device_terms: list[MemoryTermRecord]
    """On top of reserved."""
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float


class SavedTensorRecord(Record):
    """A tensor that one layer keeps for backward, per rank and micro-batch."""

    layer: str
    op: str
    name: str
    bytes: float
    kept: bool
    """False: recomputed instead."""


class MemoryExplanationRecord(Record):
    """Where the bytes of a GPU go."""

    meanings: dict[str, str]
    """What allocated, reserved and device stand for."""
    peak_stage: int
    stages: list[StageMemoryRecord]
    saved: list[SavedTensorRecord]
    """By one layer of each kind of the peak stage."""
    host_terms: list[MemoryTermRecord]
    """Of one server, of its heaviest stage."""


class BoundRecord(Record):
    """One thing that a term waits for."""

    by: str
    """compute, memory (bandwidth), link, NIC, host link, launch, latency, bubble, host launch, …"""
    part: float
    """Of the term's busy seconds."""


class ExplainedTimeTermRecord(Record):
    """One term of the step."""

    name: str
    seconds: float
    """Busy."""
    exposed_seconds: float
    """What lengthens the step."""
    share: float
    """Exposed, of the step."""
    formula: str
    figures: list[FigureRecord]
    """They come to `seconds`; empty where the term is one figure."""
    hidden: str
    """What hides the seconds that are not exposed; empty where all are."""
    source: str
    bounds: list[BoundRecord]
    """The largest first; empty where the term is zero."""


class StageTimeRecord(Record):
    """One micro-batch through one stage, exposed traffic and recompute included."""

    stage: int
    forward_seconds: float
    backward_seconds: float


class UtilisationRecord(Record):
    """A utilisation and what it is made of."""

    value: float
    figures: list[FigureRecord]


class TimeExplanationRecord(Record):
    """Where the seconds of a step go."""

    step_seconds: float
    micro_batches: int
    terms: list[ExplainedTimeTermRecord]
    stages: list[StageTimeRecord]
    mfu: UtilisationRecord
    hfu: UtilisationRecord
    definition: str
    """Of MFU and HFU."""
    limited_by: str


class SourceRecord(Record):
    """One source behind the plan's terms."""

    kind: Literal["model", "datasheet", "paper", "code", "calibration", "reasoning"]
    text: str
    used_by: list[str]


class ExplanationRecord(Record):
    """What --explain and --sources asked for; null where not asked for."""

    memory: MemoryExplanationRecord | None = None
    time: TimeExplanationRecord | None = None
    sources: list[SourceRecord] | None = None
