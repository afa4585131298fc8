"""Labels: a bound of the step over all splits of one pipeline, by dynamic programming, and a split that comes near it.

From the first stage to the last, each partial split is a label of numbers of which less is never worse: those of the schedule, and the
largest sum so far of the terms that come once a step (their largest apart come to no less). Labels that another one of the same stage and
layers undercuts are dropped, and those that are beyond the ceiling already.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import le
from typing import TYPE_CHECKING

from planner.paths import VALUES

if TYPE_CHECKING:
    from planner.solver.chain import Chain, Option
    from planner.windows import Shape

Label = tuple[float, ...]
Entry = tuple[Label, tuple[int, ...]]
ROUNDING = 1e-12
BEAM = 4
MAX_LABELS = 400
"""Labels of one stage and layer that are kept; beyond, nothing is bounded."""


class TooMany(Exception):
    """More labels than are kept."""


def near(shape: Shape, chain: Chain, below: float) -> float:
    """Return the objective (terms of once a step as in `least`) of a good choice of a chain of one level; infinite for none."""
    return _least(shape, chain.layers, [list(enumerate(options)) for options in chain.stages], below, BEAM)[0]


def least(shape: Shape, chain: Chain, below: float) -> tuple[float, tuple[int, ...]]:
    """Return (a bound of the objective, the choice behind it), over all levels; infinite and empty where no choice is at most `below`.

    Raises TooMany where the labels multiply.
    """
    found: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for level in sorted({option.level for options in chain.stages for option in options}):
        own = [[(i, o) for i, o in enumerate(options) if o.level == level] for options in chain.stages]
        if all(own):
            # a few labels a stage find a good split, beyond which none needs to be kept
            most = min(below, found[0])
            most = min(most, _least(shape, chain.layers, own, most, BEAM)[0] * (1.0 + ROUNDING))
            found = min(found, _least(shape, chain.layers, own, most))
    return found


_Own = list[list[tuple[int, "Option"]]]


def _least(shape: Shape, layers: int, own: _Own, below: float, beam: int = 0) -> tuple[float, tuple[int, ...]]:
    start, extend, floor, finish = RULES[shape.schedule]
    first = VALUES[shape.schedule]
    once = [[sum(o.values[first:]) for _, o in options] for options in own]
    lightest = [max((min(stage) for stage in once[s + 1 :]), default=0.0) for s in range(len(own))]
    to_go = _to_go(own, layers, first)
    current: dict[int, list[Entry]] = {0: [((*start, 0.0), ())]}
    for stage, options in enumerate(own):
        reached: dict[int, list[tuple[float, Label, tuple[int, ...]]]] = {}
        for begin, entries in current.items():
            for (index, option), added in zip(options, once[stage], strict=True):
                end = begin + option.layers
                rest = to_go[stage + 1].get(end)
                if rest is None or (option.starts is not None and begin not in option.starts):
                    continue
                for label, chosen in entries:
                    pipeline, term = extend(shape, stage, option.values, label[:-1]), max(label[-1], added)
                    worth = floor(shape, pipeline, rest) + max(term, lightest[stage])
                    if worth <= below:
                        reached.setdefault(end, []).append((worth, (*pipeline, term), (*chosen, index)))
        current = {end: _kept(labels, beam) for end, labels in reached.items()}
    ended = current.get(layers, [])
    return min(((finish(shape, label[:-1]) + label[-1], chosen) for label, chosen in ended), default=(float("inf"), ()))


def _to_go(own: _Own, layers: int, values: int) -> list[dict[int, float]]:
    """Return for each stage and layer at which it may begin the least work of it and all stages after it."""
    found: list[dict[int, float]] = [{layers: 0.0}]
    for options in reversed(own):
        best: dict[int, float] = {}
        for end, rest in found[0].items():
            for _, option in options:
                begin = end - option.layers
                if begin >= 0 and (option.starts is None or begin in option.starts):
                    best[begin] = min(best.get(begin, float("inf")), rest + sum(option.values[:values]))
        found.insert(0, best)
    return found


def _kept(labels: list[tuple[float, Label, tuple[int, ...]]], beam: int) -> list[Entry]:
    """Return the labels that no other undercuts; with a beam the best few of all."""
    if beam:
        return [(label, chosen) for _, label, chosen in sorted(labels)[:beam]]
    kept: list[Entry] = []
    for label, chosen in sorted((label, chosen) for _, label, chosen in labels):
        if not any(all(map(le, other, label)) for other, _ in kept):
            kept.append((label, chosen))
    if len(kept) > MAX_LABELS:
        raise TooMany
    return kept


NEVER = -1e300


def _longest_path(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    """Work so far; slowest forward and backward so far; then the longest path round a stage so far that has not turned yet, that has
    turned on its way down, on its way up, on both."""
    p = shape.passes
    work, slow_f, slow_b, round_, down, up, both = label
    forward, backward = values[0] / p.chunks, values[1] / p.chunks
    work += forward + backward
    slow_f, slow_b = max(slow_f, forward), max(slow_b, backward)
    if p.turns[stage]:
        round_ = max(round_, p.steady[stage] * (forward + backward) - work)
    warm = p.warm[stage]
    turn_f, turn_b = work + warm * slow_f, work + warm * slow_b
    both = max(both, down + turn_b, up + turn_f, round_ + turn_f + turn_b)
    return work, slow_f, slow_b, round_, max(down, round_ + turn_f), max(up, round_ + turn_b), both


def _longest(shape: Shape, label: Label) -> float:
    return max(label[6], label[0])


def _longest_so_far(shape: Shape, label: Label, rest: float) -> float:
    """What turning at the last stage, behind all of the model's work, comes to at least."""
    p = shape.passes
    whole, warm = label[0] + rest / p.chunks, min(p.more, p.last)
    turn_f, turn_b = whole + warm * label[1], whole + warm * label[2]
    return max(label[6], label[4] + turn_b, label[5] + turn_f, label[3] + turn_f + turn_b, whole)


def _gpipe(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    return label[0] + values[0] + values[1], max(label[1], values[0]), max(label[2], values[1])


def _gpipe_end(shape: Shape, label: Label) -> float:
    return label[0] + (shape.micro_batches - 1.0) * (label[1] + label[2])


def _gpipe_so_far(shape: Shape, label: Label, rest: float) -> float:
    return _gpipe_end(shape, label) + rest


def _alone(shape: Shape, stage: int, values: tuple[float, ...], label: Label) -> Label:
    """All micro-batches through the slowest stage: the zero-bubble V takes no less."""
    return (max(label[0], shape.micro_batches * (values[0] + values[1])),)


def _alone_end(shape: Shape, label: Label) -> float:
    return label[0]


def _alone_so_far(shape: Shape, label: Label, rest: float) -> float:
    return label[0]


Extend = Callable[["Shape", int, tuple[float, ...], Label], Label]
Worth = Callable[["Shape", Label], float]
SoFar = Callable[["Shape", Label, float], float]
_PATH: tuple[Label, Extend, SoFar, Worth] = ((0.0, 0.0, 0.0, NEVER, NEVER, NEVER, NEVER), _longest_path, _longest_so_far, _longest)
RULES: dict[str, tuple[Label, Extend, SoFar, Worth]] = {
    "1f1b": _PATH,
    "interleaved": _PATH,
    "gpipe": ((0.0, 0.0, 0.0), _gpipe, _gpipe_so_far, _gpipe_end),
    "zb-v": ((0.0,), _alone, _alone_so_far, _alone_end),
}
"""Schedule -> (label of no stage, label with one stage more, what a label comes to at least with the work to go, what a whole one does)."""
