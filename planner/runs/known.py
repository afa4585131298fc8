"""Catalogue models by the names that run tables use, to complete what a row lacks."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from cost_models.catalog import entries, load

if TYPE_CHECKING:
    from cost_models.architecture import Architecture

_NOISE = re.compile(r"\(.*?\)|\bcut to \d+ layers\b|\bproxy\b|\b(hf|base|pt|instruct|chat)\b|\bmeta\b", re.IGNORECASE)
_SAME = {
    "gpt3175b": "megatrongpt175b",
    "llama4maverick400b": "llama4maverick17b128e",
    "llama4scout17bx16e": "llama4scout17b16e",
    "llama4scout": "llama4scout17b16e",
    "kimik2": "kimik2instruct",
    "deepseekv316b": "deepseekv2lite",
    "mistral7bv02": "mistral7bv01",
    "mistral7b": "mistral7bv01",
    "tinyllama11b": "tinyllama11bintermediatestep1431k3t",
}
"""Names that tables use -> normal names of the catalogue, where no rule makes them equal."""


def normal(name: str) -> str:
    """Return `name` without owner, brackets, punctuation and case: "Llama-3-70B cut to 12 layers" -> "llama370b"."""
    short = _NOISE.sub(" ", name.rsplit("/", 1)[-1])
    return re.sub(r"[^a-z0-9]", "", short.lower())


@cache
def _index() -> dict[str, str]:
    """Normal name -> id of the catalogue."""
    index: dict[str, str] = {}
    for entry in entries():
        for name in (entry.id, *entry.aliases):
            index.setdefault(normal(name), entry.id)
    return index


@cache
def known_model(name: str) -> Architecture | None:
    """Return the catalogue's architecture of that name, None where there is none."""
    key = normal(name)
    found = _index().get(_SAME.get(key, key)) if key else None
    return None if found is None else load(found)
