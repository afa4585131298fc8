"""The software stack of a run: what the framework of that date does where the training does not say."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.training import Implementation, Training


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Resolved software choices."""

    implementation: Implementation
    vocab_multiple: float
    """The vocabulary is padded to this × tp; 1: no padding."""


def resolve(training: Training) -> Stack:
    """Return the stack of `training`, filling what it leaves open from the framework's defaults."""
    megatron = training.framework in ("megatron", "megatron-deepspeed")
    default: Implementation = "megatron" if megatron else "hf"
    multiple = training.vocab_multiple if training.vocab_multiple is not None else (128 if megatron else 1)
    return Stack(implementation=training.implementation or default, vocab_multiple=float(multiple))
