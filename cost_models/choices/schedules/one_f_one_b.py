"""1F1B without interleaving (PipeDream-Flush)."""

from __future__ import annotations

import numpy as np

from cost_models.numeric import Num, num

NAME = "1f1b"
SENTENCE = "after a warm-up each stage alternates one forward and one backward"
SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473), section 2.2"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Stage i holds p − i micro-batches, or all of them where there are fewer."""
    return np.minimum(num(micro_batches), num(pp) - stage)
