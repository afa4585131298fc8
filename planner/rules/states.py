"""Laws about ZeRO, hybrid sharding, offload and recompute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from planner.rules.frameworks import SUPPORT, Support
from planner.rules.rule import Mask, Rule, divides, show

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case

_MOE_MODULES = {"moe", "moe_act", "shared_experts"}
_MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
_DELAYED = {"moe_act", "layernorm"}


def _support(case: Case) -> Support:
    return SUPPORT[case.framework]


def _words(values: tuple[object, ...]) -> str:
    return ", ".join(str(v) for v in values) or "none"


def _zero_pp(case: Case, layout: Layout) -> Mask:
    if layout.choices.zero in _support(case).zero_with_pp:
        return True
    return np.asarray(num(layout.degrees.pp) == 1.0)


def _shard_group(case: Case, layout: Layout) -> Mask:
    d = layout.degrees
    group, ranks = num(d.shard_group), num(d.dp) * d.cp
    return np.asarray((group == 0.0) | divides(np.maximum(group, 1.0), ranks))


def _shard_experts(case: Case, layout: Layout) -> Mask:
    if case.architecture.moe is None:
        return True
    d = layout.degrees
    group = num(d.shard_group)
    instances = num(d.dp) * d.cp / np.maximum(group, 1.0)
    return np.asarray((group == 0.0) | divides(instances, num(d.dp) * d.cp * d.tp / (num(d.ep) * d.etp)))


def _shard_zero(case: Case, layout: Layout) -> Mask:
    if layout.choices.zero in _support(case).shard_group_zero:
        return True
    return np.asarray(num(layout.degrees.shard_group) == 0.0)


def _offload_zero(case: Case, layout: Layout) -> Mask:
    offload, zero = layout.choices.offload, layout.choices.zero
    return offload == "none" or zero >= (3 if "params" in offload else 1)


def _nvme(case: Case, layout: Layout) -> Mask:
    c = layout.choices
    return c.offload == "none" or c.offload_target == "host" or c.zero in _support(case).nvme_zero


def _offload_optimizer(case: Case, layout: Layout) -> Mask:
    able = _support(case).offload_optimizers
    return "optimizer" not in layout.choices.offload or not able or case.training.optimizer in able


def _fraction(case: Case, layout: Layout) -> Mask:
    if layout.choices.zero in _support(case).partial_offload_zero and "optimizer" in layout.choices.offload:
        return True
    return np.asarray(num(layout.degrees.offload_fraction) == 1.0)


def _activation_offload(case: Case, layout: Layout) -> Mask:
    part = num(layout.degrees.activation_offload)
    if not _support(case).activation_offload:
        return np.asarray(part == 0.0)
    if case.framework != "megatron":
        return True
    plain = layout.choices.recompute == "none"
    return np.asarray((part == 0.0) | ((num(layout.degrees.pp) == 1.0) & plain))


def _recompute_layers(case: Case, layout: Layout) -> Mask:
    k = num(layout.degrees.recompute_layers)
    if layout.choices.recompute == "full" and _support(case).recompute_layers:
        return np.asarray(k <= case.architecture.layers)
    return np.asarray(k < 0.0)


def _recompute_layers_given(case: Case, layout: Layout) -> str:
    k = show(layout.degrees.recompute_layers)
    if layout.choices.recompute != "full":
        return f"recompute_layers={k} with recompute={layout.choices.recompute}: it counts the layers of full recompute"
    if not _support(case).recompute_layers:
        return f"recompute_layers={k}: {case.framework} recomputes all layers or none"
    return f"recompute_layers={k} exceeds the {case.architecture.layers} layers of {case.architecture.id}"


def _modules(case: Case, layout: Layout) -> Mask:
    if layout.choices.recompute != "selective":
        return True
    named, a = set(layout.choices.recompute_modules), case.architecture
    if not named or named - set(_MODULES):
        return False
    return (a.moe is not None or not named & _MOE_MODULES) and (a.mla is not None or "mla_up_proj" not in named)


def _one_of(field: str, allowed: Callable[[Support], tuple[object, ...]], noun: str) -> Rule:
    """Return the rule that a choice is one of what the framework offers."""

    def given(case: Case, layout: Layout) -> str:
        return f"{field}={getattr(layout.choices, field)}: {case.framework} offers {noun} {_words(allowed(_support(case)))}"

    return Rule(
        id=f"{field}_framework",
        sentence=f"the framework offers the {noun}",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=(field,),
        holds=lambda case, layout: getattr(layout.choices, field) in allowed(_support(case)),
        given=given,
    )


def _axis(field: str) -> Rule:
    """Return the rule that an axis exceeds one only where the framework has it."""
    return Rule(
        id=f"{field}_framework",
        sentence=f"{field} exceeds one only in frameworks that have it",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=(field,),
        holds=lambda case, layout: True if field in _support(case).axes else np.asarray(num(getattr(layout.degrees, field)) == 1.0),
        given=lambda case, layout: f"{field}={show(getattr(layout.degrees, field))}: {case.framework} has no {field}; it must be 1",
    )


RULES = (
    *(_axis(field) for field in ("tp", "pp", "vpp", "cp", "ep", "etp")),
    _one_of("zero", lambda s: s.zero, "ZeRO stages"),
    _one_of("recompute", lambda s: s.recompute, "recompute"),
    _one_of("offload", lambda s: s.offload, "offload"),
    Rule(
        id="sequence_parallel_framework",
        sentence="the framework has sequence parallelism",
        source="table of planner/rules/frameworks.py, with the source of each row",
        reads=("sequence_parallel",),
        holds=lambda case, layout: not layout.choices.sequence_parallel or _support(case).sequence_parallel,
        given=lambda case, layout: f"{case.framework} has no sequence parallelism",
    ),
    Rule(
        id="zero_pipeline",
        sentence="a pipeline goes with the ZeRO stages that leave gradients whole (0 and 1) in DeepSpeed and Megatron-LM",
        source="DeepSpeed runtime/pipe/engine.py:76",
        reads=("pp", "zero"),
        holds=_zero_pp,
        given=lambda case, layout: (
            f"zero={layout.choices.zero} with pp={show(layout.degrees.pp)}: beside a pipeline {case.framework} runs ZeRO"
            f" {_words(_support(case).zero_with_pp)}"
        ),
        vary=("zero", "pp"),
    ),
    Rule(
        id="shard_group",
        sentence="the shard group divides the dp × cp ranks",
        source="Megatron-LM core/parallel_state.py:922; DeepSpeed utils/groups.py:880, runtime/zero/mics_utils.py:78",
        reads=("dp", "cp", "shard_group"),
        holds=_shard_group,
        given=lambda case, layout: (
            f"shard_group={show(layout.degrees.shard_group)} does not divide dp × cp = {show(num(layout.degrees.dp) * layout.degrees.cp)}"
        ),
        vary=("shard_group",),
    ),
    Rule(
        id="shard_group_experts",
        sentence="as many shard groups as dp × cp has also divide the replicas of an expert",
        source="Megatron-LM core/parallel_state.py:922, 1447",
        reads=("tp", "dp", "cp", "ep", "etp", "shard_group"),
        holds=_shard_experts,
        given=lambda case, layout: (
            f"shard_group={show(layout.degrees.shard_group)} makes more groups than the expert replicas can be divided into"
        ),
        vary=("shard_group",),
        frameworks=("megatron",),
    ),
    Rule(
        id="shard_group_zero",
        sentence="a shard group needs a ZeRO stage that shards in groups",
        source="DeepSpeed utils/groups.py:880; PyTorch HYBRID_SHARD; Megatron-LM num_distributed_optimizer_instances",
        reads=("shard_group", "zero"),
        holds=_shard_zero,
        given=lambda case, layout: (
            f"shard_group={show(layout.degrees.shard_group)} with zero={layout.choices.zero}: {case.framework} shards in groups at ZeRO"
            f" {_words(_support(case).shard_group_zero)}"
        ),
        vary=("zero", "shard_group"),
    ),
    Rule(
        id="offload_zero",
        sentence="offload works on ZeRO's shards: the optimizer's from stage 1, the parameters' at stage 3",
        source="DeepSpeed runtime/zero/offload_config.py; Megatron-LM core/optimizer/optimizer_config.py:434; PyTorch CPUOffloadPolicy",
        reads=("offload", "zero"),
        holds=_offload_zero,
        given=lambda case, layout: f"offload={layout.choices.offload} with zero={layout.choices.zero} needs a higher ZeRO stage",
        vary=("zero",),
    ),
    Rule(
        id="offload_nvme",
        sentence="offload to NVMe needs ZeRO-3 (ZeRO-Infinity)",
        source="DeepSpeed runtime/zero/offload_config.py, partition_parameters.py:1203",
        reads=("offload", "offload_target", "zero"),
        holds=_nvme,
        given=lambda case, layout: (
            f"offload_target=nvme with zero={layout.choices.zero} in {case.framework} needs ZeRO {_words(_support(case).nvme_zero)}"
        ),
        vary=("zero", "offload_target"),
    ),
    Rule(
        id="offload_optimizer",
        sentence="the optimizer runs on the host only where it has a CPU kernel",
        source="DeepSpeed runtime/engine.py:2039; Megatron-LM optimizer_config.py:434",
        reads=("offload",),
        holds=_offload_optimizer,
        given=lambda case, layout: (
            f"optimizer {case.training.optimizer} cannot run on the host in {case.framework}, which offers"
            f" {_words(_support(case).offload_optimizers)}"
        ),
        vary=("offload",),
    ),
    Rule(
        id="offload_fraction",
        sentence="a part of the optimizer is offloaded only in Megatron-LM, and in DeepSpeed at ZeRO-3",
        source="DeepSpeed runtime/zero/config.py:389; Megatron-LM optimizer_offload_fraction",
        reads=("offload", "zero", "offload_fraction"),
        holds=_fraction,
        given=lambda case, layout: (
            f"offload fraction {show(layout.degrees.offload_fraction)} with offload={layout.choices.offload}, zero={layout.choices.zero}"
            f" in {case.framework}: it must be 1"
        ),
        vary=("offload_fraction",),
    ),
    Rule(
        id="activation_offload",
        sentence="offloading activations works without pipeline and recompute in Megatron-LM, and not at all in torchtitan",
        source="Megatron-LM core/transformer/transformer_config.py:1887-1900",
        reads=("activation_offload", "pp", "recompute"),
        holds=_activation_offload,
        given=lambda case, layout: (
            f"activations offloaded with pp={show(layout.degrees.pp)}, recompute={layout.choices.recompute} in {case.framework}"
        ),
        vary=("activation_offload", "recompute"),
    ),
    Rule(
        id="recompute_layers",
        sentence="the number of recomputed layers belongs to full recompute, where the framework can stop after k layers",
        source="Megatron-LM core/transformer/transformer_config.py:1903-1932",
        reads=("recompute_layers", "recompute"),
        holds=_recompute_layers,
        given=_recompute_layers_given,
        vary=("recompute_layers",),
    ),
    Rule(
        id="recompute_modules",
        sentence="selective recompute names modules that the model has",
        source="Megatron-LM core/transformer/transformer_config.py:1903-1932",
        reads=("recompute", "recompute_modules"),
        holds=_modules,
        given=lambda case, layout: (
            f"recompute modules {_words(layout.choices.recompute_modules)}: {case.architecture.id} can recompute"
            f" {_words(tuple(m for m in _MODULES if _has(case, m)))}"
        ),
    ),
    Rule(
        id="recompute_fp8",
        sentence="fp8 with delayed scaling does not recompute norms and expert activations",
        source="Megatron-LM core/transformer/transformer_config.py:1530, 2003",
        reads=("recompute", "recompute_modules"),
        holds=lambda case, layout: (
            case.training.precision != "fp8"
            or layout.choices.recompute != "selective"
            or not _DELAYED & set(layout.choices.recompute_modules)
        ),
        given=lambda case, layout: f"recompute modules {_words(layout.choices.recompute_modules)} with fp8",
        frameworks=("megatron",),
    ),
)


def _has(case: Case, module: str) -> bool:
    a = case.architecture
    return (a.moe is not None or module not in _MOE_MODULES) and (a.mla is not None or module != "mla_up_proj")
