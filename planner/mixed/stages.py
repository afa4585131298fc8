"""Stages: one 1F1B pipeline over several pools, each stage on one pool, with as many layers as its GPUs carry in time and memory.

For each grid (tp, cp, dp, micro-batch, ZeRO), each number of stages on each pool and each order of the pools, a bound says how fast the
pipeline could be; from the most promising on, the layers of each stage are chosen under each card's memory by the schedule's own formula.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cost_models.choices.schedules import schedule
from cost_models.ledger import Term
from cost_models.numeric import num
from cost_models.stages import Stages, layer_kinds
from cost_models.throughput.stagewise import line
from planner.evaluate import held_cost, plan
from planner.mixed.candidates import Candidate, Sends, all_candidates, promising
from planner.mixed.join import ONCE, WHALE, exposed, stages_ledger
from planner.mixed.needs import stage_needs
from planner.mixed.splits import Tables, best_split
from planner.plan import MixedPart, MixedPlan
from planner.rules import broken
from planner.rules.frameworks import SUPPORT
from planner.rules.wishes import wish_rules

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.result import Cost
    from planner.case import Case
    from planner.mixed.link import Link

Array = npt.NDArray[np.float64]
UNEVEN = ("megatron", "torchtitan")
"""Frameworks that take any split of the layers over stages."""
SOLVED = 120
"""Pipelines whose layers are chosen: those that could beat the best plan of other kinds, by their bound."""
SLOW = 16
"""The same of pipelines that cannot."""
WINDOW = 4
"""Where layers are of several kinds, a stage starts and holds at most this many layers off its share."""
RECOMPUTED = 9
"""Numbers of recomputed layers that are tried for a stage."""


@dataclass(kw_only=True, slots=True)
class Looked:
    """How far the search of one framework went."""

    candidates: int = 0
    bound_seconds: float = float("inf")
    """The least bound of all candidates."""
    solved: int = 0
    stopped_seconds: float | None = None
    """Bound of the first candidate that could win and was not solved; None: all that could were."""
    windowed: bool = False
    """Whether some splits were not compared."""


def best_stages(cases: Sequence[Case], link: Link, deadline: float | None, target: float) -> tuple[MixedPlan | None, Looked]:
    """Return the best pipeline over all the pools, and how far the search went: through all that could beat `target` seconds or the
    best so far, but of those that cannot beat the target only a few.

    Raises TimeoutError past the deadline.
    """
    looked = Looked()
    best: MixedPlan | None = None
    sends = Sends(cases, link)
    waiting = list(all_candidates(cases))
    looked.candidates = len(waiting)
    for candidate in promising(waiting, cases, sends):
        looked.bound_seconds = min(looked.bound_seconds, candidate.bound_seconds)
        if best is not None and candidate.bound_seconds >= best.step_seconds:
            break
        if looked.solved >= (SOLVED if candidate.bound_seconds < target else SLOW):
            looked.stopped_seconds = candidate.bound_seconds
            break
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        looked.solved += 1
        made = Pipeline(cases, sends, candidate).best(looked, float("inf") if best is None else best.step_seconds)
        if made is not None and (best is None or made.step_seconds < best.step_seconds):
            best = made
    return best, looked


class Pipeline:
    """One candidate: tables of its stages, the best split, and the plan that follows."""

    def __init__(self, cases: Sequence[Case], sends: Sends, candidate: Candidate) -> None:
        self.candidate, self.layout = candidate, candidate.layout
        used = {k: n * candidate.grid.gpus for k, n in zip(candidate.order, candidate.counts, strict=True)}
        self.cases = {k: replace(cases[k], pool=cases[k].pool.model_copy(update={"count": n})) for k, n in used.items()}
        self.whole = candidate.grid.gpus * candidate.pp
        self.sends = sends(candidate.grid, candidate.order, candidate.counts)
        self.tied_seconds = sends.tied(candidate.grid, candidate.order)

    def lawful(self) -> bool:
        """Tell whether the pipeline keeps the laws, and the wishes about its layout, on every pool, as if all of it stood there."""
        cases = [replace(c, pool=c.pool.model_copy(update={"count": self.whole})) for c in self.cases.values()]
        wished = all(np.all(rule.holds(case, self.layout)) for case in cases for rule in wish_rules(case))
        return wished and not any(broken(case, self.layout) for case in cases)

    def best(self, looked: Looked, below: float) -> MixedPlan | None:
        """Return the plan of the best split; None where none fits, or where its pipeline alone takes `below` seconds."""
        if not self.lawful():
            return None
        tables, again = self._tables(looked)
        found = best_split(tables, self._seconds)
        if found is None:
            return None
        held, seconds, exhaustive = found
        looked.windowed = looked.windowed or not exhaustive
        if seconds >= below:
            return None
        starts = np.concatenate([[0], np.cumsum(held)[:-1]]).astype(np.int64)
        recomputed = tuple(int(again[i, s, n]) for i, (s, n) in enumerate(zip(starts, held, strict=True)))
        full = self.layout.choices.recompute == "full"
        layout = replace(self.layout, stage_layers=held, stage_recompute=recomputed if full else None)
        return self._plan(layout, starts, recomputed)

    def _seconds(self, forward: Array, backward: Array) -> Array:
        """The schedule's formula on splits, with sends."""
        sent = self.sends
        return self._formula(forward + sent[0], backward + sent[1])

    def _formula(self, forward: Array, backward: Array) -> Array:
        pp, m = forward.shape[-1], float(self.candidate.grid.micro_batches)
        listed = replace(self.layout, stage_layers=(1,) * pp)
        nothing = np.zeros(pp)
        held = Stages(
            index=np.arange(pp, dtype=np.float64), layers=nothing, kind_layers=(), embedding=nothing, head=nothing, first_layer=nothing,
            recomputed=nothing,
        )  # fmt: skip
        total = num(0.0)
        there = line(listed, held, num(m), (forward, backward, 0.0 * backward), (total, total, total))
        there = replace(
            there,
            forward_sum=num(there.forward_sum).reshape(-1, 1),
            backward_sum=num(there.backward_sum).reshape(-1, 1),
            weight_sum=num(there.weight_sum).reshape(-1, 1),
        )
        return num(schedule(self.layout.choices.schedule).seconds(there))

    def _tables(self, looked: Looked) -> tuple[Tables, npt.NDArray[np.int64]]:
        """Return what every stage costs for every start and number of layers, and how many of them recompute: the fewest that fit."""
        layers, pp = self.cases[self.candidate.order[0]].architecture.layers, self.candidate.pp
        shape = (pp, layers, layers + 1)
        forward, backward, again = np.full(shape, np.inf), np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
        once = {name: np.zeros(shape) for name in ONCE}
        beyond = np.arange(layers)[:, None] + np.arange(layers + 1)[None, :] > layers
        rows = self._rows(looked)
        for k in self.candidate.order:
            mine = rows[np.isin(rows[:, 0], [i for i, owner in enumerate(self.candidate.owner) if owner == k])]
            result = self._held(k, mine, apart=True)
            size = num(result.memory.stage_device_bytes).reshape(-1)
            f, b = num(result.time.stage_forward_seconds).reshape(-1), num(result.time.stage_backward_seconds).reshape(-1)
            terms = {t.name: np.broadcast_to(exposed(t), size.shape) for t in result.time.ledger.terms if t.name in once}
            fits = size <= self.cases[k].limit_bytes
            # the most recomputed first, so that the fewest recomputed layers that fit are written last
            for again_k in np.unique(mine[:, 3])[::-1]:
                at = np.flatnonzero(fits & (mine[:, 3] == again_k))
                i, start, n = mine[at, 0], mine[at, 1], mine[at, 2]
                free = start < 0
                columns = [(forward, f[at]), (backward, b[at]), (again, mine[at, 3]), *((once[name], v[at]) for name, v in terms.items())]
                for table, values in columns:
                    table[i[~free], start[~free], n[~free]] = values[~free]
                    table[i[free], :, n[free]] = values[free, None]
        forward[:, beyond] = np.inf
        return Tables(forward=forward, backward=backward, once=tuple(once.values())), again

    def _rows(self, looked: Looked) -> npt.NDArray[np.int64]:
        """Return (stage, first layer or -1 for any, layers, recomputed layers) of every option."""
        case = self.cases[self.candidate.order[0]]
        layers, pp = case.architecture.layers, self.candidate.pp
        kinds, _ = layer_kinds(case.architecture)
        found = []
        if len(kinds) == 1:
            options = [(i, -1, n) for i in range(pp) for n in range(1, layers - pp + 2)]
        else:
            looked.windowed = True
            options = self._window(layers)
        for i, start, n in options:
            found += [(i, start, n, k) for k in self._recomputes(case, n)]
        return np.array(found, dtype=np.int64).reshape(-1, 4)

    def _window(self, layers: int) -> list[tuple[int, int, int]]:
        """Options near the shares by speed, for layers of several kinds."""
        speed = np.array([1.0 / self.candidate.grid.speeds[k].layer_seconds for k in self.candidate.owner])
        share = layers * speed / speed.sum()
        ends = np.cumsum(share)
        found, pp = [], len(share)
        for i in range(pp):
            middle = ends[i] - share[i]
            starts = [0] if i == 0 else range(max(i, int(middle) - WINDOW), min(layers - (pp - i), int(middle) + WINDOW + 1) + 1)
            for start in starts:
                low, high = max(1, int(share[i]) - WINDOW), int(share[i]) + WINDOW + 1
                helds = [layers - start] if i == pp - 1 else range(low, min(high, layers - start - (pp - 1 - i)) + 1)
                found += [(i, start, n) for n in helds if n >= 1]
        return found

    def _recomputes(self, case: Case, n: int) -> list[int]:
        if self.layout.choices.recompute != "full":
            return [0]
        wanted = int(num(self.layout.degrees.recompute_layers))
        if wanted >= 0:
            return [min(wanted, n)]
        if not SUPPORT[case.framework].recompute_layers:
            return [n]
        return sorted({round(n * i / (RECOMPUTED - 1)) for i in range(RECOMPUTED)}) if n >= RECOMPUTED else list(range(n + 1))

    def _held(self, k: int, rows: npt.NDArray[np.int64], *, apart: bool = False) -> Cost:
        """Cost of rows of (stage, first layer or -1, layers, recomputed layers) on pool k: stages of one pipeline, or each `apart`, as a
        batch of which every row has its own terms."""
        case = self.cases[k]
        _, before = layer_kinds(case.architecture)
        start, n = np.maximum(rows[:, 1], 0), rows[:, 2]
        position = rows[:, 0].astype(np.float64)
        first = np.where(position == 0.0, 1.0, 0.0)

        def shaped(values: npt.NDArray[Any]) -> Array:
            return values.astype(np.float64).reshape((-1, 1) if apart else (-1,))

        held = Stages(
            index=shaped(position),
            layers=shaped(n),
            kind_layers=tuple(shaped(table[start + n] - table[start]) for table in before),
            embedding=shaped(first),
            head=shaped(position == self.candidate.pp - 1.0),
            first_layer=shaped(first),
            recomputed=shaped(rows[:, 3]),
        )
        # an explicit split: the cost models then take the stages as they are told, and not the decisive ones of an even split
        return held_cost(case, replace(self.layout, stage_layers=(1,) * self.candidate.pp), held)

    def _plan(self, layout: Layout, starts: npt.NDArray[np.int64], recomputed: tuple[int, ...]) -> MixedPlan | None:
        """Return the plan of a split; None where host memory or NVMe do not hold it."""
        m, held = float(self.candidate.grid.micro_batches), layout.stage_layers or ()
        owner = np.array(self.candidate.owner)
        rows = np.stack([np.arange(len(held)), starts, np.array(held), np.array(recomputed)], axis=1)
        costs = {k: self._held(k, rows[owner == k]) for k in self.candidate.order}
        forward = np.concatenate([num(costs[k].time.stage_forward_seconds) for k in self.candidate.order])
        backward = np.concatenate([num(costs[k].time.stage_backward_seconds) for k in self.candidate.order])
        work = self._work(forward, backward, m)
        pools = [self.cases[k].pool for k in self.candidate.order]
        ledger = stages_ledger(work, [costs[k].time.ledger for k in self.candidate.order], pools)
        step = float(ledger.exposed)
        parts, at = [], 0
        for k, n in zip(self.candidate.order, self.candidate.counts, strict=True):
            made = replace(plan(self.cases[k], layout, costs[k]), frameworks=(self.cases[k].framework,))
            if not made.fits:
                return None
            busy = m * float(np.max((forward + backward)[at : at + n]))
            parts.append(
                MixedPart(plan=made, samples=made.training.global_batch, first_stage=at, stage_layers=held[at : at + n], busy_seconds=busy)
            )
            at += n
        training = parts[0].plan.training
        return MixedPlan(
            kind="stages",
            framework=training.framework,
            parts=tuple(parts),
            ledger=ledger,
            step_seconds=step,
            tokens_per_second=training.global_batch * training.seq / step,
            needs=stage_needs(training.framework, layout, parts),
        )

    def _work(self, forward: Array, backward: Array, m: float) -> list[Term]:
        """Terms of the micro-batches: those of the stage that sets the pace, its sends, and the bubble."""
        sent = self.sends
        seconds = forward + backward + sent[0] + sent[1]
        pace = int(np.argmax(seconds))
        whole = float(self._formula((forward + sent[0])[None, :], (backward + sent[1])[None, :])[0])
        formula = schedule(self.layout.choices.schedule)
        tied = Term(
            name="pp.tied_embedding",
            value=self.tied_seconds,
            source=WHALE,
            formula="gradient of the embedding, averaged between first and last stage over the link of their pools",
        )
        return [
            Term(name="stage.forward", value=m * forward[pace], source=WHALE, formula=f"micro-batches x forward of stage {pace}"),
            Term(name="stage.backward", value=m * backward[pace], source=WHALE, formula=f"micro-batches x backward of stage {pace}"),
            Term(name="pp.send", value=m * (sent[0] + sent[1])[pace], source=WHALE, formula=f"micro-batches x sends of stage {pace}"),
            Term(
                name="pp.bubble",
                value=whole - m * seconds[pace],
                source=formula.SOURCE,
                formula="pipeline - micro-batches x slowest stage",
            ),
            *([tied] if self.tied_seconds else []),
        ]
