"""Plans and results as JSON documents (planner.schema)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.choices.precision import regime_of
from cost_models.layout import RANK_ORDERS
from cost_models.numeric import num
from cost_models.result import PHASES, MemoryCost
from cost_models.transformer import count_parameters
from planner import schema
from planner.certificate_schema import CertificateRecord
from planner.ranking import leaders
from planner.software_schema import SoftwareBandRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost_models.architecture import Architecture
    from cost_models.layout import Layout
    from cost_models.training import Training
    from hardware.spec import Gpu, Node, Pool
    from planner.explanation_schema import ExplanationRecord
    from planner.length_study import LengthReport, LengthStep
    from planner.mixed_schema import MixedRecord
    from planner.over_software import SoftwareBand
    from planner.plan import Certificate, NearMiss, Plan, Remedy, Searched, SearchResult

MFU = (
    "model FLOP per token = 6 x parameters used per token (token embedding left out, head included) "
    "+ 12 x layers x heads x head size x sequence, without recompute, over the dense peak of the type; HFU adds recompute"
)


def model_record(a: Architecture) -> schema.ModelRecord:
    """Return a model with its exact counts."""
    counts = count_parameters(a)
    return schema.ModelRecord(
        id=a.id,
        aliases=list(a.aliases),
        family=a.family,
        parameters=counts.parameters,
        active_parameters=counts.active_parameters,
        mtp_parameters=counts.mtp_parameters,
        vision_parameters=a.vision_parameters,
        layers=a.layers,
        hidden=a.hidden,
        ffn_hidden=a.ffn_hidden,
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
        vocab=a.vocab,
        experts=None if a.moe is None else a.moe.num_experts,
        topk=None if a.moe is None else a.moe.topk,
        max_positions=a.max_positions,
        source=a.source,
    )


def training_record(t: Training, layout: Layout) -> schema.TrainingRecord:
    """Return the training; the regime depends on the layout's choices."""
    return schema.TrainingRecord(
        method=t.method,
        seq=t.seq,
        global_batch=t.global_batch,
        precision=t.precision,
        optimizer=t.optimizer,
        attention=t.attention,
        framework=t.framework,
        regime=regime_of(t, layout.choices).label,
        lora_rank=t.lora_rank if t.method in ("lora", "qlora") else None,
        mtp=t.mtp,
        software_date=t.date or None,
        compile=t.compile,
        stack=t.extra,
    )


def layout_record(layout: Layout, accumulation: int) -> schema.LayoutRecord:
    """Return a single layout."""
    d, c = layout.degrees, layout.choices
    axes = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "shard_group", "recompute_layers", "micro_batch")
    return schema.LayoutRecord(
        **{axis: int(num(getattr(d, axis))) for axis in axes},
        zero=c.zero,
        sequence_parallel=c.sequence_parallel,
        schedule=c.schedule,
        recompute=c.recompute,
        recompute_modules=list(c.recompute_modules) if c.recompute == "selective" else [],
        offload=c.offload,
        offload_target=c.offload_target,
        rank_order=RANK_ORDERS[int(num(d.rank_order))],
        offload_fraction=float(num(d.offload_fraction)),
        activation_offload=float(num(d.activation_offload)),
        accumulation=accumulation,
        stage_layers=None if layout.stage_layers is None else list(layout.stage_layers),
        stage_recompute=None if layout.stage_recompute is None else list(layout.stage_recompute),
    )


def pool_record(pool: Pool) -> schema.PoolRecord:
    """Return the GPUs of a plan."""
    return schema.PoolRecord(gpu=pool.gpu.id, node=pool.node.id, count=pool.count, gpus_per_node=pool.gpus_per_node, nodes=pool.nodes)


def phase_of(memory: MemoryCost, stage: int) -> str:
    """Return the phase at which evaluated stage `stage` (position in the arrays) peaks."""
    names = tuple(memory.phases)
    return names[int(num(memory.stage_phase).reshape(-1)[stage])] if names else PHASES[0]


def bucket_bytes(memory: MemoryCost, stage: int) -> dict[str, float]:
    """Return bucket -> bytes of evaluated stage `stage` at its highest phase, `overhead` last; they sum to its device bytes."""
    ledger = memory.phases[phase_of(memory, stage)]
    held = {name: _at(ledger.bucket(name), stage) for name in ledger.buckets()}
    return {**held, "overhead": held.get("overhead", 0.0) + _at(memory.overhead.total, stage)}


def _at(value: object, stage: int) -> float:
    """Value of one evaluated stage: stage arrays have shape (K,), terms that are equal on all stages ()."""
    flat = num(value).reshape(-1)
    return float(flat[stage if flat.size > 1 else 0])


