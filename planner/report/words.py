"""Numbers and layouts in words: three significant digits, the field's own names."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cost_models.layout import RANK_ORDERS
from cost_models.numeric import num
from hardware.units import GIGA, MEGA, TERA, in_gib, significant

if TYPE_CHECKING:
    from cost_models.layout import Layout

_PARAMETER_UNITS = ((TERA, "T"), (GIGA, "B"), (MEGA, "M"))


def parameters(count: float) -> str:
    """Return a parameter count: `29.97 B`, `124.4 M`."""
    for scale, unit in _PARAMETER_UNITS:
        if count >= scale:
            return f"{significant(count / scale, 4)} {unit}"
    return f"{count:,.0f}"


def gib(size_bytes: float) -> str:
    """Return a size in GiB without the unit: three significant digits, at least 0.01 apart."""
    return significant(in_gib(size_bytes)) if in_gib(size_bytes) >= 0.01 else "0"


def integer(value: object) -> int:
    """Return a degree as an integer."""
    return int(num(value))


def percent(part: float) -> str:
    """Return a share: `81 %`, `0.4 %`."""
    return f"{significant(100 * part, 2 if part < 0.1 else 3)} %" if part < 0.995 else f"{100 * part:.0f} %"


def chance(probability: float) -> str:
    """Return a probability: `97 %`, `over 99 %`, `under 1 %`."""
    if probability >= 0.995:
        return "over 99 %"
    return "under 1 %" if probability < 0.005 else f"{100 * probability:.0f} %"


def recompute(layout: Layout) -> str:
    """Return the recompute mode, with its modules or layers: `selective`, `full`, `full 4` (the first 4 layers of each stage)."""
    c = layout.choices
    if c.recompute != "full":
        return c.recompute
    counts = layout.stage_recompute
    if counts is not None and layout.stage_layers is not None and counts == layout.stage_layers:
        return "full"
    if counts is not None:
        return f"full {counts[0]}" if len(set(counts)) == 1 else f"full {min(counts)}-{max(counts)}"
    layers = integer(layout.degrees.recompute_layers)
    return "full" if layers < 0 else f"full {layers}"


def offload(layout: Layout) -> str:
    """Return what is offloaded and where: `none`, `optimizer`, `params+optimizer to nvme`, with the activations' share."""
    c, d = layout.choices, layout.degrees
    what: str = "" if c.offload == "none" else c.offload
    if what and float(num(d.offload_fraction)) < 1:
        what += f" {percent(float(num(d.offload_fraction)))}"
    activations = float(num(d.activation_offload))
    if activations:
        what = f"{what} + activations" if what else "activations"
        what += "" if activations == 1 else f" {percent(activations)}"
    if not what:
        return "none"
    return what + (" (nvme)" if c.offload_target == "nvme" and c.offload != "none" else "")


def layout_name(layout: Layout) -> str:
    """Return a layout in one line: `TP 4 · PP 4 · DP 2 · ZeRO-1 · selective recompute · micro-batch 2`."""
    d, c = layout.degrees, layout.choices
    axes = [("TP", d.tp), ("PP", d.pp), ("VPP", d.vpp), ("CP", d.cp), ("EP", d.ep), ("ETP", d.etp), ("DP", d.dp)]
    parts = [f"{name} {integer(value)}" for name, value in axes if integer(value) > 1] or ["1 GPU"]
    parts.append(f"ZeRO-{c.zero}")
    if integer(d.shard_group):
        parts.append(f"sharded over {integer(d.shard_group)}")
    if c.recompute != "none":
        parts.append(f"{recompute(layout)} recompute")
    if integer(d.rank_order):
        parts.append(f"ranks {RANK_ORDERS[integer(d.rank_order)]}")
    if offload(layout) != "none":
        parts.append(f"{offload(layout)} offloaded")
    return " · ".join([*parts, f"micro-batch {integer(d.micro_batch)}"])


def command(words: Iterable[str]) -> str:
    """Return a command line that works when pasted."""
    return shlex.join(words)


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 layout`, `412,608 layouts`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
