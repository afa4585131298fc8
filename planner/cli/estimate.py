"""`planner estimate`: memory and time of one layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from planner.cli.export import export_options, parse_exports, write_exports
from planner.cli.options import RequestCommand, given_words, read_request, request_options
from planner.cli.output import Failure, Output, output_options
from planner.cli.sizes import could_mean

if TYPE_CHECKING:
    from planner.assess import Assessment
    from planner.plan import Plan
    from planner.request import Request, Resolved

NO_PLAN = 3


@click.command("estimate", cls=RequestCommand, short_help="Memory and time of one layout.")
@request_options
@export_options
@output_options
@click.pass_context
def command(
    context: click.Context, /, output: Output, request_file: str | None, exports: tuple[str, ...], **options: Any
) -> int:
    """Show memory by stage and bucket, and time by term, of one layout given by flags.

    What is not given is one: degrees and micro-batch; data parallel takes the GPUs that are left. Exit code 2 when the layout breaks
    a law (all broken laws are named), 3 when it does not fit.
    """
    force = options["force"]
    wanted = parse_exports(exports, force=force)
    with output.timed("request"):
        request, resolved = read_request(options, request_file)
    with output.timed("imports"):
        from planner.assess import assess
    with output.timed("estimate"):
        found = assess(resolved)
    if found.plan is None:
        raise Failure([law.message for law in found.broken], exit_code=2)
    with output.timed("report"):
        _report(context, output, request, resolved, found, found.plan)
    if not found.plan.fits:
        return NO_PLAN
    if wanted:
        write_exports([(export, found.plan) for export in wanted], force=force)
    return 0


def _report(
    context: click.Context, output: Output, request: Request, resolved: Resolved, found: Assessment, plan: Plan
) -> None:
    assumed = (*resolved.assumed, *found.assumed)
    misses = () if found.near_miss is None else (found.near_miss,)
    notes = () if len(resolved.cluster.pools) == 1 else (f"only the first pool is estimated: {plan.pool.count} × {plan.pool.gpu.name}",)
    if output.json:
        from planner.report.documents import estimate_document

        output.document(estimate_document(plan, misses, assumed, (*notes, *resolved.warnings)))
        return
    from planner.report.estimate import estimate_lines
    from planner.report.search import next_lines
    from planner.report.understood import understood
    from planner.report.words import command as spelled

    r, look = resolved, output.look
    opening = understood(request.model, could_mean(request.model), r.architecture, r.cluster, plan.training, assumed, r.warnings, look)
    after = next_lines([spelled(["planner", "search", *given_words(context, layout=False)])], look)
    output.lines([*opening, "", *estimate_lines(plan, misses, notes, look), "", *after])
