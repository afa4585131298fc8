"""Objectives: what the ranking is by: step time, tokens per dollar, memory left free, or the fewest GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cost_models.numeric import num
from planner import search as engine
from planner.board import Entry
from planner.evaluate import plan
from planner.exists import any_plan
from planner.measures import SECONDS_PER_HOUR, usd_per_hour
from planner.plan import Plan, Searched, SearchResult, Status
from planner.requirements import same_server, with_pools
from planner.scan import OutOfTime
from planner.search import best, frameworks, spaces
from planner.space import Counts
from planner.sweep import Front, Keeper, Leanest, sweep, thinned

if TYPE_CHECKING:
    from hardware.spec import Pool
    from planner.request import Resolved

COUNTS = 64
"""Numbers of GPUs that are tried at most."""
Progress = Callable[[str], None]


def planned(resolved: Resolved, **options: Any) -> SearchResult:
    """Return the result of a search by the request's objective; options are those of `search`."""
    if resolved.objective == "memory":
        return _leanest(resolved, **options)
    if resolved.objective == "gpus":
        return _fewest(resolved, **options)
    if resolved.objective == "cost":
        return _cheapest(resolved, **options)
    return engine.search(resolved, **options)


def tokens_per_dollar(made: Plan) -> float | None:
    """Return what a dollar buys; None where the price of the server is unknown."""
    rate = usd_per_hour(made.pool)
    return None if rate is None else tokens_per_second(made) * SECONDS_PER_HOUR / rate


def tokens_per_second(made: Plan) -> float:
    """Return the tokens of all GPUs."""
    return float(num(made.cost.time.tokens_per_second_per_gpu)) * made.pool.count


def pareto(
    resolved: Resolved, ranked: tuple[Plan, ...] = (), *, progress: Progress | None = None, time_limit: float | None = None
) -> tuple[tuple[Plan, ...], int]:
    """Return the readable part of the front of step time against device bytes, the fastest first, and the size of the whole front.

    It is of the grid, where recompute and offload are all or nothing, and of the `ranked` plans of a search, where they are not.
    """
    front = Front()
    front.merge([_entry(resolved, made) for made in ranked])
    _swept(resolved, front, progress, time_limit)
    return tuple(plan(e.case, e.layout) for e in thinned(front.entries)), len(front.entries)


def _entry(resolved: Resolved, made: Plan) -> Entry:
    return Entry(
        case=resolved.case(made.pool, made.training.framework),
        layout=made.layout,
        step_seconds=float(num(made.cost.time.step_seconds)),
        device_bytes=float(num(made.cost.memory.peak_device_bytes)),
    )


def _swept(resolved: Resolved, keeper: Keeper, progress: Progress | None, time_limit: float | None) -> tuple[Searched, bool]:
    """Sweep all pools into one keeper; also tell whether it was interrupted."""
    deadline = None if time_limit is None else time.monotonic() + time_limit
    counts, evaluated, interrupted = Counts(), 0, False

    def look() -> None:
        if progress is not None:
            progress(f"{counts.lawful:,} lawful layouts")
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime

    try:
        for pool in resolved.cluster.pools:
            evaluated += sweep(spaces(resolved, pool, counts), keeper, look)
    except (KeyboardInterrupt, OutOfTime):
        interrupted = True
    proof = "interrupted" if interrupted else f"exhaustive over the grid ({evaluated:,} evaluated; the others cannot fit or be leaner)"
    by_rule = dict(sorted(counts.by_rule.items(), key=lambda item: (-item[1], item[0])))
    return Searched(layouts=counts.layouts, lawful=counts.lawful, feasible=0, by_rule=by_rule, proof=proof), interrupted


def _leanest(
    resolved: Resolved,
    *,
    top: int | None = None,
    progress: Progress | None = None,
    time_limit: float | None = None,
    remedies: bool = True,
) -> SearchResult:
    kept = Leanest(size=top or resolved.top)
    searched, interrupted = _swept(resolved, kept, progress, time_limit)
    plans = tuple(_headroom_first(kept.best()))
    if not plans and not interrupted:
        return engine.search(resolved, top=top, progress=progress, time_limit=time_limit, remedies=remedies)
    status: Status = "interrupted" if interrupted else "found"
    note = "ranked by the memory that is left free, most first; --objective time ranks by step time"
    return SearchResult(status=status, plans=plans, searched=replace(searched, feasible=len(plans)), notes=(note,))


