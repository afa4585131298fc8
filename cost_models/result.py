"""What one evaluation returns: the memory of every stage and phase, and the time of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.ledger import Ledger
from cost_models.numeric import Num, num

BUCKETS = ("weights", "gradients", "optimizer", "activations", "logits", "kv_cache", "buffers", "overhead")
"""First part of every memory term's name."""
PHASES = ("load", "forward", "backward", "optimizer")
"""Phases of a step whose peaks are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCost:
    """Bytes per rank. Stage arrays have shape (K,) for one layout and (N, K) for a batch; totals () or (N,)."""

    stage_index: Num
    """Pipeline position of each of the K stages that were evaluated."""
    phases: dict[str, Ledger]
    """Phase -> allocated bytes by term (everything torch counts as allocated), at that phase's peak, per stage."""
    overhead: Ledger
    """What comes on top of allocated: terms `overhead.reserved.*` (cached, fragmented) and `overhead.device.*` (context, NCCL)."""
    stage_allocated_bytes: Num
    """Highest phase, per stage (what torch calls max_memory_allocated)."""
    stage_reserved_bytes: Num
    stage_device_bytes: Num
    """What nvidia-smi shows, per stage: compared with the capacity."""
    peak_allocated_bytes: Num
    peak_reserved_bytes: Num
    peak_device_bytes: Num
    host_bytes_per_node: Num
    host: Ledger
    nvme_bytes_per_node: Num
    regime: str
    """Name and byte list of the state regime used."""

    @property
    def stage_phase(self) -> npt.NDArray[np.int64]:
        """Index into `phases` of the phase that wins, per stage; the first of equals."""
        totals = np.broadcast_arrays(*(ledger.total for ledger in self.phases.values()))
        return np.asarray(np.argmax(np.stack(totals), axis=0))

    @property
    def peak_stage(self) -> npt.NDArray[np.float64]:
        """Position of the stage with the highest device bytes; the first of equals."""
        device = num(self.stage_device_bytes)
        index = np.broadcast_to(num(self.stage_index), device.shape)
        return num(np.take_along_axis(index, np.argmax(device, axis=-1)[..., None], axis=-1)[..., 0])


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeCost:
    """Seconds of one optimizer step."""

    ledger: Ledger
    """Terms of the step on the critical path: `value` is busy time, `exposed` what lengthens the step; exposed sums to `step_seconds`."""
    step_seconds: Num
    """Shape () or (N,)."""
    tokens_per_second_per_gpu: Num
    mfu: Num
    hfu: Num
    model_flop: Num
    """Model FLOP of the step over all GPUs (mfu's numerator)."""
    hardware_flop: Num
    """With recompute."""
    stage_forward_seconds: Num
    """One micro-batch through one stage, (K,) or (N, K)."""
    stage_backward_seconds: Num
    stage_weight_seconds: Num
    """The part of backward that computes weight gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Both ledgers of one evaluation."""

    memory: MemoryCost
    time: TimeCost
