"""Tables: numbers to the right, the unit in the head, the least useful column dropped where the width is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.report.look import Look, visible

ALWAYS = 9
"""Usefulness of a column that never goes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column."""

    head: str
    align: Literal["left", "right"] = "right"
    useful: int = ALWAYS
    """The column of least use goes first where the table is too wide."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], look: Look) -> list[str]:
    """Return the lines of a table: head, rule, rows."""
    kept = list(range(len(columns)))
    while True:
        lines = _lines([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
        droppable = [i for i in kept if columns[i].useful < ALWAYS]
        if not droppable or max(len(visible(line)) for line in lines) <= look.width:
            return lines
        kept.remove(min(droppable, key=lambda i: (columns[i].useful, -i)))


def _lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    from tabulate import tabulate  # not needed for --help and --json

    head = [column.head for column in columns]
    text = tabulate([head, *rows], tablefmt="plain", colalign=[column.align for column in columns], disable_numparse=True)
    first, *rest = (line.rstrip() for line in text.split("\n"))
    return [first, "─" * max(len(visible(line)) for line in (first, *rest)), *rest]
