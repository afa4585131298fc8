"""Spans: the runs of layers that a stage may hold within its window, told apart by how many layers of each kind they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Key = tuple[int, int, tuple[int, ...]]
"""Stage, layers, layers of each kind."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """All spans of all stages."""

    low: tuple[int, ...]
    """Fewest layers of each stage."""
    high: tuple[int, ...]
    before: npt.NDArray[np.int64]
    """Layers of each kind before layer i (kinds × (L + 1))."""

    @cached_property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.before.shape[1]) - 1

    @cached_property
    def starts(self) -> list[range]:
        """First layers at which each stage may begin."""
        low, high, layers = self.low, self.high, self.layers
        found = []
        for s in range(len(low)):
            early = max(sum(low[:s]), layers - sum(high[s:]))
            late = min(sum(high[:s]), layers - sum(low[s:]))
            found.append(range(early, late + 1))
        return found

    @cached_property
    def keys(self) -> list[Key]:
        """Every number of layers of every stage, with every mix of kinds that its starts give."""
        return list(self._found)

    def begins(self, key: Key) -> tuple[int, ...] | None:
        """Return the starts at which a stage holds just these layers; None where all do."""
        stage = key[0]
        if len(self.before) == 1 or stage == 0:
            return None
        good = tuple(self._found.get(key, ()))
        return None if len(good) == len(self.starts[stage]) else good

    @cached_property
    def _found(self) -> dict[Key, list[int]]:
        """The starts of every key; of layers of one kind, which all starts give alike, the first."""
        found: dict[Key, list[int]] = {}
        mixes = {held: self._mixes(held) for held in range(min(self.low, default=0), max(self.high, default=-1) + 1)}
        for stage, starts in enumerate(self.starts):
            for held in range(self.low[stage], self.high[stage] + 1):
                mix = mixes[held]
                for start in starts if len(self.before) > 1 else starts[:1]:
                    if start < len(mix):
                        found.setdefault((stage, held, mix[start]), []).append(start)
        return found

    def _mixes(self, held: int) -> list[tuple[int, ...]]:
        """Return the layers of each kind of so many layers, for each start."""
        counts = self.before[:, held:] - self.before[:, : self.layers + 1 - held]
        return [tuple(mix) for mix in counts.T.tolist()]
