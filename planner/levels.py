"""Levels: what is chosen once for a whole pipeline, recompute and offload, with a bound of the step under each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import Choices, Layout, OffloadTarget
from cost_models.numeric import num
from planner.bounds import balanced_seconds
from planner.rules import binding
from planner.rules.frameworks import SUPPORT
from planner.space import Relief, reliefs_of, variants_of

if TYPE_CHECKING:
    from planner.case import Case
    from planner.space import Group

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One recompute and one offload, with the part of the optimizer that is offloaded."""

    choices: Choices
    offload_fraction: float = 1.0
    counted: bool = False
    """Full recompute of a number of layers that differs between stages."""
    fixed_layers: float | None = None
    """Recomputed layers of every stage: what the user asked for, or all (-1) where the framework knows no number."""

    @property
    def offloaded(self) -> bool:
        """True where something leaves the device."""
        return self.choices.offload != "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounded:
    """Levels of some rows of a group."""

    rows: Rows
    levels: tuple[Level, ...]
    bound_seconds: npt.NDArray[np.float64]
    """(levels, rows): no split of the row under the level takes less; infinite where the level is unlawful."""

    def below(self, row: int, seconds: float, *, offloaded: bool) -> tuple[Level, ...]:
        """Return the levels under which a row may take less than `seconds`."""
        at = int(np.searchsorted(self.rows, row))
        able = self.bound_seconds[:, at] < seconds
        return tuple(level for level, able_ in zip(self.levels, able, strict=True) if able_ and level.offloaded == offloaded)


def levels_of(group: Group, rows: Rows) -> Bounded:
    """Return all levels of `rows` (ascending) of a group without offload."""
    levels: list[Level] = []
    bounds: list[npt.NDArray[np.float64]] = []
    for choices in _choices(group.case, group.choices):
        relief = reliefs_of(group.case, choices)
        for level, bound in _bounded(group, rows, choices, relief):
            levels.append(level)
            bounds.append(bound)
    return Bounded(rows=rows, levels=tuple(levels), bound_seconds=np.array(bounds).reshape(len(levels), len(rows)))


def _choices(case: Case, outer: Choices) -> Iterator[Choices]:
    """Yield every recompute under every offload."""
    support = SUPPORT[case.framework]
    modes = (case.given["offload"],) if "offload" in case.fixed else support.offload
    both: tuple[OffloadTarget, ...] = ("host", "nvme") if support.nvme_zero else ("host",)
    targets = (case.given["offload_target"],) if "offload_target" in case.fixed else both
    for mode in modes:
        for target in targets if mode != "none" else both[:1]:
            yield from variants_of(case, replace(outer, offload=mode, offload_target=target))


def _bounded(group: Group, rows: Rows, choices: Choices, relief: Relief) -> Iterator[tuple[Level, npt.NDArray[np.float64]]]:
    """Yield the levels of one choice with the bound of each row, from one evaluation of all of them."""
    parts, size = relief.offload_fraction, len(rows)
    picked = {name: np.tile(column[rows], len(parts)).reshape(-1, 1) for name, column in group.columns.items()}
    picked["offload_fraction"] = np.repeat(np.array(parts), size).reshape(-1, 1)
    picked["recompute_layers"] = np.full((size * len(parts), 1), relief.recompute_layers[0])
    batch = Layout(degrees=replace(group.layouts(0, rows).degrees, **picked), choices=choices)
    lawful = np.ones(size * len(parts), dtype=bool)
    for rule in binding(group.case):
        lawful &= np.broadcast_to(np.asarray(rule.holds(group.case, batch)).reshape(-1), lawful.shape)
    if not lawful.any():
        return
    bound = np.where(lawful, balanced_seconds(group.case, batch, fitting=True), np.inf).reshape(len(parts), size)
    fixed = None if relief.counts_layers or choices.recompute != "full" else float(num(relief.recompute_layers[0]))
    for part, bounds in zip(parts, bound, strict=True):
        yield Level(choices=choices, offload_fraction=part, counted=relief.counts_layers, fixed_layers=fixed), bounds
