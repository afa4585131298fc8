"""Bounds: a time that no split of the layers over the stages beats, for whole batches at once.

Stages of equal time, nothing recomputed, nothing offloaded. The terms that come once a step are convex in what a stage holds, so their
largest over the stages is at least their value for the mean stage (Jensen); the same holds of GPipe, of 1F1B weights of its paths give
a bound (weak duality), and the zero-bubble V takes at least all micro-batches through the mean stage.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import micro_batches
from cost_models.numeric import num
from cost_models.stages import layer_kinds
from planner.evaluate import balanced
from planner.paths import passes

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case
    from planner.evaluate import StageTable
    from planner.space import Group

Array = npt.NDArray[np.float64]
UNEVEN = ("megatron", "torchtitan")
"""Frameworks that take any split of the layers over stages (pipeline layout; module lists)."""
SPLIT = ("1f1b", "gpipe", "interleaved", "zb-v")
"""Schedules whose time is a maximum of sums over the stages (planner.paths)."""
ROUNDING = 1e-9
"""Relative: what float64 may lose between a bound and the sums that it bounds."""


def splittable(group: Group) -> npt.NDArray[np.bool_]:
    """Return which rows have layers that may be split anew.

    Interleaved chunks of unlike layers are left even: which layers a chunk holds would depend on every other chunk.
    """
    case, schedule = group.case, group.choices.schedule
    able = case.framework in UNEVEN and schedule in SPLIT and case.training.method != "inference"
    if schedule == "interleaved" and len(layer_kinds(case.architecture)[0]) > 1:
        able = False
    return np.asarray((group.columns["pp"] > 1.0) & group.lawful[0] & able)


def balanced_seconds(case: Case, layout: Layout, *, fitting: bool = False) -> Array:
    """Return seconds of a step that no split of the layers of each row beats, whatever is recomputed, (N,).

    With `fitting`, infinite where no split fits: some stage holds at least the mean of all states.
    """
    table = balanced(case, layout)
    seconds = step_of(table, pipeline_bound(layout, case.training.global_batch, table))
    return np.where(table.states_bytes > case.limit_bytes * (1.0 + ROUNDING), np.inf, seconds) if fitting else seconds


def step_of(table: StageTable, pipeline_seconds: Array) -> Array:
    """Return the step of a pipeline that takes `pipeline_seconds`, with the step terms of each row, less the rounding."""
    once = pipeline_seconds
    for term in table.step_seconds:
        once = once + term
    return np.asarray((once * table.share + table.constant_seconds) * (1.0 - ROUNDING))


def pipeline_bound(layout: Layout, global_batch: int, table: StageTable) -> Array:
    """Return the seconds of all micro-batches through stages of the same total work, at best."""
    schedule = layout.choices.schedule
    if schedule == "gpipe":
        return table.alone_seconds
    d = layout.degrees
    size = table.alone_seconds.shape
    if schedule == "zb-v":
        return np.asarray(
            np.broadcast_to(num(micro_batches(layout, global_batch)).reshape(-1), size) * (table.forward_seconds + table.backward_seconds)
        )
    pp, vpp, m = (np.broadcast_to(num(x).reshape(-1), size) for x in (d.pp, d.vpp, micro_batches(layout, global_batch)))
    law, inverse = np.unique(np.stack([pp, vpp, m], axis=1), axis=0, return_inverse=True)
    parts = np.array([longest_path_part(schedule, int(p), int(n), float(v)) for p, v, n in law])
    return np.asarray((table.forward_seconds + table.backward_seconds) * pp * parts[inverse.reshape(-1)])


@lru_cache(maxsize=65536)
def longest_path_part(schedule: str, stages: int, m: int, vpp: float) -> float:
    """Return c such that 1F1B (or its interleaved form) takes at least c × the work of one micro-batch through all stages, however it
    is split.

    In times of a chunk, with T_j the stages' work, B_j that before and A_j that after stage j, w_j the warm-up of one pass of it for
    those behind it, W = B + T + A, and N passes less one, cost_models.choices.pipeline is at least each of
      (1) W + (N - w_j) T_j + A_j, where stage j turns
      (2) W + (N - w_j / 2) T_j, as the shorter of forward and backward is at most half; nothing but W where it does not turn
      (3) (N + 1) T_j + B_j, where it turns
    and weights of these, none negative, that sum to one bound it from below by their least coefficient.
    """
    p = passes(schedule, stages, float(m), vpp)
    rounds = p.last + p.idle
    behind = p.each * np.arange(stages - 1, -1, -1, dtype=np.float64)
    turns = np.array(p.turns)
    half = np.where(turns, rounds - behind / 2.0, min(p.more, p.last))
    found = [1.0, _mixed(np.where(turns, rounds - behind, 0.0), half)]
    if np.all(half > 0.0):
        found.append(1.0 + 1.0 / float(np.sum(1.0 / half)))
    if np.all(turns):
        found.append(1.0 / (1.0 - (1.0 - 1.0 / (rounds + 1.0)) ** stages))
    if p.each == 1.0 and rounds >= stages:
        found.append((rounds + stages) / stages)
    return max(found) / p.chunks


def _mixed(own: Array, half: Array) -> float:
    """Weights of (1) where it tells more than (2), from the first stage on, so that every stage's time has the same coefficient."""
    taken = own > half / 2.0
    weights, after = np.zeros(len(own)), 0.0
    for j in range(len(own)):
        coefficient = own[j] if taken[j] else half[j]
        if coefficient <= 0.0 or after > 1.0:
            return 0.0
        weights[j] = (1.0 - after) / coefficient
        after += weights[j] if taken[j] else 0.0
    return 1.0 + float(1.0 / weights.sum())
