"""The tables of `planner validate`: errors of step time and of peak memory, by source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.report.table import Column, table
from planner.report.words import gib, plural

if TYPE_CHECKING:
    from planner.report.look import Look
    from planner.validate_schema import Coverage, ErrorGroup, Misjudged, OutOfMemory, SkippedCount, ValidationReport

HEADS = {"all": "all", "class": "class of run", "source": "source", "framework": "framework", "kind": "kind of peak"}
MOST_SKIPS = 12
MOST_PROBLEMS = 5
NAME_WIDTH = 44


def validation_lines(report: ValidationReport, look: Look) -> list[str]:
    """Return the report."""
    skipped = sum(s.count for s in report.skipped)
    lines = look.headed("Runs", f"{report.table}: {plural(len(report.rows), 'row')}, {report.predicted:,} predicted, {skipped:,} skipped")
    shown = report.problems[:MOST_PROBLEMS]
    if len(report.problems) > len(shown):
        shown = [*shown, f"{len(report.problems) - len(shown)} more of the kind"]
    for text in shown:
        lines += look.headed("Warning", text)
    lines += ["", *_errors("Step time", report.step, look), "", *_errors("Peak memory", report.memory, look)]
    lines += ["", *_coverage(report.coverage, look), "", *_summary(report, look)]
    if report.skipped:
        lines += ["", *_skips(report.skipped, look)]
    return lines


def _errors(what: str, groups: Sequence[ErrorGroup], look: Look) -> list[str]:
    """The groups of one quantity: the error is predicted / measured - 1."""
    if not groups:
        return [look.bold(f"{what}: no row has a measured value to compare.")]
    columns = [
        Column(head="by", align="left"),
        Column(head="group", align="left"),
        Column(head="runs"),
        Column(head="median %"),
        Column(head="90th %"),
        Column(head="bias %"),
    ]
    rows = []
    before = ""
    for g in groups:
        name = "" if g.by == "all" else g.name if len(g.name) <= NAME_WIDTH else g.name[: NAME_WIDTH - 1] + "…"
        by = HEADS[g.by] if g.by != before else ""
        rows.append([by, name, f"{g.count:,}", _percent(g.median), _percent(g.p90), f"{100 * g.bias:+.1f}"])
        before = g.by
    title = f"{what}: predicted / measured - 1; median and 90th percentile of its size, median with its sign (bias)"
    return [look.bold(line) for line in look.wrap(title)] + table(columns, rows, look)


def _coverage(found: Sequence[Coverage], look: Look) -> list[str]:
    """How often the 80 % intervals hold, and the errors that remain, when each row's source is left out."""
    if not found:
        return [look.bold("Intervals: no measured value to judge them on.")]
    columns = [
        Column(head="of", align="left"),
        Column(head="class", align="left"),
        Column(head="peak", align="left"),
        Column(head="runs"),
        Column(head="inside %"),
        Column(head="below %"),
        Column(head="above %"),
        Column(head="interval", useful=2),
        Column(head="median %", useful=3),
        Column(head="90th %", useful=3),
    ]
    rows = []
    for c in found:
        ends = f"{c.low:.2f}-{c.high:.2f}"
        parts = [_percent(part) for part in (c.inside, c.below, c.above)]
        rows.append([c.quantity, c.name, c.kind or "", f"{c.count:,}", *parts, ends, _percent(c.median), _percent(c.p90)])
    title = "80 % intervals (measured / predicted) and errors when bands and bias come from the other sources alone (leave one source out)"
    return [look.bold(line) for line in look.wrap(title)] + table(columns, rows, look)


def _percent(part: float) -> str:
    return f"{100 * part:.1f}"


def _summary(report: ValidationReport, look: Look) -> list[str]:
    lines = []
    if report.dense_source_mean is not None:
        lines += look.wrap(f"Mean over the dense sources of the median step-time error: {_percent(report.dense_source_mean)} %.", indent=2)
    lines += _out_of_memory(report.out_of_memory, look)
    r = report.regret
    if r.median is not None and r.mean is not None and r.random_mean is not None:
        text = f"Choice of layout, in {plural(len(r.groups), 'group')} of runs that differ in layout only: the predicted best is "
        text += f"{_percent(r.median)} % slower than the measured best (median; mean {_percent(r.mean)} %, "
        text += f"a random pick {_percent(r.random_mean)} %)."
        lines += look.wrap(text, indent=2)
    for c in report.calibrated:
        text = f"With one factor per source and GPU ({c.name}, {plural(c.count, 'run')}): median error {_percent(c.median)} %, "
        lines += look.wrap(f"{text}90th percentile {_percent(c.p90)} %.", indent=2)
    for o in report.one_sided:
        text = f"Rows of low trust, {o.source}, {o.quantity}: {plural(o.count, 'row')}, bias {100 * o.bias:+.1f} %, "
        text += f"{_percent(o.below)} % below."
        lines += [look.dim(line) for line in look.wrap(text, indent=2)]
    return lines


def _out_of_memory(o: OutOfMemory, look: Look) -> list[str]:
    parts = []
    if o.oom_rows:
        parts.append(f"of {plural(o.oom_rows, 'run')} that ran out of memory {o.caught:,} are not called fitting")
    if o.ran_rows:
        parts.append(f"of {o.ran_rows:,} that ran {o.called_no:,} are called not to fit")
    if o.near_full:
        parts.append(f"{o.near_full:,} near-full peaks only say that the run fitted ({o.near_full_called_no:,} called not to fit)")
    lines = look.wrap(f"Verdicts: {'; '.join(parts)}.", indent=2) if parts else []
    alike: dict[tuple[object, ...], list[Misjudged]] = {}
    for m in o.misses:
        alike.setdefault((m.verdict, gib(m.predicted_device_bytes), gib(m.capacity_bytes), m.stage, m.phase), []).append(m)
    for (verdict, predicted, capacity, stage, phase), rows in alike.items():
        where = f"{predicted} of {capacity} GiB, stage {stage}, {phase}, most {rows[0].bucket}"
        text = f"  {', '.join(m.id for m in rows)} called {verdict} ({where}): {rows[0].reason}"
        lines += [look.dim(line) for line in look.wrap(text, indent=4)]
    return lines


def _skips(skipped: Sequence[SkippedCount], look: Look) -> list[str]:
    shown = list(skipped[:MOST_SKIPS])
    rows = [[f"{s.count:,}", s.reason if len(s.reason) <= 80 else s.reason[:79] + "…"] for s in shown]
    if len(skipped) > len(shown):
        rows.append([f"{sum(s.count for s in skipped[MOST_SKIPS:]):,}", "other reasons"])
    return table([Column(head="skipped"), Column(head="because", align="left")], rows, look)
