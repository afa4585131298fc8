"""Clash, front, why not and sensitivity as JSON records (planner.answer_schema)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cost_models.numeric import num
from planner import answer_schema as schema
from planner.objectives import tokens_per_dollar, tokens_per_second
from planner.report.documents import layout_record
from planner.report.words import layout_name

if TYPE_CHECKING:
    from planner.answers import Answers, Difference, Sensitivity, WhyNot
    from planner.plan import Clash, NearMiss, Plan, SearchResult


def further_fields(result: SearchResult, answers: Answers) -> dict[str, Any]:
    """Return the fields of the search's document that these records fill."""
    return {
        "clash": clash_records(result.clash),
        "clash_minimal": None if result.clash is None else result.clash.minimal,
        "front": [answer_plan(plan) for plan in answers.front],
        "why": why_records(answers),
        "sensitivity": sensitivity_records(answers),
    }


def answer_plan(plan: Plan) -> schema.AnswerPlanRecord:
    """Return a plan in short."""
    return schema.AnswerPlanRecord(
        name=layout_name(plan.layout),
        framework=plan.training.framework,
        gpu=plan.pool.gpu.id,
        gpus=plan.pool.count,
        layout=layout_record(plan.layout, plan.micro_batches).model_dump(),
        step_seconds=float(num(plan.cost.time.step_seconds)),
        tokens_per_second=tokens_per_second(plan),
        tokens_per_usd=tokens_per_dollar(plan),
        mfu=float(num(plan.cost.time.mfu)),
        peak_device_bytes=float(num(plan.cost.memory.peak_device_bytes)),
        capacity_bytes=plan.pool.capacity_bytes,
    )


def clash_records(clash: Clash | None) -> list[schema.ClashRecord]:
    """Return the members of a clash."""
    members = () if clash is None else clash.members
    return [
        schema.ClashRecord(
            requirement=m.requirement, flags=m.flags, enough=m.enough, without=None if m.plan is None else answer_plan(m.plan)
        )
        for m in members
    ]


def why_records(answers: Answers) -> list[schema.WhyRecord]:
    """Return one record for each kind asked about."""
    return [_why(why) for why in answers.why]


def _why(why: WhyNot) -> schema.WhyRecord:
    return schema.WhyRecord(
        asked=why.asked,
        plan=None if why.plan is None else answer_plan(why.plan),
        time=[_difference(d) for d in why.time],
        memory=[_difference(d) for d in why.memory],
        broken=[schema.WhyBrokenRecord(rule=b.rule, message=b.message) for b in why.broken],
        excluded=dict(why.excluded),
        near_misses=[_miss(m) for m in why.near_misses],
        clash=clash_records(why.clash),
    )


def _difference(d: Difference) -> schema.DifferenceRecord:
    return schema.DifferenceRecord(term=d.term, asked=d.asked, winner=d.winner, unit=d.unit)


def _miss(miss: NearMiss) -> schema.WhyMissRecord:
    return schema.WhyMissRecord(
        name=layout_name(miss.plan.layout),
        missing_bytes=miss.missing_bytes,
        stage=miss.stage,
        phase=miss.phase,
        bucket=miss.bucket,
        bucket_bytes=miss.bucket_bytes,
        where=miss.where,
    )


def sensitivity_records(answers: Answers) -> list[schema.SensitivityRecord]:
    """Return one record for each change."""
    return [_sensitivity(row) for row in answers.sensitivity]


def _sensitivity(row: Sensitivity) -> schema.SensitivityRecord:
    plan = None if row.plan is None else answer_plan(row.plan)
    return schema.SensitivityRecord(change=row.change, gain=row.gain, same_layout=row.same_layout, plan=plan)
