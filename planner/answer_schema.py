"""The JSON of what a search is asked beside its ranking: clash, front, why not, sensitivity."""

from __future__ import annotations

from typing import Literal

from planner.record import Record

Field = int | float | bool | str | list[int] | list[str] | None


class AnswerPlanRecord(Record):
    """A plan in short."""

    name: str
    """The layout in words."""
    framework: str
    gpu: str
    gpus: int
    layout: dict[str, Field]
    """Keys and values of a plan's `layout`."""
    step_seconds: float
    tokens_per_second: float
    """Of all GPUs."""
    tokens_per_usd: float | None
    """Servers paid whole; null: the price is unknown."""
    mfu: float
    peak_device_bytes: float
    capacity_bytes: float


class ClashRecord(Record):
    """One of the requirements that cannot be met together; without any one of them the others can."""

    requirement: str
    flags: str
    """Flags that state it; empty for a fact of the server."""
    enough: bool
    """Whether dropping it alone, with the whole rest of the request kept, makes the request feasible."""
    without: AnswerPlanRecord | None
    """A plan that the other members allow; its memory may exceed the card where the card is the requirement."""


class DifferenceRecord(Record):
    """One term of two plans."""

    term: str
    asked: float
    winner: float
    unit: Literal["seconds", "bytes"]


class WhyBrokenRecord(Record):
    """A law that every layout of a kind breaks."""

    rule: str
    message: str


class WhyMissRecord(Record):
    """A layout of a kind that does not fit."""

    name: str
    missing_bytes: float
    stage: int
    phase: str
    bucket: str
    bucket_bytes: float
    where: Literal["device", "host", "nvme"]


class WhyRecord(Record):
    """Why not this kind of layout: where its best plan loses against the winner, or what rules it out."""

    asked: str
    plan: AnswerPlanRecord | None
    """Best of the kind; null where there is none."""
    time: list[DifferenceRecord]
    """Exposed seconds of every term, those in which it loses most first; the differences sum to that of the steps."""
    memory: list[DifferenceRecord]
    """Buckets of the fullest stage; the differences sum to that of the device peaks."""
    broken: list[WhyBrokenRecord]
    excluded: dict[str, int]
    """Rule or limit -> layouts of the kind that it excludes."""
    near_misses: list[WhyMissRecord]
    clash: list[ClashRecord]


class SensitivityRecord(Record):
    """What one change would buy, by a search with it."""

    change: str
    gain: float | None
    """Tokens per second of all GPUs over those of plan 1, less one; null where either is missing."""
    same_layout: bool
    plan: AnswerPlanRecord | None


class AnswersRecord(Record):
    """What a search was asked beside its ranking."""

    clash: list[ClashRecord] = []
    """Where nothing fits: requirements that cannot be met together."""
    clash_minimal: bool | None = None
    """Whether each member of the clash was shown to be needed; null without a clash."""
    front: list[AnswerPlanRecord] = []
    """With --pareto: step time against device peak, the fastest first, thinned."""
    why: list[WhyRecord] = []
    """One for each --why."""
    sensitivity: list[SensitivityRecord] = []
    """With --sensitivity."""
