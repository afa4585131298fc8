"""What the host launches: hooks of sharding, experts, and what CUDA graphs leave of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Training

EXPERT_HOOKS = 3.0 / 9.0
"""Hooks of one expert's linear layers / those of a dense layer (seven linear layers and two norms)."""
GROUPED_HF_SINCE = "2026"
"""transformers 5 holds a layer's experts in one tensor and runs them with a grouped product; before, a loop ran one by one."""


def hooks(training: Training, choices: Choices, name: str) -> tuple[float, float]:
    """Host time of what sharding hooks into a layer, forward and backward.

    `zero_hooks` = no: gradients stay in `.grad` and are reduced where they lie, after the last micro-batch alone (InternEvo).
    """
    table = calibration("software")
    if choices.zero == 3 and name not in ("compiled", "xla"):
        once = table.value(f"host_zero3_{'deepspeed' if name == 'hf' else 'fsdp'}")
        return once, 2.0 * once
    buckets = training.framework == "deepspeed" and training.extra.get("zero_hooks") != "no"
    if choices.zero in (1, 2) and buckets and training.method == "full":
        return 0.0, table.value("host_zero2_deepspeed")
    return 0.0, 0.0


def dispatcher(training: Training, name: str) -> str:
    """Megatron's flex dispatcher (DeepEP from 2025, HybridEP on NVL72) unless the run names another one."""
    given = training.extra.get("moe_dispatcher", "").lower()
    if given:
        return _DISPATCHERS.get(given, "alltoall")
    return "deepep" if name == "megatron_te" and (not training.date or training.date >= "2025-06") else "alltoall"


_SYNC_FREE = ("MinimalAsyncEP",)
_DISPATCHERS = {"deepep": "deepep", "flex": "deepep", "minimalasyncep": "deepep", "hybridep": "hybridep"}


def dynamic(training: Training) -> bool:
    """Shapes follow the router's counts, which the host has to read: not with padded capacity or a dispatcher that needs no host."""
    return training.extra.get("capacity_padded") != "yes" and training.extra.get("moe_dispatcher") not in _SYNC_FREE


def graphs(training: Training) -> tuple[float, float, float]:
    """Part of the host time that CUDA graphs leave: of attention and dense layers, of routing, of the experts.

    Captured are the whole iteration, whole layers (which needs static shapes), or the scopes named: `attn` (with the shared expert),
    and `moe_router` with `moe_preprocess`; permutation, exchange and the experts' products have dynamic shapes and stay outside
    (Yan et al. 2026, arXiv 2603.07685, section 4.3.6).
    """
    table = calibration("software")
    given = training.extra.get("cuda_graphs", "full" if training.cuda_graphs else "")
    if not given:
        return 1.0, 1.0, 1.0
    if given == "full":
        return (table.value("graph_full"),) * 3
    if given == "layers":
        return (table.value("graph_layer"),) * 3
    route = table.value("graph_router") if "moe_router" in given else 1.0
    return table.value("graph_layer") if "attn" in given else 1.0, route, 1.0


def fused_experts(training: Training) -> bool:
    """Capturing the whole iteration of an MoE model takes grouped kernels that read their shapes on the device; those fuse the
    activation, its cast and the padding (Megatron core's full_iteration with use_transformer_engine_op_fuser)."""
    given = training.extra.get("cuda_graphs", "full" if training.cuda_graphs else "")
    return training.framework == "megatron" and given == "full"


def grouped(training: Training, name: str) -> str:
    """How the experts' products are launched: one kernel for all of them (torch's grouped_mm, compilers), one for each, or with casts."""
    given = training.extra.get("grouped_gemm", "one" if name in ("compiled", "xla") else "")
    if given:
        return given
    if name == "hf":
        return "loop" if "" < training.date < GROUPED_HF_SINCE else "one"
    return "fp8" if training.precision == "fp8" else "each"
