"""What software adds to a step: which kernels it calls, what it hides behind what, and how long the host takes to launch a layer.

Defaults follow framework and date; `training.extra` overrides single switches of a measured run (SWITCHES names them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cost_models.stack import resolve
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Training
    from hardware.spec import Gpu

Kernel = Literal["eager", "triton", "flash2", "flash3"]

SWITCHES = {
    "class": "megatron_local, megatron_te, megatron_deepspeed, compiled, xla, eager or hf: whose host time and traffic apply",
    "attention_backend": "eager, triton, flash2 or flash3 (flash3 also stands for cuDNN on Hopper and later)",
    "cuda_graphs": "full (the whole iteration), or the modules that are captured (attn, moe_router, …)",
    "overlap_grad_reduce": "yes or no: gradient reduction behind backward",
    "overlap_param_gather": "yes or no: parameter gather of the distributed optimizer behind forward",
    "overlap_tp": "yes or no: tensor parallel collectives behind GEMMs",
    "overlap_p2p": "yes or no: pipeline sends beside compute (interleaved schedules)",
    "async_tp": "yes: torchtitan's asynchronous tensor parallelism, as overlap_tp",
    "recompute_policy": "op, SAVE_DOT_ONLY, SAVE_DOT_WITH_NO_BATCH_DIM or save_qkv_proj: which operators recomputation keeps",
    "overlap_all": "no: nothing is overlapped",
    "moe_a2a_overlap": "yes or no: expert all-to-all behind other work",
    "moe_dispatcher": "deepep or hybridep (a token goes once to each server), alltoall or allgather",
    "capacity_padded": "yes: every expert gets as many tokens, so that the host need not wait for the router",
    "norm_kernel": "fused: one kernel per norm where the code base has several",
    "fused_qkv": "yes: q, k and v are one matrix, with one adapter",
    "rope_fusion": "yes or no: one kernel for the rotary embedding",
    "swiglu_kernels": "single or fused: kernels of a gated activation",
    "fsdp_mixed_precision": "PURE: gradients are reduced in 16 bits (else in fp32)",
    "fsdp_version": "2: fully_shard, which prefetches on its own stream",
    "document_tokens": "mean length of the documents packed into a sequence (attention does not cross them)",
    "fp8_recipe": "delayed, current, blockwise, mxfp8 or nvfp4",
}
"""Switch -> values, read from `training.extra`."""


FUSED_MOE_SINCE = "2026-06"
"""From then on Megatron core routes without host synchronisation and with fused permutation and grouped kernels."""


OVERLAP_SENDS_SINCE = "2023-10"
"""From then on Megatron-LM overlaps the sends of interleaved schedules by default (4eeff55d; an option since f9283c5a, May 2023)."""
FLASH2_SINCE = "2023-07"
"""Release of FlashAttention-2 (Dao, arXiv 2307.08691); fused kernels before it are of the first generation."""
FSDP2_SINCE = "2026"
"""From then on FSDP is taken to be fully_shard (FSDP2), whose prefetch hides as torchtitan's does, where a run does not say."""
ASYNC_TP_SINCE = "2022"
"""From then on Megatron-LM reduces the input gradient of a column-parallel layer behind its weight gradient (v3.0,
core/tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Resolved behaviour of one stack."""

    name: str
    """Class of host time and traffic."""
    attention: Kernel
    host_forward_seconds: float
    """Launch of one layer's forward."""
    host_backward_seconds: float
    host_moe_forward_seconds: float
    """Beside it, the routed part of an MoE layer."""
    host_moe_backward_seconds: float
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
    moe_memory_factor: float
    """Traffic of token permutation and expert activations / traffic of fused kernels."""
    clamped_factor: float
    """Traffic of a clamped gated unit / traffic of a fused one."""
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
    graphs = _graphs(training)
    era = "2025" if "" < training.date < FUSED_MOE_SINCE else "2026"
    recipe = training.extra.get("fp8_recipe", "")
    launch = "2026" if "capacity_padded" in training.extra else era
    modern = name == "megatron_te"
    overlap = modern or training.framework in ("torchtitan", "fsdp", "hf", "litgpt")
    hooks = _hooks(training, choices, name)
    adapters = table.value("host_adapter") * len(training.lora_targets) if training.method in ("lora", "qlora") else 0.0
    made = Software(
        name=name,
        attention=attention_kernel(training, gpu),
        host_forward_seconds=graphs * (table.value(f"host_forward_{name}") + hooks[0] + adapters),
        host_backward_seconds=graphs * (table.value(f"host_backward_{name}") + hooks[1] + 2.0 * adapters),
        host_moe_forward_seconds=graphs * table.value(f"host_moe_forward_{launch}"),
        host_moe_backward_seconds=graphs * table.value(f"host_moe_backward_{launch}"),
        host_collective_seconds=graphs * table.value(f"host_collective_{name}"),
        memory_factor=table.value(f"memory_factor_{name}"),
        adapter_factor=table.value("adapter_factor_hf" if name == "hf" else f"memory_factor_{name}"),
        ring_passes=table.value("ring_passes_torch" if training.framework in ("torchtitan", "fsdp") else "ring_passes"),
        loss_bytes=table.value(f"loss_bytes_{loss_kernel(training, name).replace('-', '_')}"),
        tp_hidden=0.0,
        ep_hidden=0.0,
        fsdp_hidden=_fsdp_hidden(training),
        grad_hidden=table.value("grad_hidden") if overlap else 0.0,
        gather_hidden=table.value("grad_hidden") if modern else 0.0,
        weights_hide=_weights_hide(training, name),
        send_hidden=modern and choices.schedule not in ("gpipe", "1f1b") and _sends_overlap(training),
        step_seconds=table.value("host_step_seconds"),
        moe_memory_factor=table.value(f"moe_memory_{era}"),
        clamped_factor=table.value(f"clamped_{era}"),
        dispatch_once=_dispatch_once(training, name),
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


def _sends_overlap(training: Training) -> bool:
    late = not "" < training.date < OVERLAP_SENDS_SINCE
    return training.extra.get("overlap_p2p", "yes" if late else "no") == "yes"


def _weights_hide(training: Training, name: str) -> bool:
    late = not "" < training.date < ASYNC_TP_SINCE
    return late and training.framework == "megatron" and name in ("megatron_local", "megatron_te")


def _hooks(training: Training, choices: Choices, name: str) -> tuple[float, float]:
    """Host time of what sharding hooks into a layer, forward and backward."""
    table = calibration("software")
    if choices.zero == 3 and name not in ("compiled", "xla"):
        once = table.value(f"host_zero3_{'deepspeed' if name == 'hf' else 'fsdp'}")
        return once, 2.0 * once
    if choices.zero in (1, 2) and training.framework == "deepspeed" and training.method == "full":
        return 0.0, table.value("host_zero2_deepspeed")
    return 0.0, 0.0


CLASSES = ("megatron_local", "megatron_te", "megatron_deepspeed", "compiled", "xla", "eager", "hf")


def _class(training: Training) -> str:
    name = training.extra.get("class", stack_class(training))
    if name not in CLASSES:
        raise ValueError(f"no class of software is called {name!r}; there are {', '.join(CLASSES)}")
    return name


def stack_class(training: Training) -> str:
    """Return the class of host time and traffic that framework, date and compile choice stand for."""
    if training.compile or training.framework == "torchtitan":
        return "compiled" if training.compile is not False else "eager"
    if training.framework == "megatron":
        return "megatron_local" if training.date and training.date < "2023" else "megatron_te"
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


def _dispatch_once(training: Training, name: str) -> bool:
    """Megatron's flex dispatcher (DeepEP from 2025, HybridEP) unless the run names another one."""
    given = training.extra.get("moe_dispatcher", "").lower()
    if given:
        return given in ("deepep", "hybridep", "flex", "minimalasyncep")
    return name == "megatron_te" and (not training.date or training.date >= "2025-06")


def _graphs(training: Training) -> float:
    """Part of the host time that is left."""
    table = calibration("software")
    given = training.extra.get("cuda_graphs", "full" if training.cuda_graphs else "")
    if not given:
        return 1.0
    if given == "full":
        return table.value("graph_full")
    return table.value("graph_attention") if "attn" in given else table.value("graph_router")


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
