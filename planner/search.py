"""Search: space -> evaluate -> board -> refine -> re-evaluate the winners, or say why nothing fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.board import Board, Entry
from planner.evaluate import plan
from planner.infeasible import explained
from planner.misses import near_misses
from planner.mixed.together import together
from planner.plan import Plan, Searched, SearchResult, Status
from planner.proof import proof, split_notes
from planner.refine import Refined, certificate, joined, refine
from planner.rules import laws
from planner.rules.frameworks import searched
from planner.scan import OutOfTime, Scan
from planner.space import Counts, Group, groups

if TYPE_CHECKING:
    from cost_models.training import Framework
    from hardware.spec import Pool
    from planner.request import Resolved

Progress = Callable[[str], None]


def search(
    resolved: Resolved,
    *,
    top: int | None = None,
    progress: Progress | None = None,
    time_limit: float | None = None,
    remedies: bool = True,
) -> SearchResult:
    """Return the fastest lawful layouts that fit with the safety margin, best first, or the reasons why there is none.

    The plans differ in tp, pp, cp, ep, dp or ZeRO stage; of each such combination the best is kept. Of a mixed cluster each pool is
    planned by itself, and all together (`mixed`). `time_limit` (seconds) and an interrupt end the search with status `interrupted` and
    the best found so far.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    wanted = top or resolved.top
    found = [_pool(resolved, pool, wanted, progress, deadline) for pool in resolved.cluster.pools]
    result = found[0] if len(found) == 1 else _over_pools(resolved, _joined(resolved, found, wanted), progress, deadline)
    if result.status == "infeasible" and remedies:
        try:
            result = explained(resolved, result, best, frameworks, deadline)
        except KeyboardInterrupt:
            return replace(result, status="interrupted")
    return result


def _pool(resolved: Resolved, pool: Pool, top: int, progress: Progress | None, deadline: float | None) -> SearchResult:
    """Search one pool: without offload first where the request leaves it open, with it only where nothing fits without."""
    if not resolved.offload_last:
        return _space(resolved, pool, top, progress, deadline)
    without = _space(resolved.without_offload(), pool, top, progress, deadline)
    if without.status == "infeasible":
        return _space(resolved, pool, top, progress, deadline)
    return replace(without, notes=(*without.notes, OFFLOAD_NOTE)) if without.plans else without


OFFLOAD_NOTE = "Plans fit without offload, so none was searched with it (--offload any does)."


def _space(resolved: Resolved, pool: Pool, top: int, progress: Progress | None, deadline: float | None) -> SearchResult:
    """Search the whole space of one pool."""
    scan = Scan(board=Board(size=top), deadline=deadline, progress=progress)
    refined, interrupted = Refined(), False
    try:
        scan.run(spaces(resolved, pool, scan.counts))
        refine(scan, refined, deadline=deadline)
    except (KeyboardInterrupt, OutOfTime):
        interrupted = True
    plans = tuple(_verified(entry) for entry in scan.board.best())
    status: Status = "interrupted" if interrupted else "found" if plans else "infeasible"
    searched = Searched(
        layouts=scan.counts.layouts,
        lawful=scan.counts.lawful,
        feasible=scan.feasible + refined.feasible,
        by_rule=dict(sorted(scan.counts.by_rule.items(), key=lambda item: (-item[1], item[0]))),
        proof=proof(scan, (proved := certificate(scan, refined, interrupted=interrupted)), interrupted=interrupted),
        certificate=proved,
    )
    near = () if plans else near_misses(scan.near)
    notes = split_notes(scan.board) if plans else () if near or interrupted else tuple(_refusals(resolved, pool))
    return SearchResult(status=status, plans=plans, searched=searched, near_misses=near, notes=notes)


