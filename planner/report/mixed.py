"""The report of plans over several pools: what is won or lost, the plans, the parts of the best, and what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import significant
from planner.report.plans import memory_of, seconds
from planner.report.table import Column, table
from planner.report.words import integer, offload, percent, plural, recompute

if TYPE_CHECKING:
    from planner.plan import Mixed, MixedPart, MixedPlan
    from planner.report.look import Look

SHOWN = 4
"""Plans over several pools that the text shows at most."""
SMALL = 0.005
"""Part of the step below which a term is not listed."""


def mixed_lines(mixed: Mixed, top: int, look: Look) -> list[str]:
    """Return what comes of the pools together, after the plans of single pools."""
    lines = ["", *look.headed("Pools", mixed.comparison)]
    if mixed.plans:
        lines += ["", *_table(mixed.plans[: min(top, SHOWN)], look), "", *_best(mixed.plans[0], look)]
    for index, text in enumerate(mixed.links):
        lines += look.headed("Links" if index == 0 else "", text, dim=True)
    for index, text in enumerate(mixed.refusals):
        lines += look.headed("Left out" if index == 0 else "", text)
    return lines + (look.headed("Looked", mixed.proof) if mixed.proof else [])


def _table(plans: tuple[MixedPlan, ...], look: Look) -> list[str]:
    """One line per part, the plan's own figures on its first."""
    columns = [
        Column(head=""),
        Column(head="over pools as", align="left"),
        Column(head="part", align="left"),
        Column(head="TP"),
        Column(head="PP"),
        Column(head="DP"),
        Column(head="ZeRO", useful=4),
        Column(head="recompute", align="left", useful=2),
        Column(head="micro", useful=3),
        Column(head="share", align="left"),
        Column(head="memory GiB"),
        Column(head="step"),
        Column(head="tok/s", useful=1),
    ]
    rows = []
    for rank, plan in enumerate(plans, start=1):
        for index, part in enumerate(plan.parts):
            first = index == 0
            head = [f"{rank}", f"{plan.kind}, {plan.framework}"] if first else ["", ""]
            tail = [seconds(plan.step_seconds), f"{plan.tokens_per_second:,.0f}"] if first else ["", ""]
            rows.append([*head, *_cells(part), *tail])
    return table(columns, rows, look)


def _cells(part: MixedPart) -> list[str]:
    layout, d = part.plan.layout, part.plan.layout.degrees
    stages = len(part.stage_layers) or integer(d.pp)
    moved = offload(layout)
    return [
        f"{part.plan.pool.count} × {part.plan.pool.gpu.name.removeprefix('GeForce ').removeprefix('Tesla ')}",
        f"{integer(d.tp)}",
        f"{stages}",
        f"{integer(d.dp)}",
        f"{layout.choices.zero}",
        recompute(layout) + ("" if moved == "none" else f" + {moved} off"),
        f"{integer(d.micro_batch)}×{part.plan.micro_batches}",
        _share(part),
        memory_of(part.plan),
    ]


def _share(part: MixedPart) -> str:
    if not part.stage_layers:
        return plural(part.samples, "sample")
    return plural(sum(part.stage_layers), "layer")


def _best(plan: MixedPlan, look: Look) -> list[str]:
    """Where the time of the best goes, its layers, and what it needs."""
    lines: list[str] = []
    spent = {t.name: float(num(t.value if t.exposed is None else t.exposed).reshape(-1)[0]) for t in plan.ledger.terms}
    shown = sorted(((name, value) for name, value in spent.items() if value >= SMALL * plan.step_seconds), key=lambda item: -item[1])
    rest = plan.step_seconds - sum(value for _, value in shown)
    items = [f"{name} {significant(value)} ({percent(value / plan.step_seconds)})" for name, value in shown]
    if rest > SMALL / 10 * plan.step_seconds:
        items.append(f"other {significant(rest)}")
    lines += look.items("Time of the first over pools (s)  ", items)
    layers = [f"{n}" for part in plan.parts for n in part.stage_layers]
    if layers:
        lines += look.wrap(f"Layers of the stages: {', '.join(layers)}", indent=2)
    for index, text in enumerate(plan.needs):
        lines += look.headed("Needs" if index == 0 else "", text)
    return lines
