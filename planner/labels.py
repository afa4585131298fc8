"""Labels: a bound of the step over all splits of one pipeline, by dynamic programming, and a split that comes near it.

From the first stage to the last, each partial split is a label of numbers of which less is never worse: those of the schedule, and the
largest sum so far of the terms that come once a step (their largest apart come to no less). Labels that another one of the same stage and
layers undercuts are dropped, and those that are beyond the ceiling already.
"""

from __future__ import annotations

from operator import le
from typing import TYPE_CHECKING, Any

from planner.label_rules import PACES, RULES, Extend, Label, Pace, SoFar, ToGo
from planner.paths import VALUES
from planner.stage_problem import even_layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planner.solver.chain import Chain, Option
    from planner.windows import Shape

Chosen = tuple[Any, ...]
"""Options of the stages so far, the last one outside: (((), first), second)."""
Entry = tuple[Label, float, Chosen]
"""Numbers of the schedule, largest sum of terms that come once a step, options."""
Reached = tuple[float, Label, float, Chosen]
"""What the label comes to at least, then an entry."""
ROUNDING = 1e-12
NOTHING: ToGo = (float("inf"), float("inf"))
BEAM = 4
MAX_LABELS = 400
"""Labels of one stage and layer that are kept; beyond, nothing is bounded."""


class TooMany(Exception):
    """More labels than are kept."""


def even(shape: Shape) -> float:
    """Return the objective (terms of once a step as in `least`) of the even split, were there memory for it."""
    label, extend, _, finish = RULES[shape.schedule]
    begin = 0
    for stage, held in enumerate(even_layers(shape.layers, float(shape.stages), float(shape.vpp))):
        counts = tuple(int(kind[begin + held] - kind[begin]) for kind in shape.before)
        label = extend(shape, stage)(shape.values((stage == 0, stage == shape.stages - 1), counts), label)
        begin += held
    return finish(shape, label)


def within(shape: Shape, chain: Chain, below: float) -> bool:
    """Tell whether a choice of a chain of one level comes to `below` (terms of once a step as in `least`).

    Raises TooMany where the labels multiply.
    """
    search = Search(shape, chain.layers, [list(enumerate(options)) for options in chain.stages])
    return search.least(below, BEAM)[0] <= below or search.least(below)[0] <= below


def least(shape: Shape, chain: Chain, below: float) -> tuple[float, tuple[int, ...]]:
    """Return (a bound of the objective, the choice behind it), over all levels; infinite and empty where no choice is at most `below`.

    Raises TooMany where the labels multiply.
    """
    found: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for search in searches(shape, chain):
        # a few labels a stage find a good split, beyond which none needs to be kept
        most = min(below, found[0])
        most = min(most, search.least(most, BEAM)[0] * (1.0 + ROUNDING))
        found = min(found, search.least(most))
    return found


def searches(shape: Shape, chain: Chain, *, apart: bool = False) -> Iterator[Search]:
    """Yield the search of each level of a chain that has options of every stage."""
    for level in sorted({option.level for options in chain.stages for option in options}):
        own = [[(i, o) for i, o in enumerate(options) if o.level == level] for options in chain.stages]
        if all(own):
            yield Search(shape, chain.layers, own, apart=apart)


_Own = list[list[tuple[int, "Option"]]]
_Way = tuple[int, int, tuple[int, ...] | None, tuple[float, ...], float, float]
"""An option: its index, layers, starts and values; what it takes of the pipeline, and of the terms that come once a step."""


def _ways(options: list[tuple[int, Option]], values: int) -> list[_Way]:
    return [(i, o.layers, o.starts, o.values, sum(o.values[:values]), sum(o.values[values:])) for i, o in options]


