"""Bands: the shipped file is what the run table gives, intervals hold as often as they say, verdicts agree with probabilities."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Framework, Training
from hardware.calibration import FOLDER, Quantiles
from hardware.cluster import parse_cluster
from planner.bands import (
    KINDS,
    MEMORY_CLASSES,
    ROUNDING,
    RUN_CLASSES,
    Band,
    between_layouts,
    fit_band,
    memory_band,
    memory_class,
    run_class,
    step_band,
)
from planner.case import Case
from planner.evaluate import fitting, plan, totals
from planner.ranking import leaders
from planner.runs import TableError
from planner.validate import Predicted, bands_text, predicted, report_of
from planner.validate_bands import PROBABILITIES, Residual, band_of, coverage, derive, judged, layout_residuals, quantiles, weights
from planner.validate_write import error_bands, error_text
from tests.planner.handmade import make_plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ended

TABLE = Path(__file__).resolve().parent.parent / "published" / "runs.csv"
ALL = [*(step_band(c) for c in RUN_CLASSES), *(memory_band(c, k) for c in MEMORY_CLASSES for k in KINDS)]
ALL += [*(fit_band(c) for c in MEMORY_CLASSES), between_layouts()]
ratios = st.floats(0.01, 100.0)
parts = st.floats(1e-6, 1.0 - 1e-6)
bands = st.sampled_from(ALL)


@cache
def table() -> Predicted:
    return predicted(TABLE)


def test_shipped_file_is_what_the_table_gives() -> None:
    """`planner validate tests/published/runs.csv --bands hardware/measured/error.toml --force` makes it."""
    shipped = tomllib.loads((FOLDER / "error.toml").read_text(encoding="utf-8"))
    made = tomllib.loads(bands_text(table()))
    assert made["bands"].keys() == shipped["bands"].keys()
    for name, band in made["bands"].items():
        values = band.pop("values"), shipped["bands"][name].pop("values")
        assert values[0] == pytest.approx(values[1], rel=2e-4), name
        assert band == shipped["bands"][name], name
    assert made["sentence"] == shipped["sentence"] and shipped["date"] >= "2026-11-30"


def test_every_class_has_a_band_with_its_origin() -> None:
    for band in ALL:
        assert band.stated.probabilities == PROBABILITIES
        assert band.stated.origin and band.stated.rows and band.stated.meaning


@given(bands, parts)
def test_ratio_and_probability_are_inverse(band: Band, part: float) -> None:
    assert float(band.probability(band.ratio(part))) == pytest.approx(part, rel=1e-6, abs=1e-9)


@given(bands, ratios, ratios)
def test_probability_rises_with_the_room(band: Band, one: float, other: float) -> None:
    """So it falls as the predicted bytes rise against a fixed capacity."""
    low, high = sorted((one, other))
    below, above = band.probability(low), band.probability(high)
    assert 0.0 <= below <= above <= 1.0
    if high > low * 1.001 and above > 1e-9 and below < 1.0 - 1e-9:
        assert below < above


@given(bands, st.lists(ratios, min_size=1, max_size=20))
def test_a_batch_is_its_single_ones(band: Band, given_ratios: list[float]) -> None:
    batch = band.probability(np.asarray(given_ratios))
    assert [float(p) for p in batch] == [float(band.probability(r)) for r in given_ratios]


@given(bands, st.floats(1e9, 1e12), st.floats(0.5, 0.999))
def test_what_stays_within_the_limit_is_as_probable_as_asked(band: Band, capacity: float, confidence: float) -> None:
    limit = band.limit(capacity, confidence)
    assert 0.0 < limit <= capacity
    assert float(band.probability(capacity / limit)) >= confidence


@given(bands, st.floats(0.1, 0.98), st.floats(0.1, 0.98))
def test_a_wider_interval_holds_a_narrower_one(band: Band, one: float, other: float) -> None:
    narrow, wide = (band.interval(7.0, level) for level in sorted((one, other)))
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    low, high = band.interval(7.0, one)
    assert float(band.probability(high / 7.0) - band.probability(low / 7.0)) == pytest.approx(one)


@pytest.mark.parametrize("part", [0.0, 1.0, -0.1, math.nan])
def test_certainty_has_no_ratio(part: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        step_band("tuned").ratio(part)


@pytest.mark.parametrize(
    ("probabilities", "values"),
    [((0.1, 0.5), (1.0, 1.0)), ((0.5, 0.1), (1.0, 2.0)), ((0.0, 0.5), (1.0, 2.0)), ((0.1, 0.5), (0.0, 1.0)), ((0.1, 0.5), (1.0, 2.0, 3.0))],
)
def test_a_band_must_ascend(probabilities: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend|probabilities"):
        Quantiles(probabilities=probabilities, values=values, unit="1", meaning="m", origin="o")


def test_classes() -> None:
    dense, experts = load("llama-3.1-8b"), load("mixtral-8x7b")
    full, lora = Training(), Training(method="qlora")
    assert run_class(dense, full) == "tuned" and run_class(dense, Training(framework="hf")) == "user"
    assert run_class(experts, full) == "moe" and run_class(experts, lora) == "lora" == run_class(dense, lora)
    assert run_class(dense, Training(method="inference")) == "unknown"
    assert memory_class(dense, full) == "megatron" and memory_class(dense, Training(framework="torchtitan")) == "other"
    assert memory_class(experts, full) == "moe" and memory_class(dense, lora) == "lora"
    assert memory_class(experts, Training(method="inference")) == "unknown"


def test_unknown_software_adds_time() -> None:
    """Run-table notes: measured / predicted of user-run stacks is 1.05 / 1.24 / 1.80 at 10 / 50 / 90 %."""
    low, middle, high = (step_band("unknown").ratio(p) for p in (0.1, 0.5, 0.9))
    assert 0.9 < low < 1.15 and 1.1 < middle < 1.4 and 1.5 < high < 2.6
    assert middle > step_band("tuned").ratio(0.5)


def rows(source: str, logs: list[float], of: str = "tuned", repeats: int = 1) -> list[Residual]:
    return [Residual(f"{source}{i}", source, i // repeats, of, None, log) for i, log in enumerate(logs)]  # type: ignore[arg-type]


def test_weights_count_a_configuration_once_and_a_source_by_its_square_root() -> None:
    members = [*rows("large", [0.0] * 100), *rows("small", [0.0] * 4), *rows("repeats", [0.0] * 100, repeats=25)]
    found = weights(members)
    assert float(found[:100].sum()) == pytest.approx(10.0)
    assert float(found[100:104].sum()) == pytest.approx(2.0) == pytest.approx(float(found[104:].sum()))


def test_weighted_quantiles_of_equal_weights() -> None:
    values = np.asarray([3.0, 1.0, 2.0, 4.0])
    assert list(quantiles(values, np.ones(4), (0.125, 0.5, 0.875))) == [1.0, 2.5, 4.0]
    heavy = quantiles(values, np.asarray([1.0, 1.0, 1.0, 1e9]), (0.5,))
    assert heavy[0] == pytest.approx(4.0)


def test_a_band_of_alike_sources_is_their_distribution() -> None:
    """Sources drawn from one distribution: the interval is its own, and holds 80 % of the rows of each when that is left out."""
    draw = np.random.default_rng(7)
    members = [r for s in "abcdef" for r in rows(s, list(draw.normal(0.02, 0.1, 200)))]
    band = derive(members, "tuned", None)
    assert band.ratio(0.1) == pytest.approx(math.exp(0.02 - 0.128), abs=0.02)
    assert band.ratio(0.9) == pytest.approx(math.exp(0.02 + 0.128), abs=0.02)
    (everything, of_class) = coverage("step", judged(members))
    assert (everything.name, of_class.name) == ("all", "tuned") and everything.count == 1200
    assert 0.77 < everything.inside < 0.83 and everything.inside + everything.below + everything.above == pytest.approx(1.0)


def test_sources_that_differ_widen_the_band() -> None:
    """Each source is precise and biased its own way: the band must reach from one to the other."""
    draw = np.random.default_rng(7)
    biases = {"a": -0.3, "b": -0.1, "c": 0.0, "d": 0.15, "e": 0.3}
    members = [r for s, bias in biases.items() for r in rows(s, list(draw.normal(bias, 0.01, 50)))]
    band = derive(members, "tuned", None)
    assert band.ratio(0.1) < math.exp(-0.29) and band.ratio(0.9) > math.exp(0.29)


def test_few_sources_share_a_wider_pool() -> None:
    members = [*rows("a", [0.5] * 30, of="moe"), *rows("b", [0.5] * 30, of="moe"), *(r for s in "cde" for r in rows(s, [0.0, 0.1] * 20))]
    assert "all rows" in derive(members, "moe", None).stated.rows
    assert "class tuned: 120 of 3 sources" in derive(members, "tuned", None).stated.rows


def test_a_borrowed_band_is_not_narrowed_and_holds_what_the_class_has_shown() -> None:
    """Sharp sources of other classes say little about a class of too few sources: their rows' spread stays, its own widens it."""
    sharp = [r for s in "cde" for r in rows(s, [-0.02, 0.0, 0.02] * 20)]
    few = derive([*sharp, *rows("a", [0.0] * 5, of="moe")], "moe", None)
    assert few.ratio(0.9) == pytest.approx(math.exp(0.02), abs=1e-3)
    shown = derive([*sharp, *rows("a", [-0.2, 0.0, 0.3] * 20, of="moe")], "moe", None)
    assert shown.ratio(0.1) < math.exp(-0.15) and shown.ratio(0.9) > math.exp(0.25)


