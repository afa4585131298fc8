"""JSON: the fields that others rely on, the schema made from the models, the page that documents it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.report.documents import estimate_document, search_document
from planner.report.schema_page import DOCUMENTS, json_schema, page
from planner.schema import SCHEMA_VERSION
from tests.planner.handmade import make_miss, make_plan, make_search

Runner = Callable[..., Any]
BUCKETS = ("weights", "gradients", "optimizer", "activations", "logits", "kv_cache", "buffers", "overhead")


def check_plan(plan: dict[str, Any]) -> None:
    """The fields of one plan that the issue names."""
    assert isinstance(plan["model"]["parameters"], int)
    assert plan["verdict"] in ("fits", "tight", "no")
    assert plan["fits"] is (plan["verdict"] == "fits")
    assert {"tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard_group", "sequence_parallel"} <= set(plan["layout"])
    assert {"schedule", "recompute", "recompute_layers", "offload", "micro_batch"} <= set(plan["layout"])
    assert {"method", "seq", "global_batch", "precision", "optimizer", "attention", "framework"} <= set(plan["training"])
    memory = plan["memory"]
    peaks = [memory[f"peak_{kind}_bytes"] for kind in ("allocated", "reserved", "device")]
    assert peaks == sorted(peaks)
    assert memory["capacity_bytes"] > 0
    assert memory["host_bytes_per_node"] >= 0
    assert memory["peak_stage"] in [stage["stage"] for stage in memory["stages"]]
    for stage in memory["stages"]:
        assert set(stage["buckets"]) == {f"{name}_bytes" for name in BUCKETS}
        assert sum(stage["buckets"].values()) == pytest.approx(stage["device_bytes"])
    time = plan["time"]
    assert sum(term["exposed_seconds"] for term in time["terms"]) == pytest.approx(time["step_seconds"])
    assert all(set(term) == {"name", "seconds", "exposed_seconds", "source"} for term in time["terms"])
    assert {"tokens_per_second_per_gpu", "mfu", "hfu"} <= set(time)


def test_search_document_of_plans() -> None:
    made = search_document(make_search(make_plan(tp=4, pp=4, dp=2), make_plan(dp=32)), ("batch",), ("price",), 1)
    document = json.loads(made.model_dump_json())
    assert document["schema_version"] == SCHEMA_VERSION == 1
    assert document["status"] == "found"
    assert document["searched"]["layouts"] == 412608
    assert {"lawful", "feasible"} <= set(document["searched"])
    assert len(document["plans"]) == 1
    assert document["near_misses"] == document["remedies"] == []
    check_plan(document["plans"][0])


def test_search_document_of_misses() -> None:
    document = json.loads(search_document(make_search(), (), (), 5).model_dump_json())
    assert document["status"] == "infeasible"
    (miss,), (remedy,) = document["near_misses"], document["remedies"]
    assert (miss["stage"], miss["bucket"], miss["phase"], miss["where"]) == (0, "optimizer", "backward", "device")
    assert miss["plan"]["fits"] is False
    assert remedy["flags"] == "--method lora"
    check_plan(remedy["plan"])


def test_estimate_document_is_a_plan() -> None:
    plan = make_plan(tp=8, dp=4, verdict="no")
    document = json.loads(estimate_document(plan, (make_miss(plan),), (), ()).model_dump_json())
    assert list(document)[:2] == ["schema_version", "command"]
    assert document["status"] == "infeasible"
    check_plan(document)


def test_real_documents_keep_the_contract(run_planner: Runner) -> None:
    """End to end: an estimate, a search, the lists and a validation."""
    small = ("--model", "llama-3.1-8b", "--cluster", "8xH100-80G", "--framework", "megatron")
    check_plan(json.loads(run_planner("estimate", *small, "--tp", "2", "--pp", "2", "--json").out))
    searched = json.loads(run_planner("search", *small, "--json").out)
    for plan in searched["plans"]:
        check_plan(plan)
    models = json.loads(run_planner("models", "--json").out)["models"]
    assert len(models) == 165
    assert {"id", "aliases", "parameters", "active_parameters"} <= set(models[0])
    (one,) = json.loads(run_planner("models", "30b", "--json").out)["bare_sizes"]
    assert one["id"] == "facebook/opt-30b"
    assert one["could_mean"]
    hardware = json.loads(run_planner("hardware", "--json").out)
    assert (len(hardware["gpus"]), len(hardware["servers"])) == (57, 55)


def test_what_search_prints_estimate_gives_again(run_planner: Runner) -> None:
    """The command under `Next` evaluates to the numbers of plan 1."""
    small = ("--model", "llama-3.1-8b", "--cluster", "8xH100-80G")
    shown = run_planner("search", *small).out
    (line,) = [line for line in shown.splitlines() if "planner estimate" in line]
    again = json.loads(run_planner(*line[line.index("planner ") :].split()[1:], "--json").out)
    best = json.loads(run_planner("search", *small, "--json").out)["plans"][0]
    assert again["layout"] == best["layout"]
    assert again["memory"] == best["memory"]
    assert again["time"] == best["time"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schema_of_each_command_documents_every_field(name: str) -> None:
    schema = json.loads(json_schema(name))
    assert schema["$schema"].startswith("https://json-schema.org/")
    root = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    assert "schema_version" in root["properties"]


def test_schema_of_all_commands_is_one_document(run_planner: Runner) -> None:
    ended = run_planner("schema")
    assert ended.exit_code == 0
    schema = json.loads(ended.out)
    assert len(schema["anyOf"]) == len(DOCUMENTS)


def test_the_documented_page_is_made_from_the_models() -> None:
    """`planner schema --markdown > docs/schema.md` after a change."""
    committed = Path(__file__).resolve().parents[2] / "docs" / "schema.md"
    assert committed.read_text(encoding="utf-8") == page()
