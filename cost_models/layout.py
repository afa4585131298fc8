"""How the work is spread: degrees (numbers, one or many) and choices (objects, one per batch)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from cost_models.numeric import Num, ceil_div, num

Zero = Literal[0, 1, 2, 3]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "params", "optimizer+params"]
OffloadTarget = Literal["host", "nvme"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
RANK_ORDERS: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""How ranks can be numbered, the axis whose neighbours sit side by side first (Megatron-LM's words)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Sizes of the axes. Each is a float64 number, or an array of shape (N, 1) for a batch of N layouts."""

    tp: Num = 1.0
    pp: Num = 1.0
    vpp: Num = 1.0
    """Model chunks (virtual stages) per pipeline rank."""
    cp: Num = 1.0
    ep: Num = 1.0
    etp: Num = 1.0
    """Tensor parallel size inside an expert."""
    dp: Num = 1.0
    """Data-parallel replicas, the ZeRO/FSDP group included: tp × pp × cp × dp = GPUs."""
    micro_batch: Num = 1.0
    shard_group: Num = 0.0
    """Ranks over which ZeRO shards (hybrid sharding); 0: all of dp × cp."""
    recompute_layers: Num = -1.0
    """Layers of a stage that `full` recomputes; -1: all of them."""
    offload_fraction: Num = 1.0
    """Part of the offloaded state that lives outside the device."""
    activation_offload: Num = 0.0
    """Part of the layers whose saved activations are moved to the host."""
    rank_order: Num = 0.0
    """Place in RANK_ORDERS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """Discrete options: one value for a whole batch (a family)."""

    zero: Zero = 1
    sequence_parallel: bool = True
    """Only has an effect with tp > 1."""
    schedule: ScheduleName = "1f1b"
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ("core_attn",)
    """What `selective` drops: core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, shared_experts (Megatron's names)."""
    offload: Offload = "none"
    offload_target: OffloadTarget = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees and choices, and optionally the layers of each stage and how many of them are recomputed."""

    degrees: Degrees
    choices: Choices
    stage_layers: tuple[int, ...] | None = None
    """Layers of each pipeline stage (single layouts only); None: the balanced split."""
    stage_recompute: tuple[int, ...] | None = None
    """Fully recomputed layers of each stage (single layouts only); None: `degrees.recompute_layers`."""

    def row(self, index: int) -> Layout:
        """Return layout `index` of a batch as a single layout with 0-d degrees."""
        picked = {}
        for f in fields(Degrees):
            value = num(getattr(self.degrees, f.name))
            picked[f.name] = value if value.ndim == 0 else value.reshape(-1)[min(index, value.size - 1)]
        return replace(self, degrees=Degrees(**picked))

    @property
    def size(self) -> int:
        """Layouts in the batch (1 for a single one)."""
        return max(num(getattr(self.degrees, f.name)).size for f in fields(Degrees))


def micro_batches(layout: Layout, global_batch: Num) -> Num:
    """Return the micro-batches per step and replica (gradient accumulation): B / (micro-batch × dp), rounded up."""
    d = layout.degrees
    return np.maximum(1.0, ceil_div(global_batch, num(d.micro_batch) * d.dp))


def shard_ranks(layout: Layout) -> Num:
    """Return how many ranks share the dense optimizer state: the shard group, else dp × cp (Megatron's dp_cp group)."""
    d = layout.degrees
    group = num(d.shard_group)
    return np.where(group > 0, group, num(d.dp) * d.cp)


def expert_dp(layout: Layout) -> Num:
    """Return the replicas of one routed expert: dp × cp × tp / (ep × etp) (Megatron core parallel_state, expert data parallel)."""
    d = layout.degrees
    return np.maximum(1.0, num(d.dp) * d.cp * d.tp / (num(d.ep) * d.etp))