def test_left_out_source_has_no_say() -> None:
    """The interval of a row is the same whatever its own source measured."""
    others = [r for s in "abcd" for r in rows(s, [0.0, 0.05, -0.05] * 10)]
    for far in (0.0, 5.0):
        (own,) = [j for j in judged([*others, *rows("own", [far])]) if j.residual.source == "own"]
        assert (own.low, own.high) == (band_of(others, "", "", "").interval(1.0))
        assert own.where == (1 if far else 0)


def test_intervals_hold_four_of_five_rows_of_left_out_sources() -> None:
    """75 to 85 % of all rows, judged with the row's own source left out of whatever set the interval. Of a class of few sources one
    carries most rows (vTrain half of `user`, Megatron's tests 70 % of the MoE peaks): there the share strays further."""
    found = report_of(table())
    inside = {(c.quantity, c.name): c.inside for c in found.coverage if c.kind is None}
    assert 0.75 <= inside["step", "all"] <= 0.85 and 0.75 <= inside["memory", "all"] <= 0.85
    for (quantity, name), share in inside.items():
        assert 0.6 <= share <= 0.95, (quantity, name, share)


def test_rows_carry_their_intervals() -> None:
    found = report_of(table())
    judged_rows = [r for r in found.rows if r.step_in_left_out_interval is not None]
    (everything,) = [c for c in found.coverage if (c.quantity, c.name) == ("step", "all")]
    assert len(judged_rows) == everything.count
    assert sum(bool(r.step_in_left_out_interval) for r in judged_rows) / len(judged_rows) == pytest.approx(everything.inside)
    for row in found.rows:
        if row.status == "ok":
            assert row.run_class in RUN_CLASSES and row.memory_class in MEMORY_CLASSES
            assert row.fit_probability is not None and 0.0 <= row.fit_probability <= 1.0
            low, high = row.peak_interval_80_bytes or (0.0, 0.0)
            assert 0.0 < low < high
            assert (row.step_interval_80_seconds is None) == (row.predicted_step_seconds is None)


