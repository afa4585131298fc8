"""Where the seconds go: every term of a step with its formula, its numbers, its source and what bounds it; stages; utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from cost_models.throughput.replicas import copied_embedding_bytes
from hardware.calibration import calibration
from planner.explain import at
from planner.explain.bounds import Bound, bounds
from planner.explain.figures import EXACT, Numbers, numbers
from planner.explain.memory_numbers import known

if TYPE_CHECKING:
    from cost_models.ledger import Term
    from planner.plan import Plan

OF_A_PASS = ("compute", "recompute", "tp", "cp", "ep", "zero")
"""Groups whose terms every micro-batch pays."""
OF_A_PASS_TOO = ("offload.layers", "host.launch")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeTerm:
    """One term of the step."""

    name: str
    seconds: float
    """Busy."""
    exposed_seconds: float
    """What lengthens the step."""
    formula: str
    """Of `seconds`."""
    numbers: Numbers | None
    """What stands for the names of the formula; they give `seconds`. None: the term is one figure."""
    hidden: str
    """What hides the seconds that are not exposed; empty where all are."""
    source: str
    bound: Bound | None
    """None where the term is zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """One micro-batch through one stage."""

    stage: int
    forward_seconds: float
    backward_seconds: float
    weight_seconds: float
    """Its part that computes weight gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeExplanation:
    """The step of a plan."""

    terms: tuple[TimeTerm, ...]
    step_seconds: float
    stages: tuple[StageTime, ...]
    micro_batches: int
    mfu: Numbers
    """Model FLOP / (GPUs × peak × step)."""
    hfu: Numbers
    limited_by: str

    @property
    def slowest(self) -> StageTime:
        """The stage that sets the pace."""
        return max(self.stages, key=lambda s: s.forward_seconds + s.backward_seconds)


def explain_time(plan: Plan) -> TimeExplanation:
    """Return the time of a step of `plan`, term by term."""
    t = plan.cost.time
    found = bounds(plan)
    terms = tuple(
        TimeTerm(
            name=term.name,
            seconds=at(term.value, 0),
            exposed_seconds=exposed(term),
            formula=term.formula.replace(" x ", " × ").replace("micro_batches", "micro-batches"),
            numbers=_numbers(plan, term),
            hidden=term.hidden if exposed(term) < at(term.value, 0) * (1.0 - EXACT) else "",
            source=term.source,
            bound=found.get(term.name),
        )
        for term in t.ledger.terms
    )
    step = float(num(t.step_seconds))
    return TimeExplanation(
        terms=terms,
        step_seconds=step,
        stages=stage_times(plan),
        micro_batches=plan.micro_batches,
        mfu=_utilisation(plan, "model FLOP", float(num(t.model_flop)), step),
        hfu=_utilisation(plan, "hardware FLOP", float(num(t.hardware_flop)), step),
        limited_by=plan.limited_by,
    )


def exposed(term: Term) -> float:
    """Return the seconds of a term that lengthen the step."""
    return at(term.value if term.exposed is None else term.exposed, 0)


def stage_times(plan: Plan) -> tuple[StageTime, ...]:
    """Return forward and backward of every stage."""
    index = [int(i) for i in num(plan.cost.memory.stage_index).reshape(-1)]
    t = plan.cost.time
    passes = t.stage_forward_seconds, t.stage_backward_seconds, t.stage_weight_seconds
    times = [[at(seconds, k) for seconds in passes] for k in range(len(index))]
    return tuple(
        StageTime(stage=i, forward_seconds=f, backward_seconds=b, weight_seconds=w) for i, (f, b, w) in zip(index, times, strict=True)
    )


def of_a_pass(name: str) -> bool:
    """Tell whether every micro-batch pays the term in its forward or backward."""
    return name.split(".", 1)[0] in OF_A_PASS or name.startswith(OF_A_PASS_TOO)


def _numbers(plan: Plan, term: Term) -> Numbers | None:
    value = at(term.value, 0)
    if value == 0.0:
        return None
    m = float(plan.micro_batches)
    found: Numbers | None = None
    if of_a_pass(term.name):
        found = numbers("micro-batches", m, "micro-batch").times("seconds of one", value / m, "seconds")
    elif term.name == "pp.send":
        found = numbers("micro-batches", m, "micro-batch").times("both ways", 2.0).times("sends of a pass", value / m / 2.0, "seconds")
    elif term.name == "pp.bubble":
        steady = m * (pass_seconds(plan, "forward") + pass_seconds(plan, "backward"))
        found = numbers("pipeline", steady + value, "seconds").less("work of the slowest stage", steady, "seconds")
    elif term.name == "host.stragglers":
        others = ("host.stragglers", "host.between", "decode")
        before = sum(exposed(t) for t in plan.cost.time.ledger.terms if not t.name.startswith(others))
        found = numbers("what comes before", before, "seconds").times("slowest rank", value / before)
    else:
        found = _once(plan, term.name, value)
    return found if found is not None and found.gives(value) else None


def _once(plan: Plan, name: str, value: float) -> Numbers | None:
    """Numbers of what happens once a step, at the stage with the most parameters: bytes or parameters over the rate that is reached."""
    facts = known(plan)
    trained, share = facts.states.trained, facts.states.optimizer_shares
    everything = float(np.max(num(trained.dense) + num(trained.experts)))
    owned = float(np.max(num(trained.dense) / num(share.dense) + num(trained.experts) / num(share.experts)))
    if name in ("dp.reduce", "dp.gather"):
        width = facts.regime.reduce_bytes if name == "dp.reduce" else facts.regime.gather_bytes
        found = numbers("parameters of a rank", everything, "parameter").times("bytes", width, "bytes")
        return found.over("rate reached", found.result() / value, "bytes/s")
    if name == "pp.tied_embedding":
        width = facts.regime.main_gradient_bytes or facts.regime.gradient_bytes
        copied = copied_embedding_bytes(plan.architecture, plan.training, facts.regime, facts.ops.dims.vocab)
        found = numbers("embedding of a rank", float(num(copied)) / width, "parameter").times("bytes", width, "bytes")
        return found.over("rate reached", found.result() / value, "bytes/s")
    if name == "optimizer.update":
        return numbers("parameters that a rank updates", owned, "parameter").over("rate reached", owned / value, "parameters/s")
    if name == "offload.cpu_optimizer":
        rate = calibration("host").value("cpu_adam_parameters_per_second")
        return numbers("parameters of a server", value * rate, "parameter").over("CPU Adam", rate, "parameters/s")
    return None


def pass_seconds(plan: Plan, direction: str) -> float:
    """Return the exposed seconds of a forward or backward at the stage that sets the pace, with its exposed sends."""
    total = sum(exposed(t) for t in plan.cost.time.ledger.terms if of_a_pass(t.name) and is_forward(t.name) == (direction == "forward"))
    return total / plan.micro_batches + exposed_send(plan)


def is_forward(name: str) -> bool:
    """Tell whether a term belongs to the forward of a micro-batch (recompute runs in backward)."""
    return name.endswith("forward")


def exposed_send(plan: Plan) -> float:
    """Return the seconds by which sends lengthen one pass of one micro-batch through one stage."""
    return sum(exposed(t) for t in plan.cost.time.ledger.terms if t.name == "pp.send") / plan.micro_batches / 2.0


def _utilisation(plan: Plan, name: str, flop: float, step: float) -> Numbers:
    t = plan.cost.time
    gpus = float(plan.pool.count)
    peak = float(num(t.model_flop)) / (gpus * step * float(num(t.mfu)))
    found = numbers(name, flop, "FLOP").over("GPUs", gpus, "GPU").over("dense peak of the type", peak, "FLOP/s")
    return found.over("step", step, "seconds")
