"""The space of layouts: groups of choices × grids of degrees, cut by the rules as soon as the fields that a rule reads are set.

Three more axes, the reliefs (planner.relief), trade time for memory on each row: recomputed layers, offloaded part of the optimizer,
offloaded part of the activations. They are spanned and counted here, and walked only on rows that do not fit without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout
from planner.case import Case
from planner.orders import faster_order
from planner.rules import binding
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import DEGREES, Rule, divisors
from planner.rules.task import tp_ranks

MAX_MICRO_BATCH = 512
"""Larger micro-batches gain nothing: kernels are saturated long before."""
LATE_FIELDS = ("recompute", "recompute_modules", "recompute_layers", "offload_fraction", "activation_offload")
"""What the rows of a group do not share: recompute and the reliefs."""
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
    reliefs: tuple[Relief, ...] = ()
    """Per variant: the further axes of each row."""
    movable: tuple[npt.NDArray[np.bool_], ...] = ()
    """Per variant: on which lawful rows activations may be offloaded."""

    def __len__(self) -> int:
        return len(self.codes)

    def layouts(self, variant: int, rows: npt.NDArray[np.intp] | None = None, **reliefs: npt.NDArray[np.float64]) -> Layout:
        """Return the rows (all, or some) under one variant, as a batch; `reliefs` replace columns of these rows."""
        picked = {name: (col if rows is None else col[rows]).reshape(-1, 1) for name, col in self.columns.items()}
        picked.update({name: values.reshape(-1, 1) for name, values in reliefs.items()})
        return Layout(degrees=Degrees(**picked), choices=self.variants[variant])

    def held(self) -> npt.NDArray[np.float64]:
        """Return the most layers of a stage under the even split, per row."""
        return np.asarray(np.ceil(self.case.architecture.layers / self.columns["pp"]))

    def points(self, variant: int) -> npt.NDArray[np.int64]:
        """Return how many lawful layouts each row stands for under one variant (0 for unlawful rows)."""
        r = self.reliefs[variant]
        counted = self.held() if r.counts_layers else np.full(len(self), float(len(r.recompute_layers)))
        moved = 1.0 + len(r.activation_offload) * self.movable[variant]
        return np.where(self.lawful[variant], counted * len(r.offload_fraction) * moved, 0.0).astype(np.int64)


def groups(case: Case, counts: Counts, *, offloaded: bool) -> Iterator[Group]:
    """Yield the groups of one framework, with or without offload; empty ones are left out. Adds to `counts`."""
    axes = candidates(case)
    rules = binding(case)
    for choices in _outer(case):
        if (choices.offload != "none") != offloaded:
            continue
        variants = variants_of(case, choices)
        reliefs = tuple(reliefs_of(case, v) for v in variants)
        spanned = sum(r.spanned for r in reliefs)
        size = int(np.prod([len(v) for v in _for(case, axes, choices).values()], dtype=object))
        counts.layouts += size * spanned
        early = [r for r in rules if not set(r.reads) & set(LATE_FIELDS)]
        late = [r for r in rules if set(r.reads) & set(LATE_FIELDS)]
        codes, columns = _join(case, choices, axes, early, counts, spanned)
        codes, columns = faster_order(case, variants[0], codes, columns, len(axes["micro_batch"]), counts.drop, spanned)
        if not len(codes):
            continue
        # the micro-batch is the last axis to be joined, so it is the last digit of a code
        families = codes // len(axes["micro_batch"])
        group = Group(case=case, choices=variants[0], variants=variants, codes=codes, columns=columns, families=families, lawful=())
        kept = [_late(group, v, reliefs[v], late, counts) for v in range(len(variants))]
        group = replace(group, reliefs=reliefs, lawful=tuple(k[0] for k in kept), movable=tuple(k[1] for k in kept))
        counts.lawful += sum(int(group.points(v).sum()) for v in range(len(variants)))
        yield group


@dataclass(frozen=True, kw_only=True, slots=True)
class Relief:
    """Values of the reliefs that a variant spans, each from the fastest to the leanest."""

    recompute_layers: tuple[float, ...] = (-1.0,)
    """1, 2, … and last all (-1)."""
    offload_fraction: tuple[float, ...] = (1.0,)
    activation_offload: tuple[float, ...] = ()
    """Beside none."""

    @property
    def counts_layers(self) -> bool:
        """True where the recomputed layers of a stage are counted: a row then has as many values as its stages hold layers."""
        return len(self.recompute_layers) > 1

    @property
    def spanned(self) -> int:
        """Return the points of the grid."""
        return len(self.recompute_layers) * len(self.offload_fraction) * (1 + len(self.activation_offload))


OFFLOAD_PARTS = tuple(i / 10.0 for i in range(1, 11))
"""Parts of the optimizer that a search offloads."""
ACTIVATION_PARTS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the layers whose activations a search offloads."""


