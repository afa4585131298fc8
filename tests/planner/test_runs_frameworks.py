"""Rows of every framework: what a blank cell stands for, as the sources of the frameworks have it, and that the sums come out."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.choices.precision import REGIMES, regime_of
from cost_models.cost import cost
from cost_models.numeric import num
from cost_models.stack import resolve
from hardware.units import GIB
from planner.runs import Run, Skip, Spec, spec
from planner.runs.frameworks import Setting, framework_names, habits

LLAMA_8B = {"layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256, "gated_mlp": True}
LLAMA_7B = {"layers": 32, "hidden": 4096, "ffn_hidden": 11008, "heads": 32, "vocab": 32000, "gated_mlp": True}
GPT_7B = {"layers": 32, "hidden": 4096, "ffn_hidden": 16384, "heads": 32, "vocab": 50304, "gated_mlp": False}
P_8B, P_7B, P_GPT = 8.03e9, 6.74e9, 6.86e9
"""Parameters, head and embedding apart."""


def row(framework: str, detail: str = "", **given: Any) -> Run:
    """A row that states its model, its machine and its micro-batch, and leaves all else blank."""
    stated: dict[str, Any] = {**LLAMA_8B, "seq_len": 4096, "gpu": "H100-80G", "num_gpus": 8, "micro_batch": 1}
    return Run(**{"id": "mine", "framework": framework, "framework_detail": detail, **stated, **given})


def read(framework: str, detail: str = "", **given: Any) -> Spec:
    found = spec(row(framework, detail, **given))
    assert isinstance(found, Spec), found
    return found


ALL = ("q", "k", "v", "o", "gate", "up", "down")
PARALLEL = {"tp": 1, "pp": 1}
RESOLVED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("torchtune", "", {}, {"regime": "pure-bf16", "zero": 3, "recompute": "full", "loss": "chunked", "optimizer": "adamw"}),
    ("torchtune", "", {"precision": "bf16"}, {"regime": "pure-bf16", "precision": "bf16"}),
    ("torchtune", "", {"num_gpus": 1}, {"optimizer": "adam8bit", "paged_optimizer": "yes", "optimizer_in_backward": "yes"}),
    ("torchtune", "", {"num_gpus": 1, "optimizer": "AdamW"}, {"optimizer": "adamw", "paged_optimizer": None}),
    ("torchtune", "", {"method": "lora"}, {"regime": "adapter-bf16", "targets": ("q", "v", "o", "gate", "up", "down"), "rank": 8}),
    ("torchtune", "", {"method": "lora", "date": "2024-06"}, {"targets": ("q", "v"), "loss": "eager"}),
    ("torchtune", "", {"method": "qlora", "num_gpus": 1}, {"regime": "adapter-bf16", "recompute": "full", "optimizer": "adamw"}),
    ("internevo", "", PARALLEL, {"regime": "deepspeed", "zero": 1, "recompute": "none", "implementation": "megatron", "foreach": False}),
    ("internevo", "", {**PARALLEL, "date": "2023-11"}, {"foreach": True, "regime": "deepspeed"}),
    ("internevo", "", {"tp": 2, "pp": 1}, {"sequence_parallel": False, "vocab_multiple": 1.0}),
    ("internevo", "", {**PARALLEL, "sharding": "zero3"}, {"regime": "fp32-master", "framework": "fsdp", "zero": 3}),
    ("colossalai", "", PARALLEL, {"regime": "gemini", "zero": 3, "recompute": "full", "loss": "eager", "foreach": False}),
    ("colossalai", "", {**PARALLEL, "sharding": "zero2"}, {"regime": "deepspeed", "framework": "deepspeed", "reduce_bucket": "12582912"}),
    ("colossalai", "", {"tp": 4, "pp": 2}, {"regime": "fp32-master", "zero": 0, "loss": "vocab-parallel"}),
    ("paddle", "", PARALLEL, {"regime": "paddle", "zero": 2, "recompute": "none", "loss": "eager", "sequence_parallel": False}),
    ("paddle", "", {"tp": 2, "pp": 2}, {"regime": "paddle", "zero": 1, "vocab_multiple": 1.0}),
    ("paddle", "", {**PARALLEL, **GPT_7B}, {"dropout": 0.1}),
    ("paddle", "", {**PARALLEL, "method": "lora"}, {"recompute": "full", "zero": 1}),
    ("paddle", "FlagPerf", {**PARALLEL, "date": "2023-09"}, {"rope_inputs": "kept", "dropout": 0.0}),
    ("xtuner", "", {}, {"regime": "fsdp", "framework": "fsdp", "zero": 3, "recompute": "full"}),
    ("xtuner", "", {"sharding": "zero2"}, {"regime": "deepspeed", "framework": "deepspeed", "zero": 2}),
    ("hf", "", {**PARALLEL, "sharding": "zero2"}, {"regime": "deepspeed", "framework": "deepspeed"}),
    ("hf", "accelerate FSDP", {**PARALLEL, "sharding": "zero3"}, {"regime": "fsdp", "framework": "fsdp"}),
    ("xtuner", "", {"date": "2024-05"}, {"regime": "deepspeed", "framework": "deepspeed", "zero": 2}),
    ("xtuner", "", {"method": "qlora", "num_gpus": 1}, {"regime": "adapter-master", "rank": 64, "targets": ALL, "kbit_prepare": False}),
    ("xtuner", "", {"method": "lora", "num_gpus": 1, "sharding": "none"}, {"regime": "adapter-fp32", "base_dtype": "fp32"}),
    ("ms-swift", "", {}, {"regime": "pure-bf16", "zero": 0, "recompute": "full", "loss": "eager"}),
    ("ms-swift", "", {"sharding": "zero2"}, {"regime": "deepspeed", "framework": "deepspeed", "reduce_bucket": "200000000"}),
    ("ms-swift", "", {"method": "lora"}, {"regime": "adapter-fp32", "rank": 8, "targets": ALL}),
    ("ms-swift", "Megatron-SWIFT", {"tp": 2, "pp": 2}, {"framework": "megatron", "recompute": "selective", "zero": 1}),
    ("unsloth", "", {"method": "qlora", "num_gpus": None}, {"regime": "adapter-fp32", "adapter_fp32": False, "rank": 16, "gpus": 1}),
    ("unsloth", "", {"method": "qlora"}, {"recompute": "full", "activation_offload": 1.0, "loss": "fused", "double_quant": True}),
    ("unsloth", "", {"method": "lora", "date": "2024-01"}, {"activation_offload": 0.0, "loss": "chunked", "loss_kernel": "in-place"}),
    ("unsloth", "", {"method": "sft"}, {"regime": "pure-bf16"}),
    ("primus", "", {**PARALLEL, "gpu": "MI300X-192G"}, {"regime": "megatron", "zero": 1, "recompute": "none", "loss": "vocab-parallel"}),
    ("primus", "torchtitan backend", {**PARALLEL, "gpu": "MI300X-192G"}, {"regime": "fsdp", "zero": 3, "implementation": "compiled"}),
    ("primus", "MaxText", {**PARALLEL, "gpu": "MI300X-192G"}, {"regime": "fsdp", "recompute": "full", "implementation": "compiled"}),
    ("hf", "LLaMA-Factory 0.9", {**PARALLEL, "method": "sft"}, {"regime": "autocast", "recompute": "full", "foreach": False}),
    ("hf", "LLaMA-Factory 0.8", {**PARALLEL, "date": "2024-06", "method": "sft"}, {"foreach": True}),
    ("deepspeed", "LLaMA-Factory + ZeRO-3", {**PARALLEL, "sharding": "zero3"}, {"regime": "deepspeed", "zero": 3, "overlap_comm": "no"}),
    ("other", "llama-factory", {**PARALLEL, "method": "lora"}, {"regime": "adapter-fp32", "rank": 8, "targets": ALL}),
    ("axolotl", "", {"method": "lora"}, {"rank": 32, "optimizer": "adam8bit", "recompute": "full"}),
    ("fsdp", "axolotl", {**PARALLEL}, {"regime": "fsdp", "framework": "fsdp", "zero": 3, "recompute": "full"}),
    ("trl", "", {"method": "sft"}, {"regime": "autocast", "loss": "fused", "recompute": "full"}),
    ("trl", "", {"method": "sft", "date": "2025-12-10"}, {"regime": "pure-bf16", "loss": "eager", "recompute": "full"}),
    ("trl", "", {"method": "sft", "date": "2025-03"}, {"regime": "autocast", "loss": "eager", "recompute": "none"}),
    ("trl", "", {"method": "qlora"}, {"regime": "adapter-bf16", "double_quant": False, "targets": ("q", "v")}),
    ("open-instruct", "", {}, {"regime": "deepspeed", "zero": 3, "recompute": "none"}),
    ("nanotron", "", PARALLEL, {"regime": "nanotron", "zero": 1, "recompute": "none"}),
    ("litgpt", "", PARALLEL, {"regime": "pure-bf16", "zero": 3, "recompute": "full", "loss": "chunked"}),
    ("torchtitan", "", PARALLEL, {"regime": "fsdp", "zero": 3, "recompute": "selective", "loss": "chunked"}),
    ("olmo-core", "", PARALLEL, {"regime": "fsdp", "zero": 3, "recompute": "none", "loss": "eager", "implementation": "compiled"}),
    ("jax", "MaxText", PARALLEL, {"regime": "fsdp", "zero": 3, "recompute": "full", "loss": "compiled"}),
    ("llm-foundry", "", PARALLEL, {"regime": "fsdp", "zero": 3, "recompute": "full"}),
    ("megatron-deepspeed", "", {"tp": 2, "pp": 2}, {"regime": "bf16-optimizer", "recompute": "full", "zero": 0}),
    ("megatron", "Megatron-LLM", {"tp": 8, "pp": 1}, {"zero": 0, "recompute": "selective", "sequence_parallel": True}),
    ("megatron", "NeMo 25.04", {**PARALLEL, "method": "lora"}, {"zero": 0, "rank": 8, "targets": ("q", "k", "v")}),
    ("oneflow", "OneFlow LiBai", {**PARALLEL, **GPT_7B}, {"recompute": "none", "implementation": "megatron-unfused", "regime": "autocast"}),
    ("deepspeed", "HF accelerate + DeepSpeed ZeRO-3 (EasyContext)", {**PARALLEL, "sharding": "zero3"}, {"regime": "deepspeed", "zero": 3}),
    ("deepspeed", "FlagPerf DeepSpeed", PARALLEL, {"zero": 3, "reduce_bucket": "10000000"}),
]  # fmt: skip


def resolved(found: Spec) -> dict[str, Any]:
    """Every choice of a row under one flat name each."""
    t, c, stack = found.training, found.layout.choices, resolve(found.training)
    return {
        **dict.fromkeys(("paged_optimizer", "optimizer_in_backward")),
        **t.extra,
        "regime": regime_of(t, c).name,
        "zero": c.zero,
        "recompute": c.recompute,
        "sequence_parallel": c.sequence_parallel,
        "loss": stack.loss,
        "implementation": stack.implementation,
        "foreach": stack.foreach,
        "adapter_fp32": stack.adapter_fp32,
        "vocab_multiple": stack.vocab_multiple,
        "framework": t.framework,
        "optimizer": t.optimizer,
        "precision": t.precision,
        "dropout": t.dropout,
        "rank": t.lora_rank,
        "targets": t.lora_targets,
        "kbit_prepare": t.kbit_prepare,
        "double_quant": t.double_quant,
        "activation_offload": float(num(found.layout.degrees.activation_offload)),
        "gpus": found.pool.count,
    }


@pytest.mark.parametrize(("framework", "detail", "given", "expected"), RESOLVED, ids=lambda v: v if isinstance(v, str) else None)
def test_blank_cells(framework: str, detail: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Blank recompute, sharding, optimizer, precision and degrees become what the framework's own defaults are."""
    found = resolved(read(framework, detail, **given))
    assert {name: found[name] for name in expected} == expected


