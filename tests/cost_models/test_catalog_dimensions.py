"""Models from dimensions, from TOML files, and catalogue models with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalog import ModelError, load, resolve
from cost_models.catalog_index import FOLDER
from cost_models.dimensions import MLA_FIELDS, MOE_FIELDS, PLAIN_FIELDS
from cost_models.model_laws import laws
from cost_models.transformer import count_parameters
from tests.cost_models.closed_form import closed_form

if TYPE_CHECKING:
    from pathlib import Path

LLAMA_8B = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn_hidden": 14336,
    "vocab": 128256,
    "gated_mlp": True,
    "tied_embeddings": False,
}
GPT_175B = {"layers": 96, "hidden": 12288, "heads": 96, "gated_mlp": False, "vocab": 51200}


def test_llama_by_flags() -> None:
    """Llama-3.1-8B's dimensions give its count."""
    found = resolve(None, LLAMA_8B)
    assert count_parameters(found.architecture).parameters == 8_030_261_248


def test_gpt_by_flags() -> None:
    """GPT-3 175B's dimensions with an ungated MLP give Megatron's count, and everything assumed is said."""
    found = resolve(None, GPT_175B)
    assert count_parameters(found.architecture).parameters == count_parameters(load("megatron-gpt/175b")).parameters
    told = "; ".join(found.assumed)
    for word in ("GPT block", "ffn_hidden 49152", "kv_heads 96", "2048 learned positions", "tied_embeddings"):
        assert word in told


def test_two_dimensions_are_enough() -> None:
    """layers and hidden alone: heads of 128, a LLaMA block and a vocabulary of 32,000 are assumed by name."""
    found = resolve(None, {"layers": 12, "hidden": 1024, "heads": None})
    assert (found.architecture.heads, found.architecture.kv_heads, found.architecture.ffn_hidden, found.architecture.vocab) == (
        8,
        8,
        2816,
        32000,
    )
    told = "; ".join(found.assumed)
    for word in ("8 heads of 128", "kv_heads 8", "ffn_hidden 2816", "vocab 32000", "LLaMA block"):
        assert word in told


def test_nothing_assumed_when_all_is_given() -> None:
    """A full description assumes nothing."""
    everything = {**LLAMA_8B, "head_dim": 128, "activation": "silu", "norm": "rms", "positional": "rope"}
    assert resolve(None, everything).assumed == ()


def test_moe_by_flags() -> None:
    """Mixtral's dimensions by flags; topk and the expert width are assumed if not given."""
    flags = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 32000, "experts": 8}
    found = resolve(None, flags)
    assert count_parameters(found.architecture) == count_parameters(load("mixtral-8x7b"))
    assert {"topk 2", "moe_ffn_hidden 14336, as ffn_hidden"} <= set(found.assumed)


def test_mla_by_flags() -> None:
    """DeepSeek-V3 by flags, latent attention and shared expert included."""
    v3 = load("deepseek-v3")
    assert v3.moe is not None and v3.mla is not None
    flags = {"layers": 61, "hidden": 7168, "heads": 128, "ffn_hidden": 18432, "vocab": 129280, "mtp_layers": 1}
    flags |= {"experts": 256, "topk": 8, "moe_ffn_hidden": 2048, "shared_experts": 1, "first_k_dense": 3}
    flags |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    assert count_parameters(resolve(None, flags).architecture) == count_parameters(v3)


