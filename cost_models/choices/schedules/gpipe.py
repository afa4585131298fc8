"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from cost_models.numeric import Num, num

NAME = "gpipe"
SENTENCE = "all micro-batches run forward, then all run backward"
SOURCE = "Huang et al. 2019 (arXiv 1811.06965)"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Every micro-batch is alive at the turn."""
    return num(micro_batches) + 0.0 * num(stage)
