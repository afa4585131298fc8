"""Clash, front, why not and sensitivity as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import in_gib, significant
from planner.objectives import tokens_per_dollar
from planner.report.infeasible import near_miss_lines
from planner.report.plans import memory_of, seconds, step_of
from planner.report.table import Column, table
from planner.report.words import gib, layout_name, percent

if TYPE_CHECKING:
    from planner.answers import Answers, Difference, Sensitivity, WhyNot
    from planner.plan import Clash, Plan
    from planner.report.look import Look

MOST_TERMS = 8
"""Terms of a comparison that are shown; the others are summed."""
NAME_WIDTH = 46
"""Columns of a layout's name beside what a change would buy."""
FRONT_FIGURES = 20
"""Columns of step and memory of the front, with the blanks after them."""
LEAST_NAME = 36
"""Columns that a layout's name has at least; its head is as wide."""


def clash_lines(clash: Clash | None, look: Look) -> list[str]:
    """Return which requirements cannot be met together."""
    if clash is None:
        return []
    if not clash.members:
        return look.headed("Clash", "no single set of requirements: nothing is found even without all of them")
    words = " · ".join(m.requirement for m in clash.members)
    lines = look.headed("Clash", words)
    if not clash.minimal:
        return lines + look.headed("", "not all of these may be needed: the searches that this takes were too many")
    if len(clash.members) == 1:
        told = "it cannot be met, whatever else is given up"
    else:
        told = "they cannot be met together, whatever else is given up; without any one of them the others can"
    if not any(m.enough for m in clash.members):
        told += ", but then something else in the request still has no plan"
    return lines + look.headed("", told)


def answer_lines(answers: Answers, look: Look) -> list[str]:
    """Return what was asked beside the ranking, a blank line before each part."""
    lines: list[str] = []
    for why in answers.why:
        lines += ["", *why_lines(why, look)]
    if answers.front:
        lines += ["", *front_lines(answers.front, answers.front_size, look)]
    if answers.sensitivity:
        lines += ["", *sensitivity_lines(answers.sensitivity, look)]
    return lines


def why_lines(why: WhyNot, look: Look) -> list[str]:
    """Return why a kind of layout is not the answer."""
    head = f"Why not {why.asked}"
    if why.plan is None:
        return [look.bold(head), *_ruled_out(why, look)]
    text = f"the best is {layout_name(why.plan.layout)} in {why.plan.training.framework}: {step_of(why.plan)}, {memory_of(why.plan)} GiB"
    lines = [look.bold(head), *look.wrap(text)]
    if why.winner is None:
        return lines
    slower = float(num(why.plan.cost.time.step_seconds)) - float(num(why.winner.cost.time.step_seconds))
    if why.plan.layout == why.winner.layout and why.plan.training.framework == why.winner.training.framework:
        return [*lines, "It is plan 1."]
    part = percent(abs(slower) / float(num(why.winner.cost.time.step_seconds)))
    than = "slower than" if slower >= 0 else "faster than"
    lines += look.wrap(f"It is {seconds(abs(slower))} ({part}) {than} plan 1:")
    return [*lines, *_terms(why.time, look, "s", 1.0), *_terms(why.memory, look, "GiB", in_gib(1.0))]


def _terms(rows: Sequence[Difference], look: Look, unit: str, scale: float) -> list[str]:
    """Return the terms with the largest differences, the rest summed, and the sum."""
    largest = sorted(rows, key=lambda r: (-abs(r.more), r.term))[:MOST_TERMS]
    shown = [r for r in rows if r in largest]
    rest = [r for r in rows if r not in largest]
    columns = [
        Column(head=f"{'Time' if unit == 's' else 'Memory'} {unit}", align="left"),
        Column(head="asked"),
        Column(head="plan 1"),
        Column(head="more"),
    ]
    cells = [[r.term, *(_amount(v * scale) for v in (r.asked, r.winner)), _signed(r.more * scale)] for r in shown]
    if rest:
        asked, winner = sum(r.asked for r in rest), sum(r.winner for r in rest)
        cells.append([f"{len(rest)} others", _amount(asked * scale), _amount(winner * scale), _signed((asked - winner) * scale)])
    asked, winner = sum(r.asked for r in rows), sum(r.winner for r in rows)
    cells.append(["sum", _amount(asked * scale), _amount(winner * scale), _signed((asked - winner) * scale)])
    return ["", *table(columns, cells, look)]


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else significant(value, 2)


def _signed(value: float) -> str:
    return f"{value:+,.2f}" if abs(value) >= 0.005 else "0"


def _ruled_out(why: WhyNot, look: Look) -> list[str]:
    lines = []
    for broken in why.broken:
        lines += look.headed("Breaks", f"{broken.message} ({broken.rule})")
    lines += near_miss_lines(why.near_misses, look)
    if not why.broken:
        lines += clash_lines(why.clash, look)
    if why.excluded:
        lines += look.items("Excluded by  ", [f"{name} {count:,}" for name, count in why.excluded])
    return lines or ["There is no such plan."]


def front_lines(front: Sequence[Plan], size: int, look: Look) -> list[str]:
    """Return the front of step time against memory."""
    priced = [tokens_per_dollar(plan) for plan in front]
    cost = any(price is not None for price in priced)
    frameworks = {plan.training.framework for plan in front}
    room = look.width - FRONT_FIGURES - (10 if cost else 0) - (2 + max(map(len, {*frameworks, "framework"})) if len(frameworks) > 1 else 0)
    columns = [
        Column(head="step s"),
        Column(head="memory GiB"),
        *([Column(head="Mtok/USD")] if cost else []),
        Column(head="Front of step time against memory", align="left"),
        *([Column(head="framework", align="left", useful=3)] if len(frameworks) > 1 else []),
    ]
    rows = []
    for plan, price in zip(front, priced, strict=True):
        name = layout_name(plan.layout)
        cells = [significant(float(num(plan.cost.time.step_seconds))), gib(float(num(plan.cost.memory.peak_device_bytes)))]
        cells += [("unknown" if price is None else significant(price / 1e6))] if cost else []
        rows.append([*cells, _short(name, room), *([plan.training.framework] if len(frameworks) > 1 else [])])
    lines = table(columns, rows, look)
    return lines if len(front) == size else [*lines, *look.wrap(f"{len(front)} of the {size} plans that none beats in both")]


def sensitivity_lines(rows: Sequence[Sensitivity], look: Look) -> list[str]:
    """Return what each change would buy."""
    columns = [
        Column(head="What it would buy", align="left"),
        Column(head="tokens/s"),
        Column(head="step s"),
        Column(head="best plan then", align="left", useful=3),
    ]
    cells = []
    for row in rows:
        if row.plan is None:
            cells.append([row.change, "no plan", "", ""])
            continue
        gain = "fits" if row.gain is None else f"{100 * row.gain:+.1f} %"
        name = "the same" if row.same_layout else layout_name(row.plan.layout)
        cells.append([row.change, gain, significant(float(num(row.plan.cost.time.step_seconds))), _short(name, NAME_WIDTH)])
    return table(columns, cells, look)


def _short(name: str, room: int) -> str:
    room = max(room, LEAST_NAME)
    return name if len(name) <= room else name[: room - 1] + "…"
