"""The report of a search: what was understood, the answer, the alternatives, why, what next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.ranking import leaders
from planner.report.answers import clash_lines
from planner.report.infeasible import because_lines, excluded_lines, near_miss_lines, remedy_lines, searched_text
from planner.report.mixed import mixed_lines
from planner.report.plans import answer, definition, ledgers, notes, plan_table
from planner.report.words import gib, layout_name

if TYPE_CHECKING:
    from planner.plan import Plan, SearchResult
    from planner.report.look import Look


def search_lines(result: SearchResult, top: int, next_commands: Sequence[str], look: Look) -> list[str]:
    """Return all but the opening."""
    lines = _found(result, top, look) if result.plans else _none(result, look)
    lines += [] if result.mixed is None else mixed_lines(result.mixed, top, look)
    lines += notes(result.notes, look)
    lines += excluded_lines(result.searched, look) if not result.plans else []
    lines += look.wrap(searched_text(result.searched))
    if next_commands:
        lines += ["", *next_lines(next_commands, look)]
    return lines


def _found(result: SearchResult, top: int, look: Look) -> list[str]:
    shown = result.plans[:top]
    lines = answer(shown[0], look)
    if result.status == "interrupted":
        lines += look.headed("Note", "interrupted: the best so far")
    lines += ["", *plan_table(shown, look), *leaders_lines(shown, look), ""]
    lines += ledgers(shown[0], look, "plan 1" if len(shown) > 1 else "")
    lines += definition(look)
    return lines + notes(shown[0].warnings, look, "Warning")


def leaders_lines(plans: Sequence[Plan], look: Look) -> list[str]:
    """Return which plans are as fast as the first, as far as predictions can tell."""
    found = leaders(plans)
    error = f"the error between layouts (80 % band ±{100 * found.spread_fraction:.0f} %)"
    if found.count == 1:
        return look.wrap(f"Plan 1 is faster than the others by more than {error}.") if len(plans) > 1 else []
    chosen = plans[found.least_memory - 1]
    least = f"plan {found.least_memory} ({layout_name(chosen.layout).partition(' · ZeRO')[0]}) needs the least memory of them"
    return look.wrap(f"Plans 1-{found.count} are indistinguishable, within {error}; {least}.")


def _none(result: SearchResult, look: Look) -> list[str]:
    nothing = "Interrupted before a plan was found." if result.status == "interrupted" else "No plan fits."
    misses = result.near_misses
    if result.mixed is not None and result.mixed.plans:
        nothing = "No plan fits one pool alone."
    elif misses and result.status != "interrupted":
        plan = misses[0].plan
        nothing = f"No plan fits {plan.pool.count:,} × {gib(plan.pool.capacity_bytes)} GiB."
    lines = [look.bold(nothing), *near_miss_lines(misses, look), *because_lines(misses, look), *clash_lines(result.clash, look)]
    if result.remedies:
        lines += ["", *remedy_lines(result.remedies, look), ""]
    return lines


def next_lines(commands: Sequence[str], look: Look) -> list[str]:
    """Return commands that work when pasted, one a line, whatever the width."""
    return [look.dim(f"{'Next' if index == 0 else '':<6}") + command for index, command in enumerate(commands)]
