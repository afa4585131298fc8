"""The one caller of the cost models: a batch of layouts -> totals; a single layout -> a plan with its ledgers and verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.cost import cost
from cost_models.layout import Degrees, Layout, micro_batches
from cost_models.ledger import add
from cost_models.numeric import num
from cost_models.stages import FOLDED, Stages, layer_kinds
from planner.fit import fit_probability, verdict
from planner.measures import broken_wishes, wished
from planner.plan import Plan
from planner.rules import frameworks_of

if TYPE_CHECKING:
    from cost_models.result import Cost, MemoryCost, TimeCost
    from planner.case import Case

Array = npt.NDArray[np.float64]
CHUNK = 4096
"""Layouts evaluated at once: large enough that numpy's overhead vanishes, small enough that all terms stay in tens of MB."""
STATES = ("weights", "gradients", "optimizer")
"""Buckets that no micro-batch, recompute or schedule changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What the search compares, one entry per layout (shape (N,))."""

    device_bytes: Array
    host_bytes: Array
    """Per server."""
    nvme_bytes: Array
    """Per server."""
    step_seconds: Array
    states_bytes: Array
    """Weights, gradients and optimizer of the fullest stage and phase: what remains whatever is recomputed."""
    wished: npt.NDArray[np.bool_]
    """Whether the wishes about results are kept."""

    def __len__(self) -> int:
        return len(self.step_seconds)


def totals(case: Case, layout: Layout) -> Totals:
    """Return the totals of a batch (or of one layout), chunk by chunk."""
    parts = [_totals(case, chunk) for chunk in chunks(layout)]
    return Totals(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Totals)})


def chunks(layout: Layout) -> Iterator[Layout]:
    """Yield the batch in pieces of at most CHUNK layouts."""
    size = layout.size
    if size <= CHUNK:
        yield layout
        return
    for start in range(0, size, CHUNK):
        yield take(layout, np.arange(start, min(start + CHUNK, size)))


