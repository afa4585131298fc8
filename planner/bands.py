"""Bands: how far measurements lie from predictions, and what follows for one prediction: an interval, a probability, a limit.

A band is the distribution of measured / predicted, from hardware/measured/error.toml (`planner validate RUNS.csv --bands FILE` writes
it). Step time has one band for each class of run; peak memory, where the code base matters more than who tuned it, one for each class
of code base and kind of peak, and one for what must fit. A limit in bytes follows from a band and a confidence, so that a search
compares bytes with bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from cost_models.numeric import Num, num
from cost_models.stack import MEGATRON
from hardware.calibration import Quantiles, calibration

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.training import Training

RunClass = Literal["tuned", "user", "moe", "lora", "unknown"]
"""Dense pretraining on a tuned stack; dense on a stack that a user set up; mixture of experts; adapters; nobody knows which software."""
MemoryClass = Literal["megatron", "other", "moe", "lora", "unknown"]
"""Dense models in Megatron's code bases; dense in others; mixture of experts; adapters; tasks without a measured run."""
PeakKind = Literal["allocated", "device"]
"""What torch counts as allocated; and what the card holds: reserved and nvidia-smi peaks, too few each for a band of their own."""
RUN_CLASSES: tuple[RunClass, ...] = get_args(RunClass)
MEMORY_CLASSES: tuple[MemoryClass, ...] = get_args(MemoryClass)
KINDS: tuple[PeakKind, ...] = get_args(PeakKind)
TUNED = ("megatron", "torchtitan", "fsdp")
"""Frameworks whose measured runs are mostly tuned pretraining."""
LEVEL = 0.8
"""Probability that an interval holds the measured value."""
CONFIDENCE = 0.95
"""Probability of fit from which a plan is called fitting, unless the user sets it."""
LIKELY = 0.5
"""Probability of fit below which a plan is called not to fit."""
ROUNDING = 1e-9
"""Part by which limits are lowered, so that rounding never makes a plan at its limit less probable than asked."""
FILE = "error"
BETWEEN_LAYOUTS = "step_between_layouts"


def step_name(run_class: RunClass) -> str:
    """Return the name of the band of step time."""
    return f"step_{run_class}"


def memory_name(memory_class: MemoryClass, kind: PeakKind) -> str:
    """Return the name of the band of peak memory."""
    return f"memory_{memory_class}_{kind}"


def fit_name(of: MemoryClass) -> str:
    """Return the name of the band of what must fit."""
    return f"memory_{of}_fit"


@dataclass(frozen=True, slots=True)
class Band:
    """A distribution of measured / predicted: straight lines in its logarithm between the stated quantiles, exponential tails beyond."""

    stated: Quantiles

    @property
    def _points(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return np.log(np.asarray(self.stated.values)), np.asarray(self.stated.probabilities)

    def probability(self, ratio: Num) -> npt.NDArray[np.float64]:
        """Return the probability that measured / predicted is at most `ratio` (of any shape, positive)."""
        logs, stated = self._points
        x = np.log(num(ratio))
        inside = np.interp(x, logs, stated)
        rise, fall = _slopes(logs, stated)
        lower = stated[0] * np.exp(np.minimum((x - logs[0]) * rise / stated[0], 0.0))
        upper = 1.0 - (1.0 - stated[-1]) * np.exp(np.minimum((logs[-1] - x) * fall / (1.0 - stated[-1]), 0.0))
        return np.asarray(np.where(x < logs[0], lower, np.where(x > logs[-1], upper, inside)))

    def ratio(self, probability: float) -> float:
        """Return what measured / predicted stays at or below with `probability` (between 0 and 1)."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability={probability:g} must be between 0 and 1")
        logs, stated = self._points
        rise, fall = _slopes(logs, stated)
        if probability < stated[0]:
            return float(np.exp(logs[0] + np.log(probability / stated[0]) * stated[0] / rise))
        if probability > stated[-1]:
            left = 1.0 - stated[-1]
            return float(np.exp(logs[-1] - np.log((1.0 - probability) / left) * left / fall))
        return float(np.exp(np.interp(probability, stated, logs)))

    def interval(self, predicted: float, level: float = LEVEL) -> tuple[float, float]:
        """Return where the measured value lies with probability `level`, as much below as above."""
        aside = (1.0 - level) / 2.0
        return predicted * self.ratio(aside), predicted * self.ratio(1.0 - aside)

    def limit(self, capacity: float, probability: float) -> float:
        """Return the largest prediction that stays within `capacity` with `probability`: capacity over that quantile, never above it."""
        return min(capacity, capacity / self.ratio(probability) * (1.0 - ROUNDING))


def _slopes(logs: npt.NDArray[np.float64], stated: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Probability per unit of logarithm at both ends: the tails go on as the lines arrive."""
    return float((stated[1] - stated[0]) / (logs[1] - logs[0])), float((stated[-1] - stated[-2]) / (logs[-1] - logs[-2]))


def run_class(architecture: Architecture, training: Training) -> RunClass:
    """Return the class of run whose errors of step time a prediction shares. Serving has no measured run: unknown."""
    if training.method == "inference":
        return "unknown"
    if training.method in ("lora", "qlora"):
        return "lora"
    if architecture.moe is not None:
        return "moe"
    return "tuned" if training.framework in TUNED else "user"


def memory_class(architecture: Architecture, training: Training) -> MemoryClass:
    """Return the class whose errors of peak memory a prediction shares."""
    if training.method == "inference":
        return "unknown"
    if training.method in ("lora", "qlora"):
        return "lora"
    if architecture.moe is not None:
        return "moe"
    return "megatron" if training.framework in MEGATRON else "other"


@cache
def step_band(of: RunClass) -> Band:
    """Return the band of step time of a class."""
    return Band(calibration(FILE).bands[step_name(of)])


@cache
def memory_band(of: MemoryClass, kind: PeakKind = "device") -> Band:
    """Return the band of a kind of peak memory of a class."""
    return Band(calibration(FILE).bands[memory_name(of, kind)])


@cache
def fit_band(of: MemoryClass) -> Band:
    """Return the band of what must fit on the card: of both kinds of peak together. An allocator that runs short gives back its cache, so
    the need is at least what is allocated and at most what the card shows while there is room."""
    return Band(calibration(FILE).bands[fit_name(of)])


@cache
def fit_limit(of: MemoryClass, capacity_bytes: float, confidence: float) -> float:
    """Return the device bytes up to which a prediction fits with `confidence`."""
    return fit_band(of).limit(capacity_bytes, confidence)


@cache
def between_layouts() -> Band:
    """Return the band of (measured / predicted of a layout) / (the same of the fastest predicted), for one model on one cluster."""
    return Band(calibration(FILE).bands[BETWEEN_LAYOUTS])
