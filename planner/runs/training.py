"""The training of a row: method, types, kernels and software switches, from its columns, its notes and its framework's habits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cost_models.training import Optimizer, Training
from hardware.units import MIB
from planner.runs.frameworks import Habits, Lora, recipe_lora

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from hardware.spec import Gpu
    from planner.runs.assumed import Assumptions
    from planner.runs.notes import Stated
    from planner.runs.row import Run

_OWN_MASTER = ("deepspeed", "megatron-deepspeed", "megatron", "nanotron", "torchtitan")
"""Code bases that keep their own fp32 weights, whatever a row calls mixed precision."""
_NO_FLASH = ("Volta", "Turing", "Pascal")
ADAPTER_START_LAYER = "2"
"""Layers before the first LLaMA-Adapter prompts: they need no backward (litgpt adapter.py, adapter_start_layer)."""
MEGATRON_DROPOUT = 0.1
"""Megatron-LM's --hidden-dropout and --attention-dropout where they are not given (megatron/training/arguments.py)."""
_SWITCHES = {
    "overlap-grad-reduce": "overlap_grad_reduce",
    "overlap-param-gather": "overlap_param_gather",
    "tp-comm-overlap": "overlap_tp",
    "apply-query-key-layer-scaling": "query_key_layer_scaling",
    "moe-grouped-gemm": "moe_grouped_gemm",
    "moe-permute-fusion": "moe_permute_fusion",
    "moe-router-fusion": "moe_router_fusion",
    "moe-shared-expert-overlap": "moe_shared_overlap",
    "overlap-moe-expert-parallel-comm": "moe_a2a_overlap",
    "fp8-param-gather": "fp8_param_gather",
    "first-last-layers-bf16": "first_last_layers_bf16",
    "use-megatron-fsdp": "megatron_fsdp",
    "calculate-per-token-loss": "per_token_loss",
    "deterministic-mode": "deterministic",
    "flextron": "flextron",
}
"""Megatron arguments that switch something on -> name in Training.extra, with the value `yes`."""
_SWITCHED_OFF = {
    "no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "no-bias-gelu-fusion": "bias_gelu_fusion",
    "no-rope-fusion": "rope_fusion",
    "no-masked-softmax-fusion": "masked_softmax_fusion",
    "no-persist-layer-norm": "persist_layer_norm",
}
"""Megatron arguments that switch something off -> name in Training.extra, with the value `no`."""
_VALUES = {
    "transformer-impl": "transformer_impl",
    "attention-backend": "attention_backend",
    "moe-token-dispatcher-type": "moe_dispatcher",
    "moe-flex-dispatcher-backend": "moe_dispatcher",
    "fp8-recipe": "fp8_recipe",
    "fp8-format": "fp8_format",
    "cuda-graph-modules": "cuda_graphs",
    "microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group",
    "offload-modules": "offload_modules",
}
"""Megatron arguments whose value is handed on -> name in Training.extra."""
_FACTS = (
    "recompute_policy",
    "recompute_every",
    "capacity_factor",
    "capacity_padded",
    "moe_dispatcher",
    "moe_a2a_overlap",
    "cuda_graphs",
    "async_tp",
    "loss_chunks",
    "cross_entropy_fusion",
    "float8_gather",
    "overlap_grad_reduce",
    "overlap_tp",
    "overlap_p2p",
    "overlap_all",
    "states",
    "autocast",
    "reduce_dtype",
    "norm_kernel",
    "train_embeddings",
    "trainable",
    "other_adapter",
    "deterministic",
    "older_stack",
    "longest_sample",
    "packed",
    "regression",
    "optimizer_in_backward",
    "offload_modules",
)
"""Facts of the notes that are handed on under their own name."""


def iso_date(text: str) -> str:
    """Return the first ISO date in `text`: "2022-2023" -> "2022", "2021-05/06" -> "2021-05"."""
    match = re.match(r"\d{4}(-\d{2}(?!\d)(-\d{2})?)?", text)
    return match.group(0) if match else ""


NEVER = "9999"
"""A start that no row is later than, dated or not."""


def since(run: Run, start: str) -> bool:
    """Tell whether the row's software is of `start` or later; an undated row is of today."""
    date = iso_date(run.date)
    return start != NEVER and (not date or date[: len(start)] >= start[: len(date)])


