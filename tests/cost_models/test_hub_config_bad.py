"""Hub config files that must not be read: other architectures by name, broken files, broken laws; one line, at once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalog import ModelError, resolve
from cost_models.hub.config import parse_config
from cost_models.hub.families import table
from cost_models.hub.refused import KINDS, REFUSED, squeezed
from cost_models.model_laws import laws

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
DEEPSEEK = {
    **LLAMA,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
QWEN_MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
QWEN_MOE |= {"moe_intermediate_size": 64}
FALCON = {"model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 1000}


def test_the_bases_are_sound() -> None:
    """The files that the tables below break are readable before."""
    for values in (LLAMA, DEEPSEEK, QWEN_MOE, FALCON):
        assert parse_config(values, "x").architecture.layers == 6


@pytest.mark.parametrize("name", sorted({name for names in KINDS.values() for name in names.split()}))
def test_refused_by_model_type(name: str) -> None:
    """Every listed model_type is refused by its name, though its keys look like a dense decoder's."""
    with pytest.raises(ModelError) as error:
        parse_config({**LLAMA, "architectures": None, "model_type": name}, "f/config.json")
    assert str(error.value).startswith(f"f/config.json: {name}, a") and "planner plans decoders" in str(error.value)


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("MambaForCausalLM", "state-space"),
        ("JambaForCausalLM", "hybrid"),
        ("RecurrentGemmaForCausalLM", "hybrid"),
        ("Qwen3NextForCausalLM", "linear-attention"),
        ("T5ForConditionalGeneration", "encoder-decoder"),
        ("BartForConditionalGeneration", "encoder-decoder"),
        ("WhisperForConditionalGeneration", "encoder-decoder"),
        ("BertForMaskedLM", "encoder-only"),
        ("XLMRobertaModel", "encoder-only"),
        ("LlavaForConditionalGeneration", "multimodal"),
        ("CLIPModel", "contrastive"),
    ],
)
def test_refused_by_class(class_name: str, kind: str) -> None:
    """Without a model_type the class name tells."""
    with pytest.raises(ModelError, match=kind):
        parse_config({**LLAMA, "architectures": [class_name], "model_type": None}, "x")


@pytest.mark.parametrize("class_name", ["UNet2DConditionModel", "FluxTransformer2DModel", "SD3Transformer2DModel", "AutoencoderKL"])
def test_diffusion_is_refused(class_name: str) -> None:
    """Diffusers files have `_class_name`."""
    with pytest.raises(ModelError, match=f"{class_name}, a diffusion model"):
        parse_config({"_class_name": class_name, "num_layers": 3, "hidden_size": 64}, "x")


def test_diffusion_pipeline_folder(tmp_path: Path) -> None:
    """A pipeline's folder holds model_index.json."""
    (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="diffusion pipeline"):
        resolve(tmp_path)


def test_encoder_decoder_flags_are_refused() -> None:
    """The flags of an encoder-decoder refuse any family."""
    for key in ("is_encoder_decoder", "add_cross_attention"):
        with pytest.raises(ModelError, match=f"{key} = true"):
            parse_config({**LLAMA, key: True}, "x")


def test_linear_layers_are_refused_by_layer_types() -> None:
    """A list of layer kinds with one that is not described."""
    with pytest.raises(ModelError, match="'linear_attention' is no attention"):
        parse_config({**LLAMA, "architectures": None, "model_type": "gemma3_text", "layer_types": ["linear_attention"] * 6}, "x")


def test_no_family_is_refused() -> None:
    """The table of families and the list of refusals do not overlap."""
    for family in table().family:
        assert not {squeezed(name) for name in family.model_types} & set(REFUSED)


