"""The space of layouts: groups of choices × grids of degrees, cut by the rules as soon as the fields that a rule reads are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.layout import Choices, Degrees, Layout
from planner.case import Case
from planner.rules import binding
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import DEGREES, Rule, divisors
from planner.rules.task import tp_ranks

MAX_MICRO_BATCH = 512
"""Larger micro-batches gain nothing: kernels are saturated long before."""
RECOMPUTE_FIELDS = ("recompute", "recompute_modules")
Columns = dict[str, npt.NDArray[np.float64]]


@dataclass(kw_only=True, slots=True)
class Counts:
    """How many layouts a space spans, and how many of them each rule excluded."""

    layouts: int = 0
    lawful: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)

    def drop(self, rule: str, count: int) -> None:
        """Count layouts that `rule` excluded."""
        if count:
            self.by_rule[rule] = self.by_rule.get(rule, 0) + count


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Layouts that share all choices but recompute."""

    case: Case
    choices: Choices
    """With the first of `variants`."""
    variants: tuple[Choices, ...]
    """From the fastest (least recompute) to the leanest."""
    codes: npt.NDArray[np.int64]
    """Number of each row's point in the grid: the same degrees have the same code in every group of a case."""
    columns: Columns
    """Degree -> values of the lawful rows, shape (N,)."""
    families: npt.NDArray[np.int64]
    """As `codes` without the micro-batch: rows of one family hold the same states."""
    lawful: tuple[npt.NDArray[np.bool_], ...]
    """Per variant: which rows keep the rules that also read the recompute."""

    def __len__(self) -> int:
        return len(self.codes)

    def layouts(self, variant: int, rows: npt.NDArray[np.intp] | None = None) -> Layout:
        """Return the rows (all, or some) under one variant, as a batch."""
        picked = {name: (col if rows is None else col[rows]).reshape(-1, 1) for name, col in self.columns.items()}
        return Layout(degrees=Degrees(**picked), choices=self.variants[variant])


def groups(case: Case, counts: Counts, *, offloaded: bool) -> Iterator[Group]:
    """Yield the groups of one framework, with or without offload; empty ones are left out. Adds to `counts`."""
    axes = candidates(case)
    rules = binding(case)
    for choices in _outer(case):
        if (choices.offload != "none") != offloaded:
            continue
        variants = _variants(case, choices)
        size = int(np.prod([len(v) for v in _for(case, axes, choices).values()], dtype=object))
        counts.layouts += size * len(variants)
        early = [r for r in rules if not set(r.reads) & set(RECOMPUTE_FIELDS)]
        late = [r for r in rules if set(r.reads) & set(RECOMPUTE_FIELDS)]
        codes, columns = _join(case, choices, axes, early, counts, len(variants))
        if not len(codes):
            continue
        # the micro-batch is the last axis to be joined, so it is the last digit of a code
        families = codes // len(axes["micro_batch"])
        group = Group(case=case, choices=variants[0], variants=variants, codes=codes, columns=columns, families=families, lawful=())
        group = replace(group, lawful=tuple(_late(group, v, late, counts) for v in range(len(variants))))
        counts.lawful += sum(int(mask.sum()) for mask in group.lawful)
        yield group


def candidates(case: Case) -> dict[str, tuple[float, ...]]:
    """Return the values of each degree that the space spans, in order of joining; what the user fixed has that value alone."""
    a, world = case.architecture, case.world
    moe = a.moe
    options: dict[str, tuple[float, ...]] = {
        "tp": divisors(world),
        "pp": divisors(world),
        "cp": divisors(world),
        "dp": (),
        "vpp": tuple(sorted({v for n in (a.layers, a.layers + 1, a.layers + 2) for v in divisors(n)})),
        "ep": (1,) if moe is None else divisors(moe.num_experts),
        "etp": (1,) if moe is None else tuple(d for d in divisors(moe.moe_ffn_hidden) if d <= tp_ranks(case)),
        "shard_group": (0.0, *_shard_groups(case)),
        "recompute_layers": (-1.0,),
        "offload_fraction": (1.0,),
        "activation_offload": (0.0,),
        "micro_batch": tuple(d for d in divisors(case.training.global_batch) if d <= MAX_MICRO_BATCH),
    }
    return options


def _shard_groups(case: Case) -> tuple[int, ...]:
    """Return the groups that hybrid sharding tries: one server or fast-link domain, and four times as many again and again."""
    found, size = [], max(case.pool.gpus_per_node, min(case.pool.node.link_domain_size, case.world))
    while 1 < size < case.world:
        found.append(size)
        size *= 4
    return tuple(found)


def _for(case: Case, axes: Mapping[str, tuple[float, ...]], choices: Choices) -> dict[str, tuple[float, ...]]:
    """Return the candidates under some choices: chunks only where interleaved, shard groups only where ZeRO has them, dp derived."""
    support = SUPPORT[case.framework]
    found = {}
    for name, values in axes.items():
        if name == "vpp" and choices.schedule != "interleaved":
            values = (1.0,)
        if name == "shard_group" and choices.zero not in support.shard_group_zero:
            values = (0.0,)
        if name in case.fixed:
            values = (float(case.given[name]),)
        found[name] = values or (0.0,)
    return found


