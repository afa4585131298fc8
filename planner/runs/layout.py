"""The layout of a row: degrees, sharding, recompute, offload and how the layers are dealt to the stages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout, Zero
from planner.rules.frameworks import SUPPORT
from planner.runs.assumed import Assumptions, Unfit
from planner.runs.pipeline import held_layers
from planner.runs.training import since

if TYPE_CHECKING:
    from planner.runs.frameworks import Habits
    from planner.runs.notes import Stated
    from planner.runs.row import Run

MODULES = {
    "norm": "layernorm",
    "layernorm": "layernorm",
    "act": "moe_act",
    "moe_act": "moe_act",
    "mlp": "mlp",
    "moe": "moe",
    "up_proj": "mla_up_proj",
    "mla_up_proj": "mla_up_proj",
    "core_attn": "core_attn",
    "shared_experts": "shared_experts",
}
"""Names that sources use -> modules that `selective` drops."""


def data_parallel(run: Run, assumed: Assumptions) -> int:
    """Return dp, from the law tp × pp × cp × dp = GPUs. Raises Unfit where the row contradicts it."""
    assert run.num_gpus is not None and run.tp is not None and run.pp is not None
    cp = run.cp or 1
    share = run.tp * run.pp * cp
    if run.num_gpus % share:
        raise Unfit(f"contradiction: tp {run.tp} × pp {run.pp} × cp {cp} does not divide {run.num_gpus} GPUs")
    dp = run.num_gpus // share
    if run.dp is None:
        assumed.note("dp", dp, "num_gpus / (tp · pp · cp)")
    elif run.dp != dp:
        raise Unfit(f"contradiction: dp {run.dp} × tp {run.tp} × pp {run.pp} × cp {cp} is not {run.num_gpus} GPUs")
    return dp


def layout(run: Run, said: Stated, habits: Habits, assumed: Assumptions) -> Layout:
    """Return the layout that `run` states."""
    assert run.tp is not None and run.pp is not None and run.micro_batch is not None and run.layers is not None
    dp = data_parallel(run, assumed)
    vpp, held = held_layers(run, said, habits.pipeline_layouts, assumed)
    zero, group = _sharding(run, said, habits, dp, assumed)
    recompute, modules, depth = _recompute(run, said, habits, zero, dp, assumed)
    offload, kept = _offload(run, habits, recompute, assumed)
    ep = run.ep or 1
    degrees = Degrees(
        tp=float(run.tp),
        pp=float(run.pp),
        vpp=float(vpp),
        cp=float(run.cp or 1),
        ep=float(ep),
        etp=float(_expert_tp(run, habits, assumed)),
        dp=float(dp),
        micro_batch=float(run.micro_batch),
        shard_group=float(group),
        recompute_layers=float(depth),
        activation_offload=kept,
        rank_order=float(_rank_order(run, said, habits)),
    )
    choices = Choices(
        zero=zero,
        sequence_parallel=_sequence_parallel(run, habits, assumed),
        schedule="interleaved" if vpp > 1 and run.pp > 1 else "1f1b",
        recompute=recompute,
        recompute_modules=modules,
        offload=offload,
    )
    return Layout(degrees=degrees, choices=choices, stage_layers=held)


def _expert_tp(run: Run, habits: Habits, assumed: Assumptions) -> int:
    """Tensor parallel size of the experts: Megatron follows tp where it is not given, its recipes may not."""
    if run.etp is not None:
        return run.etp
    if (run.experts or 1) > 1 and (run.tp or 1) > 1:
        if habits.expert_tp is not None:
            assumed.note("etp", habits.expert_tp, "of the recipes")
            return habits.expert_tp
        assumed.note("etp", run.tp, "experts follow tp")
        return run.tp or 1
    return 1


def _sharding(run: Run, said: Stated, habits: Habits, dp: int, assumed: Assumptions) -> tuple[Zero, int]:
    """ZeRO stage and the ranks it shards over (0: all)."""
    name, _, count = run.sharding.partition(":")
    group = int(count) if count else 0
    instances = said.argument("num-distributed-optimizer-instances") or 1
    if instances > 1:
        group = max(1, dp * (run.cp or 1) // instances)
    stages: dict[str, Zero] = {"none": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
    if name in stages:
        if name == "hsdp" and not group and dp > 1:
            group = min(dp, run.gpus_per_node or 8)
            assumed.note("sharding", f"hsdp:{group}", "within a server")
        return stages[name], group
    zero = habits.zero_multi if habits.zero_multi is not None and dp > 1 else habits.zero
    if habits.zero1_since and not since(run, habits.zero1_since):
        zero = 0
    if dp > 1:
        assumed.note("sharding", f"zero{zero}" if zero else "none", "the framework's default")
    return zero, group


def _rank_order(run: Run, said: Stated, habits: Habits) -> int:
    """Place in RANK_ORDERS: what the row's Megatron arguments say, else the framework's usual order."""
    if said.switch("use-tp-pp-dp-mapping"):
        return 1
    return RANK_ORDERS.index(SUPPORT[habits.runs_as].orders(experts=(run.experts or 1) > 1)[0])


def _sequence_parallel(run: Run, habits: Habits, assumed: Assumptions) -> bool:
    if run.sequence_parallel is not None:
        return run.sequence_parallel
    used = since(run, habits.sequence_parallel_since)
    if (run.tp or 1) > 1:
        assumed.note("sequence_parallel", "yes" if used else "no", "by framework and date")
    return used


def _recompute(run: Run, said: Stated, habits: Habits, zero: Zero, dp: int, assumed: Assumptions) -> tuple[Any, tuple[str, ...], int]:
    """Mode, modules of `selective`, and the layers of a stage that `full` recomputes (-1: all)."""
    mode: str = run.recompute
    part = float(said.facts.get("recompute_fraction", "0"))
    if not mode and part:
        mode = "full"
    elif not mode:
        mode = habits.recompute_sharded if habits.recompute_sharded and zero == 3 and dp > 1 else habits.recompute
        assumed.note("recompute", mode, "the framework's default")
    per_stage = -(-(run.layers or 1) // (run.pp or 1))
    every = said.integer("recompute_every")
    if mode == "selective" and said.facts.get("recompute_policy") == "save_qkv_proj":
        return "full", ("core_attn",), -1
    if mode == "selective" and every:
        return "full", ("core_attn",), -(-per_stage // every)
    depth = said.integer("recompute_layers") or 0
    if part and mode == "full" and not depth:
        depth = int(per_stage * part)
        mode = mode if depth else "none"
    if depth and mode != "none":
        return "full", ("core_attn",), min(depth, per_stage)
    return mode, modules_of(said, habits.recompute_modules), -1


def modules_of(said: Stated, usual: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules that `selective` recomputes; where none are named those of the recipe (`usual`), else the attention core."""
    text = said.facts.get("recompute_modules") or said.arguments.get("recompute-modules", "")
    words = re.split(r"[\s,+]+", text.strip())
    known = tuple(dict.fromkeys(MODULES[word] for word in words if word in MODULES))
    return known or usual or ("core_attn",)


def _offload(run: Run, habits: Habits, recompute: str, assumed: Assumptions) -> tuple[Any, float]:
    """What of the states lives on the host, and the part of the layers whose activations do."""
    if not run.offload and habits.offload:
        assumed.note("offload", habits.offload, "of the recipes")
    parts = [part for part in (run.offload or habits.offload).split("+") if part and part != "none"]
    kept = habits.activation_offload if not run.offload and recompute == "full" else 0.0
    if not run.offload and habits.offloaded_layers:
        kept = min(1.0, habits.offloaded_layers / (run.layers or 1))
    for part in parts:
        name, _, value = part.partition(":")
        if name == "activations":
            kept = float(value) if value else 1.0
    states = {part for part in parts if part in ("optimizer", "params")}
    return {0: "none", 2: "optimizer+params"}.get(len(states), next(iter(states), "none")), kept
