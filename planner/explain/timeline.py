"""The timeline of a predicted step: who runs what when, by stage and stream, from the event simulation of the schedule.

Passes come from the simulation of the pipeline with the predicted seconds of every stage. Inside a pass the traffic is drawn as one
slice per kind at its end, as long as it is busy; compute is what the pass has beside exposed traffic. What happens once a step follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cost_models.numeric import num
from planner.explain import at
from planner.explain.passes import Passes, passes
from planner.explain.step import exposed, exposed_send, is_forward, of_a_pass, pass_seconds, stage_times

if TYPE_CHECKING:
    from cost_models.ledger import Term
    from cost_models.throughput.simulate import Event
    from planner.plan import Plan

Stream = Literal["compute", "communication", "pipeline sends", "data parallel", "host"]
STREAMS: tuple[Stream, ...] = ("compute", "communication", "pipeline sends", "data parallel", "host")
SHORTEST = 1e-12
"""Slices shorter than this are not drawn."""
_LAST = ("dp.reduce", "offload.transfer", "offload.cpu_optimizer", "optimizer.update", "dp.gather", "host.stragglers", "host.between_steps")
"""Order of what follows the pipeline; what is not named here comes before the host's part."""
_TITLES = {"forward": "F", "backward": "B", "inputs": "I", "weight": "W"}
"""As PyTorch names them: B computes both gradients, I those of the inputs, W those of the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One box of the timeline, in seconds from the start of the step."""

    stage: int
    stream: Stream
    name: str
    start_seconds: float
    end_seconds: float
    facts: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A whole step."""

    slices: tuple[Slice, ...]
    stages: tuple[str, ...]
    """What each stage is called."""
    step_seconds: float
    notes: tuple[str, ...]
    """What is drawn otherwise than it runs, in sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """Traffic of a pass: busy and exposed as parts of the pass's own seconds."""

    name: str
    busy: float
    exposed: float


def timeline(plan: Plan) -> Timeline:
    """Return the timeline of a step of `plan`; its last slice ends with the step."""
    terms = [t for t in plan.cost.time.ledger.terms if at(t.value, 0) > 0.0 and t.name != "decode.step"]
    after = [t for t in terms if not of_a_pass(t.name) and t.name not in ("pp.send", "pp.bubble")]
    step = float(num(plan.cost.time.step_seconds))
    whole = step - sum(exposed(t) for t in after)
    drawn = passes(plan, whole)
    stages = len(stage_times(plan))
    slices = [s for stage in range(stages) for s in _stage(plan, drawn, terms, stage)]
    for stage in range(stages):
        slices += _once(after, drawn, stage, whole)
    notes = ["inside a pass, traffic is drawn at its end, in proportion to the pass; layers take turns in truth", *drawn.notes]
    names = tuple(f"stage {stage}" for stage in range(stages))
    seen = tuple(s for s in slices if s.end_seconds - s.start_seconds > SHORTEST)
    return Timeline(slices=seen, stages=names, step_seconds=step, notes=tuple(notes))


def _stage(plan: Plan, drawn: Passes, terms: list[Term], stage: int) -> list[Slice]:
    """Passes of one stage with their traffic and sends."""
    kinds = {direction: _traffic(plan, terms, direction) for direction in ("forward", "backward")}
    send = sum(at(t.value, 0) for t in terms if t.name == "pp.send") / plan.micro_batches / 2.0
    hidden = send if exposed_send(plan) == 0.0 else 0.0
    found: list[Slice] = []
    sent = 0.0
    mine = [e for e in drawn.events if e.stage == stage]
    for position, event in enumerate(mine):
        traffic = [] if event.kind == "weight" else kinds["forward" if event.kind == "forward" else "backward"]
        found += _pass(event, traffic)
        if hidden and event.kind != "weight" and position + 1 < len(mine):
            start = max(event.end_seconds, sent)
            sent = min(start + hidden * drawn.scale / drawn.chunks, mine[-1].end_seconds)
            name = f"send {event.micro_batch}"
            found.append(Slice(stage=stage, stream="pipeline sends", name=name, start_seconds=start, end_seconds=sent))
    for gap in drawn.gaps:
        if gap.stage == stage:
            found.append(Slice(stage=stage, stream="compute", name=gap.name, start_seconds=gap.start_seconds, end_seconds=gap.end_seconds))
    return found


