"""Laws about the order in which ranks are numbered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import RANK_ORDERS
from cost_models.numeric import num
from cost_models.throughput.collectives import fabric
from cost_models.throughput.replicas import placed_better
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import Mask, Rule, show, spelled

if TYPE_CHECKING:
    from cost_models.layout import Layout, RankOrder
    from planner.case import Case


def _offered(case: Case) -> tuple[RankOrder, ...]:
    return SUPPORT[case.framework].orders(experts=case.architecture.moe is not None)


def _framework(case: Case, layout: Layout) -> Mask:
    keep: Mask = False
    for order in _offered(case):
        keep = keep | (num(layout.degrees.rank_order) == RANK_ORDERS.index(order))
    return np.asarray(keep)


def _framework_given(case: Case, layout: Layout) -> str:
    of = f"{case.framework}{' with experts' if case.architecture.moe is not None else ''}"
    return f"{spelled('rank_order', layout.degrees.rank_order)}: {of} numbers ranks as {' or '.join(_offered(case))}"


def _usual(case: Case, layout: Layout) -> Mask:
    """Whether the order is the first, or the only one of the framework."""
    return np.asarray((num(layout.degrees.rank_order) == 0.0) | (len(_offered(case)) == 1))


def _same_stage(case: Case, layout: Layout) -> Mask:
    d = layout.degrees
    if case.architecture.moe is None:
        return True
    return np.asarray((num(d.rank_order) == 0.0) | (num(d.pp) == 1.0) | (num(d.etp) * d.ep == num(d.tp) * d.cp))


def _same_stage_given(case: Case, layout: Layout) -> str:
    d = layout.degrees
    cells = f"etp × ep = {show(d.etp)} × {show(d.ep)} and tp × cp = {show(d.tp)} × {show(d.cp)}"
    order = spelled("rank_order", d.rank_order)
    return f"{order} with pp={show(d.pp)}: {cells} must be equal, so that experts have as many replicas as the rest"


def _two_ways(case: Case, layout: Layout) -> Mask:
    """Whether there are stages and replicas to number in either order."""
    return _usual(case, layout) | np.asarray((num(layout.degrees.pp) > 1.0) & (num(layout.degrees.dp) > 1.0))


def _better(case: Case, layout: Layout) -> Mask:
    """Whether some group is placed better than in the usual order: more members under a link, a server or a leaf."""
    keep = _usual(case, layout)
    if np.all(keep):
        return keep
    usual = replace(layout, degrees=replace(layout.degrees, rank_order=0.0))
    better = placed_better(layout, usual, fabric(case.pool), experts=case.architecture.moe is not None)
    return keep | better.reshape(np.shape(keep))


RULES = (
    Rule(
        id="rank_order_framework",
        sentence="the framework can number ranks in that order",
        source="table of planner/rules/frameworks.py; Megatron-LM training/initialize.py (--use-tp-pp-dp-mapping); DeepSpeed"
        " runtime/pipe/topology.py; torchtitan distributed/parallel_dims.py; nanotron parallel/context.py",
        reads=("rank_order",),
        holds=_framework,
        given=_framework_given,
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
            f"{spelled('rank_order', layout.degrees.rank_order)} with pp={show(layout.degrees.pp)}, dp={show(layout.degrees.dp)}"
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
        given=lambda case, layout: f"{spelled('rank_order', layout.degrees.rank_order)} places no group better than {RANK_ORDERS[0]} does",
        vary=("rank_order",),
        kind="preference",
    ),
)
