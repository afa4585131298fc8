"""The passes of all stages as the event simulation orders them, fitted to the predicted length of the pipeline.

Very many micro-batches are not drawn one by one: a part is simulated, cut in its middle, and moved apart by what the others take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_models.numeric import num
from cost_models.throughput.simulate import Durations, Event, seconds, simulate
from planner.explain.step import exposed_send, stage_times

if TYPE_CHECKING:
    from planner.plan import Plan

MOST_PASSES = 12_000
"""Passes that are drawn one by one; beyond them micro-batches are left out of the middle."""
LEAST_ROUNDS = 4
"""Micro-batches that are drawn at least, in multiples of the stages."""
SAME = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Time of one stage that is not drawn pass by pass."""

    stage: int
    name: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """All passes that are drawn, by start."""

    events: tuple[Event, ...]
    gaps: tuple[Gap, ...]
    scale: float
    """Drawn length of a pass / predicted length."""
    chunks: int
    notes: tuple[str, ...]


def passes(plan: Plan, whole_seconds: float) -> Passes:
    """Return the passes of a step whose pipeline takes `whole_seconds`."""
    stages = len(stage_times(plan))
    chunks = int(num(plan.layout.degrees.vpp)) if plan.layout.choices.schedule == "interleaved" else 1
    m, drawn = plan.micro_batches, _drawn(plan.micro_batches, stages, chunks)
    events = _simulated(plan, drawn, chunks)
    length = seconds(events)
    if drawn < m:
        return _cut(events, whole_seconds - length, m - drawn, chunks)
    if length > whole_seconds * (1.0 + SAME):
        scale = whole_seconds / length
        longer = 100.0 * (length / whole_seconds - 1.0)
        note = f"the simulated pipeline is {longer:.2g} % longer than the closed form; passes are drawn shorter"
        return Passes(events=_scaled(events, scale), gaps=(), scale=scale, chunks=chunks, notes=(note,))
    if length < whole_seconds * (1.0 - SAME):
        gaps = tuple(Gap(stage=s, name="pp.bubble (closed form)", start_seconds=length, end_seconds=whole_seconds) for s in range(stages))
        note = f"the closed form adds {100.0 * (1.0 - length / whole_seconds):.2g} % to the simulated pipeline, drawn at its end"
        return Passes(events=tuple(events), gaps=gaps, scale=1.0, chunks=chunks, notes=(note,))
    return Passes(events=tuple(events), gaps=(), scale=1.0, chunks=chunks, notes=())


def _drawn(m: int, stages: int, chunks: int) -> int:
    """Micro-batches that are simulated: all, or as many whole rounds of the stages as MOST_PASSES allows."""
    most = max(MOST_PASSES // (2 * stages * chunks), LEAST_ROUNDS * stages, 2 * LEAST_ROUNDS)
    return m if m <= most else most // stages * stages + m % stages


def _simulated(plan: Plan, m: int, chunks: int) -> list[Event]:
    """Events with the predicted seconds of every stage, exposed sends included, as the closed form takes them."""
    times, send = stage_times(plan), exposed_send(plan)
    durations = Durations(
        forward=[t.forward_seconds + send for t in times],
        backward=[t.backward_seconds + send if t.backward_seconds else 0.0 for t in times],
        weight=[t.weight_seconds for t in times],
    )
    events = simulate(plan.layout.choices.schedule if len(times) > 1 else "1f1b", durations, m, chunks)
    return [e for e in events if e.end_seconds > e.start_seconds]


def _scaled(events: list[Event], scale: float) -> tuple[Event, ...]:
    return tuple(replace(e, start_seconds=e.start_seconds * scale, end_seconds=e.end_seconds * scale) for e in events)


def _cut(events: list[Event], missing: float, left_out: int, chunks: int) -> Passes:
    """Move the later half apart by the seconds of the micro-batches that are left out (Event numbers follow)."""
    middle = seconds(events) / 2.0
    moved: list[Event] = []
    ends: dict[int, float] = {}
    starts: dict[int, float] = {}
    for e in events:
        if e.start_seconds < middle:
            moved.append(e)
            ends[e.stage] = e.end_seconds
        else:
            later = Event(e.stage, e.kind, e.chunk, e.micro_batch + left_out, e.start_seconds + missing, e.end_seconds + missing)
            moved.append(later)
            starts.setdefault(e.stage, later.start_seconds)
    name = f"{left_out:,} more micro-batches, not drawn one by one"
    gaps = [Gap(stage=s, name=name, start_seconds=ends[s], end_seconds=starts[s]) for s in starts if s in ends]
    note = f"{left_out:,} micro-batches of the middle are drawn as one slice on each stage"
    return Passes(events=tuple(moved), gaps=tuple(gaps), scale=1.0, chunks=chunks, notes=(note,))
