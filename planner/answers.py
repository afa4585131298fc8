"""Answers: what a search can be asked beside its ranking: why not another layout, what the front is, what a change would buy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.plan import Broken, Clash, NearMiss, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One term of two plans."""

    term: str
    """A time term (exposed seconds), or a bucket of the fullest stage (bytes)."""
    asked: float
    winner: float
    unit: Literal["seconds", "bytes"]

    @property
    def more(self) -> float:
        """How much more the asked plan has."""
        return self.asked - self.winner


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """Where the best plan of some kind loses against the winner, or why there is none."""

    asked: str
    """The kind, as it was given."""
    plan: Plan | None
    """Best of its kind."""
    winner: Plan | None
    time: tuple[Difference, ...] = ()
    """All terms, those in which the asked plan loses most first; their differences sum to that of the steps."""
    memory: tuple[Difference, ...] = ()
    broken: tuple[Broken, ...] = ()
    """Laws that the kind breaks in every framework, where no layout of it is lawful."""
    excluded: tuple[tuple[str, int], ...] = ()
    """Rule, or limit -> layouts of the kind that it excludes, the most first, where there is no plan."""
    near_misses: tuple[NearMiss, ...] = ()
    clash: Clash | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """What one change of the cluster or the request would buy: the search made again with it."""

    change: str
    plan: Plan | None
    """None where the search found nothing with the change."""
    gain: float | None
    """Tokens per second of all GPUs, over those of the best plan as it is, less one; None without a plan on either side."""
    same_layout: bool
    """Whether the best plan has the layout it has without the change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Everything that was asked beside the ranking."""

    front: tuple[Plan, ...] = ()
    """Pareto front of step time against peak memory, the fastest first."""
    front_size: int = 0
    """Plans on the whole front, of which `front` is the readable part."""
    why: tuple[WhyNot, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