def test_leaders_are_those_within_the_error() -> None:
    spread = between_layouts().ratio(0.9) - 1.0
    assert 0.0 < spread < 0.4
    times = [10.0, 10.0 * (1.0 + 0.5 * spread), 10.0 * (1.0 + 0.99 * spread), 10.0 * (1.0 + 1.01 * spread), 10.0]
    plans = [make_plan(step_seconds=s, scale=scale) for s, scale in zip(times, (1.0, 0.9, 0.8, 0.1, 0.1), strict=True)]
    found = leaders(plans)
    assert (found.count, found.least_memory, found.spread_fraction) == (3, 3, pytest.approx(spread))
    assert leaders(plans[:1]).count == 1 and leaders([plans[0], plans[3]]).count == 1


def test_the_spread_between_layouts_is_not_the_absolute_error() -> None:
    """Errors that the layouts of a group share cancel: a source that is 50 % off on all of them has no spread."""
    biased = {("s", f"group {g}"): {f"layout {i}": [(1.5 * (1.0 + 0.05 * i), 1.0 + 0.05 * i)] for i in range(5)} for g in range(3)}
    assert all(abs(r.log) < 1e-12 for r in layout_residuals(biased, 3))
    assert len(layout_residuals(biased, 3)) == 3 * 2 * 4 and not layout_residuals(biased, 6)
    far = {("s", "group"): {"best": [(1.0, 1.0)], "near": [(1.3, 1.2)], "far": [(9.0, 1.3)]}}
    assert sorted(round(math.exp(r.log), 6) for r in layout_residuals(far, 3)) == [round(1.2 / 1.3, 6), round(1.3 / 1.2, 6)]


