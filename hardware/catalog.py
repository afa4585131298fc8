"""The accelerators and servers that planner knows by name: one TOML file each in `gpus/` and `nodes/`, named by id.

A name is matched without regard to case, `-`, `_`, spaces, a leading vendor or cloud, and GB for G ("NVIDIA A100-SXM4-80GB", "a100 80g").
Each file begins with a head (id, name, aliases, nominal memory) up to its first blank line; finding a name reads the heads only,
so that a new file is found without being registered anywhere.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hardware.records import GPU_FACTS, NODE_FACTS, RecordError, build_gpu, build_node, read_facts
from hardware.units import quote

if TYPE_CHECKING:
    from hardware.spec import Gpu, Node

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal["gpu", "node"]
_FOLDERS: dict[Kind, Path] = {"gpu": Path(__file__).parent / "gpus", "node": Path(__file__).parent / "nodes"}
_WORDS: dict[Kind, str] = {"gpu": "GPU", "node": "server"}
_OWNERS = ("nvidia", "amd", "intel", "huawei", "google", "tesla", "geforce", "instinct", "aws", "azure", "gcp", "oci", "standard")
_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")
_HEAD_BYTES = 1024
_LONGEST_NAME = 100


class UnknownName(ValueError):
    """A name that fits no catalogue entry, or several; `nearest` holds spellings that do fit one."""

    def __init__(self, message: str, nearest: tuple[str, ...]) -> None:
        self.nearest = nearest
        super().__init__(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Head:
    """The first lines of a catalogue file."""

    id: str
    name: str
    aliases: tuple[str, ...]
    memory: str
    """Marketing size such as "80g"; empty for servers."""

    @property
    def label(self) -> str:
        """The shortest thing to type that names this entry alone."""
        return self.aliases[0] if self.aliases else self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """Normal spelling -> id: `exact` for ids, names and aliases, `loose` for shortened names that may fit several."""

    heads: dict[str, _Head]
    exact: dict[str, str]
    loose: dict[str, tuple[str, ...]]


def _normal(text: str) -> str:
    """`text` without case, `-`, `_`, spaces, and with a size's B dropped (80GB -> 80g)."""
    return re.sub(r"(?<=\d)gi?b", "g", re.sub(r"[-_\s]+", "", text.lower()))


def _without_owner(normal: str) -> str:
    """A normal spelling without leading vendor, product line or cloud."""
    for owner in _OWNERS:
        if normal.startswith(owner) and len(normal) > len(owner):
            return _without_owner(normal[len(owner) :])
    return normal


def _spellings(head: _Head) -> Iterator[str]:
    """Normal spellings that name this entry alone."""
    for text in (head.id, *head.aliases, head.name):
        normal = _normal(text)
        for spelling in (normal, _without_owner(normal)):
            yield spelling
            if head.memory and not spelling.endswith(head.memory):
                yield spelling + head.memory


def _short_spellings(head: _Head) -> Iterator[str]:
    """Shortened normal spellings: without brackets, without the memory size, either side of a slash."""
    plain = re.sub(r"\(.*?\)", "", head.name)
    for text in (head.id, head.name, plain, *plain.split(" / ")):
        normal = _without_owner(_normal(text))
        yield normal
        if head.memory:
            yield normal.removesuffix(head.memory)


def _read(path: Path, size: int = -1) -> str:
    with path.open("rb") as file:
        return file.read(size).decode("utf-8", errors="ignore" if size > 0 else "strict").replace("\r\n", "\n")


def _head(path: Path) -> _Head:
    table = tomllib.loads(_read(path, _HEAD_BYTES).partition("\n\n")[0])
    memory = _normal(str(table.get("nominal_memory", "")))
    return _Head(id=path.stem, name=table["name"], aliases=tuple(table.get("aliases", ())), memory=memory)