@settings(max_examples=150, deadline=None)
@given(
    layers=st.integers(1, 60),
    heads=st.integers(1, 64),
    groups=st.integers(1, 8),
    head_dim=st.sampled_from([32, 64, 96, 128]),
    hidden=st.integers(1, 64).map(lambda n: 64 * n),
    vocab=st.integers(1, 300_000),
    gated=st.booleans(),
    tied=st.booleans(),
    moe=st.none() | st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096), st.integers(0, 3)),
)
def test_any_dimensions_count_as_the_closed_form(
    layers: int,
    heads: int,
    groups: int,
    head_dim: int,
    hidden: int,
    vocab: int,
    gated: bool,
    tied: bool,
    moe: tuple[int, int, int, int] | None,
) -> None:
    """Blocks and closed form agree for every lawful set of flags, and the flags are what the model has."""
    flags: dict[str, object] = {"layers": layers, "hidden": hidden, "heads": heads * groups, "kv_heads": heads, "head_dim": head_dim}
    flags |= {"vocab": vocab, "gated_mlp": gated, "tied_embeddings": tied}
    if moe is not None:
        experts, topk, width, shared = moe
        flags |= {"experts": experts, "topk": min(topk, experts), "moe_ffn_hidden": width, "shared_experts": shared}
    architecture = resolve(None, flags).architecture
    for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "gated_mlp", "tied_embeddings"):
        assert getattr(architecture, key) == flags[key]
    counts, formula = count_parameters(architecture), closed_form(architecture)
    assert (counts.parameters, counts.active_parameters) == (formula.total, formula.active)