def training(run: Run, said: Stated, habits: Habits, gpu: Gpu, shape: Architecture, assumed: Assumptions) -> Training:
    """Return how `run` trains; `global_batch` is set by the caller, which knows the layout."""
    assert run.seq_len is not None
    values: dict[str, Any] = {
        "seq": run.seq_len,
        "method": method(run, said),
        "framework": habits.runs_as,
        "date": iso_date(run.date),
        "optimizer": _optimizer(run, said, habits, assumed),
        "padding_mask": habits.padding,
        "vocab_multiple": said.argument("make-vocab-size-divisible-by") or habits.vocab_multiple,
        "mtp": habits.mtp or said.says("mtp") or said.argument("mtp-num-layers") is not None,
        "balanced_routing": said.facts.get("routing", "balanced" if habits.balanced_routing else "") == "balanced",
        "implementation": "megatron-unfused" if said.arguments.get("transformer-impl") == "local" else habits.implementation,
        "dropout": _dropout(run, said, habits, shape),
        "extra": switches(run, said, habits),
    }
    if not run.method:
        assumed.note("method", "pretrain", "all weights are trained")
    values |= _types(run, said, habits, gpu, assumed, adapters=values["method"] in ("lora", "qlora"))
    values |= _loss_and_compile(said, habits)
    values["attention"] = _attention(run, said, habits, gpu, shape, assumed)
    values["cuda_graphs"] = said.says("cuda_graphs") or "cuda-graph-impl" in said.arguments
    if values["method"] in ("lora", "qlora"):
        values |= _adapters(run, said, habits, assumed)
    return Training(**values)


def method(run: Run, said: Stated) -> str:
    """Return what is trained. LLaMA-Adapters (prompts, or a scale and bias per linear) keep the base frozen, as LoRA does."""
    if run.method in ("lora", "qlora"):
        return run.method
    if said.says("other_adapter"):
        return "qlora" if said.says("quantization") else "lora"
    return "full"


def switches(run: Run, said: Stated, habits: Habits) -> dict[str, str]:
    """Return the further named switches, for Training.extra."""
    extra = dict(habits.extra)
    if run.method in ("sft", "lora", "qlora"):
        extra |= habits.finetune_extra
    extra |= {name: said.facts[name] for name in _FACTS if name in said.facts}
    if "cuda_graphs" in extra:
        extra["cuda_graphs"] = ",".join(re.findall(r"\w+", extra["cuda_graphs"]))
    arguments = said.arguments
    extra |= {name: "yes" for flag, name in _SWITCHES.items() if flag in arguments}
    extra |= {name: "no" for flag, name in _SWITCHED_OFF.items() if flag in arguments}
    extra |= {name: arguments[flag].replace(" ", ",") for flag, name in _VALUES.items() if arguments.get(flag)}
    if "cross-entropy-loss-fusion" in arguments:
        extra["cross_entropy_fusion"] = arguments.get("cross-entropy-fusion-impl", "native")
    if "defer-embedding-wgrad-compute" in arguments:
        extra["defer_embedding_wgrad"] = arguments.get("wgrad-deferral-limit", "0")
    if run.precision in ("mxfp8", "nvfp4"):
        extra["fp8_recipe"] = run.precision
    elif run.precision == "fp8" and re.search(r"_FP8_CS_", run.notes):
        extra["fp8_recipe"] = "current"
    if said.facts.get("flash_attention") == "2":
        extra["attention_kernel"] = "flash2"
    elif said.facts.get("flash_attention") == "1":
        extra["attention_backend"] = "flash1"
    if run.precision.endswith("-mixed") and run.method in ("lora", "qlora"):
        extra["base_dtype"] = "fp32"
    context = said.integer("context_mib")
    if context is not None:
        extra["context_bytes"] = f"{context * MIB:.0f}"
    if extra.get("other_adapter") == "Adapter":
        extra["untrained_layers"] = ADAPTER_START_LAYER
    if "lora-fa" in run.optimizer.lower():
        extra["lora_fa"] = "yes"
    if "paged" in (run.optimizer or habits.optimizer).lower():
        extra["paged_optimizer"] = "yes"
    if extra.get("reduce_bucket") == "hidden" and run.hidden:
        extra["reduce_bucket"] = str(run.hidden * run.hidden)
    if habits.quantization != "nf4" and method(run, said) == "qlora":
        extra["quantization"] = habits.quantization
    return extra


def _optimizer(run: Run, said: Stated, habits: Habits, assumed: Assumptions) -> Optimizer:
    text = run.optimizer.lower() or said.arguments.get("optimizer", "")
    if not text and re.search(r"\bMuon optimizer\b", run.notes):
        text = "muon"
    if not text and habits.optimizer:
        text = habits.optimizer.lower()
        assumed.note("optimizer", habits.optimizer, "the framework's default")
    if "8-bit" in text or "8bit" in text:
        return "adam8bit"
    names: tuple[Optimizer, ...] = ("muon", "adafactor", "lion", "sgd")
    for name in names:
        if name in text:
            return name
    if "adam" not in text:
        assumed.note("optimizer", "AdamW", "not stated" if not text else f"{run.optimizer} is counted as AdamW")
    return "adamw"


