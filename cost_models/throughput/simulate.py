"""Event simulation of a pipeline: when each stage runs which pass of which micro-batch. Oracle of the closed forms, and timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pass = Literal["forward", "backward", "weight"]
Task = tuple[Pass, int, int]
"""Pass, model chunk of the stage, micro-batch."""
SIMULATED = ("gpipe", "1f1b", "interleaved", "zb-h1")
"""Schedules whose order of passes is simulated; the others rest on their papers' tables."""


@dataclass(frozen=True, slots=True)
class Event:
    """One pass on one stage, in seconds from the start of the step."""

    stage: int
    kind: Pass
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
    """The part of `backward` that zero-bubble schedules run apart."""


def simulate(schedule: str, durations: Durations, micro_batches: int, chunks: int = 1) -> list[Event]:
    """Return the events of all stages, by start. Sends take no time here.

    Raises ValueError for a schedule that is not simulated, and for interleaving with micro-batches that are no multiple of the stages.
    """
    stages = len(durations.forward)
    if schedule not in SIMULATED:
        raise ValueError(f"{schedule} is not simulated; these are: {', '.join(SIMULATED)}")
    if schedule == "zb-h1":
        return _split(durations, micro_batches)
    if schedule == "interleaved":
        if micro_batches % stages:
            raise ValueError(f"interleaving needs micro-batches in multiples of the {stages} stages, not {micro_batches}")
        orders = [_interleaved(s, stages, chunks, micro_batches) for s in range(stages)]
    else:
        chunks = 1
        orders = [_plain(schedule, s, stages, micro_batches) for s in range(stages)]
    return _play(orders, durations, chunks)


def seconds(events: Sequence[Event]) -> float:
    """Return when the last event ends."""
    return max(e.end_seconds for e in events)


def _plain(schedule: str, stage: int, stages: int, m: int) -> list[Task]:
    warm = m if schedule == "gpipe" else min(stages - 1 - stage, m)
    order: list[Task] = [("forward", 0, i) for i in range(warm)]
    for i in range(m - warm):
        order += [("forward", 0, warm + i), ("backward", 0, i)]
    return order + [("backward", 0, i) for i in range(m - warm, m)]


def _interleaved(stage: int, stages: int, chunks: int, m: int) -> list[Task]:
    """Order of Megatron-LM core/pipeline_parallel/schedules.py: groups of p micro-batches go through one chunk after the other."""
    total = m * chunks
    warm = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)

    def forward(k: int) -> Task:
        return "forward", k % (stages * chunks) // stages, k // (stages * chunks) * stages + k % stages

    def backward(k: int) -> Task:
        return "backward", chunks - 1 - k % (stages * chunks) // stages, k // (stages * chunks) * stages + k % stages

    order = [forward(k) for k in range(warm)]
    for k in range(total - warm):
        order += [forward(warm + k), backward(k)]
    return order + [backward(k) for k in range(total - warm, total)]


def _play(orders: list[list[Task]], durations: Durations, chunks: int) -> list[Event]:
    """Run each stage's list in order, each task when its input has come."""
    stages = len(orders)
    done: dict[tuple[int, Task], float] = {}
    free, place = [0.0] * stages, [0] * stages
    events: list[Event] = []
    while any(place[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            while place[s] < len(orders[s]):
                task = orders[s][place[s]]
                ready = _input(task, s, stages, chunks, done)
                if ready is None:
                    break
                start = max(free[s], ready)
                length = (durations.forward if task[0] == "forward" else durations.backward)[s] / chunks
                free[s] = done[s, task] = start + length
                events.append(Event(s, task[0], task[1], task[2], start, free[s]))
                place[s] += 1
                moved = True
        if not moved:
            raise RuntimeError("the order of passes waits for itself")
    return sorted(events, key=lambda e: (e.start_seconds, e.stage))


def _input(task: Task, stage: int, stages: int, chunks: int, done: dict[tuple[int, Task], float]) -> float | None:
    """When the task's input is there; None while it is not."""
    kind, chunk, i = task
    if kind == "forward":
        if stage > 0:
            return done.get((stage - 1, ("forward", chunk, i)))
        return 0.0 if chunk == 0 else done.get((stages - 1, ("forward", chunk - 1, i)))
    if stage < stages - 1:
        return done.get((stage + 1, ("backward", chunk, i)))
    if chunk < chunks - 1:
        return done.get((0, ("backward", chunk + 1, i)))
    return done.get((stage, ("forward", chunk, i)))


def _split(d: Durations, m: int) -> list[Event]:
    """Zero-bubble H1: input gradients first, then forwards within 1F1B's memory, weight gradients where neither is ready."""
    p = len(d.forward)
    free = [0.0] * p
    counts = [{"forward": 0, "backward": 0, "weight": 0} for _ in range(p)]
    done: dict[tuple[int, Pass, int], float] = {}
    events: list[Event] = []
    while any(c["weight"] < m for c in counts):
        s, kind, start = min((_next(s, p, m, counts[s], free[s], done) for s in range(p)), key=lambda o: (o[2], o[0]))
        i = counts[s][kind]
        length = {"forward": d.forward[s], "backward": d.backward[s] - d.weight[s], "weight": d.weight[s]}[kind]
        free[s] = done[s, kind, i] = start + length
        counts[s][kind] += 1
        events.append(Event(s, kind, 0, i, start, free[s]))
    return events


def _next(s: int, p: int, m: int, c: dict[str, int], free: float, done: dict[tuple[int, Pass, int], float]) -> tuple[int, Pass, float]:
    """Next pass of stage `s` and when it can start (never: infinity)."""
    never = float("inf")
    back = never
    if c["backward"] < c["forward"]:
        source = done.get((s + 1, "backward", c["backward"])) if s < p - 1 else done.get((s, "forward", c["backward"]))
        back = never if source is None else max(free, source)
    ahead = never
    if c["forward"] < m and c["forward"] - c["backward"] < p - s and c["forward"] - c["weight"] < p:
        source = 0.0 if s == 0 else done.get((s - 1, "forward", c["forward"]))
        ahead = never if source is None else max(free, source)
    weight = free if c["weight"] < c["backward"] else never
    best = min(back, ahead, weight)
    kind: Pass = "backward" if back == best else "forward" if ahead == best else "weight"
    return s, kind, best
