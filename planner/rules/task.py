"""Laws about method, types, optimizer and card, and what planner itself prefers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import Mask, Rule, divides, show

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.training import Framework
    from planner.case import Case

FLASH_CAPABILITY = 8.0
"""FlashAttention-2 needs Ampere or later on NVIDIA cards."""

CP_TOKENS = 1024.0


def _pipeline_method(case: Case, layout: Layout) -> Mask:
    if case.training.method in SUPPORT[case.framework].pipeline_methods:
        return True
    return np.asarray(num(layout.degrees.pp) == 1.0)


def _quantised_tp(case: Case, layout: Layout) -> Mask:
    return np.asarray(num(layout.degrees.tp) == 1.0) if case.training.method == "qlora" else True


def _unknown_peaks(case: Case) -> tuple[str, ...]:
    """Return the types whose rate the computation needs and no source gives; none where the device lacks the type, which is another law."""
    gpu, precision = case.pool.gpu, case.training.precision
    if (precision == "bf16" and not gpu.bf16_supported) or (precision == "fp8" and not gpu.fp8_supported):
        return ()
    needed = ("bf16", "fp8") if precision == "fp8" else (precision,)
    return tuple(kind for kind in needed if kind not in {f"{known}" for known in gpu.peak_flop_per_second})


def _flash(case: Case, layout: Layout) -> Mask:
    capability = case.pool.gpu.compute_capability
    return case.training.attention != "flash" or capability is None or capability >= FLASH_CAPABILITY


def _idle(case: Case, layout: Layout) -> Mask:
    c = layout.choices
    if case.training.method != "inference":
        return True
    return c.recompute == "none" and c.offload == "none" and c.schedule == "1f1b"


def _tp_node(case: Case, layout: Layout) -> Mask:
    return np.asarray(num(layout.degrees.tp) <= tp_ranks(case))


def tp_ranks(case: Case) -> int:
    """Return how many GPUs the fast link of a server joins (all of a server's where none is stated)."""
    pool = case.pool
    return max(pool.gpus_per_node, pool.node.link_domain_size)


def _sequence_used(case: Case, layout: Layout) -> Mask:
    if layout.choices.sequence_parallel or not SUPPORT[case.framework].sequence_parallel or case.training.method == "inference":
        return True
    d = layout.degrees
    return np.asarray((num(d.tp) == 1.0) | ~divides(num(d.tp) * d.cp, float(case.training.seq)))


def _zero_ranks(case: Case, layout: Layout) -> Mask:
    c = layout.choices
    needed = 3 if "params" in c.offload or (c.offload != "none" and c.offload_target == "nvme") else 1 if c.offload != "none" else 0
    if c.zero <= max(needed, min(SUPPORT[case.framework].zero)):
        return True
    return np.asarray(num(layout.degrees.dp) * layout.degrees.cp > 1.0)


_REGIMES: dict[str, tuple[Framework, ...]] = {
    "megatron": ("megatron", "megatron-zb"),
    "megatron-bf16-gradients": ("megatron",),
    "megatron-precision-aware": ("megatron",),
    "megatron-precision-aware-bf16-gradients": ("megatron",),
    "deepspeed": ("deepspeed", "megatron-deepspeed"),
    "deepspeed-fp32-gradients": ("deepspeed", "megatron-deepspeed"),
    "bf16-optimizer": ("deepspeed", "megatron-deepspeed"),
    "fsdp": ("fsdp", "torchtitan"),
    "autocast": ("hf",),
    "pure-bf16": ("hf", "fsdp", "torchtitan", "litgpt"),
    "nanotron": ("nanotron",),
}
"""State regime -> frameworks that have it; one that is not listed belongs to none in particular."""


def _regime(case: Case, layout: Layout) -> Mask:
    return case.framework in _REGIMES.get(case.training.regime or "", (case.framework,))


RULES = (
    Rule(
        id="method",
        sentence="the framework trains by the method",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=(),
        holds=lambda case, layout: case.training.method in SUPPORT[case.framework].methods,
        given=lambda case, layout: f"method {case.training.method}: {case.framework} offers {', '.join(SUPPORT[case.framework].methods)}",
    ),
    Rule(
        id="precision",
        sentence="the framework trains in the type",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=(),
        holds=lambda case, layout: case.training.precision in SUPPORT[case.framework].precisions,
        given=lambda case, layout: (
            f"precision {case.training.precision}: {case.framework} offers {', '.join(SUPPORT[case.framework].precisions)}"
        ),
    ),
    Rule(
        id="optimizer",
        sentence="the framework has the optimizer",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=(),
        holds=lambda case, layout: case.training.method == "inference" or case.training.optimizer in SUPPORT[case.framework].optimizers,
        given=lambda case, layout: (
            f"optimizer {case.training.optimizer}: {case.framework} offers {', '.join(SUPPORT[case.framework].optimizers)}"
        ),
    ),
    Rule(
        id="regime",
        sentence="the framework keeps the states in the regime",
        source="cost_models/choices/precision.py, with the source of each regime",
        reads=(),
        holds=_regime,
        given=lambda case, layout: (
            f"regime {case.training.regime}: {case.framework} does not have it; {', '.join(_REGIMES[case.training.regime or ''])} do"
        ),
    ),
    Rule(
        id="torchtitan_model",
        sentence="torchtitan's decoders have rotary positions and RMS norms",
        source="torchtitan models/common/decoder.py (b5bcd76c)",
        reads=(),
        holds=lambda case, layout: case.architecture.positional == "rope" and case.architecture.norm == "rms",
        given=lambda case, layout: (
            f"{case.architecture.id} has {case.architecture.positional} positions and {case.architecture.norm} norms, which torchtitan's"
            " decoders do not"
        ),
        frameworks=("torchtitan",),
    ),
    Rule(
        id="pipeline_method",
        sentence="the framework runs the method in a pipeline",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=("pp",),
        holds=_pipeline_method,
        given=lambda case, layout: f"pp={show(layout.degrees.pp)} with method {case.training.method} in {case.framework}: pp must be 1",
        vary=("pp",),
    ),
    Rule(
        id="qlora_tp",
        sentence="4-bit base weights are not cut by tensor parallelism",
        source="bitsandbytes Params4bit (packed blocks); PEFT docs",
        reads=("tp",),
        holds=_quantised_tp,
        given=lambda case, layout: f"tp={show(layout.degrees.tp)} with method qlora: tp must be 1",
        vary=("tp",),
    ),
    Rule(
        id="bf16_device",
        sentence="bf16 needs hardware for it (compute capability 8.0 on NVIDIA)",
        source="DeepSpeed runtime/engine.py:1679; accelerate accelerator.py:572",
        reads=(),
        holds=lambda case, layout: case.training.precision != "bf16" or case.pool.gpu.bf16_supported,
        given=lambda case, layout: f"precision bf16: {case.pool.gpu.name} has no bf16 units; try --precision fp16",
    ),
    Rule(
        id="fp8_device",
        sentence="fp8 needs hardware for it (compute capability 8.9 on NVIDIA)",
        source="Transformer Engine pytorch/fp8.py (check_fp8_support)",
        reads=(),
        holds=lambda case, layout: case.training.precision != "fp8" or case.pool.gpu.fp8_supported,
        given=lambda case, layout: f"precision fp8: {case.pool.gpu.name} has no fp8 units; try --precision bf16",
    ),
    Rule(
        id="known_peak",
        sentence="the card's rate in the type of the computation is known, as no step can be timed without it",
        source="planner",
        reads=(),
        holds=lambda case, layout: not _unknown_peaks(case),
        given=lambda case, layout: (
            f"precision {case.training.precision}: no source gives the {' and '.join(_unknown_peaks(case))} rate of {case.pool.gpu.name};"
            f" known are {', '.join(case.pool.gpu.peak_flop_per_second)}"
        ),
    ),
    Rule(
        id="flash_device",
        sentence="FlashAttention-2 needs compute capability 8.0",
        source="flash-attn README (Ampere, Ada or Hopper)",
        reads=(),
        holds=_flash,
        given=lambda case, layout: (
            f"attention flash: {case.pool.gpu.name} has compute capability {case.pool.gpu.compute_capability}, below 8.0;"
            " try --attention eager"
        ),
    ),
    Rule(
        id="inference",
        sentence="inference recomputes and offloads nothing and runs no backward",
        source="planner",
        reads=("recompute", "offload", "schedule"),
        holds=_idle,
        given=lambda case, layout: (
            f"method inference with recompute={layout.choices.recompute}, offload={layout.choices.offload},"
            f" schedule={layout.choices.schedule}: none, none and 1f1b are meant"
        ),
    ),
    Rule(
        id="tp_node",
        sentence="tensor parallelism stays inside one fast-link domain (lifted by fixing tp)",
        source="planner; Narayanan et al. 2021 (arXiv 2104.04473), takeaway 1",
        reads=("tp",),
        holds=_tp_node,
        given=lambda case, layout: f"tp={show(layout.degrees.tp)} exceeds the {tp_ranks(case)} GPUs that the fast link joins",
        vary=("tp",),
        kind="preference",
    ),
    Rule(
        id="sequence_parallel_used",
        sentence="sequence parallelism is used wherever tp allows it: same traffic, less memory (lifted by fixing it or tp)",
        source="Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2",
        reads=("tp", "cp", "sequence_parallel"),
        holds=_sequence_used,
        given=lambda case, layout: f"tp={show(layout.degrees.tp)} without sequence parallelism",
        vary=("sequence_parallel",),
        kind="preference",
    ),
    Rule(
        id="cp_tokens",
        sentence="context parallelism leaves each rank at least 1,024 tokens of a sample (lifted by fixing cp)",
        source="planner",
        reads=("cp",),
        holds=lambda case, layout: np.asarray((num(layout.degrees.cp) == 1.0) | (case.training.seq / num(layout.degrees.cp) >= CP_TOKENS)),
        given=lambda case, layout: f"cp={show(layout.degrees.cp)} leaves fewer than 1,024 of {case.training.seq:,} tokens to a rank",
        vary=("cp",),
        kind="preference",
    ),
    Rule(
        id="expert_tensor_tp",
        sentence="experts are not cut finer than attention (lifted by fixing etp)",
        source="planner; Megatron-LM defaults etp to tp, and its MoE guide advises less",
        reads=("tp", "etp"),
        holds=lambda case, layout: np.asarray(num(layout.degrees.etp) <= num(layout.degrees.tp)),
        given=lambda case, layout: f"etp={show(layout.degrees.etp)} exceeds tp={show(layout.degrees.tp)}",
        vary=("etp",),
        kind="preference",
    ),
    Rule(
        id="zero_ranks",
        sentence="a ZeRO stage that shards needs more than one rank to shard over",
        source="planner",
        reads=("dp", "cp", "zero", "offload", "offload_target"),
        holds=_zero_ranks,
        given=lambda case, layout: f"zero={layout.choices.zero} with dp × cp = 1 shards nothing",
        vary=("zero",),
        kind="canonical",
    ),
    Rule(
        id="shard_group_whole",
        sentence="a shard group of all dp × cp ranks is no group",
        source="planner",
        reads=("dp", "cp", "shard_group"),
        holds=lambda case, layout: np.asarray(num(layout.degrees.shard_group) != num(layout.degrees.dp) * layout.degrees.cp),
        given=lambda case, layout: f"shard_group={show(layout.degrees.shard_group)} is all ranks; leave it out",
        kind="canonical",
    ),
    Rule(
        id="offload_target_used",
        sentence="an offload target is named only where something is offloaded",
        source="planner",
        reads=("offload", "offload_target"),
        holds=lambda case, layout: layout.choices.offload != "none" or layout.choices.offload_target == "host",
        given=lambda case, layout: "offload_target=nvme without offload",
        kind="canonical",
    ),
)
