"""What a search returns: plans with their ledgers, or the reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cost_models.architecture import Architecture
from cost_models.layout import Layout
from cost_models.result import Cost
from cost_models.training import Training
from hardware.spec import Pool

Verdict = Literal["fits", "tight", "no"]
Status = Literal["found", "infeasible", "interrupted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A law that a layout breaks."""

    rule: str
    """Id of the rule."""
    message: str
    """What was given, the law with its numbers, the nearest values that pass: one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A single layout with both ledgers and its verdict."""

    architecture: Architecture
    training: Training
    pool: Pool
    layout: Layout
    cost: Cost
    """Of every stage."""
    verdict: Verdict
    margin_bytes: float
    """Safety margin that was kept free."""
    host_capacity_bytes: float | None
    """Memory of a server; None: unknown and not checked."""
    micro_batches: int
    """Gradient accumulation: micro-batches per step and replica."""
    limited_by: str
    """What takes the most time beyond perfect compute, in words: `compute 81 %`, `bubble 16 %`."""
    frameworks: tuple[str, ...] = ()
    """Frameworks whose rules the plan keeps."""
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """True for the verdict `fits` alone."""
        return self.verdict == "fits"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change of the request that makes it feasible, verified by search."""

    change: str
    """In words: `offload the optimizer to the host`."""
    flags: str
    """The command-line flags that make the change."""
    plan: Plan
    """Best plan after the change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NearMiss:
    """A lawful layout that does not fit."""

    plan: Plan
    missing_bytes: float
    """How far over capacity less margin."""
    stage: int
    phase: str
    bucket: str
    """Largest bucket of that stage at that phase."""
    bucket_bytes: float
    where: Literal["device", "host", "nvme"] = "device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """How far the search looked."""

    layouts: int
    """Points of the space."""
    lawful: int
    feasible: int
    by_rule: dict[str, int] = field(default_factory=dict)
    """Rule id, or `memory`, `host_memory`, `nvme` -> layouts that it excluded."""
    proof: str = ""
    """What the result proves, in words (exhaustive over the grid, bound and gap of the stage problem)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Outcome of one search."""

    status: Status
    plans: tuple[Plan, ...]
    """Best first."""
    searched: Searched
    near_misses: tuple[NearMiss, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the reader: pools planned one at a time, checks skipped, …"""