def _traffic(plan: Plan, terms: list[Term], direction: str) -> list[_Kind]:
    """Traffic of a forward or backward, as parts of it, at the stage that sets the pace."""
    one = pass_seconds(plan, direction)
    kinds = []
    for term in terms:
        mine = of_a_pass(term.name) and is_forward(term.name) == (direction == "forward")
        if mine and term.name.split(".")[0] not in ("compute", "recompute", "host"):
            share = 1.0 / plan.micro_batches / one
            kinds.append(_Kind(name=term.name.split(".")[0], busy=at(term.value, 0) * share, exposed=exposed(term) * share))
    if exposed_send(plan) > 0.0:
        kinds.append(_Kind(name="pp send", busy=exposed_send(plan) / one, exposed=exposed_send(plan) / one))
    return kinds


def _pass(event: Event, traffic: list[_Kind]) -> list[Slice]:
    """The slices of one pass: compute first, traffic so that it ends with the pass."""
    length = event.end_seconds - event.start_seconds
    chunk = f" chunk {event.chunk}" if event.chunk else ""
    title = f"{_TITLES[event.kind]}{event.micro_batch}{chunk}"
    facts: dict[str, float | int | str] = {"pass": event.kind, "micro_batch": event.micro_batch, "chunk": event.chunk}
    open_part = min(sum(k.exposed for k in traffic), 1.0)
    found = [
        Slice(
            stage=event.stage,
            stream="compute",
            name=title,
            start_seconds=event.start_seconds,
            end_seconds=event.end_seconds - open_part * length,
            facts={**facts, "pass_seconds": length},
        )
    ]
    busy = sum(k.busy for k in traffic)
    squeezed = 1.0 if busy <= 1.0 else 1.0 / busy
    start = event.end_seconds - busy * squeezed * length
    for index, kind in enumerate(traffic):
        end = event.end_seconds if index == len(traffic) - 1 else start + kind.busy * squeezed * length
        more = {"busy_seconds": kind.busy * length, "exposed_seconds": kind.exposed * length}
        name = f"{kind.name} {title}"
        found.append(Slice(stage=event.stage, stream="communication", name=name, start_seconds=start, end_seconds=end, facts=more))
        start = end
    return found


def _once(after: list[Term], drawn: Passes, stage: int, whole: float) -> list[Slice]:
    """What happens once a step, one after the other behind the pipeline; what it hides of itself behind passes is drawn there."""
    order = {name: place for place, name in enumerate(_LAST)}
    found: list[Slice] = []
    begins = min((e.start_seconds for e in drawn.events if e.stage == stage), default=0.0)
    now, hidden_until = whole, begins
    gathers = [t for t in after if t.name == "dp.gather"]
    for term in gathers:
        hidden_until = min(begins + max(at(term.value, 0) - exposed(term), 0.0), whole)
        found.append(_box(stage, f"{term.name} (hidden)", begins, hidden_until, term))
    for term in sorted(after, key=lambda t: order.get(t.name, len(order) - 2.5)):
        start = now
        if term.name == "dp.reduce":
            start = max(now - max(at(term.value, 0) - exposed(term), 0.0), hidden_until)
        now += exposed(term)
        found.append(_box(stage, term.name, start, now, term))
    return found


def _box(stage: int, name: str, start: float, end: float, term: Term) -> Slice:
    stream: Stream = "compute"
    if name.startswith(("dp.", "sp.", "pp.tied")):
        stream = "data parallel"
    elif name.startswith(("host.", "offload.")):
        stream = "host"
    facts: dict[str, float | int | str] = {"busy_seconds": at(term.value, 0), "exposed_seconds": exposed(term), "source": term.source}
    return Slice(stage=stage, stream=stream, name=name, start_seconds=start, end_seconds=end, facts=facts)