def test_unknown_architecture_says_what_is_read() -> None:
    """Llama's keys under an unknown name are not taken for Llama."""
    with pytest.raises(ModelError) as error:
        parse_config({**LLAMA, "architectures": ["NewThingForCausalLM"], "model_type": "mistrall"}, "x")
    text = str(error.value)
    assert "'mistrall' is none that planner reads (nearest: mistral" in text and "flags or as a TOML file" in text
    assert all(name in text for name in table().names())


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"model_type": None, "architectures": None}, "model_type and architectures are missing"),
        ({"model_type": 5}, "model_type = 5 must be text"),
        ({"architectures": "LlamaForCausalLM"}, "architectures = 'LlamaForCausalLM' must be a list"),
        ({"architectures": ["MistralForCausalLM"]}, "contradict each other"),
        ({"hidden_size": None}, "hidden_size or n_embd is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers or n_layer is missing"),
        ({"num_attention_heads": None}, "num_attention_heads or n_head is missing"),
        ({"intermediate_size": None}, "intermediate_size or ffn_dim is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": -256}, "hidden_size = -256 must be at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 must be at least 1"),
        ({"hidden_size": float("nan")}, "hidden_size = nan must be a whole number"),
        ({"hidden_size": float("inf")}, "hidden_size = inf must be a whole number"),
        ({"hidden_size": "256"}, "hidden_size = '256' must be a whole number"),
        ({"hidden_size": 256.5}, "hidden_size = 256.5 must be a whole number"),
        ({"hidden_size": True}, "hidden_size = true must be a whole number"),
        ({"hidden_size": [256]}, "hidden_size = [256] must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 is above 10,000"),
        ({"vocab_size": 10**30}, "vocab_size = an integer of 100 bits is above"),
        ({"num_hidden_layers": 10_000, "hidden_size": 1_000_000, "num_attention_heads": 1000}, "planner reads up to 1e+15"),
        ({"num_attention_heads": 7}, "head_dim is missing and hidden_size = 256 is not a multiple of 7 heads"),
        ({"num_key_value_heads": 3}, "kv_heads = 3 must divide heads = 8; try 1, 2 or 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no' must be true or false"),
        ({"attention_bias": 1}, "attention_bias = 1 must be true or false"),
        ({"n_embd": 512}, "hidden_size = 256 and n_embd = 512 contradict"),
        ({"hidden_act": 3}, "hidden_act = 3 must be text"),
        ({"hidden_size": -1, "vocab_size": "x"}, "hidden_size = -1 must be at least 1; vocab_size = 'x'"),
    ],
)
def test_broken_values(change: dict[str, object], law: str) -> None:
    """One line names the file, the key and the law; several problems at once."""
    with pytest.raises(ModelError) as error:
        parse_config({**LLAMA, **change}, "here/config.json")
    assert str(error.value).startswith("here/config.json: ") and law in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("values", "law"),
    [
        ({**DEEPSEEK, "kv_lora_rank": 0}, "kv_lora_rank = 0"),
        ({**DEEPSEEK, "v_head_dim": None}, "v_head_dim is missing"),
        ({**DEEPSEEK, "attention_bias": True}, "latent attention without biases"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({**DEEPSEEK, "num_experts_per_tok": 9}, "topk = 9 is above the 8 experts"),
        ({**DEEPSEEK, "first_k_dense_replace": 7}, "first_k_dense = 7 is above the 6 layers"),
        ({key: value for key, value in DEEPSEEK.items() if key != "q_lora_rank"}, "q_lora_rank is missing (null means none)"),
        ({**QWEN_MOE, "mlp_only_layers": [3]}, "dense layers only at the front"),
        ({**QWEN_MOE, "mlp_only_layers": ["a"]}, "dense layers only at the front"),
        ({**QWEN_MOE, "num_experts": None}, "num_local_experts or num_experts is missing"),
        ({**FALCON, "multi_query": False, "num_kv_heads": 2}, "has no effect without new_decoder_architecture"),
        ({"model_type": "gemma3", "text_config": 5}, "text_config = 5 must be an object"),
        ({"model_type": "gemma3", "text_config": {"model_type": "mamba"}}, "text_config: mamba, a state-space"),
        ({"model_type": "gemma3", "text_config": {}, "vision_config": {"hidden_size": -3}}, "vision_config.hidden_size = -3"),
        ({"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 9, "no_bias": False}, "without biases only"),
        (
            {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 9, "attn_config": {"alibi": False}},
            "attn_config.alibi",
        ),
        ({**LLAMA, "architectures": None, "model_type": "qwen", "intermediate_size": 703}, "must be even"),
        ({**LLAMA, "architectures": None, "model_type": "chatglm", "position_encoding_2d": True}, "first ChatGLM"),
        ({**LLAMA, "architectures": None, "model_type": "gemma3_text", "layer_types": ["full_attention"]}, "1 entries for 6 layers"),
        ({**LLAMA, "architectures": None, "model_type": "llama4_text", "moe_layers": [0, 1]}, "moe_layers"),
    ],
)
def test_broken_values_of_families(values: dict[str, object], law: str) -> None:
    """Families check what is theirs."""
    with pytest.raises(ModelError) as error:
        parse_config(values, "x")
    assert law in str(error.value) and str(error.value).isprintable()


WHOLE = json.dumps(LLAMA).encode()
FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t ", "is empty"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "not valid JSON"),
    "trailing": (WHOLE + b"}", "not valid JSON"),
    "binary": (bytes(range(256)) * 20, "not UTF-8"),
    "latin-1": ('{"model_type": "llamä"}'.encode("latin-1"), "not UTF-8"),
    "utf-16": (WHOLE.decode().encode("utf-16"), "not UTF-8"),
    "nul": (b"\0" * 1000, "not valid JSON"),
    "list": (b"[1, 2, 3]", "holds a list, not an object"),
    "number": (b"7", "holds a number"),
    "string": (b'"llama"', "holds a string"),
    "null": (b"null", "holds null"),
    "html": (b"<!doctype html><html></html>", "not valid JSON"),
    "deep": (b'{"a":' * 200_000, "nested too deeply"),
    "deep list": (b"[" * 1_000_000, "nested too deeply"),
    "long number": (b'{"hidden_size": ' + b"9" * 1_000_000 + b"}", "not usable JSON"),
    "huge": (b'{"a": "' + b"x" * 10_000_000 + b'"}', "at most 10,000,000"),
    "no keys": (b"{}", "model_type and architectures are missing"),
}


@pytest.mark.parametrize("suffix", [".json", ""])
@pytest.mark.parametrize("kind", FILES)
def test_broken_files(tmp_path: Path, kind: str, suffix: str) -> None:
    """One printable line that names the file, far under a second."""
    data, law = FILES[kind]
    path = tmp_path / f"config{suffix}"
    path.write_bytes(data)
    begin = time.process_time()
    with pytest.raises(ModelError) as error:
        resolve(str(path))
    assert time.process_time() - begin < 0.5
    text = str(error.value)
    assert text.startswith(f"{path}: ") and law in text and text.isprintable() and len(text) < 1000 + len(str(path))


def test_byte_order_mark_is_read(tmp_path: Path) -> None:
    """UTF-8 with a byte order mark is UTF-8."""
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE)
    assert resolve(path).architecture.hidden == 256


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    """Missing file, folder without a config, folder named config.json, a pipe, a name too long, a broken link."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "config.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    expected = {
        "none.json": "no such file",
        "empty": "a folder without config.json",
        "config.json": "a folder without config.json",
        "link.json": "no such file",
        "pipe.json": "is no regular file",
        "n" * 5000 + ".json": "cannot be read",
    }
    for name, law in expected.items():
        begin = time.process_time()
        with pytest.raises(ModelError, match=law):
            resolve(str(tmp_path / name))
        assert time.process_time() - begin < 0.5


def test_line_breaks_in_names_stay_one_line(tmp_path: Path) -> None:
    """A file name or a value with a line break cannot break the line."""
    path = tmp_path / "a\nb.json"
    path.write_text(json.dumps({"model_type": "x\ny\x1b[31m"}), encoding="utf-8")
    with pytest.raises(ModelError) as error:
        resolve(str(path))
    assert str(error.value).isprintable()


PUBLISHED = Path(__file__).parent.parent / "published" / "configs"
ROWS = [
    row["config"] for name in ("hub", "tricky", "families") for row in json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_value_gives_a_model_or_one_line(data: st.DataObject) -> None:
    """Whatever stands under one or two keys of any config: a sound record, or a ModelError of one printable line."""
    values = json.loads(json.dumps(data.draw(st.sampled_from(ROWS))))
    part = values.get("text_config") if data.draw(st.booleans()) and "text_config" in values else values
    for key in data.draw(st.lists(st.sampled_from(sorted(part)), min_size=1, max_size=2)):
        part[key] = data.draw(VALUES | st.integers(-3, 300))
    try:
        architecture = parse_config(values, "x").architecture
    except ModelError as error:
        assert str(error).isprintable() and str(error).startswith("x: ")
        return
    assert architecture.layers > 0 and laws(architecture) == []
