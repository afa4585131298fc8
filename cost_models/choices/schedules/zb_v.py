"""Zero-bubble V: two chunks a stage, laid down and up, with split weight gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.pipeline import longest
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

NAME = "zb-v"
SENTENCE = "two model chunks a stage in a V, weight gradients fill all bubbles, at the memory of 1F1B"
SOURCE = "Qi et al. 2023 (arXiv 2401.10241), section 6; Qi et al. 2024 (arXiv 2405.15362)"


def in_flight(stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
    """p micro-batches of the whole stage on every stage (2 p chunks of half a stage)."""
    return np.minimum(num(micro_batches), num(pp) + 0.0 * num(stage))


def seconds(line: Line) -> Num:
    """No bubble where F = B = W; else each of the p - 1 steps of the fill leaves the longest less the shortest of half a stage."""
    stage = line.forward + line.backward
    inputs = line.backward - line.weight
    most = np.maximum(np.maximum(line.forward, inputs), line.weight)
    least = np.minimum(np.minimum(line.forward, inputs), line.weight)
    bubble = (line.pp - 1.0) * (most - least) / 2.0
    return longest(line.micro_batches * stage + bubble)
