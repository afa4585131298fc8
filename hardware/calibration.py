"""Measured constants: one TOML file each in `measured/`, every constant with meaning, unit, origin and the rows it rests on.

A file for accelerators says which generations (`Gpu.arch`) it serves; what it lacks is taken from `default.toml`. A constant may be
narrowed to one accelerator in its table `by_gpu`. Files that serve no generation (software, collectives, memory) are read by name.
A file may hold bands too: distributions of measured / predicted (error.toml). Datasheet facts never stand here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from hardware.spec import Gpu

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "measured"
DEFAULT = "default"


class Constant(BaseModel):
    """One measured number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    unit: str
    """`1` for a ratio."""
    meaning: str
    origin: str
    """Where it comes from: a table, a paper, a fit."""
    rows: str = ""
    """What it was fitted on; empty for a figure taken as published."""
    by_gpu: dict[str, float] = Field(default_factory=dict)
    """Accelerator id -> value, where one was measured apart."""


class Quantiles(BaseModel):
    """One measured distribution."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probabilities: tuple[float, ...] = Field(min_length=2)
    """Ascending, between 0 and 1."""
    values: tuple[float, ...]
    """What the quantity stays at or below with each probability; positive and ascending."""
    unit: str
    meaning: str
    origin: str
    rows: str = ""
    """What it was derived from."""

    @model_validator(mode="after")
    def _ascending(self) -> Quantiles:
        for given, low, high in ((self.probabilities, 0.0, 1.0), (self.values, 0.0, float("inf"))):
            if not all(low < a < b < high for a, b in zip(given, given[1:], strict=False)):
                raise ValueError(f"{given} must ascend between {low} and {high}")
        if len(self.values) != len(self.probabilities):
            raise ValueError(f"{len(self.values)} values for {len(self.probabilities)} probabilities")
        return self


class Calibration(BaseModel):
    """One file of `measured/`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arch: tuple[str, ...] = ()
    """Generations that it serves; none: read by name."""
    date: str = ""
    sentence: str = ""
    constants: dict[str, Constant] = Field(default_factory=dict)
    bands: dict[str, Quantiles] = Field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return constant `name`. Raises KeyError for one that the file lacks."""
        return self.constants[name].value


_changed: ContextVar[Mapping[str, Calibration]] = ContextVar("changed", default={})  # noqa: B039 - never written to


def calibration(name: str) -> Calibration:
    """Return the file `name`.toml, with what `changed` changes in it. Raises KeyError where there is none."""
    return _changed.get().get(name) or _read(name)


@contextmanager
def changed(values: Mapping[tuple[str, str, str], float]) -> Iterator[None]:
    """Read other values of constants inside a `with`: (file, constant, accelerator id) -> value; no id: the generation's own value.

    What a refit needs. Raises KeyError for a file or a constant that does not exist.
    """
    made: dict[str, Calibration] = {}
    for (file, name, gpu), number in values.items():
        held = made.get(file) or calibration(file)
        old = held.constants[name]
        new = old.model_copy(update={"by_gpu": {**old.by_gpu, gpu: number}} if gpu else {"value": number})
        made[file] = held.model_copy(update={"constants": {**held.constants, name: new}})
    token = _changed.set({**_changed.get(), **made})
    try:
        yield
    finally:
        _changed.reset(token)


@cache
def _read(name: str) -> Calibration:
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        raise KeyError(f"no calibration is called {name!r}; there are {', '.join(names())}")
    with path.open("rb") as file:
        return _build(tomllib.load(file), path.stem)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all calibration files."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def generation(arch: str) -> Calibration | None:
    """Return the calibration that serves generation `arch`, None where nobody measured it."""
    name = _file_of(arch)
    return None if name is None else calibration(name)


@cache
def _file_of(arch: str) -> str | None:
    return next((name for name in names() if arch in _read(name).arch), None)


def constant(gpu: Gpu, name: str) -> Constant:
    """Return constant `name` for `gpu`: of its generation (narrowed to the accelerator where measured), else the default."""
    own = generation(gpu.arch)
    if own is not None and name in own.constants:
        return own.constants[name]
    return calibration(DEFAULT).constants[name]


def value(gpu: Gpu, name: str) -> float:
    """Return the number of constant `name` for `gpu`."""
    found = constant(gpu, name)
    return found.by_gpu.get(gpu.id, found.value)


def _build(tables: dict[str, Any], stem: str) -> Calibration:
    head = {key: tables.pop(key) for key in ("arch", "date", "sentence", "bands") if key in tables}
    return Calibration(name=stem, **head, constants={key: Constant(**table) for key, table in tables.items()})
