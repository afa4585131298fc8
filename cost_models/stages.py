"""Pipeline stages: which layers each holds, and which stages a batch has to look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import Num, nothing, num, plus

if TYPE_CHECKING:
    from cost_models.architecture import Architecture


FOLDED = ("zb-v",)
"""Schedules whose second chunk runs back up the stages, so that the first stage holds embedding and head."""
MIRRORED = ("dualpipe",)
"""Schedules whose ranks hold and run the stage at their own place, and that at the same distance from the other end."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What distinguishes layers of one model from each other."""

    moe: bool
    sliding: bool

    @property
    def name(self) -> str:
        """`dense`, `moe`, with `-sliding` where attention sees a window only."""
        return ("moe" if self.moe else "dense") + ("-sliding" if self.sliding else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """The evaluated stages. All Num fields are (K,) for a single layout and (N, K) for a batch."""

    index: Num
    """Pipeline position, from 0."""
    layers: Num
    """Layers held."""
    kind_layers: tuple[Num, ...]
    """Layers held of each LayerKind, in the order of `layer_kinds`."""
    embedding: Num
    """1 on the stage that looks tokens up, else 0."""
    head: Num
    """1 on the stage that has final norm, head and loss, else 0."""
    first_layer: Num
    """1 on the stage whose first layer is the model's first layer."""
    recomputed: Num
    """Layers under full recompute (only read when the choice is `full`)."""


@lru_cache(maxsize=64)
def layer_kinds(architecture: Architecture) -> tuple[tuple[LayerKind, ...], npt.NDArray[np.int64]]:
    """Return the kinds of layers that occur, and for each the number of such layers before layer i (shape kinds × (L + 1), read-only)."""
    of_layer = [LayerKind(architecture.is_moe_layer(i), architecture.is_sliding_layer(i)) for i in range(architecture.layers)]
    kinds = tuple(dict.fromkeys(of_layer))
    before = np.zeros((len(kinds), architecture.layers + 1), dtype=np.int64)
    for row, kind in enumerate(kinds):
        before[row, 1:] = np.cumsum([k == kind for k in of_layer])
    before.flags.writeable = False
    return kinds, before


def stages(architecture: Architecture, layout: Layout, *, every: bool = False) -> Stages:
    """Return the stages to evaluate.

    A batch looks at the decisive stages (see `decisive`). `every` (single layouts only) returns all of them, as do layouts
    with explicit `stage_layers`. Under a mirrored schedule both read the same from either end (see `both`).
    """
    d = layout.degrees
    if layout.stage_layers is not None:
        return _explicit(architecture, layout, layout.stage_layers)
    if every:
        pp = num(d.pp)
        if pp.ndim:
            raise ValueError("every stage can be listed for a single layout only")
        return _balanced(architecture, layout, np.arange(int(pp), dtype=np.float64))
    index, counts = _decided(architecture, num(d.pp), num(d.vpp), layout.choices.schedule in MIRRORED)
    return _stages(layout, index, counts)


def decisive(architecture: Architecture, pp: Num, vpp: Num, *, mirrored: bool = False) -> npt.NDArray[np.float64]:
    """Return the positions of the stages that can hold the most memory or work under the balanced split, (K,) or (N, K).

    First and last hold embedding and head. Among the others a later stage has fewer micro-batches in flight, so it matters only if it
    holds more layers of some kind than each stage before it: the second, and where kinds differ perhaps a few more. Rows with fewer
    of them repeat the second, so that positions never fall. `mirrored`: all stages, as each pair of them may weigh most; rows with
    fewer repeat those in the middle.
    """
    return _decided(architecture, num(pp), num(vpp), mirrored)[0]


def both(layout: Layout, value: Num) -> Num:
    """Return what a rank has of `value`, (…, K) by stage: under a mirrored schedule that of its own stage and of the mirrored one."""
    if layout.choices.schedule not in MIRRORED or nothing(value):
        return value
    x = num(value)
    return x + x[..., ::-1] if x.ndim else x + x


def of_ranks(layout: Layout, held: Stages) -> Stages:
    """Return what the ranks of the evaluated stages hold: under a mirrored schedule two stages each."""
    if layout.choices.schedule not in MIRRORED:
        return held
    return Stages(
        index=held.index,
        layers=both(layout, held.layers),
        kind_layers=tuple(both(layout, kind) for kind in held.kind_layers),
        embedding=both(layout, held.embedding),
        head=both(layout, held.head),
        first_layer=both(layout, held.first_layer),
        recomputed=both(layout, held.recomputed),
    )


_Decided = tuple[npt.NDArray[np.float64], tuple[npt.NDArray[np.float64], ...]]
"""Positions of the decisive stages, and their layers of each kind."""


def _decided(architecture: Architecture, pp: npt.NDArray[np.float64], vpp: npt.NDArray[np.float64], mirrored: bool) -> _Decided:
    """Return the decisive stages, looked up once for each pair of pp and vpp in a batch.

    The arrays lie stage by stage in memory: numpy's inner loops then run over the layouts, not over a handful of stages.
    """
    known = _known_pipelines(architecture, mirrored)
    if not (pp.ndim or vpp.ndim):
        index, counts = _pipeline(architecture, known, int(pp), int(vpp), mirrored)
        return index, tuple(counts)
    p, v = (x.reshape(-1) for x in np.broadcast_arrays(pp, vpp))
    pairs, rows = np.unique(p * (np.max(v) + 1.0) + v, return_inverse=True)
    first = np.empty(len(pairs), dtype=np.intp)
    first[rows] = np.arange(len(rows))
    found = [_pipeline(architecture, known, int(a), int(b), mirrored) for a, b in zip(p[first], v[first], strict=True)]
    most = max(len(index) for index, _ in found)
    padded = [_padded(len(index), most, mirrored) for index, _ in found]
    positions = np.stack([index[k] for (index, _), k in zip(found, padded, strict=True)], axis=1)
    held = np.stack([counts[:, k] for (_, counts), k in zip(found, padded, strict=True)], axis=2)
    return positions.take(rows, axis=1).T, tuple(kind.take(rows, axis=1).T for kind in held)


def _padded(stages: int, most: int, mirrored: bool) -> list[int]:
    """Columns that make `stages` into `most`: the second once more and again, or the two in the middle, as often each."""
    more = most - stages
    if not mirrored:
        return [0, *[1] * more, *range(1, stages)]
    half = stages // 2
    return [*range(half), *[half - 1] * (more // 2), *[half] * (more // 2), *range(half, stages)]


_Pipeline = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


@lru_cache(maxsize=64)
def _known_pipelines(architecture: Architecture, mirrored: bool) -> dict[tuple[int, int], _Pipeline]:
    """The decisive stages that were asked for, by pp and vpp (few thousands at most)."""
    return {}


def _pipeline(architecture: Architecture, known: dict[tuple[int, int], _Pipeline], pp: int, vpp: int, mirrored: bool) -> _Pipeline:
    """Decisive stages of one pipeline and their layers, (K,) and (kinds, K); mirrored ones in even number, with the middle one of odd
    ranks twice."""
    if (pp, vpp) not in known:
        if mirrored:
            index = num([*range((pp + 1) // 2), *range(pp // 2, pp)])
        else:
            index = num([0, min(1, pp - 1), *_records(architecture, pp, vpp), pp - 1])
        layout = Layout(degrees=Degrees(pp=float(pp), vpp=float(vpp)), choices=Choices())
        held = np.stack([num(c) for c in _balanced(architecture, layout, index).kind_layers])
        index.flags.writeable = held.flags.writeable = False
        known[pp, vpp] = index, held
    return known[pp, vpp]


def _records(architecture: Architecture, pp: int, vpp: int) -> tuple[int, ...]:
    """Stages from the third to the last but one that hold more layers of some kind than each stage from the second on before them."""
    if pp < 4 or architecture.moe is None and architecture.sliding_window is None:
        return ()
    layout = Layout(degrees=Degrees(pp=float(pp), vpp=float(vpp)), choices=Choices())
    counts = np.stack([num(c) for c in _balanced(architecture, layout, np.arange(1.0, pp - 1.0)).kind_layers])
    best = np.maximum.accumulate(counts, axis=1)
    return tuple(int(s) + 2 for s in np.flatnonzero((counts[:, 1:] > best[:, :-1]).any(axis=0)))


def _balanced(architecture: Architecture, layout: Layout, index: npt.NDArray[np.float64]) -> Stages:
    """Even split over pp × vpp chunks; chunks after the first take the remainder, one layer each, so that the stages with
    embedding and head are the lighter ones."""
    d = layout.degrees
    _, before = layer_kinds(architecture)
    vpp = num(d.vpp)
    if len(before) == 1:
        return _stages(layout, index, (_even(architecture.layers, num(d.pp), vpp, index),))
    counts: list[Num] = [np.zeros_like(index) for _ in range(len(before))]
    for v in range(int(np.max(vpp))):
        chunk = index + v * num(d.pp)
        start, end = chunk_start(architecture.layers, d.pp, vpp, chunk), chunk_start(architecture.layers, d.pp, vpp, chunk + 1.0)
        held = v < vpp
        for k, table in enumerate(before):
            inside = _at(table, end) - _at(table, start)
            counts[k] = counts[k] + np.where(held, inside, 0.0)
    return _stages(layout, index, tuple(counts))


def _even(layers: int, pp: Num, vpp: Num, index: Num) -> Num:
    """Return the layers of stage `index` where all are of one kind: the same as counting the chunks of `chunk_start` one by one."""
    base = np.floor(layers / (num(pp) * vpp))
    rest = layers - base * (num(pp) * vpp)
    larger = np.floor((rest - index) / pp) + np.where(num(index) == 0.0, 0.0, 1.0)
    return num(base * vpp + np.maximum(larger, 0.0))


def chunk_start(layers: int, pp: Num, vpp: Num, chunk: Num) -> Num:
    """Return the first layer of model chunk `chunk` of pp × vpp (chunk pp × vpp gives the number of layers)."""
    chunks = num(pp) * vpp
    base = np.floor(layers / chunks)
    rest = layers - base * chunks
    return np.where(num(chunk) >= chunks, layers, base * chunk + np.clip(num(chunk) - 1.0, 0.0, rest))


def _at(table: npt.NDArray[np.int64], position: Num) -> npt.NDArray[np.float64]:
    return table[np.clip(num(position), 0, len(table) - 1).astype(np.int64)].astype(np.float64)


def _explicit(architecture: Architecture, layout: Layout, held: tuple[int, ...]) -> Stages:
    """Stages with given layer counts; under interleaving a stage spreads its layers evenly over its chunks, early chunks first."""
    pp, vpp = int(num(layout.degrees.pp)), int(num(layout.degrees.vpp))
    if len(held) != pp or sum(held) != architecture.layers:
        raise ValueError(f"stage layers {held} must be {pp} numbers that sum to the {architecture.layers} layers of {architecture.id}")
    _, before = layer_kinds(architecture)
    counts = np.zeros((len(before), pp))
    start = 0
    for v in range(vpp):
        for stage, n in enumerate(held):
            size = n // vpp + (1 if v < n % vpp else 0)
            counts[:, stage] += before[:, start + size] - before[:, start]
            start += size
    return _stages(layout, np.arange(pp, dtype=np.float64), tuple(counts))


def _stages(layout: Layout, index: npt.NDArray[np.float64], counts: tuple[Num, ...]) -> Stages:
    layers: Num = 0.0
    for count in counts:
        layers = plus(layers, count)
    wanted = num(layout.degrees.recompute_layers)
    if layout.stage_recompute is not None:
        wanted = np.asarray(layout.stage_recompute, dtype=np.float64)
    first = np.where(index == 0.0, 1.0, 0.0)
    return Stages(
        index=index,
        layers=layers,
        kind_layers=counts,
        embedding=first,
        head=first if layout.choices.schedule in FOLDED else np.where(index == num(layout.degrees.pp) - 1.0, 1.0, 0.0),
        first_layer=first,
        recomputed=np.where(wanted < 0.0, layers, np.minimum(wanted, layers)),
    )
