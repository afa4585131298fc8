"""Offload: which states leave the device, and what the host then holds for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.layout import Offload

if TYPE_CHECKING:
    from cost_models.op import Saved


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadMode:
    """One entry."""

    name: Offload
    sentence: str
    optimizer: bool
    weights: bool
    source: str = "Ren et al. 2021 (arXiv 2101.06840); Rajbhandari et al. 2021 (arXiv 2104.07857); DeepSpeed runtime/zero/offload_config.py"


OFFLOAD: dict[str, OffloadMode] = {
    mode.name: mode
    for mode in (
        OffloadMode(name="none", sentence="all states stay on the device", optimizer=False, weights=False),
        OffloadMode(
            name="optimizer",
            sentence="master weights, moments and their gradients live on the host, which runs the step",
            optimizer=True,
            weights=False,
        ),
        OffloadMode(name="params", sentence="16-bit weights live on the host and are fetched unit by unit", optimizer=False, weights=True),
        OffloadMode(name="optimizer+params", sentence="all states live on the host", optimizer=True, weights=True),
    )
}


FINE_GRAINED: dict[str, tuple[str, ...]] = {
    "attn_norm": ("attention.norm",),
    "qkv_linear": ("attention.qkv", "attention.qkv_down"),
    "core_attn": ("attention.core.q", "attention.core.k", "attention.core.v", "attention.core.softmax", "attention.core.qkv"),
    "attn_proj": ("attention.core.output",),
    "mlp_norm": ("mlp.norm", "moe.norm"),
    "expert_fc1": ("moe.up",),
    "moe_act": ("moe.activation",),
}
"""Modules of Megatron-Core's fine-grained activation offload -> ops, or op.tensor, that go to the host: a module's input, and all that
the attention core saves (docs/user-guide/features/fine_grained_activation_offloading.md)."""


def is_offloaded(op: str, saved: Saved, modules: tuple[str, ...]) -> bool:
    """Tell whether `saved` of `op` goes to the host under fine-grained offload of `modules`."""
    return any(name in (op, f"{op}.{saved.name}") for module in modules for name in FINE_GRAINED.get(module, ()))
