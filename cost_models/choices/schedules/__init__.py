"""Pipeline schedules, one file each, found by a folder scan.

Every file defines NAME, SENTENCE, SOURCE, CHUNKS and the functions of `Schedule`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from cost_models.choices.orders import Place, Step
    from cost_models.choices.pipeline import Line
    from cost_models.numeric import Num


class Schedule(Protocol):
    """What a schedule file defines."""

    NAME: str
    SENTENCE: str
    SOURCE: str
    CHUNKS: int | None
    """Chunks of each rank; None: as many as the layout says."""

    def place(self, rank: int, chunk: int, ranks: int, chunks: int) -> Place:
        """Return where a chunk of a rank stands on the way of its micro-batches."""

    def order(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Step]:
        """Return the passes of a rank in the order in which it runs them. Raises ValueError where the schedule has none."""

    def in_flight(self, stage: Num, pp: Num, vpp: Num, micro_batches: Num) -> Num:
        """Return how many micro-batches' saved activations of the whole stage are alive at its peak (may be a fraction)."""

    def seconds(self, line: Line) -> Num:
        """Return the seconds of all micro-batches through the pipeline, () or (N,)."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all schedules."""
    return tuple(sorted(cast("Schedule", import_module(f"{__name__}.{m.name}")).NAME for m in iter_modules(__path__)))


@cache
def schedule(name: str) -> Schedule:
    """Return the schedule called `name`."""
    for m in iter_modules(__path__):
        module = cast("Schedule", import_module(f"{__name__}.{m.name}"))
        if name == module.NAME:
            return module
    raise KeyError(f"no schedule is called {name!r}; there are {', '.join(names())}")
