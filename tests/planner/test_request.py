"""Requests: flags over files, nearest names, all problems at once, defaults that are told."""

from __future__ import annotations

from typing import Any

import pytest

from planner.asked import RequestError, make_request, parse_offload
from planner.defaults import MAX_TOKENS, global_batch, odd_part
from planner.request import resolve


def test_flags_win_over_the_file_and_tables_are_flattened() -> None:
    file = {"model": "7b", "cluster": "8xA100-80G", "training": {"seq": 1024, "method": "lora"}, "layout": {"tp": 2, "micro-batch": 4}}
    made = make_request({"seq": 4096, "tp": None}, file)
    assert (made.model, made.seq, made.method, made.tp, made.micro_batch) == ("7b", 4096, "lora", 2, 4)


def test_all_problems_are_told_at_once_with_nearest_names() -> None:
    with pytest.raises(RequestError) as told:
        make_request({"tpp": 2, "zero": 7, "seq": -1, "method": "lroa"})
    text = "\n".join(told.value.lines)
    assert len(told.value.lines) == 4
    assert "tpp" in text
    assert "tp" in text.split("nearest: ")[1]
    for key in ("zero", "seq", "method"):
        assert f"{key}=" in text
    assert all("\n" not in line for line in told.value.lines)


@pytest.mark.parametrize("value", [0, -3, 10**30, float("nan"), "many", True and 1.5])
def test_absurd_degrees_are_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="tp="):
        make_request({"tp": value})


@pytest.mark.parametrize(
    ("words", "fixed"),
    [
        ("auto", {}),
        ("none", {"offload": "none", "activation_offload": 0.0}),
        ("optimizer", {"offload": "optimizer", "activation_offload": 0.0}),
        ("params,optimizer", {"offload": "optimizer+params", "activation_offload": 0.0}),
        ("optimizer:0.5", {"offload": "optimizer", "activation_offload": 0.0, "offload_fraction": 0.5}),
        ("activations:0.25", {"offload": "none", "activation_offload": 0.25}),
        ("optimizer,activations", {"offload": "optimizer", "activation_offload": 1.0}),
    ],
)
def test_offload_words(words: str, fixed: dict[str, Any]) -> None:
    assert parse_offload(words) == fixed


@pytest.mark.parametrize("words", ["", "optimiser", "none,params", "optimizer:2", "optimizer:nan", "params:0.5", "activations:x"])
def test_bad_offload_words_are_refused(words: str) -> None:
    with pytest.raises(RequestError, match="offload="):
        parse_offload(words)


def test_defaults_are_said() -> None:
    found = resolve(make_request({"model": "30b", "cluster": "32xA100-80G"}))
    assert (found.training.seq, found.training.global_batch) == (2048, 512)
    assert any("512" in s for s in found.assumed)
    assert any("2,048" in s for s in found.assumed)
    given = resolve(make_request({"model": "30b", "cluster": "32xA100-80G", "seq": 1024, "global_batch": 64}))
    assert not any("batch" in s or "sequence" in s for s in given.assumed)


def test_short_models_get_a_short_sequence() -> None:
    assert resolve(make_request({"model": "gpt2", "cluster": "1xA100-80G"})).training.seq == 1024


@pytest.mark.parametrize("gpus", [1, 3, 8, 12, 24, 32, 768, 2048, 16384, 24576])
@pytest.mark.parametrize("method", ["full", "lora", "qlora", "inference"])
def test_default_batches_admit_layouts(gpus: int, method: Any) -> None:
    """A multiple of the odd part of the GPUs, so that any power of two of them can be data parallel."""
    batch = global_batch(method, 2048, gpus, {})
    assert batch >= 1
    if method != "inference":
        assert batch % odd_part(gpus) == 0
        assert batch * 2048 <= MAX_TOKENS or batch <= max(64, gpus)
    assert global_batch("full", 2048, 8, {"dp": 3, "micro_batch": 5}) % 15 == 0


def test_unknown_names_are_one_line_each_and_all_told() -> None:
    with pytest.raises(RequestError) as told:
        resolve(make_request({"model": "lama-3.1-8b", "cluster": "8xH1000", "offload": "disk"}))
    assert len(told.value.lines) == 3
    assert any("llama" in line for line in told.value.lines)


def test_missing_model_and_cluster() -> None:
    with pytest.raises(RequestError) as told:
        resolve(make_request({}))
    assert [line.split(":")[0] for line in told.value.lines] == ["no model", "no cluster"]


def test_recompute_is_implied_by_its_layers_and_modules() -> None:
    base = {"model": "7b", "cluster": "8xA100-80G"}
    assert resolve(make_request({**base, "recompute_layers": 4})).fixed["recompute"] == "full"
    assert resolve(make_request({**base, "recompute_modules": ("core_attn",)})).fixed["recompute"] == "selective"


def test_dimensions_stand_for_a_model() -> None:
    sizes = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 32000, "ffn_hidden": 3072}
    found = resolve(make_request({"dimensions": sizes, "cluster": "1xA100-80G"}))
    assert found.architecture.layers == 12


def test_free_memory_reaches_the_pool() -> None:
    found = resolve(make_request({"model": "7b", "cluster": "2xRTX4090", "free_memory": "20GiB"}))
    assert found.cluster.pools[0].capacity_bytes == 20 * 2**30


@pytest.mark.parametrize("date", ["2024", "2024-05", "2024-05-31", "2024-02-29"])
def test_dates_of_software_are_years_months_or_days(date: str) -> None:
    assert make_request({"software_date": date}).software_date == date


@pytest.mark.parametrize("date", ["", "24", "yesterday", "2024-13", "2024-5", "2024-05-3", "20240531", "2023-02-29", "99999", "2024-00"])
def test_other_dates_are_refused_in_words(date: str) -> None:
    with pytest.raises(RequestError, match="give a year, a month or a day") as refused:
        make_request({"software_date": date})
    assert len(refused.value.lines) == 1


def test_a_value_of_several_kinds_is_one_line() -> None:
    """A framework is a name or one of two words; the reader is told once, without the names of types."""
    with pytest.raises(RequestError) as refused:
        make_request({"framework": "pytorch"})
    (line,) = refused.value.lines
    assert line.startswith("framework='pytorch': input should be 'megatron'")
    assert line.endswith("'unknown'")
    assert "literal" not in line
