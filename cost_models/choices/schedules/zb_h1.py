"""Zero-bubble H1: 1F1B whose weight gradients fill the drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.orders import Pass, Step, around
from cost_models.choices.played import Recipe, played
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "zb-h1"
SENTENCE = "1F1B with weight gradients split off and run in the bubble of the drain, at the memory of 1F1B's first stage"
SOURCE = (
    "Qi et al. 2023 (arXiv 2401.10241), section 2 and table 2; AMD-AGI/Primus core/pipeline_parallel/scheduler/algorithms/zerobubble.py"
    " (the order); sail-sg/zero-bubble-pipeline-parallelism core/pipeline_parallel/zerobubble/scheduler/zb.py (as long, memory limit p)"
)
CHUNKS = 1
place = around


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """As 1F1B, with the weight gradients of rank i behind its input gradients by i micro-batches.

    Primus's `zero-bubble` runs this order from p micro-batches on. The zero-bubble fork of Megatron-LM looks for an order of its own,
    which with --zero-bubble-max-pending-backward p takes as long. PyTorch's ScheduleInterleavedZeroBubble delays alike but wants two
    chunks a rank at least, so torchtitan does not run it.
    """
    warm = min(ranks - 1 - rank, micro_batches)
    made: list[Step] = [(Pass("forward", 0, i),) for i in range(warm)]
    for i in range(micro_batches):
        made += [(Pass("forward", 0, warm + i),)] if warm + i < micro_batches else []
        made.append((Pass("inputs", 0, i),))
        made += [(Pass("weight", 0, i - rank),)] if i >= rank else []
    return made + [(Pass("weight", 0, i),) for i in range(max(micro_batches - rank, 0), micro_batches)]


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """p micro-batches on every stage (table 2): later stages warm up less and delay their weight gradients more."""
    return np.minimum(num(micro_batches), num(pp) + 0.0 * num(stage))


def seconds(line: Line) -> Num:
    """The longest path through the order, exact for any stages (cost_models.choices.played).

    For equal stages and at least p micro-batches the bubble is the paper's (p - 1)(F + B - W) (B: input gradients alone), where W is no
    longer than F and B; a longer one outlasts the waits that it fills.
    """
    return played(RECIPE, line)


RECIPE = Recipe(order=order, place=place, chunks=CHUNKS, more=0, round=1)
