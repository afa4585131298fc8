"""Replicas: each pool holds data-parallel replicas with its own layout, micro-batch and accumulation, and takes a share of the batch.

Shares are chosen so that the slowest pool's gradients come as early as possible, weighed against what follows (optimizer, offload). The
choice runs on lower bounds of each row's time; the rows of the best split are then evaluated at their share and checked against the laws,
and the choice is repeated with the true times until it stands (so nothing that the bounds span is better by more than GAP).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.choices.precision import regime_of
from cost_models.layout import Degrees, Layout
from cost_models.numeric import num
from cost_models.stages import layer_kinds
from cost_models.transformer import model_ops
from planner.evaluate import evaluate, fits_alone, plan
from planner.mixed.join import before_and_after, replicas_ledger
from planner.mixed.needs import replica_needs
from planner.mixed.ways import Points, Ways, ways
from planner.plan import MixedPart, MixedPlan
from planner.rules import broken
from planner.rules.wishes import wish_rules

if TYPE_CHECKING:
    from cost_models.result import Cost
    from hardware.spec import Pool
    from planner.case import Case
    from planner.mixed.link import Link
    from planner.plan import Plan

Array = npt.NDArray[np.float64]
Shares = npt.NDArray[np.int64]
SHARES = 1024
"""Splits of the batch that are compared: beyond this many samples, in steps of the batch's smallest divisor that leaves no more."""
ROUNDS = 400
"""Times that the choice is repeated with true times."""
GAP = 1e-3
"""Relative: the choice stands where no bound promises a step shorter by more than this."""


class Replicas:
    """The choice of rows and shares for pools in one framework."""

    def __init__(self, cases: Sequence[Case], link: Link, deadline: float | None) -> None:
        """Raises TimeoutError past the deadline, and LookupError with a sentence where a pool has no lawful row that fits."""
        self.cases, self.link, self.deadline = tuple(cases), link, deadline
        batch = cases[0].training.global_batch
        self.batch, self.unit = batch, _unit(batch)
        self.rows: list[Ways] = []
        for case in cases:
            found = ways(case, batch - (len(cases) - 1) * self.unit, deadline)
            if found is None:
                raise LookupError(f"no whole replica fits on {case.pool.count} × {case.pool.gpu.name} in {case.framework}")
            self.rows.append(found)
        self.shares: Shares = np.arange(0, batch + 1, self.unit, dtype=np.int64)
        self.bounds = [np.where(self.shares[None, :] > 0, w.bound(self.shares), np.inf) for w in self.rows]
        self.afters = [w.after.copy() for w in self.rows]
        self.true: dict[tuple[int, int, int], Cost | None] = {}
        self.points: dict[tuple[int, int], Points] = {}
        self.proved = True

    def best(self) -> MixedPlan | None:
        """Return the best split; None where no split is lawful. Evaluates rows until no bound promises more than GAP of the step."""
        seconds, best = np.inf, None
        for _ in range(ROUNDS):
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise TimeoutError
            bound, split = self._split()
            if split is None or seconds <= bound * (1.0 + GAP):
                break
            for k, (row, share) in enumerate(split):
                if (k, row, share) not in self.true:
                    self._evaluate(k, row, share)
            found = self._true_seconds(split)
            if found < seconds:
                seconds, best = found, split
        else:
            self.proved = False
        return None if best is None else self._joined(best)

    def _true_seconds(self, split: list[tuple[int, int]]) -> float:
        """Seconds up to the reduction and after it of an evaluated split; infinite where a part is not lawful or does not fit."""
        taken = [(self.bounds[k][row, share], self.afters[k][row]) for k, (row, share) in enumerate(split)]
        return float(max(before for before, _ in taken) + max(after for _, after in taken))

    def _split(self) -> tuple[float, list[tuple[int, int]] | None]:
        """Return the least sum of slowest gradient and slowest rest, by the bounds, and (row, index of the share) of each pool: the rest
        is limited to one value after another, and rows that keep it compete for the earliest gradient."""
        limits = np.unique(np.concatenate(self.afters))
        best, chosen = float("inf"), None
        fastest = [np.full(len(self.shares), np.inf) for _ in self.cases]
        taken = [np.zeros(len(self.shares), dtype=np.int64) for _ in self.cases]
        done = [np.zeros(len(after), dtype=bool) for after in self.afters]
        for limit in limits:
            for k, after in enumerate(self.afters):
                new = np.flatnonzero((after <= limit) & ~done[k])
                done[k][new] = True
                if len(new):
                    at = np.argmin(self.bounds[k][new], axis=0)
                    value = self.bounds[k][new[at], np.arange(len(self.shares))]
                    better = value < fastest[k]
                    fastest[k], taken[k] = np.where(better, value, fastest[k]), np.where(better, new[at], taken[k])
            value, shares = _least_slowest(fastest)
            if value + limit < best:
                best = value + float(limit)
                chosen = [(int(taken[k][s]), s) for k, s in enumerate(shares)]
        return best, chosen

    def _evaluate(self, k: int, row: int, share: int) -> None:
        """Replace the bound of a row at a share by its true time; infinite where it breaks a law or does not fit."""
        case, layout = self.case_at(k, share), self.rows[k].layouts[row]
        wished = all(np.all(rule.holds(case, layout)) for rule in wish_rules(case))
        made = evaluate(case, layout) if wished and not broken(case, layout) else None
        self.true[k, row, share] = made
        if made is None:
            self.bounds[k][row, share] = np.inf
            return
        if not fits_alone(replace(case, wishes=()), layout, made):
            self.bounds[k][row, share:] = np.inf  # more micro-batches never take less memory
            return
        before, after = (float(x) for x in before_and_after(made.time.ledger))
        self.afters[k][row] = after
        self._tighten(k, row, share, before)

    def _tighten(self, k: int, row: int, share: int, before: float) -> None:
        """Use a true time for the bounds of the row's other shares."""
        count = float(self.shares[share]) / self.rows[k].step[row]
        counts, times = self.points.get((k, row), (np.zeros((1, 0)), np.zeros((1, 0))))
        self.points[k, row] = np.append(counts, [[count]], axis=1), np.append(times, [[before]], axis=1)
        bound = self.rows[k].bound(self.shares, row, self.points[k, row])[0]
        self.bounds[k][row] = np.maximum(self.bounds[k][row], np.where(self.shares > 0, bound, np.inf))
        self.bounds[k][row, share] = before

    def case_at(self, k: int, share: int) -> Case:
        """Return the case of a pool with its share of the batch."""
        case = self.cases[k]
        return replace(case, training=case.training.model_copy(update={"global_batch": int(self.shares[share])}))

    def _joined(self, split: list[tuple[int, int]]) -> MixedPlan:
        plans = [plan(self.case_at(k, s), self.rows[k].layouts[r], self.true[k, r, s]) for k, (r, s) in enumerate(split)]
        pools: list[Pool] = [case.pool for case in self.cases]
        between = self.link.reduce_seconds(pools, max(gradient_bytes(self.cases[0], p) for p in plans))
        ledger = replicas_ledger([p.cost.time.ledger for p in plans], pools, between)
        step = float(ledger.exposed)
        parts = tuple(
            MixedPart(plan=p, samples=p.training.global_batch, busy_seconds=float(before_and_after(p.cost.time.ledger)[0])) for p in plans
        )
        return MixedPlan(
            kind="replicas",
            framework=self.cases[0].framework,
            parts=parts,
            ledger=ledger,
            step_seconds=step,
            tokens_per_second=self.batch * self.cases[0].training.seq / step,
            needs=replica_needs(plans),
        )


