"""The memory ledger of every stage and phase, and the peaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.precision import Regime, regime_of
from cost_models.layout import Layout, micro_batches
from cost_models.ledger import Ledger, Term, add
from cost_models.memory.activations import Activations, activations
from cost_models.memory.buffers import Buffers, buffers
from cost_models.memory.host import host
from cost_models.memory.inference import cache, scale_bytes
from cost_models.memory.overheads import overheads
from cost_models.memory.states import Held, States, held, states
from cost_models.memory.units import flat, flat_gradients, last_flat_gradient
from cost_models.numeric import Num, num
from cost_models.result import PHASES, MemoryCost
from cost_models.stack import MEGATRON, Stack, resolve
from cost_models.stages import of_ranks

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.model_ops import ModelOps
    from cost_models.stages import Stages
    from cost_models.training import Training
    from hardware.spec import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the phases are put together from."""

    held: Held
    states: States
    activations: Activations
    buffers: Buffers
    embedding: Num
    """1 on the stage with the embedding."""
    last_gradient: Num
    """Gradients of FSDP1's root unit beside the accumulated ones."""
    tied: bool
    """Embedding and head are one matrix on one stage."""


def memory(architecture: Architecture, training: Training, layout: Layout, pool: Pool, ops: ModelOps, stages: Stages) -> MemoryCost:
    """Return the memory of the rank of every evaluated stage, bytes: shape (K,) for one layout, (N, K) for a batch. Under a mirrored
    schedule a rank holds two stages.

    The allocated peak is the highest of four phases: after loading; at the end of forward with the loss; in backward; in the
    optimizer step. Reserved adds what the allocator caches, device adds context and communicators.
    """
    regime = regime_of(training, layout.choices)
    stack = resolve(training)
    ranks = of_ranks(layout, stages)
    h = held(architecture, training, ops, ranks)
    s = states(training, regime, layout, h, ranks)
    if flat(training, layout):
        s = replace(s, gradients=flat_gradients(training, regime, layout, h, s, ranks))
    parts = Parts(
        held=h,
        states=s,
        activations=activations(training, stack, layout, ops, stages),
        buffers=buffers(training, stack, regime, layout, pool, h, s, ranks),
        embedding=ranks.embedding,
        last_gradient=last_flat_gradient(training, regime, layout, h, ranks),
        tied=architecture.tied_embeddings,
    )
    if training.method == "inference":
        phases = _serving(architecture, training, ops, stages, parts)
    else:
        phases = _phases(training, regime, layout, parts)
    return _cost(training, stack, layout, pool, stages, phases, regime, parts)


def _serving(architecture: Architecture, training: Training, ops: ModelOps, stages: Stages, parts: Parts) -> dict[str, Ledger]:
    scales = parts.held.stage.total * scale_bytes(training.weight_bits)
    terms = [*parts.states.weights]
    if training.weight_bits < 16:
        terms.append(
            Term(
                name="weights.scales",
                value=scales,
                source="one 16-bit scale and zero point per 64 weights",
                formula="parameters / 64 × 4 bytes",
            )
        )
    terms += [cache(architecture, training, ops, stages), *parts.buffers.always]
    whole = Ledger("bytes", tuple(terms))
    return {"load": Ledger("bytes", tuple(parts.states.weights)), "forward": whole, "backward": whole, "optimizer": whole}


def _phases(training: Training, regime: Regime, layout: Layout, p: Parts) -> dict[str, Ledger]:
    """Put the phases together: each is a ledger of the terms alive at its peak."""
    s, a, b = p.states, p.activations, p.buffers
    loaded = Ledger("bytes").plus(*s.weights)
    resting = loaded.plus(*s.main_gradients, *s.optimizer, *b.always)
    reduced = resting.plus(*s.gradients)
    running = resting.plus(*_accumulated(training, layout, s.gradients), *a.kept)
    backward = running.plus(*a.outputs, *b.backward, a.live)
    if s.gradients or training.method != "full":
        last = _last_live(training, regime, layout, p)
        backward = _later_of(backward, reduced.plus(*a.ending(), *a.outputs, *b.backward, last))
    return {
        "load": loaded,
        "forward": running.plus(*a.kept_logits, *a.loss, *a.outputs, *b.forward),
        "backward": backward,
        "optimizer": reduced.plus(*b.optimizer),
    }


