"""Refine: the pipelines of the grid, with the layers, the recompute and the offload of each stage chosen by the solver.

Families (pipelines of the grid) come in the order of their bound; each is solved under the ceiling of the best plan so far; once the
next bound is no better than the best plan, all that remain are ruled out. Whatever the solver chooses is evaluated again as a whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.board import Board, Entry, canonical
from planner.earliest import earliest
from planner.evaluate import evaluate, fitting, totals
from planner.labels import TooMany, even, least, within
from planner.levels import Bounded, levels_of
from planner.plan import Certificate
from planner.scan import OutOfTime, Scan
from planner.solver.chain import ScaleError, objective, slack
from planner.space import Group
from planner.stage_problem import TOLERANCE, StageProblem, stage_problems
from planner.windows import Shape, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cost_models.layout import Layout

BLOCK = 16
"""Families whose stages are tabled together, at first: the best plan of a block makes the next one smaller. Then twice as many."""
LARGEST_BLOCK = 256
FAMILIES = 5000
"""Families that are looked into at most (a count, not a time: the same request gives the same plan)."""
PLANLESS = 112
"""The same while nothing is known to fit: then the layers stay near the even split."""
SOLVER_SECONDS = 4.0
"""Deterministic seconds of one solve."""
BETTER = 1e-6
"""Relative: what a split must gain to be looked for; smaller gains are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One pipeline of the grid."""

    group: Group
    row: int
    bound_seconds: float

    @property
    def layout(self) -> Layout:
        """The even pipeline without relief, single."""
        return canonical(self.group.layouts(0, np.array([self.row])).row(0))


@dataclass(kw_only=True, slots=True)
class Refined:
    """What the refinement did."""

    feasible: int = 0
    solved: int = 0
    discarded: int = 0
    """Families whose layers cannot be spread over the stages in less time than the best plan takes."""
    unsolved: int = 0
    unsolved_bound: float = float("inf")
    """Least bound of the families that were not answered."""
    quantum_seconds: float = 0.0
    next_bound: float = 0.0
    """Bound of the family that is looked at: those after it have none below."""

    def give_up(self, bound_seconds: float, count: int = 1) -> None:
        """Note families without an answer."""
        self.unsolved += count
        self.unsolved_bound = min(self.unsolved_bound, bound_seconds)


def refine(scan: Scan, refined: Refined, *, deadline: float | None = None) -> None:
    """Solve the families that could win, put what is better on the scan's board, and note in `refined` what was done."""
    families = sorted(_families(scan), key=lambda f: f.bound_seconds)
    groups = _Groups(families)
    if not scan.board.entries:
        _pass(scan, families[:PLANLESS], groups, Refined(), deadline, planless=True)
    if scan.board.entries:
        _pass(scan, families, groups, refined, deadline)
    else:
        refined.unsolved = len(families)
    refined.next_bound = float("inf")


def _pass(scan: Scan, families: list[Family], groups: _Groups, refined: Refined, deadline: float | None, *, planless: bool = False) -> None:
    """Go through the families, block by block. `planless`: until one of them has a plan, which then bounds all others."""
    board, start, size = scan.board, 0, BLOCK
    while start < len(families) and not (planless and board.entries):
        block = [f for f in families[start : start + size] if f.bound_seconds < board.fastest]
        if not block:
            break
        refined.next_bound = block[0].bound_seconds
        if start >= FAMILIES:
            left = [f for f in families[start:] if f.bound_seconds < board.fastest]
            refined.give_up(block[0].bound_seconds, len(left))
            break
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime
        if scan.progress is not None:
            scan.progress(f"stages of pipelines {start + 1:,} to {start + len(block):,} of at most {len(families):,} that could win")
        _solve_block(board, block, groups, refined)
        start, size = start + size, min(2 * size, LARGEST_BLOCK)


def certificate(scan: Scan, refined: Refined, *, interrupted: bool) -> Certificate | None:
    """Return what is proved about the best plan; None without one."""
    best = scan.board.fastest
    if best == float("inf"):
        return None
    open_bound = min(refined.unsolved_bound, refined.next_bound)
    waiting = sum(int((p.bound_seconds < best).sum()) for p in scan.pipelines)
    unsolved = max(0, waiting - refined.solved - refined.discarded) if interrupted else refined.unsolved
    bound = min(best, open_bound)
    return Certificate(
        layouts=scan.counts.layouts,
        families=scan.families,
        solved=refined.solved,
        discarded=scan.families - refined.solved - unsolved,
        unsolved=unsolved,
        bound_seconds=bound,
        gap=(best - bound) / best,
        quantum_seconds=refined.quantum_seconds,
        proved=not interrupted and not unsolved,
    )


def joined(parts: list[Certificate]) -> Certificate | None:
    """Return the certificate of several searches together, each with a plan: the best plan of all is the one of the least step."""
    if not parts:
        return None
    best = min(part.bound_seconds / (1.0 - part.gap) for part in parts)
    bound = min(best, *(part.bound_seconds for part in parts))
    proved = all(part.proved or part.bound_seconds >= best for part in parts)
    return Certificate(
        layouts=sum(part.layouts for part in parts),
        families=sum(part.families for part in parts),
        solved=sum(part.solved for part in parts),
        discarded=sum(part.discarded for part in parts),
        unsolved=sum(part.unsolved for part in parts),
        bound_seconds=best if proved else bound,
        gap=0.0 if proved else (best - bound) / best,
        quantum_seconds=max(part.quantum_seconds for part in parts),
        proved=proved,
    )