def take(layout: Layout, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Layout:
    """Return the rows of a batch, by index or mask; degrees that are one number for all rows stay so."""
    picked = {}
    for f in fields(Degrees):
        value = num(getattr(layout.degrees, f.name))
        picked[f.name] = value if value.size == 1 else value.reshape(-1, 1)[rows]
    return replace(layout, degrees=Degrees(**picked))


def _totals(case: Case, layout: Layout) -> Totals:
    result = cost(case.architecture, case.training, layout, case.pool)
    return totals_of(result, layout.size, wished(case, layout, result))


def totals_of(result: Cost, size: int, kept: npt.NDArray[np.bool_] | None = None) -> Totals:
    """Return the totals of a batch of `size` layouts from its cost. `kept`: which keep the wishes about results; None: there are none."""
    memory = result.memory
    return Totals(
        device_bytes=_flat(memory.peak_device_bytes, size),
        host_bytes=_flat(memory.host_bytes_per_node, size),
        nvme_bytes=_flat(memory.nvme_bytes_per_node, size),
        step_seconds=_flat(result.time.step_seconds, size),
        states_bytes=_flat(_states(memory), size),
        wished=np.ones(size, dtype=bool) if kept is None else kept,
    )


def _flat(value: object, size: int) -> Array:
    flat = num(value).reshape(-1)
    return flat if flat.size == size else np.broadcast_to(flat, (size,)).copy()


def _states(memory: MemoryCost) -> Array:
    """Most bytes of weights, gradients and optimizer over the stages, in the optimizer step: no other phase holds more of them."""
    held = add(t.value for t in memory.phases["optimizer"].terms if t.bucket in STATES)
    return np.asarray(np.max(np.atleast_1d(held), axis=-1))


def fitting(case: Case, found: Totals, *, margin: bool = True) -> npt.NDArray[np.bool_]:
    """Return which layouts fit device, host and NVMe, with the safety margin or up to the last byte, and keep the wishes about
    results. Unknown sizes are not checked."""
    keep = found.wished & (found.device_bytes <= (case.limit_bytes if margin else case.pool.capacity_bytes))
    host, nvme = case.host_limit_bytes, case.pool.node.nvme_bytes
    if host is not None:
        keep = keep & (found.host_bytes <= host)
    if nvme is not None:
        keep = keep & (found.nvme_bytes <= nvme)
    return np.asarray(keep)


def over(case: Case, found: Totals) -> Array:
    """Return by how many bytes each layout exceeds the limit that it exceeds most (device, host per server, NVMe per server); 0 if none."""
    host, nvme = case.host_limit_bytes, case.pool.node.nvme_bytes
    worst = np.maximum(found.device_bytes - case.limit_bytes, 0.0)
    if host is not None:
        worst = np.maximum(worst, found.host_bytes - host)
    if nvme is not None:
        worst = np.maximum(worst, found.nvme_bytes - nvme)
    return np.asarray(worst)


def some(found: Totals, rows: npt.NDArray[np.bool_]) -> Totals:
    """Return the totals of the rows of a mask."""
    return Totals(**{f.name: getattr(found, f.name)[rows] for f in fields(Totals)})


def excluded_by(case: Case, found: Totals, times: npt.NDArray[np.int64] | None = None) -> dict[str, int]:
    """Return how many layouts each limit excludes: `memory`, `host_memory`, `nvme`, `wishes` (the first that each breaks).

    `times`: layouts that each row stands for; one where it is not given.
    """
    each = np.ones(len(found), dtype=np.int64) if times is None else times
    device = found.device_bytes > case.limit_bytes
    host, nvme = case.host_limit_bytes, case.pool.node.nvme_bytes
    over_host = ~device & (found.host_bytes > (np.inf if host is None else host))
    over_nvme = ~device & ~over_host & (found.nvme_bytes > (np.inf if nvme is None else nvme))
    unwished = ~device & ~over_host & ~over_nvme & ~found.wished
    counts = {
        "memory": int(each[device].sum()),
        "host_memory": int(each[over_host].sum()),
        "nvme": int(each[over_nvme].sum()),
        "wishes": int(each[unwished].sum()),
    }
    return {name: count for name, count in counts.items() if count}


def fits_alone(case: Case, layout: Layout, result: Cost) -> bool:
    """Tell whether one evaluated layout fits with the safety margin and keeps the wishes: what `fitting` says of a batch."""
    return verdict(case, result.memory) == "fits" and not broken_wishes(case, layout, result)


def evaluate(case: Case, layout: Layout, *, every: bool = True) -> Cost:
    """Return both ledgers of a single layout, of every pipeline stage."""
    return cost(case.architecture, case.training, layout, case.pool, every=every and layout.stage_layers is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTable:
    """What stages of one pipeline cost, whatever the others hold; all arrays (R,)."""

    device_bytes: Array
    states_bytes: Array
    """Weights, gradients and optimizer."""
    host_bytes: Array
    """Per server, were all its ranks on this stage."""
    nvme_bytes: Array
    forward_seconds: Array
    """Of one micro-batch, with its send to the next stage where that is exposed."""
    backward_seconds: Array
    weight_seconds: Array
    """The part of backward that computes weight gradients."""
    alone_seconds: Array
    """All micro-batches through this stage, by the schedule's own formula, were it the only one that counts."""
    step_seconds: tuple[Array, ...]
    """Terms that come once a step, of which the slowest stage of each counts."""
    share: Array
    """What the step takes for each second of the above (stragglers)."""
    constant_seconds: Array


def stage_table(
    case: Case, layout: Layout, *, position: Array, layers: Array, kind_layers: tuple[Array, ...], recomputed: Array
) -> StageTable:
    """Return the cost of stages, one a row: `position` in the pipeline, layers held (of each kind) and recomputed, all (R,).

    `layout` is single, or a batch of R rows. From one evaluation of all of them.
    """
    first = np.where(position == 0.0, 1.0, 0.0)
    last = first if layout.choices.schedule in FOLDED else np.where(position == num(layout.degrees.pp).reshape(-1) - 1.0, 1.0, 0.0)
    return _stage_table(case, layout, position, layers, kind_layers, recomputed, (first, last))


def balanced(case: Case, layout: Layout) -> StageTable:
    """Return for each row of a batch the cost of a stage that holds an equal part of everything: layers, embedding and head.

    No split of the model is faster than one of such stages, where a schedule's time is convex in the stages' times.
    """
    pp = num(layout.degrees.pp).reshape(-1)
    part = 1.0 / pp
    _, before = layer_kinds(case.architecture)
    kinds = tuple(table[-1] * part for table in before)
    return _stage_table(case, layout, 0.0 * pp, case.architecture.layers * part, kinds, 0.0 * pp, (part, part))


def as_batch(layout: Layout) -> Layout:
    """Return a single layout as a batch of one."""
    d = layout.degrees
    return replace(layout, degrees=Degrees(**{f.name: num(getattr(d, f.name)).reshape(-1, 1) for f in fields(Degrees)}))


def ends_and_layers(case: Case, layout: Layout) -> list[tuple[Array, Array]]:
    """Return seconds of forward and backward of a stage that holds nothing (its sends), of what the first stage has beside layers, of
    what the last has, and of one layer of each kind, for each row of a batch."""
    pp = num(layout.degrees.pp).reshape(-1)
    kinds, rows = len(layer_kinds(case.architecture)[0]), len(pp)
    first_and_last = 1.0 if layout.choices.schedule in FOLDED else 0.0
    inner = 0.0 * pp + 0.5
    # a stage of one layer of the first kind: in the middle, first and last; and in the middle with one more layer of each kind
    asked = [
        (inner, None, (0.0, 0.0)),
        (0.0 * pp, None, (1.0, first_and_last)),
        (pp - 1.0, None, (0.0, 1.0)),
        *((inner, kind, (0.0, 0.0)) for kind in range(kinds)),
    ]

    def each(values: list[float]) -> Array:
        return np.repeat(np.array(values), rows)

    table = _stage_table(
        case,
        take(layout, np.tile(np.arange(rows), len(asked))),
        np.concatenate([position for position, _, _ in asked]),
        each([1.0 if more is None else 2.0 for _, more, _ in asked]),
        tuple(each([float((k == 0) + (k == more)) for _, more, _ in asked]) for k in range(kinds)),
        np.zeros(rows * len(asked)),
        (each([ends[0] for _, _, ends in asked]), each([ends[1] for _, _, ends in asked])),
    )
    forward, backward = (t.reshape(len(asked), rows) for t in (table.forward_seconds, table.backward_seconds))
    layers = [(forward[3 + k] - forward[0], backward[3 + k] - backward[0]) for k in range(kinds)]
    return [
        (forward[0] - layers[0][0], backward[0] - layers[0][1]),
        (forward[1] - forward[0], backward[1] - backward[0]),
        (forward[2] - forward[0], backward[2] - backward[0]),
        *layers,
    ]


def _stage_table(
    case: Case, layout: Layout, position: Array, layers: Array, kinds: tuple[Array, ...], recomputed: Array, ends: tuple[Array, Array]
) -> StageTable:
    def column(values: Array) -> Array:
        return num(values).reshape(-1, 1)

    described = Stages(
        index=column(position),
        layers=column(layers),
        kind_layers=tuple(column(k) for k in kinds),
        embedding=column(ends[0]),
        head=column(ends[1]),
        first_layer=column(np.where(position == 0.0, 1.0, 0.0)),
        recomputed=column(recomputed),
    )
    result = cost(case.architecture, case.training, layout, case.pool, held=described)
    size, m = len(position), micro_batches(layout, case.training.global_batch)
    terms = {t.name: _flat(t.value if t.exposed is None else t.exposed, size) for t in result.time.ledger.terms}
    names = tuple(terms)
    once = names[names.index("pp.send") + 1 : names.index("host.stragglers")]
    work = add(terms[name] for name in names[: names.index("pp.send") + 1])
    before = add(terms[name] for name in names[: names.index("host.stragglers")])
    send = terms["pp.send"] / _flat(2.0 * num(m), size)
    return StageTable(
        device_bytes=_flat(result.memory.stage_device_bytes, size),
        states_bytes=_flat(_states(result.memory), size),
        host_bytes=_flat(result.memory.host_bytes_per_node, size),
        nvme_bytes=_flat(result.memory.nvme_bytes_per_node, size),
        forward_seconds=_flat(result.time.stage_forward_seconds, size) + send,
        backward_seconds=_flat(result.time.stage_backward_seconds, size) + send,
        weight_seconds=_flat(result.time.stage_weight_seconds, size),
        alone_seconds=work,
        step_seconds=tuple(terms[name] for name in once),
        share=1.0 + terms["host.stragglers"] / np.maximum(before, np.finfo(np.float64).tiny),
        constant_seconds=add(terms[name] for name in names[names.index("host.stragglers") + 1 :]) + 0.0 * work,
    )


def plan(case: Case, layout: Layout, result: Cost | None = None) -> Plan:
    """Return the plan of a single layout: all stages' ledgers, verdict, and what limits it. `result`: its cost where that is known."""
    result = evaluate(case, layout) if result is None else result
    host = case.pool.node.host_memory_bytes
    return Plan(
        architecture=case.architecture,
        training=case.training,
        pool=case.pool,
        layout=layout,
        cost=result,
        verdict=verdict(case, result.memory),
        margin_bytes=case.pool.capacity_bytes - case.limit_bytes,
        confidence=case.confidence if case.margin is None else None,
        fit_probability=fit_probability(case, result.memory),
        host_capacity_bytes=host,
        micro_batches=int(micro_batches(layout, case.training.global_batch)),
        limited_by=limited_by(result.time),
        frameworks=frameworks_of(case, layout),
        warnings=_warnings(case, result.memory),
    )


def _warnings(case: Case, memory: MemoryCost) -> tuple[str, ...]:
    node = case.pool.node
    said = []
    if float(num(memory.host_bytes_per_node)) > 0.0 and node.host_memory_bytes is None:
        said.append(f"host memory of {node.name} is unknown: not checked")
    if float(num(memory.nvme_bytes_per_node)) > 0.0 and node.nvme_bytes is None:
        said.append(f"NVMe of {node.name} is unknown: not checked")
    a, seq = case.architecture, case.training.seq
    if a.max_positions is not None and seq > a.max_positions:
        said.append(f"sequence {seq:,} exceeds the {a.max_positions:,} positions that {a.id} was made for")
    return tuple(said)


def limited_by(time: TimeCost) -> str:
    """Return the group of terms that takes the largest part of the step, in words: `compute 81 %`, or the largest other one once
    compute takes less than COMPUTE_BOUND of it."""
    shares = shares_of(time)
    if not shares:
        return "nothing"
    compute = shares.pop("compute", 0.0)
    if compute >= COMPUTE_BOUND or not shares:
        return f"compute {100.0 * compute:.0f} %"
    name = max(shares, key=lambda n: (shares[n], n))
    return f"{WORDS.get(name, name)} {100.0 * shares[name]:.0f} %"


COMPUTE_BOUND = 0.8
"""Part of the step from which a plan is called limited by compute."""
WORDS = {
    "bubble": "bubble",
    "tp": "TP traffic",
    "cp": "CP traffic",
    "ep": "EP traffic",
    "pp": "PP traffic",
    "dp": "DP traffic",
    "zero": "ZeRO traffic",
    "recompute": "recompute",
    "sp": "SP traffic",
    "host": "host",
    "optimizer": "optimizer step",
    "offload": "offload",
}
"""Group of time terms -> words."""


def shares_of(time: TimeCost) -> dict[str, float]:
    """Return the part of the step that each group of terms (first part of its name) takes."""
    step = float(num(time.step_seconds))
    if step <= 0.0:
        return {}
    found: dict[str, float] = {}
    for term in time.ledger.terms:
        seconds = float(num(term.value if term.exposed is None else term.exposed))
        name = "bubble" if term.name == "pp.bubble" else term.bucket
        found[name] = found.get(name, 0.0) + seconds / step
    return found


def held_cost(case: Case, layout: Layout, held: Stages | None = None) -> Cost:
    """Return the cost of a batch, or of the stages that `held` describes (then their stage values and step terms are meant, not totals)."""
    return cost(case.architecture, case.training, layout, case.pool, held=held)
