"""The link between pools: the rate of one GPU towards another pool, and what was assumed of it.

Stated in the cluster file (all traffic between two pools together), else the slower of the two servers' networks, each GPU with its share
of its server's NICs; a server whose network is unknown has one 100 Gb/s port (hardware/measured/collectives.toml).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_models.throughput.collectives import Fabric, collective_seconds, fabric, place, send_seconds
from cost_models.throughput.ranks import Chain, Group
from hardware.calibration import calibration
from hardware.units import show_gb_per_second, show_gbit_per_second

if TYPE_CHECKING:
    from hardware.spec import Cluster, Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What joins the pools of a cluster."""

    stated_bytes_per_second: float | None = None
    """All traffic between two pools, one direction; None: not stated."""
    latency_seconds: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster) -> Link:
        """Return the link that a cluster states."""
        return cls(stated_bytes_per_second=cluster.between_pools_bytes_per_second, latency_seconds=cluster.between_pools_latency_seconds)

    def _seen_by(self, pools: Sequence[Pool], gpus: int) -> Fabric:
        """The fabric of a GPU that reaches other pools at the slowest of their rates while `gpus` of its pool do so at once."""
        fabrics = [fabric(pool) for pool in pools]
        rate = min(_leaving(f) for f in fabrics)
        if self.stated_bytes_per_second is not None:
            share = self.stated_bytes_per_second * calibration("collectives").value("network_fraction") / gpus
            known = [f for f, p in zip(fabrics, pools, strict=True) if p.inter_node_bytes_per_second is not None]
            rate = min([share, *(_leaving(f) for f in known)])
        return replace(fabrics[0], network_bytes_per_second=rate, oversubscription=1.0, gpus_per_nic=1.0)

    def send_seconds(self, one: Pool, other: Pool, ranks: int, message_bytes: float) -> float:
        """Return the seconds in which each of `ranks` GPUs hands `message_bytes` to its neighbour in the other pool."""
        f = self._seen_by((one, other), ranks)
        return float(send_seconds(f, Chain(stages=2.0, stride=f.domain), message_bytes)) + self.latency_seconds

    def reduce_seconds(self, pools: Sequence[Pool], gradient_bytes: float) -> float:
        """Return the seconds of averaging all gradients between pools: each GPU all-reduces its part with one GPU of every other pool.

        Inside the pools gradients are reduced and spread before and gathered after, as for the copies of a shard group (hierarchical
        all-reduce: Cho et al. 2019, BlueConnect; Megatron-LM num_distributed_optimizer_instances). The slowest pool counts.
        """
        slowest = 0.0
        for pool in pools:
            f = self._seen_by(pools, pool.count)
            placed = place(f, Group(size=float(len(pools)), stride=f.domain))
            slowest = max(slowest, float(collective_seconds(placed, "all_reduce", gradient_bytes / pool.count)))
        return slowest + 2.0 * (len(pools) - 1.0) * self.latency_seconds

    def sentences(self, pools: Sequence[Pool]) -> tuple[str, ...]:
        """Return what joins the pools, in words, and what was assumed."""
        wait = f" with {self.latency_seconds * 1e3:g} ms of latency" if self.latency_seconds else ""
        if self.stated_bytes_per_second is not None:
            return (f"link between pools: {show_gbit_per_second(self.stated_bytes_per_second)} as stated, for all GPUs together{wait}",)
        said = []
        for pool in pools:
            if pool.inter_node_bytes_per_second is None:
                rate = calibration("collectives").value("unknown_network_bytes_per_second")
                said.append(f"the network of {pool.node.name} is unknown: one port of {show_gbit_per_second(rate)} a server is assumed")
        rates = {p.gpu.name: _leaving(fabric(p)) for p in pools}
        slow = min(rates, key=lambda name: (rates[name], name))
        said.append(f"link between pools: {show_gb_per_second(rates[slow])} a GPU, as reached by the slowest network, that of {slow}{wait}")
        return tuple(said)


def _leaving(f: Fabric) -> float:
    """Rate of a GPU out of its pool: through the fabric above the leaves."""
    return f.network_bytes_per_second / f.oversubscription
