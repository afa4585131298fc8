"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.choices.orders import Pass, Step, alternating, around
from cost_models.choices.pipeline import longest
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "gpipe"
SENTENCE = "all micro-batches run forward, then all run backward"
SOURCE = "Huang et al. 2019 (arXiv 1811.06965)"
CHUNKS = 1
place = around


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """Micro-batches in turn, forward, then backward."""
    m = range(micro_batches)
    return alternating(micro_batches, [Pass("forward", 0, i) for i in m], [Pass("backward", 0, i) for i in m])


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Every micro-batch is alive at the turn."""
    return num(micro_batches) + 0.0 * num(stage)


def seconds(line: Line) -> Num:
    """Fill with one forward through all stages, then the slowest stage sets the pace; likewise backward. Exact for any stages."""
    more = line.micro_batches - 1.0
    forward = line.forward_sum + more * line.forward
    backward = line.backward_sum + more * line.backward
    return longest(forward) + longest(backward)
