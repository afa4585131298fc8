"""The stage problem of one pipeline: tables of what each stage costs for each number of layers, and the paths of its schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.choices.pipeline import Line
from cost_models.choices.schedules import schedule
from cost_models.layout import Layout, micro_batches
from cost_models.numeric import num
from planner.case import Case
from planner.evaluate import StageTable, evaluate, stage_table
from planner.solver.chain import Chain, Option

if TYPE_CHECKING:
    from cost_models.result import Cost

WINDOW = 3
"""A stage may start this many layers before or after the even split's."""
SPREAD = 2
"""A stage may hold this many layers more or fewer than the even split's."""
MEMORY_QUANTUM_BYTES = 2.0**20
TOLERANCE = 1e-9
"""Relative: the tables and the re-evaluation run the same formulas."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageProblem:
    """One pipeline, its stage problem, and what the solver's choice means."""

    case: Case
    layout: Layout
    """The even pipeline."""
    chain: Chain
    recomputed: tuple[tuple[int, ...], ...]
    """Fully recomputed layers of each option."""
    device_bytes: tuple[tuple[float, ...], ...]
    rest_seconds: float
    """Step of the even pipeline beyond its longest path: taken as the same for any split, and re-evaluated afterwards."""
    bound_seconds: float
    """Optimistic step: stages of equal time, nothing recomputed, everything else as in the even pipeline."""

    def layout_of(self, chosen: tuple[int, ...]) -> Layout:
        """Return the layout of a choice of options."""
        held = tuple(options[i].layers for options, i in zip(self.chain.stages, chosen, strict=True))
        again = tuple(k[i] for k, i in zip(self.recomputed, chosen, strict=True))
        full = self.layout.choices.recompute == "full"
        degrees = self.layout.degrees
        return replace(self.layout, degrees=degrees, stage_layers=held, stage_recompute=again if full else None)

    def check(self, chosen: tuple[int, ...], result: Cost) -> None:
        """Hold the tables against the evaluation of the whole choice. Raises AssertionError where they disagree."""
        size = num(result.memory.stage_device_bytes)
        taken = np.array([options[i] for options, i in zip(self.device_bytes, chosen, strict=True)])
        if np.any(np.abs(size - taken) > MEMORY_QUANTUM_BYTES):
            raise AssertionError(f"stage bytes of the tables {taken} and of the evaluation {size} differ by more than 1 MiB")
        seconds = num(result.time.stage_forward_seconds) + result.time.stage_backward_seconds
        wanted = np.array([options[i].seconds for options, i in zip(self.chain.stages, chosen, strict=True)])
        if np.any(np.abs(seconds - wanted) > TOLERANCE * np.maximum(seconds, 1e-3)):
            raise AssertionError(f"stage seconds of the tables {wanted} and of the evaluation {seconds} differ")


def stage_problem(case: Case, layout: Layout) -> StageProblem | None:
    """Return the stage problem of a 1F1B pipeline; None where its schedule is no maximum of linear paths, or no split fits."""
    pp = int(num(layout.degrees.pp))
    m = float(num(micro_batches(layout, case.training.global_batch)))
    paths = linear_paths(layout, m)
    if paths is None:
        return None
    table = _table(case, layout, pp)
    stages, recomputed, sizes = _options(case, layout, table, pp)
    if not all(stages):
        return None
    even = evaluate(case, layout)
    work = _least_work(stages, pp, case.architecture.layers)
    now = float(np.max(paths @ _even_seconds(even)))
    rest = float(num(even.time.step_seconds)) - now
    return StageProblem(
        case=case,
        layout=layout,
        chain=Chain(stages=stages, layers=case.architecture.layers, paths=tuple(tuple(float(w) for w in row) for row in paths)),
        recomputed=recomputed,
        device_bytes=sizes,
        rest_seconds=rest,
        bound_seconds=rest + share_of_balance(paths) * work,
    )


def _even_seconds(even: Cost) -> Array:
    return num(num(even.time.stage_forward_seconds) + even.time.stage_backward_seconds)


