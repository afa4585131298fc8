"""Activations of one stage: what each micro-batch in flight keeps, what backward has live beside it, and the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.offload import is_offloaded
from cost_models.choices.recompute import is_dropped
from cost_models.choices.schedules import dualpipe, interleaved, schedule
from cost_models.layout import Choices, Layout, micro_batches
from cost_models.ledger import Term, add
from cost_models.memory.losses import loss_bytes
from cost_models.numeric import Num, nothing, num, plus, times
from cost_models.stack import Stack, stream_bytes
from cost_models.stages import MIRRORED, both

if TYPE_CHECKING:
    from cost_models.model_ops import ModelOps
    from cost_models.op import Op
    from cost_models.stages import Stages
    from cost_models.training import Training

OFFLOAD_RESIDENT = 2.0
"""Layers (chunks of a pipeline stage) whose activations are on the device while the others are on the host: the one that computes
and the one being fetched."""
FINE_GRAINED_RESIDENT = 3.0
"""The same of Megatron-Core's fine-grained offload: the layer that computes, the one in transfer, and the last one, which stays
(fine_grained_activation_offload.py marks the last group of each name as not offloadable)."""
FINE_GRAINED_SOURCE = "Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py"
LOSS_SOURCE = (
    "traced for eager torch; Megatron-LM core/tensor_parallel/cross_entropy.py; litgpt chunked_cross_entropy; torchtitan components/loss.py"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Saved bytes of one kind of layer, per rank and micro-batch."""

    attention: Num
    feed_forward: Num
    """Both after selective recompute."""
    whole: Num
    """Both, nothing dropped."""
    dropped: Num
    """What selective recompute drops."""
    away: Num
    """Tensors that fine-grained offload moves to the host; not in `attention` and `feed_forward`."""
    first_free: Num
    """What the model's first layer does not keep when its input needs no gradient (frozen embedding)."""


def layer_bytes(rows: tuple[Op, ...], training: Training, choices: Choices) -> LayerBytes:
    """Add up the saved tensors of one layer."""
    policy = training.extra.get("recompute_policy", "")
    modules = tuple(m for m in training.extra.get("offload_modules", "").split(",") if m)
    away: Num = 0.0
    attention: Num = 0.0
    feed_forward: Num = 0.0
    whole: Num = 0.0
    for op in rows:
        here = tuple(s for s in op.saved if not is_dropped(op.name, s, choices, policy))
        kept = add(s.bytes for s in here if not is_offloaded(op.name, s, modules))
        if modules:
            away = away + add(s.bytes for s in here if is_offloaded(op.name, s, modules))
        whole = whole + add(s.bytes for s in op.saved)
        if op.name.startswith("attention"):
            attention = attention + kept
        else:
            feed_forward = feed_forward + kept
    free: Num = 0.0
    if training.method in ("lora", "qlora"):
        norm = add(s.bytes for s in rows[0].saved if not is_dropped(rows[0].name, s, choices, policy))
        masks = add(s.bytes for op in rows[:3] for s in op.saved if s.name == "adapter_dropout_mask" and op.name != "attention.out")
        free = norm + masks
    dropped = whole - (attention + feed_forward) - away
    return LayerBytes(attention=attention, feed_forward=feed_forward, whole=whole, dropped=dropped, away=away, first_free=free)


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Terms of one evaluation, per stage."""

    kept: tuple[Term, ...]
    """Alive at the end of the last forward before a backward."""
    live: Term
    """A recomputed layer, and the gradients that flow through one layer."""
    stream: Num
    """The gradient of the residual stream alone."""
    kept_logits: tuple[Term, ...]
    """Softmax of micro-batches whose backward has not run (several under GPipe)."""
    loss: tuple[Term, ...]
    """Further copies of the logits at the loss."""
    outputs: tuple[Term, ...]
    """Logits that the caller keeps."""
    offloaded: Num
    """Bytes per rank that went to the host."""
    ending: Callable[[], tuple[Term, ...]]
    """Gives what of `kept` is alive while the stage's first layer runs backward for the last micro-batch."""


