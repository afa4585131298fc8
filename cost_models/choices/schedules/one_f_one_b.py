"""1F1B without interleaving (PipeDream-Flush)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
    """Longest of the paths that run one micro-batch down and up the pipeline and spend the rest at one stage j.

    m >= p: sum T + (m - 1) T_j + sum over stages after j of (T_s - T_j), for stage j alternates with the stages behind it in steady state.
    Exact for equal stages and where the slowest stage is the last; else a lower bound, below the event simulation by less than one warm-up
    of the difference between the stages. Fewer micro-batches than stages behind j: those that exist.
    """
    stage = line.forward + line.backward
    total = line.forward_sum + line.backward_sum
    m = line.micro_batches
    steady = np.maximum(m - 1.0 - line.behind, 0.0) * stage + line.after
    path = np.where(m - 1.0 >= line.behind, steady, _short(line, stage))
    return num(np.max(total + path, axis=-1))


def _short(line: Line, stage: Num) -> Num:
    """Fewer micro-batches than the warm-up holds: the stage runs the others' forwards or backwards while it waits."""
    return (line.micro_batches - 1.0) * np.maximum(line.forward, line.backward)
