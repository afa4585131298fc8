"""`planner estimate`: memory and time of one layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from planner.cli.explain import Wanted, explain_options, parse_explain, parse_trace, write_trace
from planner.cli.export import export_options, parse_exports, write_exports
from planner.cli.options import RequestCommand, given_words, read_request, request_options
from planner.cli.output import Failure, Output, output_options
from planner.cli.sizes import could_mean

if TYPE_CHECKING:
    from planner.asked import Request
    from planner.assess import Assessment
    from planner.plan import Plan
    from planner.request import Resolved

NO_PLAN = 3


@click.command("estimate", cls=RequestCommand, short_help="Memory and time of one layout.")
@request_options
@explain_options
@click.option("--trace", metavar="FILE", help="Write the timeline of the predicted step for Perfetto or chrome://tracing.")
@export_options
@output_options
@click.pass_context
def command(
    context: click.Context, /, output: Output, request_file: str | None, exports: tuple[str, ...], trace: str | None, **options: Any
) -> int:
    """Show memory by stage and bucket, and time by term, of one layout given by flags.

    What is not given is one: degrees and micro-batch; data parallel takes the GPUs that are left. Exit code 2 when the layout breaks
    a law (all broken laws are named), 3 when it does not fit. A trace is written all the same.
    """
    force = options["force"]
    explained = parse_explain(options["explain"], options["explain_stages"], sources=options["sources"])
    wanted = parse_exports(exports, force=force)
    drawn = parse_trace(trace, force=force, taken=[export.path for export in wanted])
    with output.timed("request"):
        request, resolved = read_request(options, request_file)
    with output.timed("imports"):
        from planner.assess import assess
    with output.timed("estimate"):
        found = assess(resolved)
    if found.plan is None:
        raise Failure([law.message for law in found.broken], exit_code=2)
    with output.timed("report"):
        _report(context, output, request, resolved, found, found.plan, explained)
    if drawn is not None:
        with output.timed("trace"):
            write_trace(drawn, found.plan, force=force)
    if not found.plan.fits:
        return NO_PLAN
    if wanted:
        write_exports([(export, found.plan) for export in wanted], force=force)
    return 0


def _report(
    context: click.Context, output: Output, request: Request, resolved: Resolved, found: Assessment, plan: Plan, wanted: Wanted
) -> None:
    from planner.length_study import study

    assumed = (*resolved.assumed, *found.assumed)
    misses = () if found.near_miss is None else (found.near_miss,)
    notes = () if len(resolved.cluster.pools) == 1 else (f"only the first pool is estimated: {plan.pool.count} × {plan.pool.gpu.name}",)
    explained = wanted.explain(plan)
    lengths = None if resolved.lengths is None else study(resolved, plan)
    if output.json:
        from planner.report.documents import estimate_document
        from planner.report.explanation import explanation_record

        record = None if explained is None else explanation_record(explained)
        said = (*notes, *resolved.warnings)
        output.document(estimate_document(plan, misses, assumed, said, record, lengths, found.software))
        return
    from planner.report.estimate import estimate_lines
    from planner.report.lengths import lengths_lines
    from planner.report.search import next_lines
    from planner.report.understood import understood
    from planner.report.words import command as spelled

    r, look = resolved, output.look
    opening = understood(request.model, could_mean(request.model), r.architecture, r.cluster, plan.training, assumed, r.warnings, look)
    more = [] if wanted.what else [spelled(["planner", "estimate", *given_words(context), "--explain", "memory,time"])]
    after = next_lines([spelled(["planner", "search", *given_words(context, layout=False)]), *more], look)
    answer = estimate_lines(plan, misses, notes, look, wanted.what, found.software)
    if lengths is not None:
        answer += ["", *lengths_lines(lengths, plan, look)]
    if explained is not None:
        from planner.report.explanation import explanation_lines

        answer += explanation_lines(explained, look, every=wanted.every)
    output.lines([*opening, "", *answer, "", *after])
