"""Laws about pipeline stages, their chunks and their schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import Layout, micro_batches
from cost_models.numeric import num
from cost_models.stack import resolve
from cost_models.stages import FOLDED
from planner.rules.frameworks import SUPPORT, running
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
    if case.framework == "megatron-zb":
        return divides(chunks, layers)
    return np.asarray(chunks <= layers)


def _chunks_given(case: Case, layout: Layout) -> str:
    d, a = layout.degrees, case.architecture
    given = f"pp × vpp = {show(d.pp)} × {show(d.vpp)} = {show(num(d.pp) * d.vpp)}"
    if case.framework == "megatron":
        return f"{given} chunks do not divide the {a.layers} layers of {a.id}, with or without embedding and loss counted as layers"
    if case.framework == "megatron-zb":
        return f"{given} chunks do not divide the {a.layers} layers of {a.id}"
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
    pp, layers = num(layout.degrees.pp), float(case.architecture.layers)
    if case.framework == "megatron-zb":
        return divides(2.0 * pp, layers)
    return np.asarray(2.0 * pp <= layers)


def _folded_given(case: Case, layout: Layout) -> str:
    d, a = layout.degrees, case.architecture
    given = f"schedule={layout.choices.schedule} with pp={show(d.pp)}"
    if case.framework == "megatron-zb" and 2.0 * float(num(d.pp)) <= a.layers:
        return f"{given}: two equal chunks a stage need an even number of layers on each stage, alike; {a.id} has {a.layers}"
    return f"{given}: two chunks a stage need more than the {a.layers} layers of {a.id}"


def _schedule_given(case: Case, layout: Layout) -> str:
    asked = layout.choices.schedule
    who = ", ".join(running(asked)) or "no framework that planner knows"
    return f"schedule={asked}: run by {who}; {case.framework} offers schedules {', '.join(SUPPORT[case.framework].schedules)}"


def _fork_model(case: Case) -> str:
    """What of the model the zero-bubble fork lacks, in words; empty: nothing."""
    a = case.architecture
    lacks = [
        ("tied embeddings", a.tied_embeddings),
        ("latent attention", a.mla is not None),
        ("sliding windows", a.sliding_window is not None),
    ]
    return ", ".join(words for words, has in lacks if has)


def _fork_layers(case: Case, layout: Layout) -> Mask:
    if layout.choices.schedule not in ("1f1b", "zb-h1"):
        return True
    pp, layers = layout.degrees.pp, float(case.architecture.layers)
    return divides(pp, layers) | divides(pp, layers + 2.0)


def _fork_v(case: Case, layout: Layout) -> Mask:
    if layout.choices.schedule != "zb-v":
        return True
    return np.asarray(micro_batches(layout, case.training.global_batch) >= 2.0 * num(layout.degrees.pp) - 1.0)


def _dualpipe_batches(case: Case, layout: Layout) -> Mask:
    m = micro_batches(layout, case.training.global_batch)
    return np.asarray((m >= 2.0 * num(layout.degrees.pp)) & (np.mod(m, 2.0) == 0.0))


RULES = (
    Rule(
        id="schedule_framework",
        sentence="the framework offers the schedules",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=("schedule",),
        holds=lambda case, layout: layout.choices.schedule in SUPPORT[case.framework].schedules,
        given=_schedule_given,
    ),
    Rule(
        id="fork_model",
        sentence="the zero-bubble fork runs Megatron core 0.9's own layers: no latent attention, no windows, embedding and head apart",
        source="sail-sg/zero-bubble-pipeline-parallelism core/zbpp_utils.py:76, core/transformer/dot_product_attention.py:47-52",
        reads=(),
        holds=lambda case, layout: not _fork_model(case),
        given=lambda case, layout: f"{case.architecture.id} has {_fork_model(case)}, which megatron-zb does not run",
        frameworks=("megatron-zb",),
    ),
    Rule(
        id="fork_layers",
        sentence="in the zero-bubble fork stages are alike, or the first and the last hold one layer less",
        source="sail-sg/zero-bubble-pipeline-parallelism README.md, training/arguments.py:260 (--allow-padding-num-layers)",
        reads=("pp", "schedule"),
        holds=_fork_layers,
        given=lambda case, layout: (
            f"pp={show(layout.degrees.pp)} divides neither the {case.architecture.layers} layers of {case.architecture.id} nor two more"
        ),
        vary=("pp",),
        frameworks=("megatron-zb",),
    ),
    Rule(
        id="fork_v_micro_batches",
        sentence="the zero-bubble fork looks for an order of its own; from 2 pp - 1 micro-batches on it takes as long as the one modelled",
        source="sail-sg/zero-bubble-pipeline-parallelism core/pipeline_parallel/zerobubble/scheduler/zbv.py, run beside planner's order",
        reads=("pp", "dp", "micro_batch", "schedule"),
        holds=_fork_v,
        given=lambda case, layout: (
            f"schedule=zb-v with pp={show(layout.degrees.pp)}: {_counted(case, layout)} are fewer than 2 pp - 1, where megatron-zb"
            " takes another order, which planner has not"
        ),
        vary=("micro_batch",),
        frameworks=("megatron-zb",),
    ),
    Rule(
        id="dualpipe_ranks",
        sentence="DualPipe runs an even number of ranks",
        source="deepseek-ai/DualPipe dualpipe/dualpipe.py:332",
        reads=("pp",),
        holds=lambda case, layout: np.asarray(np.mod(num(layout.degrees.pp), 2.0) == 0.0),
        given=lambda case, layout: f"pp={show(layout.degrees.pp)}: DualPipe needs an even number of ranks",
        vary=("pp",),
        frameworks=("dualpipe",),
    ),
    Rule(
        id="dualpipe_micro_batches",
        sentence="DualPipe takes an even number of micro-batches, at least twice the ranks",
        source="deepseek-ai/DualPipe dualpipe/dualpipe.py:333",
        reads=("pp", "dp", "micro_batch"),
        holds=_dualpipe_batches,
        given=lambda case, layout: (
            f"{_counted(case, layout)} with pp={show(layout.degrees.pp)}: DualPipe needs an even number of at least"
            f" {show(2.0 * num(layout.degrees.pp))}"
        ),
        vary=("micro_batch",),
        frameworks=("dualpipe",),
    ),
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
        given=_folded_given,
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
