"""What a typed model name means: id, alias, other suffix of the same body, or a bare size such as "30b"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cost_models.architecture import Shape
from cost_models.catalog_index import Entry, entries
from cost_models.hub.files import read_toml
from cost_models.hub.refused import SCOPE, refused_name
from cost_models.model_laws import UnknownModel, nearest, or_list
from hardware.units import GIGA, MEGA, TERA

GENERIC = Path(__file__).parent / "generic.toml"
SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([mbt])")
UNITS = {"m": MEGA, "b": GIGA, "t": TERA}

SUFFIXES = frozenset(
    ("instruct", "chat", "it", "hf", "base", "pt", "sft", "dpo", "rlhf", "preview", "awq", "gptq", "gguf")
    + ("fp8", "nvfp4", "mxfp4", "bf16", "fp16", "int4", "int8", "w4a16", "bnb", "4bit", "8bit", "bit")
)
"""Words of a name that leave the body as it is (the vocabulary may have grown by a few added tokens)."""


class Size(Shape):
    """What a bare size means."""

    pick: str
    alternatives: tuple[str, ...]
    why: str


class Variant(Shape):
    """A public name whose body is a catalogue model's, with the fields that differ."""

    name: str
    base: str
    changes: Mapping[str, int] = {}
    why: str


class Generic(Shape):
    """The whole of generic.toml."""

    sizes: Mapping[str, Size]
    variants: tuple[Variant, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """The catalogue entry that a text means, fields that differ from it, and what was assumed."""

    entry: Entry
    changes: Mapping[str, object] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def exact(text: str) -> Entry | None:
    """Return the entry with this id, alias or id without its organisation, without regard to case."""
    return _names().get(_plain(text))


def meaning(text: str) -> Meaning | None:
    """Return what a name means; None where no entry answers. Raises UnknownModel for a bare size that the table lacks."""
    name = _plain(text)
    if SIZE.fullmatch(name):
        return _size(text.strip(), name)
    entry = _names().get(name)
    if entry is not None:
        return Meaning(entry=entry)
    variant = _variants().get(name) or _variants().get(name.split("/")[-1])
    if variant is not None:
        entry = _names()[_plain(variant.base)]
        changes = {"id": variant.name, **variant.changes} if variant.changes else {}
        return Meaning(entry=entry, changes=changes, assumed=(f"{text}: taken as {entry.id}, {variant.why}",))
    return _same_body(text, name)


def unknown(text: str) -> UnknownModel:
    """Return the error for a name that nothing answers to: the family that is not described, or the nearest names."""
    name, given = _plain(text), text if len(text) <= 80 else text[:77] + "..."
    refused = refused_name(text)
    if refused:
        return UnknownModel(f"{given}: {refused}; {SCOPE}")
    near = nearest(name[:200], _names()) or nearest(name.split("/")[-1][:200], _names())
    hint = f"; did you mean {or_list(near)}?" if near else "."
    other = "A model can also be a size such as 30b, a Hub config.json or its folder, a TOML file, or dimensions"
    return UnknownModel(f"{given}: unknown model{hint} {other}")


def size_names() -> tuple[str, ...]:
    """Return the bare sizes of the table, small to large."""
    return tuple(_generic().sizes)


def _plain(text: str) -> str:
    return re.sub(r"[\s_]+", "-", text.strip().lower())


@cache
def _names() -> Mapping[str, Entry]:
    names: dict[str, Entry] = {}
    for entry in entries():
        for name in (entry.id.split("/")[-1], *entry.aliases):
            if not SIZE.fullmatch(_plain(name)):
                names.setdefault(_plain(name), entry)
    for entry in entries():
        names[_plain(entry.id)] = entry
    return names


@cache
def _generic() -> Generic:
    return Generic.model_validate(read_toml(GENERIC))


@cache
def _variants() -> Mapping[str, Variant]:
    found: dict[str, Variant] = {}
    for variant in _generic().variants:
        found[_plain(variant.name)] = found[_plain(variant.name.split("/")[-1])] = variant
    return found


def _size(text: str, name: str) -> Meaning:
    sizes = _generic().sizes
    row = sizes.get(name)
    if row is None:
        near = [f"{size} ({sizes[size].pick})" for size in _near_sizes(_value(name))]
        raise UnknownModel(f"{text}: a size that planner has no public model for; the nearest are {or_list(near)}")
    entry = _names()[_plain(row.pick)]
    others = [_named(_names()[_plain(other)]) for other in row.alternatives]
    also = f"; could also be {or_list(others)}" if others else ""
    return Meaning(entry=entry, assumed=(f"{text}: took {_described(entry)}{also}. Why: {row.why}",))


def _near_sizes(wanted: float, count: int = 3) -> list[str]:
    """Return sizes near `wanted`, ascending: the next below, the next above, and the nearest of the others."""
    ranked = sorted(size_names(), key=lambda size: abs(math.log(_value(size) / wanted)) if wanted else _value(size))
    below = [size for size in ranked if _value(size) < wanted][:1]
    above = [size for size in ranked if _value(size) > wanted][:1]
    chosen = dict.fromkeys([*below, *above, *ranked])
    return sorted(list(chosen)[:count], key=_value)


def _value(size: str) -> float:
    match = SIZE.fullmatch(size)
    assert match is not None
    return float(match.group(1)) * UNITS[match.group(2)]


def _named(entry: Entry) -> str:
    if entry.parameters is None:
        return entry.id
    active = f", {entry.active_parameters / GIGA:.2f}e9 active" if entry.experts and entry.active_parameters else ""
    return f"{entry.id} ({entry.parameters / GIGA:.2f}e9{active})"


def _described(entry: Entry) -> str:
    count = f", {entry.parameters / GIGA:.2f}e9 parameters" if entry.parameters else ""
    return f"{entry.id} ({entry.layers} layers of {entry.hidden}{count})"


def _body(name: str) -> str:
    words = [word for word in name.split("/")[-1].split("-") if word not in SUFFIXES]
    return "-".join(words[1:] if words[:1] == ["meta"] else words)


@cache
def _bodies() -> Mapping[str, Entry | None]:
    bodies: dict[str, Entry | None] = {}
    for name, entry in _names().items():
        body = _body(name)
        bodies[body] = entry if bodies.setdefault(body, entry) is entry else None
    return bodies


def _same_body(text: str, name: str) -> Meaning | None:
    body = _body(name)
    undated = re.sub(r"-\d{4}$", "", body)
    entry = _bodies().get(body) or _bodies().get(undated)
    if entry is None or not body:
        return None
    return Meaning(entry=entry, assumed=(f"{text}: taken as {entry.id}, the same body (a fine-tune may have added vocabulary rows)",))
