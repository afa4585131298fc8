"""From units to pipeline stages: how many units of each kind a stage holds, sums over them, and the stage that sets the pace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.choices.pipeline import Line
from cost_models.numeric import Num, nothing, num, plus, times
from cost_models.stages import MIRRORED, Stages, both
from cost_models.stages import decisive as decisive_index
from cost_models.throughput.unit import Unit

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Units of the model and how often each occurs on the stages ((K,) or (N, K)) and in the whole model (() or (N, 1))."""

    units: tuple[Unit, ...]
    """Layers by kind, then embedding, head and, where trained, the multi-token-prediction module."""
    counts: tuple[Num, ...]
    totals: tuple[float, ...]
    layer_kinds: int
    """How many of `units` are layers."""
    recomputed: Num
    """Part of the layers of a stage under full recompute (0 without it)."""
    recomputed_total: Num
    """The same of the whole model."""

    def stage(self, read: Callable[[Unit], Num]) -> Num:
        """Sum `read` over the units of each stage."""
        return _sum(self.units, self.counts, read)

    def whole(self, read: Callable[[Unit], Num]) -> Num:
        """Sum `read` over all units of the model."""
        return _sum(self.units, self.totals, read)

    def again(self, read: Callable[[Unit], Num]) -> Num:
        """Sum `read` over the fully recomputed layers of each stage."""
        k = self.layer_kinds
        return 0.0 if nothing(self.recomputed) else _sum(self.units[:k], self.counts[:k], read) * self.recomputed

    def again_whole(self, read: Callable[[Unit], Num]) -> Num:
        """Sum `read` over the fully recomputed layers of the model."""
        k = self.layer_kinds
        return 0.0 if nothing(self.recomputed_total) else _sum(self.units[:k], self.totals[:k], read) * self.recomputed_total


def _sum(units: tuple[Unit, ...], counts: tuple[Num, ...] | tuple[float, ...], read: Callable[[Unit], Num]) -> Num:
    total: Num = 0.0
    for u, count in zip(units, counts, strict=True):
        total = plus(total, times(count, read(u)))
    return total


def parts(architecture: Architecture, layout: Layout, held: Stages, kinds: list[Unit], edges: tuple[Unit, Unit], mtp: Unit | None) -> Parts:
    """Return the units of a model with their counts. `edges` = embedding and head; `mtp` runs on the stage of the head."""
    modules = () if mtp is None else (mtp,)
    full = layout.choices.recompute == "full"
    wanted = num(layout.degrees.recompute_layers)
    layers = float(architecture.layers)
    if layout.stage_recompute is not None:
        part = sum(min(a, b) for a, b in zip(layout.stage_recompute, num(held.layers).tolist(), strict=True)) / layers
        whole: Num = part
    else:
        whole = np.where(wanted < 0.0, 1.0, np.minimum(wanted * layout.degrees.pp, layers) / layers)
    by_kind = _kind_totals(architecture, len(kinds))
    return Parts(
        units=(*kinds, *edges, *modules),
        counts=(*held.kind_layers, held.embedding, held.head, *(held.head * float(architecture.mtp_layers) for _ in modules)),
        totals=(*by_kind, 1.0, 1.0, *(float(architecture.mtp_layers) for _ in modules)),
        layer_kinds=len(kinds),
        recomputed=held.recomputed / np.maximum(num(held.layers), 1.0) if full else 0.0,
        recomputed_total=whole if full else 0.0,
    )


def _kind_totals(architecture: Architecture, kinds: int) -> tuple[float, ...]:
    from cost_models.stages import layer_kinds

    _, before = layer_kinds(architecture)
    return tuple(float(before[k, -1]) for k in range(kinds))


def line(layout: Layout, held: Stages, micro_batches: Num, stage: tuple[Num, Num, Num], whole: tuple[Num, Num, Num]) -> Line:
    """Return the pipeline of (forward, backward, weight) seconds of the evaluated stages and of the whole model.

    The decisive stages (first, second, some more, last) stand for all of them unless the layout lists the layers of each stage.
    """
    pp = num(layout.degrees.pp)
    behind = pp - 1.0 - held.index
    forward, backward, weight = (of_stages(x, behind) for x in stage)
    time = forward + backward
    if layout.stage_layers is not None:
        before = _before(time)
        sums: tuple[Num, ...] = tuple(_total(x) for x in (forward, backward, weight))
    else:
        sums = whole
        before = _before_decisive(time, num(held.index), pp, num(whole[0]) + whole[1])
    return Line(
        forward=forward,
        backward=backward,
        weight=weight,
        behind=behind,
        before=before,
        forward_sum=sums[0],
        backward_sum=sums[1],
        weight_sum=sums[2],
        pp=pp,
        vpp=num(layout.degrees.vpp),
        micro_batches=num(micro_batches),
        listed=layout.stage_layers is not None,
    )


