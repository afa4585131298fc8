"""The time of a pipeline as a sum of maxima over paths, each a weighted sum of its stages' times: what the solver minimises.

Each schedule's formula (cost_models.choices.schedules) is taken apart here once; a test holds both against each other on random stages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from planner.solver.chain import Path

Array = npt.NDArray[np.float64]
Values = tuple[Array, ...]
"""Values of each option of one stage, (options,) each."""


def one_f_one_b_values(stage: int, stages: int, m: float, forward: Array, backward: Array, alone: Array) -> Values:
    """Total time; and the steady part of the path that the stages behind shorten by the lesser of forward and backward."""
    behind = stages - 1.0 - stage
    total = forward + backward
    if m - 1.0 >= behind:
        return total, (m - 1.0) * total - behind * np.minimum(forward, backward)
    return total, (m - 1.0) * np.maximum(forward, backward)


def one_f_one_b_paths(stages: int, m: float, vpp: float) -> tuple[tuple[Path, ...], ...]:
    """Through all stages once, with the steady part at stage j: `both`, `one` (or `short`) and `none` of the schedule's formula."""
    paths: list[Path] = []
    for j in range(stages):
        behind = stages - 1.0 - j
        if m - 1.0 >= behind:
            paths.append(tuple((s, 0, 1.0 + (m - 1.0 - behind if s == j else 0.0) + (1.0 if s > j else 0.0)) for s in range(stages)))
        if behind > 0.0:
            paths.append((*((s, 0, 1.0) for s in range(stages)), (j, 1, 1.0)))
            paths.append(tuple((s, 0, 1.0 + (m - 1.0 if s == j else 0.0)) for s in range(j + 1)))
    return (tuple(paths),)


def gpipe_values(stage: int, stages: int, m: float, forward: Array, backward: Array, alone: Array) -> Values:
    """Forward and backward."""
    return forward, backward


def gpipe_paths(stages: int, m: float, vpp: float) -> tuple[tuple[Path, ...], ...]:
    """All forwards, then all backwards, each set by its slowest stage."""
    return tuple(
        tuple(tuple((s, v, 1.0 + (m - 1.0 if s == j else 0.0)) for s in range(stages)) for j in range(stages)) for v in (0, 1)
    )


def interleaved_values(stage: int, stages: int, m: float, forward: Array, backward: Array, alone: Array) -> Values:
    """Total time."""
    return (forward + backward,)


def interleaved_paths(stages: int, m: float, vpp: float) -> tuple[tuple[Path, ...], ...]:
    """The steady part of stage j, one chunk of every other stage, and the wait of an incomplete group of micro-batches."""
    rest = m % stages
    idle = (vpp - 1.0) * (stages - rest) / vpp if rest else 0.0
    return (tuple(tuple((s, 0, m + idle if s == j else 1.0 / vpp) for s in range(stages)) for j in range(stages)),)


def alone_values(stage: int, stages: int, m: float, forward: Array, backward: Array, alone: Array) -> Values:
    """All micro-batches through the stage with its own bubble."""
    return (alone,)


def alone_paths(stages: int, m: float, vpp: float) -> tuple[tuple[Path, ...], ...]:
    """The slowest stage alone."""
    return (tuple(((j, 0, 1.0),) for j in range(stages)),)


def least(
    schedule: str, behind: Array, stages: float, m: float, vpp: float, times: tuple[Array, Array], whole: tuple[float, float]
) -> Array:
    """Return what the pipeline takes at least if a stage with `behind` stages after it takes `times` (forward, backward) for a
    micro-batch, and all stages together take `whole`, however the rest is split."""
    forward, backward = times
    total, work = forward + backward, whole[0] + whole[1]
    if schedule == "interleaved":
        rest = m % stages
        idle = (vpp - 1.0) * (stages - rest) / vpp if rest else 0.0
        return work / vpp + (m - 1.0 / vpp + idle) * total
    if schedule == "gpipe":
        return work + (m - 1.0) * total
    if schedule == "zb-v":
        return m * total
    steady = (m - 1.0) * total - behind * np.minimum(forward, backward)
    short = (m - 1.0) * np.maximum(forward, backward)
    return np.maximum(work + np.where(m - 1.0 >= behind, np.maximum(steady, (m - 1.0 - behind) * total), short), m * total)


ValuesOf = Callable[[int, int, float, Array, Array, Array], Values]
PathsOf = Callable[[int, float, float], tuple[tuple[Path, ...], ...]]

PATHS: dict[str, tuple[ValuesOf, PathsOf]] = {
    "1f1b": (one_f_one_b_values, one_f_one_b_paths),
    "gpipe": (gpipe_values, gpipe_paths),
    "interleaved": (interleaved_values, interleaved_paths),
    "zb-v": (alone_values, alone_paths),
}
"""Schedule -> (values of a stage's options, groups of paths over them)."""


def with_steps(groups: tuple[tuple[Path, ...], ...], stages: int, first: int, terms: int) -> tuple[tuple[Path, ...], ...]:
    """Return the groups with one more for each term that comes once a step (values from index `first` on): its slowest stage counts."""
    once = tuple(tuple(((s, first + t, 1.0),) for s in range(stages)) for t in range(terms))
    return (*groups, *once)
