"""Rows as specs: every published row is predicted or skipped with a reason, and reads as a person reads it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hardware.units import GIB
from planner.runs import Run, Skip, Spec, measured, spec, specs
from planner.runs.frameworks import Setting, framework_names, habits
from planner.runs.pipeline import chunk_layers
from planner.runs.shape import llama_ffn
from planner.runs.spec import NEEDED
from planner.runs.training import iso_date

TABLE = Path(__file__).resolve().parent.parent / "published" / "runs.csv"


@cache
def made() -> dict[str, Spec | Skip]:
    return {s.run.id: s for s in specs(TABLE)}


def row(name: str) -> Spec:
    found = made()[name]
    assert isinstance(found, Spec), found
    return found


def run(**given: Any) -> Run:
    """A row of a user's own: ten stated columns, and what the test adds."""
    stated = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 4096, "gpu": "A100-80G", "num_gpus": 8}
    stated |= {"tp": 1, "pp": 1, "micro_batch": 1}
    return Run(**{"id": "mine", **stated, **given})


def user(**given: Any) -> Spec:
    found = spec(run(**given))
    assert isinstance(found, Spec), found
    return found


def test_every_row_is_a_spec_or_has_a_reason() -> None:
    """1,814 rows; the skipped ones lack a needed column or are no dense or MoE decoder."""
    assert len(made()) == 1814
    kinds = Counter(s.kind for s in made().values() if isinstance(s, Skip))
    assert all(kind.startswith(("missing ", "unsupported architecture: ")) for kind in kinds), kinds
    for found in made().values():
        lacks = [name for name in NEEDED if getattr(found.run, name) in (None, "")]
        if isinstance(found, Skip) and found.kind.startswith("missing "):
            assert lacks and found.reason == f"does not state {', '.join(lacks)}"
    assert sum(isinstance(s, Spec) for s in made().values()) == 1542


def test_what_is_assumed_is_not_stated() -> None:
    """A field is listed as assumed only where the row leaves its column open."""
    for found in made().values():
        if isinstance(found, Spec):
            deduced = ("optimizer", "num_gpus", "tp", "pp", "global_batch")
            columns = [name for name in found.assumed if hasattr(found.run, name) and name not in deduced]
            assert all(getattr(found.run, name) in (None, "") or name == "sharding" for name in columns), (found.run.id, columns)


def test_degrees_multiply_to_the_gpus() -> None:
    """tp × pp × cp × dp is the number of GPUs of every row."""
    for found in made().values():
        if isinstance(found, Spec):
            d = found.layout.degrees
            assert d.tp * d.pp * d.cp * d.dp == found.pool.count


def test_stage_layers_sum_to_the_layers() -> None:
    """Explicit splits hold every layer once."""
    explicit = [s for s in made().values() if isinstance(s, Spec) and s.layout.stage_layers is not None]
    assert len(explicit) > 20
    assert all(sum(s.layout.stage_layers or ()) == s.architecture.layers for s in explicit)
    assert row("mlml-0003").layout.stage_layers == (15, 16, 16, 16, 16, 16, 16, 15)
    assert row("gold-0153").layout.stage_layers == (1, 2, 2, 1)
    assert row("gold-0355").layout.stage_layers == (7, 7)


def test_measured_conversions_are_exact() -> None:
    """Step time as printed, or from tokens/s; memory in GiB."""
    assert row("korth-0001").measured.step_seconds == 1.42
    tokens = row("mosaic-001")
    assert tokens.run.tokens_per_s_per_gpu == 1007.0
    assert tokens.measured.step_seconds == 4096 * 2048 / (1007.0 * 512)
    assert row("simumax-001").measured.peak_bytes == 66.550 * GIB
    assert row("simumax-001").measured.peak_kind == "allocated"
    assert measured(run(tokens_per_s_per_gpu=100.0)).step_seconds is None
    assert measured(run(peak_memory_gib=1.0)).peak_kind == "unknown"
    assert row("kwai-013").measured.oom


