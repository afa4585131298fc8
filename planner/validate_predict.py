"""Predict one row of a run table: its step time, and the memory of the stage that it logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.numeric import num
from cost_models.result import Cost
from planner.bands import RUN_CLASSES, MemoryClass, PeakKind, RunClass, memory_band, memory_class, run_class, step_band
from planner.case import Case
from planner.evaluate import evaluate
from planner.fit import fit_probability, verdict
from planner.runs import Spec

if TYPE_CHECKING:
    from cost_models.training import Training
    from planner.plan import Verdict


@dataclass(frozen=True)
class Prediction:
    """An evaluated row."""

    spec: Spec
    cost: Cost
    """At the longest sample."""
    typical: Cost
    """At the typical sample; the same where all are of one length."""
    run_class: RunClass
    """Whose errors of step time it shares."""

    @cached_property
    def case(self) -> Case:
        """What the layout is judged against."""
        return Case(architecture=self.spec.architecture, training=self.spec.training, pool=self.spec.pool)

    @property
    def memory_class(self) -> MemoryClass:
        """The class of its model, method and framework."""
        return memory_class(self.spec.architecture, self.spec.training)

    @property
    def peak_kind(self) -> PeakKind:
        """The kind of band that the row's peak belongs to."""
        return "allocated" if self.spec.measured.peak_kind == "allocated" else "device"

    @property
    def step_seconds(self) -> float | None:
        """One step; None where the row states no global batch."""
        return float(num(self.typical.time.step_seconds)) if self.spec.timed else None

    def peak_bytes(self, kind: str) -> float:
        """Return the peak of one kind (`allocated`, `reserved`, `device`) on the stage that the row logs."""
        memory = self.cost.memory
        stages = {"allocated": memory.stage_allocated_bytes, "reserved": memory.stage_reserved_bytes, "device": memory.stage_device_bytes}
        return float(np.max(logged(np.atleast_1d(num(stages[kind])), self.spec.run.logged_stage)))

    @property
    def device_bytes(self) -> float:
        """Device bytes of the worst stage, whichever the row logs."""
        return float(num(self.cost.memory.peak_device_bytes))

    @property
    def comparable_bytes(self) -> float:
        """The peak of the kind that the row states; an unknown kind is compared with reserved memory, the middle one."""
        return self.peak_bytes({"allocated": "allocated", "nvidia-smi": "device"}.get(self.spec.measured.peak_kind, "reserved"))

    @property
    def verdict(self) -> Verdict:
        """Whether the worst stage fits its card, and the offloaded states their server."""
        return verdict(self.case, self.cost.memory)

    @property
    def fit_probability(self) -> float:
        """Probability of that."""
        return fit_probability(self.case, self.cost.memory)

    @property
    def step_interval_seconds(self) -> tuple[float, float] | None:
        """Where the step time lies with 80 % probability."""
        return None if self.step_seconds is None else step_band(self.run_class).interval(self.step_seconds)

    @property
    def peak_interval_bytes(self) -> tuple[float, float]:
        """Where the peak of the kind that the row states lies with 80 % probability."""
        return memory_band(self.memory_class, self.peak_kind).interval(self.comparable_bytes)


def logged(stages: npt.NDArray[np.float64], which: str) -> npt.NDArray[np.float64]:
    """Return the values of the stages that a row logs, of shape (1,) or more; all of them where it says `worst` or nothing."""
    if which == "first":
        return stages[:1]
    if which == "last":
        return stages[-1:]
    if which == "first,last":
        return stages[[0, -1]]
    return stages


def class_of(spec: Spec) -> RunClass:
    """Return the class of run that a row states; else that of its model, method and framework.

    Unknown where it names no framework; user, not tuned, where the framework divides as a tuned one but runs single operators.
    """
    for name in RUN_CLASSES:
        if spec.run.class_ == name:
            return name
    usual = run_class(spec.architecture, spec.training)
    if usual == "tuned" and spec.training.extra.get("class") in ("eager", "hf"):
        usual = "user"
    unnamed = spec.run.framework.lower() in ("", "other") and not spec.run.framework_detail
    return "unknown" if unnamed and usual in ("tuned", "user") else usual


class Predictor:
    """Evaluates specs; rows that ask the same question are answered once."""

    def __init__(self) -> None:
        self._seen: dict[object, Cost] = {}

    def __call__(self, spec: Spec) -> Prediction:
        """Return the prediction of one row."""
        longest = self._cost(spec, spec.training)
        if spec.typical_seq is None:
            return Prediction(spec, longest, longest, class_of(spec))
        return Prediction(spec, longest, self._cost(spec, spec.training.model_copy(update={"seq": spec.typical_seq})), class_of(spec))

    def _cost(self, spec: Spec, training: Training) -> Cost:
        key = (id(spec.architecture), training.model_dump_json(), repr(spec.layout), id(spec.pool))
        if key not in self._seen:
            case = Case(architecture=spec.architecture, training=training, pool=spec.pool)
            self._seen[key] = evaluate(case, spec.layout)
        return self._seen[key]
