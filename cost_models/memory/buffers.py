"""Buffers beside states and activations: gathered ZeRO-3 units, communication buckets, copies of the optimizer step, workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.ledger import Term, add
from cost_models.memory.units import DEEPSPEED_BUCKET, gathered
from cost_models.numeric import Num, num
from cost_models.stack import MEGATRON, Stack
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.choices.precision import Regime
    from cost_models.layout import Layout
    from cost_models.memory.states import Held, States
    from cost_models.stages import Stages
    from cost_models.training import Training
    from hardware.spec import Pool

HOPPER = 9.0
"""Compute capability from which torch and Transformer Engine take 32 MiB cuBLAS workspaces."""
DUMMY_GRADIENTS_SINCE = "2025-05"
"""Release of Transformer Engine 2.3."""
DEEPSPEED_SUB_GROUP = 2.0 * DEEPSPEED_BUCKET
"""Elements that ZeRO-3 updates at a time (sub_group_size)."""
DS_SOURCE = "DeepSpeed runtime/zero/config.py (bucket sizes in elements), stage_1_and_2.py, stage3.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """Terms by phase, per stage."""

    always: tuple[Term, ...]
    forward: tuple[Term, ...]
    backward: tuple[Term, ...]
    optimizer: tuple[Term, ...]


def buffers(training: Training, stack: Stack, regime: Regime, layout: Layout, pool: Pool, h: Held, s: States, stages: Stages) -> Buffers:
    """Return the buffers of every evaluated stage, bytes per rank."""
    zero = 0.0 * stages.layers
    workspace = Term(
        name="buffers.workspace",
        value=_workspace(pool) + zero,
        source="hardware/measured/memory.toml: workspace_bytes, workspace_bytes_before_hopper",
        formula="cuBLAS and kernel workspaces that torch's allocator holds",
    )
    if training.method == "inference":
        return Buffers(always=(workspace,), forward=(), backward=(), optimizer=())
    forward, backward = gathered(training, regime, layout, h, s, stages)
    bucket = _buckets(training, regime, layout, s)
    return Buffers(
        always=(workspace, *_dummy_gradients(training, stack, regime, h, stages)),
        forward=(*forward, *bucket, *_cast_cache(stack, regime, layout, h), *_dequantised(training, h, stages)),
        backward=(*backward, *bucket, *_dequantised(training, h, stages)),
        optimizer=_step(training, stack, regime, layout, s, h.embedding.others * stages.embedding),
    )


def _workspace(pool: Pool) -> float:
    """Bytes of the workspaces that libraries take through torch's allocator; larger from Hopper on."""
    capability = pool.gpu.compute_capability
    old = capability is not None and capability < HOPPER
    return calibration("memory").value("workspace_bytes_before_hopper" if old else "workspace_bytes")


def _dequantised(training: Training, h: Held, stages: Stages) -> tuple[Term, ...]:
    """A 4-bit matmul makes its weight in 16 bits first, in forward and for the input's gradient."""
    if training.method != "qlora":
        return ()
    value = h.largest_quantised * 2.0 + 0.0 * stages.layers
    source = "bitsandbytes autograd/_functions.py (MatMul4Bit: dequantize_4bit)"
    return (Term(name="buffers.dequantised", value=value, source=source, formula="largest quantised matrix × 2 bytes"),)


def _cast_cache(stack: Stack, regime: Regime, layout: Layout, h: Held) -> tuple[Term, ...]:
    """Under full recompute no layer keeps the casts of its weights, but autocast's cache holds them until forward ends."""
    if not stack.autocast or layout.choices.recompute != "full":
        return ()
    text = "16-bit copies of the linear weights"
    return (
        Term(
            name="buffers.cast_cache",
            value=h.stage.matrices * regime.cast_bytes,
            source="torch.autocast weight cache, traced",
            formula=text,
        ),
    )


def _dummy_gradients(training: Training, stack: Stack, regime: Regime, h: Held, stages: Stages) -> tuple[Term, ...]:
    """Transformer Engine from 2.3 on hands autograd a cached 16-bit tensor per weight shape where the gradient went to the main buffer."""
    recent = not training.date or training.date >= DUMMY_GRADIENTS_SINCE
    fused = training.extra.get("gradient_accumulation_fusion") != "no" and training.method == "full"
    if stack.implementation != "megatron" or not (recent and fused):
        return ()
    value = h.layer.matrices * 2.0 + 0.0 * stages.layers
    text = "dense linear weights of one layer × 2 bytes"
    return (
        Term(name="buffers.dummy_gradients", value=value, source="TransformerEngine pytorch/module/base.py get_dummy_wgrad", formula=text),
    )


