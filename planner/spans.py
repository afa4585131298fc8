"""Spans: the runs of layers that a stage may hold within its window, told apart by how many layers of each kind they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

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
        good = self._found.get(key, ())
        return None if len(good) == len(self.starts[stage]) else good

    @cached_property
    def _found(self) -> dict[Key, tuple[int, ...]]:
        """The starts of every key; of layers of one kind, which all starts give alike, the first."""
        kinds, table = len(self.before), self.before.tobytes()
        found: dict[Key, tuple[int, ...]] = {}
        for stage, starts in enumerate(self.starts):
            asked = starts if kinds > 1 else starts[:1]
            for held in range(self.low[stage], self.high[stage] + 1):
                for mix, good in _begun(table, kinds, held, asked):
                    found[stage, held, mix] = good
        return found


@lru_cache(maxsize=1024)
def _mixes(table: bytes, kinds: int, held: int) -> list[tuple[int, ...]]:
    """Return the layers of each kind of so many layers, for each start; `table`: the bytes of `Spans.before`."""
    before = np.frombuffer(table, dtype=np.int64).reshape(kinds, -1)
    counts = before[:, held:] - before[:, : before.shape[1] - held]
    return [tuple(mix) for mix in counts.T.tolist()]


@lru_cache(maxsize=2**14)
def _begun(table: bytes, kinds: int, held: int, starts: range) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return each mix of so many layers with those of `starts` that give it: the same for all pipelines of a model."""
    mixes = _mixes(table, kinds, held)
    found: dict[tuple[int, ...], list[int]] = {}
    for start in starts:
        if start < len(mixes):
            found.setdefault(mixes[start], []).append(start)
    return [(mix, tuple(good)) for mix, good in found.items()]
