"""Facts read from the free text of rows, checked against rows that were read by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.runs import Run, read
from planner.runs.notes import stated

TABLE = Path(__file__).resolve().parent.parent / "published" / "runs.csv"


@cache
def runs() -> dict[str, Run]:
    return {run.id: run for run in read(TABLE).runs}


FACTS = [
    ("mbr-0005", "head_dim", "64"),
    ("mbr-0005", "ffn_is_expert", "yes"),
    ("mbr-0005", "sliding", "yes"),
    ("mbr-0005", "routing", "balanced"),
    ("mbr-0011", "hybrid", "Mamba2/attention/MoE,"),
    ("mbr-0011", "moe_ffn", "1856"),
    ("mbr-0011", "squared_relu", "yes"),
    ("mbr-0021", "cuda_graphs", "full"),
    ("mbr-0021", "moe_dispatcher", "hybridep"),
    ("mbr-0021", "moe_a2a_overlap", "yes"),
    ("mbr-0021", "regression", "yes"),
    ("mbr-0043", "moe_ffn", "2048"),
    ("mbr-0043", "dense_layers", "3"),
    ("mbr-0043", "dense_ffn", "18432"),
    ("mbr-0043", "shared_experts", "1"),
    ("mbr-0043", "mla", "yes"),
    ("mbr-0043", "recompute_modules", "mla_up_proj"),
    ("mbr-0043", "cuda_graphs", "'attn', 'moe_router', 'moe_preprocess'"),
    ("mbr-0053", "dense_layers", "1"),
    ("mbr-0053", "moe_ffn", "2048"),
    ("mbr-0003", "recompute_modules", "mla_up_proj"),
    ("dgxc-0001", "cut", "2 of 64"),
    ("dgxc-0001", "ffn_is_expert", "yes"),
    ("dgxc-0354", "layer_freq", "2"),
    ("dgxc-0354", "moe_ffn", "8192"),
    ("dgxc-0354", "dense_ffn", "16384"),
    ("dgxc-0354", "shared_experts", "1"),
    ("dgxc-0354", "recompute_layers", "0"),
    ("dgxc-0199", "recompute_policy", "save_qkv_proj"),
    ("dgxc-0119", "recompute_policy", "SAVE_DOT_ONLY"),
    ("dgxc-0332", "recompute_modules", "mla_up_proj"),
    ("moetr-0003", "recompute_modules", "mlp"),
    ("moetr-0003", "mtp", "yes"),
    ("zoo-0001", "recompute_modules", "norm,act"),
    ("zoo-0002", "moe_a2a_overlap", "yes"),
    ("zoo-0004", "moe_dispatcher", "A2A"),
    ("simumax-005", "q_lora", "1536"),
    ("simumax-005", "kv_lora", "512"),
    ("simumax-005", "dense_layers", "1"),
    ("simumax-005", "moe_ffn", "1536"),
    ("simumax-005", "shared_width", "3072"),
    ("simumax-005", "capacity_factor", "1"),
    ("simumax-005", "capacity_padded", "yes"),
    ("simumax-005", "cross_entropy_fusion", "te"),
    ("simumax-005", "overlap_all", "no"),
    ("fold-0006", "shared_width", "20480"),
    ("fold-0006", "capacity_factor", "1"),
    ("litgpt-001", "trainable", "1,572,864"),
    ("litgpt-001", "quantization", "None"),
    ("litgpt-001", "longest_sample", "yes"),
    ("litgpt-002", "quantization", "bnb.nf4"),
    ("litgpt-003", "quantization", "bnb.nf4-dq"),
    ("litgpt-024", "other_adapter", "Adapter"),
    ("litgpt-030", "other_adapter", "Adapter V2"),
    ("lghub-005", "recipe", "gemma-2b/lora.yaml"),
    ("lghub-012", "recipe", "gemma2b/qlora.yaml"),
    ("qwen-007", "train_embeddings", "yes"),
    ("qwen-007", "flash_attention", "2"),
    ("peft-010", "lora_rank", "64"),
    ("peft-010", "lora_targets", "'v_proj', 'q_proj'"),
    ("peft-002", "pure_bf16", "yes"),
    ("peft-010", "adapter_fp32", "yes"),
    ("tt-001", "compile", "no"),
    ("tt-002", "compile", "yes"),
    ("tt-001", "recompute_policy", "op"),
    ("tt-033", "recompute_every", "2"),
    ("tt-026", "async_tp", "yes"),
    ("tt-031", "gpu_network_gbps", "400"),
    ("tt-031", "float8_gather", "yes"),
    ("tt-057", "full_cross_entropy", "yes"),
    ("tt-058", "loss_chunks", "8"),
    ("tt-060", "cuda_graphs", "full"),
    ("ao-012", "recompute_every", "2"),
    ("ao-018", "cut", "48 -> 2"),
    ("kwai-014", "recompute_policy", "kwai"),
    ("nemo-0017", "packed", "yes"),
    ("mosaic-202", "reduce_dtype", "16bit"),
    ("bs-131", "embedding_is_layer", "yes"),
    ("bs-131", "grad_accumulation_fp32", "yes"),
    ("bs-209", "chunks", "4"),
    ("dlperf-001", "vocab", "51200"),
    ("dlperf-001", "node_network_gbps", "100"),
    ("mll-003", "node_network_gbps", "4x200"),
    ("ds-001", "states", "fp32"),
    ("ds-002", "states", "bf16"),
    ("ds-002", "autocast", "yes"),
    ("nano-001", "tied_below_b", "4"),
    ("nano-001", "grad_accumulation_fp32", "yes"),
    ("vtm-001", "overlap_grad_reduce", "no"),
    ("gold-0098", "deterministic", "yes"),
    ("gold-0099", "older_stack", "yes"),
]


@pytest.mark.parametrize(("row", "name", "value"), FACTS)
def test_fact(row: str, name: str, value: str) -> None:
    """A fact that the row's notes print is read as printed."""
    assert stated(runs()[row]).facts[name] == value


