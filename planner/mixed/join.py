"""How the parts of a mixed plan join to one step: the formulas of this room, each on ledgers that the cost models made.

replicas  step = (max over pools of [forward, backward, reduction inside the pool] + all-reduce between pools + max over pools of [what
          follows the reduction]) × stragglers. All pools wait for the slowest gradient, and for the slowest optimizer step.
stages    step = (the schedule's own formula on the stages of all pools, each with the time it has on its pool and the sends over its own
          links + max over pools of each term once a step) × stragglers.
Source: Whale (arXiv 2011.09208; synchronous replicas wait for the slowest; stages balanced by time);
the schedules: cost_models/choices/schedules; stragglers: hardware/measured/software.toml, over the servers of all pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.ledger import Ledger, Term, add
from cost_models.numeric import num
from hardware.calibration import calibration

if TYPE_CHECKING:
    from hardware.spec import Pool

Array = npt.NDArray[np.float64]
STRAGGLERS = "host.stragglers"
AFTER = ("dp.gather", "optimizer.update", "offload.cpu_optimizer", "offload.transfer", "host.between_steps")
"""Terms that follow the gradient reduction."""
ONCE = ("dp.reduce", "sp.gradients", *AFTER)
"""Terms that occur once a step, whatever the pipeline does."""
WHALE = "Whale (arXiv 2011.09208)"


def exposed(term: Term) -> Array:
    """Return what a term adds to the step, of one evaluation or of a batch."""
    return num(term.value if term.exposed is None else term.exposed)


def before_and_after(ledger: Ledger) -> tuple[Array, Array]:
    """Return the exposed seconds up to the gradient reduction inside the pool, and after it, of one layout or a batch; no stragglers."""
    after = Ledger(ledger.unit, tuple(t for t in ledger.terms if t.name in AFTER))
    counted = [t for t in ledger.terms if t.name not in (*AFTER, STRAGGLERS, "decode.step")]
    return add(exposed(t) for t in counted), after.exposed


def stragglers(pools: Sequence[Pool], seconds: float) -> Term:
    """Return the stragglers of a step over the servers of all pools."""
    doublings = float(np.log2(max(sum(pool.nodes for pool in pools), 1)))
    return Term(
        name=STRAGGLERS,
        value=seconds * calibration("software").value("straggler_per_doubling") * doublings,
        source="hardware/measured/software.toml: straggler_per_doubling",
        formula="step x straggler_per_doubling x log2(servers of all pools)",
    )


def replicas_ledger(ledgers: Sequence[Ledger], pools: Sequence[Pool], between_seconds: float) -> Ledger:
    """Return the step of replicas on several pools: the slowest pool's terms up to the reduction, the all-reduce between pools, and of
    what follows the terms of the pool that takes longest."""
    parts = [before_and_after(ledger) for ledger in ledgers]
    slow = max(range(len(ledgers)), key=lambda k: (float(parts[k][0]), -k))
    late = max(range(len(ledgers)), key=lambda k: (float(parts[k][1]), -k))
    terms = [t for t in ledgers[slow].terms if t.name not in (*AFTER, STRAGGLERS, "decode.step")]
    terms.append(
        Term(
            name="between.reduce",
            value=between_seconds,
            source=WHALE,
            formula="all-reduce of the gradients of a pool's GPU with one GPU of each other pool, over the slowest link",
        )
    )
    terms += [t for t in ledgers[late].terms if t.name in AFTER]
    return _closed(terms, pools)


def stages_ledger(work: Sequence[Term], ledgers: Sequence[Ledger], pools: Sequence[Pool]) -> Ledger:
    """Return the step of a pipeline over several pools: `work` (its micro-batches), then of each term once a step the slowest pool's."""
    terms = list(work)
    for name in ONCE:
        found = [t for ledger in ledgers for t in ledger.terms if t.name == name]
        if found:
            terms.append(max(found, key=lambda term: float(exposed(term).reshape(-1)[0])))
    return _closed(terms, pools)


def _closed(terms: list[Term], pools: Sequence[Pool]) -> Ledger:
    total = float(Ledger("s", tuple(terms)).exposed)
    return Ledger("s", (*terms, stragglers(pools, total)))
