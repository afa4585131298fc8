"""What was asked to be explained of a plan, together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.explain.memory import MemoryExplanation, explain_memory
from planner.explain.sources import Source, sources
from planner.explain.step import TimeExplanation, explain_time

if TYPE_CHECKING:
    from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """None: not asked for."""

    memory: MemoryExplanation | None = None
    time: TimeExplanation | None = None
    sources: tuple[Source, ...] | None = None


def explain(plan: Plan, wanted: Collection[str]) -> Explanation:
    """Return what of `memory`, `time` and `sources` is wanted."""
    return Explanation(
        memory=explain_memory(plan) if "memory" in wanted else None,
        time=explain_time(plan) if "time" in wanted else None,
        sources=sources(plan) if "sources" in wanted else None,
    )
