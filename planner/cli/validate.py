"""`planner validate`: predictions against measured runs."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.export import write_files
from planner.cli.output import Failure, Output, output_options, say
from planner.cli.progress import progress_line


@click.command("validate", short_help="Check the predictions against measured runs.")
@click.argument("runs", metavar="RUNS.csv", type=click.Path(path_type=Path))
@click.option("--bands", metavar="FILE.toml", type=click.Path(path_type=Path), help="Write the bands of error that the rows give.")
@click.option("--regret", is_flag=True, help="Print the ranking alone: every group of runs that differ in layout only.")
@click.option("--force", is_flag=True, help="Let --bands replace an existing file.")
@output_options
def command(runs: Path, bands: Path | None, regret: bool, force: bool, output: Output) -> None:
    """Predict every row of a run table that states enough, and print the errors of step time and of peak memory by source.

    RUNS.csv has a header with any subset of the columns of tests/published/runs.csv (see its README). Rows without measured values
    are predicted all the same (--json). Intervals and the probability of fit rest on hardware/measured/error.toml, which --bands makes
    from tests/published/runs.csv.
    """
    if bands is not None and not force and bands.exists():
        raise Failure([f"{bands} exists; --force replaces it"])
    with output.timed("imports"):
        from planner.runs import TableError
        from planner.validate import bands_text, predicted, report_of
    try:
        with output.timed("validate"), progress_line() as progress:
            if progress is not None:
                progress(f"predicting {runs}")
            found = predicted(runs)
            text = None if bands is None else bands_text(found)
        if bands is not None and text is not None:
            write_files({bands: text}, force=force)
            say(f"wrote {bands}")
        with output.timed("report"):
            report = report_of(found)
    except TableError as error:
        raise Failure([f"{error}"], exit_code=2) from None
    if output.json:
        output.document(report)
    elif regret:
        from planner.report.regret import regret_lines

        output.lines(regret_lines(report.regret, output.look))
    else:
        from planner.report.validation import validation_lines

        output.lines(validation_lines(report, output.look))
