"""`validate`: every row predicted or skipped, errors against what each row states, and statistics that a person can redo."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from planner.runs import TableError
from planner.validate import validate
from planner.validate_predict import logged
from planner.validate_regret import kendall_tau

if TYPE_CHECKING:
    from planner.validate_schema import ErrorGroup, ValidationReport

TABLE = Path(__file__).resolve().parent.parent / "published" / "runs.csv"
HEAD = "id,source,layers,hidden,heads,seq_len,gpu,num_gpus,tp,pp,micro_batch,global_batch"


@cache
def report() -> ValidationReport:
    return validate(TABLE)


def small(tmp_path: Path, rows: list[str], extra: str = "") -> ValidationReport:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([HEAD + extra, *rows]) + "\n", encoding="utf-8")
    return validate(path)


def group(groups: list[ErrorGroup], by: str, name: str) -> ErrorGroup:
    (found,) = [g for g in groups if g.by == by and g.name == name]
    return found


def test_all_rows_in_order() -> None:
    """1,814 rows in the table's order, each predicted or skipped with a reason."""
    rows = report().rows
    assert len(rows) == 1814 and rows[0].id == TABLE.read_text(encoding="utf-8").split("\n")[1].split(",")[0]
    assert report().predicted == sum(row.status == "ok" for row in rows) == 1542
    assert sum(s.count for s in report().skipped) == 1814 - 1542
    for row in rows:
        if row.status == "skipped":
            assert row.reason and row.predicted_peak_device_bytes is None and row.verdict is None
        else:
            assert row.reason is None and row.fits == (row.verdict == "fits")


def test_predictions_are_ordered_and_finite() -> None:
    """allocated ≤ reserved ≤ device, all positive; a step time where the row states a global batch."""
    for row in report().rows:
        if row.status == "ok":
            allocated, reserved = row.predicted_peak_allocated_bytes, row.predicted_peak_reserved_bytes
            device = row.predicted_peak_device_bytes
            assert allocated is not None and reserved is not None and device is not None
            assert 0.0 < allocated <= reserved <= device < 1e15, row.id
            assert row.predicted_step_seconds is None or 0.0 < row.predicted_step_seconds < 1e7, row.id
            assert (row.predicted_step_seconds is None) == ("global_batch" in row.assumed and not row.id.startswith("gold")), row.id


def test_errors_are_those_of_the_rows() -> None:
    """The statistics are those of the rows' own errors, over trust A and B."""
    trust = {line.split(",")[0]: line for line in TABLE.read_text(encoding="utf-8").split("\n")[1:]}
    assert len(trust) >= 1814
    step = [row.step_error for row in report().rows if row.step_error is not None]
    everything = group(report().step, "all", "all")
    aside = sum(o.count for o in report().one_sided if o.quantity == "step")
    assert everything.count + aside == len(step)
    kinds = [g for g in report().memory if g.by == "kind"]
    assert sum(g.count for g in kinds) == group(report().memory, "all", "all").count
    assert {g.name for g in kinds} == {"allocated", "reserved", "nvidia-smi"}
    assert {g.name for g in report().step if g.by == "class"} == {"tuned", "user", "moe", "lora"}


def test_golden_rows_count_for_memory_alone() -> None:
    """Megatron's golden rows have no step error, and their memory is of the last stage."""
    golden = [row for row in report().rows if row.id.startswith("gold-")]
    assert all(row.step_error is None for row in golden)
    assert sum(row.peak_error is not None for row in golden) > 270
    assert not any("golden" in g.name for g in report().step)


def test_oom_rows_have_no_errors() -> None:
    """What ran out of memory has neither step nor peak, and is judged by its verdict."""
    failed = [row for row in report().rows if row.oom and row.status == "ok"]
    assert all(row.step_error is None and row.peak_error is None for row in failed)
    o = report().out_of_memory
    assert o.oom_rows == 33 and o.caught + len(o.missed) == 33
    assert o.called_no == len(o.wrong) and o.caught_share == o.caught / 33


def test_error_is_signed_and_relative(tmp_path: Path) -> None:
    """Predicted / measured - 1, for the kind of memory that the row states."""
    row = "a,s,24,2048,16,2048,A100-80G,8,1,1,2,64"
    plain = small(tmp_path, [row]).rows[0]
    assert plain.step_error is None and plain.peak_error is None
    assert plain.predicted_step_seconds is not None and plain.predicted_peak_allocated_bytes is not None
    cells = f",{plain.predicted_step_seconds / 1.25!r},{plain.predicted_peak_allocated_bytes / 2**30 / 0.8!r},allocated"
    against = small(tmp_path, [row + cells], ",step_time_s,peak_memory_gib,peak_memory_kind").rows[0]
    assert against.step_error == pytest.approx(0.25) and against.peak_error == pytest.approx(-0.2)


