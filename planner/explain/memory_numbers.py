"""The numbers behind the formulas of memory terms: parameters, widths, ranks, layers and micro-batches of one stage.

What the cost model multiplies is looked up here once more; `numbers_of` gives figures only where they come to the term's value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.choices.offload import OFFLOAD
from cost_models.choices.precision import Regime, regime_of
from cost_models.choices.zero import shares
from cost_models.memory.activations import layer_bytes
from cost_models.memory.states import Held, States, held, states
from cost_models.model_ops import ModelOps
from cost_models.numeric import num
from cost_models.stack import stream_bytes
from cost_models.stages import Stages, of_ranks, stages
from cost_models.transformer import model_ops
from hardware.calibration import calibration
from planner.explain import at
from planner.explain.figures import Numbers, numbers

if TYPE_CHECKING:
    from cost_models.ledger import Term
    from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the cost model started from."""

    ops: ModelOps
    stages: Stages
    regime: Regime
    held: Held
    states: States


def known(plan: Plan) -> Known:
    """Return the ops, stages, regime and parameters of `plan`, of the rank of every stage."""
    ops = model_ops(plan.architecture, plan.training, plan.layout)
    every = of_ranks(plan.layout, stages(plan.architecture, plan.layout, every=plan.layout.stage_layers is None))
    regime = regime_of(plan.training, plan.layout.choices)
    h = held(plan.architecture, plan.training, ops, every)
    return Known(ops=ops, stages=every, regime=regime, held=h, states=states(plan.training, regime, plan.layout, h, every))


def numbers_of(plan: Plan, facts: Known, term: Term, k: int) -> Numbers | None:
    """Return the numbers of `term` on evaluated stage `k`; None where the term is one figure, zero, or not what they come to."""
    value = at(term.value, k)
    if value == 0.0:
        return None
    for prefix, read in _READERS:
        if term.name == prefix or term.name.startswith(f"{prefix}."):
            found = read(plan, facts, term, k, value)
            return found if found is not None and found.gives(value) else None
    return None


_Reader = Callable[["Plan", Known, "Term", int, float], Numbers | None]


