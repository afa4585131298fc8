"""Laws about batch and sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from planner.rules.rule import Mask, Rule, divides, show

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case

FP8_ROWS = 16.0
"""Rows of an FP8 GEMM come in sixteens (Transformer Engine)."""


def _cp(case: Case, layout: Layout) -> Mask:
    cp = num(layout.degrees.cp)
    return np.asarray((cp == 1.0) | divides(2.0 * cp, float(case.training.seq)))


def _sequence_parallel(case: Case, layout: Layout) -> Mask:
    if not layout.choices.sequence_parallel:
        return True
    d = layout.degrees
    return divides(num(d.cp) * d.tp, float(case.training.seq))


def _fp8_rows(case: Case, layout: Layout) -> Mask:
    if case.training.precision != "fp8":
        return True
    d = layout.degrees
    rows = num(d.micro_batch) * case.training.seq / d.cp
    return divides(FP8_ROWS, rows / d.tp if layout.choices.sequence_parallel else rows)


def _positions(case: Case, layout: Layout) -> Mask:
    a = case.architecture
    return not (a.learned_positions and case.training.seq > (a.max_positions or a.learned_positions))


RULES = (
    Rule(
        id="batch",
        sentence="global batch = micro-batch × accumulation × dp",
        source="Megatron-LM core/num_microbatches_calculator.py:366; DeepSpeed runtime/config.py:923; torchtitan trainer.py:418",
        reads=("dp", "micro_batch"),
        holds=lambda case, layout: divides(num(layout.degrees.micro_batch) * layout.degrees.dp, float(case.training.global_batch)),
        given=lambda case, layout: (
            f"global batch {case.training.global_batch:,} is no multiple of micro-batch × dp ="
            f" {show(layout.degrees.micro_batch)} × {show(layout.degrees.dp)}"
        ),
        vary=("micro_batch", "dp"),
    ),
    Rule(
        id="cp_sequence",
        sentence="2 × cp divides the sequence, as each rank takes an early and a late part of it",
        source="Megatron-LM arguments.py:1336; torchtitan trainer.py:295; trl 3994",
        reads=("cp",),
        holds=_cp,
        given=lambda case, layout: f"cp={show(layout.degrees.cp)}: 2 × cp does not divide sequence {case.training.seq:,}",
        vary=("cp",),
    ),
    Rule(
        id="cp_attention",
        sentence="context parallelism needs a fused attention kernel",
        source="accelerate and trl (SDPA only); Megatron-LM (Transformer Engine's ring attention)",
        reads=("cp",),
        holds=lambda case, layout: np.asarray(num(layout.degrees.cp) == 1.0) if case.training.attention == "eager" else True,
        given=lambda case, layout: f"cp={show(layout.degrees.cp)} with eager attention: cp must be 1, or attention flash",
        vary=("cp",),
    ),
    Rule(
        id="sequence_parallel_tp",
        sentence="sequence parallelism cuts over the tensor parallel ranks, so it needs tp > 1",
        source="Megatron-LM core/model_parallel_config.py:504",
        reads=("tp", "sequence_parallel"),
        holds=lambda case, layout: np.asarray(num(layout.degrees.tp) > 1.0) if layout.choices.sequence_parallel else True,
        given=lambda case, layout: f"sequence parallelism with tp={show(layout.degrees.tp)} needs tp > 1",
        vary=("sequence_parallel",),
    ),
    Rule(
        id="sequence_parallel_seq",
        sentence="under sequence parallelism cp × tp divides the sequence",
        source="Megatron-LM core/tensor_parallel/mappings.py; torchtitan trainer.py:295",
        reads=("tp", "cp", "sequence_parallel"),
        holds=_sequence_parallel,
        given=lambda case, layout: (
            f"cp × tp = {show(layout.degrees.cp)} × {show(layout.degrees.tp)} does not divide sequence {case.training.seq:,}"
        ),
        vary=("tp", "cp"),
    ),
    Rule(
        id="fp8_rows",
        sentence="under fp8 the tokens of one rank come in sixteens",
        source="Transformer Engine (height divisible by 8, width by 16); NeMo Speech 8869",
        reads=("tp", "cp", "micro_batch", "sequence_parallel"),
        holds=_fp8_rows,
        given=lambda case, layout: f"tokens of one rank at sequence {case.training.seq:,} are no multiple of 16, which fp8 needs",
        vary=("micro_batch", "cp", "tp"),
    ),
    Rule(
        id="positions",
        sentence="the sequence does not exceed the learned positions",
        source="Megatron-LM arguments.py:1354; torchtitan models/common/decoder.py:221",
        reads=(),
        holds=_positions,
        given=lambda case, layout: (
            f"sequence {case.training.seq:,} exceeds the {case.architecture.max_positions or case.architecture.learned_positions:,}"
            f" learned positions of {case.architecture.id}"
        ),
    ),
)
