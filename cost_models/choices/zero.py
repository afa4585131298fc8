"""ZeRO stages: which states are divided over the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.layout import Layout, Zero, expert_dp, shard_ranks
from cost_models.numeric import Num, num


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroStage:
    """One entry."""

    stage: Zero
    sentence: str
    optimizer: bool
    gradients: bool
    weights: bool
    source: str = "Rajbhandari et al. 2020 (arXiv 1910.02054), section 5"


ZERO: dict[int, ZeroStage] = {
    entry.stage: entry
    for entry in (
        ZeroStage(stage=0, sentence="every rank holds all states", optimizer=False, gradients=False, weights=False),
        ZeroStage(
            stage=1,
            sentence="master weights and moments are divided (Megatron's distributed optimizer)",
            optimizer=True,
            gradients=False,
            weights=False,
        ),
        ZeroStage(stage=2, sentence="gradients are divided too", optimizer=True, gradients=True, weights=False),
        ZeroStage(
            stage=3,
            sentence="weights are divided too and gathered unit by unit (FSDP full shard)",
            optimizer=True,
            gradients=True,
            weights=True,
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """By how much a state is divided: ranks for the dense part and for the routed experts."""

    dense: Num
    experts: Num


_WHOLE = Shares(dense=num(1.0), experts=num(1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """How ZeRO divides the states of a layout."""

    stage: int
    divided: Shares

    def of(self, from_stage: int) -> Shares:
        """Return the divisors of a state that is divided from ZeRO stage `from_stage` on."""
        return _WHOLE if self.stage < from_stage else self.divided


def division(layout: Layout) -> Division:
    """Return how the states of `layout` are divided.

    Dense states are divided over dp × cp (or the hybrid shard group), experts over their own replicas (the same part of them under
    hybrid sharding).
    """
    ranks = shard_ranks(layout)
    part = ranks / (num(layout.degrees.dp) * layout.degrees.cp)
    return Division(stage=layout.choices.zero, divided=Shares(dense=ranks, experts=np.maximum(1.0, expert_dp(layout) * part)))


def shares(layout: Layout, from_stage: int) -> Shares:
    """Return the divisors of a state of `layout` that is divided from ZeRO stage `from_stage` on."""
    return division(layout).of(from_stage)
