"""`planner validate`: predictions against measured runs."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.output import Failure, Output, output_options
from planner.cli.progress import progress_line


@click.command("validate", short_help="Check the predictions against measured runs.")
@click.argument("runs", metavar="RUNS.csv", type=click.Path(path_type=Path))
@output_options
def command(runs: Path, output: Output) -> None:
    """Predict every row of a run table that states enough, and print the errors of step time and of peak memory by source.

    RUNS.csv has a header with any subset of the columns of tests/published/runs.csv (see its README). Rows without measured values
    are predicted all the same (--json).
    """
    with output.timed("imports"):
        from planner.runs import TableError
        from planner.validate import validate
    try:
        with output.timed("validate"), progress_line() as progress:
            if progress is not None:
                progress(f"predicting {runs}")
            report = validate(runs)
    except TableError as error:
        raise Failure([f"{error}"], exit_code=2) from None
    if output.json:
        output.document(report)
        return
    from planner.report.validation import validation_lines

    output.lines(validation_lines(report, output.look))
