"""Refit the free constants on some runs, and predict others: what a prediction is worth on a source that nothing was fitted to.

The fit minimises robust errors of ln(predicted / measured) plus the distance of each constant from its prior, within its range
(Gauss-Newton steps on one Jacobian, solved by coordinate descent; errors are evaluated anew after each step).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.cost import parameters_used
from cost_models.model_ops import ModelOps
from cost_models.numeric import num
from cost_models.stages import Stages, stages
from cost_models.throughput.step import step_time
from cost_models.training import Training
from cost_models.transformer import model_ops
from hardware.calibration import changed
from planner.validate_bands import step_residuals, weights
from planner.validate_errors import Error, step_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.validate_predict import Prediction
    from tests.bench.free_constants import Free

Array = npt.NDArray[np.float64]
NOISE = 0.05
"""ln units that a good prediction is off by; errors beyond count linearly (Huber)."""
SIGMAS = 2.0
"""The range of a constant spans so many standard deviations on each side of its prior."""
STEPS = 5


@dataclass(frozen=True)
class Timed:
    """A measured run, with what the constants do not change worked out once."""

    error: Error
    training: Training
    ops: ModelOps
    stages: Stages
    parameters: float

    @classmethod
    def of(cls, p: Prediction) -> Timed:
        """Return the run of a prediction, at its typical sequence length."""
        spec, training = p.spec, p.spec.training
        if spec.typical_seq is not None:
            training = training.model_copy(update={"seq": spec.typical_seq})
        value = step_error(p)
        assert value is not None
        return cls(
            error=Error(p, value),
            training=training,
            ops=model_ops(spec.architecture, training, spec.layout),
            stages=stages(spec.architecture, spec.layout),
            parameters=parameters_used(spec.architecture),
        )

    @property
    def source(self) -> str:
        return self.error.prediction.spec.run.source

    @property
    def of_class(self) -> str:
        return self.error.prediction.spec.run.class_

    def log(self) -> float:
        """ln(predicted / measured) with the constants as they are now."""
        spec = self.error.prediction.spec
        time = step_time(spec.architecture, self.training, spec.layout, spec.pool, self.ops, self.stages, parameters_used=self.parameters)
        measured = spec.measured.step_seconds
        assert measured is not None
        return float(np.log(num(time.step_seconds) / measured))


@dataclass(frozen=True)
class Fit:
    """Constants as ln(value / prior), and the errors of all runs with them."""

    moved: Array
    logs: Array


class Refit:
    """A set of runs and of free constants."""

    def __init__(self, runs: Sequence[Timed], free: Sequence[Free]) -> None:
        self.runs, self.free = tuple(runs), tuple(free)
        self.low = np.log([f.low / f.prior for f in free])
        self.high = np.log([f.high / f.prior for f in free])
        self.sigma = np.where(np.abs(self.low) > self.high, np.abs(self.low), self.high) / SIGMAS
        self.weight = weights(step_residuals([r.error for r in runs]))
        self.start = Fit(np.zeros(len(self.free)), self.logs(np.zeros(len(self.free))))
        self.jacobian = self._jacobian(self.start)

    def logs(self, moved: Array) -> Array:
        """Return the errors of all runs with the constants moved."""
        values = {f.key: f.prior * float(np.exp(x)) for f, x in zip(self.free, moved, strict=True)}
        with changed(values):
            return np.asarray([r.log() for r in self.runs])

    def _jacobian(self, at: Fit) -> Array:
        columns = []
        for i in range(len(self.free)):
            step = np.zeros(len(self.free))
            step[i] = 0.5 * (self.high[i] if at.moved[i] <= 0.0 else self.low[i])
            columns.append((self.logs(at.moved + step) - at.logs) / step[i])
        return np.stack(columns, axis=1)

    def linearise(self, at: Fit) -> None:
        """Take the Jacobian at `at` from now on: a numerical aid, for each fit begins at the priors still and is judged by the model."""
        self.jacobian = self._jacobian(at)

    def fit(self, used: npt.NDArray[np.bool_]) -> Fit:
        """Return the constants fitted on the runs `used`."""
        best = now = self.start
        for _ in range(STEPS):
            target = self._solve(now, used)
            now = Fit(target, self.logs(target))
            if self._loss(now, used) < self._loss(best, used):
                best = now
        return best

    def _loss(self, fit: Fit, used: npt.NDArray[np.bool_]) -> float:
        e = np.abs(fit.logs[used]) / NOISE
        huber = np.where(e < 1.0, 0.5 * e * e, e - 0.5)
        prior = fit.moved / self.sigma
        return float(self.weight[used] @ huber + 0.5 * prior @ prior)

    def _solve(self, at: Fit, used: npt.NDArray[np.bool_]) -> Array:
        """Minimise the loss of the linearised errors over the box, by coordinate descent with weights that make squares robust."""
        jacobian, moved = self.jacobian[used], at.moved.copy()
        logs = at.logs[used].copy()
        for _ in range(60):
            weight = self.weight[used] / np.maximum(np.abs(logs) / NOISE, 1.0) / NOISE**2
            for i in range(len(moved)):
                column = jacobian[:, i]
                if not column.any():
                    continue
                curve = float((weight * column) @ column) + 1.0 / self.sigma[i] ** 2
                slope = float((weight * column) @ logs) + moved[i] / self.sigma[i] ** 2
                new = float(np.clip(moved[i] - slope / curve, self.low[i], self.high[i]))
                logs += column * (new - moved[i])
                moved[i] = new
        return moved
