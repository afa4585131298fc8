"""Zero-bubble V: two chunks a stage, laid down and up, with split weight gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.orders import Kind, Pass, Place, Step, present
from cost_models.choices.played import Recipe, played
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "zb-v"
SENTENCE = "two model chunks a stage in a V, weight gradients fill all bubbles, at the memory of 1F1B"
SOURCE = (
    "Qi et al. 2023 (arXiv 2401.10241), section 6; PyTorch distributed/pipelining/schedules.py (ScheduleZBVZeroBubble); AMD-AGI/Primus"
    " core/pipeline_parallel/scheduler/algorithms/zbv_formatted.py (the same order)"
)
CHUNKS = 2


def place(rank: int, chunk: int, ranks: int, chunks: int) -> Place:
    """Down all ranks with the first chunk, up again with the second."""
    position = rank if chunk == 0 else 2 * ranks - 1 - rank
    return Place(way=0, position=position, last=position == 2 * ranks - 1, stage=rank, part=0.5)


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """The order of PyTorch's ScheduleZBVZeroBubble, whatever the passes take: made for at least 2 p - 1 micro-batches, of which those
    that there are not are left out."""
    m, behind = max(2 * ranks - 1, micro_batches), ranks - rank
    warm = 2 * ranks - 1 - rank
    both: list[tuple[Kind, int]] = [("inputs", 0), ("weight", 0), ("forward", 1), ("inputs", 1), ("weight", 1)]
    made: list[tuple[Kind, int]] = [("forward", 0)] * (2 * behind - 1)
    made += [*both[2:3], ("forward", 0)] * rank
    made += both[2:] * behind
    for i in range(m - ranks):
        made += [("forward", 0), *both] if warm + i < m else both
    made += [both[0], both[3]] * rank
    made += both[:2] * behind
    made += [both[4]] * rank + [both[1]] * rank
    count: dict[tuple[Kind, int], int] = {}
    steps: list[Step] = []
    for kind, chunk in made:
        i = count[kind, chunk] = count.get((kind, chunk), -1) + 1
        steps.append((Pass(kind, chunk, i),))
    return present(steps, micro_batches)


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """p micro-batches of the whole stage on every stage (2 p chunks of half a stage); fewer where there are fewer than 2 p - 1."""
    down, up = 2.0 * num(pp) - 1.0 - stage, num(stage) + 1.0
    return (np.minimum(micro_batches, down) + np.minimum(micro_batches, up)) / 2.0


def seconds(line: Line) -> Num:
    """The longest path through the order, exact for any stages (cost_models.choices.played), where each chunk takes half of its stage.

    With F = B = W (B: input gradients alone) no rank waits once it has begun, as in the paper, and the step is m stages and the p - 1
    chunk forwards until the last rank begins. Unlike passes leave gaps, for the order stays: the paper's own scheduler would look for
    another one for the passes that it has measured.
    """
    return played(RECIPE, line)


RECIPE = Recipe(order=order, place=place, chunks=CHUNKS, more=2, round=1)
