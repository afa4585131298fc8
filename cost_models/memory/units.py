"""Units of ZeRO-3 and FSDP: what is gathered while the model runs, and gradients of units before they are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import micro_batches
from cost_models.ledger import Term
from cost_models.memory.states import Held, States, gathered_bytes
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.precision import Regime
    from cost_models.layout import Layout
    from cost_models.stages import Stages
    from cost_models.training import Training

DEEPSPEED_BUCKET = 5e8
"""Elements of reduce and all-gather buckets (DeepSpeed runtime/zero/config.py)."""
DEEPSPEED_LIVE = 2.0 * DEEPSPEED_BUCKET
"""Elements that ZeRO-3 keeps gathered for reuse (max_live_parameters, max_reuse_distance)."""
FSDP_SOURCE = "PyTorch FSDP: the unit that computes and the one prefetched; gradients of a unit before and inside the reduce-scatter"
DS_LIVE_SOURCE = "DeepSpeed runtime/zero/config.py (stage3_max_live_parameters), partitioned_param_coordinator.py"
FLAT_SOURCE = (
    "PyTorch FSDP1 (fsdp/_flat_param.py): a unit's flat parameter has one gradient, frozen weights included; without a reduction "
    "(no_sync while gradients accumulate) it stays whole on every rank"
)


def flat(training: Training, layout: Layout) -> bool:
    """Tell whether FSDP1 runs the model by flat parameters and accumulates without reducing (litgpt: Fabric's no_backward_sync)."""
    return training.framework == "litgpt" and layout.choices.zero >= 2


def flat_gradients(training: Training, regime: Regime, layout: Layout, h: Held, s: States, stages: Stages) -> tuple[Term, ...]:
    """Return the gradients of flat parameters: of every layer whole, of the root unit (embedding, head) where it trains at all."""
    root = (h.embedding.total * stages.embedding + h.head.total * stages.head) * _root_trains(training)
    layers = h.stage.total - (h.embedding.total * stages.embedding + h.head.total * stages.head)
    full = training.method == "full"
    dense = layers - h.stage.experts + root + (0.0 if full else h.stage.adapters)
    experts = h.stage.experts + (0.0 if full else h.stage.expert_adapters)
    whole = micro_batches(layout, training.global_batch) > 1.0
    divided = s.division.of(regime.gradient_from)
    text = "parameters of units that train × bytes, whole while they accumulate, else / ranks"
    parts = (("dense", dense, divided.dense), ("experts", experts, divided.experts))
    return tuple(
        Term(
            name=f"gradients.{name}",
            value=value * regime.gradient_bytes / np.where(whole, 1.0, num(ranks)),
            source=FLAT_SOURCE,
            formula=text,
        )
        for name, value, ranks in parts
    )


def _root_trains(training: Training) -> float:
    return 1.0 if training.method == "full" or "head" in training.lora_targets else 0.0


def gathered(
    training: Training, regime: Regime, layout: Layout, h: Held, s: States, stages: Stages
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return what is gathered in forward, and in backward with the gradients of the unit that runs."""
    if layout.choices.zero < regime.weight_from:
        return (), ()
    ranks = np.where(num(s.optimizer_shares.dense) > 1.0, 1.0, 0.0)
    layer = gathered_bytes(training, regime, h.layer)
    head = gathered_bytes(training, regime, h.head) * stages.head
    embedding = gathered_bytes(training, regime, h.embedding)
    if training.framework == "deepspeed":
        live = np.minimum(DEEPSPEED_LIVE * regime.gather_bytes, gathered_bytes(training, regime, h.stage))
        text = "min(max live parameters, stage) × bytes"
        value = np.maximum(live, 2.0 * layer) * ranks
        held = (Term(name="buffers.zero3_live", value=value, source=DS_LIVE_SOURCE, formula=text),)
        return held, held
    both = head + embedding * stages.embedding
    apart = training.framework == "torchtitan" or training.extra.get("ends_apart") == "yes"
    root = np.maximum(head, embedding * stages.head) if apart else both
    trained = h.layer.total if training.method == "full" or flat(training, layout) else h.layer.adapters + h.layer.expert_adapters
    moving = trained * (regime.live_gradient_bytes + regime.reduce_bytes)
    text = "(2 layers + head + embedding) × gathered bytes"
    units = Term(name="buffers.zero3_live", value=(2.0 * layer + root) * ranks, source=FSDP_SOURCE, formula=text)
    text = "one layer × (gradient + reduction bytes)"
    gradients = Term(name="buffers.zero3_gradients", value=moving * ranks, source=FSDP_SOURCE, formula=text)
    return (units,), (units, gradients)


def last_flat_gradient(training: Training, regime: Regime, layout: Layout, h: Held, stages: Stages) -> Num:
    """Return what the root unit's gradients need beside the accumulated ones where backward ends: head and embedding have their own, and
    the flat gradient joins them."""
    if not flat(training, layout):
        return 0.0
    root = (h.embedding.total * stages.embedding + h.head.total * stages.head) * _root_trains(training)
    return 2.0 * root * regime.gradient_bytes
