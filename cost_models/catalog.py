"""The door to models: names, sizes, Hub files, TOML files and dimensions, all to an Architecture with what was assumed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cost_models import catalog_names as names
from cost_models.architecture import Architecture
from cost_models.catalog_index import Entry, entries
from cost_models.dimensions import changed, from_dimensions
from cost_models.hub.config import NAMES, read_config
from cost_models.hub.files import read_toml
from cost_models.model_laws import ModelError, UnknownModel, build

__all__ = ["Entry", "ModelError", "Resolved", "UnknownModel", "entries", "facts", "load", "model_names", "resolve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A model that a user meant."""

    architecture: Architecture
    assumed: tuple[str, ...] = ()
    """One sentence for each thing that was not given."""
    warnings: tuple[str, ...] = ()


def model_names() -> tuple[str, ...]:
    """Return the ids of the catalogue, sorted without regard to case."""
    return tuple(entry.id for entry in entries())


def load(name: str) -> Architecture:
    """Return a catalogue model by id, alias or id without its organisation. Raises UnknownModel with the nearest names."""
    return _read(_entry(name).file)


def facts(name: str) -> Mapping[str, object]:
    """Return the [facts] of a catalogue model: exact and published counts, sources with what agrees and differs."""
    found = read_toml(_entry(name).file).get("facts")
    return found if isinstance(found, Mapping) else {}


def resolve(text: str | os.PathLike[str] | None, overrides: Mapping[str, object] | None = None) -> Resolved:
    """Return the model that `text` means, with `overrides` (fields of Architecture, MoE and MLA fields flat; None = not given) on top.

    `text` is a catalogue id or alias, a bare size ("30b"), a Hub config.json or a folder that holds one, a TOML file with the fields
    of Architecture, or None for a model of dimensions alone. A catalogue name wins over a file of the same name; "./name" is the file.
    Raises ModelError or UnknownModel, one line.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if text is None:
        made = from_dimensions(given)
        return Resolved(architecture=made.architecture, assumed=made.assumed)
    written = os.fspath(text)
    if not written.strip() or "\0" in written:
        raise UnknownModel(f"{written!r} is no model name")
    if isinstance(text, os.PathLike) or _looks_like_path(written):
        return _file(_home(Path(written)), given)
    meant = names.meaning(written)
    if meant is None:
        if _exists(Path(written)):
            return _file(Path(written), given)
        raise names.unknown(written)
    found = Resolved(architecture=_read(meant.entry.file), assumed=meant.assumed)
    if meant.changes:
        found = _changed(found, meant.changes, meant.entry.id, told=False)
    return _changed(found, given, meant.entry.id, told=True)


def _entry(name: str) -> Entry:
    entry = names.exact(name)
    if entry is None:
        raise names.unknown(name)
    return entry


@lru_cache(maxsize=512)
def _read(path: Path) -> Architecture:
    table = read_toml(path)
    table.pop("facts", None)
    return build(table, str(path))


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "~", os.sep)) or text.lower().endswith((".json", ".toml"))


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _file(path: Path, given: Mapping[str, object]) -> Resolved:
    if path.suffix.lower() == ".toml":
        table = read_toml(path)
        table.pop("facts", None)
        made = from_dimensions({"id": path.stem, **table, **given}, str(path))
        return Resolved(architecture=made.architecture, assumed=tuple(f"{path}: {text}" for text in made.assumed))
    sizes = {key: value for key, value in given.items() if key in NAMES and isinstance(value, int) and not isinstance(value, bool)}
    read = read_config(path, sizes)
    found = Resolved(architecture=read.architecture, assumed=tuple(f"{path}: {text}" for text in read.assumed), warnings=read.warnings)
    return _changed(found, given, str(path), told=True)


def _changed(found: Resolved, changes: Mapping[str, object], label: str, *, told: bool) -> Resolved:
    if not changes:
        return found
    made = changed(found.architecture, changes, label)
    sentences = tuple(f"{label}: {text}" for text in made.assumed) if told else ()
    return Resolved(architecture=made.architecture, assumed=(*found.assumed, *sentences), warnings=found.warnings)
