"""Zero-bubble H1: 1F1B whose weight gradients fill the drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.pipeline import longest
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "zb-h1"
SENTENCE = "1F1B with weight gradients split off and run in the bubble of the drain, at the memory of 1F1B"
SOURCE = "Qi et al. 2023 (arXiv 2401.10241), section 2 and table 2"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """As 1F1B: the first stage holds p micro-batches."""
    return np.minimum(num(micro_batches), num(pp) - stage)


def seconds(line: Line) -> Num:
    """As 1F1B with a bubble of (p - 1)(F + B - W) in place of (p - 1)(F + B + W), never negative. B: input gradients."""
    stage = line.forward + line.backward
    total = line.forward_sum + line.backward_sum
    bubble = np.maximum(total - stage - 2.0 * (line.weight_sum - line.weight), 0.0)
    through = total - line.weight_sum + (line.micro_batches - 1.0) * (stage - line.weight) + line.weight
    return longest(np.maximum(line.micro_batches * stage + bubble, through))
