"""`planner validate`: predict every row of a run table that states enough, and measure the errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from planner.runs import Skip, Spec, TableError, all_specs, read
from planner.runs.table import Table
from planner.validate_bands import QUANTITIES, Quantity, coverage, judged, memory_residuals, step_residuals
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
from planner.validate_write import error_bands, error_text


@dataclass(frozen=True, slots=True)
class Predicted:
    """A run table and what was predicted of each row."""

    table: Table
    made: list[Prediction | Skip]

    @property
    def done(self) -> list[Prediction]:
        """The rows that could be predicted."""
        return [p for p in self.made if isinstance(p, Prediction)]


def validate(path: str | Path) -> ValidationReport:
    """Return the predictions and errors of the run table `path`. Raises planner.runs.TableError for a file that is none."""
    return report_of(predicted(path))


def predicted(path: str | Path) -> Predicted:
    """Return the predictions of the run table `path`. Raises planner.runs.TableError for a file that is none."""
    table = read(path)
    return Predicted(table, predict(all_specs(table.runs)))


def bands_text(found: Predicted) -> str:
    """Return the file of bands that the table gives. Raises TableError for a table that lacks what they need."""
    name = Path(found.table.path).name  # without folders, which differ from machine to machine
    try:
        return error_text(error_bands(found.done, name), date.today())
    except ValueError as error:
        raise TableError(f"{error}") from None


def report_of(found: Predicted) -> ValidationReport:
    """Return the errors of the predictions of a run table."""
    table, made, done = found.table, found.made, found.done
    skips = Counter(p.kind for p in made if isinstance(p, Skip))
    step, memory = errors(done, step_error), errors(done, peak_error)
    left_out = judged(step_residuals(step)), judged(memory_residuals(memory))
    inside = {(quantity, j.residual.id): j.where == 0 for quantity, found in zip(QUANTITIES, left_out, strict=True) for j in found}
    return ValidationReport(
        table=table.path,
        rows=[row(p, inside) for p in made],
        predicted=len(done),
        skipped=[SkippedCount(reason=reason, count=count) for reason, count in skips.most_common()],
        problems=list(table.problems),
        step=groups(step, ("all", "class", "source", "framework")),
        memory=groups(memory, ("all", "class", "kind", "source", "framework")),
        dense_source_mean=dense_source_mean(step),
        one_sided=one_sided(done),
        out_of_memory=out_of_memory(done),
        coverage=[c for quantity, found in zip(QUANTITIES, left_out, strict=True) for c in coverage(quantity, found)],
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


def row(made: Prediction | Skip, inside: Mapping[tuple[Quantity, str], bool]) -> ValidatedRow:
    """Return the JSON of one row. `inside`: (quantity, id) -> whether the measurement lies in the other sources' interval."""
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
        run_class=made.run_class,
        memory_class=made.memory_class,
        step_interval_80_seconds=made.step_interval_seconds,
        peak_interval_80_bytes=made.peak_interval_bytes,
        fit_probability=made.fit_probability,
        step_in_left_out_interval=inside.get(("step", made.spec.run.id)),
        peak_in_left_out_interval=inside.get(("memory", made.spec.run.id)),
    )
