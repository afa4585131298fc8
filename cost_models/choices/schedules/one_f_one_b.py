"""1F1B without interleaving (PipeDream-Flush)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.pipeline import longest
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "1f1b"
SENTENCE = "after a warm-up each stage alternates one forward and one backward"
SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473), section 2.2"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """Stage i holds p − i micro-batches, or all of them where there are fewer."""
    return np.minimum(num(micro_batches), num(pp) - stage)


def seconds(line: Line) -> Num:
    """Longest of the paths that spend their steady part at one stage j, with w stages behind it, and go through the others once.

    With m > w micro-batches: T_j rules from its first pass to its last, less what the way to the last stage and back replaces at the
    start, at the end, or at both. Exact for equal stages and for two stages; else a lower bound: the event simulation of random stages
    whose times differ up to fourfold lies at most some percent above (tests).
    """
    stage = line.forward + line.backward
    total = line.forward_sum + line.backward_sum
    more, w = line.micro_batches - 1.0, line.behind
    both = (more - w) * stage + line.after
    one = more * stage - w * np.minimum(line.forward, line.backward)
    none = more * stage - line.after
    short = more * np.maximum(line.forward, line.backward)
    path = np.where(more >= w, np.maximum(np.maximum(both, one), none), np.maximum(short, none))
    return longest(total + path)