ABSENT = [
    ("dgxc-0001", "routing"),
    ("mbr-0290", "routing"),
    ("litgpt-001", "other_adapter"),
    ("tt-001", "cuda_graphs"),
    ("tt-063", "cuda_graphs"),
    ("kwai-033", "recompute_policy"),
    ("fold-0001", "moe_ffn"),
    ("mbr-0043", "recompute_policy"),
]


@pytest.mark.parametrize(("row", "name"), ABSENT)
def test_fact_that_is_not_there(row: str, name: str) -> None:
    """Words that only look like a fact are not read as one."""
    assert name not in stated(runs()[row]).facts


def test_megatron_arguments() -> None:
    """Arguments behind `args:` are read with bracketed lists and without dashes."""
    said = stated(runs()["gold-0423"])
    assert said.arguments["recompute-modules"] == "layernorm mla_up_proj mlp moe_act"
    assert said.arguments["pipeline-model-parallel-layout"] == "Et*3|(tt|)*6tmL"
    assert said.arguments["moe-layer-freq"] == "([0]*3+[1]*13)"
    assert said.argument("moe-ffn-hidden-size") == 1024
    assert said.argument("transformer-impl") is None
    assert stated(runs()["mbr-0005"]).arguments == {}


def test_targets_are_short_names_in_order() -> None:
    """peft's module names become q, k, v, o, gate, up, down."""
    assert stated(runs()["peft-004"]).targets == ("gate", "up", "down")
    assert stated(runs()["peft-001"]).targets == ("q", "v")
    assert stated(runs()["litgpt-001"]).targets is None


def test_no_notes_no_facts() -> None:
    """A row of a user's own file without notes states nothing."""
    said = stated(Run(id="mine"))
    assert (said.facts, said.arguments) == ({}, {})


def test_an_argument_ends_where_the_next_note_begins() -> None:
    found = stated(Run(id="mine", notes="args: attention-backend=unfused; vocabulary 128,000; RMSNorm not fused"))
    assert found.arguments["attention-backend"] == "unfused"
    assert "norm_kernel" not in found.facts


@pytest.mark.parametrize(
    ("notes", "name", "value"),
    [
        ("flash-attention 2 and fused RMSNorm", "norm_kernel", "fused"),
        ("flash-attention 1; fused MLP, dropout-add-norm and loss", "fused_cross_entropy", "yes"),
        ("CHECKPOINT_POLICY SAVE_DOT_WITH_NO_BATCH_DIM", "recompute_policy", "SAVE_DOT_WITH_NO_BATCH_DIM"),
    ],
)
def test_kernels_that_notes_name(notes: str, name: str, value: str) -> None:
    assert stated(Run(id="mine", notes=notes)).facts[name] == value
