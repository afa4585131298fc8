"""The report of one layout."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import significant
from planner.report.documents import stage_records
from planner.report.infeasible import near_miss_lines
from planner.report.plans import definition, ledgers, memory_range, notes, seconds, step_range
from planner.report.table import Column, table
from planner.report.words import chance, gib, layout_name

if TYPE_CHECKING:
    from planner.over_software import SoftwareBand
    from planner.plan import NearMiss, Plan
    from planner.report.look import Look

_VERDICTS = {
    "fits": "fits with {}",
    "tight": "tight, fits with {} only",
    "no": "does not fit ({} that it does)",
}
MOST_STAGES = 12


def estimate_lines(
    plan: Plan,
    misses: Sequence[NearMiss],
    said: Sequence[str],
    look: Look,
    explained: Collection[str] = (),
    software: SoftwareBand | None = None,
) -> list[str]:
    """Return all but the opening; what is explained below (`memory`, `time`) is told in short."""
    t = plan.cost.time
    verdict = f"{layout_name(plan.layout)}: {_VERDICTS[plan.verdict].format(chance(plan.fit_probability))}, {memory_range(plan)}"
    lines = look.headed("Layout", verdict)
    step = step_range(plan) if software is None else f"{_unknown(software)}. In {plan.training.framework} {step_range(plan)}"
    speed = f"{step}, {significant(float(num(t.tokens_per_second_per_gpu)))} tokens/s/GPU, "
    speed += f"MFU {float(num(t.mfu)):.3f}, HFU {float(num(t.hfu)):.3f}; limited by {plan.limited_by}"
    lines += look.headed("Speed", speed)
    if plan.frameworks:
        lines += look.headed("Runs in", ", ".join(plan.frameworks))
    lines += near_miss_lines(misses, look)
    several = len(stage_records(plan.cost.memory)) > 1 and "memory" not in explained
    lines += ["", *stage_table(plan, look)] if several else []
    lines += ["", *ledgers(plan, look), *(() if "time" in explained else definition(look))]
    return lines + notes(said, look) + notes(plan.warnings, look, "Warning")


def _unknown(band: SoftwareBand) -> str:
    """The band of a step where the software is unknown: `5.9-14 s a step (80 %), software unknown: megatron 6.37 s, …`."""
    low, high = band.interval_seconds
    each = ", ".join(f"{name} {seconds(step)}" for name, step in band.step_seconds)
    scale, unit = (1.0, "s") if low >= 1.0 else (1e3, "ms")
    return f"{significant(low * scale)}-{significant(high * scale)} {unit} a step (80 %), as the software is unknown: {each}"


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