def _families(scan: Scan) -> Iterator[Family]:
    for found in scan.pipelines:
        for row, bound in zip(found.rows, found.bound_seconds, strict=True):
            if bound < scan.board.fastest:
                yield Family(group=found.group, row=int(row), bound_seconds=float(bound))


class _Groups:
    """What is known of the families of each group, made for all of its families at once when the first of them comes up."""

    def __init__(self, families: list[Family]) -> None:
        self.rows: dict[int, set[int]] = {}
        for family in families:
            self.rows.setdefault(id(family.group), set()).add(family.row)
        self.known: dict[int, tuple[Bounded, dict[int, Shape]]] = {}

    def of(self, family: Family) -> tuple[Bounded, Shape]:
        """Return the levels of the family's group and the shape of the family."""
        key = id(family.group)
        if key not in self.known:
            rows = np.array(sorted(self.rows[key]), dtype=np.intp)
            found = shapes(family.group.case, family.group.layouts(0, rows))
            self.known[key] = levels_of(family.group, rows), dict(zip(rows.tolist(), found, strict=True))
        levels, by_row = self.known[key]
        return levels, by_row[family.row]


def _solve_block(board: Board, block: list[Family], groups: _Groups, refined: Refined) -> None:
    """Choose the layers, the recompute and the offload of each stage of each family, without offload first."""
    spread = [f for f in block if _spreads(groups.of(f)[1], board.fastest)]
    refined.discarded += len(block) - len(spread)
    failed: set[int] = set()
    for offloaded in (False, True):
        problems = _problems(board, spread, groups, offloaded=offloaded)
        settled: set[int] = set()
        for family, problem in zip(spread, problems, strict=True):
            if problem is None or family.bound_seconds >= board.fastest:
                continue
            if not _solve(board, problem, refined):
                failed.add(id(family))
            if problem.full:
                settled.add(id(family))
        if not offloaded:
            refined.solved += len(settled - failed)
            spread = [f for f in spread if id(f) not in settled and id(f) not in failed]
    refined.solved += sum(id(f) not in failed for f in spread)
    for family in block:
        if id(family) in failed:
            refined.give_up(family.bound_seconds)


def _spreads(shape: Shape, seconds: float) -> bool:
    """Tell whether some split takes less than `seconds`, were there memory for it."""
    windows = shape.windows(seconds)
    if windows is None or not windows.whole:
        return windows is not None
    below = shape.objective_below(seconds) * (1.0 - BETTER) - shape.once_seconds
    if even(shape) <= below:
        return True
    try:
        return within(shape, shape.unconstrained(windows), below)
    except TooMany:
        return True


def _problems(board: Board, families: list[Family], groups: _Groups, *, offloaded: bool) -> list[StageProblem | None]:
    """Return the stage problem of each family, those of a group from tables made together."""
    found: dict[int, StageProblem | None] = {}
    for group in {id(f.group): f.group for f in families}.values():
        own = [f for f in families if f.group is group]
        asked = []
        for family in own:
            levels, shape = groups.of(family)
            asked.append((family.layout, levels.below(family.row, board.fastest, offloaded=offloaded), shape))
        found.update(zip((id(f) for f in own), stage_problems(group.case, asked, board.fastest), strict=True))
    return [found[id(f)] for f in families]


def _solve(board: Board, problem: StageProblem, refined: Refined) -> bool:
    """Solve a stage problem under the ceiling of the best plan; tell whether it was answered."""
    below = (1.0 - BETTER) * problem.objective_below(board.fastest)
    try:
        bound, hint = least(problem.shape, problem.chain, below)
    except TooMany:
        bound, hint = 0.0, ()
    if bound > below:
        return problem.whole
    try:
        solution = earliest(problem.shape, problem.chain, below, hint) if hint else None
        if solution is None:
            from planner.solver.solve import solve

            solution = solve(problem.chain, time_limit_seconds=SOLVER_SECONDS, below_seconds=below, hint=hint or None)
    except ScaleError:
        return False
    if solution is not None and not solution.chosen:
        return problem.whole
    if solution is None or (hint and objective(problem.chain, hint) < solution.seconds and not solution.proved):
        if not hint or objective(problem.chain, hint) > below:
            return False
        chosen, seconds, proved, quantum = hint, objective(problem.chain, hint), False, 0.0
    else:
        chosen, seconds, proved, quantum = solution.chosen, solution.seconds, solution.proved, solution.quantum_seconds
    refined.quantum_seconds = max(refined.quantum_seconds, quantum)
    rounding = quantum * slack(problem.chain) + TOLERANCE * seconds
    agreed = _offer(board, problem, chosen, seconds, refined)
    return agreed and problem.whole and (proved or seconds <= bound + 2.0 * rounding)


def _offer(board: Board, problem: StageProblem, chosen: tuple[int, ...], seconds: float, refined: Refined) -> bool:
    """Evaluate a choice as a whole and put it on the board if it fits; tell whether the tables agree with it."""
    layout = problem.layout_of(chosen)
    found = totals(problem.case, layout)
    if fitting(problem.case, found).all():
        entry = Entry(
            case=problem.case,
            layout=canonical(layout),
            step_seconds=float(found.step_seconds[0]),
            device_bytes=float(found.device_bytes[0]),
        )
        refined.feasible += 1
        board.add(entry)
    return problem.agrees(chosen, seconds, evaluate(problem.case, layout))
