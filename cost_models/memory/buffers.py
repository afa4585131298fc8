"""Buffers beside states and activations: gathered ZeRO-3 units, communication buckets, copies of the optimizer step, workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.ledger import Term
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
ANY_LAYOUT = (10.0, 12.0)
"""Compute capabilities (data-centre Blackwell) that multiply fp8 operands in every layout, so that no transposed copy is needed."""
PER_TENSOR = ("", "delayed", "current", "tensorwise")
"""fp8 recipes with one scale for a tensor; a recipe that is not named is one of them."""
FP8_WEIGHT_BYTES = {"mxfp8": 1.0 + 1.0 / 32.0, "nvfp4": 0.5 + 1.0 / 16.0, "blockwise": 1.0 + 4.0 / 128.0 / 128.0}
"""Bytes of a weight with its scales: one byte for 32 (mxfp8) or 16 (nvfp4) elements, fp32 for a block of 128 x 128."""
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
    workspace = Term(
        name="buffers.workspace",
        value=_workspace(pool),
        source="hardware/measured/memory.toml: workspace_bytes, workspace_bytes_before_hopper",
        formula="cuBLAS and kernel workspaces that torch's allocator holds",
    )
    if training.method == "inference":
        return Buffers(always=(workspace,), forward=(), backward=(), optimizer=())
    forward, backward = gathered(training, regime, layout, h, s, stages)
    bucket = _buckets(training, regime, layout, s)
    return Buffers(
        always=(workspace, *_dummy_gradients(training, stack, h), *_fp8_weights(training, stack, regime, layout, pool, h)),
        forward=(*forward, *bucket, *_cast_cache(stack, regime, layout, h), *_dequantised(training, h)),
        backward=(*backward, *bucket, *_dequantised(training, h)),
        optimizer=_step(training, stack, regime, layout, s, h.embedding.others * stages.embedding),
    )


def _workspace(pool: Pool) -> float:
    """Bytes of the workspaces that libraries take through torch's allocator; larger from Hopper on."""
    capability = pool.gpu.compute_capability
    old = capability is not None and capability < HOPPER
    return calibration("memory").value("workspace_bytes_before_hopper" if old else "workspace_bytes")


def _dequantised(training: Training, h: Held) -> tuple[Term, ...]:
    """A 4-bit matmul makes its weight in 16 bits first, in forward and for the input's gradient."""
    if training.method != "qlora":
        return ()
    value = h.largest_quantised * 2.0
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


def _dummy_gradients(training: Training, stack: Stack, h: Held) -> tuple[Term, ...]:
    """Transformer Engine from 2.3 on hands autograd a cached 16-bit tensor per weight shape where the gradient went to the main buffer."""
    recent = not training.date or training.date >= DUMMY_GRADIENTS_SINCE
    fused = training.extra.get("gradient_accumulation_fusion") != "no" and training.method == "full"
    if stack.implementation != "megatron" or not (recent and fused):
        return ()
    value = h.layer.matrices * 2.0
    text = "dense linear weights of one layer × 2 bytes"
    return (
        Term(name="buffers.dummy_gradients", value=value, source="TransformerEngine pytorch/module/base.py get_dummy_wgrad", formula=text),
    )


def _fp8_weights(training: Training, stack: Stack, regime: Regime, layout: Layout, pool: Pool, h: Held) -> tuple[Term, ...]:
    """fp8 copies of the weights that Transformer Engine keeps from one step to the next, beside the 16-bit ones or (fp8_param_gather)
    in their place: by rows, and by columns for the input gradient where the card multiplies fp8 operands in one layout alone or scales
    go with blocks of a row."""
    if stack.implementation != "megatron" or training.precision != "fp8" or training.method != "full" or layout.choices.zero == 3:
        return ()
    recipe, capability = training.extra.get("fp8_recipe", ""), pool.gpu.compute_capability or 0.0
    any_layout = ANY_LAYOUT[0] <= capability < ANY_LAYOUT[1]
    copies = 1.0 if any_layout and recipe in PER_TENSOR else 2.0
    width = FP8_WEIGHT_BYTES.get(recipe, 1.0) * copies
    primary = training.extra.get("fp8_param_gather") == "yes"
    text = f"linear weights × ({width:g} bytes in fp8{' - 16-bit copy' if primary else ''})"
    source = "TransformerEngine pytorch/module/base.py (get_weight_workspace), utils.py (is_non_tn_fp8_gemm_supported)"
    value = (h.stage.matrices + h.stage.experts) * (width - (regime.weight_bytes if primary else 0.0))
    return (Term(name="weights.fp8", value=value, source=source, formula=text),)


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
    on_device = 1.0 - (num(layout.degrees.offload_fraction) if "optimizer" in layout.choices.offload else 0.0)
    terms = []
    if deepspeed(training, regime):
        text = "fp32 gradients of the rank's part + their flat 16-bit copy (ZeRO-1 and 2)"
        width = 4.0 + (regime.gradient_bytes if layout.choices.zero < 3 else 0.0)
        once = np.minimum(s.owned, DEEPSPEED_SUB_GROUP) if layout.choices.zero == 3 else s.owned
        terms.append(Term(name="buffers.step_gradients", value=once * width * on_device, source=DS_SOURCE, formula=text))
    if training.framework == "megatron-deepspeed" and regime.optimizer_from == 0:
        text = "16-bit copy of the flat fp32 gradients, in which they travel"
        source = "DeepSpeed runtime/bf16_optimizer.py (get_grads_for_reduction: one flat tensor), runtime/engine.py (allreduce_bucket)"
        terms.append(Term(name="buffers.reduce_bucket", value=s.trained.total * regime.gradient_bytes, source=source, formula=text))
    if training.framework in MEGATRON and regime.main_gradient_bytes == 2.0:
        text = "fp32 copy of the rank's part of the gradients"
        terms.append(Term(name="buffers.step_gradients", value=s.owned * 4.0 * on_device, source=regime.source, formula=text))
    if regime.name == "fp32-master":
        whole = training.extra.get("gradient_copies") == "whole"
        text = f"fp32 copies of the gradients, {'beside the 16-bit ones' if whole else 'which replace the 16-bit ones tensor by tensor'}"
        width = 4.0 if whole else 4.0 - regime.gradient_bytes
        terms.append(Term(name="buffers.step_gradients", value=s.owned * width, source=regime.source, formula=text))
    if training.extra.get("optimizer_kernel") == "forloop":
        text = "two temporaries of the largest tensor (torch's optimizer without foreach or fused)"
        value = 2.0 * largest * (regime.master_bytes or regime.weight_bytes)
        terms.append(Term(name="buffers.step_temporaries", value=value, source="torch.optim _single_tensor_adamw, traced", formula=text))
    if stack.foreach and training.optimizer in ("adamw", "sgd", "lion"):
        width = regime.master_bytes or regime.weight_bytes
        text = "copies of the updated parameters (torch foreach)"
        value = s.owned * width * on_device * stack.foreach_copies
        terms.append(Term(name="buffers.step_foreach", value=value, source="torch.optim _multi_tensor_adamw, traced", formula=text))
    return tuple(terms)
