"""What software adds to a step: which kernels it calls, what it hides behind what, and how long the host takes to launch a layer.

Defaults follow framework and date; `training.extra` overrides single switches (cost_models.switches names them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cost_models.stack import MEGATRON, resolve
from cost_models.switches import SWITCHES
from cost_models.throughput.launches import EXPERT_HOOKS, dispatcher, dynamic, fused_experts, graphs, grouped, hooks
from cost_models.throughput.overlap import ZERO_BUBBLE, early_zero3, fsdp_part, part, sends_hide, tensor_part, weights_hide
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Training
    from hardware.spec import Gpu

Kernel = Literal["eager", "triton", "flash2", "flash3"]

_BUCKETED = ("torchtitan", "fsdp", "hf", "litgpt")
"""Frameworks beside Megatron-LM whose gradients are reduced in buckets while backward runs (DistributedDataParallel, FSDP)."""
FLASH2_SINCE = "2023-07"
"""Release of FlashAttention-2 (Dao, arXiv 2307.08691); fused kernels before it are of the first generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Resolved behaviour of one stack."""

    name: str
    """Class of host time and traffic."""
    attention: Kernel
    host_forward_seconds: float
    """Launch of one layer's forward."""
    host_backward_seconds: float
    host_route_forward_seconds: float
    """Beside it, router, preprocessing, permutation and exchange of an MoE layer."""
    host_route_backward_seconds: float
    host_expert_forward_seconds: float
    """And each local expert: its products, and the casts of their operands under fp8."""
    host_expert_backward_seconds: float
    host_collective_seconds: float
    """Launch of one collective."""
    memory_factor: float
    """Traffic of element-wise work / traffic of fused kernels."""
    adapter_factor: float
    """Traffic of adapters / that of fused kernels in the compute type."""
    ring_passes: float
    """Passes over the partial output, in the compute type, per step of ring attention."""
    loss_bytes: float
    """HBM bytes per logit and pass of the cross entropy."""
    tp_hidden: float
    ep_hidden: float
    """Part of the expert exchange that may run beside another micro-batch; 0: not overlapped."""
    host_overlap: float
    """Host time of the schedule that overlaps it / of one pass after the other."""
    fsdp_hidden: float
    grad_hidden: float
    """Part of the last backward that hides gradient reduction; 0: not overlapped."""
    gather_hidden: float
    """Part of the first forward that hides the distributed optimizer's parameter gather."""
    weights_hide: bool
    """The reduction of a column-parallel input gradient is started before the weight gradient's product and runs beside it."""
    send_hidden: bool
    """Pipeline sends run beside compute (Megatron with interleaving)."""
    step_seconds: float
    permute_factor: float
    """Traffic of permuting tokens to and from the experts / that of a copy on each side of the exchange."""
    activation_factor: float
    """Traffic of the experts' gated unit / that of one kernel of its own."""
    clamped_factor: float
    """The same of a unit that clamps its inputs (gpt-oss)."""
    synchronised: bool
    """The host waits for the router's counts in every MoE layer (dropless routing with shapes on the host)."""
    fused_experts: bool
    """Grouped kernels apply the activation and cast its result, forward and backward."""
    dispatch_once: bool
    """Expert exchange sends a token once to each server (DeepEP, HybridEP) and not once for each expert."""
    zero_messages: float
    """Collectives into which ZeRO-3 cuts the gather of one layer."""
    zero_again: bool
    """A recomputed forward gathers the weights once more, before backward does (DeepSpeed's hooks release them in between)."""
    quantise_bytes: float
    """HBM bytes to cast one 16-bit element to fp8."""
    dequantise_bytes: float
    """HBM bytes to turn one 4-bit weight into 16 bits."""
    narrow_type: Literal["fp8", "fp4"]
    """Type of the operands of quantised products."""
    fp8_factor: float
    """Rate of the fp8 recipe / rate of plain fp8."""


