"""Ranking: which of the first plans the step times cannot tell apart.

Errors that all layouts of one model and cluster share cancel in a comparison, so the spread that counts is that between layouts
(planner.bands.between_layouts), not the band of a single step time. Plans of several frameworks differ by more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.numeric import num
from planner.bands import LEVEL, between_layouts

if TYPE_CHECKING:
    from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaders:
    """The first plans, within the error between layouts of the fastest."""

    count: int
    """Plans from the first on; 1: the first is faster than the others by more than the error."""
    spread_fraction: float
    """What a step time may exceed the fastest by and still be as fast, with the probability of an 80 % interval."""
    least_memory: int
    """Rank (from 1) of the one among them that needs the least device memory."""


def leaders(plans: Sequence[Plan]) -> Leaders:
    """Return which of `plans` (best first, at least one) are within the error of the first."""
    spread = between_layouts().ratio((1.0 + LEVEL) / 2.0) - 1.0
    seconds = [float(num(plan.cost.time.step_seconds)) for plan in plans]
    count = next((i for i, s in enumerate(seconds) if s > seconds[0] * (1.0 + spread)), len(seconds))
    memory = [float(num(plan.cost.memory.peak_device_bytes)) for plan in plans[:count]]
    return Leaders(count=count, spread_fraction=spread, least_memory=memory.index(min(memory)) + 1)
