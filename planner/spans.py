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
        keys: dict[Key, None] = {}
        for stage, starts in enumerate(self.starts):
            for held in range(self.low[stage], self.high[stage] + 1):
                for start in starts if len(self.before) > 1 else starts[:1]:
                    if start + held <= self.layers:
                        keys[stage, held, self._mix(start, held)] = None
        return list(keys)

    def begins(self, key: Key) -> tuple[int, ...] | None:
        """Return the starts at which a stage holds just these layers; None where all do."""
        stage, held, counts = key
        if len(self.before) == 1 or stage == 0:
            return None
        good = tuple(s for s in self.starts[stage] if s + held <= self.layers and self._mix(s, held) == counts)
        return None if len(good) == len(self.starts[stage]) else good

    def _mix(self, start: int, held: int) -> tuple[int, ...]:
        return (held,) if len(self.before) == 1 else tuple(int(t[start + held] - t[start]) for t in self.before)