ARCHITECTURES = [
    ("mbr-0007", {"heads": 32, "kv_heads": 4, "head_dim": 128, "vocab": 151936}),
    ("qwen-025", {"qkv_bias": True, "norm": "rms", "tied_embeddings": False}),
    ("korth-0003", {"tied_embeddings": True, "norm": "layer", "mlp_bias": True, "vocab": 51200}),
    ("nano-001", {"tied_embeddings": True, "gated_mlp": True}),
    ("nano-004", {"tied_embeddings": False}),
    ("lghub-005", {"tied_embeddings": False, "vocab": 256000, "head_dim": 256}),
    ("gold-0001", {"vocab": 256000, "tied_embeddings": False, "positional": "rope", "mlp_bias": False, "activation": "relu2"}),
    ("gold-0009", {"vocab": 131073, "tied_embeddings": False}),
    ("gold-0098", {"vocab": 50257, "tied_embeddings": True, "positional": "learned", "learned_positions": 1024}),
    ("mosaic-004", {"mlp_bias": False, "positional": "alibi", "learned_positions": 0, "norm_bias": False}),
    ("simumax-025", {"layers": 4, "kv_heads": 16, "ffn_hidden": 53248}),
    ("ds-001", {"gated_mlp": False, "ffn_hidden": 16384, "tied_embeddings": False}),
    ("bs-002", {"positional": "alibi", "vocab": 250000, "embedding_norm": True}),
    ("dlperf-001", {"vocab": 51200}),
    ("litgpt-006", {"tied_embeddings": False, "positional": "rope", "parallel_block": True}),
]


@pytest.mark.parametrize(("name", "fields"), ARCHITECTURES)
def test_architecture(name: str, fields: dict[str, object]) -> None:
    """The architecture that a person reads from the row, its notes and the catalogue."""
    shape = row(name).architecture
    assert {field: getattr(shape, field) for field in fields} == fields


EXPERTS = [
    ("mbr-0043", (256, 8, 2048, 2048, 3, 1), 18432),
    ("simumax-005", (160, 6, 1536, 3072, 1, 1), 12288),
    ("dgxc-0354", (128, 1, 8192, 8192, 0, 2), 16384),
    ("dgxc-0001", (8, 2, 32768, 0, 0, 1), 32768),
    ("ao-018", (16, 1, 8192, 8192, 0, 1), 16384),
    ("tt-057", (64, 6, 1408, 2816, 1, 1), 10944),
    ("gold-0355", (64, 8, 2048, 2048, 3, 1), 18432),
    ("gold-0467", (8, 2, 1024, 512, 4, 1), 2048),
    ("mbr-0053", (384, 8, 2048, 2048, 1, 1), 18432),
]


@pytest.mark.parametrize(("name", "sizes", "dense"), EXPERTS)
def test_experts(name: str, sizes: tuple[int, ...], dense: int) -> None:
    """Experts, top-k, width, shared width, dense layers, frequency; and the width of the dense layers."""
    moe = row(name).architecture.moe
    assert moe is not None
    assert (moe.num_experts, moe.topk, moe.moe_ffn_hidden, moe.shared_ffn_hidden, moe.first_k_dense, moe.layer_freq) == sizes
    assert row(name).architecture.ffn_hidden == dense


def test_latent_attention() -> None:
    """Ranks from the notes, from Megatron's arguments, or of the named configuration."""
    shapes = {name: row(name).architecture.mla for name in ("mbr-0043", "gold-0225", "gold-0364", "tt-057", "simumax-007")}
    ranks = {name: (mla.q_lora_rank, mla.kv_lora_rank, mla.qk_nope_head_dim) for name, mla in shapes.items() if mla is not None}
    assert ranks == {
        "mbr-0043": (1536, 512, 128),
        "gold-0225": (192, 64, 16),
        "gold-0364": (256, 128, 128),
        "tt-057": (None, 512, 128),
        "simumax-007": (1536, 512, 128),
    }
    assert row("mbr-0043").architecture.head_dim == 192