def _state(width: str, divided_from: str | int, offloaded: str = "") -> _Reader:
    """Parameters × bytes / ranks that share them."""

    def read(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
        experts = term.name.endswith(".experts")
        trained = facts.states.trained
        elements = at(trained.experts if experts else trained.dense, k)
        stage = divided_from if isinstance(divided_from, int) else int(getattr(facts.regime, divided_from))
        share = shares(plan.layout, stage)
        ranks = at(share.experts if experts else share.dense, k)
        bytes_each = _moment_bytes(facts, experts, k) if width == "moments" else float(getattr(facts.regime, width))
        found = numbers("parameters", elements, "parameter").times("bytes", bytes_each, "bytes").over("ranks", ranks, "rank")
        if offloaded and getattr(OFFLOAD[plan.layout.choices.offload], offloaded):
            found = found.times("part on the device", 1.0 - float(num(plan.layout.degrees.offload_fraction)))
        return found

    return read


def _moment_bytes(facts: Known, experts: bool, k: int) -> float:
    """Bytes of the moments of a parameter: the mean where matrices and others differ."""
    r, t = facts.regime, facts.states.trained
    if experts or r.moment_bytes == r.other_moment_bytes:
        return r.moment_bytes
    matrices, others = at(t.matrices, k), at(t.others, k)
    return (matrices * r.moment_bytes + others * r.other_moment_bytes) / (matrices + others)


def _base(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    """Frozen weights: parameters × mean bytes (NF4 and 16 bits together) / ranks."""
    experts = term.name.endswith(".experts")
    elements = at(facts.held.stage.experts if experts else facts.held.stage.dense, k)
    share = shares(plan.layout, facts.regime.weight_from)
    ranks = at(share.experts if experts else share.dense, k)
    each = value * ranks / elements
    return numbers("parameters", elements, "parameter").times("mean bytes", each, "bytes").over("ranks", ranks, "rank")


def _saved(part: str) -> _Reader:
    """Saved bytes of a layer × layers that keep them × micro-batches in flight."""

    def read(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
        total = 0.0
        for (_, rows), count in zip(facts.ops.kinds, facts.stages.kind_layers, strict=True):
            total += at(getattr(layer_bytes(rows, plan.training, plan.layout.choices), part), 0) * at(count, k)
        layers = at(facts.stages.layers, k)
        keeping = layers - (at(facts.stages.recomputed, k) if plan.layout.choices.recompute == "full" else 0.0)
        if total <= 0.0 or keeping <= 0.0:
            return None
        each = total / layers
        found = numbers("saved by a layer", each, "bytes").times("layers", keeping, "layer")
        return found.times("in flight", value / (each * keeping), "in flight")

    return read


def _layer_inputs(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    d = facts.ops.dims
    width = float(stream_bytes(plan.training, d.act_bytes))
    one = float(num(d.sp_tokens)) * d.hidden
    layers = at(facts.stages.recomputed, k)
    found = numbers("elements of a layer's input", one, "element").times("bytes", width, "bytes").times("layers", layers, "layer")
    return found.times("in flight", value / (one * width * layers), "in flight")


def _live(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    """The residual stream's gradient, and what the recomputed layer and the widest tensor add."""
    d = facts.ops.dims
    stream = float(num(d.sp_tokens)) * d.hidden * d.act_bytes
    if value <= stream:
        return None
    return numbers("gradient of the residual stream", stream, "bytes").plus("inside the layer", value - stream, "bytes")


def _logits(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    logits = float(num(facts.ops.dims.tokens)) * float(num(facts.ops.dims.vocab))
    found = numbers("tokens", float(num(facts.ops.dims.tokens)), "token")
    found = found.times("vocabulary of a rank", float(num(facts.ops.dims.vocab)), "word")
    return found.times("bytes", value / logits, "bytes")


def _gathered(width: Callable[[Regime], float], what: str) -> _Reader:
    def read(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
        each = width(facts.regime)
        return numbers(what, value / each, "parameter").times("bytes", each, "bytes") if each else None

    return read


def _bucket(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    each, copies = facts.regime.reduce_bytes, 2.0 if "× 2" in term.formula else 1.0
    return numbers("elements", value / each / copies, "element").times("bytes", each, "bytes").times("copies", copies)


def _part(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    """The rank's part of the trained parameters × bytes."""
    trained, share = facts.states.trained, facts.states.optimizer_shares
    part = at(trained.dense, k) / at(share.dense, k) + at(trained.experts, k) / at(share.experts, k)
    return numbers("parameters of the rank's part", part, "parameter").times("bytes", value / part, "bytes") if part else None


def _matrices(read: Callable[[Known], object]) -> _Reader:
    def inner(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
        elements = at(read(facts), k)
        return numbers("linear weights", elements, "weight").times("bytes", value / elements, "bytes") if elements else None

    return inner


def _cached(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    """The share of the constants that the source names × allocated, and what is left."""
    named = re.findall(r"\bcache_share\w*", term.source)
    constants = calibration("memory").constants
    share = sum(constants[name].value for name in dict.fromkeys(named) if name in constants)
    if "cache_share_pipeline" in constants and "cache_share_pipeline" not in named and float(num(plan.layout.degrees.pp)) > 1.0:
        share += constants["cache_share_pipeline"].value
    allocated = at(plan.cost.memory.stage_allocated_bytes, k)
    found = numbers("allocated", allocated, "bytes").times("share", share)
    rest = value - found.result()
    if abs(rest) < 1e-9 * value:
        return found
    return found.plus("kept apart", rest, "bytes") if rest > 0.0 else None


def _communicators(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    each = calibration("memory").constants.get("communicator_bytes")
    if each is None or not each.value:
        return None
    return numbers("kinds of communicator", value / each.value, "kind").times("bytes", each.value, "bytes")


def _server(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    ranks = float(plan.pool.gpus_per_node)
    return numbers("of a rank", value / ranks, "bytes").times("ranks per server", ranks, "rank")


def _scales(plan: Plan, facts: Known, term: Term, k: int, value: float) -> Numbers | None:
    return numbers("parameters", at(facts.held.stage.total, k), "parameter").over("block", 64.0).times("bytes", 4.0, "bytes")


_READERS: tuple[tuple[str, _Reader], ...] = (
    ("weights.base", _base),
    ("weights.adapters", _state("weight_bytes", 3, "weights")),
    ("weights.scales", _scales),
    ("weights", _state("weight_bytes", "weight_from", "weights")),
    ("gradients.main", _state("main_gradient_bytes", "main_gradient_from")),
    ("gradients", _state("gradient_bytes", "gradient_from")),
    ("optimizer.master", _state("master_bytes", "optimizer_from", "optimizer")),
    ("optimizer.moments", _state("moments", "optimizer_from", "optimizer")),
    ("activations.layer_inputs", _layer_inputs),
    ("activations.attention", _saved("attention")),
    ("activations.feed_forward", _saved("feed_forward")),
    ("activations.live_layer", _live),
    ("logits", _logits),
    ("buffers.zero3_live", _gathered(lambda r: r.gather_bytes, "parameters held whole")),
    ("buffers.zero3_gradients", _gathered(lambda r: r.live_gradient_bytes + r.reduce_bytes, "parameters of a layer")),
    ("buffers.reduce_bucket", _bucket),
    ("buffers.step_gradients", _part),
    ("buffers.step_foreach", _part),
    ("buffers.dummy_gradients", _matrices(lambda f: f.held.layer.matrices)),
    ("buffers.cast_cache", _matrices(lambda f: f.held.stage.matrices)),
    ("overhead.reserved.cache", _cached),
    ("overhead.device.nccl", _communicators),
    ("host", _server),
)
"""Name of a term, or the beginning of it -> who knows its numbers; the first that fits."""
