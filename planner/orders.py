"""Orders: in which of two orders the ranks of each layout are numbered, where a framework leaves the choice.

A search looks at each layout in the order in which its even split takes less time. Which one that is hangs on sends and reductions, that
is on the places of the groups, and hardly on how layers are dealt to the stages; memory is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import Degrees, Layout
from planner.evaluate import totals

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from planner.case import Case

Codes = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[np.float64]]


def faster_order(
    case: Case, choices: Choices, codes: Codes, columns: Columns, micro_batches: int, drop: Callable[[str, int], None], times: int
) -> tuple[Codes, Columns]:
    """Return the rows without those whose twin in the other order is faster, or as fast and in the usual order.

    `micro_batches`: values of the last axis of the grid, of which the order is the last but one; `drop` counts the rows that go, each of
    which stands for `times` layouts.
    """
    other = np.flatnonzero(columns["rank_order"] > 0.0) if len(codes) else np.zeros(0, dtype=np.intp)
    twins = _twins(codes, columns, other, micro_batches)
    other, twins = other[twins >= 0], twins[twins >= 0]
    if not len(other):
        return codes, columns
    both = np.concatenate([other, twins])
    seconds = totals(case, Layout(degrees=Degrees(**{n: c[both].reshape(-1, 1) for n, c in columns.items()}), choices=choices)).step_seconds
    pays = seconds[: len(other)] < seconds[len(other) :]
    keep = np.ones(len(codes), dtype=bool)
    keep[np.where(pays, twins, other)] = False
    drop("rank_order_slower", len(other) * times)
    return codes[keep], {name: column[keep] for name, column in columns.items()}


def _twins(codes: Codes, columns: Columns, other: npt.NDArray[np.intp], micro_batches: int) -> npt.NDArray[np.intp]:
    """Return for each row in the other order the same one in the usual order; -1 where there is none."""
    usual = np.flatnonzero(columns["rank_order"] == 0.0) if len(codes) else other
    if not len(other) or not len(usual):
        return np.full(len(other), -1, dtype=np.intp)
    wanted = codes[other] - micro_batches
    order = usual[np.argsort(codes[usual], kind="stable")]
    at = np.minimum(np.searchsorted(codes[order], wanted), len(order) - 1)
    return np.where(codes[order[at]] == wanted, order[at], -1)