def activations(training: Training, stack: Stack, layout: Layout, ops: ModelOps, stages: Stages) -> Activations:
    """Return the activations of the rank of every evaluated stage, bytes.

    Source: saved tensors of the implementation; micro-batches in flight of the schedule. Assumes: layers of one kind keep the same.
    A rank with two stages (cost_models.stages.MIRRORED) keeps the tensors of both, and runs one at a time.
    """
    flight = _in_flight(training, layout, stages)
    totals = _per_stage([layer_bytes(rows, training, layout.choices) for _, rows in ops.kinds], layout.choices, ops, stages)
    gone = _offloaded_part(layout, stages, flight)
    kept = _kept(training, stack, layout.choices, ops, stages, totals, flight, gone)
    live = Term(
        name="activations.live_layer",
        value=plus(totals.again, ops.spread(_temporary(ops))),
        source="one layer run again, and the gradients inside one layer",
    )
    saved, copies, outputs = _logits(training, stack, layout.choices, ops, stages, flight)

    def ending() -> tuple[Term, ...]:
        other = np.maximum(flight - 1.0, 0.0) / np.maximum(flight, 1e-9)
        return _each(kept, lambda value: value * other)

    found = Activations(
        kept=kept,
        live=live,
        stream=ops.spread(ops.dims.sp_tokens * ops.dims.hidden * ops.dims.act_bytes),
        kept_logits=saved,
        loss=copies,
        outputs=outputs,
        offloaded=_offloaded(kept, gone, totals.away, flight, stages),
        ending=ending,
    )
    return _of_two(layout, found, flight) if layout.choices.schedule in MIRRORED else found


def _each(terms: tuple[Term, ...], change: Callable[[Num], Num]) -> tuple[Term, ...]:
    return tuple(Term(name=t.name, value=change(t.value), source=t.source, formula=t.formula) for t in terms)


def _of_two(layout: Layout, one: Activations, flight: Num) -> Activations:
    """Return the activations of ranks with two stages each, from those of every stage: kept are both, of which one micro-batch of one
    ends at a time; what lives while a layer or a loss runs is that of one of them, the larger."""

    def sum_of(value: Num) -> Num:
        return both(layout, value)

    def larger(value: Num) -> Num:
        x = num(value)
        return np.maximum(x, x[..., ::-1]) if x.ndim else value

    def ending(value: Num) -> Num:
        once = num(value / np.maximum(flight, 1e-9))
        return both(layout, value) - np.minimum(once, once[..., ::-1])

    return Activations(
        kept=_each(one.kept, sum_of),
        live=_each((one.live,), larger)[0],
        stream=one.stream,
        kept_logits=_each(one.kept_logits, sum_of),
        loss=_each(one.loss, larger),
        outputs=_each(one.outputs, sum_of),
        offloaded=sum_of(one.offloaded),
        ending=lambda: _each(one.kept, ending),
    )


def _offloaded(kept: tuple[Term, ...], gone: Num, away: Num, flight: Num, stages: Stages) -> Num:
    """Bytes of the layers whose activations are on the host, and of the tensors that fine-grained offload moves."""
    moved: Num = 0.0
    if not nothing(gone):
        moved = add(t.value for t in kept) / np.maximum(1.0 - gone, 1e-9) * gone
    if not nothing(away):
        moved = moved + np.maximum(away * flight - away / np.maximum(stages.layers, 1.0) * FINE_GRAINED_RESIDENT, 0.0)
    return moved


def _in_flight(training: Training, layout: Layout, stages: Stages) -> Num:
    """Micro-batches whose activations of the whole stage are alive at its peak."""
    d, batches = layout.degrees, micro_batches(layout, training.global_batch)
    if layout.choices.schedule in MIRRORED:
        return dualpipe.one_way(stages.index, d.pp, batches)
    if layout.choices.schedule != "interleaved":
        return schedule(layout.choices.schedule).in_flight(stages.index, d.pp, d.vpp, batches)
    named = training.extra.get("microbatch_group")
    group = None if named is None else float(named)
    passes = interleaved.layer_passes(stages.index, stages.layers, d.pp, d.vpp, batches, group)
    return passes / np.maximum(stages.layers, 1.0)