def of_stages(value: Num, like: Num) -> npt.NDArray[np.float64]:
    """Return a value with the stage axis of `like`."""
    x, shape = num(value), np.shape(like)
    return x if x.shape == shape else np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _before(time: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    before = np.zeros_like(time)
    for i in range(1, time.shape[-1]):
        before[..., i] = before[..., i - 1] + time[..., i - 1]
    return before


def _before_decisive(
    time: npt.NDArray[np.float64], index: npt.NDArray[np.float64], pp: Num, total: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Sum of the stages before each: what the first and the last leave is spread evenly over those between them."""
    first, last = time[..., :1], time[..., -1:]
    middle = (total - first - last) / np.maximum(num(pp) - 2.0, 1.0)
    inner = index[..., 1:-1]
    before = np.zeros_like(time)
    before[..., 1:-1] = np.where(inner == 0.0, 0.0, first + (inner - 1.0) * middle)
    before[..., -1:] = np.where(index[..., -1:] == 0.0, 0.0, total - last)
    return before


def _total(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return num(total)


def decisive(architecture: Architecture, held: Stages, layout: Layout) -> Stages:
    """Return the decisive stages of a listing of every stage, so that a single layout is timed exactly as a batch is."""
    index = num(held.index)
    if layout.stage_layers is not None or index.ndim != 1:
        return held
    mirrored = layout.choices.schedule in MIRRORED
    pick = decisive_index(architecture, layout.degrees.pp, layout.degrees.vpp, mirrored=mirrored).astype(np.int64)
    if np.array_equal(index, pick):
        return held

    def at(x: Num) -> Num:
        values = num(x)
        return values[pick] if values.ndim else values

    return Stages(
        index=at(held.index),
        layers=at(held.layers),
        kind_layers=tuple(at(k) for k in held.kind_layers),
        embedding=at(held.embedding),
        head=at(held.head),
        first_layer=at(held.first_layer),
        recomputed=at(held.recomputed),
    )


class Pick:
    """Takes the values of the stage that sets the pace."""

    def __init__(self, position: npt.NDArray[np.int64], stages: int) -> None:
        self.position, self.stages = position, stages
        self.flat = None if position.ndim == 0 else position * len(position) + np.arange(len(position))

    def __call__(self, value: Num) -> Num:
        """Return the value at that stage, () or (N,)."""
        x = num(value)
        if x.ndim == 0:
            return x
        if self.flat is None:
            return x[self.position] if x.shape[-1] > 1 else x[0]
        if x.shape[-1] == 1:
            return x[:, 0]
        if x.shape != (len(self.flat), self.stages):
            x = np.broadcast_to(x, (len(self.flat), self.stages))
        return num(x.T.reshape(-1).take(self.flat))


def slowest(layout: Layout, time: Num) -> Callable[[Num], Num]:
    """Return the pick of the rank with the longest time: its stage's value, or the mean of both where it runs two."""
    if layout.choices.schedule not in MIRRORED:
        x = num(time)
        return Pick(_highest(x), x.shape[-1])
    ranks = num(both(layout, time)) / 2.0
    pick = Pick(_highest(ranks), ranks.shape[-1])
    return lambda value: pick(num(both(layout, value)) / 2.0)


def _highest(x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the position of the highest stage of each row, () or (N,), the first of equals: stage by stage, which is much faster than
    argmax over a short axis."""
    if x.ndim < 2:
        return np.asarray(np.argmax(x))
    best, position = x[:, 0], np.zeros(len(x), dtype=np.int64)
    for stage in range(1, x.shape[1]):
        position = np.where(x[:, stage] > best, stage, position)
        best = np.maximum(best, x[:, stage])
    return position


def flat(value: Num) -> Num:
    """Return a per-layout value of shape () or (N, 1) as () or (N,)."""
    x = num(value)
    return x[:, 0] if x.ndim == 2 else x.reshape(()) if x.size == 1 else x
