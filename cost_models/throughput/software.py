"""What software adds to a step: which kernels it calls, what it hides behind what, and how long the host takes to launch a layer.

Defaults follow framework and date; `training.extra` overrides single switches (cost_models.switches names them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cost_models.stack import MEGATRON, resolve
from cost_models.switches import SWITCHES
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Training
    from hardware.spec import Gpu

Kernel = Literal["eager", "triton", "flash2", "flash3"]

EXPERT_HOOKS = 3.0 / 9.0
"""Hooks of one expert's linear layers / those of a dense layer (seven linear layers and two norms)."""
GROUPED_HF_SINCE = "2026"
"""transformers 5 holds a layer's experts in one tensor and runs them with a grouped product; before, a loop ran one by one."""


OVERLAP_SENDS_SINCE = "2023-10"
"""From then on Megatron-LM overlaps the sends of interleaved schedules by default (4eeff55d; an option since f9283c5a, May 2023)."""
FLASH2_SINCE = "2023-07"
"""Release of FlashAttention-2 (Dao, arXiv 2307.08691); fused kernels before it are of the first generation."""
FSDP2_SINCE = "2026"
"""From then on FSDP is taken to be fully_shard (FSDP2), whose prefetch hides as torchtitan's does, where a run does not say."""
ASYNC_TP_SINCE = "2022"
"""From then on Megatron-LM reduces the input gradient of a column-parallel layer behind its weight gradient (v3.0,
core/tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication)."""


ZERO_BUBBLE = "megatron-zb"
"""Its runtime splits the backward of Megatron's own (local) layers, not Transformer Engine's; it sends beside compute, and neither reduces
gradients nor gathers parameters beside it (megatron/core/zbpp_utils.py, 39f2c186)."""


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
    dense, route, expert = _graphs(training)
    fused = _fused_experts(training)
    grouped = _grouped(training, name)
    dispatcher = _dispatcher(training, name)
    recipe = training.extra.get("fp8_recipe", "")
    modern = name == "megatron_te"
    overlap = modern or training.framework in ("torchtitan", "fsdp", "hf", "litgpt")
    hooks = _hooks(training, choices, name)
    each = tuple(h * EXPERT_HOOKS if grouped == "loop" else 0.0 for h in hooks)
    adapters = table.value("host_adapter") * len(training.lora_targets) if training.method in ("lora", "qlora") else 0.0
    made = Software(
        name=name,
        attention=attention_kernel(training, gpu),
        host_forward_seconds=dense * (table.value(f"host_forward_{name}") + hooks[0] + adapters),
        host_backward_seconds=dense * (table.value(f"host_backward_{name}") + hooks[1] + 2.0 * adapters),
        host_route_forward_seconds=route * table.value("host_route_forward"),
        host_route_backward_seconds=route * table.value("host_route_backward"),
        host_expert_forward_seconds=expert * (table.value(f"host_expert_forward_{grouped}") + each[0]),
        host_expert_backward_seconds=expert * (table.value(f"host_expert_backward_{grouped}") + each[1]),
        host_collective_seconds=dense * table.value(f"host_collective_{name}"),
        memory_factor=table.value(f"memory_factor_{name}"),
        adapter_factor=table.value("adapter_factor_hf" if name == "hf" else f"memory_factor_{name}"),
        ring_passes=table.value("ring_passes_torch" if training.framework in ("torchtitan", "fsdp") else "ring_passes"),
        loss_bytes=table.value(f"loss_bytes_{loss_kernel(training, name).replace('-', '_')}"),
        tp_hidden=0.0,
        ep_hidden=0.0,
        host_overlap=table.value("host_overlap"),
        fsdp_hidden=_fsdp_hidden(training),
        grad_hidden=table.value("grad_hidden") if overlap else 0.0,
        gather_hidden=table.value("grad_hidden") if modern else 0.0,
        weights_hide=_weights_hide(training, choices, name),
        send_hidden=_sends_overlap(training, choices, modern=modern),
        step_seconds=table.value("host_step_seconds"),
        permute_factor=table.value(f"permute_{dispatcher}"),
        activation_factor=table.value("expert_activation_fused") if fused else 1.0,
        clamped_factor=table.value("clamped_fused" if fused else "clamped_separate"),
        synchronised=not fused and _dynamic(training),
        fused_experts=fused,
        dispatch_once=dispatcher != "alltoall",
        zero_messages=table.value("zero3_messages_2021") if early_zero3(training) else 1.0,
        zero_again=early_zero3(training),
        quantise_bytes=table.value(_quantise(training, name)),
        dequantise_bytes=table.value("dequantise_bytes_gptq" if training.extra.get("quantization") == "gptq" else "dequantise_bytes"),
        narrow_type="fp4" if recipe == "nvfp4" else "fp8",
        fp8_factor=table.value("mxfp8_factor") if recipe == "mxfp8" else 1.0,
    )
    return _override(made, training)


def _quantise(training: Training, name: str) -> str:
    """Name of the constant of the traffic of a cast to fp8."""
    if name == "xla":
        return "quantise_bytes_xla"
    return "quantise_bytes_2024" if "" < training.date < "2025" else "quantise_bytes"


def _sends_overlap(training: Training, choices: Choices, *, modern: bool) -> bool:
    if choices.schedule in ("gpipe", "1f1b") or not (modern or training.framework == ZERO_BUBBLE):
        return False
    late = not "" < training.date < OVERLAP_SENDS_SINCE
    return training.extra.get("overlap_p2p", "yes" if late else "no") == "yes"