def _types(run: Run, said: Stated, habits: Habits, gpu: Gpu, assumed: Assumptions, *, adapters: bool) -> dict[str, Any]:
    """Compute type and state regime."""
    text = run.precision
    if not text:
        text = habits.precision if gpu.bf16_supported else "fp16"
        assumed.note("precision", text, "framework's default" if gpu.bf16_supported else f"{gpu.name} has no bf16")
    base = {"mxfp8": "fp8", "nvfp4": "fp8"}.get(text, text.removesuffix("-pure").removesuffix("-mixed"))
    regime = habits.regime
    if text.endswith("-pure") or said.says("pure_bf16"):
        regime = "pure-bf16"
    elif text.endswith("-mixed"):
        regime = None if habits.runs_as in _OWN_MASTER else "autocast"
    if adapters:
        regime = habits.adapter_regime
    return {"precision": base, "regime": None if base == "fp32" else regime}


def _loss_and_compile(said: Stated, habits: Habits) -> dict[str, Any]:
    """Loss kernel and torch.compile where they are known."""
    compiled = said.facts.get("compile")
    loss = habits.loss
    if said.says("loss_chunks"):
        loss = "chunked"
    elif said.says("fused_cross_entropy"):
        loss = "fused"
    elif said.says("full_cross_entropy"):
        loss = "compiled" if compiled == "yes" else "eager"
    return {"loss": loss, "compile": habits.compile if compiled is None else compiled == "yes"}


def _attention(run: Run, said: Stated, habits: Habits, gpu: Gpu, shape: Architecture, assumed: Assumptions) -> str:
    """`eager` or `flash`: as stated, else by framework, date and GPU."""
    arguments = said.arguments
    backend = arguments.get("attention-backend")
    if backend is not None:
        return "eager" if backend in ("unfused", "local") else "flash"
    if said.says("flash_attention") or said.says("attention") or "use-flash-attn" in arguments:
        return "flash"
    if arguments.get("transformer-impl") == "local" or "apply-query-key-layer-scaling" in arguments:
        return "eager"
    start = habits.flash_since
    if shape.mla is not None and gpu.arch.startswith("Blackwell"):
        start = habits.latent_flash_since or start
    kernel = "flash" if gpu.arch not in _NO_FLASH and since(run, start) else "eager"
    assumed.note("attention", kernel, f"{run.framework or 'unnamed framework'} of {iso_date(run.date) or 'today'} on {gpu.arch}")
    return kernel


def _dropout(run: Run, said: Stated, habits: Habits, shape: Architecture) -> float:
    if said.arguments:
        stated = said.arguments.get("hidden-dropout")
        return float(stated) if stated is not None else MEGATRON_DROPOUT
    if habits.plain_dropout is not None:
        return 0.0 if shape.gated_mlp else habits.plain_dropout
    old = bool(iso_date(run.date)) and not since(run, "2023")
    return MEGATRON_DROPOUT if habits.runs_as in ("megatron", "megatron-deepspeed") and old and not shape.gated_mlp else 0.0


_EVERY = ("q", "k", "v", "o", "gate", "up", "down")
_COMMON = Lora(rank=16, targets=_EVERY, dropout=0.0)
_PROMPTS = Lora(rank=1, targets=("q",), dropout=0.0)
"""Stands for LLaMA-Adapter: some prompts per layer, nothing beside the linear layers (arXiv 2303.16199)."""
_SCALES = Lora(rank=1, targets=_EVERY, dropout=0.0)
"""Stands for LLaMA-Adapter V2: a scale and a bias for every linear layer (arXiv 2304.15010)."""


def _adapters(run: Run, said: Stated, habits: Habits, assumed: Assumptions) -> dict[str, Any]:
    """Rank, targets and types of LoRA."""
    recipe = said.facts.get("recipe", "")
    default = (recipe_lora(recipe) if recipe else None) or habits.lora or _COMMON
    if said.says("other_adapter"):
        default = _PROMPTS if said.facts["other_adapter"] == "Adapter" else _SCALES
    rank, targets = said.integer("lora_rank"), said.targets
    usual = (*default.targets, "head") if default.head else default.targets
    if rank is None:
        assumed.note("lora_rank", default.rank, recipe or "the framework's default")
    if targets is None:
        assumed.note("lora_targets", "+".join(usual), recipe or "the framework's default")
    values: dict[str, Any] = {
        "lora_rank": rank or default.rank,
        "lora_targets": targets or usual,
        "lora_dropout": default.dropout,
        "kbit_prepare": habits.kbit_prepare and method(run, said) == "qlora",
        "double_quant": habits.double_quant and said.facts.get("quantization") != "bnb.nf4" and "qlora.yaml" not in recipe,
    }
    if said.says("adapter_fp32"):
        values["adapter_fp32"] = True
    elif habits.adapter_fp32 is not None:
        values["adapter_fp32"] = habits.adapter_fp32
    elif run.precision.endswith("-pure"):
        values["adapter_fp32"] = False
    return values
