"""Plans over several pools as JSON records (planner.mixed_schema)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.numeric import num
from planner import mixed_schema as schema
from planner.report.documents import bucket_bytes, layout_record, phase_of

if TYPE_CHECKING:
    from planner.plan import Mixed, MixedPart, MixedPlan


def mixed_record(mixed: Mixed, top: int) -> schema.MixedRecord:
    """Return the outcome of planning the pools together, with at most `top` plans."""
    gain = None
    if mixed.plans and mixed.single is not None:
        gain = float(num(mixed.single.cost.time.step_seconds)) / mixed.plans[0].step_seconds - 1.0
    return schema.MixedRecord(
        comparison=mixed.comparison,
        gain=gain,
        plans=[_plan(plan) for plan in mixed.plans[:top]],
        links=list(mixed.links),
        refusals=list(mixed.refusals),
        proof=mixed.proof,
    )


def _plan(plan: MixedPlan) -> schema.MixedPlanRecord:
    terms = [
        schema.MixedTermRecord(
            name=t.name,
            seconds=float(num(t.value).reshape(-1)[0]),
            exposed_seconds=float(num(t.value if t.exposed is None else t.exposed).reshape(-1)[0]),
            formula=t.formula,
            source=t.source,
        )
        for t in plan.ledger.terms
    ]
    return schema.MixedPlanRecord(
        kind=plan.kind,
        framework=plan.framework,
        gpus=plan.gpus,
        step_seconds=plan.step_seconds,
        tokens_per_second=plan.tokens_per_second,
        terms=terms,
        parts=[_part(part) for part in plan.parts],
        needs=list(plan.needs),
    )


def _part(part: MixedPart) -> schema.MixedPartRecord:
    plan, memory = part.plan, part.plan.cost.memory
    index = [int(i) for i in num(memory.stage_index).reshape(-1)]
    peak = index.index(int(num(memory.peak_stage)))
    again = plan.layout.stage_recompute
    first = part.first_stage
    return schema.MixedPartRecord(
        gpu=plan.pool.gpu.id,
        node=plan.pool.node.id,
        gpus=plan.pool.count,
        nodes=plan.pool.nodes,
        layout=layout_record(plan.layout, plan.micro_batches).model_dump(),
        samples=part.samples,
        first_stage=first,
        stage_layers=list(part.stage_layers),
        stage_recompute=[] if again is None or first is None else list(again[first : first + len(part.stage_layers)]),
        busy_seconds=part.busy_seconds,
        verdict=plan.verdict,
        peak_device_bytes=float(num(memory.peak_device_bytes)),
        capacity_bytes=plan.pool.capacity_bytes,
        margin_bytes=plan.margin_bytes,
        peak_stage=index[peak],
        phase=phase_of(memory, peak),
        buckets=bucket_bytes(memory, peak),
        host_bytes_per_node=float(num(memory.host_bytes_per_node)),
        nvme_bytes_per_node=float(num(memory.nvme_bytes_per_node)),
        warnings=list(plan.warnings),
    )
