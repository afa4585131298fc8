"""The command line: one file per command, found by a folder scan. Start-up reads nothing but click; each command imports what it needs.

Exit codes: 0 found, 1 error, 2 usage, 3 no feasible plan. stdout is the result, stderr the rest; a problem is one line, never a traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import iter_modules
from typing import cast

import click

from planner.cli.output import DEBUG, INTERRUPTED, Failure, say_problems

ERROR, USAGE = 1, 2


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("planner")
    except PackageNotFoundError:  # run from the project's folder, never installed
        stated = re.search(r'^version = "(.+)"', (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"), re.M)
        return stated[1] if stated else "unknown"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"planner {installed_version()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def planner() -> None:
    """Plan how to train a large language model on a GPU cluster: what fits, how fast it runs, and why."""


for _module in iter_modules(__path__):
    if (_command := getattr(import_module(f"{__name__}.{_module.name}"), "command", None)) is not None:
        planner.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the arrows and dots still gets the message
    try:
        code = planner.main(given, prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
        return cast("int | None", code) or 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit does not flush into it again
        return 0
    except Failure as failure:
        say_problems(failure.lines)
        return failure.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        say_problems([f"{error.format_message()} (see planner --help)" if isinstance(error, click.UsageError) else error.format_message()])
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        if DEBUG in given:
            raise
        text = f"{error}".splitlines()[0] if f"{error}" else ""
        say_problems([f"this is a bug in planner: {type(error).__name__}: {text[:200]} (--debug shows where)"])
        return ERROR