def _offloaded_part(layout: Layout, stages: Stages, flight: Num) -> Num:
    """Part of the kept activations that is on the host: the chosen part of all but what computes and what is being fetched."""
    d = layout.degrees
    if not np.any(num(d.activation_offload)):
        return 0.0
    passes = flight * np.maximum(stages.layers, 1.0)
    resident = np.where(num(d.pp) > 1.0, OFFLOAD_RESIDENT * stages.layers / num(d.vpp), OFFLOAD_RESIDENT)
    held = np.where(passes > 0.0, passes, 1.0)
    return num(d.activation_offload) * np.maximum(passes - resident, 0.0) / held


def _kept(
    training: Training, stack: Stack, choices: Choices, ops: ModelOps, stages: Stages, totals: StageBytes, flight: Num, gone: Num
) -> tuple[Term, ...]:
    """Terms alive at the end of forward: layer inputs, first layer's rebate, attention, feed-forward, both ends of the model."""
    source = f"saved tensors of the {stack.implementation} implementation × layers × micro-batches in flight"
    kept: list[Term] = []
    here = flight if nothing(gone) else flight * (1.0 - gone)
    rest = here
    if "untrained_layers" in training.extra:
        untrained = float(training.extra["untrained_layers"]) * stages.first_layer
        rest = here * (1.0 - untrained / np.maximum(stages.layers, 1.0))
    if choices.recompute == "full":
        inputs = stages.recomputed * ops.spread(ops.dims.sp_tokens * ops.dims.hidden * stream_bytes(training, ops.dims.act_bytes))
        text = "s b h × bytes × recomputed layers × in flight"
        kept.append(Term(name="activations.layer_inputs", value=inputs * rest, source="layer inputs under full recompute", formula=text))
        rest = flight * (1.0 - stages.recomputed / np.maximum(stages.layers, 1.0))
        rest = rest if nothing(gone) else rest * (1.0 - gone)
    elif np.any(num(totals.first_free)):
        text = "a frozen embedding's output needs no gradient"
        kept.append(Term(name="activations.first_layer", value=-1.0 * totals.first_free * rest, source=text))
    if np.any(num(totals.away)):
        window = totals.away / np.maximum(stages.layers, 1.0) * np.minimum(FINE_GRAINED_RESIDENT, flight * stages.layers)
        text = "offloaded tensors × the layers that compute and are being fetched"
        kept.append(Term(name="activations.offload_window", value=window, source=FINE_GRAINED_SOURCE, formula=text))
    for name, value in (("attention", totals.attention), ("feed_forward", totals.feed_forward)):
        kept.append(Term(name=f"activations.{name}", value=value * rest, source=source, formula="saved × layers × in flight"))
    if training.framework == "megatron-deepspeed":
        outputs = ops.spread(ops.dims.sp_tokens * ops.dims.hidden * ops.dims.act_bytes) * (1.0 - stages.head)
        source_text = "DeepSpeed runtime/pipe/engine.py (pipe_buffers hold each output until its backward; Megatron-LM frees them)"
        kept.append(Term(name="activations.stage_outputs", value=outputs * flight, source=source_text, formula="s b h × bytes × in flight"))
    ends = times(stages.embedding, _saved(ops, ops.embedding))
    tail = times(stages.head, _saved(ops, ops.head[:-1]))
    if ops.mtp:
        tail = plus(tail, times(stages.head, _saved(ops, tuple(op for op in ops.mtp if op.kind != "loss"))))
    text = "embedding × in flight + final norm and head input"
    kept.append(Term(name="activations.ends", value=plus(times(flight, ends), tail), source=source, formula=text))
    return tuple(kept)


