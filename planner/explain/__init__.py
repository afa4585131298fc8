"""Explanations of a plan: every byte and second as named terms with formula, numbers and source, what bounds them, and the timeline.

Everything is read off the ledgers of the plan; the numbers that are shown beside a formula give its value, or are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from planner.case import Case

if TYPE_CHECKING:
    from planner.plan import Plan


def case_of(plan: Plan) -> Case:
    """Return the case that the plan was judged in."""
    return Case(architecture=plan.architecture, training=plan.training, pool=plan.pool, margin=plan.margin_bytes / plan.pool.capacity_bytes)


def at(value: object, stage: int) -> float:
    """Return the value of evaluated stage `stage`: stage arrays have shape (K,), what is equal on all stages () or (1,)."""
    flat = np.asarray(num(value)).reshape(-1)
    return float(flat[stage if flat.size > 1 else 0])
