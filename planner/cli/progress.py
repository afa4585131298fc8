"""Progress on stderr, on a terminal only and after a second: one line that is wiped when the work is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

WIDTH = 79
PATIENCE_SECONDS = 1.0
"""Work that takes less shows nothing."""


@contextmanager
def progress_line() -> Iterator[Callable[[str], None] | None]:
    """Give a function that shows what is being done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    started = time.monotonic()

    def show(text: str) -> None:
        if time.monotonic() - started > PATIENCE_SECONDS:
            click.echo(f"\r{text[:WIDTH]:<{WIDTH}}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo(f"\r{'':<{WIDTH}}\r", err=True, nl=False)