def reliefs_of(case: Case, choices: Choices) -> Relief:
    """Return the reliefs of one variant; what the user fixed has that value alone."""
    support, given = SUPPORT[case.framework], case.given
    counted = choices.recompute == "full" and support.recompute_layers and case.training.method != "inference"
    parts = "optimizer" in choices.offload and choices.zero in support.partial_offload_zero
    moved = support.activation_offload and case.training.method != "inference" and "activation_offload" not in given
    layers = (*(float(k) for k in range(1, case.architecture.layers)), -1.0) if counted else (-1.0,)
    return Relief(
        recompute_layers=(float(given["recompute_layers"]),) if "recompute_layers" in given else layers,
        offload_fraction=(float(given["offload_fraction"]),) if "offload_fraction" in given else OFFLOAD_PARTS if parts else (1.0,),
        activation_offload=ACTIVATION_PARTS if moved else (),
    )


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
        "rank_order": tuple(float(RANK_ORDERS.index(o)) for o in SUPPORT[case.framework].orders(experts=moe is not None)),
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
        "schedule": ("1f1b",) if inference else s.schedules,
        "sequence_parallel": (False, True) if s.sequence_parallel else (False,),
    }
    for name in options:
        if name in case.fixed:
            options[name] = (case.given[name],)
    made = [Choices(**dict(zip(options, values, strict=True))) for values in product(*options.values())]
    alone = [rule for rule in binding(case) if set(rule.reads) <= {"offload", "offload_target"}]
    return [c for c in made if all(np.all(r.holds(case, Layout(degrees=Degrees(), choices=c))) for r in alone)]


def variants_of(case: Case, choices: Choices) -> tuple[Choices, ...]:
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


def _late(
    group: Group, variant: int, relief: Relief, rules: list[Rule], counts: Counts
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which rows are lawful under a variant, and on which of them activations may be offloaded.

    Rules read of the reliefs only whether there are any, so that one point speaks for all; a count of layers that no stage holds spells
    the same layout as all of them.
    """
    case, size = group.case, len(group)
    k, f, a = relief.recompute_layers, relief.offload_fraction, relief.activation_offload
    sides = [(float(case.given.get("activation_offload", 0.0)), len(k) * len(f))]
    if a:
        sides.append((a[0], len(k) * len(f) * len(a)))
    masks = []
    for moved, points in sides:
        keep = np.ones(size, dtype=bool)
        spelled = {"recompute_layers": k[0], "offload_fraction": f[0], "activation_offload": moved}
        layout = group.layouts(variant, **{name: np.full(size, value) for name, value in spelled.items()})
        for rule in rules:
            mask = _mask(rule, case, layout, size)
            counts.drop(rule.id, int((keep & ~mask).sum()) * points)
            keep &= mask
        if relief.counts_layers:
            counts.drop("recompute_layers_whole", int(((len(k) - group.held()) * keep).sum()) * (points // len(k)))
        masks.append(keep)
    return masks[0], masks[1] if a else np.zeros(size, dtype=bool)