def _outer(case: Case) -> list[Choices]:
    """Return the choices without recompute, those without offload first."""
    s = SUPPORT[case.framework]
    inference = case.training.method == "inference"
    options: dict[str, tuple[Any, ...]] = {
        "offload": ("none",) if inference else s.offload,
        "offload_target": ("host", "nvme") if s.nvme_zero else ("host",),
        "zero": s.zero,
        "schedule": ("1f1b",) if inference else tuple(x for x in s.schedules if x != "gpipe"),
        "sequence_parallel": (False, True) if s.sequence_parallel else (False,),
    }
    for name in options:
        if name in case.fixed:
            options[name] = (case.given[name],)
    made = [Choices(**dict(zip(options, values, strict=True))) for values in product(*options.values())]
    alone = [rule for rule in binding(case) if set(rule.reads) <= {"offload", "offload_target"}]
    return [c for c in made if all(np.all(r.holds(case, Layout(degrees=Degrees(), choices=c))) for r in alone)]


def _variants(case: Case, choices: Choices) -> tuple[Choices, ...]:
    """Return `choices` with every recompute that the framework offers or the user fixed, the least first."""
    kinds = (case.given["recompute"],) if "recompute" in case.fixed else SUPPORT[case.framework].recompute
    if case.training.method == "inference" and "recompute" not in case.fixed:
        kinds = ("none",)
    found: list[Choices] = []
    for kind in ("none", "selective", "full"):
        if kind not in kinds:
            continue
        modules = _modules(case) if kind == "selective" else (Choices().recompute_modules,)
        found += [replace(choices, recompute=kind, recompute_modules=m) for m in modules]
    return tuple(found)


def _modules(case: Case) -> tuple[tuple[str, ...], ...]:
    """Return the module lists that selective recompute tries: Megatron-LM's default, then all that cost little beside their memory."""
    if "recompute_modules" in case.fixed:
        return (tuple(case.given["recompute_modules"]),)
    more = ["core_attn", "layernorm", "moe_act" if case.architecture.moe is not None else "mlp"]
    if case.architecture.mla is not None:
        more.append("mla_up_proj")
    if case.training.precision == "fp8":
        more = [m for m in more if m not in ("layernorm", "moe_act")]
    wide = tuple(more)
    return (("core_attn",),) if wide == ("core_attn",) else (("core_attn",), wide)


def _join(
    case: Case, choices: Choices, axes: Mapping[str, tuple[float, ...]], rules: list[Rule], counts: Counts, times: int
) -> tuple[npt.NDArray[np.int64], Columns]:
    """Join the axes one by one; each rule cuts the rows once all fields it reads are set. `times`: variants that share the rows."""
    values = _for(case, axes, choices)
    remaining = int(np.prod([len(v) for v in values.values()], dtype=object)) * times
    codes = np.zeros(1, dtype=np.int64)
    columns: Columns = {}
    pending = list(rules)
    pending, codes, columns = _cut(case, choices, pending, codes, columns, counts, remaining)
    for name, options in values.items():
        if not len(codes):
            break
        if name == "dp":
            columns["dp"] = _data_parallel(case, columns)
        else:
            remaining //= len(options)
            codes, columns = _cross(name, options, axes[name] or options, codes, columns)
        pending, codes, columns = _cut(case, choices, pending, codes, columns, counts, remaining)
    return codes, columns


def _data_parallel(case: Case, columns: Columns) -> npt.NDArray[np.float64]:
    """Return the replicas that the other axes leave; 0 where they leave no whole number (the product law then cuts the row)."""
    if "dp" in case.fixed:
        return np.full(len(columns["tp"]), float(case.given["dp"]))
    used = columns["tp"] * columns["pp"] * columns["cp"]
    return np.asarray(np.where(np.mod(case.world, used) == 0.0, case.world / used, 0.0))


def _cross(
    name: str, options: tuple[float, ...], axis: tuple[float, ...], codes: npt.NDArray[np.int64], columns: Columns
) -> tuple[npt.NDArray[np.int64], Columns]:
    """Cross the rows with the values of one axis."""
    index = np.array([axis.index(v) if v in axis else 0 for v in options], dtype=np.int64)
    crossed = {k: np.repeat(col, len(options)) for k, col in columns.items()}
    crossed[name] = np.tile(np.array(options, dtype=np.float64), len(codes))
    return np.repeat(codes * len(axis), len(options)) + np.tile(index, len(codes)), crossed


def _cut(
    case: Case, choices: Choices, rules: list[Rule], codes: npt.NDArray[np.int64], columns: Columns, counts: Counts, remaining: int
) -> tuple[list[Rule], npt.NDArray[np.int64], Columns]:
    """Apply the rules whose fields are all set; each row that falls stands for `remaining` layouts."""
    waiting = []
    for rule in rules:
        if not len(codes):
            break
        if any(f in DEGREES and f not in columns for f in rule.reads):
            waiting.append(rule)
            continue
        mask = _mask(rule, case, Layout(degrees=Degrees(**_shaped(columns)), choices=choices), len(codes))
        if not mask.all():
            counts.drop(rule.id, int((~mask).sum()) * remaining)
            codes, columns = codes[mask], {k: col[mask] for k, col in columns.items()}
    return waiting, codes, columns


def _shaped(columns: Columns) -> dict[str, Any]:
    return {name: col.reshape(-1, 1) for name, col in columns.items()}


def _mask(rule: Rule, case: Case, layout: Layout, size: int) -> npt.NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(rule.holds(case, layout)).reshape(-1), (size,))


def _late(group: Group, variant: int, rules: list[Rule], counts: Counts) -> npt.NDArray[np.bool_]:
    keep = np.ones(len(group), dtype=bool)
    for rule in rules:
        mask = _mask(rule, group.case, group.layouts(variant), len(group))
        counts.drop(rule.id, int((keep & ~mask).sum()))
        keep &= mask
    return keep

