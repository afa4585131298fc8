"""Progress on stderr, on a terminal only: one line that is wiped when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

WIDTH = 79


@contextmanager
def progress_line() -> Iterator[Callable[[str], None] | None]:
    """Give a function that shows what is being done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda text: click.echo(f"\r{text[:WIDTH]:<{WIDTH}}", err=True, nl=False)
    finally:
        click.echo(f"\r{'':<{WIDTH}}\r", err=True, nl=False)
