"""Laws about the order in which ranks are numbered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import Choices
from cost_models.numeric import num
from cost_models.throughput.collectives import fabric
from cost_models.throughput.replicas import placed_better
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import Mask, Rule, show

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case

USUAL = Choices().rank_order
INNER = "tp-cp-ep-pp-dp"
"""Pipeline stages side by side, replicas apart."""


def _offered(case: Case) -> tuple[str, ...]:
    return SUPPORT[case.framework].orders(experts=case.architecture.moe is not None)


def _offered_given(case: Case, layout: Layout) -> str:
    of = f"{case.framework}{' with experts' if case.architecture.moe is not None else ''}"
    return f"rank_order={layout.choices.rank_order}: {of} numbers ranks as {' or '.join(_offered(case))}"


def _same_stage(case: Case, layout: Layout) -> Mask:
    if layout.choices.rank_order != INNER or case.architecture.moe is None:
        return True
    d = layout.degrees
    return np.asarray((num(d.pp) == 1.0) | (num(d.etp) * d.ep == num(d.tp) * d.cp))


def _same_stage_given(case: Case, layout: Layout) -> str:
    d = layout.degrees
    cells = f"etp × ep = {show(d.etp)} × {show(d.ep)} and tp × cp = {show(d.tp)} × {show(d.cp)}"
    return f"rank_order={INNER} with pp={show(d.pp)}: {cells} must be equal, so that experts have as many replicas as the rest"


def _two_ways(case: Case, layout: Layout) -> Mask:
    """Whether there are stages and replicas to number in either order."""
    if layout.choices.rank_order == USUAL or len(_offered(case)) == 1:
        return True
    return np.asarray((num(layout.degrees.pp) > 1.0) & (num(layout.degrees.dp) > 1.0))


def _better(case: Case, layout: Layout) -> Mask:
    """Whether some group is placed better than in the usual order: more members under a link, a server or a leaf."""
    if layout.choices.rank_order == USUAL or len(_offered(case)) == 1:
        return True
    usual = replace(layout, choices=replace(layout.choices, rank_order=USUAL))
    return placed_better(layout, usual, fabric(case.pool), experts=case.architecture.moe is not None)


RULES = (
    Rule(
        id="rank_order_framework",
        sentence="the framework can number ranks in that order",
        source="table of planner/rules/frameworks.py; Megatron-LM training/initialize.py (--use-tp-pp-dp-mapping); DeepSpeed"
        " runtime/pipe/topology.py; torchtitan distributed/parallel_dims.py; nanotron parallel/context.py",
        reads=("rank_order",),
        holds=lambda case, layout: layout.choices.rank_order in _offered(case),
        given=_offered_given,
        vary=("rank_order",),
    ),
    Rule(
        id="rank_order_experts",
        sentence="with stages side by side (tp-cp-ep-pp-dp) and a pipeline, experts have as many replicas as the rest: etp × ep = tp × cp",
        source="Megatron-LM core/parallel_state.py, assertions on the order and on equal pipeline groups (d98e8a64)",
        reads=("tp", "pp", "cp", "ep", "etp", "rank_order"),
        holds=_same_stage,
        given=_same_stage_given,
        vary=("ep", "etp", "rank_order"),
    ),
    Rule(
        id="rank_order_alone",
        sentence="without stages or without replicas every order numbers the ranks alike",
        source="planner",
        reads=("pp", "dp", "rank_order"),
        lifted_by=("rank_order",),
        holds=_two_ways,
        given=lambda case, layout: (
            f"rank_order={layout.choices.rank_order} with pp={show(layout.degrees.pp)}, dp={show(layout.degrees.dp)}"
        ),
        vary=("rank_order",),
        kind="canonical",
    ),
    Rule(
        id="rank_order_better",
        sentence="another order than the usual one pays only where some group then has more members in a server or under a leaf",
        source="planner",
        reads=("tp", "pp", "cp", "dp", "ep", "etp", "shard_group", "rank_order"),
        lifted_by=("rank_order",),
        holds=_better,
        given=lambda case, layout: f"rank_order={layout.choices.rank_order} places no group better than {USUAL} does",
        vary=("rank_order",),
        kind="preference",
    ),
)
