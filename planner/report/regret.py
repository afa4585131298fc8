"""The ranking against measured runs: every group of runs that differ in layout only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.table import Column, table
from planner.report.words import plural

if TYPE_CHECKING:
    from planner.report.look import Look
    from planner.validate_schema import Regret

NAME_WIDTH = 58


def regret_lines(regret: Regret, look: Look) -> list[str]:
    """Return the groups, largest regret first, and what they come to."""
    if regret.mean is None or regret.median is None or regret.p90 is None or regret.mean_tau is None or regret.random_mean is None:
        return ["No three runs differ in their layout only."]
    columns = [
        Column(head="group", align="left"),
        Column(head="layouts"),
        Column(head="regret %"),
        Column(head="tau"),
        Column(head="random %"),
    ]
    groups = sorted(regret.groups, key=lambda g: (-g.regret, g.tau, g.name))
    rows = [[_short(g.name), f"{g.rows}", f"{100 * g.regret:.1f}", f"{g.tau:.2f}", f"{100 * g.random:.1f}"] for g in groups]
    text = (
        f"{plural(len(groups), 'group')}: the predicted best is slower than the measured best by {100 * regret.median:.1f} % (median), "
        f"{100 * regret.mean:.1f} % (mean), {100 * regret.p90:.1f} % (90th percentile); Kendall's tau {regret.mean_tau:.2f} (mean); "
        f"a random pick loses {100 * regret.random_mean:.1f} % (mean)."
    )
    return [*table(columns, rows, look), *look.wrap(text)]


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