def software(training: Training, choices: Choices, gpu: Gpu) -> Software:
    """Return the behaviour of the stack of `training` on `gpu`."""
    table = calibration("software")
    name = _class(training)
    dense, route, expert = graphs(training)
    fused, kind, sent = fused_experts(training), grouped(training, name), dispatcher(training, name)
    recipe = training.extra.get("fp8_recipe", "")
    modern = name == "megatron_te"
    hooked = hooks(training, choices, name)
    each = tuple(h * EXPERT_HOOKS if kind == "loop" else 0.0 for h in hooked)
    adapters = table.value("host_adapter") * len(training.lora_targets) if training.method in ("lora", "qlora") else 0.0
    return Software(
        name=name,
        attention=attention_kernel(training, gpu),
        host_forward_seconds=dense * (table.value(f"host_forward_{name}") + hooked[0] + adapters),
        host_backward_seconds=dense * (table.value(f"host_backward_{name}") + hooked[1] + 2.0 * adapters),
        host_route_forward_seconds=route * table.value("host_route_forward"),
        host_route_backward_seconds=route * table.value("host_route_backward"),
        host_expert_forward_seconds=expert * (table.value(f"host_expert_forward_{kind}") + each[0]),
        host_expert_backward_seconds=expert * (table.value(f"host_expert_backward_{kind}") + each[1]),
        host_collective_seconds=dense * table.value(f"host_collective_{name}"),
        memory_factor=table.value(f"memory_factor_{name}"),
        adapter_factor=table.value("adapter_factor_hf" if name == "hf" else f"memory_factor_{name}"),
        ring_passes=table.value("ring_passes_torch" if training.framework in ("torchtitan", "fsdp") else "ring_passes"),
        loss_bytes=table.value(f"loss_bytes_{resolve(training).loss.replace('-', '_')}"),
        tp_hidden=tensor_part(training),
        ep_hidden=part(training, "moe_a2a_overlap", "ep_hidden", usual=False),
        host_overlap=table.value("host_overlap"),
        fsdp_hidden=fsdp_part(training),
        grad_hidden=part(training, "overlap_grad_reduce", "grad_hidden", usual=modern or training.framework in _BUCKETED),
        gather_hidden=part(training, "overlap_param_gather", "grad_hidden", usual=modern),
        weights_hide=weights_hide(training, choices, name),
        send_hidden=sends_hide(training, choices, modern=modern),
        step_seconds=table.value("host_step_seconds"),
        permute_factor=table.value(f"permute_{sent}"),
        activation_factor=table.value("expert_activation_fused") if fused else 1.0,
        clamped_factor=table.value("clamped_fused" if fused else "clamped_separate"),
        synchronised=not fused and dynamic(training),
        fused_experts=fused,
        dispatch_once=sent != "alltoall",
        zero_messages=table.value("zero3_messages_2021") if early_zero3(training) else 1.0,
        zero_again=early_zero3(training),
        quantise_bytes=table.value(_quantise(training, name)),
        dequantise_bytes=table.value("dequantise_bytes_gptq" if training.extra.get("quantization") == "gptq" else "dequantise_bytes"),
        narrow_type="fp4" if recipe == "nvfp4" else "fp8",
        fp8_factor=table.value("mxfp8_factor") if recipe == "mxfp8" else 1.0,
    )


def _quantise(training: Training, name: str) -> str:
    """Name of the constant of the traffic of a cast to fp8."""
    if name == "xla":
        return "quantise_bytes_xla"
    return "quantise_bytes_2024" if "" < training.date < "2025" else "quantise_bytes"


CLASSES = SWITCHES["class"].values


def _class(training: Training) -> str:
    name = training.extra.get("class", stack_class(training))
    if name not in CLASSES:
        raise ValueError(f"no class of software is called {name!r}; there are {', '.join(CLASSES)}")
    return name


def stack_class(training: Training) -> str:
    """Return the class of host time and traffic that framework, date and compile choice stand for."""
    if training.framework == "torchtitan" or (training.compile and training.framework not in MEGATRON):
        return "compiled" if training.compile is not False else "eager"
    if training.framework == "megatron":
        return "megatron_local" if training.date and training.date < "2023" else "megatron_te"
    if training.framework == ZERO_BUBBLE:
        return "megatron_local"
    if training.framework == "megatron-deepspeed":
        return "megatron_deepspeed"
    if training.framework in ("hf", "deepspeed"):
        return "hf"
    return "megatron_local" if training.framework == "nanotron" else "eager"


def attention_kernel(training: Training, gpu: Gpu) -> Kernel:
    """Return the kernel generation: unfused, triton or FlashAttention 1, FlashAttention-2, or FlashAttention-3 / cuDNN.

    The last is the default of Transformer Engine on Hopper and later from 2024 (2023 containers had FlashAttention-2).
    """
    given = training.extra.get("attention_backend", training.extra.get("attention_kernel", ""))
    if given in _KERNELS:
        return _KERNELS[given]
    if training.attention == "eager":
        return "eager"
    if "" < training.date < FLASH2_SINCE:
        return "triton"
    late = not training.date or training.date >= "2024"
    return "flash3" if training.framework == "megatron" and late and (gpu.compute_capability or 0.0) >= 9.0 else "flash2"


_KERNELS: dict[str, Kernel] = {
    "eager": "eager",
    "unfused": "eager",
    "local": "eager",
    "triton": "triton",
    "flash1": "triton",
    "flash2": "flash2",
    "flash3": "flash3",
    "cudnn": "flash3",
}