DEEPSEEK = {"model": "DeepSeek-V3", "layers": 61, "hidden": 7168, "heads": 128, "experts": 256, "topk": 8, "tp": 1, "notes": "MLA"}
QWEN = {"model": "Qwen3-30B-A3B", "layers": 48, "hidden": 2048, "heads": 32, "experts": 128, "topk": 8, **PARALLEL}
RECIPES: list[tuple[str, dict[str, Any], dict[str, str | None]]] = [
    # the source's words, cells, switches (None: not set)
    ("NeMo", {**DEEPSEEK, "pp": 16, "num_gpus": 256, "date": "2025-06"}, {"moe_dispatcher": "alltoall", "capacity_padded": "yes"}),
    ("NeMo", {**DEEPSEEK, "pp": 16, "num_gpus": 256, "date": "2025-09"}, {"moe_dispatcher": "deepep", "capacity_padded": None}),
    ("Megatron-Bridge v0.1.0rc4", {**QWEN, "gpu": "B200", "precision": "fp8"}, {"cuda_graphs": "layers", "capacity_padded": "yes"}),
    (
        "Megatron-Bridge v0.4.0",
        {**QWEN, "gpu": "GB300", "precision": "mxfp8"},
        {"cuda_graphs": "moe_router,moe_preprocess", "moe_dispatcher": "hybridep"},
    ),
    ("Megatron-Bridge v0.6.0", {**QWEN, "gpu": "GB300", "precision": "mxfp8"}, {"cuda_graphs": "full", "moe_a2a_overlap": "yes"}),
    ("Megatron-Bridge v0.6.0", {**QWEN, "gpu": "GB300", "precision": "bf16"}, {"cuda_graphs": None, "moe_a2a_overlap": None}),
    ("Megatron-Bridge v0.4.0", {**QWEN, "gpu": "H100-80G", "precision": "fp8"}, {"fp8_param_gather": "yes", "moe_dispatcher": "alltoall"}),
    ("Megatron-Bridge v0.4.0", {**QWEN, "gpu": "H100-80G", "precision": "bf16"}, {"fp8_param_gather": None}),
]  # fmt: skip


