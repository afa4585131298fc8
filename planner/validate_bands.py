"""Derive bands from predictions and measurements, and judge them on rows whose source had no part in them.

Rows of one source share its software, its machine and its care; repeats share a configuration. So a configuration counts once, a source
counts by the square root of its configurations, and a band is widened (or narrowed) about its median until intervals of the other
sources hold LEVEL of that weight: conformal prediction with the source as the unit (the scaled score of Romano et al. 2019, "Conformalized
quantile regression"; leave-one-out as in Barber et al. 2021, "Predictive inference with the jackknife+"). A class of too few sources
borrows the rows of all classes as they are spread: how well other classes foretell each other does not narrow its band, and its own rows
may widen it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from hardware.calibration import Quantiles
from planner.bands import LEVEL, Band, MemoryClass, PeakKind, RunClass
from planner.validate_schema import Coverage

if TYPE_CHECKING:
    from planner.validate_errors import Error

Array = npt.NDArray[np.float64]
Quantity = Literal["step", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("step", "memory")
PROBABILITIES = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
FEWEST_SOURCES = 3
FEWEST_ROWS = 20
"""A class with fewer sources or rows shares the band of the next wider pool."""
NARROWEST, WIDEST = 0.5, 2.0
"""Least and most that a band's width is multiplied by: more says that the sources are too few, not that the errors are so."""
NEAR_BEST = 1.25
"""Layouts predicted within this of their group's fastest count for the band between layouts: those are the ones that a user weighs."""
DIGITS = 4
"""Significant digits of a stated ratio."""
LOW, HIGH = (1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0


@dataclass(frozen=True, slots=True)
class Residual:
    """One comparison of a measurement with its prediction."""

    id: str
    source: str
    configuration: Hashable
    of: RunClass | MemoryClass
    """The class whose band is meant for it."""
    kind: PeakKind | None
    """None: step time."""
    log: float
    """ln(measured / predicted)."""

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return float(np.exp(self.log))


def step_residuals(found: Sequence[Error]) -> list[Residual]:
    """Return the comparisons of step time."""
    return [_residual(error, error.prediction.run_class, None) for error in found]


def memory_residuals(found: Sequence[Error]) -> list[Residual]:
    """Return the comparisons of peak memory."""
    return [_residual(error, error.prediction.memory_class, error.prediction.peak_kind) for error in found]


def _residual(error: Error, of: RunClass | MemoryClass, kind: PeakKind | None) -> Residual:
    spec = error.prediction.spec
    where = (id(spec.architecture), spec.training.model_dump_json(), repr(spec.layout), id(spec.pool), spec.run.logged_stage)
    return Residual(spec.run.id, spec.run.source, where, of, kind, -float(np.log1p(error.value)))


def layout_residuals(groups: Mapping[tuple[str, ...], Mapping[str, Sequence[tuple[float, float]]]], fewest: int) -> list[Residual]:
    """Return how the error of each layout differs from that of its group's fastest predicted one, for layouts within NEAR_BEST of it.

    `groups` are planner.validate_regret.layout_groups. Each difference counts with both signs: which of the two is named first is chance.
    """
    made: list[Residual] = []
    for name, layouts in groups.items():
        if len(layouts) < fewest:
            continue
        seconds = {layout: float(np.median([p for _, p in pairs])) for layout, pairs in layouts.items()}
        logs = {layout: float(np.median([np.log(m / p) for m, p in pairs])) for layout, pairs in layouts.items()}
        best = min(seconds, key=lambda layout: seconds[layout])
        near = [layout for layout in layouts if layout != best and seconds[layout] <= NEAR_BEST * seconds[best]]
        for sign in (1.0, -1.0):
            made += [Residual("", name[0], (name, layout, sign), "tuned", None, sign * (logs[layout] - logs[best])) for layout in near]
    return made


def weights(members: Sequence[Residual]) -> Array:
    """Return the weight of each residual: a configuration counts once, a source by the square root of its configurations."""
    repeats = Counter((r.source, r.configuration) for r in members)
    distinct = Counter(source for source, _ in repeats)
    return np.asarray([1.0 / repeats[r.source, r.configuration] / np.sqrt(distinct[r.source]) for r in members])


def quantiles(values: Array, weight: Array, probabilities: Sequence[float]) -> Array:
    """Return weighted quantiles: values stand at the middle of their weight, straight lines between."""
    order = np.argsort(values, kind="stable")
    ordered, share = values[order], weight[order]
    at = (np.cumsum(share) - share / 2.0) / np.sum(share)
    return np.asarray(np.interp(probabilities, at, ordered))


def band_of(members: Sequence[Residual], meaning: str, origin: str, rows: str, *, widened: bool = True) -> Band:
    """Return the band of a pool of residuals, as wide as left-out sources need, or as the rows are spread."""
    values, weight = np.asarray([r.log for r in members]), weights(members)
    stated = quantiles(values, weight, PROBABILITIES)
    middle = stated[PROBABILITIES.index(0.5)]
    width = _width(members, values, weight) if widened else 1.0
    ratios = np.exp(middle + (stated - middle) * width)
    ascending = _parted([float(f"{ratio:.{DIGITS}g}") for ratio in ratios])
    return Band(Quantiles(probabilities=PROBABILITIES, values=ascending, unit="1", meaning=meaning, origin=origin, rows=rows))


def _parted(values: list[float]) -> tuple[float, ...]:
    """Part equal quantiles by a digit, so that the distribution has no jumps."""
    for i in range(1, len(values)):
        values[i] = max(values[i], round(values[i - 1] + 10.0**-DIGITS, DIGITS + 1))
    return tuple(values)


def _width(members: Sequence[Residual], values: Array, weight: Array) -> float:
    """Return what the quantiles' distance from the median is multiplied by.

    The score of a row is how far it lies from the median of the other sources, in units of their interval on its side; the width is the
    score that LEVEL of the rows stay within.
    """
    sources = np.asarray([r.source for r in members])
    names = sorted(set(sources))
    if len(names) < FEWEST_SOURCES:
        return 1.0
    scores, counted = [], []
    for source in names:
        own = sources == source
        low, middle, high = quantiles(values[~own], weight[~own], (LOW, 0.5, HIGH))
        side = np.where(values[own] < middle, middle - low, high - middle)
        scores.append(np.abs(values[own] - middle) / np.maximum(side, 10.0**-DIGITS))
        counted.append(weight[own])
    return float(np.clip(quantiles(np.concatenate(scores), np.concatenate(counted), (LEVEL,))[0], NARROWEST, WIDEST))


def counted(words: str, members: Sequence[Residual]) -> str:
    """Return what a band rests on, in words."""
    return f"{words}: {len(members)} of {len({r.source for r in members})} sources"


def derive(members: Sequence[Residual], of: str, kind: PeakKind | None, meaning: str = "", origin: str = "") -> Band:
    """Return the band of a class and kind of peak: of its own rows where they are of enough sources, else of the next wider pool and at
    least as wide as its own rows are spread."""
    pools = [(f"rows of class {of}", [r for r in members if r.of == of and r.kind == kind])]
    if kind is not None:
        pools[0] = (f"{kind} peaks of class {of}", pools[0][1])
        pools.append((f"{kind} peaks of all classes", [r for r in members if r.kind == kind]))
    enough = [pool for pool in pools if len(pool[1]) >= FEWEST_ROWS and len({r.source for r in pool[1]}) >= FEWEST_SOURCES]
    words, picked = enough[0] if enough else ("all rows", list(members))
    own = pools[0][1]
    if picked is own:
        return band_of(picked, meaning, origin, counted(words, picked))
    borrowed = band_of(picked, meaning, origin, counted(words, picked), widened=False)
    return _around(borrowed, band_of(own, "", "", "", widened=False)) if len(own) >= FEWEST_ROWS else borrowed


def _around(band: Band, other: Band) -> Band:
    """Return `band`, each quantile moved out to that of `other` where it lies further from the middle."""
    pairs = zip(band.stated.values, other.stated.values, PROBABILITIES, strict=True)
    wide = [min(a, b) if p < 0.5 else max(a, b) if p > 0.5 else a for a, b, p in pairs]
    return Band(band.stated.model_copy(update={"values": _parted(wide)}))


def derive_fit(members: Sequence[Residual], of: MemoryClass, meaning: str = "", origin: str = "") -> Band:
    """Return the band of what must fit: of all peaks of a class, whatever their kind; of all rows where they are of too few sources.

    It is as wide as the rows are spread: scores of the two kinds, one sharp and one not, do not compare.
    """
    own = [r for r in members if r.of == of]
    enough = len(own) >= FEWEST_ROWS and len({r.source for r in own}) >= FEWEST_SOURCES
    words, picked = (f"peaks of class {of}, both kinds", own) if enough else ("all rows", list(members))
    return band_of(picked, meaning, origin, counted(words, picked), widened=False)


@dataclass(frozen=True, slots=True)
class Judged:
    """One residual against the band of the other sources."""

    residual: Residual
    low: float
    middle: float
    high: float
    """Measured / predicted: the ends of the interval, and its median."""

    @property
    def where(self) -> int:
        """-1 below the interval, 0 inside, 1 above."""
        return int(self.residual.ratio > self.high) - int(self.residual.ratio < self.low)


def judged(members: Sequence[Residual]) -> list[Judged]:
    """Return every residual with the interval that the other sources alone give its class and kind; none where there is one source."""
    made = []
    for source in sorted({r.source for r in members}):
        others = [r for r in members if r.source != source]
        bands: dict[tuple[str, PeakKind | None], tuple[float, float, float]] = {}
        for own in (r for r in members if r.source == source and others):
            key = (own.of, own.kind)
            if key not in bands:
                band = derive(others, *key)
                bands[key] = (band.ratio(LOW), band.ratio(0.5), band.ratio(HIGH))
            made.append(Judged(own, *bands[key]))
    return made


def coverage(quantity: Quantity, found: Sequence[Judged]) -> list[Coverage]:
    """Return how often the intervals hold: of all rows, of each class, and of each class and kind of peak."""
    made = [_coverage(quantity, "all", None, found)] if found else []
    for of in sorted({j.residual.of for j in found}):
        members = [j for j in found if j.residual.of == of]
        made.append(_coverage(quantity, of, None, members))
        kinds = sorted({j.residual.kind for j in members if j.residual.kind is not None})
        made += [_coverage(quantity, of, kind, [j for j in members if j.residual.kind == kind]) for kind in kinds]
    return made


def _coverage(quantity: Quantity, name: str, kind: PeakKind | None, found: Sequence[Judged]) -> Coverage:
    where = np.asarray([j.where for j in found])
    errors = np.abs([j.middle / j.residual.ratio - 1.0 for j in found])
    return Coverage(
        quantity=quantity,
        name=name,
        kind=kind,
        count=len(found),
        inside=float(np.mean(where == 0)),
        below=float(np.mean(where < 0)),
        above=float(np.mean(where > 0)),
        low=float(np.median([j.low for j in found])),
        high=float(np.median([j.high for j in found])),
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90.0)),
    )
