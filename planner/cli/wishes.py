"""The options of a search beyond its layout flags: wishes, objective, and what is asked beside the ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from planner.cli.output import Failure

if TYPE_CHECKING:
    from planner.answers import Answers
    from planner.plan import Plan, SearchResult
    from planner.request import Resolved

WISHES = ("fix", "max", "min", "forbid", "require")
_HELP = {
    "fix": ("FIELD=VALUE", "Fix a layout field, as its flag does."),
    "max": ("NAME=VALUE", "Upper limit of a field or a result: pp=8, memory=70GiB, step=12s."),
    "min": ("NAME=VALUE", "Lower limit."),
    "forbid": ("CONDITION", 'What no plan may be: "zero=3".'),
    "require": ("CONDITION", 'What every plan must be: "sequence_parallel", "tp*cp <= 8", "mfu >= 0.4".'),
}
OBJECTIVES = ("time", "cost", "memory", "gpus")


def wish_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the wishes, the objective and the further questions."""
    decorators = [
        *(click.option(f"--{n}", n, multiple=True, metavar=_HELP[n][0], help=f"{_HELP[n][1]} May be repeated.") for n in WISHES),
        click.option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            help="Rank by step time, tokens per dollar, memory left free, or use the fewest GPUs.  [default: time]",
        ),
        click.option("--pareto", is_flag=True, help="Show the front of step time against memory."),
        click.option("--why", multiple=True, metavar="FIELD=VALUE,…", help="Say why not this kind of layout: tp=4,pp=4. May be repeated."),
        click.option("--sensitivity", is_flag=True, help="Show what more memory, links, batch or GPUs would buy."),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def wish_request(options: Mapping[str, Any]) -> dict[str, object]:
    """Return the request's keys of these options; None where not given, so that a request file's stay."""
    wishes = {name: options[name] or None for name in WISHES}
    return {**wishes, "objective": options["objective"]}


def check_questions(options: Mapping[str, Any]) -> None:
    """Raise Failure (exit 2) for a --why that cannot be read, before anything is searched."""
    from planner.asked import RequestError
    from planner.why import parse_kind

    lines: list[str] = []
    for text in options["why"]:
        try:
            parse_kind(text)
        except RequestError as error:
            lines += error.lines
    if lines:
        raise Failure(lines, exit_code=2)


def answered(resolved: Resolved, result: SearchResult, options: Mapping[str, Any], progress: Callable[[str], None] | None) -> Answers:
    """Return what was asked beside the ranking. Raises Failure (exit 2) where --why names values that do not exist."""
    from dataclasses import replace

    from planner.answers import Answers
    from planner.asked import RequestError
    from planner.exists import any_plan
    from planner.objectives import pareto
    from planner.search import best, frameworks, search
    from planner.sensitivity import sensitivities
    from planner.why import why_not

    by_time = replace(resolved, objective="time")

    def exists(asked: Resolved) -> Plan | None:
        return any_plan(asked, frameworks, best)

    def found(asked: Resolved) -> SearchResult:
        return search(asked, top=1, remedies=False, progress=progress)

    def first(asked: Resolved) -> Plan | None:
        return next(iter(found(asked).plans), None)

    winner = result.plans[0] if result.plans else None
    try:
        why = tuple(why_not(by_time, text, winner, found, exists, frameworks) for text in options["why"])
    except RequestError as error:
        raise Failure(error.lines, exit_code=2) from None
    front, size = pareto(by_time, result.plans, progress=progress) if options["pareto"] else ((), 0)
    fastest = winner if resolved.objective == "time" else first(by_time) if options["sensitivity"] else None
    rows = sensitivities(by_time, fastest, first) if options["sensitivity"] else ()
    return Answers(front=front, front_size=size, why=why, sensitivity=rows)
