"""Samples of many lengths: the typical and the worst step of a plan, and what other ways of batching would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardware.units import significant
from planner.report.table import Column, table
from planner.report.words import gib, integer, percent, plural

if TYPE_CHECKING:
    from planner.length_study import LengthOption, LengthReport, LengthStep
    from planner.plan import Plan
    from planner.report.look import Look

_NAMES = {"truncate": "truncated at {:,} tokens", "bucket": "samples of like length together", "pack": "packed end to end into {:,}"}


def lengths_lines(report: LengthReport, plan: Plan, look: Look) -> list[str]:
    """Return what the lengths mean for a plan, and the table of ways of batching."""
    lengths, micro_batch = report.lengths, integer(plan.layout.degrees.micro_batch)
    if report.padding_fraction is None:
        said = f"mean {lengths.mean:,.0f} tokens, longest {lengths.longest:,}; how they spread is unknown (--lengths FILE tells padding)"
    else:
        said = f"{plural(lengths.samples, 'sample')}, mean {lengths.mean:,.0f} tokens, longest {lengths.longest:,}; "
        together = "micro-batches of one sample" if micro_batch == 1 else f"random micro-batches of {micro_batch}"
        said += f"{together} are {percent(report.padding_fraction)} padding"
    lines = look.headed("Lengths", said)
    in_ms = report.worst.step_seconds < 1.0
    columns = [
        Column(head="micro-batches", align="left"),
        Column(head="longest", useful=4),
        Column(head="most GiB"),
        Column(head="fit %"),
        Column(head="typical", useful=3),
        Column(head="step ms" if in_ms else "step s"),
        Column(head="saves GiB", useful=5),
        Column(head="time %"),
        Column(head="cuts tokens %", useful=6),
    ]
    plain = "padded to their longest sample"
    rows = [[plain, *_cells(report.worst, report.typical, in_ms), "", "", ""], *(_row(option, in_ms) for option in report.options)]
    return [*lines, *table(columns, rows, look)]


def _row(option: LengthOption, in_ms: bool) -> list[str]:
    saved = [gib(option.saved_bytes) if option.saved_bytes > 0.0 else "", f"{100 * option.saved_time_fraction:.0f}"]
    lost = significant(100 * option.lost_tokens_fraction, 2) if option.lost_tokens_fraction > 0.0 else ""
    return [_NAMES[option.name].format(option.at_tokens), *_cells(option.worst, option.typical, in_ms), *saved, lost]


def _cells(worst: LengthStep, typical: LengthStep, in_ms: bool) -> list[str]:
    """Memory of the worst micro-batch, time of the typical step."""
    chance = f"{min(99.0, 100 * worst.fit_probability):.0f}"
    step = significant(typical.step_seconds * (1e3 if in_ms else 1.0))
    return [f"{worst.seq:,}", gib(worst.peak_device_bytes), chance, f"{typical.seq:,}", step]