def _saved(ops: ModelOps, rows: tuple[Op, ...]) -> Num:
    """Bytes of all saved tensors of `rows`, for each layout; 0 where they save none."""
    kept = [s.bytes for op in rows for s in op.saved]
    return ops.spread(add(kept)) if kept else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBytes:
    """Saved bytes of one micro-batch on every evaluated stage."""

    attention: Num
    """All layers, after selective recompute."""
    feed_forward: Num
    again: Num
    """What one layer holds while it is run again: under full recompute all of it, under selective what was dropped; the largest."""
    away: Num
    """All layers' tensors under fine-grained offload."""
    first_free: Num


def _per_stage(kinds: list[LayerBytes], choices: Choices, ops: ModelOps, stages: Stages) -> StageBytes:
    """Multiply the bytes of one layer of each kind with the layers of each stage."""
    attention: Num = 0.0
    feed_forward: Num = 0.0
    again: Num = 0.0
    away: Num = 0.0
    for kind, count in zip(kinds, stages.kind_layers, strict=True):
        attention = plus(attention, times(count, ops.spread(kind.attention)))
        feed_forward = plus(feed_forward, times(count, ops.spread(kind.feed_forward)))
        away = plus(away, times(count, ops.spread(kind.away)))
        if choices.recompute != "none":
            run = ops.spread(kind.whole if choices.recompute == "full" else kind.dropped)
            again = np.maximum(again, run * np.where(count > 0.0, 1.0, 0.0))
    if choices.recompute == "full":
        again = np.where(stages.recomputed > 0.0, again, 0.0)
    return StageBytes(
        attention=attention,
        feed_forward=feed_forward,
        again=again,
        away=away,
        first_free=times(stages.first_layer, ops.spread(kinds[0].first_free)),
    )


def _temporary(ops: ModelOps) -> Num:
    """Gradients alive inside one layer's backward: of the residual stream and of the widest tensor; of routed experts, of their output
    in token and in expert order, and of gate and up."""
    d = ops.dims
    wide = np.maximum(d.tokens * d.ffn, d.routed_tokens * 2.0 * (d.hidden + d.expert_ffn))
    return (d.sp_tokens * d.hidden + wide) * d.act_bytes


def _logits(
    training: Training, stack: Stack, c: Choices, ops: ModelOps, stages: Stages, flight: Num
) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[Term, ...]]:
    """Return what is saved for the loss's backward, the further copies at its peak, and what the caller holds until backward ends."""
    if training.method == "inference":
        return (), (), ()
    d = ops.dims
    logits = d.tokens * d.vocab
    peak = loss_bytes(training, stack, d)
    deferred = float(training.extra.get("defer_embedding_wgrad", "0")) * d.act_bytes
    saved = np.minimum(add(s.bytes for s in ops.head[-1].saved), peak)
    softcap = add(s.bytes for s in ops.head[-1].saved if s.name == "softcap_tanh")
    waiting = np.where(stages.head > 0.0, flight, 0.0) if c.schedule == "gpipe" else stages.head
    modules = 2.0 if ops.mtp else 1.0
    text = "softmax kept for the loss's backward"
    kept = Term(name="logits.saved", value=ops.spread(saved * modules) * waiting, source=LOSS_SOURCE, formula=text)
    rest = ops.spread(np.maximum(peak + softcap - saved, 0.0) + logits * deferred) * stages.head
    text = "tokens × vocabulary × bytes per logit at the loss's peak, less what is saved"
    copies = Term(name="logits.copies", value=rest, source=LOSS_SOURCE, formula=text)
    if training.extra.get("outputs") != "kept":
        return (kept,), (copies,), ()
    held = Term(
        name="logits.outputs",
        value=ops.spread(logits * d.act_bytes) * stages.head,
        source="the caller keeps the model's outputs",
        formula="logits × 2 bytes",
    )
    return (kept,), (copies,), (held,)
