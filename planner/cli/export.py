"""--export: configurations of a plan as files, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.output import Failure, say

if TYPE_CHECKING:
    from planner.exporters import Exporter
    from planner.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """One --export KIND=FILE."""

    kind: str
    path: Path

    @property
    def exporter(self) -> Exporter:
        """Who writes it."""
        from planner.exporters import exporter

        return exporter(self.kind)


def export_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --export and --force."""
    function = click.option("--force", is_flag=True, help="Let files that exist be replaced.")(function)
    text = "Write a configuration: deepspeed=ds.json, megatron=args.json (a list) or megatron=args.sh (a shell line). Repeatable."
    return click.option("--export", "exports", metavar="KIND=FILE", multiple=True, help=text)(function)


def parse_exports(texts: Sequence[str], *, force: bool) -> list[Export]:
    """Return the exports asked for; raise Failure for an unknown kind, a missing file name, or a file that exists already."""
    if not texts:
        return []
    from planner.exporters import UnknownExporter, exporter

    found: list[Export] = []
    problems: list[str] = []
    for text in texts:
        kind, equals, name = text.partition("=")
        if not equals or not name:
            problems.append(f"--export {text[:80]}: give KIND=FILE, such as deepspeed=ds.json or megatron=args.json")
            continue
        try:
            found.append(Export(kind=exporter(kind).NAME, path=Path(name)))
        except UnknownExporter as error:
            problems.append(f"--export {text[:80]}: {error}")
    if len({export.path for export in found}) < len(found):
        problems.append("--export: two exports have the same file")
    if problems:
        raise Failure(problems, exit_code=2)
    there = [] if force else [e.path for e in found if _exists(e.path) and not e.path.is_dir()]
    if there:
        raise Failure(f"{path} exists; --force replaces it" for path in there)
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise Failure([f"--export {str(path)[:80]!r}: no usable file name: {error}"], exit_code=2) from None


def write_exports(exports: Iterable[tuple[Export, Plan]], *, force: bool) -> None:
    """Write every export of its plan, all of them or none; raise Failure where one is refused or cannot be written."""
    from planner.exporters import ExportRefused, adapted

    files: dict[Path, str] = {}
    problems: list[str] = []
    said: list[str] = []
    for export, plan in exports:
        name = export.exporter.NAME
        try:
            there = adapted(plan, export.exporter)
            placed = _placed(export.path, export.exporter.export(there))
        except ExportRefused as refused:
            problems += [f"{name} cannot run this plan: {line}" for line in refused.broken]
            problems.append(f"--framework {name} finds plans that it can run")
            continue
        files |= placed
        said += [f"wrote {path}: {_described(there)}" for path in placed]
        said += [f"{name}: {note}" for note in export.exporter.notes(there)]
    if problems:
        raise Failure(problems)
    write_files(files, force=force)
    for text in said:
        say(text)


def first_accepted(exporter: Exporter, plans: Iterable[Plan]) -> Plan | None:
    """Return the first plan that `exporter` can state, and say on stderr why better ones were passed over; None for none."""
    from planner.exporters import ExportRefused, adapted

    passed: list[str] = []
    for plan in plans:
        try:
            exporter.export(adapted(plan, exporter))
        except ExportRefused as refused:
            passed.append(f"{exporter.NAME} cannot run {_described(plan)}: {refused.broken[0]}")
            continue
        for line in passed:
            say(line)
        return plan
    return None


def _described(plan: Plan) -> str:
    from planner.report.plans import memory_of, step_of
    from planner.report.words import layout_name

    return f"{layout_name(plan.layout)} in {plan.training.framework}, {memory_of(plan)} GiB, {step_of(plan)} a step"


def _placed(path: Path, texts: dict[str, str]) -> dict[Path, str]:
    """Return path -> text: all files in a folder, else the one file whose suffix fits, else the main one."""
    if path.is_dir():
        return {path / name: text for name, text in texts.items()}
    fitting = [name for name in texts if path.suffix and Path(name).suffix == path.suffix]
    return {path: texts[(fitting or list(texts))[0]]}


def write_files(files: dict[Path, str], *, force: bool) -> None:
    """Write files whole or not at all, never over an existing one without `force`; raise Failure.

    All are written beside their places first, under hidden names, and moved when every one is complete.
    """
    ready: list[tuple[str, Path]] = []
    path = Path()
    try:
        for path, text in files.items():
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".planner-", delete=False) as file:
                ready.append((file.name, path))
                file.write(text)
            os.chmod(file.name, 0o666 & ~_umask())
        for temporary, path in ready:
            if force:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)  # unlike a move it fails where the file has appeared in the meantime
    except FileExistsError:
        raise Failure([f"{path} exists; --force replaces it"]) from None
    except OSError as error:
        raise Failure([f"{path} cannot be written: {error.strerror or error}"]) from None
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