def _headroom_first(entries: list[Entry]) -> list[Plan]:
    made = [plan(e.case, e.layout) for e in entries]
    return sorted(made, key=lambda p: float(num(p.cost.memory.peak_device_bytes)) - p.pool.capacity_bytes)


def counts_of(pool: Pool) -> list[int]:
    """Return the numbers of GPUs that a part of a pool may have, ascending: powers of two and all of one server, then whole servers."""
    whole = pool.gpus_per_node
    within = [n for n in (2**k for k in range(whole.bit_length())) if n < min(whole, pool.count)]
    servers = [n for n in range(whole, pool.count + 1, whole)]
    return [*within, *servers, *([pool.count] if not servers or servers[-1] != pool.count else [])]


def _spread(counts: list[int], most: int = COUNTS) -> list[int]:
    """Return at most about `most` of `counts`: all of the small ones, then steps that grow."""
    if len(counts) <= most:
        return counts
    kept, at = [], 0.0
    while at < len(counts) - 1:
        kept.append(counts[int(at)])
        at += max(1.0, at * 2.0 / most * 4.0)
    return [*dict.fromkeys(kept), counts[-1]]


def _on(resolved: Resolved, pool: Pool, count: int) -> Resolved:
    """Return the request on `count` GPUs of one pool, with the batch as it is."""
    alone = replace(resolved, cluster=resolved.cluster.model_copy(update={"pools": (pool,)}))
    return alone if count == pool.count else with_pools(alone, lambda p: same_server(p, count))


def _fewest(resolved: Resolved, **options: Any) -> SearchResult:
    """Rank by time on the fewest GPUs of a pool on which something fits; of several pools the one that needs fewest."""
    found: tuple[int, Resolved, list[int]] | None = None
    for pool in resolved.cluster.pools:
        tried = _spread(counts_of(pool))
        for index, count in enumerate(tried):
            part = _on(resolved, pool, count)
            if any_plan(part, frameworks, best) is not None:
                if found is None or count < found[0]:
                    found = (count, part, tried[:index])
                break
    if found is None:
        return engine.search(resolved, **options)
    count, part, failed = found
    result = engine.search(part, **options)
    gpu = part.cluster.pools[0].gpu.name
    below = f"nothing fits on {', '.join(f'{n:,}' for n in failed[-6:])}" if failed else "it is the least there is"
    pace = "" if resolved.wishes else "; a pace is asked for by --max step=60s"
    note = f"{count:,} × {gpu} of the {resolved.cluster.count:,} GPUs are the fewest that do ({below}), ranked by time on them{pace}"
    return replace(result, notes=(note, *result.notes))


def _cheapest(resolved: Resolved, **options: Any) -> SearchResult:
    """Rank by tokens per dollar over the numbers of GPUs that may be rented of each pool; servers are paid whole."""
    results = []
    for pool in resolved.cluster.pools:
        for count in _spread([n for n in counts_of(pool) if n >= min(pool.gpus_per_node, pool.count)], COUNTS // 4):
            results.append(engine.search(_on(resolved, pool, count), **{**options, "remedies": False}))
    plans = [p for result in results for p in result.plans]
    plans.sort(key=lambda p: (-(tokens_per_dollar(p) or 0.0), float(num(p.cost.time.step_seconds)), p.pool.count))
    if not plans:
        return engine.search(resolved, **options)
    interrupted = any(result.status == "interrupted" for result in results)
    searched = Searched(
        layouts=sum(r.searched.layouts for r in results),
        lawful=sum(r.searched.lawful for r in results),
        feasible=sum(r.searched.feasible for r in results),
        by_rule=results[-1].searched.by_rule,
        proof=f"the best of {len(results)} searches, one for each number of GPUs tried",
    )
    pool = plans[0].pool
    price = f"{pool.node.price_usd_per_hour:g} USD an hour for a {pool.node.name}, {pool.node.price_basis or 'list'}"
    note = f"ranked by tokens per dollar ({price}); any number of whole servers may be used"
    status: Status = "interrupted" if interrupted else "found"
    return SearchResult(status=status, plans=tuple(plans[: options.get("top") or resolved.top]), searched=searched, notes=(note,))