def test_kind_of_memory_is_respected(tmp_path: Path) -> None:
    """Each kind is compared with its own prediction; a nearly full card is left out for reserved and device memory."""
    row = "{0},s,24,2048,16,2048,A100-80G,8,1,1,2,64,{1},{2}"
    rows = [row.format(i, g, k) for i, (g, k) in enumerate([(20, "allocated"), (20, "reserved"), (20, "nvidia-smi"), (20, "unknown")])]
    rows += [row.format(4, 75, "reserved"), row.format(5, 75, "allocated")]
    found = small(tmp_path, rows, ",peak_memory_gib,peak_memory_kind").rows
    first = found[0]
    predicted = (first.predicted_peak_allocated_bytes, first.predicted_peak_reserved_bytes, first.predicted_peak_device_bytes)
    expected = [p / (20 * 2**30) - 1.0 for p in predicted if p is not None]
    assert [r.peak_error for r in found[:3]] == expected and found[3].peak_error == expected[1]
    assert found[4].peak_error is None and found[5].peak_error is not None


def test_logged_stage() -> None:
    """first, last, the higher of both, or all stages."""
    stages = np.asarray([3.0, 5.0, 4.0])
    seen = [list(logged(stages, which)) for which in ("first", "last", "first,last", "worst", "")]
    assert seen == [[3.0], [4.0], [3.0, 4.0], [3.0, 5.0, 4.0], [3.0, 5.0, 4.0]]


def test_logged_stage_of_a_row(tmp_path: Path) -> None:
    """The first stage of a 1F1B pipeline holds more than the last; the verdict is of the worst."""
    row = "{0},s,32,4096,32,4096,A100-80G,8,1,8,1,64,{0}"
    first, last, both, worst = small(tmp_path, [row.format(w) for w in ("first", "last", '"first,last"', "worst")], ",logged_stage").rows
    peaks = [r.predicted_peak_device_bytes or 0.0 for r in (first, last, both, worst)]
    assert peaks[2] == max(peaks[:2]) and peaks[3] >= peaks[2] and peaks[0] != peaks[1]
    assert len({r.verdict for r in (first, last, both, worst)}) == 1


def test_trust_c_is_set_aside(tmp_path: Path) -> None:
    """Rows of trust C are shown apart and enter no statistic."""
    row = "{0},s,24,2048,16,2048,A100-80G,8,1,1,2,64,{1},{2}"
    found = small(tmp_path, [row.format("a", 1.0, "A"), row.format("c", 100.0, "C")], ",step_time_s,trust")
    assert group(found.step, "all", "all").count == 1
    (aside,) = found.one_sided
    assert (aside.count, aside.below) == (1, 1.0)


def test_statistics(tmp_path: Path) -> None:
    """Median, 90th percentile, mean and bias of errors that are known."""
    row = "{0},s,24,2048,16,2048,A100-80G,8,1,1,2,64,{1!r}"
    base = small(tmp_path, ["a,s,24,2048,16,2048,A100-80G,8,1,1,2,64"]).rows[0].predicted_step_seconds
    assert base is not None
    errors = (-0.5, -0.1, 0.1, 0.2, 0.4)
    found = small(tmp_path, [row.format(i, base / (1.0 + e)) for i, e in enumerate(errors)], ",step_time_s")
    g = group(found.step, "all", "all")
    assert (g.median, g.bias, g.mean) == pytest.approx((0.2, 0.1, 0.26)) and g.p90 == pytest.approx(0.46)


def test_factor_is_learnt_from_the_other_rows(tmp_path: Path) -> None:
    """With all rows of a source off by one factor, the corrected errors vanish."""
    sizes = (2, 4, 8)
    rows = [f"{b},s,24,2048,16,2048,A100-80G,8,1,1,{b},64" for b in sizes]
    predicted = [r.predicted_step_seconds for r in small(tmp_path, rows).rows]
    measured = [f"{line},{p * 1.7!r},user" for line, p in zip(rows, predicted, strict=True) if p is not None]
    found = small(tmp_path, measured, ",step_time_s,class")
    (fixed,) = found.calibrated
    assert fixed.count == 3 and fixed.median == pytest.approx(0.0, abs=1e-9)
    assert group(found.step, "all", "all").median == pytest.approx(1.0 - 1.0 / 1.7)