def _weights_hide(training: Training, choices: Choices, name: str) -> bool:
    """Not where the weight gradient waits for a pass of its own (the fork's core/tensor_parallel/layers.py)."""
    late = not "" < training.date < ASYNC_TP_SINCE
    mine = training.framework == "megatron" or (training.framework == ZERO_BUBBLE and choices.schedule not in ("zb-h1", "zb-v"))
    return late and mine and name in ("megatron_local", "megatron_te")


def _hooks(training: Training, choices: Choices, name: str) -> tuple[float, float]:
    """Host time of what sharding hooks into a layer, forward and backward.

    `zero_hooks` = no: gradients stay in `.grad` and are reduced where they lie, after the last micro-batch alone (InternEvo).
    """
    table = calibration("software")
    if choices.zero == 3 and name not in ("compiled", "xla"):
        once = table.value(f"host_zero3_{'deepspeed' if name == 'hf' else 'fsdp'}")
        return once, 2.0 * once
    buckets = training.framework == "deepspeed" and training.extra.get("zero_hooks") != "no"
    if choices.zero in (1, 2) and buckets and training.method == "full":
        return 0.0, table.value("host_zero2_deepspeed")
    return 0.0, 0.0


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


def loss_kernel(training: Training, name: str) -> str:
    """Return the cross entropy: the one named, else the framework's."""
    loss = resolve(training)
    kernel = getattr(loss, "loss", None) or training.loss
    if kernel is not None:
        return str(kernel)
    if name.startswith("megatron"):
        return "vocab-parallel"
    if name == "compiled":
        return "compiled"
    return "chunked" if training.framework == "litgpt" else "eager"


def _dispatcher(training: Training, name: str) -> str:
    """Megatron's flex dispatcher (DeepEP from 2025, HybridEP on NVL72) unless the run names another one."""
    given = training.extra.get("moe_dispatcher", "").lower()
    if given:
        return _DISPATCHERS.get(given, "alltoall")
    return "deepep" if name == "megatron_te" and (not training.date or training.date >= "2025-06") else "alltoall"


_SYNC_FREE = ("MinimalAsyncEP",)
_DISPATCHERS = {"deepep": "deepep", "flex": "deepep", "minimalasyncep": "deepep", "hybridep": "hybridep"}


def _dynamic(training: Training) -> bool:
    """Shapes follow the router's counts, which the host has to read: not with padded capacity or a dispatcher that needs no host."""
    return training.extra.get("capacity_padded") != "yes" and training.extra.get("moe_dispatcher") not in _SYNC_FREE


def _graphs(training: Training) -> tuple[float, float, float]:
    """Part of the host time that CUDA graphs leave: of attention and dense layers, of routing, of the experts.

    Captured are the whole iteration, whole layers (which needs static shapes), or the scopes named: `attn` (with the shared expert),
    and `moe_router` with `moe_preprocess`; permutation, exchange and the experts' products have dynamic shapes and stay outside
    (Yan et al. 2026, arXiv 2603.07685, section 4.3.6).
    """
    table = calibration("software")
    given = training.extra.get("cuda_graphs", "full" if training.cuda_graphs else "")
    if not given:
        return 1.0, 1.0, 1.0
    if given == "full":
        return (table.value("graph_full"),) * 3
    if given == "layers":
        return (table.value("graph_layer"),) * 3
    route = table.value("graph_router") if "moe_router" in given else 1.0
    return table.value("graph_layer") if "attn" in given else 1.0, route, 1.0


def _fused_experts(training: Training) -> bool:
    """Capturing the whole iteration of an MoE model takes grouped kernels that read their shapes on the device; those fuse the
    activation, its cast and the padding (Megatron core's full_iteration with use_transformer_engine_op_fuser)."""
    given = training.extra.get("cuda_graphs", "full" if training.cuda_graphs else "")
    return training.framework == "megatron" and given == "full"


def _grouped(training: Training, name: str) -> str:
    """How the experts' products are launched: one kernel for all of them (torch's grouped_mm, compilers), one for each, or with casts."""
    given = training.extra.get("grouped_gemm", "one" if name in ("compiled", "xla") else "")
    if given:
        return given
    if name == "hf":
        return "loop" if "" < training.date < GROUPED_HF_SINCE else "one"
    return "fp8" if training.precision == "fp8" else "each"


def early_zero3(training: Training) -> bool:
    """Return whether ZeRO-3 is that of 2021: no prefetch, each parameter gathered by a collective of its own, once more to recompute."""
    return training.framework == "deepspeed" and "" < training.date < "2022"


def _fsdp_hidden(training: Training) -> float:
    table = calibration("software")
    if early_zero3(training):
        return 0.0
    kind = training.framework if training.framework in ("torchtitan", "deepspeed") else "fsdp"
    second = training.extra.get("fsdp_version") == "2" or not "" < training.date < FSDP2_SINCE
    return table.value(f"fsdp_hidden_{'torchtitan' if training.framework == 'megatron' or kind == 'fsdp' and second else kind}")


def _override(made: Software, training: Training) -> Software:
    table = calibration("software")
    on = table.value("grad_hidden")
    given = training.extra
    fields: dict[str, float] = {}
    for switch, name, value in (
        ("overlap_grad_reduce", "grad_hidden", on),
        ("overlap_param_gather", "gather_hidden", on),
        ("overlap_tp", "tp_hidden", table.value("tp_hidden_te")),
        ("moe_a2a_overlap", "ep_hidden", table.value("ep_hidden")),
    ):
        if given.get("overlap_all") == "no":
            fields[name] = 0.0
        elif name == "tp_hidden" and given.get("async_tp") == "yes":
            fields[name] = value
        elif switch in given:
            fields[name] = value if given[switch] == "yes" else 0.0
    return replace(made, **fields) if fields else made  # type: ignore[arg-type]
