"""Catalogue models by the names that run tables use, to complete what a row lacks."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import cost_models
from cost_models.architecture import Architecture

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(cost_models.__file__).parent / "architectures"
_NOISE = re.compile(r"\(.*?\)|\bcut to \d+ layers\b|\bproxy\b|\b(hf|base|pt|instruct|chat)\b|\bmeta\b", re.IGNORECASE)
_SAME = {"llama31405b": "llama31405b", "gpt3175b": "megatrongpt175b", "llama4maverick400b": "llama4maverick17b128e"}
_SAME |= {"llama4scout17bx16e": "llama4scout17b16e", "llama4scout": "llama4scout17b16e", "kimik2": "kimik2instruct"}
_SAME |= {"mistral7bv02": "mistral7bv01", "mistral7b": "mistral7bv01", "phi15": "phi15", "tinyllama11b": "tinyllama11bintermediatestep1431k3t"}
"""Names that tables use -> normal names of the catalogue, where no rule makes them equal."""


def normal(name: str) -> str:
    """Return `name` without owner, brackets, punctuation and case: "Llama-3-70B cut to 12 layers" -> "llama370b"."""
    short = _NOISE.sub(" ", name.rsplit("/", 1)[-1])
    return re.sub(r"[^a-z0-9]", "", short.lower())


@cache
def _index() -> dict[str, Path]:
    index: dict[str, Path] = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        head = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in (head["id"], *head.get("aliases", ())):
            index.setdefault(normal(name), path)
    return index


@cache
def known_model(name: str) -> Architecture | None:
    """Return the catalogue's architecture of that name, None where there is none."""
    key = normal(name)
    path = _index().get(_SAME.get(key, key)) if key else None
    if path is None:
        return None
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table.pop("facts", None)
    return Architecture(**table)
