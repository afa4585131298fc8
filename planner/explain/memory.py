"""Where the bytes go: every stage and phase opened into its terms, and what each layer saves for backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.choices.recompute import is_dropped
from cost_models.numeric import num
from planner.explain import at
from planner.explain.figures import Numbers
from planner.explain.memory_numbers import Known, known, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost_models.ledger import Term
    from planner.plan import Plan

MEANINGS = {
    "allocated": "bytes of all tensors that are alive: torch.cuda.max_memory_allocated",
    "reserved": "with what torch's allocator keeps cached or lost to fragments: torch.cuda.max_memory_reserved",
    "device": "with CUDA context and communicators: what nvidia-smi shows, and what is held against the capacity",
}
"""The three predictions, from the inside out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTerm:
    """One term of one stage and phase."""

    name: str
    bytes: float
    formula: str
    numbers: Numbers | None
    """What stands for the names of the formula; they give `bytes`. None: the term is one figure."""
    source: str

    @property
    def bucket(self) -> str:
        """The first part of the name."""
        return self.name.split(".", 1)[0]

    @property
    def rest(self) -> str:
        """The name without its bucket."""
        return self.name.partition(".")[2] or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMemory:
    """What is allocated at the peak of one phase."""

    phase: str
    terms: tuple[MemoryTerm, ...]
    total_bytes: float
    """The ledger's own sum."""

    def bucket_bytes(self) -> dict[str, float]:
        """Return bucket -> bytes, in order of appearance."""
        found: dict[str, float] = {}
        for term in self.terms:
            found[term.bucket] = found.get(term.bucket, 0.0) + term.bytes
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """The ranks of one pipeline stage."""

    stage: int
    layers: int
    phases: tuple[PhaseMemory, ...]
    highest: int
    """Which of `phases` wins."""
    reserved: tuple[MemoryTerm, ...]
    """On top of allocated."""
    device: tuple[MemoryTerm, ...]
    """On top of reserved."""
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float

    @property
    def peak(self) -> PhaseMemory:
        """The phase that wins."""
        return self.phases[self.highest]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """A tensor that one layer keeps for backward, per rank and micro-batch."""

    layer: str
    """Kind of layer."""
    op: str
    name: str
    bytes: float
    kept: bool
    """False: recomputed instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryExplanation:
    """All stages of a plan."""

    stages: tuple[StageMemory, ...]
    peak: int
    """Which of `stages` needs most."""
    saved: tuple[SavedTensor, ...]
    """By one layer of each kind that the peak stage holds."""
    host: tuple[MemoryTerm, ...]
    """Of one server, of its heaviest stage."""
    capacity_bytes: float
    margin_bytes: float
    regime: str


def explain_memory(plan: Plan) -> MemoryExplanation:
    """Return the memory of every stage of `plan`, term by term."""
    m = plan.cost.memory
    facts = known(plan)
    index = [int(i) for i in num(m.stage_index).reshape(-1)]
    stages = tuple(_stage(plan, facts, k, position) for k, position in enumerate(index))
    peak = index.index(int(num(m.peak_stage)))
    host = tuple(t for t in _terms(plan, facts, m.host.terms, _heaviest_host(plan, len(index))) if t.bytes > 0.0)
    return MemoryExplanation(
        stages=stages,
        peak=peak,
        saved=_saved(plan, facts, peak),
        host=host,
        capacity_bytes=plan.pool.capacity_bytes,
        margin_bytes=plan.margin_bytes,
        regime=m.regime,
    )


def _stage(plan: Plan, facts: Known, k: int, position: int) -> StageMemory:
    m = plan.cost.memory
    over = _terms(plan, facts, m.overhead.terms, k)
    inside = tuple(t for t in over if t.name.startswith("overhead.reserved"))
    return StageMemory(
        stage=position,
        layers=round(at(facts.stages.layers, k)),
        phases=tuple(
            PhaseMemory(phase=name, terms=tuple(_terms(plan, facts, ledger.terms, k)), total_bytes=at(ledger.total, k))
            for name, ledger in m.phases.items()
        ),
        highest=int(at(m.stage_phase, k)),
        reserved=inside,
        device=tuple(t for t in over if t not in inside),
        allocated_bytes=at(m.stage_allocated_bytes, k),
        reserved_bytes=at(m.stage_reserved_bytes, k),
        device_bytes=at(m.stage_device_bytes, k),
    )


def _terms(plan: Plan, facts: Known, terms: Iterable[Term], k: int) -> list[MemoryTerm]:
    found = []
    for term in terms:
        value = at(term.value, k)
        figures = numbers_of(plan, facts, term, k)
        found.append(MemoryTerm(name=term.name, bytes=value, formula=term.formula, numbers=figures, source=term.source))
    return found


def _heaviest_host(plan: Plan, stages: int) -> int:
    total = plan.cost.memory.host.total
    return max(range(stages), key=lambda k: at(total, k))


def _saved(plan: Plan, facts: Known, k: int) -> tuple[SavedTensor, ...]:
    policy = plan.training.extra.get("recompute_policy", "")
    found = []
    for (kind, rows), count in zip(facts.ops.kinds, facts.stages.kind_layers, strict=True):
        if at(count, k) == 0.0:
            continue
        for op in rows:
            for s in op.saved:
                kept = not is_dropped(op.name, s, plan.layout.choices, policy) and plan.layout.choices.recompute != "full"
                found.append(SavedTensor(layer=kind.name, op=op.name, name=s.name, bytes=float(num(s.bytes)), kept=kept))
    return tuple(found)