@cache
def _index(kind: Kind) -> _Index:
    heads = {path.stem: _head(path) for path in sorted(_FOLDERS[kind].glob("*.toml"))}
    exact: dict[str, str] = {}
    loose: dict[str, tuple[str, ...]] = {}
    for head in heads.values():
        exact[_normal(head.id)] = head.id
    for head in heads.values():
        for spelling in _spellings(head):
            exact.setdefault(spelling, head.id)
        for spelling in _short_spellings(head):
            loose[spelling] = tuple(dict.fromkeys((*loose.get(spelling, ()), head.id)))
    return _Index(heads=heads, exact=exact, loose=loose)


def _nearest(given: str, kinds: Iterable[Kind]) -> tuple[str, ...]:
    """Up to four labels whose spellings are closest to `given`."""
    labels: dict[str, str] = {}
    for kind in kinds:
        index = _index(kind)
        for spelling, identity in index.exact.items():
            labels.setdefault(spelling, index.heads[identity].label)
    normal = _without_owner(_normal(given))
    longer = [spelling for spelling in labels if len(normal) > 1 and spelling.startswith(normal)]
    close = difflib.get_close_matches(normal, labels, n=12, cutoff=0.5)
    return tuple(dict.fromkeys(labels[spelling] for spelling in (*longer, *close)))[:4]


def unknown(given: str, *kinds: Kind) -> UnknownName:
    """The error for a name that fits no entry of `kinds`, with the nearest names."""
    words = " or ".join(_WORDS[kind] for kind in kinds)
    nearest = _nearest(given[:_LONGEST_NAME], kinds)
    hint = f"; nearest: {', '.join(nearest)}" if nearest else "; see `planner hardware` for all names"
    return UnknownName(f"unknown {words} {quote(given)}{hint}", nearest)


def find(name: str, kind: Kind) -> str | None:
    """Id of the entry that `name` fits; None if none does. Raises UnknownName where it fits several."""
    if len(name) > _LONGEST_NAME:
        return None
    if _ID.fullmatch(name) and (_FOLDERS[kind] / f"{name}.toml").is_file():
        return name
    normal = _normal(name)
    index = _index(kind)
    for spelling in (normal, _without_owner(normal)):
        if spelling in index.exact:
            return index.exact[spelling]
    several = index.loose.get(_without_owner(normal), ())
    if len(several) > 1:
        labels = tuple(index.heads[identity].label for identity in several)
        raise UnknownName(f"{_WORDS[kind]} {quote(name)} is ambiguous: it could be {', '.join(labels)}", labels)
    return several[0] if several else None


def _facts(kind: Kind, identity: str) -> dict[str, Any]:
    path = _FOLDERS[kind] / f"{identity}.toml"
    try:
        return read_facts(tomllib.loads(_read(path)), GPU_FACTS if kind == "gpu" else NODE_FACTS)
    except (RecordError, tomllib.TOMLDecodeError) as error:
        raise RecordError([f"{path.name}: {error}"]) from None


@cache
def _gpu(identity: str) -> Gpu:
    return build_gpu(_facts("gpu", identity))


@cache
def _node(identity: str) -> Node:
    return build_node(_facts("node", identity))


def gpu_names() -> tuple[str, ...]:
    """Ids of all accelerators, sorted."""
    return tuple(_index("gpu").heads)


def node_names() -> tuple[str, ...]:
    """Ids of all servers, sorted."""
    return tuple(_index("node").heads)


def load_gpu(name: str) -> Gpu:
    """The accelerator that `name` (id, alias or the driver's name) means. Raises UnknownName with the nearest names."""
    identity = find(name, "gpu")
    if identity is None:
        raise unknown(name, "gpu")
    return _gpu(identity)


def load_node(name: str) -> Node:
    """The server that `name` (id, alias or instance type) means. Raises UnknownName with the nearest names."""
    identity = find(name, "node")
    if identity is None:
        raise unknown(name, "node")
    return _node(identity)
