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
from typing import TYPE_CHECKING, Protocol, cast

from cost_models.numeric import num
from hardware.units import show_gib
from planner.case import Case
from planner.evaluate import plan as evaluated
from planner.rules import broken

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.plan import Broken, Plan


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
    FRAMEWORKS: tuple[Framework, ...]
    """Frameworks that read the files."""

    def export(self, plan: Plan) -> dict[str, str]:
        """Return file name -> text, the main file first; raise ExportRefused where the framework cannot run the plan."""

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """Return what the files leave to the user, a sentence each."""


@cache
def exporters() -> dict[str, Exporter]:
    """Return all exporters by name."""
    found = (cast("Exporter", import_module(f"{__name__}.{m.name}")) for m in iter_modules(__path__) if not m.name.startswith("_"))
    return {e.NAME: e for e in found}


def exporter(name: str) -> Exporter:
    """Return the exporter called `name`; raise UnknownExporter with the nearest names."""
    known = exporters()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise UnknownExporter(f"no export is called {name[:60]!r}; {hint}")


def adapted(plan: Plan, chosen: Exporter) -> Plan:
    """Return the plan as a framework that reads the export runs it: itself, else the same layout evaluated there.

    Raises ExportRefused with the laws that the layout breaks there, or with the memory that it lacks there.
    """
    if plan.training.framework in chosen.FRAMEWORKS:
        return plan
    case = Case(architecture=plan.architecture, training=plan.training, pool=plan.pool, margin=plan.margin_bytes / plan.pool.capacity_bytes)
    found = {framework: broken(case.under(framework), plan.layout) for framework in chosen.FRAMEWORKS}
    framework = min(found, key=lambda name: len(found[name]))
    if found[framework]:
        raise ExportRefused(chosen.NAME, law_lines(found[framework]))
    made = evaluated(case.under(framework), plan.layout)
    if not made.fits:
        need, free = (show_gib(float(num(size))) for size in (made.cost.memory.peak_device_bytes, case.limit_bytes))
        raise ExportRefused(chosen.NAME, [f"under {framework} the layout needs {need} of {free} (rule memory)"])
    return made


def laws_broken(plan: Plan) -> list[str]:
    """Return the laws of its own framework that the plan breaks."""
    return law_lines(broken(Case(architecture=plan.architecture, training=plan.training, pool=plan.pool), plan.layout))


def law_lines(laws: Iterable[Broken]) -> list[str]:
    """Return broken laws, one line each with the rule's id."""
    return [f"{law.message} (rule {law.rule})" for law in laws]


def degree(plan: Plan, name: str) -> int:
    """Return a degree of the plan's layout as an integer."""
    return int(num(getattr(plan.layout.degrees, name)))


def share(plan: Plan, name: str) -> float:
    """Return a fraction of the plan's layout."""
    return float(num(getattr(plan.layout.degrees, name)))


def gpus(plan: Plan) -> int:
    """Return how many GPUs the layout uses: tp × pp × cp × dp."""
    return degree(plan, "tp") * degree(plan, "pp") * degree(plan, "cp") * degree(plan, "dp")
