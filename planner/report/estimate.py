"""The report of one layout."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import significant
from planner.report.documents import stage_records
from planner.report.infeasible import near_miss_lines
from planner.report.plans import definition, ledgers, memory_range, notes, step_range
from planner.report.table import Column, table
from planner.report.words import chance, gib, layout_name

if TYPE_CHECKING:
    from planner.plan import NearMiss, Plan
    from planner.report.look import Look

_VERDICTS = {
    "fits": "fits with {}",
    "tight": "tight, fits with {} only",
    "no": "does not fit ({} that it does)",
}
MOST_STAGES = 12


def estimate_lines(
    plan: Plan, misses: Sequence[NearMiss], said: Sequence[str], look: Look, explained: Collection[str] = ()
) -> list[str]:
    """Return all but the opening; what is explained below (`memory`, `time`) is told in short."""
    t = plan.cost.time
    verdict = f"{layout_name(plan.layout)}: {_VERDICTS[plan.verdict].format(chance(plan.fit_probability))}, {memory_range(plan)}"
    lines = look.headed("Layout", verdict)
    speed = f"{step_range(plan)}, {significant(float(num(t.tokens_per_second_per_gpu)))} tokens/s/GPU, "
    speed += f"MFU {float(num(t.mfu)):.3f}, HFU {float(num(t.hfu)):.3f}; limited by {plan.limited_by}"
    lines += look.headed("Speed", speed)
    if plan.frameworks:
        lines += look.headed("Runs in", ", ".join(plan.frameworks))
    lines += near_miss_lines(misses, look)
    several = len(stage_records(plan.cost.memory)) > 1 and "memory" not in explained
    lines += ["", *stage_table(plan, look)] if several else []
    lines += ["", *ledgers(plan, look), *(() if "time" in explained else definition(look))]
    return lines + notes(said, look) + notes(plan.warnings, look, "Warning")


def stage_table(plan: Plan, look: Look) -> list[str]:
    """Return memory by stage and bucket, GiB."""
    records = stage_records(plan.cost.memory)
    shown = records if len(records) <= MOST_STAGES else [*records[: MOST_STAGES - 1], records[-1]]
    buckets = [name for name in type(records[0].buckets).model_fields if any(getattr(r.buckets, name) for r in records)]
    columns = [Column(head="stage"), Column(head="peak at", align="left", useful=3)]
    columns += [Column(head=name.removesuffix("_bytes").replace("_", " ")) for name in buckets]
    columns += [Column(head="device GiB")]
    rows = [[f"{r.stage}", r.phase, *(gib(getattr(r.buckets, b)) for b in buckets), gib(r.device_bytes)] for r in shown]
    lines = table(columns, rows, look)
    left = len(records) - len(shown)
    return [*lines[:-1], look.dim(f"  … {left} stages between"), lines[-1]] if left else lines