def linear_paths(layout: Layout, m: float) -> Array | None:
    """Return the weights of the stages' seconds on each path of the schedule, (paths, stages), by asking the schedule's own formula for
    one stage at a time; None with fewer micro-batches than stages, where paths take forward and backward apart."""
    pp = int(num(layout.degrees.pp))
    if m < pp:
        return None
    rows = []
    for j in range(pp):
        own, after, total = (_path(layout, pp, m, j, probe) for probe in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
        rows.append([total + (own if s == j else 0.0) + (after if s > j else 0.0) for s in range(pp)])
    return np.array(rows)


def _path(layout: Layout, pp: int, m: float, j: int, probe: tuple[float, float, float]) -> float:
    """Seconds of the path through stage j with (own, after, total) seconds."""
    own, after, total = probe
    one = np.ones(1)
    line = Line(
        forward=one * own / 2.0,
        backward=one * own / 2.0,
        weight=one * 0.0,
        behind=one * (pp - 1.0 - j),
        after=one * after,
        forward_sum=num(total / 2.0),
        backward_sum=num(total / 2.0),
        weight_sum=num(0.0),
        pp=num(float(pp)),
        vpp=num(layout.degrees.vpp),
        micro_batches=num(m),
    )
    return float(num(schedule(layout.choices.schedule).seconds(line)).reshape(-1)[0])


def share_of_balance(paths: Array) -> float:
    """Return a factor f such that no split of a total time T over the stages has a longest path below f × T.

    By duality: weights of the paths, none negative and summing to one, whose mix is the same on every stage; else the least column of
    the plain mean of the paths.
    """
    size = len(paths)
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = paths.T
    system[:size, size] = -1.0
    system[size, :size] = 1.0
    try:
        solved = np.linalg.solve(system, np.array([*([0.0] * size), 1.0]))
    except np.linalg.LinAlgError:
        solved = -np.ones(size + 1)
    if np.all(solved[:size] >= 0.0):
        return float(solved[size]) * (1.0 - 1e-12)
    return float(np.min(np.mean(paths, axis=0)))


def _least_work(stages: tuple[tuple[Option, ...], ...], pp: int, layers: int) -> float:
    """Least total seconds of all stages over all chains of options: a shortest path over the layers."""
    best = {0: 0.0}
    for options in stages:
        after: dict[int, float] = {}
        for o in options:
            if o.start in best:
                end, seconds = o.start + o.layers, best[o.start] + o.seconds
                after[end] = min(after.get(end, float("inf")), seconds)
        best = after
    return best.get(layers, float("inf"))


def _table(case: Case, layout: Layout, pp: int) -> StageTable:
    """Return what every stage costs for every start, number of layers and recomputed layers of the window."""
    layers = case.architecture.layers
    several = case.architecture.moe is not None or case.architecture.sliding_window is not None
    full = layout.choices.recompute == "full"
    rows = []
    for stage in range(pp):
        for start in _starts(stage, pp, layers):
            for held in _held(start, stage, pp, layers):
                rows += [(stage, start, held, k) for k in (range(held + 1) if full else (0,))]
    table = np.array(rows, dtype=np.float64)
    if several:
        return stage_table(case, layout, table)
    # layers are all of one kind: the start does not matter, so that each (stage, layers, recomputed) is evaluated once
    keys, inverse = np.unique(table[:, [0, 2, 3]], axis=0, return_inverse=True)
    once = stage_table(case, layout, np.stack([keys[:, 0], np.zeros(len(keys)), keys[:, 1], keys[:, 2]], axis=1))
    at = inverse.reshape(-1)
    return StageTable(rows=table, device_bytes=once.device_bytes[at], seconds=once.seconds[at])


def _starts(stage: int, pp: int, layers: int) -> range:
    if stage == 0:
        return range(1)
    middle = round(stage * layers / pp)
    return range(max(stage, middle - WINDOW), min(layers - (pp - stage), middle + WINDOW) + 1)


def _held(start: int, stage: int, pp: int, layers: int) -> list[int]:
    if stage == pp - 1:
        return [layers - start]
    ends = _starts(stage + 1, pp, layers)
    low, high = layers // pp - SPREAD, -(-layers // pp) + SPREAD
    return [end - start for end in ends if max(1, low) <= end - start <= high]


Options = tuple[tuple[tuple[Option, ...], ...], tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]


def _options(case: Case, layout: Layout, table: StageTable, pp: int) -> Options:
    """Return for each stage its options that fit: of each start and number of layers the one with the least recompute, since more
    recompute takes longer and changes nothing else."""
    best: dict[tuple[int, int, int], tuple[float, int, float]] = {}
    for (stage, start, held, k), size, seconds in zip(table.rows.astype(int), table.device_bytes, table.seconds, strict=True):
        key = (int(stage), int(start), int(held))
        if size <= case.limit_bytes and (key not in best or (seconds, k) < best[key][:2]):
            best[key] = (float(seconds), int(k), float(size))
    stages: list[list[Option]] = [[] for _ in range(pp)]
    recomputed: list[list[int]] = [[] for _ in range(pp)]
    sizes: list[list[float]] = [[] for _ in range(pp)]
    for (stage, start, held), (seconds, k, size) in sorted(best.items()):
        stages[stage].append(Option(start=start, layers=held, seconds=seconds))
        recomputed[stage].append(k)
        sizes[stage].append(size)
    return tuple(map(tuple, stages)), tuple(map(tuple, recomputed)), tuple(map(tuple, sizes))