def best(resolved: Resolved, deadline: float | None = None) -> Plan | None:
    """Return the best plan of the grid alone, without near misses and stage problems: the quick answer to whether something fits."""
    found: list[Plan] = []
    for pool in resolved.cluster.pools:
        scan = Scan(board=Board(size=1), deadline=deadline, near_wanted=False, splits=False)
        try:
            scan.run(spaces(resolved, pool, scan.counts))
        except OutOfTime:
            return None
        found += [_verified(entry) for entry in scan.board.best()]
    return min(found, key=lambda p: float(p.cost.time.step_seconds), default=None)


def spaces(resolved: Resolved, pool: Pool, counts: Counts) -> Iterator[Group]:
    """Yield the groups of all frameworks that the request leaves open, those without offload first."""
    for offloaded in (False, True):
        for framework in frameworks(resolved):
            yield from groups(resolved.case(pool, framework), counts, offloaded=offloaded)


def frameworks(resolved: Resolved) -> tuple[Framework, ...]:
    """Return the frameworks that a search goes over."""
    return resolved.frameworks or searched(resolved.fixed.get("schedule"))


def _verified(entry: Entry) -> Plan:
    """Evaluate a winner with all its stages; the single evaluation must give the numbers that the search compared."""
    made = plan(entry.case, entry.layout)
    seconds, size = float(made.cost.time.step_seconds), float(made.cost.memory.peak_device_bytes)
    if seconds != entry.step_seconds or size != entry.device_bytes:
        raise AssertionError(
            f"{entry.layout} is {entry.step_seconds} s and {entry.device_bytes} B in the batch, {seconds} s and {size} B alone"
        )
    return made


def _refusals(resolved: Resolved, pool: Pool) -> list[str]:
    """Return why no layout is lawful at all: the laws about the task itself that each framework breaks."""
    from cost_models.layout import Choices, Degrees, Layout

    said = []
    for framework in frameworks(resolved):
        case = resolved.case(pool, framework)
        layout = Layout(degrees=Degrees(), choices=Choices(sequence_parallel=False))
        said += [r.given(case, layout) for r in laws(case) if not r.reads and not r.holds(case, layout)]
    return list(dict.fromkeys(said))


def _over_pools(resolved: Resolved, alone: SearchResult, progress: Progress | None, deadline: float | None) -> SearchResult:
    """Add the plans over several pools to the joined result of each pool alone."""
    if alone.status == "interrupted":
        return alone
    try:
        single = alone.plans[0] if alone.plans else None
        mixed = together(resolved, frameworks(resolved), single, deadline=deadline, progress=progress)
    except (KeyboardInterrupt, TimeoutError):
        return replace(alone, status="interrupted", notes=(*alone.notes, "interrupted while planning the pools together"))
    return replace(alone, mixed=mixed, status="found" if mixed.plans else alone.status)


def _joined(resolved: Resolved, found: list[SearchResult], top: int) -> SearchResult:
    """Join the results of the pools of a mixed cluster."""
    plans = sorted((p for r in found for p in r.plans), key=lambda p: float(p.cost.time.step_seconds))[:top]
    by_rule: dict[str, int] = {}
    for result in found:
        for rule, count in result.searched.by_rule.items():
            by_rule[rule] = by_rule.get(rule, 0) + count
    status: Status = "interrupted" if any(r.status == "interrupted" for r in found) else "found" if plans else "infeasible"
    return SearchResult(
        status=status,
        plans=tuple(plans),
        searched=Searched(
            layouts=sum(r.searched.layouts for r in found),
            lawful=sum(r.searched.lawful for r in found),
            feasible=sum(r.searched.feasible for r in found),
            by_rule=by_rule,
            proof="; ".join(dict.fromkeys(r.searched.proof for r in found)),
            certificate=joined([r.searched.certificate for r in found if r.searched.certificate is not None]),
        ),
        near_misses=() if plans else tuple(sorted((n for r in found for n in r.near_misses), key=lambda n: n.missing_bytes)),
        notes=tuple(dict.fromkeys(n for r in found for n in r.notes)),
    )
