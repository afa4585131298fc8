"""What frameworks without a measured row of ours do by default, each fact with its file, and names and cards as tables spell them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.choices.precision import regime_of
from cost_models.cost import cost
from cost_models.memory.losses import KEPT_LOGITS_BYTES
from cost_models.numeric import num
from cost_models.stack import resolve
from cost_models.throughput.software import software
from cost_models.throughput.traffic import traffic
from hardware.units import GB
from planner.runs import Run, Skip, Spec, spec
from planner.runs.frameworks import Setting, framework_names, habits
from planner.validate_predict import class_of

LLAMA_8B = {"layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256, "gated_mlp": True}
PARALLEL = {"tp": 1, "pp": 1}


def read(framework: str, detail: str = "", **given: Any) -> Spec:
    """A row with the bare columns, read."""
    stated: dict[str, Any] = {**LLAMA_8B, "seq_len": 4096, "gpu": "H100-80G", "num_gpus": 8, "micro_batch": 1}
    found = spec(Run(**{"id": "mine", "framework": framework, "framework_detail": detail, **stated, **given}))
    assert isinstance(found, Spec), found
    return found


SPELLED = [
    ("LLaMA-Factory", "llama-factory"),
    ("llamafactory", "llama-factory"),
    ("LLaMA Factory", "llama-factory"),
    ("swift", "ms-swift"),
    ("MS-SWIFT", "ms-swift"),
    ("ms_swift 3.8", "ms-swift"),
    ("PaddleNLP", "paddle"),
    ("PaddlePaddle", "paddle"),
    ("InternLM", "internevo"),
    ("InternEvo v0.3.0", "internevo"),
    ("XTuner", "xtuner"),
    ("xtuner v1", "xtuner"),
    ("TorchTune", "torchtune"),
    ("torchtune 0.6.1", "torchtune"),
    ("Unsloth", "unsloth"),
    ("Axolotl", "axolotl"),
    ("TRL", "trl"),
    ("OLMo-core", "olmo-core"),
    ("olmo_core", "olmo-core"),
    ("Open-Instruct", "open-instruct"),
    ("OpenLM", "open_lm"),
    ("GPT-NeoX", "gpt-neox"),
    ("neox", "gpt-neox"),
    ("Colossal-AI", "colossalai"),
    ("Megatron-LM", "megatron"),
    ("NeMo", "megatron"),
    ("HuggingFace", "hf"),
    ("transformers", "hf"),
    ("MaxText", "jax"),
    ("lit-gpt", "litgpt"),
    ("Primus", "primus"),
    ("", "other"),
]


@pytest.mark.parametrize(("cell", "name"), SPELLED)
def test_names_as_tables_spell_them(cell: str, name: str) -> None:
    """Case, hyphens, spaces and a version behind the name do not count, and projects have several names."""
    assert habits(cell, Setting()) == habits(name, Setting())
    assert habits(cell, Setting()) is not None


def test_every_name_means_one_framework() -> None:
    """No two entries share a spelling, and an unknown name stays unknown."""
    squeezed: dict[str, str] = {}
    for name in framework_names():
        found = habits(name, Setting())
        assert found is not None
        for spelling in {name, *found.names}:
            text = "".join(c for c in spelling.lower() if c.isalnum())
            assert squeezed.setdefault(text, name) == name
    assert habits("no such thing", Setting()) is None and habits("7", Setting()) is None


@pytest.mark.parametrize("words", ["LLaMA Factory 0.9", "llamafactory + ZeRO-3", "with LLAMA-FACTORY"])
def test_trainers_are_known_by_their_words(words: str) -> None:
    """A row of `hf` or of a sharder whose details name a trainer has that trainer's defaults."""
    assert read("hf", words, **PARALLEL, method="sft").layout.choices.recompute == "full"


FACTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    # pytorch/torchtune recipes/configs: llama3_1/8B_lora.yaml, 70B_lora.yaml, 8B_qlora_single_device.yaml, llama3_2/3B_lora.yaml
    ("torchtune", "", {"method": "lora"}, {"recompute": "none"}),
    ("torchtune", "", {"method": "lora", "num_gpus": 1}, {"recompute": "full"}),
    ("torchtune", "", {"method": "lora", "model": "Llama-3.1-70B"}, {"recompute": "full"}),
    ("torchtune", "", {"method": "qlora"}, {"recompute": "full"}),
    ("torchtune", "", {"method": "lora", "model": "Llama-3.2-3B"}, {"rank": 64}),
    ("torchtune", "", {"method": "qlora", "num_gpus": 1, "date": "2024-07"}, {"targets": ("q", "k", "v", "o", "gate", "up", "down")}),
    ("torchtune", "", {"method": "lora", "date": "2024-07"}, {"targets": ("q", "v"), "loss": "eager", "foreach": True}),
    # llama3/70B_full.yaml: fsdp_cpu_offload True; llama3_3/70B_full_multinode.yaml: False
    ("torchtune", "", {"method": "sft", "model": "Llama-3.1-70B"}, {"offload": "optimizer+params"}),
    ("torchtune", "multinode", {"method": "sft", "model": "Llama-3.3-70B"}, {"offload": "none"}),
    ("torchtune", "", {"method": "sft", "model": "Llama-3.1-70B", "offload": "none"}, {"offload": "none"}),
    # modules/loss: head before loss until 30 April 2025; fused AdamW from 14 September 2024
    ("torchtune", "", {"date": "2025-04"}, {"loss": "chunked", "loss_logits": "kept", "foreach": False}),
    ("torchtune", "", {"date": "2025-06"}, {"loss": "chunked", "loss_logits": None}),
    ("torchtune", "compile=True", {}, {"implementation": "compiled"}),
    ("torchtune", "compile=False", {}, {"implementation": "hf"}),
    ("torchtune", "activation offloading", {}, {"activation_offload": 1.0}),
    ("torchtune", "enable_activation_offloading=False", {}, {"activation_offload": 0.0}),
    # InternLM/InternEvo configs/7B_sft.py: mtp has no sequence parallelism, msp and fsp have; isp gathers weights and cuts the sequence
    ("internevo", "mtp", {"tp": 4, "pp": 1}, {"sequence_parallel": False, "tp": 4.0, "cp": 1.0}),
    ("internevo", "tensor mode msp", {"tp": 4, "pp": 1}, {"sequence_parallel": True, "tp": 4.0}),
    ("internevo", "fsp", {"tp": 4, "pp": 1}, {"sequence_parallel": True}),
    ("internevo", "isp, wp 4", {"tp": 4, "pp": 1}, {"tp": 1.0, "cp": 4.0, "dp": 2.0}),
    # unsloth models/rl.py: adamw_8bit; unsloth-zoo fused_losses: 4 GiB chunks from July 2026
    ("unsloth", "", {"method": "qlora"}, {"optimizer": "adam8bit", "loss_chunk_logits": "1073741824"}),
    ("unsloth", "", {"method": "qlora", "date": "2026-01"}, {"loss": "fused", "loss_chunk_logits": "4294967296"}),
    ("unsloth", "", {"method": "qlora", "optimizer": "adamw_torch"}, {"optimizer": "adamw"}),
    # xtuner model/modules/dispatch: triton kernels only where USE_TRITON_KERNEL is set; v1 by its words, whatever the date
    ("xtuner", "", {"date": "2024-05"}, {"norm_kernel": None}),
    ("xtuner", "XTuner v0.2.0", {}, {"framework": "deepspeed", "regime": "deepspeed"}),
    ("xtuner", "XTuner v1", {}, {"framework": "fsdp", "regime": "fsdp", "implementation": "compiled", "foreach": True}),
    # ms-swift megatron/arguments/megatron_args.py
    ("ms-swift", "Megatron-SWIFT", {"tp": 2, "pp": 2}, {"rope_fusion": "no", "overlap_grad_reduce": "no", "sequence_parallel": False}),
    ("ms-swift", "Megatron-SWIFT 3.8", {"ep": 8, **PARALLEL}, {"framework": "megatron", "recompute": "selective", "zero": 1}),
    ("ms-swift", "Megatron-SWIFT", {"tp": 2, "pp": 2, "date": "2025-10"}, {"cross_entropy_fusion": "no"}),
    # PaddleNLP llm/config/llama/{pretrain,sft}_argument.json, transformers/llama/modeling.py
    ("paddle", "", {**PARALLEL, "method": "pretrain"}, {"norm_kernel": "fused", "rope_fusion": "yes", "attention": "flash"}),
    ("paddle", "", {**PARALLEL, "method": "sft"}, {"norm_kernel": None, "swiglu_fusion": "yes", "attention": "eager"}),
    ("paddle", "flash attention", {**PARALLEL, "method": "sft"}, {"attention": "flash"}),
    ("paddle", "", {**PARALLEL, "method": "lora"}, {"attention": "flash", "recompute": "full"}),
    ("paddle", "", {**PARALLEL, "date": "2023-09"}, {"norm_kernel": None, "swiglu_fusion": "no"}),
    # AMD-AGI/Primus examples/megatron/configs/MI300X and examples/torchtitan/configs/MI300X
    ("primus", "", {**PARALLEL, "gpu": "MI300X", "model": "Llama-3.1-70B"}, {"zero": 3, "regime": "fp32-master", "recompute": "full"}),
    ("primus", "", {**PARALLEL, "gpu": "MI300X", "model": "Llama-3.1-8B"}, {"zero": 1, "regime": "megatron", "recompute": "none"}),
    ("primus", "", {"tp": 8, "pp": 1, "gpu": "MI300X", "model": "Llama-3.1-70B"}, {"zero": 1, "regime": "megatron"}),
    ("primus", "", {**PARALLEL, "model": "DeepSeek-V2-Lite", "date": "2025-10"}, {"moe_dispatcher": "alltoall", "fused_loss": "no"}),
    ("primus", "", {**PARALLEL, "model": "DeepSeek-V2-Lite", "date": "2026-01"}, {"moe_dispatcher": "deepep"}),
    ("primus", "", {**PARALLEL, "model": "Qwen3-30B-A3B", "date": "2026-01"}, {"moe_dispatcher": "alltoall"}),
    ("primus", "torchtitan", {**PARALLEL, "gpu": "MI300X", "model": "Llama-3.1-70B"}, {"zero": 3, "regime": "fsdp", "recompute": "full"}),
    # hiyouga/LLaMA-Factory examples/deepspeed: overlap_comm false from 7 March 2025
    ("llama-factory", "", {"method": "sft", "sharding": "zero2", "date": "2025-02"}, {"overlap_comm": None}),
    ("llama-factory", "", {"method": "sft", "sharding": "zero2", "date": "2025-04"}, {"overlap_comm": "no"}),
    ("llama-factory", "LLaMA-Factory + unsloth", {"method": "lora", "num_gpus": 1}, {"activation_offload": 1.0, "loss": "fused"}),
    # axolotl examples/llama-3: fft-8b.yaml, lora-8b.yml, fft-8b-liger-fsdp.yaml
    ("axolotl", "", {"method": "sft", "num_gpus": 1}, {"optimizer": "adam8bit", "paged_optimizer": "yes"}),
    ("axolotl", "", {"method": "lora", "num_gpus": 1}, {"optimizer": "adam8bit", "paged_optimizer": None}),
    ("axolotl", "liger", {"method": "sft", "sharding": "fsdp"}, {"optimizer": "adamw", "foreach": False, "loss": "fused"}),
    ("llama-factory", "", {"method": "sft", "sharding": "fsdp"}, {"framework": "fsdp", "regime": "fsdp", "reduce_dtype": "16bit"}),
    # trl trainer/utils.py: dtype auto in 0.26 alone, fp32 before and after
    ("trl", "", {"method": "lora", "num_gpus": 1}, {"base_dtype": "fp32"}),
    ("trl", "dtype=bfloat16", {"method": "lora", "num_gpus": 1}, {"base_dtype": "16bit"}),
    ("trl", "", {"method": "lora", "num_gpus": 1, "date": "2025-12"}, {"base_dtype": None}),
    ("trl", "", {"method": "sft", "date": "2026-05"}, {"loss": "eager"}),
    ("trl", "liger", {"method": "sft", "date": "2026-05"}, {"loss": "fused", "norm_kernel": "fused"}),
    # OLMo-core optim/adamw.py, scripts/official/OLMo2
    ("olmo-core", "", {"model": "OLMo-2-32B", **PARALLEL}, {"recompute": "full", "optimizer_kernel": "forloop"}),
    ("olmo-core", "", {"model": "OLMo-3-7B", **PARALLEL}, {"recompute": "none"}),
    # mlfoundations/open_lm, EleutherAI/gpt-neox, stanford-crfm/levanter
    ("open_lm", "", {}, {"regime": "fsdp", "zero": 3, "recompute": "none", "loss": "eager", "mlp_kernel": "recomputed", "foreach": True}),
    ("gpt-neox", "", {"tp": 2, "pp": 4}, {"regime": "deepspeed", "zero": 1, "attention": "eager", "precision": "fp16"}),
    ("gpt-neox", "", {"tp": 2, "pp": 4}, {"recompute": "full", "sequence_parallel": False, "reduce_bucket": "500000000"}),
    ("gpt-neox", "", {"tp": 2, "pp": 1, "model": "Pythia-6.9B"}, {"attention": "flash", "reduce_bucket": "1260000000"}),
    ("gpt-neox", "GPT-NeoX 2.0, flash attention", {"tp": 2, "pp": 4, "precision": "bf16"}, {"attention": "flash"}),
    ("levanter", "", PARALLEL, {"regime": "fsdp", "zero": 3, "recompute": "full", "implementation": "compiled", "loss": "compiled"}),
]  # fmt: skip


