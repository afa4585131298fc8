"""Names of code bases as tables of runs spell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

_VERSION = re.compile(r"[\s_/@-]*v?\d[\w.+-]*$")
"""A version at the end of a name: `torchtune 0.5.0`, `internevo-v0.3`."""
_UNNAMED = ("other", "hf", "jax")
"""Entries whose names are too short or too common to begin a text with."""


class Named(Protocol):
    """An entry of frameworks.toml."""

    @property
    def names(self) -> tuple[str, ...]:
        """Other names for it."""

    @property
    def trainer(self) -> bool:
        """Whether it is a trainer of Hugging Face models."""


def canonical(framework: str, table: Mapping[str, Named]) -> str | None:
    """Return the name of `table` that a cell means: whatever its case, hyphens and spaces, with a version behind it or not.

    Empty: `other`. None for a name that nothing fits.
    """
    if not framework.strip():
        return "other"
    known: dict[str, str] = {}
    for name in table:
        known[_squeezed(name)] = name
    for name, entry in table.items():
        for other in entry.names:
            known.setdefault(_squeezed(other), name)
    return next((known[text] for text in (_squeezed(framework), _squeezed(_VERSION.sub("", framework))) if text in known), None)


def trainer_in(detail: str, table: Mapping[str, Named]) -> str | None:
    """Return a trainer that the source's own words name, None where there is none."""
    trainers = ((key, other) for key, entry in table.items() if entry.trainer for other in (key, *entry.names))
    return next((key for key, other in trainers if re.search(rf"\b{_pattern(other)}\b", detail, re.IGNORECASE)), None)


def named_first(detail: str, table: Mapping[str, Named]) -> str | None:
    """Return the framework whose name the source's own words begin with, the longest name first; None where there is none."""
    names = [(other, key) for key, entry in table.items() if key not in _UNNAMED for other in (key, *entry.names)]
    names.sort(key=lambda pair: -len(pair[0]))
    return next((key for other, key in names if re.match(rf"{_pattern(other)}(?![a-z])", detail, re.IGNORECASE)), None)


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _pattern(name: str) -> str:
    """Regular expression for a name with hyphens, spaces or nothing between its words."""
    return "[-_ ]?".join(re.escape(word) for word in re.split(r"[-_ ]", name))
