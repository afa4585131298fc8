"""The longest path through a schedule's own order of passes, for many pipelines at once.

The steps of all ranks are a graph: a step waits for the one before it on its rank and for the inputs of its passes. Where the longest
path is no formula it is followed step by step, each an array over the pipelines of equal size. Not every micro-batch need be followed:
once a schedule has settled, one round of micro-batches more makes the longest path through a rank longer by that rank's own work, as no
way around several ranks takes as long for a round as the slowest of them. So the longest path through a middle step of each rank is
found for few micro-batches, the others are added as rounds of that rank, and the longest of the ranks is the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.choices.orders import Place, Step, awaited, output
from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
KINDS = ("forward", "backward", "inputs", "weight")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A schedule that is followed step by step, and when it has settled."""

    order: Callable[[int, int, int, int], list[Step]]
    place: Callable[[int, int, int, int], Place]
    chunks: int
    more: int
    """It has settled from twice the ranks and `more` micro-batches on."""
    round: int
    """Micro-batches of a round, in which each rank runs the passes of all its chunks once."""

    def followed(self, ranks: int, micro_batches: int) -> int:
        """Return how many micro-batches to follow: all, or as few as differ from all by whole rounds."""
        least = 2 * ranks + self.more
        return micro_batches if micro_batches <= least else least + (micro_batches - least) % self.round


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The steps of all ranks, numbered; the number of steps itself stands for none."""

    works: Index
    """Rows of the table of works that each step takes, (steps, most)."""
    before: tuple[tuple[Index, Index], ...]
    """Level by level: steps (n,), and what each of them waits for (n, most)."""
    after: tuple[tuple[Index, Index], ...]
    """The same from the end: steps, and what waits for each of them."""
    last: tuple[int, ...]
    """The last step of each rank."""
    middle: Index
    """A step of each rank, one round of which is like the next; empty where the schedule has not settled."""
    rounds: Index
    """Rows of works that a round of each rank takes, (ranks, 2 × chunks)."""


def played(recipe: Recipe, line: Line) -> Num:
    """Return the seconds of the longest path, () or (N,).

    Exact where all stages of `line` were evaluated; those that were not take what the others leave of the sums, in equal parts.
    """
    size = max(num(x).shape[0] if num(x).ndim == 2 else 1 for x in (line.pp, line.forward, line.micro_batches))
    pp, m, f_sum, b_sum, w_sum = (
        np.broadcast_to(num(x).reshape(-1), (size,))
        for x in (line.pp, line.micro_batches, line.forward_sum, line.backward_sum, line.weight_sum)
    )
    stages = [np.broadcast_to(np.atleast_1d(num(x)), (size, np.atleast_1d(num(line.behind)).shape[-1])) for x in _stages(line)]
    index = pp[:, None] - 1.0 - stages[0]
    keys, group = np.unique(np.column_stack([pp, m, index]), axis=0, return_inverse=True)
    found = np.empty(size)
    for g, key in enumerate(keys):
        rows = np.flatnonzero(group.reshape(-1) == g)
        held = {int(s): k for k, s in enumerate(key[2:])}
        times = [_every(x[rows], total[rows], held, int(key[0])) for x, total in zip(stages[1:], (f_sum, b_sum, w_sum), strict=True)]
        found[rows] = _longest(recipe, int(key[0]), int(key[1]), times)
    return found if any(num(x).ndim == 2 for x in (line.pp, line.forward, line.micro_batches)) else num(found[0])


def _stages(line: Line) -> tuple[Num, Num, Num, Num]:
    return line.behind, line.forward, line.backward, line.weight


def _every(evaluated: Array, total: Array, held: dict[int, int], ranks: int) -> Array:
    """Return the seconds of every stage, (ranks, n)."""
    rest = total
    for column in held.values():
        rest = rest - evaluated[:, column]
    mean = np.maximum(rest, 0.0) / max(ranks - len(held), 1)
    return np.stack([evaluated[:, held[s]] if s in held else mean for s in range(ranks)])


def _longest(recipe: Recipe, ranks: int, micro_batches: int, times: list[Array]) -> Array:
    """Return the longest path of pipelines of equal size, (n,). `times`: forward, backward and weight of every stage, (ranks, n)."""
    followed = recipe.followed(ranks, micro_batches)
    graph = graph_of(recipe, ranks, followed)
    forward, backward, weight = times
    works = np.concatenate([forward, backward, backward - weight, weight, np.zeros((1, forward.shape[1]))])
    works *= recipe.place(0, 0, ranks, recipe.chunks).part
    steps = _added(works, graph.works)
    ended = _ends(steps, graph.before)
    if not len(graph.middle):
        return _largest(ended)
    left = _ends(steps, graph.after)
    through = ended[graph.middle] + left[graph.middle] - steps[graph.middle]
    return _largest(through + _added(works, graph.rounds) * ((micro_batches - followed) / recipe.round))


def _added(works: Array, rows: Index) -> Array:
    added = works[rows[:, 0]]
    for column in rows.T[1:]:
        added = added + works[column]
    return added


def _ends(steps: Array, levels: tuple[tuple[Index, Index], ...]) -> Array:
    """Return when each step ends where it begins with the last of those that it waits for; one row more, of zeros, for none."""
    ends = np.zeros((len(steps) + 1, steps.shape[1]))
    for level, waits in levels:
        start = ends[waits[:, 0]]
        for column in waits.T[1:]:
            start = np.maximum(start, ends[column])
        ends[level] = start + steps[level]
    return ends


def _largest(rows: Array) -> Array:
    return np.max(rows, axis=0)  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def graph_of(recipe: Recipe, ranks: int, micro_batches: int) -> Graph:
    """Return the steps of all ranks for the micro-batches that are followed."""
    orders = [recipe.order(rank, ranks, recipe.chunks, micro_batches) for rank in range(ranks)]
    places = {(r, c): recipe.place(r, c, ranks, recipe.chunks) for r in range(ranks) for c in range(recipe.chunks)}
    steps = [(rank, step) for rank, order in enumerate(orders) for step in order]
    waits = _waits(steps, places)
    followers: list[list[int]] = [[] for _ in waits]
    for number, before in enumerate(waits):
        for other in before:
            followers[other].append(number)
    stages = [[places[r, chunk].stage for chunk in range(recipe.chunks)] for r in range(ranks)]
    return Graph(
        works=_padded([[KINDS.index(p.kind) * ranks + places[r, p.chunk].stage for p in step] for r, step in steps], len(KINDS) * ranks),
        before=_levels(waits),
        after=_levels(followers),
        last=tuple(number for number, (r, _) in enumerate(steps) if number + 1 == len(steps) or steps[number + 1][0] != r),
        middle=np.array(_middle(orders) if micro_batches >= 2 * ranks + recipe.more else [], dtype=np.intp),
        rounds=np.array([[kind * ranks + s for s in held for kind in (0, 1)] for held in stages], dtype=np.intp),
    )


def _waits(steps: list[tuple[int, Step]], places: dict[tuple[int, int], Place]) -> list[list[int]]:
    """Return for each step those that it waits for: the one before it, and of other ranks those that leave its inputs (what its own rank
    leaves comes before it in the order)."""
    left_by = {output(p, places[r, p.chunk]): number for number, (r, step) in enumerate(steps) for p in step if p.kind != "weight"}
    found: list[list[int]] = []
    for number, (rank, step) in enumerate(steps):
        own = [number - 1] if number and steps[number - 1][0] == rank else []
        inputs = (awaited(p, places[rank, p.chunk]) for p in step)
        found.append(own + [left_by[i] for i in inputs if i is not None and steps[left_by[i]][0] != rank])
    return found


def _middle(orders: list[list[Step]]) -> list[int]:
    """Return for each rank the middle one of its first chunk's forwards that have a backward before them."""
    found, first = [], 0
    for order in orders:
        chunk = order[0][0].chunk
        mine = [(n, p.kind) for n, step in enumerate(order) for p in step if p.chunk == chunk]
        begun = next(n for n, kind in mine if kind != "forward")
        steady = [n for n, kind in mine if kind == "forward" and n > begun]
        found.append(first + steady[len(steady) // 2])
        first += len(order)
    return found


def _levels(waits: list[list[int]]) -> tuple[tuple[Index, Index], ...]:
    """Return the steps in levels, each after all that its steps wait for, with what they wait for."""
    open_, followers = [len(w) for w in waits], [list[int]() for _ in waits]
    for number, before in enumerate(waits):
        for other in before:
            followers[other].append(number)
    levels, level = [], [number for number, count in enumerate(open_) if not count]
    placed = 0
    while level:
        placed += len(level)
        levels.append((np.array(level, dtype=np.intp), _padded([waits[number] for number in level], len(waits))))
        following = []
        for number in level:
            for other in followers[number]:
                open_[other] -= 1
                if not open_[other]:
                    following.append(other)
        level = following
    if placed < len(waits):
        raise ValueError("the order of passes waits for itself")
    return tuple(levels)


def _padded(rows: list[list[int]], nothing: int) -> Index:
    most = max(1, *(len(row) for row in rows)) if rows else 1
    return np.array([row + [nothing] * (most - len(row)) for row in rows], dtype=np.intp)
