"""Lengths: files are read exactly, micro-batches are padded as counted by hand, and every way of batching is costed like any other plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Training
from hardware.cluster import parse_cluster
from planner.case import Case
from planner.evaluate import evaluate
from planner.length_study import report
from planner.lengths import Lengths, LengthsError, of_mean, read_lengths

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ended

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "lengths.csv"
histograms = st.dictionaries(st.integers(1, 5000), st.integers(1, 50), min_size=1, max_size=30)


def made(counts: dict[int, int]) -> Lengths:
    tokens = sorted(counts)
    total = sum(counts.values())
    return Lengths(np.asarray(tokens, dtype=np.float64), np.asarray([counts[t] for t in tokens]) / total, total)


def written(tmp_path: Path, text: str, name: str = "lengths.txt") -> Lengths:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_lengths(tmp_path / name)


def case(micro_batch: float = 4.0, seq: int = 4096, **degrees: float) -> tuple[Case, Layout]:
    training = Training(seq=seq, global_batch=128, framework="fsdp")
    found = Case(architecture=load("llama-3.1-8b"), training=training, pool=parse_cluster("8xA100-80G").pools[0])
    spread = Degrees(**{"dp": 8.0, "micro_batch": micro_batch, **degrees})
    return found, Layout(degrees=spread, choices=Choices(zero=3, recompute="full"))


@pytest.mark.parametrize(
    "text",
    [
        "128\n128\n512\n",
        "length,count\n128,2\n512,1\n",
        "# made up\n\n512 1\n128\t2\n",
        "128;2\n512;1",
        "[128, 512, 128]",
        "[[128, 2], [512, 1]]",
        '{"128": 2, "512": 1, "64": 0}',
    ],
)
def test_every_form_says_the_same(tmp_path: Path, text: str) -> None:
    found = written(tmp_path, text)
    assert list(found.tokens) == [128.0, 512.0] and found.samples == 3
    assert list(found.share) == pytest.approx([2 / 3, 1 / 3]) and found.mean == pytest.approx(256.0) and found.longest == 512


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no lengths"),
        ("length\n", "no lengths"),
        ("12\nx\n", "line 2: length 'x'"),
        ("12\n0\n", "line 2: length '0'"),
        ("1.5\n", "line 1"),
        ("-4\n", "line 1"),
        ("nan\n7\nnan\n", "line 3"),
        ("1,2,3\n", "3 values"),
        ("5,-1\n", "count '-1'"),
        ("[1, true]", "item 2"),
        ("[[1, 2, 3]]", "item 1"),
        ("[1", "no valid JSON"),
        ("999999999999\n", "line 1"),
    ],
)
def test_faults_are_one_line_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LengthsError, match=says) as caught:
        written(tmp_path, text)
    assert "\n" not in f"{caught.value}"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match="cannot be read"):
        read_lengths(tmp_path / "absent.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LengthsError, match="no UTF-8 text"):
        read_lengths(tmp_path / "binary")


@given(histograms, st.integers(1, 8))
def test_padded_is_the_longest_of_random_samples(counts: dict[int, int], samples: int) -> None:
    """Against the definition: the mean over all draws, from the distribution function."""
    whole = made(counts)
    found = whole.padded(samples)
    upto = np.cumsum(whole.share)
    upto[-1] = 1.0
    by_hand = sum(t * (b**samples - a**samples) for t, a, b in zip(whole.tokens, [0.0, *upto[:-1]], upto, strict=True))
    assert found.mean == pytest.approx(by_hand, rel=1e-9)
    assert whole.mean - 1e-6 <= found.mean <= whole.longest + 1e-6
    assert float(found.share.sum()) == pytest.approx(1.0)


@given(histograms, st.integers(1, 6000))
def test_truncating_keeps_samples(counts: dict[int, int], limit: int) -> None:
    whole = made(counts)
    cut = whole.truncated(limit)
    total = sum(counts.values())
    assert cut.longest == min(limit, whole.longest)
    assert cut.mean == pytest.approx(sum(min(t, limit) * n for t, n in counts.items()) / total)


@given(histograms)
def test_points_keep_the_mean_and_the_order(counts: dict[int, int]) -> None:
    points = made(counts).points()
    assert float(points.mean()) == pytest.approx(made(counts).mean)
    assert np.all(np.diff(points) >= -1e-6 * points[-1])


def test_percentile() -> None:
    whole = made({100: 90, 200: 9, 300: 1})
    assert [whole.percentile(p) for p in (0.5, 0.9, 0.95, 0.99, 1.0)] == [100, 100, 200, 200, 300]


def test_mean_above_the_longest_is_refused() -> None:
    with pytest.raises(LengthsError, match="exceeds the longest"):
        of_mean(5000, 4096)
    assert of_mean(4096, 4096).mean == of_mean(4096, 4096).longest == 4096


def test_worst_is_the_plan_itself() -> None:
    """The worst micro-batch is padded to the longest sample, which is what the plan was made for."""
    one, layout = case()
    found = report(one, layout, read_lengths(EXAMPLE))
    whole = evaluate(one, layout)
    assert found.worst.seq == 4096
    assert found.worst.peak_device_bytes == float(whole.memory.peak_device_bytes)
    assert found.worst.step_seconds == float(whole.time.step_seconds)
    assert found.typical.seq < 1024 and found.typical.step_seconds < found.worst.step_seconds
    assert found.typical.peak_device_bytes < found.worst.peak_device_bytes
    assert found.padding_fraction is not None and 0.3 < found.padding_fraction < 0.7


def test_options_save_what_they_say() -> None:
    one, layout = case()
    found = report(one, layout, read_lengths(EXAMPLE))
    options = {(o.name, o.at_tokens): o for o in found.options}
    assert [name for name, _ in options] == ["truncate", "truncate", "bucket", "pack"]
    for o in options.values():
        assert o.saved_bytes == found.worst.peak_device_bytes - o.worst.peak_device_bytes >= 0.0
        assert o.saved_time_fraction == pytest.approx(1.0 - o.typical.step_seconds / found.typical.step_seconds)
    cuts = [o for o in found.options if o.name == "truncate"]
    assert cuts[0].at_tokens > cuts[1].at_tokens and cuts[0].saved_bytes < cuts[1].saved_bytes
    assert 0.0 < cuts[0].lost_tokens_fraction < cuts[1].lost_tokens_fraction < 0.2
    bucket, pack = found.options[2:]
    assert bucket.saved_time_fraction > 0.2 and pack.saved_time_fraction > 0.2
    assert bucket.saved_bytes == pack.saved_bytes == 0.0 == bucket.lost_tokens_fraction


def test_equal_samples_leave_nothing_to_save() -> None:
    one, layout = case()
    found = report(one, layout, made({4096: 7}))
    assert found.typical == found.worst and found.options == () and found.padding_fraction == 0.0


def test_samples_beyond_the_sequence_are_cut_there() -> None:
    one, layout = case(seq=2048)
    found = report(one, layout, made({1024: 1, 8192: 1}))
    assert found.lengths.longest == found.worst.seq == 2048


def test_a_mean_alone_claims_no_padding() -> None:
    one, layout = case()
    found = report(one, layout, of_mean(300, 4096))
    assert found.padding_fraction is None and found.typical.seq == 304 and found.worst.seq == 4096
    assert [o.name for o in found.options] == ["pack"]


def test_packing_a_batch_of_one_length_is_the_plan() -> None:
    """Packs of k samples of seq / k tokens: the step of a global batch k times smaller."""
    one, layout = case(micro_batch=1.0)
    found = report(one, layout, made({2048: 10**6, 4096: 1}))
    (pack,) = [o for o in found.options if o.name == "pack"]
    half = evaluate(replace(one, training=one.training.model_copy(update={"global_batch": 64})), layout)
    assert pack.typical.step_seconds == pytest.approx(float(half.time.step_seconds), rel=0.15)


def test_tensor_groups_pad_to_their_multiple() -> None:
    one, layout = case(tp=4.0, dp=2.0)
    found = report(one, layout, of_mean(300, 4096))
    assert found.typical.seq == 320


def test_estimate_and_search_tell_of_lengths(run_planner: Callable[..., Ended]) -> None:
    """The plan is made for the longest sample; JSON and text hold the typical and the worst step."""
    words = ("--model", "llama-3.1-8b", "--cluster", "8xA100-80G", "--global-batch", "128", "--lengths", "examples/lengths.csv")
    ended = run_planner("estimate", *words, "--zero", "3", "--recompute", "full", "--micro-batch", "4", "--json")
    found = json.loads(ended.out)
    assert found["training"]["seq"] == found["lengths"]["worst"]["seq"] == found["lengths"]["longest_tokens"] == 4096
    assert found["lengths"]["worst"]["peak_device_bytes"] == found["memory"]["peak_device_bytes"]
    assert found["lengths"]["worst"]["step_seconds"] == found["time"]["step_seconds"]
    assert found["lengths"]["samples"] == read_lengths(EXAMPLE).samples
    assert [o["name"] for o in found["lengths"]["options"]] == ["truncate", "truncate", "bucket", "pack"]
    text = run_planner("search", *words, "--tp", "1", "--pp", "1", "--framework", "fsdp").out
    assert "packed end to end into 4,096" in text and "padded to their longest sample" in text


def test_without_lengths_there_are_none(run_planner: Callable[..., Ended]) -> None:
    ended = run_planner("estimate", "--model", "llama-3.1-8b", "--cluster", "8xA100-80G", "--json")
    assert json.loads(ended.out)["lengths"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--lengths", "absent.csv"), "absent.csv cannot be read"),
        (("--mean-seq", "9000", "--seq", "4096"), "mean_seq=9,000 exceeds the longest sample"),
        (("--mean-seq", "300", "--lengths", "examples/lengths.csv"), "give one of the two"),
        (("--mean-seq", "x"), "mean_seq"),
    ],
)
def test_wrong_lengths_are_one_line_and_exit_2(words: tuple[str, ...], says: str, run_planner: Callable[..., Ended]) -> None:
    ended = run_planner("estimate", "--model", "llama-3.1-8b", "--cluster", "8xA100-80G", *words)
    assert ended.exit_code == 2 and says in ended.err and ended.err.count("\n") == 1
