"""`planner validate`: predict every row of a run table that states enough, and measure the errors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from planner.runs import Skip, Spec, all_specs, read
from planner.validate_errors import (
    calibrated,
    dense_source_mean,
    errors,
    groups,
    one_sided,
    out_of_memory,
    peak_error,
    step_error,
)
from planner.validate_predict import Prediction, Predictor
from planner.validate_regret import regret
from planner.validate_schema import SkippedCount, ValidatedRow, ValidationReport

if TYPE_CHECKING:
    from pathlib import Path


def validate(path: str | Path) -> ValidationReport:
    """Return the predictions and errors of the run table `path`. Raises planner.runs.TableError for a file that is none."""
    table = read(path)
    made = predict(all_specs(table.runs))
    done = [p for p in made if isinstance(p, Prediction)]
    skips = Counter(p.kind for p in made if isinstance(p, Skip))
    step, memory = errors(done, step_error), errors(done, peak_error)
    return ValidationReport(
        table=table.path,
        rows=[row(p) for p in made],
        predicted=len(done),
        skipped=[SkippedCount(reason=reason, count=count) for reason, count in skips.most_common()],
        problems=list(table.problems),
        step=groups(step, ("all", "class", "source", "framework")),
        memory=groups(memory, ("all", "class", "kind", "source", "framework")),
        dense_source_mean=dense_source_mean(step),
        one_sided=one_sided(done),
        out_of_memory=out_of_memory(done),
        regret=regret(done),
        calibrated=calibrated(step),
    )


def predict(rows: list[Spec | Skip]) -> list[Prediction | Skip]:
    """Return the prediction of every row that can be evaluated."""
    evaluate_row = Predictor()
    made: list[Prediction | Skip] = []
    for found in rows:
        if isinstance(found, Skip):
            made.append(found)
            continue
        try:
            made.append(evaluate_row(found))
        except ValueError as error:
            made.append(Skip(found.run, f"cannot be evaluated: {error}", "cannot be evaluated"))
    return made


def row(made: Prediction | Skip) -> ValidatedRow:
    """Return the JSON of one row."""
    if isinstance(made, Skip):
        return ValidatedRow(id=made.run.id, status="skipped", reason=made.reason, oom=made.run.oom)
    measured = made.spec.measured
    return ValidatedRow(
        id=made.spec.run.id,
        status="ok",
        predicted_step_seconds=made.step_seconds,
        predicted_peak_allocated_bytes=made.peak_bytes("allocated"),
        predicted_peak_reserved_bytes=made.peak_bytes("reserved"),
        predicted_peak_device_bytes=made.peak_bytes("device"),
        fits=made.verdict == "fits",
        verdict=made.verdict,
        assumed=list(made.spec.assumed),
        assumed_values=made.spec.assumed,
        measured_step_seconds=measured.step_seconds,
        measured_peak_bytes=measured.peak_bytes,
        measured_peak_kind=measured.peak_kind or None,
        step_error=step_error(made),
        peak_error=peak_error(made),
        oom=measured.oom,
    )