def _unit(batch: int) -> int:
    """Return the smallest divisor of the batch that leaves at most SHARES shares; 1 where only the batch itself does."""
    found = next((u for u in range(1, batch) if batch % u == 0 and batch // u <= SHARES), 1)
    return found if batch // found >= 2 else 1


def _least_slowest(times: Sequence[Array]) -> tuple[float, list[int]]:
    """Return the least maximum of times[k][share k] over shares (indices) that sum to the last index, and those shares."""
    best, size = times[0], len(times[0])
    picks: list[Shares] = []
    for k, following in enumerate(times[1:], start=1):
        joined, pick = np.full(size, np.inf), np.zeros(size, dtype=np.int64)
        for total in range(size) if k < len(times) - 1 else (size - 1,):
            slowest = np.maximum(best[: total + 1][::-1], following[: total + 1])
            pick[total] = int(np.argmin(slowest))
            joined[total] = slowest[pick[total]]
        best = joined
        picks.append(pick)
    left, shares = size - 1, []
    for pick in reversed(picks):
        shares.append(int(pick[left]))
        left -= int(pick[left])
    return float(best[-1]), [left, *reversed(shares)]


def gradient_bytes(case: Case, made: Plan) -> float:
    """Return the bytes of all gradients that replicas average: trained parameters of the model x the regime's reduce bytes."""
    whole = Layout(degrees=Degrees(), choices=made.layout.choices)
    ops = model_ops(case.architecture, case.training, whole)
    _, before = layer_kinds(case.architecture)
    frozen = case.training.method in ("lora", "qlora")
    times = [(rows, float(table[-1])) for (_, rows), table in zip(ops.kinds, before, strict=True)]
    times += [(ops.embedding, 1.0), (ops.head, 1.0), (ops.mtp, float(case.architecture.mtp_layers))]
    trained = sum(n * float(num(p.adapter if frozen else p.count)) for rows, n in times for op in rows for p in op.params)
    return trained * regime_of(case.training, made.layout.choices).reduce_bytes
