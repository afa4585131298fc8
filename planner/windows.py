"""Windows: how many layers each stage of a pipeline may hold if the step is to stay below a ceiling.

Forward and backward of a stage are sums over its layers, embedding and head, so that three kinds of parts tell all of its times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.layout import Layout, micro_batches
from cost_models.numeric import num
from cost_models.stages import FOLDED, layer_kinds
from planner.bounds import ROUNDING
from planner.evaluate import balanced, ends_and_layers
from planner.paths import VALUES, Passes, least, passes
from planner.solver.chain import Chain, Option
from planner.spans import Spans

if TYPE_CHECKING:
    from planner.case import Case

Array = npt.NDArray[np.float64]
PROVISIONAL = 2
"""Layers more or fewer than the even split's while no plan is known whose time would bound them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Fewest and most layers of each stage."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    whole: bool
    """False where further splits may be as good: the windows are provisional."""

    def spans(self, before: npt.NDArray[np.int64]) -> Spans:
        """Return the runs of layers within the windows."""
        return Spans(low=self.low, high=self.high, before=before)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Times of one pipeline's parts without recompute and offload: seconds of forward and backward of a micro-batch."""

    schedule: str
    stages: int
    vpp: int
    micro_batches: float
    passes: Passes
    """How the stages of 1F1B, interleaved or not, warm up."""
    layers: int
    send: tuple[float, float]
    """Of every stage."""
    first: tuple[float, float]
    """Embedding (and head, where the first stage holds both)."""
    last: tuple[float, float]
    kinds: tuple[tuple[float, float], ...]
    """One layer of each kind."""
    before: npt.NDArray[np.int64]
    """Layers of each kind before layer i (kinds × (L + 1))."""
    whole: tuple[float, float]
    """All stages together."""
    once_seconds: float
    """Terms that come once a step, at least."""
    share: float
    constant_seconds: float
    found: dict[float, Windows | None] = field(default_factory=dict, repr=False, compare=False)
    """Windows by the ceiling that they were asked for."""

    def objective_below(self, step_seconds: float) -> float:
        """Return what pipeline and step terms come to in a step."""
        return (step_seconds - self.constant_seconds) / self.share

    def least(self, position: Array, forward: Array, backward: Array) -> Array:
        """Return what pipeline and step terms come to at least, with a stage of these times."""
        pipeline = least(self.schedule, position, self.stages, self.micro_batches, float(self.vpp), (forward, backward), self.whole)
        return pipeline + self.once_seconds

    def windows(self, below_seconds: float) -> Windows | None:
        """Return the layers that each stage may hold in a step below `below_seconds`; None where they cannot add up."""
        if below_seconds not in self.found:
            self.found[below_seconds] = self._windows(below_seconds)
        return self.found[below_seconds]

    def _windows(self, below_seconds: float) -> Windows | None:
        fewest = self._fewest()
        top = self.layers - (self.stages - 1) * fewest
        if below_seconds == float("inf"):
            even = self.layers // self.stages
            high = [min(top, even + 1 + PROVISIONAL)] * self.stages
            low = [max(fewest, even - PROVISIONAL)] * self.stages
        else:
            high = self._most(fewest, top, self.objective_below(below_seconds) * (1.0 + ROUNDING))
            low = [fewest] * self.stages
        if min(high) < fewest or sum(high) < self.layers:
            return None
        spare = sum(high) - self.layers
        low = [max(n, h - spare) for n, h in zip(low, high, strict=True)]
        spare = self.layers - sum(low)
        high = [min(h, n + spare) for n, h in zip(low, high, strict=True)]
        return Windows(low=tuple(low), high=tuple(high), whole=below_seconds != float("inf"))

    def unconstrained(self, windows: Windows) -> Chain:
        """Return the stage problem of splits that need not fit, recompute nothing, and have no terms of once a step."""
        spans = windows.spans(self.before)
        stages: list[list[Option]] = [[] for _ in range(self.stages)]
        known: dict[tuple[object, ...], Option] = {}
        for key in spans.keys:
            stage, held, counts = key
            ends, starts = (stage == 0, stage == self.stages - 1), spans.begins(key)
            option = known.get((ends, counts, starts))
            if option is None:
                option = known[ends, counts, starts] = Option(layers=held, values=self.values(ends, counts), starts=starts)
            stages[stage].append(option)
        return Chain(stages=tuple(map(tuple, stages)), layers=self.layers, nodes=())

    def values(self, ends: tuple[bool, bool], counts: tuple[int, ...]) -> tuple[float, ...]:
        """Return the values of a stage (the first, the last or neither) that holds so many layers of each kind."""
        more = [self.first[i] * ends[0] + self.last[i] * ends[1] for i in (0, 1)]
        times = tuple(self.send[i] + more[i] + sum(n * kind[i] for n, kind in zip(counts, self.kinds, strict=True)) for i in (0, 1))
        return (*times, 0.0)[: VALUES[self.schedule]]

    def _fewest(self) -> int:
        """A chunk holds a layer, but where the even split itself leaves the outer chunks of a model without."""
        chunks = 2 if self.schedule in FOLDED else self.vpp
        return chunks if chunks * self.stages <= self.layers else max(self.layers // self.stages, 0)

    def _most(self, fewest: int, top: int, below: float) -> list[int]:
        sizes = np.arange(fewest, top + 1, dtype=np.float64)
        position = np.arange(self.stages, dtype=np.float64).reshape(-1, 1)
        first, last = np.where(position == 0, 1.0, 0.0), np.where(position == self.stages - 1, 1.0, 0.0)
        fastest = [min(kind[i] for kind in self.kinds) for i in (0, 1)]
        times = [self.send[i] + fastest[i] * sizes + self.first[i] * first + self.last[i] * last for i in (0, 1)]
        allowed = self.least(position, times[0], times[1]) <= below
        return [int(most) for most in np.where(allowed, sizes, fewest - 1.0).max(axis=1, initial=fewest - 1.0)]


def shapes(case: Case, layout: Layout) -> list[Shape]:
    """Return the shape of every row of a batch."""
    mean = balanced(case, layout)
    parts = ends_and_layers(case, layout)
    d, layers = layout.degrees, case.architecture.layers
    size = len(mean.share)

    def column(value: object) -> Array:
        return np.broadcast_to(num(value).reshape(-1), (size,))

    pp, vpp, m = column(d.pp), column(d.vpp), column(micro_batches(layout, case.training.global_batch))
    once = sum(mean.step_seconds)
    folded = layout.choices.schedule in FOLDED
    before = layer_kinds(case.architecture)[1]

    def pair(part: int, row: int) -> tuple[float, float]:
        return float(parts[part][0][row]), float(parts[part][1][row])

    found = []
    for i in range(size):
        found.append(
            Shape(
                schedule=layout.choices.schedule,
                stages=int(pp[i]),
                vpp=int(vpp[i]),
                micro_batches=float(m[i]),
                passes=passes(layout.choices.schedule, int(pp[i]), float(m[i]), float(vpp[i])),
                layers=layers,
                send=pair(0, i),
                first=pair(1, i),
                last=(0.0, 0.0) if folded else pair(2, i),
                kinds=tuple(pair(3 + k, i) for k in range(len(before))),
                before=before,
                whole=(float(mean.forward_seconds[i] * pp[i]), float(mean.backward_seconds[i] * pp[i])),
                once_seconds=float(np.broadcast_to(once, (size,))[i]) * (1.0 - ROUNDING),
                share=float(mean.share[i]),
                constant_seconds=float(mean.constant_seconds[i]),
            )
        )
    return found
