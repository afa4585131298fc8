"""The order in which the ranks of a pipeline run their passes, as data: what a schedule is.

A micro-batch takes its way through positions 0, 1, …; its forward at a position waits for the one before, its backward for the one
after, and at the end of the way for its own forward. A schedule says which positions each rank holds, and the order of its passes.
The longest path through both is the time (cost_models.choices.played), and the event simulation plays them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "inputs", "weight"]
"""`backward` computes both gradients in one pass; `inputs` and `weight` are its two parts where a schedule runs them apart."""


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank."""

    kind: Kind
    chunk: int
    micro_batch: int


Step = tuple[Pass, ...]
"""Passes that a rank runs as one: their inputs are awaited together, and their outputs leave together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a chunk of a rank stands."""

    way: int
    """Micro-batches of unlike ways never meet."""
    position: int
    last: bool
    """The way ends here."""
    stage: int
    """Stage whose seconds its passes take."""
    part: float
    """Part of that stage which one pass runs."""


def around(rank: int, chunk: int, ranks: int, chunks: int) -> Place:
    """Return the place where all ranks hold their first chunk in turn, then all their second one, and so on."""
    position = chunk * ranks + rank
    return Place(way=0, position=position, last=position == ranks * chunks - 1, stage=rank, part=1.0 / chunks)


def alternating(warm: int, forwards: list[Pass], backwards: list[Pass]) -> list[Step]:
    """Return `warm` forwards, then a forward and a backward in turn, then the backwards that remain."""
    order: list[Step] = [(f,) for f in forwards[:warm]]
    for f, b in zip(forwards[warm:], backwards, strict=False):
        order += [(f,), (b,)]
    return order + [(b,) for b in backwards[len(forwards) - warm :]]


Output = tuple[bool, int, int, int]
"""What a pass leaves for others: forward or not, way, position, micro-batch."""


def output(p: Pass, at: Place) -> Output:
    """Return what a forward, a backward or input gradients leave."""
    return p.kind == "forward", at.way, at.position, p.micro_batch


def awaited(p: Pass, at: Place) -> Output | None:
    """Return what a pass waits for, beside the steps before it on its rank; None for the first forward and for weight gradients, which
    come after their input gradients on the same rank."""
    if p.kind == "weight" or (p.kind == "forward" and at.position == 0):
        return None
    if p.kind == "forward":
        return True, at.way, at.position - 1, p.micro_batch
    return (True, at.way, at.position, p.micro_batch) if at.last else (False, at.way, at.position + 1, p.micro_batch)


def present(order: list[Step], micro_batches: int) -> list[Step]:
    """Return an order without the passes of micro-batches from `micro_batches` on."""
    kept = (tuple(p for p in step if p.micro_batch < micro_batches) for step in order)
    return [step for step in kept if step]
