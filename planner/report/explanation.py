"""An explanation as text and as a JSON record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner import explanation_schema as schema
from planner.explain.memory import MEANINGS
from planner.report.documents import MFU
from planner.report.explain import Notes, memory_lines
from planner.report.explain_time import time_lines
from planner.report.sources import source_lines

if TYPE_CHECKING:
    from planner.explain.bundle import Explanation
    from planner.explain.figures import Numbers
    from planner.explain.memory import MemoryExplanation, MemoryTerm, StageMemory
    from planner.explain.step import TimeExplanation, TimeTerm
    from planner.report.look import Look


def explanation_lines(e: Explanation, look: Look, *, every: bool = False, name: str = "") -> list[str]:
    """Return what was explained; `every` shows all stages, `name` says of which plan."""
    of = f" of {name}" if name else ""
    notes = Notes()
    parts: list[list[str]] = []
    if e.memory is not None:
        parts.append(memory_lines(e.memory, look, notes, every=every, name=of))
    if e.time is not None:
        parts.append(time_lines(e.time, look, notes, every=every, name=of))
    if notes.texts:
        parts.append(notes.lines(look))
    if e.sources is not None:
        parts.append(source_lines(e.sources, look, of))
    return [line for part in parts for line in ["", *part]]


def explanation_record(e: Explanation) -> schema.ExplanationRecord:
    """Return the record of an explanation, every term of it."""
    found = e.sources
    return schema.ExplanationRecord(
        memory=None if e.memory is None else _memory(e.memory),
        time=None if e.time is None else _time(e.time),
        sources=None if found is None else [schema.SourceRecord(kind=s.kind, text=s.text, used_by=list(s.used_by)) for s in found],
    )


def _figures(numbers: Numbers | None) -> list[schema.FigureRecord]:
    if numbers is None:
        return []
    signs: tuple[schema.Sign, ...] = ("", *(sign for sign, _ in numbers.rest))
    return [
        schema.FigureRecord(name=figure.name, value=figure.value, unit=figure.unit, sign=sign)
        for sign, figure in zip(signs, numbers.figures, strict=True)
    ]


def _memory(e: MemoryExplanation) -> schema.MemoryExplanationRecord:
    return schema.MemoryExplanationRecord(
        meanings=MEANINGS,
        peak_stage=e.stages[e.peak].stage,
        stages=[_stage(s) for s in e.stages],
        saved=[schema.SavedTensorRecord(layer=t.layer, op=t.op, name=t.name, bytes=t.bytes, kept=t.kept) for t in e.saved],
        host_terms=[_term(t) for t in e.host],
    )


def _stage(s: StageMemory) -> schema.StageMemoryRecord:
    return schema.StageMemoryRecord(
        stage=s.stage,
        layers=s.layers,
        highest_phase=s.peak.phase,
        phases=[schema.PhaseMemoryRecord(phase=p.phase, total_bytes=p.total_bytes, terms=[_term(t) for t in p.terms]) for p in s.phases],
        reserved_terms=[_term(t) for t in s.reserved],
        device_terms=[_term(t) for t in s.device],
        allocated_bytes=s.allocated_bytes,
        reserved_bytes=s.reserved_bytes,
        device_bytes=s.device_bytes,
    )


def _term(t: MemoryTerm) -> schema.MemoryTermRecord:
    return schema.MemoryTermRecord(name=t.name, bytes=t.bytes, formula=t.formula, figures=_figures(t.numbers), source=t.source)


def _time(e: TimeExplanation) -> schema.TimeExplanationRecord:
    return schema.TimeExplanationRecord(
        step_seconds=e.step_seconds,
        micro_batches=e.micro_batches,
        terms=[_time_term(t, e.step_seconds) for t in e.terms],
        stages=[
            schema.StageTimeRecord(stage=s.stage, forward_seconds=s.forward_seconds, backward_seconds=s.backward_seconds) for s in e.stages
        ],
        mfu=schema.UtilisationRecord(value=e.mfu.result(), figures=_figures(e.mfu)),
        hfu=schema.UtilisationRecord(value=e.hfu.result(), figures=_figures(e.hfu)),
        definition=MFU,
        limited_by=e.limited_by,
    )


def _time_term(t: TimeTerm, step: float) -> schema.ExplainedTimeTermRecord:
    bounds = () if t.bound is None else t.bound.parts
    return schema.ExplainedTimeTermRecord(
        name=t.name,
        seconds=t.seconds,
        exposed_seconds=t.exposed_seconds,
        share=t.exposed_seconds / step,
        formula=t.formula,
        figures=_figures(t.numbers),
        hidden=t.hidden,
        source=t.source,
        bounds=[schema.BoundRecord(by=by, part=part) for by, part in bounds],
    )