def _buckets(training: Training, regime: Regime, layout: Layout, s: States) -> tuple[Term, ...]:
    """DeepSpeed's reduce bucket, twice with overlap; Megatron's buckets are views of its gradient buffer, FSDP's are the units above."""
    if not deepspeed(training, regime) or layout.choices.zero < 1:
        return ()
    elements = np.minimum(float(training.extra.get("reduce_bucket", DEEPSPEED_BUCKET)), s.trained.total)
    copies = 1.0 if training.extra.get("overlap_comm") == "no" else 2.0
    return (
        Term(
            name="buffers.reduce_bucket",
            value=copies * elements * regime.reduce_bytes,
            source=DS_SOURCE,
            formula=f"min(bucket, trained parameters) × bytes × {copies:g} (two with overlap)",
        ),
    )


def deepspeed(training: Training, regime: Regime) -> bool:
    """Tell whether DeepSpeed's ZeRO optimizer runs the step (its BF16_Optimizer works without buckets)."""
    return training.framework in ("deepspeed", "megatron-deepspeed") and regime.master_bytes > 0.0 and regime.optimizer_from > 0


def _step(training: Training, stack: Stack, regime: Regime, layout: Layout, s: States, largest: Num) -> tuple[Term, ...]:
    """Copies that the optimizer step makes: fp32 gradients of the rank's part, foreach's copy of the parameters."""
    part = s.trained.dense / num(s.optimizer_shares.dense) + s.trained.experts / num(s.optimizer_shares.experts)
    on_device = 1.0 - (num(layout.degrees.offload_fraction) if "optimizer" in layout.choices.offload else 0.0)
    terms = []
    if deepspeed(training, regime):
        text = "fp32 gradients of the rank's part + their flat 16-bit copy (ZeRO-1 and 2)"
        width = 4.0 + (regime.gradient_bytes if layout.choices.zero < 3 else 0.0)
        once = np.minimum(part, DEEPSPEED_SUB_GROUP) if layout.choices.zero == 3 else part
        terms.append(Term(name="buffers.step_gradients", value=once * width * on_device, source=DS_SOURCE, formula=text))
    if training.framework == "megatron-deepspeed" and regime.optimizer_from == 0:
        text = "16-bit copy of the flat fp32 gradients, in which they travel"
        source = "DeepSpeed runtime/bf16_optimizer.py (get_grads_for_reduction: one flat tensor), runtime/engine.py (allreduce_bucket)"
        terms.append(Term(name="buffers.reduce_bucket", value=s.trained.total * regime.gradient_bytes, source=source, formula=text))
    if training.framework in MEGATRON and regime.main_gradient_bytes == 2.0:
        text = "fp32 copy of the rank's part of the gradients"
        terms.append(Term(name="buffers.step_gradients", value=part * 4.0 * on_device, source=regime.source, formula=text))
    if regime.name == "fp32-master":
        whole = training.extra.get("gradient_copies") == "whole"
        text = f"fp32 copies of the gradients, {'beside the 16-bit ones' if whole else 'which replace the 16-bit ones tensor by tensor'}"
        width = 4.0 if whole else 4.0 - regime.gradient_bytes
        terms.append(Term(name="buffers.step_gradients", value=part * width, source=regime.source, formula=text))
    if training.extra.get("optimizer_kernel") == "forloop":
        text = "two temporaries of the largest tensor (torch's optimizer without foreach or fused)"
        value = 2.0 * largest * (regime.master_bytes or regime.weight_bytes)
        terms.append(Term(name="buffers.step_temporaries", value=value, source="torch.optim _single_tensor_adamw, traced", formula=text))
    if stack.foreach and training.optimizer in ("adamw", "sgd", "lion"):
        width = regime.master_bytes or regime.weight_bytes
        text = "copies of the updated parameters (torch foreach)"
        value = part * width * on_device * stack.foreach_copies
        terms.append(
            Term(
                name="buffers.step_foreach", value=value, source="torch.optim _multi_tensor_adamw, traced", formula=text
            )
        )
    return tuple(terms)


def total(terms: tuple[Term, ...]) -> Num:
    """Return the sum of terms."""
    return add(t.value for t in terms)
