"""What bounds each term of a step: how much of it each rate of the machine accounts for, found by making that rate a little faster.

A term a / r + b shrinks by a / r · ε where r grows by ε: the part that it loses is the part that r bounds. What no rate changes is
latency, launches and time of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.evaluate import evaluate
from planner.explain import at, case_of

if TYPE_CHECKING:
    from hardware.spec import Pool
    from planner.plan import Plan

STEP = 1e-4
"""Relative change of a rate: small enough to stay on the same side of a maximum, large enough to be far from rounding."""
LEAST = 0.02
"""A resource that accounts for less of a term is not named."""
WORDS = {
    "compute": "compute",
    "memory": "memory",
    "link": "link",
    "nic": "NIC",
    "host_link": "host link",
    "nvme": "NVMe",
}
"""Resource -> what it is called."""
NAMED = (
    ("pp.bubble", "bubble"),
    ("host.launch", "host launch"),
    ("host.straggler", "slowest rank"),
    ("host", "host"),
    ("offload.cpu", "host CPU"),
)
"""Terms that are named after their mechanism, whatever rate changes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What a term waits for, in falling order: resource (or `latency`) -> part of the term."""

    parts: tuple[tuple[str, float], ...]

    @property
    def words(self) -> str:
        """In words: `compute`, `link 71 %, latency 29 %`."""
        if not self.parts:
            return ""
        if len(self.parts) == 1 or self.parts[0][1] > 1.0 - 2.0 * LEAST:
            return self.parts[0][0]
        return ", ".join(f"{name} {100.0 * part:.0f} %" for name, part in self.parts)


def bounds(plan: Plan) -> dict[str, Bound]:
    """Return name of a time term -> what bounds it. Evaluates the plan once for each rate."""
    case = case_of(plan)
    before = {t.name: at(t.value, 0) for t in evaluate(case, plan.layout).time.ledger.terms}
    lost: dict[str, dict[str, float]] = {name: {} for name in before}
    for resource, pool in _faster(plan.pool).items():
        terms = evaluate(replace(case, pool=pool), plan.layout).time.ledger.terms
        for name, value in ((t.name, at(t.value, 0)) for t in terms):
            if before.get(name):
                lost[name][resource] = (1.0 - value / before[name]) / (STEP / (1.0 + STEP))
    return {name: _bound(name, lost[name]) for name, value in before.items() if value}


def _bound(name: str, lost: dict[str, float]) -> Bound:
    for beginning, word in NAMED:
        if name.startswith(beginning):
            return Bound(parts=((word, 1.0),))
    found = {WORDS[resource]: part for resource, part in lost.items() if part > LEAST}
    rest = 1.0 - sum(found.values())
    if rest > LEAST:
        found["latency" if name.split(".")[0] not in ("compute", "recompute") else "launch"] = rest
    return Bound(parts=tuple(sorted(found.items(), key=lambda item: -item[1])))


def _faster(pool: Pool) -> dict[str, Pool]:
    """Return resource -> the pool with that rate a little higher; rates that nobody knows are left out."""
    more = 1.0 + STEP
    gpu, node = pool.gpu, pool.node
    peaks = {kind: rate * more for kind, rate in gpu.peak_flop_per_second.items()}
    found = {
        "compute": pool.model_copy(update={"gpu": gpu.model_copy(update={"peak_flop_per_second": peaks})}),
        "memory": pool.model_copy(
            update={"gpu": gpu.model_copy(update={"memory_bandwidth_bytes_per_second": gpu.memory_bandwidth_bytes_per_second * more})}
        ),
    }
    if pool.link_bytes_per_second is not None:
        faster = node.model_copy(update={"link_bytes_per_second": pool.link_bytes_per_second * more})
        found["link"] = pool.model_copy(update={"node": faster})
    if pool.inter_node_bytes_per_second is not None:
        found["nic"] = pool.model_copy(update={"inter_node_bytes_per_second": pool.inter_node_bytes_per_second * more})
    if pool.host_link_bytes_per_second is not None:
        faster = node.model_copy(update={"pcie_bytes_per_second": pool.host_link_bytes_per_second * more})
        found["host_link"] = pool.model_copy(update={"node": faster})
    if node.nvme_read_bytes_per_second is not None and node.nvme_write_bytes_per_second is not None:
        rates = {f"nvme_{way}_bytes_per_second": getattr(node, f"nvme_{way}_bytes_per_second") * more for way in ("read", "write")}
        found["nvme"] = pool.model_copy(update={"node": node.model_copy(update=rates)})
    return found
