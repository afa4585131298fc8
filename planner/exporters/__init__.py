"""Exporters, one file each, found by a folder scan: a plan in, files for a framework out.

Every file defines NAME, SENTENCE and the functions of `Exporter`. A plan that the framework cannot run, or that its
configuration cannot state, is refused with every rule that it breaks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from cost_models.numeric import num
from planner.plan import Plan


class ExportRefused(ValueError):
    """The plan cannot be exported; `broken` holds one line per reason."""

    def __init__(self, exporter: str, broken: Iterable[str]) -> None:
        self.exporter = exporter
        self.broken = tuple(broken)
        super().__init__("; ".join(self.broken))


class UnknownExporter(ValueError):
    """No exporter has that name; the message gives the names that exist."""


class Exporter(Protocol):
    """What an exporter's file defines."""

    NAME: str
    SENTENCE: str

    def export(self, plan: Plan) -> dict[str, str]:
        """Return file name -> text, the main file first; raise ExportRefused where the framework cannot run the plan."""

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """Return what the files leave to the user, a sentence each."""


@cache
def exporters() -> dict[str, Exporter]:
    """Return all exporters by name."""
    found = (cast(Exporter, import_module(f"{__name__}.{m.name}")) for m in iter_modules(__path__) if not m.name.startswith("_"))
    return {e.NAME: e for e in found}


def exporter(name: str) -> Exporter:
    """Return the exporter called `name`; raise UnknownExporter with the nearest names."""
    known = exporters()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise UnknownExporter(f"no export is called {name[:60]!r}; {hint}")


def degree(plan: Plan, name: str) -> int:
    """Return a degree of the plan's layout as an integer."""
    return int(num(getattr(plan.layout.degrees, name)))


def share(plan: Plan, name: str) -> float:
    """Return a fraction of the plan's layout."""
    return float(num(getattr(plan.layout.degrees, name)))


def gpus(plan: Plan) -> int:
    """Return how many GPUs the layout uses: tp × pp × cp × dp."""
    return degree(plan, "tp") * degree(plan, "pp") * degree(plan, "cp") * degree(plan, "dp")
