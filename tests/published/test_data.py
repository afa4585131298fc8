"""The published facts are whole and well formed: nothing is lost or mangled on its way into the project."""

from __future__ import annotations

import csv
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RELATIONS = {"=", "≠", ""}
KINDS = {"exact", "estimate", "in kind"}


def read_runs(published: Path, name: str = "runs.csv") -> list[dict[str, str]]:
    with (published / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_figures(published: Path) -> dict[str, Any]:
    return tomllib.loads((published / "figures.toml").read_text(encoding="utf-8"))


def read_cases(published: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (published / "cases.jsonl").read_text(encoding="utf-8").splitlines()]


def read_truth(published: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((published / "truth.json").read_text(encoding="utf-8"))
    return rows


def read_hardware(published: Path, name: str) -> list[dict[str, str]]:
    with (published / "hardware" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_has_the_rows_its_readme_states(published: Path) -> None:
    stated = {
        name: int(rows.replace(",", ""))
        for name, rows in re.findall(r"^\| `([\w./]+)` \| ([\d,]+) \|", (published / "README.md").read_text(encoding="utf-8"), re.M)
    }
    found = {
        "runs.csv": len(read_runs(published)),
        "more_runs.csv": len(read_runs(published, "more_runs.csv")),
        "truth.json": len(read_truth(published)),
        "params.json": len(json.loads((published / "params.json").read_text(encoding="utf-8"))),
        "cases.jsonl": len(read_cases(published)),
        "figures.toml": len(read_figures(published)["figure"]),
        **{f"hardware/{name}": len(read_hardware(published, name)) for name in ("gemm.csv", "collectives.csv")},
    }
    assert found == stated


def test_ids_are_unique_and_every_run_has_a_source(published: Path) -> None:
    runs = [*read_runs(published), *read_runs(published, "more_runs.csv")]
    tables = (runs, read_truth(published), read_cases(published), read_figures(published)["figure"])
    for rows in tables:
        ids = [row["id"] for row in rows]
        assert len(ids) == len(set(ids))
    assert [row["id"] for row in read_runs(published) if not (row["source"] and row["locator"])] == []
    assert [row["id"] for row in read_cases(published) if not row["url"]] == []


def test_traced_models_have_the_parameters_of_the_parameter_table(published: Path) -> None:
    totals = {name: entry[0] for name, entry in json.loads((published / "params.json").read_text(encoding="utf-8")).items()}
    kinds = {name: entry[1] for name, entry in json.loads((published / "params.json").read_text(encoding="utf-8")).items()}
    assert {name: sum(parts.values()) for name, parts in kinds.items()} == totals
    without_adapters = [row for row in read_truth(published) if row["row"] == "saved" and row["label"] is None]
    traced = {(row["model"], row["params_total"]) for row in without_adapters}
    assert traced == {(name, totals[name]) for name in {model for model, _ in traced}}
    assert len(traced) >= 20


def test_figures_are_well_formed(published: Path) -> None:
    data = read_figures(published)
    truth_ids = {row["id"] for row in read_truth(published)}
    for figure in data["figure"]:
        assert figure["group"] in data["groups"], figure["id"]
        assert figure["relation"] in RELATIONS, figure["id"]
        assert figure["kind"] in KINDS, figure["id"]
        assert figure["printed"] or figure["planner_says"], figure["id"]
        assert ("tolerance" in figure) == (figure["kind"] != "in kind"), figure["id"]
        assert figure["setup"].get("truth_row", "truth-0161") in truth_ids, figure["id"]
        if figure["relation"] == "≠":
            assert set(figure["planner"]) == set(figure["stated"]), figure["id"]
            assert figure["planner"] != figure["stated"], figure["id"]
            assert figure["planner_says"], figure["id"]


def test_exact_figures_of_llama_follow_from_its_counts(published: Path) -> None:
    """The arithmetic behind the exact rows, from parameter counts and dimensions alone."""
    figures = {figure["id"]: figure for figure in read_figures(published)["figure"]}
    parameters, layers, hidden, vocab, seq = 8_030_261_248, 32, 4096, 128_256, 2048
    linear, adapters = 6_979_321_856, 41_943_040
    expected = {
        "llama8b-states-16-bytes": {"states_bytes": 16 * parameters, "weights_bytes": 2 * parameters, "master_bytes": 4 * parameters},
        "llama8b-activations-gpt-form": {"activations_bytes": 34 * seq * hidden * layers},
        "llama8b-logits-one-copy": {"logits_bytes": 4 * seq * vocab},
        "llama8b-full-recompute": {"layer_inputs_bytes": 2 * seq * hidden * layers, "one_layer_bytes": 34 * seq * hidden},
        "llama8b-states-8-gpus": {"states_bytes": 16 * parameters / 8},
        "llama8b-lora-states": {"adapter_states_bytes": 16 * adapters, "states_bytes": 16 * adapters + 2 * parameters},
        "llama8b-qlora-base": {"quantized_bytes": linear * 4.127 / 8, "unquantized_bytes": 2 * (parameters - linear)},
    }
    for name, values in expected.items():
        for key, value in values.items():
            assert figures[name]["stated"][key] == pytest.approx(value, rel=figures[name]["tolerance"]), (name, key)
    assert figures["llama8b-logits-peak"]["planner"]["logits_bytes"] == 12 * seq * vocab


def test_traced_figures_equal_their_rows(published: Path) -> None:
    figures = {figure["id"]: figure for figure in read_figures(published)["figure"]}
    truth = {row["id"]: row for row in read_truth(published)}
    layers = truth[figures["llama8b-activations-traced"]["setup"]["truth_row"]]
    assert figures["llama8b-activations-traced"]["planner"]["activations_bytes"] == layers["saved_bytes_layers_total"]
    prepared = truth[figures["llama8b-qlora-kbit-prepare"]["setup"]["truth_row"]]
    assert figures["llama8b-qlora-kbit-prepare"]["planner"]["base_bytes"] == prepared["total_bytes_after_prepare"]
