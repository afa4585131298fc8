"""Recompute modes: what is dropped after forward and run again in backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.layout import Choices, Recompute

if TYPE_CHECKING:
    from cost_models.op import Saved


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeMode:
    """One entry."""

    name: Recompute
    sentence: str
    source: str


RECOMPUTE: dict[str, RecomputeMode] = {
    mode.name: mode
    for mode in (
        RecomputeMode(name="none", sentence="every saved tensor stays until its backward", source="autograd"),
        RecomputeMode(
            name="selective",
            sentence="the named modules are run again (Megatron), or every second matmul and all that is cheap (torchtitan per-op)",
            source="Korthikanti et al. 2022 (arXiv 2205.05198), section 5; Megatron-LM recompute_modules; torchtitan activation_checkpoint",
        ),
        RecomputeMode(
            name="full",
            sentence="layers keep their input alone and are run again",
            source="Chen et al. 2016 (arXiv 1604.06174); Megatron-LM block method",
        ),
    )
}


POLICIES: dict[str, frozenset[str]] = {
    "kwai": frozenset({"attention.qkv.input", "attention.core.output", "mlp.norm.norm_input", "mlp.up.input", "mlp.down.input"}),
}
"""Named policies of measured runs (`Training.extra["recompute_policy"]`): tensors (op.tensor) that `selective` drops instead of modules.
kwai: compute-memory balanced checkpointing keeps the layer input, q, k, v and the first linear's output (Yuan et al., ATC 2024)."""


def is_dropped(op: str, saved: Saved, choices: Choices, policy: str = "") -> bool:
    """Tell whether selective recompute drops `saved` of `op`: by the named policy, else by the chosen modules."""
    if choices.recompute != "selective":
        return False
    if policy in POLICIES:
        return f"{op}.{saved.name}" in POLICIES[policy]
    return any(module in choices.recompute_modules for module in saved.modules)