def stage_records(memory: MemoryCost) -> list[schema.StageRecord]:
    """Return all evaluated stages."""
    index = np.atleast_1d(num(memory.stage_index))
    seen: dict[int, schema.StageRecord] = {}
    for k, position in enumerate(index):
        buckets = bucket_bytes(memory, k)
        seen[int(position)] = schema.StageRecord(
            stage=int(position),
            phase=phase_of(memory, k),
            allocated_bytes=_at(memory.stage_allocated_bytes, k),
            reserved_bytes=_at(memory.stage_reserved_bytes, k),
            device_bytes=_at(memory.stage_device_bytes, k),
            buckets=schema.BucketsRecord(
                **{field: buckets.get(field.removesuffix("_bytes"), 0.0) for field in schema.BucketsRecord.model_fields}
            ),
        )
    return list(seen.values())


def memory_record(plan: Plan) -> schema.MemoryRecord:
    """Return the memory of a plan."""
    m = plan.cost.memory
    return schema.MemoryRecord(
        capacity_bytes=plan.pool.capacity_bytes,
        margin_bytes=plan.margin_bytes,
        peak_allocated_bytes=float(num(m.peak_allocated_bytes)),
        peak_reserved_bytes=float(num(m.peak_reserved_bytes)),
        peak_device_bytes=float(num(m.peak_device_bytes)),
        confidence=plan.confidence,
        interval_80_bytes=plan.memory_interval_bytes,
        fit_probability=plan.fit_probability,
        peak_stage=int(num(m.peak_stage)),
        stages=stage_records(m),
        host_bytes_per_node=float(num(m.host_bytes_per_node)),
        host_capacity_bytes=plan.host_capacity_bytes,
        nvme_bytes_per_node=float(num(m.nvme_bytes_per_node)),
    )


def time_record(plan: Plan) -> schema.TimeRecord:
    """Return the time of a step; the terms' exposed seconds sum to it."""
    time = plan.cost.time
    terms = [
        schema.TimeTermRecord(
            name=t.name,
            seconds=float(num(t.value).reshape(-1)[0]),
            exposed_seconds=float(num(t.value if t.exposed is None else t.exposed).reshape(-1)[0]),
            source=t.source,
        )
        for t in time.ledger.terms
    ]
    return schema.TimeRecord(
        step_seconds=float(num(time.step_seconds)),
        interval_80_seconds=plan.step_interval_seconds,
        run_class=plan.run_class,
        terms=terms,
        tokens_per_second_per_gpu=float(num(time.tokens_per_second_per_gpu)),
        mfu=float(num(time.mfu)),
        hfu=float(num(time.hfu)),
        model_flop=float(num(time.model_flop)),
        hardware_flop=float(num(time.hardware_flop)),
        mfu_definition=MFU,
        limited_by=plan.limited_by,
    )


def plan_record(plan: Plan) -> schema.PlanRecord:
    """Return a plan."""
    return schema.PlanRecord(
        model=model_record(plan.architecture),
        training=training_record(plan.training, plan.layout),
        hardware=pool_record(plan.pool),
        layout=layout_record(plan.layout, plan.micro_batches),
        fits=plan.fits,
        verdict=plan.verdict,
        memory=memory_record(plan),
        time=time_record(plan),
        frameworks=list(plan.frameworks),
        warnings=list(plan.warnings),
    )


def near_miss_record(miss: NearMiss) -> schema.NearMissRecord:
    """Return a near miss."""
    return schema.NearMissRecord(
        missing_bytes=miss.missing_bytes,
        stage=miss.stage,
        phase=miss.phase,
        bucket=miss.bucket,
        bucket_bytes=miss.bucket_bytes,
        where=miss.where,
        plan=plan_record(miss.plan),
    )


def remedy_record(remedy: Remedy) -> schema.RemedyRecord:
    """Return a remedy."""
    return schema.RemedyRecord(change=remedy.change, flags=remedy.flags, plan=plan_record(remedy.plan))


def searched_record(searched: Searched) -> schema.SearchedRecord:
    """Return how far the search looked."""
    return schema.SearchedRecord(
        layouts=searched.layouts,
        lawful=searched.lawful,
        feasible=searched.feasible,
        excluded=dict(sorted(searched.by_rule.items())),
        proof=searched.proof,
        certificate=None if searched.certificate is None else certificate_record(searched.certificate),
    )


def certificate_record(certificate: Certificate) -> CertificateRecord:
    """Return what a search proves."""
    return CertificateRecord(**{name: getattr(certificate, name) for name in CertificateRecord.model_fields})