@pytest.mark.parametrize(("detail", "given", "expected"), RECIPES)
def test_recipes_of_mixtures_of_experts(detail: str, given: dict[str, Any], expected: dict[str, str | None]) -> None:
    """What the recipe files of a release set and its tables do not say, by model, card and type."""
    found = read("megatron", detail, **given).training.extra
    assert {name: found.get(name) for name in expected} == expected


def test_recipes_deal_deepseek_to_stages_with_a_light_last_one() -> None:
    """`Et*4|(t*4|)*14tmL`: four layers a stage, one beside the multi-token-prediction module and the head."""
    found = read("megatron", "Megatron-Bridge v0.4.0", **DEEPSEEK, pp=16, num_gpus=256, gpu="B200")
    assert found.layout.stage_layers == (*(4,) * 15, 1) and found.training.mtp and found.architecture.mtp_layers == 1
    assert found.layout.choices.recompute == "selective" and found.layout.choices.recompute_modules == ("mla_up_proj",)
    interleaved = read("megatron", "Megatron-Bridge v0.4.0", **DEEPSEEK, pp=4, vpp=4, num_gpus=256)
    assert interleaved.layout.stage_layers == (16, 16, 16, 13)


def test_latent_attention_is_unfused_on_blackwell_before_its_kernel() -> None:
    """cuDNN 9.11 (July 2025) brought the backward with head sizes 192 and 128 on Blackwell; Hopper had one."""
    kinds = {
        (gpu, date): read("megatron", "NeMo", **DEEPSEEK, pp=16, num_gpus=256, gpu=gpu, date=date).training.attention
        for gpu in ("GB200", "H100-80G")
        for date in ("2025-06", "2025-09")
    }
    assert [k for k, kind in kinds.items() if kind == "eager"] == [("GB200", "2025-06")]


