"""Step time where nobody knows the software: the same layout in every framework that can run it, as one band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.numeric import num
from planner.evaluate import plan
from planner.rules import broken
from planner.rules.frameworks import searched

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.plan import Plan
    from planner.request import Resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftwareBand:
    """What a step takes, whichever of the frameworks runs it."""

    step_seconds: tuple[tuple[str, float], ...]
    """Framework -> predicted step, fastest first."""
    interval_seconds: tuple[float, float]
    """From the lowest to the highest end of their 80 % intervals."""


def over_software(resolved: Resolved, layout: Layout) -> SoftwareBand:
    """Return the band of `layout` over the frameworks whose laws it keeps. Raises ValueError where it keeps those of none."""
    plans: list[Plan] = []
    for framework in searched(layout.choices.schedule):
        case = resolved.case(framework=framework)
        if not broken(case, layout):
            plans.append(plan(case, layout))
    if not plans:
        raise ValueError(f"no framework of {', '.join(searched(layout.choices.schedule))} can run this layout")
    steps = sorted(((p.training.framework, float(num(p.cost.time.step_seconds))) for p in plans), key=lambda s: (s[1], s[0]))
    ends = [p.step_interval_seconds for p in plans]
    return SoftwareBand(step_seconds=tuple(steps), interval_seconds=(min(low for low, _ in ends), max(high for _, high in ends)))
