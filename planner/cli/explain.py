"""--explain, --sources and --trace: what a plan is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.export import write_files
from planner.cli.output import Failure, say

if TYPE_CHECKING:
    from planner.explain.bundle import Explanation
    from planner.plan import Plan

WHAT = ("memory", "time")
STAGES = ("few", "all")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What was asked for."""

    what: frozenset[str]
    """Of memory, time and sources."""
    every: bool
    """All stages."""

    def explain(self, plan: Plan) -> Explanation | None:
        """Return what is wanted of the plan; None where nothing is."""
        from planner.explain.bundle import explain

        return explain(plan, self.what) if self.what else None


def explain_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --explain, --explain-stages and --sources."""
    text = "List the papers, code, datasheets and calibrations behind the plan's terms."
    function = click.option("--sources", is_flag=True, help=text)(function)
    text = "Stages in the tables of --explain.  [default: few]"
    function = click.option("--explain-stages", metavar="|".join(STAGES), default=STAGES[0], help=text)(function)
    text = "Open the plan into its terms: formulas, numbers, sources. Repeatable, or joined by commas."
    return click.option("--explain", "explain", metavar="|".join(WHAT), multiple=True, help=text)(function)


def parse_explain(texts: Sequence[str], stages: str, *, sources: bool) -> Wanted:
    """Return what is to be explained; raise Failure (exit 2) for unknown words."""
    words = [word.strip() for text in texts for word in text.split(",")]
    problems = [f"--explain {word[:60]!r}: it is one of {', '.join(WHAT)}" for word in dict.fromkeys(words) if word not in WHAT]
    if stages not in STAGES:
        problems.append(f"--explain-stages {stages[:60]!r}: it is one of {', '.join(STAGES)}")
    if problems:
        raise Failure(problems, exit_code=2)
    return Wanted(what=frozenset([*words, *(["sources"] if sources else [])]), every=stages == "all")


def parse_trace(name: str | None, *, force: bool, taken: Sequence[Path] = ()) -> Path | None:
    """Return where the trace goes; raise Failure where it cannot: a folder, a file that is there, one that an export writes."""
    if name is None:
        return None
    path = Path(name)
    if "\0" in name:
        raise Failure([f"--trace {name[:80]!r}: no usable file name"], exit_code=2)
    if path.is_dir() or not name:
        raise Failure([f"--trace {name[:80]!r}: give a file name, such as step.json"], exit_code=2)
    if path in taken:
        raise Failure([f"--trace {name[:80]}: an export has the same file"], exit_code=2)
    if os.path.lexists(path) and not force:
        raise Failure([f"{path} exists; --force replaces it"])
    return path


def write_trace(path: Path, plan: Plan, *, force: bool) -> None:
    """Write the timeline of the plan's step, whole or not at all."""
    from planner.explain.timeline import timeline
    from planner.report.trace import trace_text

    if plan.training.method == "inference":
        raise Failure(["--trace draws a training step; this is inference"])
    made = timeline(plan)
    write_files({path: trace_text(plan, made)}, force=force)
    say(f"wrote {path}: {len(made.slices):,} slices of one step, for ui.perfetto.dev or chrome://tracing")
    for note in made.notes:
        say(f"trace: {note}")
