"""Lists of models, GPUs and servers, and what is known about one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hardware.units import (
    in_gb_per_second,
    in_gib,
    in_tflop_per_second,
    show_gb_per_second,
    show_gib,
    show_tb,
    show_tflop_per_second,
    show_usd,
    significant,
)
from planner.report.table import Column, table
from planner.report.words import gib, parameters

if TYPE_CHECKING:
    from cost_models.catalog_index import Entry
    from hardware.spec import Gpu, Node
    from planner.report.look import Look
    from planner.schema import BareSizeRecord, ModelRecord

UNKNOWN = "-"


def model_lines(entries: Sequence[Entry], look: Look) -> list[str]:
    """Return the list of models."""
    columns = [
        Column(head="model", align="left"),
        Column(head="parameters"),
        Column(head="active"),
        Column(head="layers"),
        Column(head="hidden"),
        Column(head="experts"),
        Column(head="id", align="left", useful=2),
    ]
    rows = []
    for e in entries:
        total = UNKNOWN if e.parameters is None else parameters(e.parameters)
        active = "" if not e.experts or e.active_parameters is None else parameters(e.active_parameters)
        name = min(e.aliases, key=len, default=e.id)
        rows.append([name, total, active, f"{e.layers}", f"{e.hidden:,}", f"{e.experts or ''}", "" if name == e.id else _cut(e.id)])
    return table(columns, rows, look)


def _cut(text: str, width: int = 31) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _short(aliases: Sequence[str], width: int = 20) -> str:
    """The shortest alias, if it is short enough to help."""
    shortest = min(aliases, key=len, default="")
    return shortest if len(shortest) <= width else ""


def size_lines(sizes: Sequence[str], look: Look) -> list[str]:
    """Return the bare sizes that planner knows."""
    return look.items("Bare sizes  ", sizes, separator=", ")


def model_details(record: ModelRecord, assumed: Sequence[str], look: Look) -> list[str]:
    """Return what is known about one model."""
    lines = look.headed("Model", f"{record.id}, {parameters(record.parameters)} parameters ({record.parameters:,})", column=12)
    if record.active_parameters != record.parameters:
        lines += look.headed("Active", f"{parameters(record.active_parameters)} a token ({record.active_parameters:,})", column=12)
    for head, count in (("MTP modules", record.mtp_parameters), ("Vision", record.vision_parameters)):
        if count:
            lines += look.headed(head, f"{parameters(count)} more ({count:,}), not counted above", column=12)
    shape = f"{record.layers} layers × {record.hidden}, MLP {record.ffn_hidden}, {record.heads} heads of {record.head_dim}"
    shape += f", {record.kv_heads} key-value heads, vocabulary {record.vocab:,}"
    if record.experts:
        shape += f", {record.experts} experts of which a token visits {record.topk}"
    if record.max_positions:
        shape += f", at most {record.max_positions:,} positions"
    lines += look.headed("Shape", shape, column=12)
    if record.aliases:
        lines += look.headed("Also called", ", ".join(record.aliases), column=12)
    if record.source:
        lines += look.headed("Source", record.source, column=12, dim=True)
    for text in assumed:
        lines += look.headed("Assumed", text, column=12, dim=True)
    return lines


def meaning_lines(meaning: BareSizeRecord, look: Look) -> list[str]:
    """Return what a bare size stands for and what else it could mean."""
    lines = look.headed("Name", f"{meaning.size} → {meaning.id}: {meaning.why}", column=12)
    if meaning.could_mean:
        lines += look.headed("Could mean", ", ".join(meaning.could_mean), column=12)
    return lines


def gpu_lines(gpus: Sequence[Gpu], look: Look) -> list[str]:
    """Return the list of accelerators."""
    columns = [
        Column(head="GPU", align="left"),
        Column(head="usable GiB"),
        Column(head="of GiB", useful=3),
        Column(head="TB/s"),
        Column(head="bf16 TFLOP/s"),
        Column(head="link GB/s"),
        Column(head="default server", align="left", useful=5),
        Column(head="also called", align="left", useful=2),
    ]
    rows = []
    for g in gpus:
        peak = g.peak_flop_per_second.get("bf16") or g.peak_flop_per_second.get("fp16")
        star = "" if "bf16" in g.peak_flop_per_second else " fp16"
        rows.append([
            g.id, ("*" if g.capacity_assumed else "") + gib(g.usable_memory_bytes), significant(in_gib(g.nominal_memory_bytes)),
            significant(in_gb_per_second(g.memory_bandwidth_bytes_per_second) / 1000), _known(peak, in_tflop_per_second) + star,
            _known(g.link_bytes_per_second, in_gb_per_second), g.default_node or UNKNOWN, _short(g.aliases, 14),
        ])  # fmt: skip
    note = "* no source gives what a process can use: 0.988 × 0.985 of the nominal size is taken. "
    note += "Peaks are dense; links per GPU, one direction."
    return [*table(columns, rows, look), *(look.dim(line) for line in look.wrap(note))]


def node_lines(nodes: Sequence[Node], look: Look) -> list[str]:
    """Return the list of servers."""
    columns = [
        Column(head="server", align="left"),
        Column(head="GPUs"),
        Column(head="of", align="left"),
        Column(head="link GB/s"),
        Column(head="network Gb/s"),
        Column(head="host GiB"),
        Column(head="NVMe TB", useful=4),
        Column(head="USD/h", useful=3),
    ]
    rows = []
    for n in nodes:
        network = n.all_nics_bytes_per_second
        rows.append([
            n.id, f"{n.gpus_per_node}", n.gpu, _known(n.link_bytes_per_second, in_gb_per_second),
            _known(network, lambda rate: 8 * in_gb_per_second(rate)), _known(n.host_memory_bytes, in_gib),
            UNKNOWN if n.nvme_bytes is None else show_tb(n.nvme_bytes).removesuffix(" TB"), _known(n.price_usd_per_hour, float),
        ])  # fmt: skip
    note = "Links per GPU, network of the whole server, one direction. - is unknown: its check is skipped with a warning."
    return [*table(columns, rows, look), *(look.dim(line) for line in look.wrap(note))]


def _known(value: float | None, scale: object) -> str:
    return UNKNOWN if value is None or not callable(scale) else significant(scale(value))


UNITS = (
    ("_bytes_per_second", show_gb_per_second),
    ("_bytes", show_gib),
    ("_watts", lambda value: f"{significant(value)} W"),
    ("_usd_per_hour", lambda value: f"{significant(value)} USD/h"),
    ("_usd", show_usd),
)
"""Suffix of a field -> its value with the unit."""
FACT_COLUMN = 28


def fact_lines(record: Gpu | Node, look: Look) -> list[str]:
    """Return every fact of one GPU or server with its unit; unknown facts are said to be unknown."""
    lines = []
    for name in type(record).model_fields:
        value = getattr(record, name)
        suffix, show = next(((s, u) for s, u in UNITS if name.endswith(s)), ("", None))
        label = name.removesuffix(suffix).replace("_", " ")
        if value is None:
            lines += look.headed(label, "unknown", column=FACT_COLUMN, dim=True)
        elif value not in ("", (), {}):
            lines += look.headed(label, _fact(value, show), column=FACT_COLUMN)
    return lines


def _fact(value: object, show: Callable[[float], str] | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return show(value) if show is not None else f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {show_tflop_per_second(v)}" if isinstance(v, float) else f"{k}: {v}" for k, v in value.items())
    return ", ".join(f"{v}" for v in value) if isinstance(value, tuple) else f"{value}"
