"""The ranked table of a search, and the two ledgers of a plan in short."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.layout import Layout
from cost_models.numeric import num
from hardware.units import significant
from planner.plan import Plan
from planner.report.documents import MFU, bucket_bytes, phase_of
from planner.report.look import Look
from planner.report.table import Column, table
from planner.report.words import gib, integer, layout_name, offload, percent, recompute

SMALL = 0.005
"""Terms below this part of the step are shown together."""
_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
_ALWAYS = ("tp", "pp", "dp")


def plan_table(plans: Sequence[Plan], look: Look) -> list[str]:
    """Return the ranked table."""
    columns = [Column(head=""), *_layout_columns(plans)]
    in_ms = max(_step(plan) for plan in plans) < 1.0
    columns += [
        Column(head="memory GiB"),
        Column(head="step ms" if in_ms else "step s"),
        Column(head="tok/s/GPU", useful=3),
        Column(head="MFU"),
        Column(head="limited by", align="left", useful=4),
    ]
    rows = []
    for rank, plan in enumerate(plans, 1):
        step = _step(plan) * (1e3 if in_ms else 1.0)
        speed = float(num(plan.cost.time.tokens_per_second_per_gpu))
        rows.append([f"{rank}", *_layout_cells(plan.layout, plans), memory_of(plan), significant(step), significant(speed),
                     f"{float(num(plan.cost.time.mfu)):.3f}", plan.limited_by])  # fmt: skip
    return table(columns, rows, look)


def memory_of(plan: Plan) -> str:
    """Return the device peak beside the capacity: `61.3 / 79.2`."""
    return f"{gib(float(num(plan.cost.memory.peak_device_bytes)))} / {gib(plan.pool.capacity_bytes)}"


def _step(plan: Plan) -> float:
    return float(num(plan.cost.time.step_seconds))


def _shown_axes(plans: Sequence[Plan]) -> list[str]:
    return [a for a in _AXES if a in _ALWAYS or any(integer(getattr(p.layout.degrees, a)) > 1 for p in plans)]


def _layout_columns(plans: Sequence[Plan]) -> list[Column]:
    columns = [Column(head=axis.upper()) for axis in _shown_axes(plans)]
    columns.append(Column(head="ZeRO"))
    if any(integer(p.layout.degrees.shard_group) for p in plans):
        columns.append(Column(head="shard", useful=6))
    columns.append(Column(head="recompute", align="left"))
    if _any_offload(plans):
        columns.append(Column(head="offload", align="left"))
    columns.append(Column(head="micro"))
    return columns


def _any_offload(plans: Sequence[Plan]) -> bool:
    return any(offload(p.layout) != "none" for p in plans)


def _layout_cells(layout: Layout, plans: Sequence[Plan]) -> list[str]:
    cells = [f"{integer(getattr(layout.degrees, axis))}" for axis in _shown_axes(plans)]
    cells.append(f"{layout.choices.zero}")
    if any(integer(p.layout.degrees.shard_group) for p in plans):
        cells.append(f"{integer(layout.degrees.shard_group) or 'all'}")
    cells.append(recompute(layout))
    if _any_offload(plans):
        cells.append(offload(layout))
    return [*cells, f"{integer(layout.degrees.micro_batch)}"]


def answer(plan: Plan, look: Look) -> list[str]:
    """Return the answer as a sentence."""
    time = plan.cost.time
    text = (
        f"{layout_name(plan.layout)}: {seconds(float(num(time.step_seconds)))} a step, "
        f"{significant(float(num(time.tokens_per_second_per_gpu)))} tokens/s/GPU, MFU {float(num(time.mfu)):.3f}, "
        f"{memory_of(plan)} GiB"
    )
    return look.headed("Best", text)


def seconds(value: float) -> str:
    """Return a time with its unit: s, or ms below one second."""
    return f"{significant(value)} s" if value >= 1 else f"{significant(value * 1e3)} ms"


def ledgers(plan: Plan, look: Look, name: str = "") -> list[str]:
    """Return memory by bucket and time by kind, the largest first, with what they sum to."""
    of = f" of {name}" if name else ""
    lines = _memory_lines(plan, look, of)
    lines += _time_lines(plan, look, of)
    if plan.layout.stage_layers is not None and len(plan.layout.stage_layers) > 1:
        lines += look.wrap(f"Layers of the stages: {', '.join(f'{n}' for n in plan.layout.stage_layers)}", indent=2)
    if plan.layout.stage_recompute is not None and any(plan.layout.stage_recompute):
        lines += look.wrap(f"Recomputed layers of the stages: {', '.join(f'{n}' for n in plan.layout.stage_recompute)}", indent=2)
    return lines


def _memory_lines(plan: Plan, look: Look, of: str) -> list[str]:
    m = plan.cost.memory
    index = [int(i) for i in num(m.stage_index).reshape(-1)]
    peak = index.index(int(num(m.peak_stage)))
    buckets = {name: size for name, size in bucket_bytes(m, peak).items() if size > 0}
    items = [f"{name.replace('_', ' ')} {gib(size)}" for name, size in sorted(buckets.items(), key=lambda b: -b[1])]
    where = f", stage {index[peak]}" if integer(plan.layout.degrees.pp) > 1 else ""
    lines = look.items(f"Memory{of}{where}, {phase_of(m, peak)} (GiB)  ", items)
    lines += look.wrap(
        f"  = {gib(float(num(m.peak_device_bytes)))} of {gib(plan.pool.capacity_bytes)} GiB on the device "
        f"(torch: {gib(float(num(m.peak_allocated_bytes)))} allocated, {gib(float(num(m.peak_reserved_bytes)))} reserved); "
        f"{gib(plan.margin_bytes)} are kept free",
        indent=4,
    )
    lines += [look.dim(line) for line in look.wrap(f"  states {m.regime}", indent=4)]
    host = float(num(m.host_bytes_per_node))
    if host > 0:
        known = plan.host_capacity_bytes
        lines.append(f"  host memory per server {gib(host)} of {'unknown' if known is None else gib(known)} GiB")
    if float(num(m.nvme_bytes_per_node)) > 0:
        lines.append(f"  NVMe per server {gib(float(num(m.nvme_bytes_per_node)))} GiB")
    return lines


def _time_lines(plan: Plan, look: Look, of: str) -> list[str]:
    ledger = plan.cost.time.ledger
    total = float(num(plan.cost.time.step_seconds))
    by_kind: dict[str, float] = {}
    for term in ledger.terms:
        exposed = float(num(term.value if term.exposed is None else term.exposed).reshape(-1)[0])
        by_kind[term.name] = by_kind.get(term.name, 0.0) + exposed
    large = {k: v for k, v in by_kind.items() if v >= SMALL * total}
    rest = total - sum(large.values())
    scale, unit = (1.0, "s") if total >= 1 else (1e3, "ms")
    items = [
        f"{name.replace('_', ' ').replace('.', ' ')} {significant(v * scale)} ({percent(v / total)})"
        for name, v in sorted(large.items(), key=lambda b: -b[1])
    ]
    if rest > SMALL * total / 10:
        items.append(f"other {significant(rest * scale)}")
    lines = look.items(f"Time{of} ({unit}, what lengthens the step)  ", items)
    return [*lines, f"  = {significant(total * scale)} {unit}; MFU {float(num(plan.cost.time.mfu)):.3f}, HFU {float(num(plan.cost.time.hfu)):.3f}"]


def definition(look: Look) -> list[str]:
    """Return what MFU and HFU mean here."""
    return [look.dim(line) for line in look.wrap(f"MFU: {MFU}.", indent=5)]


def notes(texts: Sequence[str], look: Look, head: str = "Note") -> list[str]:
    """Return sentences for the reader, one headed line each."""
    lines = []
    for text in texts:
        lines += look.headed(head, text)
    return lines
