"""Errors of predictions against measurements: which rows may be compared, and the statistics of their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.misses import largest_bucket
from planner.validate_predict import Prediction
from planner.validate_schema import Calibrated, ErrorGroup, Misjudged, OneSided, OutOfMemory

By = Literal["all", "class", "source", "framework", "kind"]
CERTAIN_SHARE = 0.92
"""Reserved or device memory above this part of the card only says that the run fitted: the allocator caches up to the limit."""
NOTES = 240
"""Characters of a row's notes that a reason repeats."""
FEWEST = 8
"""Rows that a source needs to count in the mean over sources."""


@dataclass(frozen=True, slots=True)
class Error:
    """One comparison."""

    prediction: Prediction
    value: float
    """Predicted / measured - 1."""

    def group(self, by: By) -> str:
        """Return the name of the group that the row belongs to."""
        run = self.prediction.spec.run
        names = {"class": run.class_, "source": run.source, "framework": run.framework, "kind": self.prediction.spec.measured.peak_kind}
        return "all" if by == "all" else names[by] or "not stated"


def step_error(prediction: Prediction) -> float | None:
    """Return the error of the step time, None where the row has none to compare."""
    measured, predicted = prediction.spec.measured.step_seconds, prediction.step_seconds
    if measured is None or predicted is None or prediction.spec.measured.oom or not prediction.spec.time_representative:
        return None
    return predicted / measured - 1.0


def near_full(prediction: Prediction) -> bool:
    """Tell whether the row's peak only says that it fitted."""
    measured = prediction.spec.measured
    limit_bytes = CERTAIN_SHARE * prediction.spec.pool.gpu.nominal_memory_bytes
    return measured.peak_bytes is not None and measured.peak_kind in ("reserved", "nvidia-smi") and measured.peak_bytes > limit_bytes


def peak_error(prediction: Prediction) -> float | None:
    """Return the error of the peak memory, None where the row has none to compare."""
    measured = prediction.spec.measured
    if measured.peak_bytes is None or measured.oom or near_full(prediction):
        return None
    return prediction.comparable_bytes / measured.peak_bytes - 1.0


def errors(predictions: Iterable[Prediction], of: Callable[[Prediction], float | None], *, trusted: bool = True) -> list[Error]:
    """Return the comparisons of rows of trust A, B or unstated (`trusted`), or of trust C alone."""
    made = []
    for prediction in predictions:
        if (prediction.spec.run.trust == "C") == trusted:
            continue
        value = of(prediction)
        if value is not None:
            made.append(Error(prediction, value))
    return made


def groups(found: Sequence[Error], by: Sequence[By]) -> list[ErrorGroup]:
    """Return the statistics of every group, `all` first, each kind of group sorted by name."""
    made: list[ErrorGroup] = []
    for kind in by:
        names = sorted({error.group(kind) for error in found})
        made.extend(statistics(kind, name, [e.value for e in found if e.group(kind) == name]) for name in names)
    return made


def statistics(by: By, name: str, values: Sequence[float]) -> ErrorGroup:
    """Return median, 90th percentile and mean of the absolute errors, and the median signed error."""
    signed = np.asarray(values, dtype=np.float64)
    absolute = np.abs(signed)
    return ErrorGroup(
        by=by,
        name=name,
        count=len(values),
        median=float(np.median(absolute)),
        p90=float(np.percentile(absolute, 90.0)),
        mean=float(np.mean(absolute)),
        bias=float(np.median(signed)),
    )


def dense_source_mean(found: Sequence[Error]) -> float | None:
    """Return the mean of the medians of the dense sources (classes tuned and user) with at least FEWEST rows."""
    dense = [e for e in found if e.prediction.spec.run.class_ in ("tuned", "user")]
    medians = [g.median for g in groups(dense, ("source",)) if g.count >= FEWEST]
    return float(np.mean(medians)) if medians else None