def test_every_framework_states_its_source() -> None:
    """Each entry names a repository or a file, and none runs under a regime that the cost models lack."""
    for name in framework_names():
        for sharding in ("", "none", "zero1", "zero2", "zero3"):
            for parallel in (False, True):
                found = habits(name, Setting(sharding=sharding, model_parallel=parallel))
                assert found is not None and len(found.origin) > 20
                assert found.regime is None or found.regime in REGIMES


def test_a_stated_cell_wins() -> None:
    """What the row says is never replaced by a default."""
    given: dict[str, Any] = {"recompute": "none", "sharding": "zero1", "optimizer": "AdamW", "precision": "bf16", "tp": 1, "pp": 1}
    for name in framework_names():
        found = read(name, **given)
        assert found.layout.choices.recompute == "none" and found.layout.choices.zero == 1
        assert found.training.optimizer == "adamw" and found.training.precision == "bf16"
        assert not {"recompute", "sharding", "optimizer", "precision"} & found.assumed.keys()


def test_frameworks_without_model_parallelism() -> None:
    """Blank tp and pp are 1 where the code base has neither; elsewhere the row cannot be predicted."""
    assert read("torchtune").assumed["tp"].startswith("1 ")
    missing = spec(row("internevo"))
    assert isinstance(missing, Skip) and missing.reason == "does not state tp, pp"


