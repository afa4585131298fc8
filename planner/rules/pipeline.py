"""Laws about pipeline stages, their chunks and their schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import Layout, micro_batches
from cost_models.numeric import num
from cost_models.stack import resolve
from cost_models.stages import FOLDED
from planner.rules.rule import Mask, Rule, divides, show

if TYPE_CHECKING:
    from planner.case import Case


def _layers(case: Case, layout: Layout) -> Mask:
    return np.asarray(num(layout.degrees.pp) <= case.architecture.layers)


def _chunks(case: Case, layout: Layout) -> Mask:
    if layout.choices.schedule != "interleaved":
        return True
    d = layout.degrees
    chunks, layers = num(d.pp) * d.vpp, float(case.architecture.layers)
    if case.framework == "megatron":
        return divides(chunks, layers) | divides(chunks, layers + 1.0) | divides(chunks, layers + 2.0)
    return np.asarray(chunks <= layers)


def _chunks_given(case: Case, layout: Layout) -> str:
    d, a = layout.degrees, case.architecture
    given = f"pp × vpp = {show(d.pp)} × {show(d.vpp)} = {show(num(d.pp) * d.vpp)}"
    if case.framework == "megatron":
        return f"{given} chunks do not divide the {a.layers} layers of {a.id}, with or without embedding and loss counted as layers"
    return f"{given} chunks exceed the {a.layers} layers of {a.id}"


def _interleaved_batches(case: Case, layout: Layout) -> Mask:
    if layout.choices.schedule != "interleaved":
        return True
    return divides(layout.degrees.pp, micro_batches(layout, case.training.global_batch))


def _full_pipeline(case: Case, layout: Layout) -> Mask:
    return np.asarray(micro_batches(layout, case.training.global_batch) >= num(layout.degrees.pp))


def _counted(case: Case, layout: Layout) -> str:
    d, b = layout.degrees, case.training.global_batch
    m = show(micro_batches(layout, b))
    return f"{m} micro-batches a step (global batch {b:,} / micro-batch {show(d.micro_batch)} / dp {show(d.dp)})"


def _folded(case: Case, layout: Layout) -> Mask:
    if layout.choices.schedule not in FOLDED:
        return True
    return np.asarray(2.0 * num(layout.degrees.pp) <= case.architecture.layers)


RULES = (
    Rule(
        id="schedule_pipeline",
        sentence="without a pipeline all schedules are 1F1B",
        source="planner",
        reads=("pp", "schedule"),
        holds=lambda case, layout: layout.choices.schedule in ("1f1b", "interleaved") or np.asarray(num(layout.degrees.pp) > 1.0),
        given=lambda case, layout: f"schedule={layout.choices.schedule} with pp=1",
        vary=("schedule",),
        kind="canonical",
    ),
    Rule(
        id="folded_layers",
        sentence="a V-shaped schedule lays two chunks on every stage, of at least one layer each",
        source="PyTorch distributed/pipelining/schedules.py (ScheduleZBVZeroBubble); torchtitan distributed/pipeline_parallel.py",
        reads=("pp", "schedule"),
        holds=_folded,
        given=lambda case, layout: (
            f"schedule={layout.choices.schedule} with pp={show(layout.degrees.pp)}: two chunks a stage need more than the"
            f" {case.architecture.layers} layers of {case.architecture.id}"
        ),
        vary=("pp",),
    ),
    Rule(
        id="folded_compile",
        sentence="schedules that split the backward run stages that are not compiled: a compiled one has a single backward",
        source="PyTorch distributed/pipelining/_backward.py (stage_backward_input walks the autograd graph)",
        reads=("schedule",),
        holds=lambda case, layout: layout.choices.schedule not in FOLDED or resolve(case.training).implementation != "compiled",
        given=lambda case, layout: (
            f"schedule={layout.choices.schedule} with the compiled stages that torchtitan has by default: try compile=off (--no-compile)"
        ),
        vary=("schedule",),
        frameworks=("torchtitan",),
    ),
    Rule(
        id="layers",
        sentence="every pipeline stage holds at least one layer",
        source="torchtitan distributed/pipeline_parallel.py:554; Megatron-LM transformer_config.py:2229",
        reads=("pp",),
        holds=_layers,
        given=lambda case, layout: f"pp={show(layout.degrees.pp)} exceeds the {case.architecture.layers} layers of {case.architecture.id}",
        vary=("pp",),
    ),
    Rule(
        id="vpp_schedule",
        sentence="several chunks a stage (vpp > 1) run under the interleaved schedule, which needs them",
        source="Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; torchtitan distributed/pipeline_parallel.py:234",
        reads=("vpp", "schedule"),
        holds=lambda case, layout: np.asarray((num(layout.degrees.vpp) > 1.0) == (layout.choices.schedule == "interleaved")),
        given=lambda case, layout: (
            f"vpp={show(layout.degrees.vpp)} with schedule={layout.choices.schedule}: vpp > 1 and interleaved go together"
        ),
        vary=("schedule", "vpp"),
    ),
    Rule(
        id="vpp_pipeline",
        sentence="several chunks a stage need a pipeline (pp > 1)",
        source="Megatron-LM arguments.py:1001-1009",
        reads=("pp", "vpp"),
        holds=lambda case, layout: np.asarray((num(layout.degrees.vpp) == 1.0) | (num(layout.degrees.pp) > 1.0)),
        given=lambda case, layout: f"vpp={show(layout.degrees.vpp)} needs pp > 1",
        vary=("vpp",),
    ),
    Rule(
        id="chunks",
        sentence="pp × vpp divides the layers (in Megatron-LM embedding and loss may count as one layer each)",
        source="Megatron-LM arguments.py:928-999; torchtitan distributed/pipeline_parallel.py:554",
        reads=("pp", "vpp", "schedule"),
        holds=_chunks,
        given=_chunks_given,
        vary=("vpp", "pp"),
    ),
    Rule(
        id="interleaved_micro_batches",
        sentence="the interleaved schedule takes micro-batches in groups of pp",
        source="Megatron-LM core/pipeline_parallel/schedules.py:1156-1180",
        reads=("pp", "dp", "micro_batch", "schedule"),
        holds=_interleaved_batches,
        given=lambda case, layout: f"{_counted(case, layout)} are no multiple of pp={show(layout.degrees.pp)}",
        vary=("micro_batch",),
    ),
    Rule(
        id="full_pipeline",
        sentence="torchtitan's schedules need at least pp micro-batches",
        source="torchtitan trainer.py:126; pytorch/pytorch 144702",
        reads=("pp", "dp", "micro_batch"),
        holds=_full_pipeline,
        given=lambda case, layout: f"{_counted(case, layout)} are fewer than pp={show(layout.degrees.pp)}",
        vary=("micro_batch",),
        frameworks=("torchtitan",),
    ),
    Rule(
        id="tied_pipeline",
        sentence="torchtitan does not tie the embedding to the head across stages",
        source="torchtitan models/common/decoder.py:169",
        reads=("pp",),
        holds=lambda case, layout: np.asarray(num(layout.degrees.pp) == 1.0) if case.architecture.tied_embeddings else True,
        given=lambda case, layout: (
            f"pp={show(layout.degrees.pp)} with the tied embeddings of {case.architecture.id}: pp must be 1 in torchtitan"
        ),
        vary=("pp",),
        frameworks=("torchtitan",),
    ),
    Rule(
        id="mtp_pipeline",
        sentence="torchtitan trains multi-token-prediction modules without pipeline and context parallelism",
        source="torchtitan models/deepseek_v3/mtp.py:199-204",
        reads=("pp", "cp"),
        holds=lambda case, layout: (
            np.asarray((num(layout.degrees.pp) == 1.0) & (num(layout.degrees.cp) == 1.0))
            if case.training.mtp and case.architecture.mtp_layers
            else True
        ),
        given=lambda case, layout: f"pp={show(layout.degrees.pp)}, cp={show(layout.degrees.cp)} with mtp: both must be 1 in torchtitan",
        vary=("pp", "cp"),
        frameworks=("torchtitan",),
    ),
)