TRAININGS = [
    ("mbr-0005", {"precision": "fp8", "regime": "megatron-bf16-gradients", "balanced_routing": True, "method": "full"}),
    ("korth-0001", {"precision": "fp16", "attention": "eager", "dropout": 0.1, "date": "2022-05"}),
    ("nemo-0001", {"attention": "flash", "precision": "fp8", "dropout": 0.0}),
    ("litgpt-001", {"method": "lora", "lora_rank": 8, "lora_targets": ("q", "v"), "adapter_fp32": False, "regime": None}),
    ("litgpt-002", {"method": "qlora", "double_quant": False}),
    ("litgpt-003", {"method": "qlora", "double_quant": True}),
    ("litgpt-025", {"method": "qlora", "lora_rank": 1}),
    ("lghub-005", {"lora_rank": 8, "lora_targets": ("q", "k", "v", "o", "gate", "up", "down", "head")}),
    ("peft-010", {"lora_rank": 64, "lora_targets": ("q", "v"), "adapter_fp32": True, "padding_mask": True}),
    ("peft-002", {"method": "full", "regime": "pure-bf16"}),
    ("qwen-013", {"method": "qlora", "kbit_prepare": False, "lora_rank": 64, "framework": "deepspeed"}),
    ("qwen-001", {"method": "lora", "framework": "hf", "adapter_fp32": True}),
    ("qwen-047", {"method": "lora", "framework": "deepspeed", "adapter_fp32": None}),
    ("tt-001", {"compile": False}),
    ("tt-058", {"loss": "chunked"}),
    ("tt-055", {"precision": "fp8"}),
    ("bs-203", {"optimizer": "adam8bit"}),
    ("ds-004", None),
    ("mbr-0053", {"optimizer": "muon"}),
    ("gold-0098", {"attention": "eager", "dropout": 0.1}),
    ("gold-0001", {"attention": "flash", "dropout": 0.0}),
    ("vtm-001", {"framework": "megatron-deepspeed", "date": "2022"}),
    ("dlperf-001", {"attention": "eager", "implementation": "megatron-unfused"}),
    ("nemo-0017", {"method": "lora", "lora_targets": ("q", "k", "v"), "lora_rank": 8}),
]


@pytest.mark.parametrize(("name", "fields"), TRAININGS)
def test_training(name: str, fields: dict[str, object] | None) -> None:
    """Method, types, kernels and dates as the row and its framework have them; None: the row lacks a needed column."""
    if fields is None:
        assert isinstance(made()[name], Skip)
        return
    training = row(name).training
    assert {field: getattr(training, field) for field in fields} == fields


SWITCHES = [
    ("mbr-0005", "fp8_recipe", "mxfp8"),
    ("mbr-0043", "cuda_graphs", "attn,moe_router,moe_preprocess"),
    ("mbr-0036", "fp8_recipe", "current"),
    ("gold-0252", "defer_embedding_wgrad", "2"),
    ("gold-0244", "cross_entropy_fusion", "native"),
    ("gold-0001", "rope_fusion", "no"),
    ("gold-0098", "gradient_accumulation_fusion", "no"),
    ("gold-0098", "attention_backend", "unfused"),
    ("vtm-001", "overlap_grad_reduce", "no"),
    ("nemo-0017", "overlap_tp", "no"),
    ("nemo-0001", "overlap_tp", "yes"),
    ("peft-007", "lora_fa", "yes"),
    ("qwen-013", "quantization", "gptq"),
    ("litgpt-048", "base_dtype", "fp32"),
    ("qwen-007", "train_embeddings", "yes"),
    ("kwai-014", "recompute_policy", "kwai"),
]


@pytest.mark.parametrize(("name", "switch", "value"), SWITCHES)
def test_switch(name: str, switch: str, value: str) -> None:
    """Named software switches reach the training."""
    assert row(name).training.extra[switch] == value


