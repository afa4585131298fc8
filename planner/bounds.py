"""Bounds: a time that no split of the layers over the stages beats, for whole batches at once.

Stages of equal time, nothing recomputed, nothing offloaded. The terms that come once a step are convex in what a stage holds, so their
largest over the stages is at least their value for the mean stage (Jensen); the same holds of the schedules, but for 1F1B with few
micro-batches, where weights of its paths give a bound (weak duality).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import micro_batches
from cost_models.numeric import num
from cost_models.stages import layer_kinds
from planner.evaluate import balanced

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


def balanced_seconds(case: Case, layout: Layout) -> Array:
    """Return seconds of a step that no split of the layers of each row beats, whatever is recomputed, (N,)."""
    table = balanced(case, layout)
    return step_of(table, pipeline_bound(layout, case.training.global_batch, table))


def step_of(table: StageTable, pipeline_seconds: Array) -> Array:
    """Return the step of a pipeline that takes `pipeline_seconds`, with the step terms of each row, less the rounding."""
    once = pipeline_seconds
    for term in table.step_seconds:
        once = once + term
    return np.asarray((once * table.share + table.constant_seconds) * (1.0 - ROUNDING))


def pipeline_bound(layout: Layout, global_batch: int, table: StageTable) -> Array:
    """Return the seconds of all micro-batches through stages of the same total work, at best."""
    if layout.choices.schedule != "1f1b":
        return table.alone_seconds
    pp = np.broadcast_to(num(layout.degrees.pp).reshape(-1), table.alone_seconds.shape)
    m = np.broadcast_to(num(micro_batches(layout, global_batch)).reshape(-1), table.alone_seconds.shape)
    pairs, inverse = np.unique(np.stack([pp, m], axis=1), axis=0, return_inverse=True)
    parts = np.array([one_f_one_b_part(int(p), int(n)) for p, n in pairs])
    return np.asarray((table.forward_seconds + table.backward_seconds) * pp * parts[inverse.reshape(-1)])


@cache
def one_f_one_b_part(stages: int, m: int) -> float:
    """Return c such that 1F1B takes at least c × the work of one micro-batch through all stages, however it is split.

    With T_j the stages' work, B_j that before and A_j that after stage j, w_j the stages behind it, and W = B + T + A, the formula of
    cost_models.choices.schedules.one_f_one_b is at least each of
      (1) W + (m - 1 - w_j) T_j + A_j            for m > w_j
      (2) W + (m - 1 - w_j / 2) T_j, or W + (m - 1) T_j / 2 for m <= w_j, as the shorter of forward and backward is at most half
      (3) m T_j + B_j
    and weights of these, none negative, that sum to one bound it from below by their least coefficient.
    """
    behind = np.arange(stages - 1, -1, -1, dtype=np.float64)
    half = np.where(m - 1 >= behind, m - 1 - behind / 2.0, (m - 1) / 2.0)
    found = [1.0 + (1.0 / float(np.sum(1.0 / half)) if m > 1 else 0.0), 1.0 / (1.0 - (1.0 - 1.0 / m) ** stages)]
    if m > stages:
        found.append((m + stages - 1.0) / stages)
    mixed = _chained(m - 1.0 - behind, half)
    return max(*found, 1.0 + mixed)


def _chained(own: Array, half: Array) -> float:
    """Weights of (1) where it tells more than (2), from the first stage on, so that every stage's time has the same coefficient."""
    taken = own > half / 2.0
    weights, after = np.zeros(len(own)), 0.0
    for j in range(len(own)):
        coefficient = own[j] if taken[j] else half[j]
        if coefficient <= 0.0 or after > 1.0:
            return 0.0
        weights[j] = (1.0 - after) / coefficient
        after += weights[j] if taken[j] else 0.0
    return float(1.0 / weights.sum()) if np.all(weights >= 0.0) else 0.0
