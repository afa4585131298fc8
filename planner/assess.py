"""Assess: judge the one layout that a request states, taking degree one and the framework's usual choices where it is silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout
from cost_models.numeric import num
from planner.case import Case
from planner.defaults import first_framework
from planner.evaluate import plan
from planner.misses import miss_of
from planner.over_software import SoftwareBand, over_software
from planner.plan import Broken, NearMiss, Plan
from planner.rules import broken
from planner.rules.frameworks import SUPPORT, searched
from planner.rules.rule import CHOICES, DEGREES

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.request import Resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """What one layout comes to."""

    case: Case
    layout: Layout
    plan: Plan | None
    """None where laws are broken."""
    broken: tuple[Broken, ...] = ()
    near_miss: NearMiss | None = None
    """What the plan lacks where its verdict is `no` or `tight`."""
    assumed: tuple[str, ...] = ()
    software: SoftwareBand | None = None
    """Where the request says that the software is unknown: then the plan's step time is that of one of many."""


def assess(resolved: Resolved) -> Assessment:
    """Judge the request's layout on the first pool of its cluster.

    Where no framework is asked for, the first whose laws the layout keeps is taken, and named in `assumed`: the usual ones first, then
    those that run a rare schedule asked for.
    """
    named = resolved.frameworks
    usual = first_framework(resolved.training.method, resolved.cluster.pools[0].count)
    tried: tuple[Framework, ...] = named or tuple(dict.fromkeys((usual, *searched(resolved.fixed.get("schedule")))))
    judged = [(case := resolved.case(framework=f), layout_of(case), broken(case, layout_of(case))) for f in tried]
    case, layout, laws = min(judged, key=lambda j: len(j[2]))
    asked = resolved.request
    if asked is not None and (asked.stage_layers is not None or asked.stage_recompute is not None):
        layout = replace(layout, stage_layers=asked.stage_layers, stage_recompute=asked.stage_recompute)
        laws = (*laws, *_stage_laws(case, layout))
    assumed = (*_assumed(case, layout), *(() if named else (f"framework {case.framework}",)))
    if laws:
        return Assessment(case=case, layout=layout, plan=None, broken=laws, assumed=assumed)
    made = plan(case, layout)
    miss = None if made.fits else miss_of(made, case.host_limit_bytes)
    unknown = asked is not None and asked.framework == "unknown"
    band = over_software(resolved, layout) if unknown else None
    return Assessment(case=case, layout=layout, plan=made, near_miss=miss, assumed=assumed, software=band)


def _stage_laws(case: Case, layout: Layout) -> list[Broken]:
    """Return the laws that stated stages break: one number a stage, all layers held once, no more recomputed than held."""
    pp, layers = int(num(layout.degrees.pp)), case.architecture.layers
    held, again = layout.stage_layers, layout.stage_recompute
    said = [
        f"{name}={','.join(f'{n}' for n in numbers)} are {len(numbers)} numbers; pp={pp} needs {pp}"
        for name, numbers in (("stage_layers", held), ("stage_recompute", again))
        if numbers is not None and len(numbers) != pp
    ]
    if held is not None and (sum(held) != layers or min(held, default=0) < 1):
        said.append(f"stage_layers sum to {sum(held)}; {case.architecture.id} has {layers} layers, at least one for each stage")
    if again is not None and (min(again, default=0) < 0 or max(again, default=0) > max(held or (layers,))):
        said.append(f"stage_recompute={','.join(f'{n}' for n in again)}: a stage recomputes from 0 to all of its layers")
    if again is not None and layout.choices.recompute != "full":
        said.append(f"stage_recompute counts layers of full recompute; recompute={layout.choices.recompute}: try recompute=full")
    return [Broken(rule="stages", message=text) for text in said]


def layout_of(case: Case) -> Layout:
    """Return the layout that the fixed fields state: other degrees 1, data parallel over the GPUs that are left, micro-batch 1,
    and the framework's usual choices."""
    degrees: dict[str, Any] = {name: float(v) for name, v in case.given.items() if name in DEGREES}
    if "dp" not in degrees:
        used = degrees.get("tp", 1.0) * degrees.get("pp", 1.0) * degrees.get("cp", 1.0)
        degrees["dp"] = float(max(1, int(case.world // used)))
    orders = SUPPORT[case.framework].orders(experts=case.architecture.moe is not None)
    degrees.setdefault("rank_order", float(RANK_ORDERS.index(orders[0])))
    made = Degrees(**degrees)
    choices = {**_usual(case, made), **{n: tuple(v) if n == "recompute_modules" else v for n, v in case.given.items() if n in CHOICES}}
    return Layout(degrees=made, choices=Choices(**choices))


def _usual(case: Case, d: Degrees) -> dict[str, Any]:
    support = SUPPORT[case.framework]
    tp, cp = float(num(d.tp)), float(num(d.cp))
    inference = case.training.method == "inference"
    return {
        "zero": _usual_zero(case, d),
        "sequence_parallel": support.sequence_parallel and tp > 1 and case.training.seq % (tp * cp) == 0 and not inference,
        "schedule": "interleaved" if float(num(d.vpp)) > 1 else "1f1b" if "1f1b" in support.schedules else support.schedules[0],
        "recompute": "full" if _checkpointed(case) else "none",
    }


def _checkpointed(case: Case) -> bool:
    """Adapters over Hugging Face models are trained with gradient checkpointing where nobody says otherwise: peft's k-bit preparation
    turns it on (peft utils/other.py, use_gradient_checkpointing=True), as do trl (sft_config.py), axolotl, LLaMA-Factory and ms-swift."""
    return case.training.method in ("lora", "qlora") and case.framework in ("hf", "fsdp", "deepspeed")


def _usual_zero(case: Case, d: Degrees) -> int:
    """ZeRO-1 in Megatron-LM (its distributed optimizer), 3 in FSDP, 2 in DeepSpeed without a pipeline; more where offload needs it."""
    support, offload = SUPPORT[case.framework], str(case.given.get("offload", "none"))
    nvme = offload != "none" and case.given.get("offload_target") == "nvme"
    if "params" in offload or nvme or case.framework in ("torchtitan", "fsdp"):
        wanted = 3
    elif float(num(d.dp)) * float(num(d.cp)) == 1.0 and offload == "none":
        wanted = 0
    else:
        wanted = 2 if case.framework == "deepspeed" and float(num(d.pp)) == 1.0 else 1
    return max((z for z in support.zero if z <= wanted), default=min(support.zero))


def _assumed(case: Case, layout: Layout) -> list[str]:
    d, said = layout.degrees, []
    if "dp" not in case.fixed and float(num(d.dp)) > 1:
        said.append(f"dp {int(num(d.dp))} (the GPUs that are left)")
    if "micro_batch" not in case.fixed:
        said.append("micro-batch 1")
    if "zero" not in case.fixed and layout.choices.zero:
        said.append(f"ZeRO-{layout.choices.zero}")
    if "recompute" not in case.fixed and layout.choices.recompute != "none":
        said.append(f"recompute {layout.choices.recompute}")
    if "sequence_parallel" not in case.fixed and np.any(num(d.tp) > 1):
        said.append(f"sequence parallel {'on' if layout.choices.sequence_parallel else 'off'}")
    return said