class Search:
    """The options of one level, and what the stages to go take at least. `apart`: the largest of each term of once a step is a number of
    the label, for the objective itself rather than a bound of it."""

    def __init__(self, shape: Shape, layers: int, own: _Own, *, apart: bool = False) -> None:
        self.shape, self.layers = shape, layers
        ways = self.ways = [_ways(options, VALUES[shape.schedule]) for options in own]
        self.lightest = [max((min(way[5] for way in later) for later in ways[s + 1 :]), default=0.0) for s in range(len(ways))]
        self.to_go = _to_go(ways, [PACES[shape.schedule](shape, s) for s in range(len(ways))], layers)
        self.start, extend, floor, self.finish = RULES[shape.schedule]
        self.extends = [extend(shape, s) for s in range(len(ways))]
        self.floors = [floor(shape, s) for s in range(len(ways))]
        if apart:
            self._set_apart()

    def _set_apart(self) -> None:
        """Move the terms of once a step from the ways to the labels, behind the numbers of the schedule."""
        numbers, first, finish = len(self.start), VALUES[self.shape.schedule], self.finish
        least = [tuple(map(min, zip(*(way[3][first:] for way in ways), strict=True))) for ways in self.ways]
        lightest = [tuple(map(max, zip(*least[s + 1 :], strict=True))) for s in range(len(least) - 1)]

        def extended(extend: Extend) -> Extend:
            return lambda values, label: (*extend(values, label[:numbers]), *map(max, label[numbers:], values[first:]))

        def floored(floor: SoFar, light: tuple[float, ...]) -> SoFar:
            return lambda label, to_go: floor(label[:numbers], to_go) + sum(map(max, label[numbers:], light))

        none = (0.0,) * len(least[0])
        self.start = (*self.start, *none)
        self.extends = [extended(extend) for extend in self.extends]
        self.floors = [floored(floor, light) for floor, light in zip(self.floors, [*lightest, none], strict=True)]
        self.finish = lambda shape, label: finish(shape, label[:numbers]) + sum(label[numbers:])
        self.ways = [[(*way[:5], 0.0) for way in ways] for ways in self.ways]
        self.lightest = [0.0] * len(self.ways)

    def least(self, below: float, beam: int = 0) -> tuple[float, tuple[int, ...]]:
        """Return the least objective that is at most `below` and its choice; infinite and empty where there is none."""
        current: dict[int, list[Entry]] = {0: [(self.start, 0.0, ())]}
        for stage in range(len(self.ways)):
            reached: dict[int, list[Reached]] = {}
            for begin, entries in current.items():
                for end, found in self.further(stage, begin, entries, below):
                    reached.setdefault(end, []).append(found)
            current = {end: _kept(labels, beam) for end, labels in reached.items()}
        ended = ((self.finish(self.shape, label) + term, unwound(chosen)) for label, term, chosen in current.get(self.layers, []))
        return min(ended, default=(float("inf"), ()))

    def further(self, stage: int, begin: int, entries: list[Entry], below: float) -> Iterator[tuple[int, Reached]]:
        """Yield (layers begun by then, label) for each option of a stage, in their order, and each entry, unless it is beyond `below`."""
        extend, floor = self.extends[stage], self.floors[stage]
        after, light = self.to_go[stage + 1], self.lightest[stage]
        for index, held, starts, values, _, added in self.ways[stage]:
            end = begin + held
            to_go = after.get(end)
            if to_go is None or (starts is not None and begin not in starts):
                continue
            for label, largest, chosen in entries:
                pipeline, term = extend(values, label), added if added > largest else largest
                worth = floor(pipeline, to_go) + (light if light > term else term)
                if worth <= below:
                    yield end, (worth, pipeline, term, (chosen, index))


def unwound(chosen: Chosen) -> tuple[int, ...]:
    found: list[int] = []
    while chosen:
        chosen, index = chosen
        found.append(index)
    return tuple(reversed(found))


def _to_go(ways: list[list[_Way]], paces: list[Pace], layers: int) -> list[dict[int, ToGo]]:
    """Return for each stage and layer at which it may begin what it and all stages after it take at least: work, and pace."""
    found: list[dict[int, ToGo]] = [{layers: (0.0, 0.0)}]
    for options, pace in zip(reversed(ways), reversed(paces), strict=True):
        best: dict[int, ToGo] = {}
        for _, held, starts, values, taken, _ in options:
            own = pace(values) * (1.0 - ROUNDING)
            for end, (rest, slowest) in found[-1].items():
                begin = end - held
                if begin >= 0 and (starts is None or begin in starts):
                    work, slow = best.get(begin, NOTHING)
                    best[begin] = min(work, rest + taken), min(slow, max(own, slowest))
        found.append(best)
    return found[::-1]


def undercut(label: Label, term: float, others: list[Entry]) -> bool:
    """Tell whether one of `others` is no worse in any number."""
    return any(other_term <= term and all(map(le, other, label)) for other, other_term, _ in others)


def _kept(labels: list[Reached], beam: int) -> list[Entry]:
    """Return the labels that no other undercuts; with a beam the best few of them."""
    kept: list[Entry] = []
    for label, term, chosen in [entry[1:] for entry in sorted(labels)] if beam else sorted(entry[1:] for entry in labels):
        if not undercut(label, term, kept):
            kept.append((label, term, chosen))
            if len(kept) == beam:
                break
            if len(kept) > MAX_LABELS:
                raise TooMany
    return kept