def leaders_record(plans: Sequence[Plan]) -> schema.LeadersRecord | None:
    """Return which plans are as fast as the first; None for no plans."""
    if not plans:
        return None
    found = leaders(plans)
    return schema.LeadersRecord(count=found.count, spread_fraction=found.spread_fraction, least_memory=found.least_memory)


def lengths_record(report: LengthReport) -> schema.LengthsRecord:
    """Return the typical and the worst micro-batch, and other ways of batching."""
    return schema.LengthsRecord(
        samples=report.lengths.samples,
        mean_tokens=report.lengths.mean,
        longest_tokens=report.lengths.longest,
        padding_fraction=report.padding_fraction,
        typical=_length_step(report.typical),
        worst=_length_step(report.worst),
        options=[
            schema.LengthOptionRecord(
                name=o.name,
                at_tokens=o.at_tokens,
                typical=_length_step(o.typical),
                worst=_length_step(o.worst),
                saved_bytes=o.saved_bytes,
                saved_time_fraction=o.saved_time_fraction,
                lost_tokens_fraction=o.lost_tokens_fraction,
            )
            for o in report.options
        ],
    )


def _length_step(step: LengthStep) -> schema.LengthStepRecord:
    return schema.LengthStepRecord(**{name: getattr(step, name) for name in schema.LengthStepRecord.model_fields})


def search_document(
    result: SearchResult,
    assumed: tuple[str, ...],
    warnings: tuple[str, ...],
    top: int,
    explanation: ExplanationRecord | None = None,
    lengths: LengthReport | None = None,
    further: Mapping[str, Any] | None = None,
    mixed: MixedRecord | None = None,
) -> schema.SearchDocument:
    """Return the document of `planner search`. `further`: its fields of planner.report.answer_documents."""
    return schema.SearchDocument(
        status=result.status,
        assumed=list(assumed),
        notes=[*result.notes, *warnings],
        searched=searched_record(result.searched),
        plans=[plan_record(plan) for plan in result.plans[:top]],
        near_misses=[near_miss_record(miss) for miss in result.near_misses],
        remedies=[remedy_record(remedy) for remedy in result.remedies],
        mixed=mixed,
        **(further or {}),
        leaders=leaders_record(result.plans[:top]),
        lengths=None if lengths is None else lengths_record(lengths),
        explanation=explanation,
    )


def estimate_document(
    plan: Plan,
    misses: tuple[NearMiss, ...],
    assumed: tuple[str, ...],
    notes: tuple[str, ...],
    explanation: ExplanationRecord | None = None,
    lengths: LengthReport | None = None,
    software: SoftwareBand | None = None,
) -> schema.EstimateDocument:
    """Return the document of `planner estimate`."""
    record = plan_record(plan)
    return schema.EstimateDocument(
        **{name: getattr(record, name) for name in schema.PlanRecord.model_fields},
        status="infeasible" if plan.verdict == "no" else "found",
        assumed=list(assumed),
        notes=list(notes),
        near_misses=[near_miss_record(miss) for miss in misses],
        lengths=None if lengths is None else lengths_record(lengths),
        explanation=explanation,
        software_unknown=None if software is None else software_record(software),
    )


def software_record(band: SoftwareBand) -> SoftwareBandRecord:
    """Return the band over unknown software."""
    return SoftwareBandRecord(interval_80_seconds=band.interval_seconds, step_seconds=dict(band.step_seconds))


def gpu_record(gpu: Gpu) -> schema.GpuRecord:
    """Return an accelerator."""
    same = ["id", "name", "vendor", "capacity_assumed", "nominal_memory_bytes", "memory_bandwidth_bytes_per_second", "link"]
    same += ["link_bytes_per_second", "pcie_bytes_per_second", "power_watts", "default_node", "source"]
    return schema.GpuRecord(
        **{name: getattr(gpu, name) for name in same},
        aliases=list(gpu.aliases),
        capacity_bytes=gpu.usable_memory_bytes,
        peak_flop_per_second={f"{kind}": rate for kind, rate in gpu.peak_flop_per_second.items()},
    )


def node_record(node: Node) -> schema.NodeRecord:
    """Return a server."""
    same = ["id", "name", "gpu", "gpus_per_node", "link", "link_bytes_per_second", "host_memory_bytes", "nvme_bytes"]
    same += ["price_usd_per_hour", "source"]
    return schema.NodeRecord(
        **{name: getattr(node, name) for name in same},
        aliases=list(node.aliases),
        network_bytes_per_second=node.all_nics_bytes_per_second,
    )