def _accumulated(training: Training, layout: Layout, gradients: tuple[Term, ...]) -> tuple[Term, ...]:
    """What of the gradients is there before a backward: those of earlier micro-batches."""
    if not gradients:
        return ()
    alone = training.extra.get("longest_first") == "yes"
    later = np.where(micro_batches(layout, training.global_batch) > 1.0, 0.0 if alone else 1.0, 0.0)
    return tuple(Term(name=t.name, value=t.value * later, source=t.source, formula=t.formula) for t in gradients)


def _last_live(training: Training, regime: Regime, layout: Layout, p: Parts) -> Term:
    """What is alive beside all gradients where backward ends.

    The first layer runs before the embedding has its gradient; then the embedding makes its own. A tied matrix has the head's
    gradient already: the embedding's and the sum of both come on top (traced).
    """
    live, stream = p.activations.live, p.activations.stream
    if flat(training, layout):
        value = np.maximum(live.value, stream) + p.last_gradient
        return Term(name=live.name, value=value, source=live.source, formula=live.formula)
    if regime.gradient_bytes == 0.0 or training.method != "full":
        return live
    made = p.held.embedding.others * regime.gradient_bytes / num(p.states.division.of(regime.gradient_from).dense) * p.embedding
    tied = 2.0 * made * np.where(num(layout.degrees.pp) > 1.0, 0.0, 1.0) if p.tied else 0.0 * made
    return Term(name=live.name, value=np.maximum(live.value - made, stream) + tied, source=live.source, formula=live.formula)


def _apart(training: Training, stack: Stack, phases: dict[str, Ledger], parts: Parts) -> Num:
    """Blocks that stay cached beside the activations because these do not fit them: DeepSpeed's flat step buffers; the copies of a
    foreach step and, sharded by FSDP, the gradients that the step frees."""
    if training.framework in MEGATRON and training.framework != "megatron-deepspeed":
        return 0.0
    apart = add(t.value for t in phases["optimizer"].terms if t.name.startswith(("buffers.step", "buffers.reduce")))
    if training.framework == "torchtitan" and stack.foreach:
        apart = apart + add(t.value for t in parts.states.gradients)
    others = np.maximum(phases["forward"].total, phases["backward"].total)
    return np.maximum(others + apart - np.maximum(others, phases["optimizer"].total), 0.0)


def _later_of(start: Ledger, end: Ledger) -> Ledger:
    """Backward is highest where it starts (all activations) or where it ends (all gradients): take the higher, stage by stage.

    Both have the same terms in the same order.
    """
    late = end.total > start.total
    merged = tuple(
        b if a.value is b.value else Term(name=b.name, value=np.where(late, b.value, a.value), source=b.source, formula=b.formula)
        for a, b in zip(start.terms, end.terms, strict=True)
    )
    return Ledger("bytes", merged, np.maximum(end.total, start.total))


def _cost(
    training: Training,
    stack: Stack,
    layout: Layout,
    pool: Pool,
    stages: Stages,
    phases: dict[str, Ledger],
    regime: Regime,
    parts: Parts,
) -> MemoryCost:
    allocated: Num = phases[PHASES[0]].total
    for name in PHASES[1:]:
        allocated = np.maximum(allocated, phases[name].total)
    over = overheads(training, layout, pool, allocated, _apart(training, stack, phases, parts))
    reserved = allocated + over.terms[0].value
    device = allocated + over.total
    outside = host(regime, layout, pool, parts.states, parts.activations.offloaded)
    peak = np.max(device, axis=-1)
    return MemoryCost(
        stage_index=stages.index,
        phases=phases,
        overhead=over,
        stage_allocated_bytes=allocated,
        stage_reserved_bytes=reserved,
        stage_device_bytes=device,
        peak_allocated_bytes=np.max(allocated, axis=-1),
        peak_reserved_bytes=np.max(reserved, axis=-1),
        peak_device_bytes=peak,
        host_bytes_per_node=_highest(outside.ledger.total, peak),
        host=outside.ledger,
        nvme_bytes_per_node=_highest(outside.nvme_bytes, peak),
        regime=regime.label,
    )


def _highest(value: Num, like: Num) -> Num:
    """The highest over the stages, in the shape of `like`."""
    x = num(value)
    return (np.max(x, axis=-1) if x.ndim else x) + 0.0 * like
