"""Read a run table: CSV with a header, any subset of the known columns in any order."""

from __future__ import annotations

import csv
import difflib
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.units import MIB, quote
from planner.runs.row import FIELD_OF_COLUMN, INFORMATIVE, CellError, Run, read_cell

MAX_BYTES = int(64 * MIB)
"""A table of 100,000 rows of the published kind has about 60 MiB; more is taken for a mistake."""
MAX_SHOWN = 200
_SEPARATORS = (",", "\t", ";")


class TableError(ValueError):
    """A file that is no run table; the text is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The rows of a file and what could not be read."""

    path: str
    runs: tuple[Run, ...]
    problems: tuple[str, ...] = ()
    """One line each: unknown columns, bad cells by line and column."""


def read(path: str | Path) -> Table:
    """Return the runs of the CSV file `path`. Raises TableError where it is no run table at all."""
    text = _text(Path(path))
    header_line = text.split("\n", 1)[0]
    separator = next((s for s in _SEPARATORS if s in header_line), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=False)
    name = quote(str(path))
    try:
        header = [cell.strip() for cell in next(reader)]
        columns, problems = _columns(header, name)
        runs: list[Run] = []
        begin = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                runs.append(_run(columns, cells, begin, problems, len(header)))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{name} is no readable CSV: line {reader.line_num}: {error}") from None
    if not runs:
        raise TableError(f"{name} has a header but no rows")
    problems.extend(f"id {quote(i)} occurs {n} times" for i, n in Counter(run.id for run in runs).items() if n > 1)
    shown = problems[:MAX_SHOWN]
    if len(problems) > MAX_SHOWN:
        shown.append(f"{len(problems) - MAX_SHOWN} more problems of this kind are not listed")
    return Table(path=str(path), runs=tuple(runs), problems=tuple(shown))


def _text(path: Path) -> str:
    """The file's text. Raises TableError where it is absent, empty, too large or not UTF-8 text."""
    name = quote(str(path))
    try:
        if path.is_dir():
            raise TableError(f"{name} is a folder; a CSV file is wanted")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise TableError(f"{name} has {size / MIB:,.0f} MiB; at most {MAX_BYTES / MIB:.0f} MiB are read")
        raw = path.read_bytes()[: MAX_BYTES + 1]
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a valid file name"
        raise TableError(f"{name} cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise TableError(f"{name} has more than {MAX_BYTES / MIB:.0f} MiB")
    if b"\0" in raw:
        raise TableError(f"{name} is binary, no CSV text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(f"{name} is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise TableError(f"{name} is empty")
    return text.lstrip("\r\n")


def _columns(header: list[str], name: str) -> tuple[list[str | None], list[str]]:
    """Field of each column (None: unknown) and the problems. Raises TableError where no column, or one twice, is known."""
    known = [cell.lower() if cell.lower() in FIELD_OF_COLUMN else None for cell in header]
    twice = [column for column, count in Counter(c for c in known if c).items() if count > 1]
    if twice:
        raise TableError(f"{name}: column {', '.join(twice)} occurs twice")
    if not any(known):
        given = quote(", ".join(header))
        raise TableError(f"{name} is no run table: none of its columns is known ({given}); expected e.g. id, layers, hidden, gpu, tp")
    problems = []
    for cell, column in zip(header, known, strict=True):
        if column is None and cell:
            near = difflib.get_close_matches(cell.lower(), FIELD_OF_COLUMN, n=1, cutoff=0.6)
            hint = f"; nearest: {near[0]}" if near else ""
            problems.append(f"column {quote(cell)} is unknown and not read{hint}")
    return known, problems


def _run(columns: list[str | None], cells: list[str], line: int, problems: list[str], width: int) -> Run:
    """One row; unreadable cells are noted in `problems`, and in the row where a prediction would need them."""
    values: dict[str, Any] = {}
    bad: list[str] = []
    if len(cells) > width:
        bad.append(f"line {line} has {len(cells)} cells under {width} columns")
    for column, text in zip(columns, cells, strict=False):
        if column is None:
            continue
        try:
            value = read_cell(column, text)
        except CellError as error:
            message = f"line {line}, column {column}: {quote(text.strip())} {error}"
            problems.append(message)
            if column not in INFORMATIVE:
                bad.append(message)
            continue
        if value is not None:
            values[FIELD_OF_COLUMN[column]] = value
    if len(cells) > width:
        problems.append(bad[0])
    return Run(line=line, bad=tuple(bad), **{"id": f"line {line}", **values})
