"""What planner takes where the request leaves it open; every default is printed as assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.training import Framework, Method

SEQUENCE = 2048
"""The context that GPT-3, OPT and LLaMA were trained at, and Megatron-LM's examples."""
SAMPLES_PER_GPU = 16
"""512 samples on 32 GPUs: the batch of OPT-30B and of Megatron-LM's GPT examples."""
MAX_TOKENS = 16 * 1024 * 1024
"""Tokens of a step at most: the batch of Llama 3.1 405B (arXiv 2407.21783, section 3.4.1)."""
TUNING_SAMPLES = 64
"""A batch of LoRA and QLoRA runs, grown to one sample a GPU on larger clusters (QLoRA, arXiv 2305.14314, table 9: 16 to 64)."""


def sequence(architecture: Architecture) -> int:
    """Return the default sequence length."""
    return min(SEQUENCE, architecture.max_positions or SEQUENCE)


def global_batch(method: Method, seq: int, gpus: int, fixed: Mapping[str, Any]) -> int:
    """Return the default samples per step: a multiple of the odd part of the GPUs (so that any split of them divides it), and of
    micro-batch × dp where the user fixed them."""
    if method == "inference":
        return int(fixed.get("dp", 1)) * int(fixed.get("micro_batch", 1))
    wanted = SAMPLES_PER_GPU * gpus
    most = max(TUNING_SAMPLES, gpus) if method in ("lora", "qlora") else max(1, MAX_TOKENS // seq)
    unit = odd_part(gpus)
    if "dp" in fixed or "micro_batch" in fixed:
        unit = int(fixed.get("dp", 1)) * int(fixed.get("micro_batch", 1))
    batch = min(wanted, most)
    return max(unit, batch // unit * unit)


def odd_part(number: int) -> int:
    """Return `number` without its factors of two."""
    while number % 2 == 0:
        number //= 2
    return number


def first_framework(method: Method, gpus: int) -> Framework:
    """Return the framework that is meant where none is named and the layout leaves it open."""
    if method == "full":
        return "megatron" if gpus > 1 else "hf"
    if method == "inference":
        return "hf"
    return "hf" if gpus == 1 else "fsdp"
