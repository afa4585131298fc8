"""Interleaved 1F1B: each stage holds several model chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.around import with_ways_around
from cost_models.choices.orders import Pass, Step, alternating, around
from cost_models.choices.pipeline import longest_path
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "interleaved"
SENTENCE = "1F1B over v model chunks a stage, which divides the bubble by v"
SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; Megatron-LM core/pipeline_parallel/schedules.py"
CHUNKS = None
place = around


def order(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
    """Groups of p micro-batches go through one chunk after the other; rank i warms up with 2 (p - i - 1) + (v - 1) p passes.

    Raises ValueError for micro-batches that are no multiple of the ranks.
    """
    if micro_batches % ranks:
        raise ValueError(f"interleaving needs micro-batches in multiples of the {ranks} stages, not {micro_batches}")
    groups = range(0, micro_batches, ranks)
    turns = [(chunk, i) for first in groups for chunk in range(chunks) for i in range(first, first + ranks)]
    forwards = [Pass("forward", chunk, i) for chunk, i in turns]
    backwards = [Pass("backward", chunks - 1 - chunk, i) for chunk, i in turns]
    return alternating(min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, len(turns)), forwards, backwards)


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Stage i warms up 2 (p − i − 1) + (v − 1) p chunks and runs one more; a chunk is 1/v of the stage."""
    chunks = 2.0 * (num(pp) - stage - 1.0) + (num(vpp) - 1.0) * pp + 1.0
    return np.minimum(chunks, num(micro_batches) * vpp) / vpp


def layer_passes(stage: Num, layers: Num, pp: Num, vpp: Num, micro_batches: Num, group: float | None = None) -> Num:
    """Return layers × micro-batches in flight of a stage of `layers`, spread over its chunks with the larger ones first.

    The chunks run in groups of p micro-batches each (`group`: of another size), chunk by chunk, so that early chunks hold more
    than late ones at the peak.
    """
    size = num(pp) if group is None else num(group)
    chunks = 2.0 * (num(pp) - stage - 1.0) + (num(vpp) - 1.0) * size + 1.0
    n = np.minimum(chunks, num(micro_batches) * vpp)
    each = np.floor(layers / num(vpp))
    larger = layers - each * vpp
    rounds = np.floor(n / (size * vpp))
    return each * n + rounds * size * larger + np.minimum(n - rounds * size * vpp, larger * size)


def seconds(line: Line) -> Num:
    """The longest path through the passes (cost_models.choices.pipeline and around): stage i warms up with 2 (p - i - 1) + (v - 1) p
    chunks.

    Exact for any stages and m a multiple of p, the only case that Megatron runs; other m wait for the last group.
    """
    rest = line.micro_batches - np.floor(line.micro_batches / line.pp) * line.pp
    idle = np.where((rest > 0.0) & (line.pp > 1.0), (line.vpp - 1.0) * (line.pp - rest), 0.0)
    return with_ways_around(line, longest_path(line, 2.0, (line.vpp - 1.0) * line.pp, line.vpp, idle))
