"""Hub config files: every one gives exactly the stated counts, and the same record as the catalogue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models.catalog import ModelError, load, model_names, resolve
from cost_models.hub.config import parse_config, read_config
from cost_models.hub.families import table
from cost_models.hub.quirks import QUIRKS
from cost_models.transformer import count_parameters
from tests.cost_models.closed_form import closed_form

FOLDER = Path(__file__).parent.parent / "published" / "configs"
HUB = json.loads((FOLDER / "hub.json").read_text(encoding="utf-8"))
TRICKY = json.loads((FOLDER / "tricky.json").read_text(encoding="utf-8"))
FAMILIES = json.loads((FOLDER / "families.json").read_text(encoding="utf-8"))


def test_all_files_are_here() -> None:
    """176 configs, six tricky ones, and every family and wrapper of the table is met at least once."""
    assert (len(HUB), len(TRICKY)) == (176, 6)
    assert {row["model"] for row in HUB} == set(model_names())
    met = {row["config"]["model_type"] for row in (*HUB, *TRICKY, *FAMILIES)}
    for family in table().family:
        assert met & set(family.model_types), family.name
    assert {wrapper.model_type for wrapper in table().wrapper} - met == {"qwen2_vl", "kimi_k25"}


@pytest.mark.parametrize("row", HUB, ids=lambda row: row["name"])
def test_counts_of_hub_configs(row: dict) -> None:
    """Total, active, without token embedding, MTP and vision: exact, by the blocks and by the closed form."""
    architecture = parse_config(row["config"], row["name"]).architecture
    counts, formula = count_parameters(architecture), closed_form(architecture)
    assert counts.parameters == formula.total == row["total"]
    assert counts.active_parameters == formula.active == row["active"]
    assert counts.active_without_token_embedding == formula.active_without_token_embedding == row["active_without_token_embedding"]
    assert counts.mtp_parameters == formula.mtp == row["mtp"]
    assert architecture.vision_parameters == row["vision"]


@pytest.mark.parametrize("row", HUB, ids=lambda row: row["name"])
def test_hub_config_equals_the_catalogue(row: dict) -> None:
    """Every field but the names agrees with the catalogue's record (the twin forms of some models have another family)."""
    read, kept = parse_config(row["config"], row["name"]).architecture, load(row["model"])
    other = {
        "id",
        "aliases",
        "source",
        "notes",
        *({"family", "positional"} if ".as-llama" in row["name"] or ".as-qwen2" in row["name"] else ()),
    }
    if row["name"].endswith(".text"):
        other.add("vision_parameters")
    assert read.model_dump(exclude=other) == kept.model_dump(exclude=other)


@pytest.mark.parametrize("row", TRICKY, ids=lambda row: row["name"])
def test_tricky_configs(row: dict) -> None:
    """Absent, legacy, doubled and unknown keys."""
    architecture = parse_config(row["config"], row["name"]).architecture
    counts = count_parameters(architecture)
    assert counts.parameters == closed_form(architecture).total == row["total"]
    assert counts.parameters + architecture.vision_parameters == row["total_with_vision"]
    assert row["active"] in (None, counts.active_parameters)


def test_class_defaults_are_said() -> None:
    """What a sparse file leaves to its class is named, and so is the reading of an unknown model_type."""
    sparse = next(row for row in TRICKY if row["name"] == "gemma-3-4b-sparse")
    told = "; ".join(parse_config(sparse["config"], "x").assumed)
    assert all(word in told for word in ("heads 8", "kv_heads 4", "head_dim 256", "vocab 262208"))
    kimi = next(row for row in TRICKY if row["name"] == "kimi-k2-hub")
    assert "model_type kimi_k2 read as deepseek_v3" in parse_config(kimi["config"], "x").assumed[0]


@pytest.mark.parametrize("row", FAMILIES, ids=lambda row: row["config"]["model_type"])
def test_families_count_as_their_classes(row: dict) -> None:
    """Made-up shapes with the switches of their family turned: the count of the transformers class."""
    architecture = parse_config(row["config"], "x").architecture
    assert count_parameters(architecture).parameters == closed_form(architecture).total == row["total"]
    if architecture.vision_parameters:
        assert architecture.vision_parameters == row["vision"]


def test_every_quirk_is_used() -> None:
    """The table names every quirk, and only quirks that are there."""
    named = {quirk for family in table().family for quirk in family.quirks}
    assert named == set(QUIRKS)


def test_model_types_and_classes_mean_one_family() -> None:
    """No model_type and no class stands in two rows."""
    for names in ([n for f in table().family for n in f.model_types], [n for f in (*table().family, *table().wrapper) for n in f.classes]):
        assert len(names) == len(set(names))


