"""`planner search`: the plans that fit, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from planner.cli.options import export_options, given_words, layout_words, read_request, request_options
from planner.cli.output import Output, output_options, parse_exports, write_exports
from planner.cli.progress import progress_line

if TYPE_CHECKING:
    from planner.plan import Plan, SearchResult
    from planner.request import Request, Resolved

NO_PLAN = 3


@click.command("search", short_help="Rank the layouts that fit a cluster.")
@request_options
@click.option("--top", type=click.IntRange(1, 1000), metavar="N", help="Plans to show.  [default: 10]")
@export_options
@output_options
@click.pass_context
def command(
    context: click.Context, output: Output, request_file: str | None, top: int | None, exports: tuple[str, ...], force: bool, **options: Any
) -> int:
    """Rank the layouts that fit a cluster, and show where the memory and the time of the best go.

    Layout flags that are given are kept; the others are searched. --export writes the best plan. Exit code 3 when nothing fits: then
    the nearest misses and what would fit are shown.
    """
    wanted = parse_exports(exports, force=force)
    with output.timed("request"):
        request, resolved = read_request(options, request_file, top=top)
    with output.timed("imports"):
        from planner.search import search
    with output.timed("search"), progress_line() as progress:
        result = search(resolved, progress=progress)
    with output.timed("report"):
        _report(context, output, request, resolved, result)
    if not result.plans:
        return NO_PLAN
    if wanted:
        write_exports(wanted, result.plans[0], force=force)
    return 0


def _report(context: click.Context, output: Output, request: Request, resolved: Resolved, result: SearchResult) -> None:
    if output.json:
        from planner.report.documents import search_document

        output.document(search_document(result, resolved.assumed, resolved.warnings, request.top))
        return
    from planner.report.search import search_lines
    from planner.report.understood import understood
    from planner.report.words import command as spelled

    r = resolved
    opening = understood(request.model, r.architecture, r.cluster, r.training, r.assumed, r.warnings, output.look)
    base = spelled(["planner", "search", *given_words(context)])
    output.lines([*opening, "", *search_lines(result, base, request.top, _next(context, result.plans), output.look)])


def _next(context: click.Context, plans: tuple[Plan, ...]) -> list[str]:
    """Commands that go on from here: look at plan 1 by stage, and write a configuration of it."""
    from planner.exporters import ExportRefused, adapted, exporters
    from planner.report.words import command as spelled

    if not plans:
        return []
    best = plans[0]
    commands = []
    if best.layout.stage_layers is None and best.layout.stage_recompute is None:
        commands.append(spelled(["planner", "estimate", *given_words(context, layout=False), *layout_words(best)]))
    for name, chosen in exporters().items():
        try:
            chosen.export(adapted(best, chosen))
        except ExportRefused:
            continue
        commands.append(spelled(["planner", "search", *given_words(context), "--export", f"{name}={name}.json"]))
        break
    return commands