def test_overrides_by_date_hold_from_that_day() -> None:
    """`since` and `before` compare as much of a date as the row gives; an undated row is of today."""
    assert habits("torchtune", Setting(date="2024-10")).lora != habits("torchtune", Setting(date="2024-11")).lora  # type: ignore[union-attr]
    assert habits("internevo", Setting()).extra.get("optimizer_kernel") is None  # type: ignore[union-attr]
    assert habits("internevo", Setting(date="2023")).extra["optimizer_kernel"] == "foreach"  # type: ignore[union-attr]


S = 4096.0
"""Tokens of one micro-batch."""
MLP_8B, MLP_7B = 14336.0, 11008.0
H, L = 4096.0, 32.0
ACCUMULATED = {"global_batch": 32}
"""Four micro-batches a step, so that gradients are there while a forward runs."""
ADAPTERS_ALL_16 = 16.0 * L * (2 * (H + H) + 2 * (H + 1024) + 3 * (H + MLP_8B))
"""Elements of rank-16 adapters on all linear layers of Llama-3-8B."""
LORA_KEPT = 2 * 4 * H + 2 * 2 * H + 2 * (2 * H + 2 * 1024) + 8 * MLP_8B
"""Bytes of a layer and token with adapters of torchtune: fp32 inputs of two norms, their results, q, k, v and the attention output, and
gate, up, activated gate and product."""
BY_HAND: list[tuple[str, str, dict[str, Any], float, float]] = [
    # framework, detail, cells, states in bytes, activations and logits in bytes (each by another formula than the program's)
    ("torchtune", "", {}, P_8B * 8 / 8, L * S * H * 2 + 4 * S * 128256 + 3 * P_8B / L * 2),
    ("torchtune", "", {"method": "lora"}, P_8B * 2 / 8 + 1.05e9, L * S * LORA_KEPT + 4 * S * 128256 + 2 * P_8B / L * 2),
    ("torchtune", "", {"method": "lora", "num_gpus": 1}, P_8B * 2, L * S * H * 2 + 5.2 * S * 128256 + S * LORA_KEPT),
    ("internevo", "", {**PARALLEL, **LLAMA_7B, **ACCUMULATED}, P_7B * (4 + 12 / 8), L * S * (17 * H + 7 * MLP_7B) + 2 * S * 32000 + 2e9),
    ("colossalai", "", {**PARALLEL, **LLAMA_7B}, P_7B * 14 / 8, L * S * H * 2 + 12 * S * 32000 + 18 * S * H * 2 + 3 * P_7B / L * 2),
    ("paddle", "", {**PARALLEL, **LLAMA_7B, **ACCUMULATED}, P_7B * (2 + 2 / 8 + 12 / 8), L * S * (17 * H + 7 * MLP_7B) + 12 * S * 32000),
    ("xtuner", "", {"date": "2024-05"}, P_8B * (2 + 2 / 8 + 12 / 8), L * S * H * 2 + 16 * S * 128256 + 2e9),
    ("ms-swift", "", {"method": "sft", "num_gpus": 1}, P_8B * 8, L * S * H * 2 + 2 * S * 128256),
    ("ms-swift", "", {"method": "sft", "sharding": "zero3"}, P_8B * 16 / 8, L * S * H * 2 + 12 * S * 128256 + 4e9),
    ("unsloth", "", {"method": "qlora", "num_gpus": 1}, 7.0e9 / 2 * 1.03 + 1.05e9 * 2 + ADAPTERS_ALL_16 * 16, 6 * S * 128256),
    ("llama-factory", "", {"method": "sft", "sharding": "zero2"}, P_8B * (2 + 2 / 8 + 12 / 8), L * S * H * 2 + 12 * S * 128256 + 2e9),
    ("trl", "", {"method": "sft", "num_gpus": 1, "date": "2025-03"}, P_8B * 16, L * S * (32 * H + 8 * MLP_8B) + 12 * S * 128256),
    ("primus", "", {**PARALLEL, "gpu": "MI300X-192G"}, P_8B * (6 + 12 / 8), L * S * (13 * H + 6 * MLP_8B) + 6 * S * 128256),
    ("nanotron", "", PARALLEL, P_8B * (6 + 12 / 8), L * S * (17 * H + 8 * MLP_8B) + 12 * S * 128256),
    ("olmo-core", "", PARALLEL, P_8B * 16 / 8, L * S * (23 * H + 8 * MLP_8B) + 12 * S * 128256 + 3 * P_8B / L * 2),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "detail", "given", "states", "rest"), BY_HAND, ids=lambda v: v if isinstance(v, str) else None)