def test_layouts() -> None:
    """Sharding, recompute, offload and schedules."""
    assert (row("gold-0098").layout.choices.zero, row("mbr-0005").layout.choices.zero, row("mosaic-013").layout.choices.zero) == (0, 1, 2)
    assert row("dgxc-0199").layout.degrees.shard_group == 128.0
    assert (row("kwai-014").layout.degrees.activation_offload, row("kwai-033").layout.degrees.activation_offload) == (0.0, 1.0)
    assert row("fq-022").layout.choices.offload == "optimizer+params"
    every = row("tt-033").layout
    assert (every.choices.recompute, every.degrees.recompute_layers) == ("full", 16.0)
    assert row("mbr-0043").layout.choices.recompute_modules == ("mla_up_proj",)
    assert row("zoo-0001").layout.choices.recompute_modules == ("layernorm", "moe_act")
    assert row("korth-0003").layout.choices.schedule == "interleaved"
    assert row("litgpt-038").layout.choices.recompute == "full" and row("litgpt-001").layout.choices.recompute == "none"
    assert row("dgxc-0336").layout.degrees.etp == 4.0


def test_pools() -> None:
    """GPU by the table's names, server by site, network where the row tells."""
    assert row("bs-002").pool.inter_node_bytes_per_second == 96e9 / 8 / 8
    assert row("dlperf-013").pool.inter_node_bytes_per_second == 100e9 / 8 / 8
    assert row("bs-002").pool.node.link_domain_size == 4
    assert row("vtm-001").pool.inter_node_bytes_per_second == 800e9 / 8 / 8
    assert row("tt-031").pool.inter_node_bytes_per_second == 400e9 / 8
    assert row("mbr-0005").pool.gpus_per_node == 4
    assert row("fq-014").pool.node.link_domain_size == 1
    assert {row(name).pool.gpu.id for name in ("tt-001", "ds-006", "lghub-005")} == {"h100-96g", "mi300x", "a10g"}


def test_time_of_golden_rows_is_not_representative() -> None:
    """Megatron's tests run in deterministic or unfused modes."""
    assert all(not s.time_representative for s in made().values() if isinstance(s, Spec) and "golden" in s.run.source)
    assert row("korth-0001").time_representative


def test_typical_sample() -> None:
    """peft's step time is of the mean sample, its memory of the longest."""
    assert (row("peft-001").training.seq, row("peft-001").typical_seq) == (768, 210)
    assert row("mosaic-001").typical_seq is None


def test_defaults_of_a_bare_row() -> None:
    """Ten columns: everything else is assumed, and listed with value and reason."""
    bare = user()
    assert bare.architecture.kv_heads == 32 and bare.architecture.head_dim == 128
    assert bare.assumed["kv_heads"] == "32 (as heads)"
    assert bare.assumed["dp"] == "8 (num_gpus / (tp · pp · cp))"
    assert {"ffn_hidden", "gated_mlp", "vocab", "precision", "recompute", "sharding", "optimizer", "method"} <= set(bare.assumed)
    assert {"global_batch", "gpus_per_node"} <= set(bare.assumed)
    assert not bare.timed


def test_ffn_rules() -> None:
    """4 × hidden without a gate, Llama's rule with one."""
    assert user(gated_mlp=False).architecture.ffn_hidden == 16384
    assert user(gated_mlp=True).architecture.ffn_hidden == 11008
    assert [llama_ffn(h) for h in (4096, 5120, 6656, 8192)] == [11008, 13824, 17920, 22016]


def test_catalogue_completes_only_what_agrees() -> None:
    """The name alone gives nothing: hidden, heads and layers must agree."""
    agreeing = user(model="Llama-3.1-8B")
    assert (agreeing.architecture.kv_heads, agreeing.architecture.ffn_hidden, agreeing.architecture.vocab) == (8, 14336, 128256)
    other = user(model="Llama-3.1-8B", layers=31)
    assert other.architecture.kv_heads == 32 and other.architecture.vocab == 32000
    stated = user(model="Llama-3.1-8B", kv_heads=4, vocab=1000)
    assert (stated.architecture.kv_heads, stated.architecture.vocab) == (4, 1000)


