"""Grid: the lawful degrees and choices of a stage of a pipeline over several pools, and what a layer costs on each pool under them.

A stage has tp × cp × dp GPUs of one pool, the same numbers on every pool, and lies inside it, so that ranks are numbered stage by stage;
tensor parallelism stays inside a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cost_models.choices.precision import regime_of
from cost_models.layout import Choices, Layout, micro_batches
from cost_models.numeric import num
from cost_models.stages import Stages, layer_kinds
from cost_models.throughput.replicas import copied_embedding_bytes
from cost_models.transformer import model_ops
from planner.board import canonical
from planner.evaluate import held_cost
from planner.rules.rule import divisors
from planner.rules.task import tp_ranks
from planner.space import Counts, Group, groups

if TYPE_CHECKING:
    from planner.case import Case

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What one pool makes of a grid, per micro-batch."""

    layer_seconds: float
    """Forward and backward of a layer (the mean one), without recompute."""
    embedding_seconds: float
    head_seconds: float
    most_layers: tuple[float, ...]
    """Per variant: layers that a stage could hold at most, with one micro-batch in flight and neither embedding nor head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """One set of degrees and choices; pp is still open."""

    layout: Layout
    """Single, pp 2."""
    variants: tuple[Choices, ...]
    """Recompute, the least first: those that are lawful."""
    gpus: int
    """Of one stage."""
    micro_batches: int
    message_bytes: float
    """What a GPU hands to the next stage for each micro-batch."""
    embedding_bytes: float
    """Gradient that a GPU of the first and one of the last stage reduce once a step: that of a matrix which both hold."""
    speeds: tuple[Speed, ...]
    """In the order of the pools."""


def grids(cases: Sequence[Case]) -> Iterator[Grid]:
    """Yield the grids of one framework; `cases` are those of the pools. pp, schedule and chunks are not free here, and
    wishes are left to the whole pipeline."""
    offloaded = str(cases[0].given.get("offload", "none")) != "none"
    if cases[0].given.get("rank_order"):
        return
    for gpus in divisors(gcd(*(case.world for case in cases))):
        given: dict[str, Any] = {**cases[0].given, "pp": 2, "schedule": "1f1b", "rank_order": 0.0}
        pool = cases[0].pool.model_copy(update={"count": 2 * gpus})
        for group in groups(replace(cases[0], pool=pool, given=given, wishes=()), Counts(), offloaded=offloaded):
            yield from _of_group(group, cases, gpus)


def _of_group(group: Group, cases: Sequence[Case], gpus: int) -> Iterator[Grid]:
    inside = min(tp_ranks(case) for case in cases)
    keep = np.any(np.stack(group.lawful), axis=0)
    if "tp" not in cases[0].given:
        keep = keep & (group.columns["tp"] <= inside)
    rows = np.flatnonzero(keep)
    if not len(rows):
        return
    speeds = [_speeds(case, group, rows) for case in cases]
    layouts = group.layouts(0, rows)
    d = model_ops(cases[0].architecture, cases[0].training, layouts).dims
    messages = np.broadcast_to(num(d.tokens / d.tp * (d.hidden * d.act_bytes)).reshape(-1), len(rows))
    regime = regime_of(cases[0].training, group.variants[0])
    copied = copied_embedding_bytes(cases[0].architecture, cases[0].training, regime, d.vocab)
    copies = np.broadcast_to(num(copied).reshape(-1), len(rows))
    for i, row in enumerate(rows):
        lawful = [v for v, mask in enumerate(group.lawful) if mask[row]]
        layout = canonical(layouts.row(i))
        yield Grid(
            layout=replace(layout, choices=group.variants[lawful[0]]),
            variants=tuple(group.variants[v] for v in lawful),
            gpus=gpus,
            micro_batches=int(num(micro_batches(layout, cases[0].training.global_batch))),
            message_bytes=float(messages[i]),
            embedding_bytes=float(copies[i]),
            speeds=tuple(
                Speed(layer_seconds=t[i], embedding_seconds=e[i], head_seconds=h[i], most_layers=tuple(most[i, v] for v in lawful))
                for (t, e, h), most in speeds
            ),
        )


def _speeds(case: Case, group: Group, rows: npt.NDArray[np.intp]) -> tuple[tuple[Array, Array, Array], Array]:
    """Return ((layer, embedding, head) seconds, (R,) each; most layers by memory (R, V)) of the rows on one pool."""
    whole = float(case.architecture.layers)
    held = np.array([[whole, 1, 0, 0], [whole, 0, 0, 0], [whole, 0, 1, 0], [1, 0, 0, 1], [2, 0, 0, 2]])
    sizes, seconds = [], np.zeros((len(rows), len(held)))
    for variant in range(len(group.variants)):
        layout = group.layouts(variant, rows)
        result = held_cost(case, layout, _mean_stages(case, held, len(rows)))
        sizes.append(num(result.memory.stage_device_bytes))
        if variant == 0:
            seconds = num(result.time.stage_forward_seconds) + result.time.stage_backward_seconds
    layer = seconds[:, 1] / whole
    # bytes are a maximum of lines in the layers, so that the line through one and two layers lies below
    most = np.stack([1.0 + (case.limit_bytes - size[:, 3]) / np.maximum(size[:, 4] - size[:, 3], 1.0) for size in sizes], axis=1)
    return (layer, seconds[:, 0] - seconds[:, 1], seconds[:, 2] - seconds[:, 1]), most


def _mean_stages(case: Case, held: Array, rows: int) -> Stages:
    """Stages with the mean mix of the model's layers; `held` = (layers, embedding, head, fully recomputed layers) of each."""
    _, before = layer_kinds(case.architecture)

    def wide(values: Array) -> Array:
        return np.broadcast_to(values, (rows, len(values))).copy()

    layers = held[:, 0]
    return Stages(
        index=wide(np.ones(len(held))),
        layers=wide(layers),
        kind_layers=tuple(wide(layers * (float(table[-1]) / case.architecture.layers)) for table in before),
        embedding=wide(held[:, 1]),
        head=wide(held[:, 2]),
        first_layer=wide(0.0 * layers),
        recomputed=wide(held[:, 3]),
    )
