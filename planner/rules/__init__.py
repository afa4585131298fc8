"""Rules: the only place that says which layouts are legal. Each law is one entry of one of the lists joined here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.plan import Broken
from planner.rules import batch, degrees, pipeline, ranks, software, states, task
from planner.rules.frameworks import SUPPORT
from planner.rules.rule import Rule, explain
from planner.rules.wishes import wish_rules

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.training import Framework
    from planner.case import Case

RULES: tuple[Rule, ...] = (
    *task.RULES,
    *degrees.RULES,
    *pipeline.RULES,
    *ranks.RULES,
    *batch.RULES,
    *states.RULES,
    *software.RULES,
)
"""All rules; ids are unique."""


def binding(case: Case) -> tuple[Rule, ...]:
    """Return the rules that bind a search of `case`, the user's wishes about the layout last."""
    return (*(rule for rule in RULES if rule.binds(case)), *wish_rules(case))


def laws(case: Case) -> tuple[Rule, ...]:
    """Return the laws proper: what a framework refuses, without planner's own preferences."""
    return tuple(rule for rule in RULES if rule.kind == "law" and rule.binds(case))


def broken(case: Case, layout: Layout) -> tuple[Broken, ...]:
    """Return all laws that a single layout breaks, each with its numbers and the nearest values that pass.

    The values offered also keep the other laws that look at that one field alone.
    """
    active = laws(case)
    failed = [rule for rule in active if not np.all(rule.holds(case, layout))]
    return tuple(Broken(rule=rule.id, message=explain(case, layout, rule, [r for r in active if r is not rule])) for rule in failed)


def frameworks_of(case: Case, layout: Layout) -> tuple[Framework, ...]:
    """Return the frameworks whose laws `layout` keeps."""
    return tuple(f for f in SUPPORT if all(np.all(rule.holds(case.under(f), layout)) for rule in laws(case.under(f))))
