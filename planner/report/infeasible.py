"""Nothing fits: the nearest misses, why, and what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.choices.precision import regime_of
from cost_models.numeric import num
from cost_models.transformer import count_parameters
from hardware.units import significant
from planner.report.look import visible
from planner.report.plans import memory_of
from planner.report.table import Column, table
from planner.report.words import gib, integer, layout_name, parameters, plural

if TYPE_CHECKING:
    from planner.plan import NearMiss, Remedy, Searched
    from planner.report.look import Look

_WHERE = {"device": "needs", "host": "needs host memory per server of", "nvme": "needs NVMe per server of"}


def near_miss_lines(misses: Sequence[NearMiss], look: Look) -> list[str]:
    """Return the nearest misses, one headed line each."""
    lines: list[str] = []
    for rank, miss in enumerate(misses):
        lines += look.headed("Nearest" if rank == 0 else "", _miss_text(miss))
    return lines


def _miss_text(miss: NearMiss) -> str:
    plan, memory = miss.plan, miss.plan.cost.memory
    stage = f"stage {miss.stage} " if integer(plan.layout.degrees.pp) > 1 else ""
    if miss.where == "device":
        needed = float(num(memory.peak_device_bytes))
    else:
        needed = float(num(memory.host_bytes_per_node if miss.where == "host" else memory.nvme_bytes_per_node))
    free = f" ({gib(plan.margin_bytes)} of {gib(plan.pool.capacity_bytes)} GiB are kept free)" if miss.where == "device" else ""
    return (
        f"{layout_name(plan.layout)}: {stage}{_WHERE[miss.where]} {gib(needed)} GiB at {miss.phase}, "
        f"{gib(miss.missing_bytes)} GiB too many{free}; largest: {miss.bucket.replace('_', ' ')} {gib(miss.bucket_bytes)} GiB"
    )


def because_lines(misses: Sequence[NearMiss], look: Look) -> list[str]:
    """Return the sum that settles it, where the states of a full training alone exceed what all GPUs may use."""
    if not misses or misses[0].plan.training.method != "full":
        return []
    plan = misses[0].plan
    each = regime_of(plan.training, plan.layout.choices).bytes_per_parameter
    count = count_parameters(plan.architecture).parameters
    usable = plan.pool.count * (plan.pool.capacity_bytes - plan.margin_bytes)
    if each * count <= usable:
        return []
    text = f"states of {parameters(count)} parameters at {each:g} bytes are {gib(each * count)} GiB; "
    return look.headed("Because", f"{text}{plural(plan.pool.count, 'GPU')} may use {gib(usable)} GiB")


CHANGE_WIDTH = 36


def remedy_lines(remedies: Sequence[Remedy], look: Look) -> list[str]:
    """Return what would fit, with the flags that make the change."""
    columns = [Column(head="Would fit", align="left"), Column(head="memory GiB"), Column(head="s/step"), Column(head="with", align="left")]
    rows = [[_cut(r.change), memory_of(r.plan), significant(float(num(r.plan.cost.time.step_seconds))), r.flags] for r in remedies]
    lines = table(columns, rows, look)
    if max(len(visible(line)) for line in lines) <= look.width:
        return lines
    # flags that make it too wide stand below their row
    head, rule, *short = table(columns[:-1], [row[:-1] for row in rows], look)
    return [head, rule, *(text for line, row in zip(short, rows, strict=True) for text in (line, look.dim(f"  {row[-1]}")))]


def _cut(change: str) -> str:
    """The change without its explanation, cut where it is still too long."""
    short = change.partition(":")[0]
    return short if len(short) <= CHANGE_WIDTH else short[: CHANGE_WIDTH - 1] + "…"


def searched_text(searched: Searched) -> str:
    """Return the counts in a sentence."""
    fit = "fits" if searched.feasible == 1 else "fit"
    text = f"{plural(searched.layouts, 'layout')}, {searched.lawful:,} lawful, {searched.feasible:,} {fit}"
    return f"{text}; {searched.proof}." if searched.proof else f"{text}."


def excluded_lines(searched: Searched, look: Look, most: int = 8) -> list[str]:
    """Return how many layouts each rule excluded, the most first."""
    counts = sorted(searched.by_rule.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name} {count:,}" for name, count in counts if count][:most]
    more = len([1 for _, count in counts if count]) - len(shown)
    return look.items("Excluded by  ", [*shown, *([f"{more} more rules"] if more > 0 else [])]) if shown else []