def resolved(found: Spec) -> dict[str, Any]:
    """Every choice of a row under one flat name each; switches that are not set are None."""
    t, layout, stack = found.training, found.layout, resolve(found.training)
    degrees = {name: float(num(getattr(layout.degrees, name))) for name in ("tp", "pp", "cp", "dp", "activation_offload")}
    return {
        **t.extra,
        **degrees,
        "regime": regime_of(t, layout.choices).name,
        "zero": layout.choices.zero,
        "recompute": layout.choices.recompute,
        "sequence_parallel": layout.choices.sequence_parallel,
        "offload": layout.choices.offload,
        "loss": stack.loss,
        "implementation": stack.implementation,
        "foreach": stack.foreach,
        "framework": t.framework,
        "optimizer": t.optimizer,
        "precision": t.precision,
        "attention": t.attention,
        "rank": t.lora_rank,
        "targets": t.lora_targets,
    }


@pytest.mark.parametrize(("framework", "detail", "given", "expected"), FACTS, ids=lambda v: v if isinstance(v, str) else None)
def test_defaults_of_the_sources(framework: str, detail: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Blank cells become what the framework's configuration of that date has; the comment above names the file."""
    found = resolved(read(framework, detail, **given))
    assert {name: found.get(name) for name in expected} == expected


def test_every_row_of_facts_can_be_evaluated() -> None:
    """No default contradicts another: memory and time come out positive and finite."""
    for framework, detail, given, _ in FACTS:
        found = read(framework, detail, **given)
        made = cost(found.architecture, found.training, found.layout, found.pool)
        for value in (made.memory.peak_allocated_bytes, made.time.step_seconds):
            assert 0.0 < float(num(value)) < 1e15, (framework, detail, given)


def test_fused_kernels_of_otherwise_eager_stacks() -> None:
    """InternEvo's norm, rotary and gate are single kernels and move each tensor once; torchtune's move what eager ops do."""
    fused, eager = (read(name, **PARALLEL) for name in ("internevo", "torchtune"))
    stacks = [software(s.training, s.layout.choices, s.pool.gpu) for s in (fused, eager)]
    kept = traffic(fused.architecture, fused.training, stacks[0])
    single = traffic(eager.architecture, eager.training, stacks[1])
    assert set(kept.values()) == {(1.0, 1.0)}
    assert all(single[name][0] > kept[name][0] for name in kept)


def test_zero_hooks_are_deepspeeds_own() -> None:
    """Gradients that are reduced in `.grad` after the last micro-batch cost the host nothing in every layer."""
    found = read("internevo", **PARALLEL)
    hooked = found.training.model_copy(update={"extra": {k: v for k, v in found.training.extra.items() if k != "zero_hooks"}})
    bare, held = (software(t, found.layout.choices, found.pool.gpu) for t in (found.training, hooked))
    assert bare.host_backward_seconds < held.host_backward_seconds and bare.host_forward_seconds == held.host_forward_seconds


def test_logits_made_before_their_loss_are_kept() -> None:
    """Two more bytes per logit until April 2025."""
    old, new = (read("torchtune", num_gpus=1, date=date) for date in ("2025-04", "2025-06"))
    peaks = [float(num(cost(s.architecture, s.training, s.layout, s.pool).memory.peak_allocated_bytes)) for s in (old, new)]
    assert peaks[0] - peaks[1] == pytest.approx(KEPT_LOGITS_BYTES * 4096 * 128256, rel=1e-9)


@pytest.mark.parametrize(
    ("framework", "detail", "given", "width"),
    [
        ("xtuner", "XTuner v1", {}, 2.0),
        ("fsdp", "axolotl", PARALLEL, 2.0),
        ("trl", "", {"sharding": "zero3", **PARALLEL}, 2.0),
        ("llama-factory", "", {"sharding": "fsdp", **PARALLEL}, 2.0),
        ("open_lm", "", {}, 4.0),
        ("olmo-core", "", PARALLEL, 4.0),
        ("fsdp", "", PARALLEL, 4.0),
    ],
)
def test_width_of_reduced_gradients(framework: str, detail: str, given: dict[str, Any], width: float) -> None:
    """accelerate and XTuner reduce in bf16, open_lm (fsdp_amp) and OLMo-core in fp32; half the bytes travel in half the time."""
    found = read(framework, detail, method="sft", **given)
    regime = regime_of(found.training, found.layout.choices)
    assert regime.reduce_bytes == width


def test_a_reduction_in_16_bits_costs_what_a_gather_costs() -> None:
    """Full shard: backward gathers and scatters the same 16-bit bytes, twice forward's gather; fp32 gradients take longer."""
    found = read("other", **PARALLEL, num_gpus=64)
    narrow = found.training.model_copy(update={"extra": {**found.training.extra, "reduce_dtype": "16bit"}})
    wide_terms, terms = (
        {term.name: float(num(term.value)) for term in cost(found.architecture, t, found.layout, found.pool).time.ledger.terms}
        for t in (found.training, narrow)
    )
    assert terms["zero.backward"] == pytest.approx(2.0 * terms["zero.forward"], rel=1e-6)
    assert wide_terms["zero.backward"] > 1.3 * terms["zero.backward"]


@pytest.mark.parametrize(
    ("framework", "detail", "given", "layers"),
    [
        ("internevo", "checkpoint=0.4", PARALLEL, 12.0),
        ("internevo", "activation ckpt 0.5", {"tp": 1, "pp": 2}, 8.0),
        ("internevo", "checkpoint=1.0", PARALLEL, 32.0),
        ("internevo", "checkpoint=0.02", PARALLEL, -1.0),
        ("xtuner", "XTuner v1, recompute_ratio=0.25", {}, 8.0),
        ("internevo", "checkpoint=0.4", {**PARALLEL, "recompute": "none"}, -1.0),
    ],
)
def test_part_of_the_layers_recomputed(framework: str, detail: str, given: dict[str, Any], layers: float) -> None:
    """InternEvo counts int(layers of the stage × checkpoint) (modeling_internlm.py), XTuner v1 recompute_ratio; a stated cell wins."""
    found = read(framework, detail, **given)
    assert float(num(found.layout.degrees.recompute_layers)) == layers
    assert found.layout.choices.recompute == ("none" if layers < 0 else "full")


def test_stacks_of_single_operators_are_no_tuned_runs() -> None:
    """PaddleNLP divides as Megatron-LM does, but its errors are those of user runs."""
    assert class_of(read("paddle", **PARALLEL)) == "user" and class_of(read("primus", **PARALLEL)) == "tuned"


def test_offload_by_default_is_said() -> None:
    """A recipe's offload is an assumption of the row, and a stated cell wins."""
    assert "offload" in read("torchtune", method="sft", model="Llama-3.1-70B").assumed
    assert "offload" not in read("torchtune", method="sft", model="Llama-3.1-70B", offload="none").assumed


def test_tokens_that_leave_out_prompts_are_said() -> None:
    """torchtune counts trained labels alone: a step time from its tokens per second is an assumption; InternEvo counts every position."""
    timed: dict[str, Any] = {"global_batch": 16, "tokens_per_s_per_gpu": 1000.0}
    assert "step_time_s" in read("torchtune", **timed).assumed
    assert "step_time_s" not in read("internevo", **PARALLEL, **timed).assumed
    assert "step_time_s" not in read("torchtune", **timed, step_time_s=8.0).assumed


AMD = ["MI250X", "MI300X", "MI325X", "MI355X"]
NVIDIA = ["A800", "H800", "H20", "L20", "L40S", "4090", "RTX 3090", "A10", "V100-32G"]


@pytest.mark.parametrize("card", [*AMD, *NVIDIA, "910B", "Ascend 910B", "Gaudi2", "Gaudi 3"])
def test_cards_of_such_tables(card: str) -> None:
    """Every card is in the catalogue, and a dense model with full recompute on one reaches a credible part of its peak."""
    found = read("other", gpu=card, num_gpus=1, recompute="full", global_batch=8)
    mfu = float(num(cost(found.architecture, found.training, found.layout, found.pool).time.mfu))
    assert 0.1 < mfu < 0.75, mfu


def test_a_die_of_the_mi250x_is_a_gpu() -> None:
    """A server with more GPUs than cards counts dies: half the memory, peak and links of a card."""
    given: dict[str, Any] = {**PARALLEL, "gpu": "MI250X", "num_gpus": 16}
    die, card = read("megatron", **given, gpus_per_node=8).pool, read("megatron", **given, gpus_per_node=4).pool
    assert (die.gpu.id, card.gpu.id) == ("mi250x-gcd", "mi250x") and (die.nodes, card.nodes) == (2, 4)
    assert die.link_bytes_per_second == 175.0 * GB and card.link_bytes_per_second == 350.0 * GB


def test_an_unknown_framework_is_refused_with_the_names() -> None:
    """A skip with the known names, not a silent default."""
    bare = read("torchtune").run
    found = spec(replace(bare, framework="frobnicate", tp=1, pp=1))
    assert isinstance(found, Skip) and found.kind == "unknown framework" and "gpt-neox" in found.reason
