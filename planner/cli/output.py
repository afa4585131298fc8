"""Where results go: stdout for the answer, stderr for problems and progress, files whole or not at all."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from planner.report.look import Look
    from planner.schema import Record

DEBUG = "--debug"
INTERRUPTED = 3


class Failure(Exception):
    """One or several problems, a line each; `exit_code` 1, or 2 for a request that is wrong."""

    def __init__(self, lines: Iterable[str], exit_code: int = 1) -> None:
        self.lines = list(lines)
        self.exit_code = exit_code
        super().__init__("\n".join(self.lines))


def say_problems(lines: Iterable[str]) -> None:
    """Print problems on stderr, one line each."""
    for text in lines:
        for line in text.splitlines() or [""]:
            click.echo(f"✗ {line}", err=True)


def say(text: str) -> None:
    """Print what is not the result."""
    click.echo(text, err=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """How a command was asked to answer."""

    json: bool
    timings: bool

    @property
    def look(self) -> Look:
        """Width and colour for stdout."""
        from planner.report.look import WIDTH, Look

        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return Look(width=min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns), colour=colour)

    def lines(self, lines: Iterable[str]) -> None:
        """Print the result."""
        click.echo("\n".join(lines), color=True)

    def document(self, document: Record) -> None:
        """Print the result as JSON."""
        click.echo(document.model_dump_json(indent=2))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Say on stderr how long a part took, where --timings asks for it."""
        start = time.perf_counter()
        yield
        if self.timings:
            say(f"{what} {time.perf_counter() - start:.3f} s")


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the output options that all commands have; it gets one argument `output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON (base units; `planner schema` describes it).")
    @click.option("--timings", is_flag=True, help="Print wall times on stderr.")
    @click.option(DEBUG, is_flag=True, help="Show where an unexpected error came from.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, timings: bool, debug: bool, **options: Any) -> Any:
        output = Output(json=as_json, timings=timings)
        try:
            with output.timed("all"):
                return function(*args, output=output, **options)
        except KeyboardInterrupt:
            raise Failure(["interrupted before there was a result"], exit_code=INTERRUPTED) from None

    return wrapped
