"""The user's own laws: wishes about the layout, as rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.layout import Choices, Degrees
from planner.measures import wished_layout
from planner.rules.rule import Rule

if TYPE_CHECKING:
    from planner.case import Case
    from planner.wish import Wish

FIELDS = (*Degrees.__dataclass_fields__, *Choices.__dataclass_fields__)


def wish_rules(case: Case) -> tuple[Rule, ...]:
    """Return a rule for each wish of the case that no evaluation is needed for."""
    return tuple(_rule(wish) for wish in case.wishes if not wish.needs_results)


def _rule(wish: Wish) -> Rule:
    return Rule(
        id=f"wish {wish.words}",
        sentence=wish.words,
        source="the request",
        reads=tuple(name for name in wish.reads if name in FIELDS),
        holds=lambda case, layout: wished_layout(case, layout, wish),
        given=lambda case, layout: f"the request has {wish.spelled}",
    )
