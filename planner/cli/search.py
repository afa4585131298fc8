"""`planner search`: the plans that fit, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from planner.cli.explain import Wanted, explain_options, parse_explain
from planner.cli.export import export_options, first_accepted, parse_exports, write_exports
from planner.cli.options import RequestCommand, given_words, layout_words, read_request, request_options
from planner.cli.output import Failure, Output, output_options
from planner.cli.progress import progress_line
from planner.cli.sizes import could_mean
from planner.cli.wishes import answered, check_questions, wish_options, wish_request

if TYPE_CHECKING:
    from planner.answers import Answers
    from planner.asked import Request
    from planner.exporters import Exporter
    from planner.plan import Plan, SearchResult
    from planner.request import Resolved

NO_PLAN = 3


@click.command("search", cls=RequestCommand, short_help="Rank the layouts that fit a cluster.")
@request_options
@wish_options
@click.option("--top", type=click.IntRange(1, 1000), metavar="N", help="Plans to show.  [default: 10]")
@click.option("--time-limit", type=click.FloatRange(0, 86_400), metavar="SECONDS", help="End after this long with the best plans so far.")
@explain_options
@export_options
@output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    output: Output,
    request_file: str | None,
    top: int | None,
    time_limit: float | None,
    exports: tuple[str, ...],
    **options: Any,
) -> int:
    """Rank the layouts that fit a cluster, and show where the memory and the time of the best go.

    Layout flags that are given are kept; the others are searched. --explain opens the best plan, --export writes it for its framework.
    Exit code 3 when nothing fits: then the nearest misses and what would fit are shown.
    """
    force = options["force"]
    explained = parse_explain(options["explain"], options["explain_stages"], sources=options["sources"])
    wanted = parse_exports(exports, force=force)
    with output.timed("request"):
        request, resolved = read_request(options, request_file, top=top, **wish_request(options))
        if request.stage_layers is not None or request.stage_recompute is not None:
            raise Failure(["stage_layers and stage_recompute state one layout, for planner estimate; a search chooses them"], exit_code=2)
        if request.framework == "unknown":
            raise Failure(
                ["framework=unknown gives one layout a band, for planner estimate; a search goes over any, or a named one"], exit_code=2
            )
        check_questions(options)
    with output.timed("imports"):
        from planner.objectives import planned
    with output.timed("search"), progress_line() as progress:
        result = planned(resolved, progress=progress, time_limit=time_limit)
        answers = answered(resolved, result, options, progress)
    with output.timed("report"):
        _report(context, output, request, resolved, result, explained, answers)
    if not result.plans:
        over_pools = result.mixed is not None and bool(result.mixed.plans)
        if wanted and over_pools:
            raise Failure(["no pool alone holds a plan, and plans over several pools are not exported"])
        return 0 if over_pools else NO_PLAN
    if wanted:
        with output.timed("export"):
            write_exports([(export, best_for(export.exporter, resolved, result)) for export in wanted], force=force)
    return 0


def best_for(exporter: Exporter, resolved: Resolved, result: SearchResult) -> Plan:
    """Return the best plan that the export can state; where there is none, plan 1, whose refusal then says why.

    Plans of the ranking come first; where none of them will do, a search is made for the export's frameworks alone.
    """
    from dataclasses import replace

    from planner.search import search

    ranked = [p for p in result.plans if resolved.frameworks or p.training.framework in exporter.FRAMEWORKS]
    chosen = first_accepted(exporter, ranked)
    if chosen is None and not resolved.frameworks:
        found = search(replace(resolved, frameworks=exporter.FRAMEWORKS), remedies=False)
        chosen = first_accepted(exporter, found.plans)
    return chosen or (ranked[0] if ranked else result.plans[0])


def _report(
    context: click.Context,
    output: Output,
    request: Request,
    resolved: Resolved,
    result: SearchResult,
    wanted: Wanted,
    answers: Answers,
) -> None:
    from planner.length_study import study

    name, plan = _to_explain(result)
    explained = None if plan is None else wanted.explain(plan)
    lengths = None if plan is None or resolved.lengths is None else study(resolved, plan)
    if output.json:
        from planner.report.answer_documents import further_fields
        from planner.report.documents import search_document
        from planner.report.explanation import explanation_record
        from planner.report.mixed_documents import mixed_record

        record = None if explained is None else explanation_record(explained)
        mixed = None if result.mixed is None else mixed_record(result.mixed, request.top)
        further = further_fields(result, answers)
        r = resolved
        output.document(search_document(result, r.assumed, r.warnings, request.top, record, lengths, further, mixed))
        return
    from planner.report.answers import answer_lines
    from planner.report.lengths import lengths_lines
    from planner.report.search import next_lines, search_lines
    from planner.report.understood import understood

    r, look = resolved, output.look
    also = could_mean(request.model)
    opening = understood(request.model, also, r.architecture, r.cluster, r.training, r.assumed, r.warnings, look)
    answer = [*search_lines(result, request.top, (), look), *answer_lines(answers, look)]
    if lengths is not None and plan is not None:
        answer += ["", *lengths_lines(lengths, plan, look)]
    if explained is not None:
        from planner.report.explanation import explanation_lines

        answer += explanation_lines(explained, look, every=wanted.every, name=name)
    after = next_lines(_next(context, result, explained is not None), look)
    output.lines([*opening, "", *answer, *(["", *after] if after else [])])


def _to_explain(result: SearchResult) -> tuple[str, Plan | None]:
    """The best plan, or the nearest miss where nothing fits, and what to call it."""
    if result.plans:
        return "plan 1", result.plans[0]
    return "the nearest", result.near_misses[0].plan if result.near_misses else None


def _next(context: click.Context, result: SearchResult, explained: bool) -> list[str]:
    """Commands that go on from here: plan 1 by stage and a configuration, or the gentlest remedy."""
    from planner.report.words import command as spelled

    base = ["planner", "search", *given_words(context)]
    if not result.plans:
        flags = next((r.flags.split() for r in result.remedies if r.flags.startswith("--")), [])
        return [spelled(["planner", "search", *given_words(context, without=flags), *flags])] if flags else []
    best = result.plans[0]
    words = ["planner", "estimate", *given_words(context, layout=False, without=("--framework",)), *layout_words(best)]
    commands = [spelled([*words, *(() if explained else ("--explain", "memory"))])]
    name = _exportable(result.plans)
    return commands if name is None else [*commands, spelled([*base, "--export", f"{name}={name}.json"])]


def _exportable(plans: tuple[Plan, ...]) -> str | None:
    """An export that the first plan of its framework passes."""
    from planner.exporters import ExportRefused, exporters

    for plan in plans:
        for name, chosen in exporters().items():
            if plan.training.framework not in chosen.FRAMEWORKS:
                continue
            try:
                chosen.export(plan)
            except ExportRefused:
                continue
            return name
    return None