def test_regret_of_known_times(tmp_path: Path) -> None:
    """When the measured times are the predicted ones the regret is 0 and tau 1; when reversed, the worst and -1."""
    rows = [f"{tp},s,24,2048,16,2048,A100-80G,8,{tp},1,2,64,megatron" for tp in (1, 2, 4, 8)]
    predicted = [r.predicted_step_seconds or 0.0 for r in small(tmp_path, rows, ",framework").rows]
    same = small(tmp_path, [f"{line},{p!r}" for line, p in zip(rows, predicted, strict=True)], ",framework,step_time_s").regret
    assert (same.mean, same.mean_tau, len(same.groups)) == (0.0, 1.0, 1)
    order = sorted(predicted)
    mirrored = [order[-1 - order.index(p)] for p in predicted]
    wrong = small(tmp_path, [f"{line},{p!r}" for line, p in zip(rows, mirrored, strict=True)], ",framework,step_time_s").regret
    assert wrong.mean_tau == -1.0 and wrong.mean == pytest.approx(order[-1] / order[0] - 1.0)


def test_regret_needs_three_layouts(tmp_path: Path) -> None:
    """Two layouts, or three rows of one layout, are no group."""
    rows = [f"{i},s,24,2048,16,2048,A100-80G,8,{tp},1,2,64,{i + 1}" for i, tp in enumerate((1, 2, 2))]
    assert small(tmp_path, rows, ",step_time_s").regret.groups == []


@pytest.mark.parametrize(
    ("a", "b", "tau"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        ([1, 1, 2], [1, 2, 3], 2 / (2 * 3) ** 0.5),
        ([1, 1], [1, 2], 0.0),
    ],
)
def test_kendall_tau(a: list[float], b: list[float], tau: float) -> None:
    """Kendall's tau-b of small rankings, worked by hand."""
    assert kendall_tau(np.asarray(a, dtype=float), np.asarray(b, dtype=float)) == pytest.approx(tau)


def test_composed_rows_are_not_ranked() -> None:
    """vTrain's single-node rows are composed: their groups are left out of the ranking."""
    assert all("· 8xA100" not in g.name for g in report().regret.groups if "vTrain" in g.name)
    assert any("vTrain" in g.name for g in report().regret.groups)


def test_json_is_stable_and_finite() -> None:
    """The same table gives the same bytes, version 1, without NaN."""
    text = report().model_dump_json()
    assert text == validate(TABLE).model_dump_json()
    found = json.loads(text)
    assert found["schema_version"] == 1 and "NaN" not in text and "Infinity" not in text
    assert {"id", "status", "reason", "predicted_step_seconds", "fits", "verdict", "assumed"} <= set(found["rows"][0])


def test_a_table_without_measurements(tmp_path: Path) -> None:
    """Rows without measured values are predicted all the same, and there is nothing to compare."""
    found = small(tmp_path, ["a,s,24,2048,16,2048,A100-80G,8,1,1,2,64"])
    assert found.predicted == 1 and found.step == [] and found.memory == [] and found.regret.groups == []
    assert found.dense_source_mean is None and found.out_of_memory.caught_share is None


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """The reader's refusal is passed on."""
    with pytest.raises(TableError, match="cannot be read"):
        validate(tmp_path / "none.csv")


@pytest.mark.parametrize(("of", "most"), [("tuned", 0.13), ("user", 0.14), ("moe", 0.13), ("lora", 0.13)])
def test_runs_that_nothing_was_fitted_to(of: str, most: float) -> None:
    """Every row is predicted; the medians stay where they were seen (0.06 to 0.11), and the memory of the few that state a peak."""
    found = validate(TABLE.with_name("more_runs.csv"))
    assert found.predicted == len(found.rows) == 227
    step = group(found.step, "class", of)
    assert step.median <= most
    memory = group(found.memory, "all", "all")
    assert memory.count >= 30 and memory.median <= 0.05


@pytest.mark.bench
def test_speed() -> None:
    """3,000 rows take seconds: less than 5 ms a row on one core."""
    started = time.process_time()
    made = validate(TABLE)
    assert (time.process_time() - started) / made.predicted < 0.005
