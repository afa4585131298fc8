"""How text looks: its width, whether it is coloured, how it is wrapped. Colour is an extra, never the message."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 96
"""Columns that a report uses at most."""
MIN_WIDTH = 40
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Width and colour of a report."""

    width: int = WIDTH
    colour: bool = False

    def style(self, text: str, name: str) -> str:
        """Return `text` in a style of `_CODES`, plain without colour."""
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.colour and text else text

    def dim(self, text: str) -> str:
        """Return what was assumed, or matters least."""
        return self.style(text, "dim")

    def bold(self, text: str) -> str:
        """Return what matters most."""
        return self.style(text, "bold")

    def wrap(self, text: str, *, indent: int = 0, first: int = 0) -> list[str]:
        """Return the lines of `text`, those after the first indented, the first after `first` columns that are already used."""
        lines = textwrap.wrap(
            text,
            width=max(MIN_WIDTH, self.width),
            initial_indent=" " * first,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [lines[0][first:], *lines[1:]] if lines else [""]

    def headed(self, head: str, text: str, *, column: int = 9, dim: bool = False) -> list[str]:
        """Return `text` beside a bold head of `column` columns, dimmed where it was assumed."""
        lines = self.wrap(text, indent=column, first=column)
        shown = [self.dim(line.strip()) if dim else line.strip() for line in lines]
        return [self.bold(head) + " " * max(1, column - len(head)) + shown[0], *(" " * column + line for line in shown[1:])]

    def items(self, head: str, items: Iterable[str], *, separator: str = " · ") -> list[str]:
        """Return a head and items that stay whole, wrapped at the width."""
        lines, line = [], head
        for index, item in enumerate(items):
            piece = item if index == 0 else separator + item
            if len(line) + len(piece) > self.width and index:
                lines.append(line)
                line = "  " + item
            else:
                line += piece
        return [*lines, line]


def visible(text: str) -> str:
    """Return `text` without colour codes."""
    return _ANSI.sub("", text)