def test_by_file_and_by_folder(tmp_path: Path) -> None:
    """A path to the file, to its folder, and a string of either; the folder names the model."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    row = next(row for row in HUB if row["name"] == "meta-llama--Llama-3.1-8B")
    (folder / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
    for path in (folder, folder / "config.json", str(folder), str(folder / "config.json"), f"{folder}/"):
        architecture = resolve(path).architecture
        assert architecture.id == "my-llama" and count_parameters(architecture).parameters == row["total"]
    assert read_config(folder).architecture == resolve(folder).architecture


def test_dimension_flags_over_a_config(tmp_path: Path) -> None:
    """Flags fill what a file leaves out and replace what it says."""
    row = next(row for row in HUB if row["name"] == "meta-llama--Llama-3.1-8B")
    path = tmp_path / "config.json"
    short = {key: value for key, value in row["config"].items() if key != "vocab_size"}
    path.write_text(json.dumps(short), encoding="utf-8")
    with pytest.raises(ModelError, match="vocab_size is missing"):
        resolve(path)
    assert count_parameters(resolve(path, {"vocab": 128256}).architecture).parameters == row["total"]
    assert resolve(path, {"vocab": 128256, "layers": 2, "tied_embeddings": True}).architecture.layers == 2


BASE = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 1000,
}


def window(**keys: object) -> tuple[int | None, int]:
    """Return the window facts of a small config."""
    architecture = parse_config({**BASE, **keys}, "x").architecture
    return architecture.sliding_window, architecture.full_attention_every


def test_windows_of_configs() -> None:
    """Switched off, switched on for all layers, absent from the class, by pattern, by list."""
    slides, full = "sliding_attention", "full_attention"
    assert window(sliding_window=128) == (None, 0)
    assert window(sliding_window=128, use_sliding_window=True) == (None, 0)
    assert window(sliding_window=128, use_sliding_window=True, max_window_layers=0) == (128, 0)
    assert window(model_type="mistral") == (4096, 0)
    assert window(model_type="mistral", sliding_window=None) == (None, 0)
    assert window(model_type="llama", sliding_window=128) == (None, 0)
    assert window(model_type="gemma3_text", sliding_window=64) == (64, 6)
    assert window(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=3) == (64, 3)
    assert window(model_type="gemma3_text", sliding_window=64, layer_types=[slides, full] * 3) == (64, 2)
    assert window(model_type="gemma3_text", sliding_window=64, layer_types=[full] * 6) == (None, 0)
    assert window(model_type="exaone4", sliding_window=64, sliding_window_pattern="LLG") == (64, 3)


def test_irregular_windows_are_planned_full_and_said() -> None:
    """First layers full, the rest sliding: an upper bound with a warning."""
    found = parse_config({**BASE, "sliding_window": 128, "use_sliding_window": True, "max_window_layers": 3}, "x")
    assert found.architecture.sliding_window is None and "upper bound" in found.warnings[0]


def test_other_heads_and_quantisation_are_said() -> None:
    """A classifier of a known family is read as its language model with a warning; a quantisation note is not read."""
    found = parse_config({**BASE, "architectures": ["Qwen2ForSequenceClassification"], "quantization_config": {"bits": 4}}, "x")
    assert "another head" in found.warnings[0] and "quantization_config" in found.warnings[1]
    assert "not known to planner" in parse_config({**BASE, "architectures": ["MyOwnModel"]}, "x").warnings[0]


def test_nested_tie_flag() -> None:
    """The outer tie flag holds where the text part has none; the inner one wins."""
    text = {key: value for key, value in BASE.items() if key != "model_type"} | {"model_type": "gemma3_text"}
    outer = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}
    assert not parse_config(outer, "x").architecture.tied_embeddings
    assert parse_config({**outer, "text_config": {**text, "tie_word_embeddings": True}}, "x").architecture.tied_embeddings
    assert parse_config({"model_type": "gemma3", "text_config": text}, "x").architecture.tied_embeddings


def test_kimi_k25_reads_its_text_part() -> None:
    """A multimodal Kimi: the text model is Kimi K2, the tower is said to be uncounted."""
    row = next(row for row in HUB if row["name"] == "moonshotai--Kimi-K2-Instruct")
    found = parse_config({"model_type": "kimi_k25", "text_config": row["config"], "vision_config": {}}, "x")
    assert count_parameters(found.architecture).parameters == row["total"] and "vision tower" in found.warnings[0]
