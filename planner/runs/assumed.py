"""What a row left open, and what was taken in its place."""

from __future__ import annotations

from dataclasses import dataclass, field


class Unfit(ValueError):
    """A row that cannot be predicted; the text is the reason in a few words."""


@dataclass(slots=True)
class Assumptions:
    """Column -> value and why, in the order in which they were made."""

    made: dict[str, str] = field(default_factory=dict)

    def note(self, column: str, value: object, why: str) -> None:
        """Note that `column` was taken to be `value`."""
        self.made.setdefault(column, f"{value} ({why})")
