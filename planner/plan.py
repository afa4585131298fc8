"""What a search returns: plans with their ledgers, or the reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cost_models.architecture import Architecture
from cost_models.layout import Layout
from cost_models.ledger import Ledger
from cost_models.numeric import num
from cost_models.result import Cost
from cost_models.training import Training
from hardware.spec import Pool
from planner.bands import RunClass, memory_band, memory_class, run_class, step_band

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
    """Safety margin that was kept free: what the asked confidence takes, or --margin."""
    confidence: float | None = None
    """Probability of fit that was asked for; None where a margin was given."""
    fit_probability: float
    """That the card holds what is needed, from the errors of measured runs; 0 where the server cannot hold what is offloaded."""
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

    @property
    def memory_interval_bytes(self) -> tuple[float, float]:
        """Where the device peak lies with 80 % probability."""
        return memory_band(memory_class(self.architecture, self.training)).interval(float(num(self.cost.memory.peak_device_bytes)))

    @property
    def run_class(self) -> RunClass:
        """The class of run whose errors of step time the plan shares."""
        return run_class(self.architecture, self.training)

    @property
    def step_interval_seconds(self) -> tuple[float, float]:
        """Where the step time lies with 80 % probability."""
        return step_band(self.run_class).interval(float(num(self.cost.time.step_seconds)))


MixedKind = Literal["stages", "replicas"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPart:
    """What one pool does in a plan that spans several."""

    plan: Plan
    """Replicas: the plan of the pool's own samples. Stages: the pipeline's layout, with the cost of the pool's stages (their memory and
    step terms are meant, not the step)."""
    samples: int
    """Of the global batch; stages: all of it."""
    first_stage: int | None = None
    """Position of the pool's first pipeline stage; None for replicas."""
    stage_layers: tuple[int, ...] = ()
    """Layers of the pool's stages; empty for replicas."""
    busy_seconds: float
    """Forward and backward of a step: of the replicas, or of the pool's slowest stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPlan:
    """One plan over several pools."""

    kind: MixedKind
    """`stages`: each pool holds stages of one pipeline; `replicas`: each pool holds replicas with a layout and a share of its own."""
    framework: str
    parts: tuple[MixedPart, ...]
    """In the order of the pipeline, or of the pools."""
    ledger: Ledger
    """Terms of the step; exposed sums to `step_seconds`."""
    step_seconds: float
    tokens_per_second: float
    """Of all GPUs."""
    needs: tuple[str, ...] = ()
    """Sentences: what the framework must support to run it."""

    @property
    def gpus(self) -> int:
        """GPUs that work."""
        return sum(part.plan.pool.count for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixed:
    """Outcome of planning several pools together."""

    plans: tuple[MixedPlan, ...]
    """Best first: the fastest found of each kind and framework. Of kinds that cannot beat the best plan known only a few are tried."""
    comparison: str
    """What is won or lost against the best single pool, with numbers."""
    single: Plan | None = None
    """The best plan of one pool alone."""
    links: tuple[str, ...] = ()
    """Sentences: the links between pools, and what was assumed of them."""
    refusals: tuple[str, ...] = ()
    """Why pools or kinds of plans were left out."""
    proof: str = ""


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
class ClashMember:
    """One requirement of a clash."""

    requirement: str
    """In words: `79.2 GiB per GPU, 5 % of it kept free`."""
    flags: str
    """Flags that state it; empty for facts of the server."""
    enough: bool
    """Whether dropping it alone, with everything else of the request kept, makes the request feasible."""
    plan: Plan | None
    """A plan that the others of the clash allow without it; None where the clash was not proved minimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clash:
    """Requirements that cannot be met together, whatever becomes of the others."""

    members: tuple[ClashMember, ...] = ()
    minimal: bool = True
    """Whether dropping any member was shown to leave a feasible rest."""
    searches: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What a search proves about its best plan."""

    layouts: int
    """Points of the grid that the search spans."""
    families: int
    """Pipelines of the grid whose layers, recompute and offload were open for each stage."""
    solved: int
    """Families that the solver answered: a best split, or the proof that none beats the best plan."""
    discarded: int
    """Families that a bound ruled out: perfect balance, nothing recomputed, nothing offloaded."""
    unsolved: int
    """Families that could still win, by their bound."""
    bound_seconds: float
    """No layout of the space has a shorter step."""
    gap: float
    """(step of the best plan - bound) / step of the best plan; 0 where the best plan is proved optimal."""
    quantum_seconds: float
    """Step of the solver's integer times; 0 where nothing was solved."""
    proved: bool
    """True only where no layout of the space has a shorter step than the best plan, up to the quantum."""


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
    certificate: Certificate | None = None
    """None where there is no plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Outcome of one search."""

    status: Status
    plans: tuple[Plan, ...]
    """Best first."""
    searched: Searched
    near_misses: tuple[NearMiss, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    clash: Clash | None = None
    """Where the status is infeasible and it was asked why."""
    notes: tuple[str, ...] = ()
    """Sentences for the reader: checks skipped, …"""
    mixed: Mixed | None = None
    """Plans over several pools of a mixed cluster; None for one pool."""