def one_sided(predictions: Sequence[Prediction]) -> list[OneSided]:
    """Return, for the sources with rows of trust C, how often the prediction lies below the printed value."""
    made: list[OneSided] = []
    for quantity, of in (("step", step_error), ("memory", peak_error)):
        found = errors(predictions, of, trusted=False)
        for name in sorted({e.group("source") for e in found}):
            values = np.asarray([e.value for e in found if e.group("source") == name])
            kind: Literal["step", "memory"] = "step" if quantity == "step" else "memory"
            made.append(
                OneSided(quantity=kind, source=name, count=len(values), bias=float(np.median(values)), below=float(np.mean(values < 0.0)))
            )
    return made


def out_of_memory(predictions: Sequence[Prediction]) -> OutOfMemory:
    """Return how the verdicts of the worst stage agree with what happened."""
    trusted = [p for p in predictions if p.spec.run.trust != "C"]
    failed = [p for p in trusted if p.spec.measured.oom]
    ran = [p for p in trusted if not p.spec.measured.oom and (p.spec.measured.peak_bytes or p.spec.measured.step_seconds)]
    missed = [p.spec.run.id for p in failed if p.verdict == "fits"]
    wrong = [p.spec.run.id for p in ran if p.verdict == "no"]
    judged = [p for p in trusted if p.spec.run.id in {*missed, *wrong}]
    full = [p for p in trusted if near_full(p) and not p.spec.measured.oom]
    return OutOfMemory(
        oom_rows=len(failed),
        caught=len(failed) - len(missed),
        caught_share=1.0 - len(missed) / len(failed) if failed else None,
        missed=missed,
        misses=[misjudged(p) for p in judged],
        ran_rows=len(ran),
        called_no=len(wrong),
        called_no_share=len(wrong) / len(ran) if ran else None,
        wrong=wrong,
        near_full=len(full),
        near_full_called_no=sum(p.verdict == "no" for p in full),
    )


def misjudged(prediction: Prediction) -> Misjudged:
    """Return a verdict that what happened contradicts, with what it rests on and what the row itself says."""
    stage, phase, bucket, _ = largest_bucket(prediction.cost.memory)
    spec, capacity = prediction.spec, prediction.case.pool.capacity_bytes
    ratio = capacity / prediction.device_bytes
    if spec.measured.oom:
        said = f"ran out of memory, which takes {ratio:.2f} of the prediction or more"
    elif spec.measured.peak_bytes is None:
        said = f"ran, so at most {ratio:.2f} of the prediction was needed"
    else:
        said = f"ran, with {spec.measured.peak_bytes / prediction.device_bytes:.2f} of the prediction"
    assumed = f"; assumed: {', '.join(spec.assumed)}" if spec.assumed else ""
    notes = f"; the row says: {spec.run.notes[:NOTES]}" if spec.run.notes else ""
    return Misjudged(
        id=spec.run.id,
        verdict="fits" if prediction.verdict == "fits" else "no",
        predicted_device_bytes=prediction.device_bytes,
        capacity_bytes=capacity,
        fit_probability=prediction.fit_probability,
        stage=stage,
        phase=phase,
        bucket=bucket,
        reason=f"{said}{assumed}{notes}",
    )


def calibrated(found: Sequence[Error]) -> list[Calibrated]:
    """Return the step-time errors by class when each row is corrected by the median ratio of the other rows of its source and GPU."""
    pairs: dict[tuple[str, str], list[Error]] = {}
    for error in found:
        run = error.prediction.spec.run
        pairs.setdefault((run.source, run.gpu), []).append(error)
    left: dict[str, list[float]] = {}
    for members in pairs.values():
        if len(members) < 2:
            continue
        logs = np.log([1.0 + e.value for e in members])
        for i, error in enumerate(members):
            factor = float(np.median(np.delete(logs, i)))
            left.setdefault(error.group("class"), []).append(abs(float(np.exp(logs[i] - factor)) - 1.0))
    return [
        Calibrated(name=name, count=len(values), median=float(np.median(values)), p90=float(np.percentile(values, 90.0)))
        for name, values in sorted(left.items())
    ]