WRONG = [
    ({}, "layers is missing; hidden is missing"),
    ({"layers": 4}, "hidden is missing"),
    ({"layers": 0, "hidden": 64}, "layers = 0 must be at least 1"),
    ({"layers": -4, "hidden": -1}, "layers = -4 must be at least 1; hidden = -1"),
    ({"layers": 4.5, "hidden": 64}, "layers = 4.5 must be a whole number"),
    ({"layers": "4", "hidden": 64}, "layers = '4' must be a whole number"),
    ({"layers": True, "hidden": 64}, "layers = true must be a whole number"),
    ({"layers": float("nan"), "hidden": 64}, "layers = nan"),
    ({"layers": float("inf"), "hidden": 64}, "layers = inf"),
    ({"layers": 10**30, "hidden": 64}, "above 10,000"),
    ({"layers": 4, "hidden": 10**30}, "above 1,000,000"),
    ({"layers": 10_000, "hidden": 1_000_000}, "planner reads up to 1e+15"),
    ({"layers": 4, "hidden": 1000}, "give heads"),
    ({"layers": 4, "hidden": 100, "heads": 3}, "give head_dim"),
    ({"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 3}, "kv_heads = 3 must divide heads = 8; try 1, 2 or 4"),
    ({"layers": 4, "hidden": 512, "topk": 2}, "without experts"),
    ({"layers": 4, "hidden": 512, "experts": 4, "topk": 5}, "topk = 5 is above the 4 experts"),
    ({"layers": 4, "hidden": 512, "experts": 4, "first_k_dense": 5}, "first_k_dense = 5 is above the 4 layers"),
    ({"layers": 4, "hidden": 512, "kv_lora_rank": 64}, "latent attention needs"),
    ({"layres": 4, "hidden": 512}, "layres is no field of a model; did you mean layers"),
    ({"layers": 4, "hidden": 512, "norm": "batch"}, "norm = 'batch' must be rms or layer"),
    ({"layers": 4, "hidden": 512, "gated_mlp": "yes"}, "gated_mlp = 'yes' must be true or false"),
]


@pytest.mark.parametrize(("flags", "law"), WRONG)
def test_wrong_dimensions(flags: dict[str, object], law: str) -> None:
    """Each wrong set of dimensions is one line with what was given and the law."""
    with pytest.raises(ModelError) as error:
        resolve(None, flags)
    assert law in str(error.value) and str(error.value).isprintable()


def test_changes_to_a_catalogue_model() -> None:
    """A cut model keeps its base, and each change is said."""
    found = resolve("llama-3.1-70b", {"layers": 12, "vocab": None})
    assert found.architecture.layers == 12 and found.architecture.id == "meta-llama/Llama-3.1-70B (layers=12)"
    assert found.assumed == ("meta-llama/Llama-3.1-70B: layers 12 instead of 80",)
    assert resolve("llama-3.1-70b", {"layers": 80}).architecture == load("llama-3.1-70b")


def test_what_follows_a_change_follows() -> None:
    """Heads of a multi-head model pull kv_heads, head_dim and the q/k norm along."""
    olmo = resolve("olmo-2-7b", {"heads": 16}).architecture
    assert (olmo.kv_heads, olmo.head_dim, olmo.qk_norm_weights) == (16, 256, 32 * 256)
    qwen = resolve("qwen3-32b", {"hidden": 2560}).architecture
    assert qwen.head_dim == 128
    cut = resolve("deepseek-v3", {"layers": 4, "experts": 16}).architecture
    assert cut.moe is not None and (cut.moe.num_experts, cut.moe.topk, cut.layers) == (16, 8, 4)
    upcycled = resolve("llama-3.1-8b", {"experts": 8}).architecture
    assert upcycled.moe is not None and (upcycled.moe.topk, upcycled.moe.moe_ffn_hidden) == (2, 14336)


def test_changes_obey_the_laws() -> None:
    """A change that breaks a law is refused with the nearest values that pass."""
    with pytest.raises(ModelError, match="kv_heads = 5 must divide heads = 32; try 2, 4 or 8"):
        resolve("llama-3.1-8b", {"kv_heads": 5})
    with pytest.raises(ModelError, match="did you mean layers"):
        resolve("llama-3.1-8b", {"layer": 5})
    with pytest.raises(ModelError, match="first_k_dense = 3 is above the 2 layers"):
        resolve("deepseek-v3", {"layers": 2})


def test_toml_of_the_catalogue_reads_back() -> None:
    """Every catalogue file is a TOML model file."""
    for path in sorted(FOLDER.glob("*.toml"))[::7]:
        found = resolve(str(path))
        assert found.architecture == load(found.architecture.id) and found.assumed == ()


def test_small_toml(tmp_path: Path) -> None:
    """A TOML file may be short; the file names the model and every sentence."""
    path = tmp_path / "mine.toml"
    path.write_text(
        "layers = 24\nhidden = 2048\nvocab = 50_000\n[moe]\nnum_experts = 16\ntopk = 4\nmoe_ffn_hidden = 1024\n", encoding="utf-8"
    )
    found = resolve(path)
    assert found.architecture.id == "mine" and found.architecture.moe is not None
    assert all(sentence.startswith(f"{path}: ") for sentence in found.assumed) and found.assumed
    assert resolve(str(path), {"layers": 3}).architecture.layers == 3


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("", "is empty"),
        ("layers = ", "not valid TOML"),
        ("layers = nan\nhidden = 64", "layers = nan must be a whole number"),
        ('layers = "32"\nhidden = 64', "layers = '32' must be a whole number"),
        ("layers = 32\nhiden = 64", "did you mean hidden"),
        ("layers = 32\nhidden = 64\n[moe]\nnum_expert = 3", "did you mean num_experts"),
        ("layers = -1\nhidden = 64", "layers = -1"),
        ("x = " + "[" * 5000, "TOML"),
        ("# " + "x" * 300_000, "at most 256,000"),
    ],
)
def test_bad_toml(tmp_path: Path, text: str, law: str) -> None:
    """A bad TOML file is one line that names the file."""
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        resolve(str(path))
    assert str(error.value).startswith(f"{path}: ") and law in str(error.value) and str(error.value).isprintable()


def test_catalogue_name_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file called like a model is read only as a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert resolve("gpt2").architecture == load("gpt2")
    with pytest.raises(ModelError, match="without config.json"):
        resolve("./gpt2")


FLAGS = sorted({"experts", "tied", "window", *PLAIN_FIELDS, *MOE_FIELDS, *MLA_FIELDS} - {"aliases"})
ANY = (
    st.none()
    | st.booleans()
    | st.integers(-2, 200)
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
)


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from([None, "llama-3.1-8b", "deepseek-v3", "gpt2", "olmo-2-7b"]),
    flags=st.dictionaries(st.sampled_from(FLAGS), ANY, max_size=4),
)
def test_any_flags_give_a_model_or_one_line(base: str | None, flags: dict[str, object]) -> None:
    """Whatever the flags say: a sound record, or a ModelError of one printable line."""
    given_flags = {"layers": 4, "hidden": 256, **flags} if base is None else flags
    try:
        architecture = resolve(base, given_flags).architecture
    except ModelError as error:
        assert str(error).isprintable()
        return
    assert laws(architecture) == [] and count_parameters(architecture).parameters > 0