def test_one_gpu_needs_no_degrees() -> None:
    """On one GPU tp and pp follow, and num_gpus follows from the degrees."""
    single = user(num_gpus=1, tp=None, pp=None)
    assert single.layout.degrees.tp == 1.0 and "tp" in single.assumed
    counted = user(num_gpus=None, tp=2, pp=2, dp=2)
    assert counted.pool.count == 8


SKIPPED = [
    ({"layers": None}, "does not state layers"),
    ({"gpu": "", "tp": None}, "does not state gpu, tp"),
    ({"gpu": "H1000"}, "unknown GPU"),
    ({"tp": 3}, "contradiction: tp 3 × pp 1 × cp 1 does not divide 8 GPUs"),
    ({"dp": 4}, "contradiction: dp 4"),
    ({"heads": 30}, "contradiction: hidden 4096"),
    ({"kv_heads": 5}, "contradiction: heads 32"),
    ({"pp": 8, "vpp": 8}, "contradiction: 32 layers on 64 pipeline stages"),
    ({"framework": "keras"}, "unknown framework"),
    ({"model": "google/t5-3b"}, "unsupported architecture"),
    ({"model": "Nemotron-H-56B"}, "unsupported architecture"),
    ({"num_gpus": 10**9}, "contradiction"),
    ({"layers": 10**8}, "contradiction"),
    ({"hidden": 32 * 10**7}, "contradiction"),
    ({"experts": 10**9, "topk": 2}, "contradiction"),
]


@pytest.mark.parametrize(("given", "reason"), SKIPPED)
def test_skipped_rows_say_why(given: dict[str, object], reason: str) -> None:
    """A row that cannot be predicted is skipped in one line."""
    found = spec(run(**given))
    assert isinstance(found, Skip) and found.reason.startswith(reason) and "\n" not in found.reason


FRAMEWORKS = [
    "megatron", "megatron-deepspeed", "deepspeed", "fsdp", "torchtitan", "nanotron", "hf", "litgpt", "oneflow", "colossalai", "jax",
    "torchtune", "internevo", "unsloth", "xtuner", "ms-swift", "paddle", "primus", "other",
]  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks(name: str) -> None:
    """Every framework of the table's description has an entry with its origin, and runs."""
    assert name in framework_names()
    found = habits(name, Setting())
    assert found is not None and len(found.origin) > 20
    assert user(framework=name).training.framework == found.runs_as


def test_unnamed_frameworks() -> None:
    """Without a name: Megatron where the row is model-parallel, FSDP else; the source's own words are looked at first."""
    assert user(tp=2).training.framework == "megatron"
    assert user().training.framework == "fsdp"
    assert user(framework="other", framework_detail="torchtune 0.4").training.loss == "chunked"


def test_recompute_defaults() -> None:
    """FEASIBILITY's last section: blank recompute by framework."""
    kinds = {name: user(framework=name).layout.choices.recompute for name in ("torchtune", "nanotron", "torchtitan", "litgpt")}
    assert kinds == {"torchtune": "full", "nanotron": "none", "torchtitan": "selective", "litgpt": "full"}
    assert user(framework="litgpt", num_gpus=1).layout.choices.recompute == "none"


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("Et*3|(tt|)*6mL", [3, 2, 2, 2, 2, 2, 2, 0]),
        ("Et*7|t*7mL", [7, 7]),
        ("Et*2|(tt|)*5t|tmL", [2, 2, 2, 2, 2, 2, 1, 1]),
        ("Et|tL", [1, 1]),
        ("nonsense", None),
        ("Et*99999999999999999999|L", None),
        ("(t)*9999999|", None),
    ],
)
def test_pipeline_layouts(text: str, chunks: list[int] | None) -> None:
    """Megatron's pipeline layouts, and texts that are none."""
    assert chunk_layers(text) == chunks


def test_dates() -> None:
    """The first ISO date of what sources write."""
    assert [iso_date(t) for t in ("2022-2023", "2021-05/06", "2022-02-20", "2024", "")] == ["2022", "2021-05", "2022-02-20", "2024", ""]
