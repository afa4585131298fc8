"""DualPipe: two streams of micro-batches from both ends, forward of one overlapped with backward of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.choices.orders import Pass, Place, Step, present
from cost_models.choices.played import Recipe, played
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "dualpipe"
SENTENCE = "micro-batches enter from both ends; each rank holds two stages and overlaps the forward of one with the backward of the other"
SOURCE = "DeepSeek-V3 (arXiv 2412.19437), table 2; deepseek-ai/DualPipe dualpipe/dualpipe.py (steps 1 to 8)"
CHUNKS = 2


def place(rank: int, chunk: int, ranks: int, chunks: int) -> Place:
    """Chunk 0 takes the micro-batches that enter at the first rank (0, 2, 4, …), chunk 1 those that enter at the last (1, 3, …)."""
    position = rank if chunk == 0 else ranks - 1 - rank
    return Place(way=chunk, position=position, last=position == ranks - 1, stage=position, part=1.0)


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """The steps 1 to 8 of the source, which wants even ranks and an even number of micro-batches, at least twice the ranks: the passes
    of those that there are not are left out, and the middle one of odd ranks is ordered as a middle rank."""
    half_ranks, near = (ranks + 1) // 2, min(rank, ranks - 1 - rank)
    each = (max(micro_batches, 4 * half_ranks) + 1) // 2
    made = _Made(flip=2 * rank >= ranks)
    behind = half_ranks - near - 1
    for _ in range(2 * behind):
        made.forward(0)
    for _ in range(near + 1):
        made.forward(0)
        made.forward(1)
    for _ in range(behind):
        made.backward(1, apart=True)
        made.weight()
        made.forward(1)
    for i in range(each - 2 * half_ranks + near + 1):
        if i == 0 and behind == 0:
            made.forward(0)
            made.backward(1)
        else:
            made.overlapped(0, 1)
        made.overlapped(1, 0)
    for _ in range(behind):
        made.backward(1)
        made.overlapped(1, 0)
    made.drain(near + 1, near)
    for _ in range(behind):
        made.weight()
        made.backward(0, apart=True)
    for _ in range(near + 1):
        made.weight()
    return present(made.steps, micro_batches)


class _Made:
    """The steps of a rank so far. Streams are called 0 and 1 from the rank's nearer end: `flip` on the second half of the ranks."""

    def __init__(self, *, flip: bool) -> None:
        self.flip = flip
        self.steps: list[Step] = []
        self.count = {("forward", 0): 0, ("forward", 1): 0, ("backward", 0): 0, ("backward", 1): 0}
        self.waiting: list[tuple[int, int]] = []

    def _next(self, kind: str, stream: int) -> tuple[int, int]:
        chunk = 1 - stream if self.flip else stream
        i = self.count[kind, stream]
        self.count[kind, stream] += 1
        return chunk, 2 * i + chunk

    def forward(self, stream: int) -> None:
        self.steps.append((Pass("forward", *self._next("forward", stream)),))

    def backward(self, stream: int, *, apart: bool = False) -> None:
        chunk, i = self._next("backward", stream)
        self.steps.append((Pass("inputs" if apart else "backward", chunk, i),))
        if apart:
            self.waiting.append((chunk, i))

    def weight(self) -> None:
        self.steps.append((Pass("weight", *self.waiting.pop(0)),))

    def overlapped(self, forward: int, backward: int) -> None:
        self.steps.append((Pass("forward", *self._next("forward", forward)), Pass("backward", *self._next("backward", backward))))

    def drain(self, rounds: int, near: int) -> None:
        """Backwards of both streams; from the middle on, their weight gradients wait."""
        for i in range(rounds):
            late = i > rounds // 2
            self.backward(1, apart=late or (i == rounds // 2 and near % 2 == 1))
            self.backward(0, apart=late or i == rounds // 2)


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """p + 1 micro-batches on every rank (DeepSeek-V3, table 2), each of one of its two stages; fewer where there are fewer than 2 p."""
    ahead, other = np.ceil(num(micro_batches) / 2.0), np.floor(num(micro_batches) / 2.0)
    first, early, late = _windows(stage, pp)
    return np.minimum(np.where(first, ahead, other), early) + np.minimum(np.where(first, other, ahead), late)


def one_way(stage: Num, pp: Num, micro_batches: Num) -> Num:
    """Return the micro-batches in flight of one stage on either of the two ranks that hold it: p - i of stage i, as under 1F1B, so that a
    rank holds p - i of its own stage and i + 1 of the mirrored one. Of an odd number of micro-batches, on the rank with one more; of odd
    ranks, the middle stage has the mean of its two copies."""
    first, early, late = _windows(stage, pp)
    middle = 2.0 * num(stage) + 1.0 == num(pp)
    window = np.where(middle, (early + late) / 2.0, np.where(first, early, late))
    return np.minimum(np.ceil(num(micro_batches) / 2.0), window)


def _windows(stage: Num, pp: Num) -> tuple[npt.NDArray[np.bool_], Num, Num]:
    """Whether a rank is of the first half, and how many micro-batches it lets in of the stream from its nearer and its farther end."""
    near = np.minimum(num(stage), pp - 1.0 - stage)
    return np.asarray(2.0 * num(stage) < pp), 2.0 * np.ceil(num(pp) / 2.0) - near, near + 1.0


def seconds(line: Line) -> Num:
    """The longest path through the order, exact for any stages (cost_models.choices.played).

    An overlapped pair takes its forward and its backward one after the other: what overlaps inside it is traffic, and planner has taken
    that off each pass already. For equal stages with F = B = W (B: input gradients alone) the bubble is the source's
    (p / 2 - 1)(F&B + B - 3 W), whose B means both gradients. A rank runs its own stage for one half of the micro-batches and the
    mirrored stage for the other half.
    """
    return played(RECIPE, line)


RECIPE = Recipe(order=order, place=place, chunks=CHUNKS, more=4, round=2)
