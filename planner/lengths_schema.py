"""JSON of samples of many lengths."""

from __future__ import annotations

from typing import Literal

from planner.record import Record


class LengthStepRecord(Record):
    """Micro-batches of one padded length, and what they need."""

    seq: int
    step_seconds: float
    """For the samples of one global batch."""
    peak_device_bytes: float
    verdict: Literal["fits", "tight", "no"]
    fit_probability: float


class LengthOptionRecord(Record):
    """One way of batching instead of padding each micro-batch to its longest sample."""

    name: Literal["truncate", "bucket", "pack"]
    at_tokens: int
    """Where samples are cut (truncate), or the length of a pack; the longest sample (bucket)."""
    typical: LengthStepRecord
    worst: LengthStepRecord
    saved_bytes: float
    """Of the worst device peak."""
    saved_time_fraction: float
    """Of the typical step."""
    lost_tokens_fraction: float
    """Of the data's tokens."""


class LengthsRecord(Record):
    """Samples of many lengths: the typical and the worst micro-batch of the plan, and other ways of batching."""

    samples: int
    """0: only the mean is known."""
    mean_tokens: float
    longest_tokens: int
    padding_fraction: float | None
    """Padding in all tokens computed, with random micro-batches; null where only the mean is known."""
    typical: LengthStepRecord
    worst: LengthStepRecord
    options: list[LengthOptionRecord]
