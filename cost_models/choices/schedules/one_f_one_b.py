"""1F1B without interleaving (PipeDream-Flush)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.orders import Pass, Step, alternating, around
from cost_models.choices.pipeline import longest_path
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "1f1b"
SENTENCE = "after a warm-up each stage alternates one forward and one backward"
SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473), section 2.2"
CHUNKS = 1
place = around


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """Warm up with one forward for each rank behind."""
    m = range(micro_batches)
    warm = min(ranks - 1 - rank, micro_batches)
    return alternating(warm, [Pass("forward", 0, i) for i in m], [Pass("backward", 0, i) for i in m])


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Stage i holds p − i micro-batches, or all of them where there are fewer."""
    return np.minimum(num(micro_batches), num(pp) - stage)


def seconds(line: Line) -> Num:
    """The longest path through the passes (cost_models.choices.pipeline): stage i warms up with p - i - 1 micro-batches.

    Exact for any stages; where the stages between the second and the last are not evaluated, they are taken as alike.
    """
    return longest_path(line, 1.0, 0.0, 1.0, 0.0)
