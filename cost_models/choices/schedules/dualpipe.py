"""DualPipe: two streams of micro-batches from both ends, forward of one overlapped with backward of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.pipeline import longest
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "dualpipe"
SENTENCE = "micro-batches enter from both ends; each rank holds two stages and overlaps the forward of one with the backward of the other"
SOURCE = "DeepSeek-V3 (arXiv 2412.19437), table 2; deepseek-ai/DualPipe README"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """p + 1 micro-batches on every rank (DeepSeek-V3, table 2)."""
    return np.minimum(num(micro_batches), num(pp) + 1.0 + 0.0 * num(stage))


def seconds(line: Line) -> Num:
    """Bubble (p / 2 - 1)(F&B + B - 3 W), never negative. F&B = forward and backward together, as their sum; B = input gradients."""
    stage = line.forward + line.backward
    inputs = line.backward - line.weight
    bubble = np.maximum(line.pp / 2.0 - 1.0, 0.0) * np.maximum(stage + inputs - 3.0 * line.weight, 0.0)
    return longest(line.micro_batches * stage + bubble)
