"""Plans made by hand: real model, pool and layout, ledgers with round figures. They need no cost model and no search."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.catalog import load
from cost_models.layout import Choices, Degrees, Layout
from cost_models.ledger import Ledger, Term
from cost_models.result import Cost, MemoryCost, TimeCost
from cost_models.training import Training
from hardware.cluster import parse_cluster
from planner.plan import NearMiss, Plan, Remedy, Searched, SearchResult

GIB = 2.0**30
DEGREES = tuple(Degrees.__dataclass_fields__)


def make_memory(stages: int, scale: float = 1.0) -> MemoryCost:
    """Memory whose first stage peaks at 62 GiB × scale in the backward phase; every later stage needs half a GiB less."""
    index = np.arange(stages, dtype=np.float64)
    less = index * 0.5 * GIB

    def term(name: str, size: Any) -> Term:
        return Term(name=name, value=size, source="made by hand")

    states = (term("weights.layers", 7.0 * GIB * scale), term("optimizer.master", 14.0 * GIB * scale))
    backward = Ledger("bytes", (*states, term("activations.mlp", 30.0 * GIB * scale - less), term("gradients.main", 7.0 * GIB * scale)))
    load_phase = Ledger("bytes", states)
    overhead = Ledger("bytes", (term("overhead.reserved.cache", 1.5 * GIB * scale), term("overhead.device.context", 2.5 * GIB * scale)))
    allocated = 58.0 * GIB * scale - less
    device = allocated + 4.0 * GIB * scale
    return MemoryCost(
        stage_index=index,
        phases={"load": load_phase, "backward": backward},
        overhead=overhead,
        stage_allocated_bytes=allocated,
        stage_reserved_bytes=allocated + 1.5 * GIB * scale,
        stage_device_bytes=device,
        peak_allocated_bytes=np.max(allocated),
        peak_reserved_bytes=np.max(allocated) + 1.5 * GIB * scale,
        peak_device_bytes=np.max(device),
        host_bytes_per_node=np.float64(0.0),
        host=Ledger("bytes"),
        nvme_bytes_per_node=np.float64(0.0),
        regime="megatron: 2 weight + 4 main gradient + 4 master + 8 moments",
    )


def make_time(step_seconds: float) -> TimeCost:
    """Time of which compute is busy and exposed for 80 %, a hidden reduction is busy only, and the bubble takes the rest."""
    terms = (
        Term(name="compute.mlp", value=0.8 * step_seconds, source="roofline"),
        Term(name="dp.reduce", value=0.3 * step_seconds, exposed=0.0, source="alpha-beta"),
        Term(name="bubble.pipeline", value=0.2 * step_seconds, source="1F1B"),
    )
    return TimeCost(
        ledger=Ledger("seconds", terms),
        step_seconds=np.float64(step_seconds),
        tokens_per_second_per_gpu=np.float64(788.4),
        mfu=np.float64(0.4712),
        hfu=np.float64(0.4945),
        model_flop=np.float64(2.0e17),
        hardware_flop=np.float64(2.1e17),
        stage_forward_seconds=np.float64(0.1),
        stage_backward_seconds=np.float64(0.2),
        stage_weight_seconds=np.float64(0.1),
    )


def make_plan(
    model: str = "llama-3.1-8b", cluster: str = "32xA100-80G", *, step_seconds: float = 41.62, scale: float = 1.0, **given: Any
) -> Plan:
    """A plan; `given` holds fields of Degrees, Choices, Layout, Training and `verdict`."""
    degrees = {name: float(given.pop(name)) for name in DEGREES if name in given}
    layout_fields = {name: given.pop(name) for name in ("stage_layers", "stage_recompute") if name in given}
    choices = {name: given.pop(name) for name in Choices.__dataclass_fields__ if name in given}
    verdict = given.pop("verdict", "fits")
    layout = Layout(degrees=Degrees(**degrees), choices=Choices(**choices), **layout_fields)
    training = Training(**given)
    pool = parse_cluster(cluster).pools[0]
    replicas = layout.degrees.dp * layout.degrees.micro_batch
    return Plan(
        architecture=load(model),
        training=training,
        pool=pool,
        layout=layout,
        cost=Cost(memory=make_memory(int(layout.degrees.pp), scale), time=make_time(step_seconds)),
        verdict=verdict,
        margin_bytes=0.05 * pool.capacity_bytes,
        fit_probability=0.97,
        host_capacity_bytes=pool.node.host_memory_bytes,
        micro_batches=max(1, round(training.global_batch / replicas)),
        limited_by="compute 80 %",
        frameworks=("megatron",),
    )


def make_miss(plan: Plan) -> NearMiss:
    """What `plan` lacks."""
    return NearMiss(plan=plan, missing_bytes=112.8 * GIB, stage=0, phase="backward", bucket="optimizer", bucket_bytes=98.1 * GIB)


def make_search(*plans: Plan, status: str = "found") -> SearchResult:
    """The result of a search that found `plans`, or of one that found none."""
    by_rule = {} if plans else {"memory": 9310, "tp_heads": 12000}
    searched = Searched(layouts=412608, lawful=9310, feasible=len(plans), by_rule=by_rule, proof="every layout of the space was evaluated")
    if plans:
        return SearchResult(status="found" if status == "found" else "interrupted", plans=plans, searched=searched)
    over = make_plan(tp=8, pp=1, dp=4, scale=2.4, verdict="no", recompute="full")
    remedy = Remedy(change="LoRA r=16", flags="--method lora", plan=make_plan(tp=8, dp=4, method="lora"))
    return SearchResult(status="infeasible", plans=(), searched=searched, near_misses=(make_miss(over),), remedies=(remedy,))
