"""The tables that `planner validate` prints: heads and cells as text, most important table first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.validate_schema import ErrorGroup, ValidationReport

WORDS = {"all": "all rows", "class": "class", "source": "source", "framework": "framework", "kind": "kind of memory"}
LONGEST_NAME = 48


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One table: a title, heads and rows of the same width. The first column is text, the others are numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences to print under it."""


def tables(report: ValidationReport, *, regret: bool = False) -> list[ReportTable]:
    """Return the tables of a report; `regret` adds one row per group of layouts."""
    made = [
        _errors("Step time: |predicted / measured - 1|", report.step, _step_notes(report)),
        _errors("Peak memory, against the kind and stage that each row states", report.memory, ()),
        _oom(report),
        _ranking(report),
    ]
    if regret:
        made.append(_groups(report))
    made.append(_skipped(report))
    return [table for table in made if table.rows]


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a fraction as percent, "-" where there is none."""
    if value is None:
        return "-"
    return f"{100.0 * value:+.1f} %" if sign else f"{100.0 * value:.1f} %"


def _errors(title: str, groups: list[ErrorGroup], notes: tuple[str, ...]) -> ReportTable:
    rows = []
    for group in groups:
        name = WORDS["all"] if group.by == "all" else f"{group.by}: {group.name}"
        numbers = (percent(group.median), percent(group.p90), percent(group.bias, sign=True))
        rows.append((name[:LONGEST_NAME], str(group.count), *numbers))
    return ReportTable(title, ("rows of trust A and B", "count", "median", "90th perc.", "bias"), tuple(rows), notes)


def _step_notes(report: ValidationReport) -> tuple[str, ...]:
    notes = []
    if report.dense_source_mean is not None:
        notes.append(f"mean of the medians of the dense sources with at least 8 rows: {percent(report.dense_source_mean)}")
    if report.calibrated:
        parts = ", ".join(f"{c.name} {percent(c.median)} / {percent(c.p90)} ({c.count})" for c in report.calibrated)
        notes.append(f"with one factor per source and GPU, learnt from the other rows (median / 90th percentile): {parts}")
    notes.extend(
        f"trust C, one-sided: {o.source}, {o.quantity}, {o.count} rows, bias {percent(o.bias, sign=True)}, {percent(o.below)} below"
        for o in report.one_sided
    )
    return tuple(notes)


def _oom(report: ValidationReport) -> ReportTable:
    o = report.out_of_memory
    rows = (
        ("ran out of memory, not called `fits`", f"{o.caught} of {o.oom_rows}", percent(o.caught_share)),
        ("ran, called `no`", f"{o.called_no} of {o.ran_rows}", percent(o.called_no_share)),
        ("above 92 % of the card, called `no`", f"{o.near_full_called_no} of {o.near_full}", "-"),
    )
    return ReportTable("Verdict of the worst stage", ("rows", "count", "share"), rows if o.oom_rows or o.ran_rows else ())


def _ranking(report: ValidationReport) -> ReportTable:
    r = report.regret
    if not r.groups:
        return ReportTable("Ranking", (), ())
    row = (f"{len(r.groups)} groups", percent(r.median), percent(r.mean), percent(r.p90), f"{r.mean_tau:.2f}", percent(r.random_mean))
    heads = ("that differ only in layout", "regret median", "mean", "90th perc.", "mean tau", "random pick")
    return ReportTable("Ranking: predicted best against measured best", heads, (row,))


def _groups(report: ValidationReport) -> ReportTable:
    rows = [
        (g.name, str(g.rows), percent(g.regret), f"{g.tau:+.2f}", percent(g.random))
        for g in sorted(report.regret.groups, key=lambda g: (-g.regret, g.name))
    ]
    return ReportTable("Groups of layouts", ("group", "layouts", "regret", "tau", "random pick"), tuple(rows))


def _skipped(report: ValidationReport) -> ReportTable:
    rows = [(s.reason, str(s.count)) for s in report.skipped]
    total = sum(s.count for s in report.skipped)
    return ReportTable(f"{report.predicted} rows predicted, {total} skipped", ("reason", "count"), tuple(rows))