@pytest.mark.parametrize("framework", ["megatron", "fsdp", "deepspeed"])
@pytest.mark.parametrize("asked", [{}, {"confidence": 0.5}, {"confidence": 0.999}])
def test_verdicts_agree_with_probabilities_and_a_batch_with_its_single_plans(framework: Framework, asked: dict[str, float]) -> None:
    training = Training(seq=4096, global_batch=512, framework=framework)
    case = Case(architecture=load("llama-3.1-8b"), training=training, pool=parse_cluster("8xA100-80G").pools[0], **asked)
    micro = np.arange(1.0, 33.0).reshape(-1, 1)
    same = {f.name: f.default + 0.0 * micro for f in fields(Degrees)}
    spread = Degrees(**{**same, "dp": 8.0 + 0.0 * micro, "micro_batch": micro})
    zero = {"megatron": 1, "fsdp": 3, "deepspeed": 2}[framework]
    batch = Layout(degrees=spread, choices=Choices(zero=zero, recompute="full"))  # type: ignore[arg-type]
    fits = fitting(case, totals(case, batch))
    plans = [plan(case, batch.row(i)) for i in range(batch.size)]
    assert [p.fits for p in plans] == list(fits)
    assert {p.verdict for p in plans} >= ({"fits", "no"} if case.confidence < 0.99 else {"no"})
    for p in plans:
        if p.verdict == "fits":
            assert p.fit_probability >= case.confidence
        elif p.verdict == "no":
            assert p.fit_probability <= 0.5
        else:
            assert 0.5 <= p.fit_probability < case.confidence
    needs = sorted((float(p.cost.memory.peak_device_bytes), p.fit_probability) for p in plans)
    assert all(a[1] >= b[1] for a, b in pairwise(needs))


def test_a_margin_replaces_the_confidence() -> None:
    case = Case(architecture=load("llama-3.1-8b"), training=Training(), pool=parse_cluster("8xA100-80G").pools[0], margin=0.0)
    assert case.limit_bytes == case.pool.capacity_bytes
    assert replace(case, margin=None).limit_bytes == memory_limit(case, 0.95)


def memory_limit(case: Case, confidence: float) -> float:
    """Capacity over the quantile of what must fit, by the definition."""
    return case.pool.capacity_bytes / fit_band("megatron").ratio(confidence) * (1.0 - ROUNDING)


def test_what_cannot_be_offloaded_does_not_fit() -> None:
    """A plan whose server lacks memory is `no` with probability 0, however empty the card."""
    pool = parse_cluster("8xA100-80G").pools[0]
    small = pool.model_copy(update={"node": pool.node.model_copy(update={"host_memory_bytes": 1e9})})
    case = Case(architecture=load("llama-3.1-8b"), training=Training(framework="deepspeed"), pool=small)
    made = plan(case, Layout(degrees=Degrees(dp=8.0), choices=Choices(zero=2, offload="optimizer")))
    assert (made.verdict, made.fit_probability) == ("no", 0.0)


def test_out_of_memory_rows_are_caught_and_what_ran_is_not_refused() -> None:
    """Issue: at least 92 % of the rows that ran out of memory are not called `fits`, at most 2 % of those that ran are called `no`."""
    found = report_of(table()).out_of_memory
    assert found.caught_share is not None and found.caught_share >= 0.92
    assert found.called_no_share is not None and found.called_no_share <= 0.02
    assert sorted(m.id for m in found.misses) == sorted([*found.missed, *found.wrong])
    assert all(m.reason and m.bucket and m.predicted_device_bytes > 0.0 for m in found.misses)


def test_a_table_without_measurements_gives_no_bands(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id,source,layers,hidden,heads,seq_len,gpu,num_gpus,tp,pp,micro_batch\na,s,24,2048,16,2048,A100-80G,8,1,1,2\n")
    with pytest.raises(TableError, match="no step times and no peaks and no groups of layouts"):
        bands_text(predicted(path))


def test_the_file_reads_back() -> None:
    import datetime

    made = error_bands(table().done, "runs.csv")
    text = error_text(made, datetime.date(2026, 11, 30))
    back = tomllib.loads(text)
    assert {name: Quantiles(**band) for name, band in back["bands"].items()} == made
    assert json.dumps(back["sentence"])


def test_command_writes_whole_and_never_over(tmp_path: Path, run_planner: Callable[..., Ended]) -> None:
    path = tmp_path / "error.toml"
    ended = run_planner("validate", f"{TABLE}", "--json", "--bands", f"{path}")
    assert ended.exit_code == 0 and tomllib.loads(path.read_text(encoding="utf-8"))["bands"]
    before = path.read_bytes()
    ended = run_planner("validate", f"{TABLE}", "--bands", f"{path}")
    assert ended.exit_code == 1 and "exists; --force replaces it" in ended.err and path.read_bytes() == before
