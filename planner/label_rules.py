"""Rules of labels: for each schedule the numbers of a partial split, of which less is never worse, and what they bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.windows import Shape

Label = tuple[float, ...]
ToGo = tuple[float, float]
"""Least work of the stages to go; least pace of the slowest of them: what the whole takes at least beside its work (zero-bubble V: at
all)."""
Extend = Callable[[tuple[float, ...], Label], Label]
SoFar = Callable[[Label, ToGo], float]
Pace = Callable[[tuple[float, ...]], float]
NEVER = -1e300


def _longest_path(shape: Shape, stage: int) -> Extend:
    """Work so far; slowest forward and backward so far; then the longest path round a stage so far that has not turned yet, that has
    turned on its way down, on its way up, on both."""
    p = shape.passes
    chunks, turns, steady, warm = p.chunks, p.turns[stage], p.steady[stage], p.warm[stage]

    def extend(values: tuple[float, ...], label: Label) -> Label:
        work, slow_f, slow_b, round_, down, up, both = label
        forward, backward = values[0] / chunks, values[1] / chunks
        time = forward + backward
        work += time
        slow_f, slow_b = forward if forward > slow_f else slow_f, backward if backward > slow_b else slow_b
        if turns and steady * time - work > round_:
            round_ = steady * time - work
        turn_f, turn_b = work + warm * slow_f, work + warm * slow_b
        return (
            work,
            slow_f,
            slow_b,
            round_,
            max(down, round_ + turn_f),
            max(up, round_ + turn_b),
            max(both, down + turn_b, up + turn_f, round_ + turn_f + turn_b),
        )

    return extend


def _longest(shape: Shape, label: Label) -> float:
    return max(label[6], label[0])


def _longest_so_far(shape: Shape, stage: int) -> SoFar:
    """What turning at the last stage, behind all of the model's work, comes to at least; and at it and the first where a path can turn."""
    p = shape.passes
    chunks, warm = p.chunks, p.warm[-1]
    first = max(p.warm[max(stage, p.turns.index(True))], warm)

    def floor(label: Label, to_go: ToGo) -> float:
        work, slow_f, slow_b, round_, down, up, both = label
        whole = work + to_go[0] / chunks
        turn_f, turn_b = whole + warm * slow_f, whole + warm * slow_b
        return max(
            both,
            down + turn_b,
            up + turn_f,
            round_ + turn_f + turn_b,
            turn_f + first * slow_b,
            turn_b + first * slow_f,
            whole + to_go[1],
        )

    return floor


def _longest_pace(shape: Shape, stage: int) -> Pace:
    """A path down to the stage that turns there, goes round it, and up to the last stage, or the other way about; from a stage that no
    path goes round, the turn waits until the first one that a path does."""
    p = shape.passes
    steady, turn = (p.steady[stage], stage) if p.turns[stage] else (0.0, p.turns.index(True))
    warm, end, chunks = p.warm[turn], p.warm[-1], p.chunks

    def pace(values: tuple[float, ...]) -> float:
        forward, backward = values[0], values[1]
        return (steady * (forward + backward) + max(warm * forward + end * backward, end * forward + warm * backward)) / chunks

    return pace


def _gpipe(shape: Shape, stage: int) -> Extend:
    return lambda values, label: (label[0] + values[0] + values[1], max(label[1], values[0]), max(label[2], values[1]))


def _gpipe_end(shape: Shape, label: Label) -> float:
    return label[0] + (shape.micro_batches - 1.0) * (label[1] + label[2])


def _gpipe_so_far(shape: Shape, stage: int) -> SoFar:
    return lambda label, to_go: max(_gpipe_end(shape, label), label[0] + to_go[1]) + to_go[0]


def _gpipe_pace(shape: Shape, stage: int) -> Pace:
    return lambda values: (shape.micro_batches - 1.0) * (values[0] + values[1])


def _alone(shape: Shape, stage: int) -> Extend:
    """All micro-batches through the slowest stage: the zero-bubble V takes no less."""
    return lambda values, label: (max(label[0], shape.micro_batches * (values[0] + values[1])),)


def _alone_end(shape: Shape, label: Label) -> float:
    return label[0]


def _alone_so_far(shape: Shape, stage: int) -> SoFar:
    return lambda label, to_go: max(label[0], to_go[1])


def _alone_pace(shape: Shape, stage: int) -> Pace:
    return lambda values: shape.micro_batches * (values[0] + values[1])


_Rule = tuple[Label, Callable[["Shape", int], Extend], Callable[["Shape", int], SoFar], Callable[["Shape", Label], float]]
_PATH: _Rule = ((0.0, 0.0, 0.0, NEVER, NEVER, NEVER, NEVER), _longest_path, _longest_so_far, _longest)
RULES: dict[str, _Rule] = {
    "1f1b": _PATH,
    "interleaved": _PATH,
    "gpipe": ((0.0, 0.0, 0.0), _gpipe, _gpipe_so_far, _gpipe_end),
    "zb-v": ((0.0,), _alone, _alone_so_far, _alone_end),
}
"""Schedule -> (label of no stage, label with one stage more, what a label comes to at least with the work to go, what a whole one does)."""
PACES: dict[str, Callable[[Shape, int], Pace]] = {
    "1f1b": _longest_pace,
    "interleaved": _longest_pace,
    "gpipe": _gpipe_pace,
    "zb-v": _alone_pace,
}
"""Schedule -> the pace of a stage (see ToGo)."""
