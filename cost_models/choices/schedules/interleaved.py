"""Interleaved 1F1B: each stage holds several model chunks."""

from __future__ import annotations

import numpy as np

from cost_models.numeric import Num, num

NAME = "interleaved"
SENTENCE = "1F1B over v model chunks a stage, which divides the bubble by v"
SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; Megatron-LM core/pipeline_parallel/schedules.py"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Stage i warms up 2 (p − i − 1) + (v − 1) p chunks and runs one more; a chunk is 1/v of the stage."""
    chunks = 2.0 * (num(pp) - stage - 1.0) + (num(vpp) - 1.0) * pp + 1.0
    return np.minimum(chunks, num(micro_batches) * vpp) / vpp
