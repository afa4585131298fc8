"""The stage problem of one pipeline: tables of what each stage costs for each number of layers, and the paths of its schedule.

All that the grid leaves open is chosen together: the layers of each stage, what is recomputed (by module, or how many layers of each
stage), and the offloaded part of the optimizer. A stage recomputes no more layers than it must to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.stages import chunk_start, layer_kinds
from planner.bounds import ROUNDING
from planner.case import Case
from planner.evaluate import StageTable, stage_table
from planner.levels import Level
from planner.paths import nodes, values
from planner.solver.chain import Chain, Option
from planner.spans import Key, Spans
from planner.windows import Shape

if TYPE_CHECKING:
    from cost_models.result import Cost

MEMORY_QUANTUM_BYTES = 2.0**20
TOLERANCE = 1e-9
"""Relative: the tables and the re-evaluation run the same formulas."""
MAX_ROWS = 200_000
"""Stages that one level of a problem tables at most; beyond, the level is left out and nothing is proved."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageProblem:
    """One pipeline, its stage problem, and what the solver's choice means."""

    case: Case
    layout: Layout
    """The even pipeline without relief."""
    levels: tuple[Level, ...]
    chain: Chain
    recomputed: tuple[tuple[int, ...], ...]
    """Fully recomputed layers of each option."""
    device_bytes: tuple[tuple[float, ...], ...]
    shape: Shape
    whole: bool
    """False where a table was cut short: then nothing is proved."""
    full: bool
    """True where each stage takes every number of layers of its window without relief: no other level can do better."""

    def step_seconds(self, objective: float) -> float:
        """Return the step of an objective."""
        return objective * self.shape.share + self.shape.constant_seconds

    def objective_below(self, step_seconds: float) -> float:
        """Return the objective of a step."""
        return self.shape.objective_below(step_seconds)

    def layout_of(self, chosen: tuple[int, ...]) -> Layout:
        """Return the layout of a choice of options, in the plainest words: even stages and equal numbers are said as such.

        Even stages whose inner ones differ stay listed, as their evaluation then counts every one of them.
        """
        options = [o[i] for o, i in zip(self.chain.stages, chosen, strict=True)]
        level = self.levels[options[0].level]
        held, again = tuple(o.layers for o in options), tuple(k[i] for k, i in zip(self.recomputed, chosen, strict=True))
        choices, equal, counts = level.choices, -1.0, None
        if level.counted:
            if not any(again):
                choices = replace(choices, recompute="none")
            elif again != held:
                most = max(again)
                equal, counts = (float(most), None) if again == tuple(min(most, n) for n in held) else (-1.0, again)
        elif level.fixed_layers is not None:
            equal = level.fixed_layers
        d = self.layout.degrees
        degrees = replace(d, recompute_layers=equal, offload_fraction=level.offload_fraction)
        even = held == even_layers(self.case.architecture.layers, float(num(d.pp)), float(num(d.vpp))) and len(set(held[1:-1])) <= 1
        return Layout(degrees=degrees, choices=choices, stage_layers=None if even and counts is None else held, stage_recompute=counts)

    def agrees(self, chosen: tuple[int, ...], objective: float, result: Cost) -> bool:
        """Tell whether the evaluation of a whole choice gives the step and the bytes that the tables gave."""
        taken = np.array([options[i] for options, i in zip(self.device_bytes, chosen, strict=True)])
        step, wanted = float(num(result.time.step_seconds)), self.step_seconds(objective)
        near = abs(step - wanted) <= TOLERANCE * step
        return near and abs(float(np.max(taken)) - float(num(result.memory.peak_device_bytes))) <= MEMORY_QUANTUM_BYTES


@lru_cache(maxsize=4096)
def even_layers(layers: int, pp: float, vpp: float) -> tuple[int, ...]:
    """Return the layers of each stage under the even split."""
    chunks = np.arange(pp * vpp)
    sizes = num(chunk_start(layers, pp, vpp, chunks + 1.0)) - chunk_start(layers, pp, vpp, chunks)
    return tuple(int(n) for n in sizes.reshape(int(vpp), int(pp)).sum(axis=0))


