"""Labels: the shortest pipeline over all splits when the terms of once a step are taken at their least, by dynamic programming.

From the last stage to the first, each partial split is a label of numbers of which less is never worse; labels that another one of the
same stage and layers undercuts in all of them are dropped. The result bounds the stage problem from below, and is a choice to start from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.solver.chain import Chain, Option
    from planner.windows import Shape

Label = tuple[float, ...]
Entry = tuple[Label, tuple[int, ...]]
MAX_LABELS = 400
"""Labels of one stage and layer that are kept; beyond, nothing is bounded."""


class TooMany(Exception):
    """More labels than are kept."""


def least(shape: Shape, chain: Chain, below: float) -> tuple[float, tuple[int, ...]]:
    """Return (a bound of the objective, the choice behind it), over all levels; infinite and empty where no choice is below `below`.

    Raises TooMany where the labels multiply.
    """
    found: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for level in sorted({option.level for options in chain.stages for option in options}):
        own = [[(i, o) for i, o in enumerate(options) if o.level == level] for options in chain.stages]
        if all(own):
            once = _once(shape, own)
            found = min(found, _least(shape, chain.layers, own, below - once, once))
    return found


_Own = list[list[tuple[int, "Option"]]]


def _once(shape: Shape, own: _Own) -> float:
    """Terms that come once a step: the largest over the stages of the least of each."""
    first, size = VALUES[shape.schedule], len(own[0][0][1].values)
    return sum(max(min(o.values[v] for _, o in options) for options in own) for v in range(first, size))


def _least(shape: Shape, layers: int, own: _Own, below: float, once: float) -> tuple[float, tuple[int, ...]]:
    start, extend, finish = RULES[shape.schedule]
    current: dict[int, list[Entry]] = {layers: [(start, ())]}
    for stage in range(len(own) - 1, -1, -1):
        reached: dict[int, list[Entry]] = {}
        for end, entries in current.items():
            for index, option in own[stage]:
                begin = end - option.layers
                if begin < 0 or (option.starts is not None and begin not in option.starts) or (stage == 0) != (begin == 0):
                    continue
                for label, chosen in entries:
                    longer = extend(shape, stage, option.values, label)
                    if finish(shape, longer) <= below:
                        reached.setdefault(begin, []).append((longer, (index, *chosen)))
        current = {begin: _undercut(entries) for begin, entries in reached.items()}
    return min(((finish(shape, label) + once, chosen) for label, chosen in current.get(0, [])), default=(float("inf"), ()))


def _undercut(entries: Iterable[Entry]) -> list[Entry]:
    """Return the labels that no other undercuts."""
    kept: list[Entry] = []
    for label, chosen in sorted(entries):
        if not any(all(a <= b for a, b in zip(other, label, strict=True)) for other, _ in kept):
            kept.append((label, chosen))
    if len(kept) > MAX_LABELS:
        raise TooMany
    return kept


def _one_f_one_b(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    """Work from here on; longest steady part; longest path that counts what lies between here and its stage."""
    work, steady, led = label
    total, short = values[0], values[1]
    behind, m = shape.stages - 1.0 - stage, shape.micro_batches
    own = max((m - 1.0 - behind) * total + work, short) if m - 1.0 >= behind else short
    return work + total, max(steady, own), max(total + led, m * total)


def _interleaved(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    return label[0] + values[0], max(label[1], values[0])


def _interleaved_end(shape: Shape, label: Label) -> float:
    rest = shape.micro_batches % shape.stages
    idle = (shape.vpp - 1.0) * (shape.stages - rest) / shape.vpp if rest else 0.0
    return label[0] / shape.vpp + (shape.micro_batches + idle - 1.0 / shape.vpp) * label[1]


def _gpipe(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    return label[0] + values[0] + values[1], max(label[1], values[0]), max(label[2], values[1])


def _alone(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    return (max(label[0], values[0]),)


RULES: dict[
    str, tuple[Label, Callable[[Shape, int, tuple[float, ...], Label], Label], Callable[[Shape, Label], float]]
] = {
    "1f1b": ((0.0, 0.0, 0.0), _one_f_one_b, lambda shape, label: max(label[0] + label[1], label[2])),
    "interleaved": ((0.0, 0.0), _interleaved, _interleaved_end),
    "gpipe": ((0.0, 0.0, 0.0), _gpipe, lambda shape, label: label[0] + (shape.micro_batches - 1.0) * (label[1] + label[2])),
    "zb-v": ((0.0,), _alone, lambda shape, label: label[0]),
}
"""Schedule -> (label of no stage, label with one stage more in front, objective of a label)."""
VALUES = {"1f1b": 2, "interleaved": 1, "gpipe": 2, "zb-v": 1}
"""Schedule -> how many of an option's values are the pipeline's; the others come once a step."""
