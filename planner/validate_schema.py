"""The JSON of `planner validate`. Errors are fractions of the measured value (0.05 = 5 %), signed where called bias."""

from __future__ import annotations

from typing import Literal

from planner.schema import SCHEMA_VERSION, Record


class ValidatedRow(Record):
    """One row of the run table."""

    id: str
    status: Literal["ok", "skipped"]
    reason: str | None = None
    """Why the row was skipped."""
    predicted_step_seconds: float | None = None
    """One optimizer step; null where the row states no global batch."""
    predicted_peak_allocated_bytes: float | None = None
    """What torch calls max_memory_allocated, of the stage that the row logs."""
    predicted_peak_reserved_bytes: float | None = None
    predicted_peak_device_bytes: float | None = None
    """What nvidia-smi shows."""
    fits: bool | None = None
    """True for the verdict `fits` alone."""
    verdict: Literal["fits", "tight", "no"] | None = None
    """Of the worst stage."""
    assumed: list[str] = []
    """Fields that the row does not state and that had to be assumed."""
    assumed_values: dict[str, str] = {}
    """Field -> what was assumed, and why."""
    measured_step_seconds: float | None = None
    measured_peak_bytes: float | None = None
    measured_peak_kind: str | None = None
    step_error: float | None = None
    """Predicted / measured - 1, where both are known and may be compared."""
    peak_error: float | None = None
    """The same against the prediction of the kind of memory that the row states."""
    oom: bool = False
    """The row ran out of memory."""
    run_class: str | None = None
    """Whose errors of step time the row shares: as stated, else by model, method and framework."""
    memory_class: str | None = None
    """Whose errors of peak memory it shares."""
    step_interval_80_seconds: tuple[float, float] | None = None
    """Where the step time lies with 80 % probability, by the shipped bands."""
    peak_interval_80_bytes: tuple[float, float] | None = None
    """The same of the peak, of the kind that the row states (of the device where it states none)."""
    fit_probability: float | None = None
    """Probability that the worst stage fits."""
    step_in_left_out_interval: bool | None = None
    """Whether the measured step time lies in the interval that the other sources alone give."""
    peak_in_left_out_interval: bool | None = None


class ErrorGroup(Record):
    """Errors of one group of rows."""

    by: Literal["all", "class", "source", "framework", "kind"]
    name: str
    count: int
    median: float
    """Median absolute error."""
    p90: float
    """90th percentile of the absolute error."""
    mean: float
    """Mean absolute error."""
    bias: float
    """Median signed error."""


class OneSided(Record):
    """Rows of trust C: hints, not measurements to be met."""

    quantity: Literal["step", "memory"]
    source: str
    count: int
    bias: float
    below: float
    """Part of the rows whose prediction lies below the printed value."""


class Misjudged(Record):
    """A verdict that what happened contradicts."""

    id: str
    verdict: Literal["fits", "no"]
    predicted_device_bytes: float
    capacity_bytes: float
    fit_probability: float
    stage: int
    phase: str
    bucket: str
    """Largest bucket of the fullest stage at its fullest phase."""
    reason: str
    """What the verdict rests on, in a sentence."""


class Coverage(Record):
    """How often intervals hold, each row judged with its own source left out of what sets its interval."""

    quantity: Literal["step", "memory"]
    name: str
    """Class (`all`: of the quantity)."""
    kind: Literal["allocated", "device"] | None = None
    """Kind of peak; null: step time, or both kinds."""
    count: int
    inside: float
    """Part of the rows within the 80 % interval."""
    below: float
    above: float
    """Measured more than the interval says."""
    low: float
    high: float
    """Median ends of those intervals, measured / predicted."""
    median: float
    """Median absolute error once predictions are corrected by the other sources' median alone (leave one source out)."""
    p90: float


class OutOfMemory(Record):
    """Verdicts against what happened."""

    oom_rows: int
    caught: int
    """Rows that ran out of memory and are not called `fits`."""
    caught_share: float | None
    missed: list[str]
    """Ids of the others."""
    misses: list[Misjudged]
    """The rows of `missed` and `wrong`, each with what the verdict rests on."""
    ran_rows: int
    """Rows with a measured peak or step that ran."""
    called_no: int
    called_no_share: float | None
    wrong: list[str]
    """Ids of rows that ran and are called `no`."""
    near_full: int
    """Rows left out of the memory errors because reserved or device memory above 92 % of the card only says that it fits."""
    near_full_called_no: int


class RegretGroup(Record):
    """Rows that differ only in layout."""

    name: str
    rows: int
    regret: float
    """How much slower the predicted best is than the measured best."""
    tau: float
    """Kendall's tau-b between predicted and measured step times."""
    random: float
    """Expected regret of a random pick."""


class Regret(Record):
    """How good the ranking is."""

    groups: list[RegretGroup]
    median: float | None
    mean: float | None
    p90: float | None
    mean_tau: float | None
    random_mean: float | None


class Calibrated(Record):
    """Step-time errors with one factor per (source, GPU), learnt from the other rows of the pair."""

    name: str
    """Class."""
    count: int
    median: float
    p90: float


class SkippedCount(Record):
    """Rows skipped for one reason."""

    reason: str
    count: int


class ValidationReport(Record):
    """What `planner validate` prints with --json."""

    schema_version: int = SCHEMA_VERSION
    table: str
    """The file."""
    rows: list[ValidatedRow]
    predicted: int
    skipped: list[SkippedCount]
    problems: list[str]
    """Unknown columns and unreadable cells, one line each."""
    step: list[ErrorGroup]
    """Step time, rows of trust A and B; Megatron's golden rows are left out."""
    memory: list[ErrorGroup]
    """Peak memory against the kind and stage that each row states, rows of trust A and B."""
    dense_source_mean: float | None
    """Mean of the medians of step time over the dense sources with at least 8 rows."""
    one_sided: list[OneSided]
    out_of_memory: OutOfMemory
    coverage: list[Coverage]
    regret: Regret
    calibrated: list[Calibrated]
