"""Why not: the best plan of a kind against the winner, term by term, or the laws and limits that rule the kind out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cost_models.numeric import num
from cost_models.result import BUCKETS
from planner.answers import Difference, WhyNot
from planner.asked import FIXABLE, Request, RequestError
from planner.assess import layout_of
from planner.clash import clash_for
from planner.misses import largest_bucket
from planner.plan import Broken, Clash
from planner.request import Resolved, resolve
from planner.rules import binding
from planner.rules.rule import explain
from planner.tokens import ExpressionError
from planner.wish import split_fix

if TYPE_CHECKING:
    from cost_models.result import MemoryCost
    from cost_models.training import Framework
    from planner.plan import Plan, SearchResult

Search = Callable[[Resolved], "SearchResult"]
SHOWN = 8
"""Rules whose counts are told."""


def parse_kind(text: str) -> dict[str, object]:
    """Return the fields of a partial layout such as `tp=4,pp=4,dp=2`. Raises RequestError, which points at the place."""
    values: dict[str, object] = {}
    at = 0
    pieces: list[tuple[int, str]] = []
    for piece in text.split(","):
        if "=" in piece or not pieces:
            pieces.append((at, piece))
        else:  # a value with commas: offload=optimizer,params
            pieces[-1] = (pieces[-1][0], f"{pieces[-1][1]},{piece}")
        at += len(piece) + 1
    for start, piece in pieces:
        try:
            key, value = split_fix(piece, FIXABLE)
        except ExpressionError as error:
            shown = ExpressionError(text, start + error.at, error.message.replace("--fix takes", "--why takes"))
            raise RequestError([f"--why: {shown}"]) from None
        words = tuple(word.strip() for word in value.split(",")) if key == "recompute_modules" else value
        values[key] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else words
    return values


def of_kind(resolved: Resolved, text: str) -> Resolved:
    """Return the request with the fields of a partial layout fixed besides its own, everything else as it was resolved."""
    values = parse_kind(text)
    if resolved.request is None:
        raise RequestError(["--why needs a request"])
    try:
        asked = Request.model_validate({**resolved.request.model_dump(), **values})
    except ValidationError as error:
        raise RequestError([f"--why {e['loc'][0]}: {e['msg'][:1].lower()}{e['msg'][1:]}" for e in error.errors()]) from None
    made = resolve(asked)
    named = "framework" in values
    training = resolved.training.model_copy(update={"framework": made.training.framework}) if named else resolved.training
    return replace(
        resolved, fixed=made.fixed, training=training, frameworks=made.frameworks if named else resolved.frameworks, request=asked
    )


def why_not(
    resolved: Resolved,
    text: str,
    winner: Plan | None,
    search: Search,
    exists: Callable[[Resolved], Plan | None],
    frameworks: Callable[[Resolved], tuple[Framework, ...]],
) -> WhyNot:
    """Return where the best plan of the kind that `text` names loses against `winner`, or why there is no such plan.

    Raises RequestError where `text` names no kind.
    """
    kind = of_kind(resolved, text)
    result = search(kind)
    if result.plans:
        made = result.plans[0]
        return WhyNot(
            asked=text,
            plan=made,
            winner=winner,
            time=() if winner is None else _time(made, winner),
            memory=() if winner is None else _memory(made, winner),
        )
    counts = [(name, count) for name, count in result.searched.by_rule.items() if count]
    clash: Clash | None = clash_for(kind, exists)
    broken = () if result.searched.lawful else _broken(kind, frameworks(kind))
    return WhyNot(
        asked=text,
        plan=None,
        winner=winner,
        broken=broken,
        excluded=tuple(sorted(counts, key=lambda item: (-item[1], item[0]))[:SHOWN]),
        near_misses=result.near_misses,
        clash=clash,
    )


def _broken(kind: Resolved, frameworks: tuple[Framework, ...]) -> tuple[Broken, ...]:
    """Return the laws and wishes that the fixed fields break whatever the others are, of the framework that breaks the fewest."""
    told: list[tuple[Broken, ...]] = []
    for pool in kind.cluster.pools:
        for framework in frameworks:
            case = kind.case(pool, framework)
            layout = layout_of(case)
            active = binding(case)
            failed = [r for r in active if set(r.reads) <= _settled(case.given, case.world) and not bool(_all(r.holds(case, layout)))]
            told.append(tuple(Broken(rule=r.id, message=explain(case, layout, r, [o for o in active if o is not r])) for r in failed))
    return min((t for t in told if t), key=len, default=())


def _all(mask: Any) -> bool:
    return bool(num(mask).all())


def _settled(given: Any, world: int) -> set[str]:
    """Return the fields whose values the fixed ones decide: themselves, and dp and cp where the GPUs leave no choice."""
    known = set(given)
    product = 1.0
    for name in ("tp", "pp", "cp", "dp"):
        product *= float(given.get(name, 1))
    if product > world or world % product or {"tp", "pp", "cp"} <= known:
        known |= {"tp", "pp", "cp", "dp"}
    return known


def _time(asked: Plan, winner: Plan) -> tuple[Difference, ...]:
    """Return the exposed seconds of every term of either plan."""
    seconds = [_exposed(asked), _exposed(winner)]
    names = dict.fromkeys((*seconds[0], *seconds[1]))
    rows = [Difference(term=n, asked=seconds[0].get(n, 0.0), winner=seconds[1].get(n, 0.0), unit="seconds") for n in names]
    return tuple(sorted(rows, key=lambda row: (-row.more, row.term)))


def _exposed(made: Plan) -> dict[str, float]:
    found: dict[str, float] = {}
    for term in made.cost.time.ledger.terms:
        value = term.value if term.exposed is None else term.exposed
        found[term.name] = found.get(term.name, 0.0) + float(num(value).reshape(-1)[0])
    return found


def _memory(asked: Plan, winner: Plan) -> tuple[Difference, ...]:
    """Return the buckets of the fullest stage of either plan, at its fullest phase; with the overhead they sum to the device peak."""
    sizes = [_buckets(asked.cost.memory), _buckets(winner.cost.memory)]
    rows = [Difference(term=n, asked=sizes[0][n], winner=sizes[1][n], unit="bytes") for n in BUCKETS if sizes[0][n] or sizes[1][n]]
    return tuple(sorted(rows, key=lambda row: (-row.more, row.term)))


def _buckets(memory: MemoryCost) -> dict[str, float]:
    stages = [int(s) for s in num(memory.stage_index).reshape(-1)]
    stage, phase, _, _ = largest_bucket(memory)
    at = stages.index(stage)
    found = {name: _at(memory.phases[phase].bucket(name), at) for name in BUCKETS}
    found["overhead"] += _at(memory.overhead.total, at)
    return found


def _at(value: object, stage: int) -> float:
    flat = num(value).reshape(-1)
    return float(flat[stage if flat.size > 1 else 0])
