"""Activations of one stage: what each micro-batch in flight keeps, what backward has live beside it, and the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.recompute import is_dropped
from cost_models.choices.schedules import interleaved, schedule
from cost_models.layout import Choices, Layout, micro_batches
from cost_models.ledger import Term, add
from cost_models.numeric import Num, num
from cost_models.stack import Stack, stream_bytes

if TYPE_CHECKING:
    from cost_models.op import Op
    from cost_models.stages import Stages
    from cost_models.training import Loss, Training
    from cost_models.transformer import ModelOps

LOGIT_BYTES: dict[Loss, float] = {"eager": 12.0, "compiled": 6.0, "chunked": 4.0, "fused": 1.0, "vocab-parallel": 6.0}
"""Bytes per logit alive at the loss's peak, 16-bit logits: eager torch 2 + 4 (fp32 copy or log-softmax gradient) + 4 + … = 12 (traced);
one compiled kernel 6; chunks 2 + 2 (logits and their gradient); fused linear and loss only a chunk; Megatron 2 + 4."""
OFFLOAD_RESIDENT = 2.0
"""Layers (chunks of a pipeline stage) whose activations are on the device while the others are on the host: the one that computes
and the one being fetched."""
NATIVE_FUSION_BYTES = 4.0
"""One more fp32 copy per logit where the loss does not work in place: Megatron's own cross_entropy_loss_fusion, Megatron-DeepSpeed."""
LOSS_SOURCE = (
    "traced for eager torch; Megatron-LM core/tensor_parallel/cross_entropy.py; litgpt chunked_cross_entropy; torchtitan components/loss.py"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Saved bytes of one kind of layer, per rank and micro-batch."""

    attention: Num
    feed_forward: Num
    kept: Num
    """Both, after selective recompute."""
    whole: Num
    """Both, nothing dropped."""
    first_free: Num
    """What the model's first layer does not keep when its input needs no gradient (frozen embedding)."""


def layer_bytes(rows: tuple[Op, ...], training: Training, choices: Choices) -> LayerBytes:
    """Add up the saved tensors of one layer."""
    policy = training.extra.get("recompute_policy", "")
    attention: Num = num(0.0)
    feed_forward: Num = num(0.0)
    whole: Num = num(0.0)
    for op in rows:
        kept = add(s.bytes for s in op.saved if not is_dropped(op.name, s, choices, policy))
        whole = whole + add(s.bytes for s in op.saved)
        if op.name.startswith("attention"):
            attention = attention + kept
        else:
            feed_forward = feed_forward + kept
    free: Num = num(0.0)
    if training.method in ("lora", "qlora"):
        norm = add(s.bytes for s in rows[0].saved if not is_dropped(rows[0].name, s, choices, policy))
        masks = add(s.bytes for op in rows[:3] for s in op.saved if s.name == "adapter_dropout_mask" and op.name != "attention.out")
        free = norm + masks
    return LayerBytes(attention=attention, feed_forward=feed_forward, kept=attention + feed_forward, whole=whole, first_free=free)


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Terms of one evaluation, per stage."""

    kept: tuple[Term, ...]
    """Alive at the end of the last forward before a backward."""
    ending: tuple[Term, ...]
    """Alive while the stage's first layer runs backward for the last micro-batch."""
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


def activations(training: Training, stack: Stack, layout: Layout, ops: ModelOps, stages: Stages) -> Activations:
    """Return the activations of every evaluated stage, bytes per rank.

    Source: saved tensors of the implementation; micro-batches in flight of the schedule. Assumes: layers of one kind keep the same.
    """
    d, c = layout.degrees, layout.choices
    flight = schedule(c.schedule).in_flight(stages.index, d.pp, d.vpp, micro_batches(layout, training.global_batch))
    if c.schedule == "interleaved":
        group = training.extra.get("microbatch_group")
        passes = interleaved.layer_passes(
            stages.index, stages.layers, d.pp, d.vpp, micro_batches(layout, training.global_batch), None if group is None else float(group)
        )
        flight = passes / np.maximum(stages.layers, 1.0)
    kinds = [layer_bytes(rows, training, c) for _, rows in ops.kinds]
    passes = flight * np.maximum(stages.layers, 1.0)
    resident = np.where(num(d.pp) > 1.0, OFFLOAD_RESIDENT * stages.layers / num(d.vpp), OFFLOAD_RESIDENT)
    gone = num(d.activation_offload) * np.maximum(passes - resident, 0.0) / passes
    remaining = 1.0 - gone
    attention, feed_forward, biggest, live_whole = _per_stage(kinds, stages)
    first = kinds[0].first_free * stages.first_layer
    source = f"saved tensors of the {stack.implementation} implementation × layers × micro-batches in flight"
    kept: list[Term] = []
    recomputed: Num = 0.0
    if c.recompute == "full":
        whole = np.maximum(stages.layers, 1.0)
        part = stages.recomputed / whole
        stream = stream_bytes(training, ops.dims.act_bytes)
        inputs = stages.recomputed * (ops.dims.sp_tokens * ops.dims.hidden * stream)
        rest = flight * (1.0 - part) * remaining
        kept.append(
            Term(
                name="activations.layer_inputs",
                value=inputs * flight * remaining,
                source="layer inputs under full recompute",
                formula="s b h × 2 × recomputed layers × in flight",
            )
        )
        recomputed = np.where(stages.recomputed > 0.0, biggest, 0.0)
    else:
        rest = flight * remaining
        if c.recompute == "selective":
            recomputed = live_whole
        if np.any(num(first)):
            kept.append(
                Term(name="activations.first_layer", value=-1.0 * first * flight, source="a frozen embedding's output needs no gradient")
            )
    kept.append(Term(name="activations.attention", value=attention * rest, source=source, formula="saved × layers × in flight"))
    kept.append(Term(name="activations.feed_forward", value=feed_forward * rest, source=source, formula="saved × layers × in flight"))
    ends = add(s.bytes for op in ops.embedding for s in op.saved) * stages.embedding * flight
    tail = add(s.bytes for op in ops.head[:-1] for s in op.saved) * stages.head
    if ops.mtp:
        tail = tail + add(s.bytes for op in ops.mtp if op.kind != "loss" for s in op.saved) * stages.head
    kept.append(
        Term(name="activations.ends", value=ends + tail, source=source, formula="embedding × in flight + final norm and head input")
    )
    logits, extra, outputs = _logits(training, stack, c, ops, stages, flight)
    temporary = _temporary(ops)
    live = Term(
        name="activations.live_layer",
        value=recomputed + temporary + 0.0 * stages.layers,
        source="one layer run again, and the gradients inside one layer",
    )
    other = np.maximum(flight - 1.0, 0.0) / np.maximum(flight, 1e-9)
    ending = tuple(Term(name=t.name, value=t.value * other, source=t.source, formula=t.formula) for t in kept)
    whole_saved = add(t.value for t in kept) / np.maximum(remaining, 1e-9) * gone
    return Activations(
        kept=tuple(kept),
        ending=ending,
        live=live,
        stream=ops.dims.sp_tokens * ops.dims.hidden * ops.dims.act_bytes,
        kept_logits=logits,
        loss=extra,
        outputs=outputs,
        offloaded=whole_saved,
    )


def _per_stage(kinds: list[LayerBytes], stages: Stages) -> tuple[Num, Num, Num, Num]:
    """Return kept attention bytes, kept feed-forward bytes (all layers of the stage), the largest layer, the largest dropped part."""
    attention: Num = 0.0
    feed_forward: Num = 0.0
    biggest: Num = 0.0
    dropped: Num = 0.0
    for kind, count in zip(kinds, stages.kind_layers, strict=True):
        attention = attention + kind.attention * count
        feed_forward = feed_forward + kind.feed_forward * count
        present = np.where(count > 0.0, 1.0, 0.0)
        biggest = np.maximum(biggest, kind.whole * present)
        dropped = np.maximum(dropped, (kind.whole - kind.kept) * present)
    return attention, feed_forward, biggest, dropped


def _temporary(ops: ModelOps) -> Num:
    """Gradients alive inside one layer's backward: of the residual stream and of the widest tensor."""
    d = ops.dims
    wide = np.maximum(d.tokens * d.ffn, d.routed_tokens * d.expert_ffn)
    return (d.sp_tokens * d.hidden + wide) * d.act_bytes


def _logits(
    training: Training, stack: Stack, c: Choices, ops: ModelOps, stages: Stages, flight: Num
) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[Term, ...]]:
    """Return what is saved for the loss's backward, the further copies at its peak, and what the caller holds until backward ends."""
    if training.method == "inference":
        return (), (), ()
    d = ops.dims
    logits = d.tokens * d.vocab
    copied = training.framework == "megatron-deepspeed" or training.extra.get("cross_entropy_fusion") == "native"
    native = stack.loss == "vocab-parallel" and copied
    per_logit = LOGIT_BYTES[stack.loss] + (NATIVE_FUSION_BYTES if native else 0.0)
    deferred = float(training.extra.get("defer_embedding_wgrad", "0")) * d.act_bytes
    saved = add(s.bytes for s in ops.head[-1].saved)
    softcap = add(s.bytes for s in ops.head[-1].saved if s.name == "softcap_tanh")
    waiting = np.where(stages.head > 0.0, flight, 0.0) if c.schedule == "gpipe" else stages.head
    modules = 2.0 if ops.mtp else 1.0
    kept = Term(name="logits.saved", value=saved * modules * waiting, source=LOSS_SOURCE, formula="softmax kept for the loss's backward")
    rest = (np.maximum(logits * per_logit + softcap - saved, 0.0) + logits * deferred) * stages.head
    text = f"tokens × vocabulary × {per_logit:g} bytes, less what is saved"
    copies = Term(name="logits.copies", value=rest, source=LOSS_SOURCE, formula=text)
    if training.extra.get("outputs") != "kept":
        return (kept,), (copies,), ()
    held = Term(
        name="logits.outputs",
        value=logits * d.act_bytes * stages.head,
        source="the caller keeps the model's outputs",
        formula="logits × 2 bytes",
    )
    return (kept,), (copies,), (held,)