def test_sums_by_hand(framework: str, detail: str, given: dict[str, Any], states: float, rest: float) -> None:
    """Peak within a fifth of states by the regime's bytes per parameter plus activations by rules of thumb."""
    found = read(framework, detail, **given)
    peak = float(num(cost(found.architecture, found.training, found.layout, found.pool).memory.peak_allocated_bytes))
    assert peak == pytest.approx(states + rest, rel=0.2), f"{peak / GIB:.1f} GiB, by hand {(states + rest) / GIB:.1f}"


def test_an_unnamed_stack_fuses_and_overlaps_nothing() -> None:
    unnamed = read("other", "in-house", tp=2, pp=1, dp=4).training
    named = read("other", "Megatron-LM of ours", tp=2, pp=1, dp=4).training
    assert unnamed.framework == named.framework == "megatron"
    assert unnamed.extra["class"] == "eager" and "class" not in named.extra


@pytest.mark.parametrize(
    ("date", "precision", "compiled"), [("2024-04", "bf16", False), ("2024-04", "fp8", None), ("2025-06", "bf16", None)]
)
def test_torchtitan_of_2024_is_not_compiled(date: str, precision: str, compiled: bool | None) -> None:
    assert read("torchtitan", date=date, precision=precision, **PARALLEL).training.compile is compiled
