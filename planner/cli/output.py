"""Where results go: stdout for the answer, stderr for problems and progress, files whole or not at all."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.report.look import Look
    from planner.schema import Record

DEBUG = "--debug"


class Failure(click.ClickException):
    """One or several problems, a line each; `exit_code` 1, or 2 for a request that is wrong."""

    def __init__(self, lines: Iterable[str], exit_code: int = 1) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))
        self.exit_code = exit_code


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
    started: float

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
        output = Output(json=as_json, timings=timings, started=time.perf_counter())
        with output.timed("all"):
            return function(*args, output=output, **options)

    return wrapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """One --export KIND=FILE."""

    kind: str
    path: Path


def parse_exports(texts: Sequence[str], *, force: bool) -> list[Export]:
    """Return the exports asked for; raise Failure for an unknown kind, a missing file name, or a file that exists already."""
    from planner.exporters import UnknownExporter, exporter

    found, problems = [], []
    for text in texts:
        kind, equals, name = text.partition("=")
        if not equals or not name:
            problems.append(f"--export {text[:80]}: give KIND=FILE, such as deepspeed=ds.json or megatron=args.json")
            continue
        try:
            found.append(Export(kind=exporter(kind).NAME, path=Path(name)))
        except UnknownExporter as error:
            problems.append(f"--export {text[:80]}: {error}")
    if problems:
        raise Failure(problems, exit_code=2)
    if not force:
        there = [e.path for e in found if e.path.exists() and not e.path.is_dir()]
        if there:
            raise Failure([f"{path} exists; --force replaces it" for path in there])
    return found


def write_exports(exports: Sequence[Export], plan: Plan, *, force: bool) -> None:
    """Write every export of `plan`, all of them or none; raise Failure where one is refused or cannot be written."""
    from planner.exporters import ExportRefused, adapted, exporter

    files: dict[Path, str] = {}
    problems: list[str] = []
    said: list[str] = []
    for export in exports:
        chosen = exporter(export.kind)
        try:
            there = adapted(plan, chosen)
            files |= _placed(export.path, chosen.export(there))
            said += [f"{export.kind}: {note}" for note in (*_differs(plan, there), *chosen.notes(there))]
        except ExportRefused as refused:
            problems += [f"{export.kind} cannot run this plan: {line}" for line in refused.broken]
            problems.append(f"search with --framework {export.kind} for plans that it can run")
    if problems:
        raise Failure(problems)
    write_files(files, force=force)
    for path in files:
        say(f"wrote {path}")
    for note in dict.fromkeys(said):
        say(note)


def _differs(plan: Plan, there: Plan) -> list[str]:
    """What the same layout comes to in the framework that it is exported for, where that is another one."""
    from planner.report.plans import memory_of, step_of

    if there is plan:
        return []
    was, now = f"{memory_of(plan)} GiB and {step_of(plan)} a step", f"{memory_of(there)} GiB and {step_of(there)} a step"
    return [f"planned for {plan.training.framework} with {was}; under {there.training.framework} the layout takes {now}"]


def _placed(path: Path, texts: dict[str, str]) -> dict[Path, str]:
    """Return path -> text: all files in a folder, else the one file whose suffix fits, else the main one."""
    if path.is_dir():
        return {path / name: text for name, text in texts.items()}
    fitting = [name for name in texts if path.suffix and Path(name).suffix == path.suffix]
    return {path: texts[(fitting or list(texts))[0]]}


def write_files(files: dict[Path, str], *, force: bool) -> None:
    """Write files whole or not at all, never over an existing one without `force`; raise Failure."""
    ready: list[tuple[str, Path]] = []
    try:
        for path, text in files.items():
            if path.exists() and not force:
                raise Failure([f"{path} exists; --force replaces it"])
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                ready.append((file.name, path))
                file.write(text)
        for temporary, path in ready:
            os.chmod(temporary, 0o666 & ~_umask())
            if force:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # unlike rename it fails where the file has appeared in the meantime
    except OSError as error:
        raise Failure([f"{error.filename2 or error.filename or path} cannot be written: {error.strerror or error}"]) from None
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
