"""Clash: a minimal set of requirements that cannot be met together, by deletion, each step decided by a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from planner.plan import Clash, ClashMember, Plan
from planner.request import Resolved
from planner.requirements import Requirement, requirements

CHECKS = 240
"""Searches at most; with more the set is given as it stands, and said not to be proved minimal."""
LARGE, LARGE_CHECKS = 1024, 80
"""GPUs from which a search takes long, and how many are made there."""

Fits = Callable[[Resolved], "Plan | None"]
"""A search: the best plan of a request, None where there is none."""


class _TooMany(Exception):
    """The searches are used up."""


@dataclass(kw_only=True, slots=True)
class _Oracle:
    """Answers whether some request that dropping requirements allows has a plan; remembers each request asked."""

    resolved: Resolved
    fits: Fits
    limit: int
    asked: int = 0
    known: dict[tuple[tuple[str, int], ...], Plan | None] = field(default_factory=dict)

    def without(self, dropped: list[Requirement]) -> Plan | None:
        """Return a plan of the first request that has one: everything at its most permissive, then one thing at each of its others."""
        last_first = dropped[::-1]  # the machine before the batch, which has to suit it; the method before its states
        for chosen in _choices([len(r.relax(self.resolved)) for r in last_first]):
            made, key = self.resolved, []
            for requirement, number in zip(last_first, chosen, strict=True):
                options = requirement.relax(made)
                changed = options[min(number, len(options) - 1)]
                key += [(requirement.id, number)] if changed is not made else []
                made = changed
            if (plan := self._ask(tuple(key), made)) is not None:
                return plan
        return None

    def _ask(self, key: tuple[tuple[str, int], ...], made: Resolved) -> Plan | None:
        name = tuple(sorted(key))
        if name not in self.known:
            if self.asked >= self.limit:
                raise _TooMany
            self.asked += 1
            self.known[name] = self.fits(made)
        return self.known[name]


def _choices(sizes: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield which alternative of each requirement is taken: the first of all, then one of them otherwise, then the last of all."""
    first = [0] * len(sizes)
    yield tuple(first)
    for position, size in enumerate(sizes):
        for number in range(1, size):
            yield (*first[:position], number, *first[position + 1 :])
    if len(sizes) > 1:
        yield tuple(size - 1 for size in sizes)


def clash_for(resolved: Resolved, fits: Fits) -> Clash:
    """Return the requirements of an infeasible request that clash: together they have no plan, whatever becomes of the others, and
    without any one of them they have. Empty where no plan is found even without all of them.
    """
    every = requirements(resolved)
    large = max(pool.count for pool in resolved.cluster.pools) >= LARGE
    oracle = _Oracle(resolved=resolved, fits=fits, limit=LARGE_CHECKS if large else CHECKS)
    oracle.known[()] = None
    kept = list(every)
    try:
        if oracle.without(every) is None:
            return Clash(members=(), minimal=True, searches=oracle.asked)
        plans = _minimal(oracle, every, kept)
        members = tuple(_member(oracle, requirement, plans[requirement.id]) for requirement in kept)
    except _TooMany:
        return Clash(members=tuple(_plain(r) for r in kept), minimal=False, searches=oracle.asked)
    return Clash(members=members, minimal=True, searches=oracle.asked)


def _minimal(oracle: _Oracle, every: list[Requirement], kept: list[Requirement]) -> dict[str, Plan]:
    """Drop from `kept` (in place) what is not needed, until no member can be dropped; return the plan that dropping each allows.

    Halves are tried first, as most requirements have no part in it; then the members one by one. A second round finds nothing to drop
    unless a freed field allows less than the value it had, which the rounds then settle.
    """
    middle = len(kept) // 2
    for part in (kept[:middle], kept[middle:]):
        _thin(oracle, every, kept, part)
    while True:
        plans: dict[str, Plan] = {}
        before = len(kept)
        for requirement in list(kept):
            rest = [r for r in kept if r is not requirement]
            plan = oracle.without([r for r in every if r not in rest])
            if plan is None:
                kept[:] = rest
            else:
                plans[requirement.id] = plan
        if len(kept) == before:
            return plans


def _thin(oracle: _Oracle, every: list[Requirement], kept: list[Requirement], part: list[Requirement]) -> None:
    """Drop from `kept` (in place) what of `part` is not needed, as a whole where that is so, else half by half."""
    gone = {r.id for r in part}
    rest = [r for r in kept if r.id not in gone]
    held = {r.id for r in rest}
    if oracle.without([r for r in every if r.id not in held]) is None:
        kept[:] = rest
    elif len(part) > 1:
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            _thin(oracle, every, kept, half)


def _member(oracle: _Oracle, requirement: Requirement, plan: Plan) -> ClashMember:
    """Return a member, and whether dropping it alone from the whole request is enough."""
    return ClashMember(
        requirement=requirement.words,
        flags=requirement.flags,
        enough=oracle.without([requirement]) is not None,
        plan=plan,
    )


def _plain(requirement: Requirement) -> ClashMember:
    return ClashMember(requirement=requirement.words, flags=requirement.flags, enough=False, plan=None)
