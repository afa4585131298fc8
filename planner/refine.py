"""Refine: the integers that the grid does not span.

How many layers recompute (the same on every stage, by evaluation), and how many layers each stage of a 1F1B pipeline holds and
recomputes (by the solver, on tables from the cost models, re-evaluated afterwards).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.layout import Degrees, Layout
from cost_models.numeric import num
from planner.board import Board, Entry, canonical
from planner.evaluate import evaluate, fitting, totals
from planner.rules.frameworks import SUPPORT
from planner.scan import Lean, OutOfTime, Scan
from planner.solver.chain import ScaleError
from planner.stage_problem import StageProblem, stage_problem

if TYPE_CHECKING:
    from planner.case import Case

UNIFORM = 64
"""Rows whose recomputed layers are counted one by one."""
SOLVED = 3
"""Pipelines given to the solver: those that could win, by their bound."""
UNEVEN = ("megatron", "torchtitan")
"""Frameworks that take any split of the layers over stages (pipeline layout; module lists)."""
SOLVER_SECONDS = 2.0


@dataclass(kw_only=True, slots=True)
class Refined:
    """What the refinement did."""

    feasible: int = 0
    solved: int = 0
    """Stage problems given to the solver; those without an answer have none that beats the best plan (or none found in time)."""
    proved: int = 0
    passed_over: int = 0
    """Pipelines that could have won by their bound and were not solved, being beyond SOLVED."""
    quantum_seconds: float = 0.0

    @property
    def sentence(self) -> str:
        """What was solved and proved, in words; empty for nothing."""
        if not self.solved:
            return ""
        quantum = f"{self.quantum_seconds * 1e6:g} µs a stage"
        noun = "stage problem" if self.solved == 1 else "stage problems"
        said = f"{self.solved} {noun} solved, {self.proved} with a better split proved optimal within {quantum}"
        return said + (f", {self.passed_over} more could win and were not solved" if self.passed_over else "")


def refine(scan: Scan, *, deadline: float | None = None) -> Refined:
    """Refine the promising rows of a scan and put what is better on its board."""
    done = Refined()
    lean = sorted((one for one in scan.lean if one.bound_seconds < scan.board.cutoff), key=lambda one: one.bound_seconds)
    for case, batch in _counted(lean[:UNIFORM]):
        _mind(deadline)
        found = totals(case, batch)
        fits = fitting(case, found)
        done.feasible += int(fits.sum())
        scan.board.offer(case, batch, found, fits)
    _uneven(scan, lean, done, deadline)
    return done


def _mind(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise OutOfTime


def _counted(lean: list[Lean]) -> Iterator[tuple[Case, Layout]]:
    """Yield batches with every number of recomputed layers below all of them, one batch for each case and choices."""
    families: dict[tuple[object, ...], list[Lean]] = {}
    for one in lean:
        if SUPPORT[one.case.framework].recompute_layers:
            families.setdefault((one.case.framework, one.layout.choices), []).append(one)
    for members in families.values():
        rows: list[list[float]] = []
        names = tuple(Degrees.__dataclass_fields__)
        for one in members:
            own = {name: float(num(getattr(one.layout.degrees, name))) for name in names}
            held = -(-one.case.architecture.layers // int(own["pp"]))
            rows += [[k if name == "recompute_layers" else own[name] for name in names] for k in range(1, held)]
        if rows:
            table = np.array(rows, dtype=np.float64)
            degrees = Degrees(**{name: table[:, [i]] for i, name in enumerate(names)})
            yield members[0].case, Layout(degrees=degrees, choices=members[0].layout.choices)


def _uneven(scan: Scan, lean: list[Lean], done: Refined, deadline: float | None) -> None:
    """Give the pipelines that could win to the solver, the most promising first."""
    board = scan.board
    problems = []
    for case, layout in _pipelines(board, scan.near, lean):
        _mind(deadline)
        problem = stage_problem(case, layout)
        if problem is not None and problem.bound_seconds < _to_beat(board):
            problems.append(problem)
    problems.sort(key=lambda p: p.bound_seconds)
    for number, problem in enumerate(problems):
        if problem.bound_seconds >= _to_beat(board):
            break
        if number >= SOLVED:
            done.passed_over += 1
            continue
        _mind(deadline)
        _solve(board, problem, done)


def _to_beat(board: Board) -> float:
    """Step seconds of the best plan so far."""
    return min((e.step_seconds for e in board.entries.values()), default=float("inf"))


def _pipelines(board: Board, near: list[Entry], lean: list[Lean]) -> Iterator[tuple[Case, Layout]]:
    """Yield 1F1B pipelines worth a look: those on the board, those that recompute to fit, and near misses while nothing fits."""
    seen: set[tuple[object, ...]] = set()
    entries = [(e.case, e.layout) for e in (board.best() if board.entries else near)]
    for case, layout in (*entries, *((one.case, one.layout) for one in lean[:UNIFORM])):
        d = layout.degrees
        if case.framework not in UNEVEN or layout.choices.schedule != "1f1b" or float(num(d.pp)) < 2 or layout.stage_layers is not None:
            continue
        key = (case.framework, layout.choices, canonical(layout).degrees)
        if key not in seen:
            seen.add(key)
            yield case, canonical(layout)


def _solve(board: Board, problem: StageProblem, done: Refined) -> None:
    from planner.solver.solve import solve

    try:
        solution = solve(problem.chain, time_limit_seconds=SOLVER_SECONDS, below_seconds=_to_beat(board) - problem.rest_seconds)
    except ScaleError:
        return
    done.solved += 1
    if solution is None:
        return
    done.proved += solution.proved
    done.quantum_seconds = max(done.quantum_seconds, solution.quantum_seconds)
    layout = problem.layout_of(solution.chosen)
    result = evaluate(problem.case, layout)
    problem.check(solution.chosen, result)
    held, entry = result.memory, Entry(
        case=problem.case,
        layout=layout,
        step_seconds=float(num(result.time.step_seconds)),
        device_bytes=float(num(result.memory.peak_device_bytes)),
    )
    host = problem.case.host_limit_bytes
    if entry.device_bytes <= problem.case.limit_bytes and (host is None or float(num(held.host_bytes_per_node)) <= host):
        done.feasible += 1
        board.add(entry)
