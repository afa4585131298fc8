"""The ranked table of a search, and the two ledgers of a plan in short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.layout import RANK_ORDERS
from cost_models.numeric import num
from hardware.units import significant
from planner.evaluate import WORDS
from planner.report.documents import MFU, bucket_bytes, phase_of
from planner.report.table import Column, table
from planner.report.words import chance, gib, integer, layout_name, offload, percent, recompute

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.plan import Plan
    from planner.report.look import Look

SMALL = 0.005
"""Terms below this part of the step are shown together."""
_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
_ALWAYS = ("tp", "pp", "dp")


def plan_table(plans: Sequence[Plan], look: Look) -> list[str]:
    """Return the ranked table."""
    head, degrees = _degrees(plans)
    offloads = any(offload(plan.layout) != "none" for plan in plans)
    in_ms = max(_step(plan) for plan in plans) < 1.0
    columns = [
        Column(head=""),
        Column(head=head),
        Column(head="recompute", align="left", useful=6),
        *([Column(head="offload", align="left")] if offloads else []),
        Column(head="memory GiB"),
        Column(head="fit %", useful=2),
        Column(head="step ms" if in_ms else "step s"),
        Column(head="tok/s/GPU", useful=3),
        Column(head="MFU", useful=5),
        Column(head="limited by", align="left", useful=4),
    ]
    rows = []
    for rank, plan in enumerate(plans):
        speed = float(num(plan.cost.time.tokens_per_second_per_gpu))
        cells = [f"{rank + 1}", degrees[rank], recompute(plan.layout)]
        cells += [_short_offload(plan.layout)] if offloads else []
        cells += [memory_of(plan), f"{min(99.0, 100 * plan.fit_probability):.0f}"]
        cells += [significant(_step(plan) * (1e3 if in_ms else 1.0)), significant(speed)]
        rows.append([*cells, f"{float(num(plan.cost.time.mfu)):.3f}", plan.limited_by.replace(" traffic", "").replace(" step", "")])
    return [*table(columns, rows, look), *_order_lines(plans, look), *framework_lines(plans, look)]


def _order_lines(plans: Sequence[Plan], look: Look) -> list[str]:
    """Return what the column `ranks` means, where it is shown."""
    if not any(integer(p.layout.degrees.rank_order) for p in plans):
        return []
    text = f"ranks pp-dp: neighbours are stages of one pipeline, not its replicas (--rank-order {RANK_ORDERS[1]})"
    return [look.dim(line) for line in look.wrap(text, indent=2)]


def framework_lines(plans: Sequence[Plan], look: Look) -> list[str]:
    """Return which plans are of which framework, where they are of several."""
    ranks: dict[str, list[str]] = {}
    for rank, plan in enumerate(plans, 1):
        ranks.setdefault(plan.training.framework, []).append(f"{rank}")
    return look.items("Planned for  ", [f"{name} {', '.join(of)}" for name, of in ranks.items()]) if len(ranks) > 1 else []


def _degrees(plans: Sequence[Plan]) -> tuple[str, list[str]]:
    """The head and the cells of the degrees, close together so that more fits beside them."""
    axes = [a for a in _AXES if a in _ALWAYS or any(integer(getattr(p.layout.degrees, a)) > 1 for p in plans)]
    heads = [a.upper() for a in axes]
    cells = [[f"{integer(getattr(p.layout.degrees, a))}" for a in axes] for p in plans]
    heads.append("ZeRO")
    if any(integer(p.layout.degrees.shard_group) for p in plans):
        heads.append("shard")
    if any(integer(p.layout.degrees.rank_order) for p in plans):
        heads.append("ranks")
    heads.append("micro")
    for row, plan in zip(cells, plans, strict=True):
        row.append(f"{plan.layout.choices.zero}")
        if "shard" in heads:
            row.append(f"{integer(plan.layout.degrees.shard_group) or 'all'}")
        if "ranks" in heads:
            row.append(RANK_ORDERS[integer(plan.layout.degrees.rank_order)][-5:])
        row.append(f"{integer(plan.layout.degrees.micro_batch)}")
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(heads)]
    joined = [" ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in [heads, *cells]]
    return joined[0], joined[1:]


def _short_offload(layout: Layout) -> str:
    return offload(layout).replace("none", "-").replace("optimizer", "optim").replace("activations", "act.")


def memory_of(plan: Plan) -> str:
    """Return the device peak beside the capacity: `61.3 / 79.2`."""
    return f"{gib(float(num(plan.cost.memory.peak_device_bytes)))} / {gib(plan.pool.capacity_bytes)}"


def step_of(plan: Plan) -> str:
    """Return the time of a step with its unit."""
    return seconds(_step(plan))


def memory_range(plan: Plan) -> str:
    """Return the device peak beside the capacity, and where it lies with 80 %: `61.3 / 79.2 GiB (80 %: 57.1-68.0)`.

    A plan that fits cannot take more than the card: near the limit the allocator gives cached blocks back.
    """
    low, high = plan.memory_interval_bytes
    if plan.fits:
        high = min(high, plan.pool.capacity_bytes)
    return f"{memory_of(plan)} GiB (80 %: {gib(low)}-{gib(high)})"


def step_range(plan: Plan) -> str:
    """Return the time of a step, and where it lies with 80 %: `41.6 s a step (80 %: 38.1-46.0)`."""
    low, high = plan.step_interval_seconds
    scale = 1.0 if _step(plan) >= 1.0 else 1e3
    return f"{step_of(plan)} a step (80 %: {significant(low * scale)}-{significant(high * scale)})"


def _step(plan: Plan) -> float:
    return float(num(plan.cost.time.step_seconds))


def answer(plan: Plan, look: Look) -> list[str]:
    """Return the answer as a sentence."""
    time = plan.cost.time
    text = (
        f"{layout_name(plan.layout)} in {plan.training.framework}: {step_range(plan)}, "
        f"{significant(float(num(time.tokens_per_second_per_gpu)))} tokens/s/GPU, MFU {float(num(time.mfu)):.3f}, "
        f"{memory_range(plan)}, fits with {chance(plan.fit_probability)}"
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
        f"{gib(plan.margin_bytes)} are kept free{_for_error(plan)}",
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


def _for_error(plan: Plan) -> str:
    return "" if plan.confidence is None else f" for the prediction's error ({100 * plan.confidence:g} % confidence)"


def _time_lines(plan: Plan, look: Look, of: str) -> list[str]:
    t = plan.cost.time
    total = float(num(t.step_seconds))
    exposed: dict[str, float] = {}
    for term in t.ledger.terms:
        kind = kind_of(term.name)
        exposed[kind] = exposed.get(kind, 0.0) + float(num(term.value if term.exposed is None else term.exposed).reshape(-1)[0])
    large = {kind: value for kind, value in exposed.items() if value >= SMALL * total}
    rest = total - sum(large.values())
    scale, unit = (1.0, "s") if total >= 1 else (1e3, "ms")
    items = [f"{kind} {significant(v * scale)} ({percent(v / total)})" for kind, v in sorted(large.items(), key=lambda b: -b[1])]
    if rest > SMALL * total / 10:
        items.append(f"other {significant(rest * scale)}")
    speed = f"MFU {float(num(t.mfu)):.3f}, HFU {float(num(t.hfu)):.3f}"
    total_line = look.wrap(f"= {significant(total * scale)} {unit}, overlapped traffic left out; {speed}", first=2, indent=4)
    return [*look.items(f"Time{of} ({unit})  ", items), f"  {total_line[0]}", *total_line[1:]]


def kind_of(term: str) -> str:
    """Return what a time term belongs to, in words: computation by kind of kernel, traffic by axis."""
    first, _, rest = term.partition(".")
    if term == "pp.bubble":
        return WORDS["bubble"]
    if first != "compute":
        return WORDS.get(first, first.replace("_", " "))
    kernel = rest.replace(".", "_").partition("_")[0]
    return {"gemm": "GEMMs", "memory": "memory-bound kernels", "vocabulary": "vocabulary and loss"}.get(kernel, kernel or first)


def definition(look: Look) -> list[str]:
    """Return what MFU and HFU mean here."""
    return [look.dim(line) for line in look.wrap(f"MFU: {MFU}.", indent=5)]


def notes(texts: Sequence[str], look: Look, head: str = "Note") -> list[str]:
    """Return sentences for the reader, one headed line each."""
    lines = []
    for text in texts:
        lines += look.headed(head, text)
    return lines
