"""Event simulation of a pipeline: when each rank runs which pass of which micro-batch. Oracle of the closed forms, and timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.choices.orders import Kind, Output, Pass, Place, Step, awaited, output
from cost_models.choices.schedules import schedule


@dataclass(frozen=True, slots=True)
class Event:
    """One pass on one rank, in seconds from the start of the step."""

    stage: int
    """The rank."""
    kind: Kind
    chunk: int
    micro_batch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """Seconds of one micro-batch through each stage (all of its chunks)."""

    forward: Sequence[float]
    backward: Sequence[float]
    """Input and weight gradients together."""
    weight: Sequence[float] = ()
    """The part of `backward` that zero-bubble schedules run apart; none: all zero."""


def simulate(name: str, durations: Durations, micro_batches: int, chunks: int = 1) -> list[Event]:
    """Return the events of all ranks under the schedule called `name`, by start. `chunks`: of each rank, where the schedule leaves it
    open. Sends take no time here.

    Each rank runs its passes in the schedule's order, each step once its inputs are there; the passes of one step run one after the
    other, and what they leave is there when the last of them ends. Raises ValueError where the schedule has no order for these
    micro-batches.
    """
    found, ranks = schedule(name), len(durations.forward)
    held = found.CHUNKS or chunks
    orders = [found.order(rank, ranks, held, micro_batches) for rank in range(ranks)]
    places = [[found.place(rank, chunk, ranks, held) for chunk in range(held)] for rank in range(ranks)]
    return _play(orders, places, durations)


def seconds(events: Sequence[Event]) -> float:
    """Return when the last event ends."""
    return max(e.end_seconds for e in events)


def _play(orders: list[list[Step]], places: list[list[Place]], durations: Durations) -> list[Event]:
    """Run each rank's list in order, each step when its inputs have come."""
    there: dict[Output, float] = {}
    free, turn = [0.0] * len(orders), [0] * len(orders)
    events: list[Event] = []
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while turn[rank] < len(order):
                step, held = order[turn[rank]], places[rank]
                inputs = [i for p in step if (i := awaited(p, held[p.chunk])) is not None]
                if not all(i in there for i in inputs):
                    break
                now = max(free[rank], *(there[i] for i in inputs), 0.0)
                for p in step:
                    end = now + _seconds(p, held[p.chunk], durations)
                    events.append(Event(rank, p.kind, p.chunk, p.micro_batch, now, end))
                    now = end
                there.update((output(p, held[p.chunk]), now) for p in step if p.kind != "weight")
                free[rank], turn[rank], moved = now, turn[rank] + 1, True
    if any(turn[rank] < len(order) for rank, order in enumerate(orders)):
        raise RuntimeError("the order of passes waits for itself")
    return sorted(events, key=lambda e: (e.start_seconds, e.stage))


def _seconds(p: Pass, at: Place, durations: Durations) -> float:
    """Return what a pass takes."""
    backward = durations.backward[at.stage]
    weight = durations.weight[at.stage] if durations.weight else 0.0
    times: dict[Kind, float] = {"forward": durations.forward[at.stage], "backward": backward, "inputs": backward - weight, "weight": weight}
    return times[p.kind] * at.part