def stage_problems(case: Case, asked: Sequence[tuple[Layout, tuple[Level, ...], Shape]], below_seconds: float) -> list[StageProblem | None]:
    """Return the stage problem of each pipeline (layout, levels, shape; all of one group), without the options that cannot be part of a
    step below `below_seconds`; None where some stage has none left, so that no split is that fast and fits.

    All pipelines are tabled by one evaluation for each recompute and offload.
    """
    makers = [_Maker(case, layout, levels, shape, below_seconds) for layout, levels, shape in asked]
    for choices in dict.fromkeys(level.choices for maker in makers for level in maker.levels):
        wanted = [maker.wanted(choices) for maker in makers]
        if not sum(len(w.keys) for w in wanted):
            continue
        table = _table(case, choices, makers, wanted)
        start = 0
        for maker, want in zip(makers, wanted, strict=True):
            maker.take(want, _slice(table, start, start + len(want.keys)))
            start += len(want.keys)
    return [maker.problem() for maker in makers]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """Rows of a table that one pipeline asks for."""

    keys: list[Key]
    levels: list[int]
    recomputed: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One option, before the terms of all levels are known."""

    key: Key
    level: int
    recomputed: int
    values: tuple[float, ...]
    once: tuple[float, ...]
    device_bytes: float


def _table(case: Case, choices: Choices, makers: list[_Maker], wanted: list[_Wanted]) -> StageTable:
    """Evaluate what all pipelines ask for under one choice."""
    keys = [key for want in wanted for key in want.keys]
    sizes = [len(want.keys) for want in wanted]
    names = tuple(Degrees.__dataclass_fields__)
    degrees = {
        name: np.repeat(np.array([float(num(getattr(m.layout.degrees, name))) for m in makers]), sizes).reshape(-1, 1) for name in names
    }
    parts = [maker.levels[number].offload_fraction for maker, want in zip(makers, wanted, strict=True) for number in want.levels]
    degrees["offload_fraction"] = np.array(parts).reshape(-1, 1)
    return stage_table(
        case,
        Layout(degrees=Degrees(**degrees), choices=choices),
        position=np.array([key[0] for key in keys], dtype=np.float64),
        layers=np.array([key[1] for key in keys], dtype=np.float64),
        kind_layers=tuple(np.array([key[2][i] for key in keys], dtype=np.float64) for i in range(len(layer_kinds(case.architecture)[0]))),
        recomputed=np.array([k for want in wanted for k in want.recomputed], dtype=np.float64),
    )


def _slice(table: StageTable, start: int, end: int) -> StageTable:
    def cut(value: Array | tuple[Array, ...]) -> Any:
        return tuple(v[start:end] for v in value) if isinstance(value, tuple) else value[start:end]

    return StageTable(**{f.name: cut(getattr(table, f.name)) for f in fields(StageTable)})


class _Maker:
    """Makes the options of all stages of one pipeline."""

    def __init__(self, case: Case, layout: Layout, levels: tuple[Level, ...], shape: Shape, below_seconds: float) -> None:
        self.case, self.layout, self.levels, self.shape = case, layout, levels, shape
        self.below = shape.objective_below(below_seconds) * (1.0 + ROUNDING)
        self.rows: list[_Row] = []
        windows = shape.windows(below_seconds)
        self.whole = windows is None or windows.whole
        self.spans = Spans(low=(), high=(), before=shape.before) if windows is None else windows.spans(shape.before)
        self.keys = self.spans.keys

    def wanted(self, choices: Choices) -> _Wanted:
        """Return the rows that the levels of one choice ask for."""
        want = _Wanted(keys=[], levels=[], recomputed=[])
        for number, level in enumerate(self.levels):
            if level.choices != choices:
                continue
            asked = [(key, k) for key in self.keys for k in self._counts(level, key[1])]
            if len(asked) > MAX_ROWS:
                self.whole = False
                continue
            want.keys.extend(key for key, _ in asked)
            want.recomputed.extend(k for _, k in asked)
            want.levels.extend([number] * len(asked))
        return want

    def take(self, want: _Wanted, table: StageTable) -> None:
        """Keep of each level and key the option with the least recompute that fits and stays below the ceiling, if any."""
        position = np.array([key[0] for key in want.keys], dtype=np.float64)
        good = self._fits(table) & (self.shape.least(position, table.forward_seconds, table.backward_seconds) <= self.below)
        if not good.any():
            return
        found = values(self.shape.schedule, table.forward_seconds, table.backward_seconds, table.weight_seconds)
        first: dict[tuple[int, Key], int] = {}
        for i in np.flatnonzero(good):
            first.setdefault((want.levels[i], want.keys[i]), int(i))
        self.rows += [
            _Row(
                key=key,
                level=level,
                recomputed=want.recomputed[i],
                values=tuple(float(v[i]) for v in found),
                once=tuple(float(t[i]) for t in table.step_seconds),
                device_bytes=float(table.device_bytes[i]),
            )
            for (level, key), i in first.items()
        ]

    def problem(self) -> StageProblem | None:
        """Return the problem, with the levels under which every stage has an option; None where there is no such level."""
        stages = self.shape.stages
        filled = {n: {row.key[0] for row in self.rows if row.level == n} for n in range(len(self.levels))}
        rows = [row for row in self.rows if len(filled[row.level]) == stages]
        if not rows:
            return None
        terms = max(len(row.once) for row in rows)
        options: list[list[Option]] = [[] for _ in range(stages)]
        recomputed: list[list[int]] = [[] for _ in range(stages)]
        sizes: list[list[float]] = [[] for _ in range(stages)]
        for row in rows:
            stage, held, _ = row.key
            taken = (*row.values, *row.once, *((0.0,) * (terms - len(row.once))))
            options[stage].append(Option(layers=held, values=taken, level=row.level, starts=self.spans.begins(row.key)))
            recomputed[stage].append(row.recomputed)
            sizes[stage].append(row.device_bytes)
        shape = self.shape
        return StageProblem(
            case=self.case,
            layout=self.layout,
            levels=self.levels,
            chain=Chain(
                stages=tuple(map(tuple, options)),
                layers=shape.layers,
                nodes=nodes(shape.schedule, stages, shape.micro_batches, float(shape.vpp), terms),
            ),
            recomputed=tuple(map(tuple, recomputed)),
            device_bytes=tuple(map(tuple, sizes)),
            shape=shape,
            whole=self.whole,
            full=len({row.key for row in rows if self._plain(row)}) == len(self.keys),
        )

    def _plain(self, row: _Row) -> bool:
        level = self.levels[row.level]
        return not level.offloaded and row.recomputed == 0 and (level.counted or level.choices.recompute == "none")

    def _fits(self, table: StageTable) -> npt.NDArray[np.bool_]:
        good = table.device_bytes <= self.case.limit_bytes
        for limit, used in ((self.case.host_limit_bytes, table.host_bytes), (self.case.pool.node.nvme_bytes, table.nvme_bytes)):
            good = good if limit is None else good & (used <= limit)
        return np.asarray(good)

    def _counts(self, level: Level, held: int) -> list[int]:
        if level.fixed_layers is not None:
            return [min(held, int(level.fixed_layers)) if level.fixed_layers >= 0 else held]
        if level.counted:
            return list(range(1 if "recompute" in self.case.fixed else 0, held + 1))
        return [0]
