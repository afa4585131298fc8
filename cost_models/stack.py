"""The software stack of a run: what the framework of that date does where the training does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from cost_models.training import Framework, Implementation, Loss, Training

Kernel = Literal["eager", "sdpa", "flash2", "mem_eff"]
"""Attention: scores in memory; torch's SDPA (a mask where one is needed); flash-attn 2; SDPA's memory-efficient kernel."""

MEGATRON: tuple[Framework, ...] = ("megatron", "megatron-deepspeed", "megatron-zb")
ACCUMULATION_FUSED: tuple[Framework, ...] = ("megatron", "megatron-zb")
"""Weight-gradient products add to the accumulated gradient in place (Megatron-LM's gradient_accumulation_fusion)."""
TORCHTITAN_FUSED_SINCE = "2025-06"
"""torchtitan's optimizer is fused by default from spring 2025 on (first seen in runs of mid-2025), foreach before."""
COMPILED_LOSS_SINCE = "2025-06"
"""torchtitan compiles its loss by default from mid-2025."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Resolved software choices."""

    implementation: Implementation
    vocab_multiple: float
    """The vocabulary is padded to this × tp; 1: no padding."""
    loss: Loss
    """Which cross entropy runs, hence how many copies of the logits are alive at its peak."""
    kernel: Kernel
    adapter_fp32: bool
    """LoRA adapters in fp32: each adapted linear keeps an fp32 copy of its input (peft's default)."""
    foreach: bool
    """The optimizer step makes a full copy of what it updates (torch's foreach optimizers)."""
    foreach_copies: float
    """Such copies: torch before 2.1 makes two (square roots and denominators), later ones divide in place."""
    autocast: bool
    """fp32 weights and residual stream, 16-bit linear layers."""


def resolve(training: Training) -> Stack:
    """Return the stack of `training`, filling what it leaves open from the framework's defaults.

    `training.extra` may name `attention_kernel` (a Kernel) and `optimizer_kernel` (`foreach` or `fused`).
    """
    megatron = training.framework in MEGATRON
    multiple = training.vocab_multiple if training.vocab_multiple is not None else (128 if megatron else 1)
    step = training.extra.get("optimizer_kernel", "foreach" if _foreach(training) else "fused")
    return Stack(
        implementation=training.implementation or _implementation(training),
        vocab_multiple=float(multiple),
        loss=training.loss or _loss(training),
        kernel=_kernel(training),
        adapter_fp32=_adapter_fp32(training),
        foreach=step == "foreach",
        foreach_copies=float(training.extra.get("foreach_copies", "1")),
        autocast=_autocast(training),
    )


def _foreach(training: Training) -> bool:
    """Torch's own AdamW without fused=True: Hugging Face and litgpt always, torchtitan until it changed its default."""
    early = bool(training.date) and training.date < TORCHTITAN_FUSED_SINCE
    return training.framework in ("hf", "litgpt") or (training.framework == "torchtitan" and early)


def _implementation(training: Training) -> Implementation:
    if training.framework in MEGATRON:
        return "megatron-unfused" if training.framework == "megatron-zb" else "megatron"
    compiled = training.framework in ("torchtitan",) if training.compile is None else training.compile
    return "compiled" if compiled else "hf"


def _loss(training: Training) -> Loss:
    if training.framework in MEGATRON:
        return "vocab-parallel"
    if training.framework == "litgpt":
        return "chunked"
    recent = not training.date or training.date >= COMPILED_LOSS_SINCE
    if training.framework == "torchtitan" and training.compile is not False and recent:
        return "compiled"
    return "eager"


def _kernel(training: Training) -> Kernel:
    if training.attention == "eager":
        return "eager"
    named = training.extra.get("attention_kernel", "sdpa" if training.padding_mask else "flash2")
    if named not in get_args(Kernel):
        raise ValueError(f"no attention kernel is called {named!r}; there are {', '.join(get_args(Kernel))}")
    return cast("Kernel", named)


def _adapter_fp32(training: Training) -> bool:
    if training.method not in ("lora", "qlora"):
        return False
    return training.framework in ("hf", "fsdp") if training.adapter_fp32 is None else training.adapter_fp32


def stream_bytes(training: Training, act_bytes: float) -> float:
    """Return the bytes of an element of the residual stream: fp32 under autocast and after peft's k-bit preparation."""
    prepared = training.method == "qlora" and training.kbit_prepare
    return 4.0 if prepared or _autocast(training) else act_bytes


def _autocast(training: Training) -> bool:
    if training.precision == "fp32":
        return False
    if training.method != "full":
        return training.extra.get("base_dtype") == "fp32"
    return training.regime == "autocast" or (training.regime is None and training.framework == "hf")
