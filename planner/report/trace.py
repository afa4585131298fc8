"""A timeline as Chrome trace events (chrome://tracing, ui.perfetto.dev): stages are processes, streams are threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hardware.units import GIGA, KILO
from planner.explain.timeline import STREAMS
from planner.report.words import layout_name

if TYPE_CHECKING:
    from planner.explain.timeline import Slice, Timeline
    from planner.plan import Plan


def trace_text(plan: Plan, made: Timeline) -> str:
    """Return the trace file: complete events (`ph` X) with `ts` and `dur` in microseconds, and the names of stages and streams."""
    events: list[dict[str, Any]] = []
    used = {(s.stage, s.stream) for s in made.slices}
    for stage, name in enumerate(made.stages):
        events.append(_meta("process_name", stage, 0, {"name": name}))
        events.append(_meta("process_sort_index", stage, 0, {"sort_index": stage}))
        for tid, stream in enumerate(STREAMS):
            if (stage, stream) in used:
                events.append(_meta("thread_name", stage, tid, {"name": stream}))
                events.append(_meta("thread_sort_index", stage, tid, {"sort_index": tid}))
    events += [_complete(s) for s in made.slices]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "title": "predicted step",
            "model": plan.architecture.id,
            "hardware": f"{plan.pool.count} x {plan.pool.gpu.name}",
            "framework": plan.training.framework,
            "layout": layout_name(plan.layout),
            "schedule": plan.layout.choices.schedule,
            "step_seconds": made.step_seconds,
            "fits": plan.fits,
            "notes": list(made.notes),
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _meta(name: str, stage: int, tid: int, values: dict[str, object]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": stage, "tid": tid, "ts": 0, "args": values}


def _complete(s: Slice) -> dict[str, Any]:
    """Both ends are rounded to nanoseconds, so that slices that touch stay apart."""
    start, end = round(s.start_seconds * GIGA), round(s.end_seconds * GIGA)
    return {
        "ph": "X",
        "name": s.name,
        "cat": s.stream,
        "pid": s.stage,
        "tid": STREAMS.index(s.stream),
        "ts": start / KILO,
        "dur": (end - start) / KILO,
        "args": {key: round(value, 9) if isinstance(value, float) else value for key, value in s.facts.items()},
    }
