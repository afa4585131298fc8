"""Seconds of one collective (alpha-beta by tier of the network), and where the members of a group sit.

Ranks are placed in the order tp, cp, dp, pp (experts: etp, ep, expert dp, pp), so a group of `size` ranks `stride` apart has
floor(domain / stride) of its members inside one fast domain (a server, or an NVL72 rack), and one NIC share for each of them. Rings run
through all members, so every tier carries (n - 1) / n of the message: links, PCIe between the link domains of a server, and NICs, each
as often as the members behind them. The slowest sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import Num, num
from hardware.calibration import calibration
from hardware.units import show_gbit_per_second

if TYPE_CHECKING:
    from cost_models.op import Collective
    from hardware.spec import Pool

PCIE_EXCHANGE = 0.75
"""Rate of an all-to-all over PCIe / rate of a ring over it (collectives.csv: 18 beside 25 GB/s of 8 PCIe cards)."""
SOURCE = "alpha-beta by tier, constants: hardware/measured/collectives.toml (public NCCL tests)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """The network of a pool, per GPU, one direction."""

    domain: float
    """GPUs that reach each other without the network: those of a server, or of the fast-link domain where that is larger."""
    link_domain: float
    """GPUs on one fast link; beyond them inside a server PCIe serves."""
    link_bytes_per_second: float
    pcie_bytes_per_second: float
    network_bytes_per_second: float
    ring: float
    all_reduce: float
    """Higher where the switch reduces (NVLink SHARP of Hopper and later)."""
    all_to_all: float
    members: float
    base_seconds: float
    hop_seconds: float
    network_base_seconds: float
    network_hop_seconds: float
    all_to_all_network: float
    """Rate of an all-to-all between servers / rate of a ring between them."""
    send_base_seconds: float
    send: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that communicate: how many, and how far apart."""

    size: Num
    stride: Num


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Where the experts of one token may sit."""

    copies: float = 1.0
    """Experts of one token (top-k)."""
    groups: float = 1.0
    """Groups of experts, of which a token's are in `topk_groups` at most."""
    topk_groups: float = 1.0
    neighbours: int = 0
    """Experts in all where a token's are neighbours (a forced balance in turns); 0: any may meet."""


def links_assumed(pool: Pool) -> tuple[str, ...]:
    """Return a sentence for each rate that `fabric` takes because the pool states none; none where all are stated or not needed."""
    said = []
    rate = show_gbit_per_second(calibration("collectives").value("unknown_network_bytes_per_second"))
    inside = max(pool.gpus_per_node, pool.node.link_domain_size)
    if pool.inter_node_bytes_per_second is None and pool.count > inside:
        said.append(f"network of {pool.node.name}: {rate} a server, as no source states it (a cluster file can)")
    if pool.count > 1 and pool.link_bytes_per_second is None and pool.host_link_bytes_per_second is None:
        said.append(f"host link of {pool.gpu.name}: {rate}, as no source states it (a cluster file can)")
    return tuple(said)


def fabric(pool: Pool) -> Fabric:
    """Return the network of `pool`."""
    c = calibration("collectives").value
    per_gpu = pool.inter_node_bytes_per_second
    if per_gpu is None:
        per_gpu = c("unknown_network_bytes_per_second") / pool.gpus_per_node
    link_domain = float(pool.node.link_domain_size)
    domain = max(link_domain, float(pool.gpus_per_node)) if link_domain > pool.node.gpus_per_node else float(pool.gpus_per_node)
    host = pool.host_link_bytes_per_second or c("unknown_network_bytes_per_second")
    link = pool.link_bytes_per_second or 0.0
    fast = link_domain > 1.0 and link > 0.0 and not pool.node.link.lower().startswith("pcie")
    pcie = host * c("board_fraction" if fast else "pcie_fraction")
    switched = (pool.gpu.compute_capability or 0.0) >= 9.0 and pool.gpu.vendor.lower() == "nvidia" and link_domain > 2.0
    return Fabric(
        domain=domain,
        link_domain=link_domain if fast else 1.0,
        link_bytes_per_second=link if fast else pcie,
        pcie_bytes_per_second=pcie,
        network_bytes_per_second=per_gpu / pool.oversubscription * c("network_fraction"),
        ring=c("link_ring_fraction") if fast else 1.0,
        all_reduce=c("link_nvls_fraction" if switched else "link_all_reduce_fraction") if fast else 1.0,
        all_to_all=c("link_all_to_all_fraction") if fast else 1.0,
        members=c("link_members") if fast else 0.0,
        base_seconds=c("link_base_seconds"),
        hop_seconds=c("link_hop_seconds"),
        network_base_seconds=c("network_base_seconds"),
        network_hop_seconds=c("network_hop_seconds"),
        all_to_all_network=c("all_to_all_network_fraction") / c("network_fraction"),
        send_base_seconds=c("send_base_seconds"),
        send=c("send_fraction"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A group on a fabric: everything about its collectives but the message."""

    size: Num
    together: Num
    """Members inside one domain."""
    moved: Num
    """Part of a gathered message that each member receives: (n − 1) / n."""
    gather_seconds_per_byte: Num
    """Of the gathered message; the slowest tier of the ring."""
    reduce_seconds_per_byte: Num
    """All-reduce of the message."""
    exchange_seconds_per_byte: Num
    """All-to-all inside the domain, of the whole message."""
    network_exchange_seconds_per_byte: Num
    """The same between domains: 0 for a group inside one."""
    nodes: Num
    """Domains that the group spans."""
    base_seconds: Num
    """Latency; 0 for a group of one."""
    exchange_base_seconds: Num
    """The same of an all-to-all, which posts a message to every member but takes no steps from server to server as a ring does."""


def place(f: Fabric, group: Group) -> Placed:
    """Return `group` placed on the fabric."""
    n = group.size
    others = n - 1.0
    moved = others / n
    together = np.minimum(np.maximum(np.floor(f.domain / group.stride), 1.0), n)
    nodes = np.ceil(n / together)
    network = np.where(nodes > 1.0, moved, 0.0) / (f.network_bytes_per_second * together)
    linked = together
    pcie: Num = 0.0
    exchange: Num = 0.0
    if f.link_domain < f.domain:
        linked = np.minimum(np.maximum(np.floor(f.link_domain / group.stride), 1.0), together)
        pcie = np.where(linked < together, moved, 0.0) / (f.pcie_bytes_per_second * linked)
        exchange = (together - linked) / n / (f.pcie_bytes_per_second * PCIE_EXCHANGE)
    rate = f.link_bytes_per_second * (linked / (linked + f.members))
    link = np.where(linked > 1.0, moved, 0.0) / rate
    slower = np.maximum(network, pcie)
    fixed = np.where(others > 0.0, f.base_seconds, 0.0) + np.where(nodes > 1.0, f.network_base_seconds, 0.0)
    return Placed(
        size=n,
        together=together,
        moved=moved,
        gather_seconds_per_byte=np.maximum(link / f.ring, slower),
        reduce_seconds_per_byte=2.0 * np.maximum(link / f.all_reduce, slower),
        exchange_seconds_per_byte=np.maximum((linked - 1.0) / n / (rate * f.all_to_all), exchange),
        network_exchange_seconds_per_byte=(n - together) / n / (f.network_bytes_per_second * f.all_to_all_network),
        nodes=nodes,
        base_seconds=f.hop_seconds * others + f.network_hop_seconds * (nodes - 1.0) + fixed,
        exchange_base_seconds=f.hop_seconds * others + fixed,
    )


def collective_seconds(p: Placed, kind: Collective, message_bytes: Num) -> Num:
    """Return the seconds of one collective of `message_bytes` (the whole message), 0 in a group of one.

    The slowest of the tiers sets the pace: chunks are pipelined through all.
    """
    if kind == "all_reduce":
        return message_bytes * p.reduce_seconds_per_byte + p.base_seconds
    if kind == "all_to_all":
        return message_bytes * np.maximum(p.exchange_seconds_per_byte, p.network_exchange_seconds_per_byte) + p.exchange_base_seconds
    return message_bytes * p.gather_seconds_per_byte + p.base_seconds


def dispatch_seconds(p: Placed, message_bytes: Num, routing: Routing) -> Num:
    """Return the seconds of an expert exchange that sends a token once to each rank, and over the network once to each server, that
    holds some of its experts (DeepEP's normal kernels, HybridEP; deepseek-ai/DeepEP README).
    """
    outside = p.network_exchange_seconds_per_byte * _visited(p.nodes, routing)
    return message_bytes * np.maximum(p.exchange_seconds_per_byte * _visited(p.size, routing), outside) + p.exchange_base_seconds


def _visited(places: Num, routing: Routing) -> Num:
    """Part of a token's copies that travel: of k places a token with c copies visits k (1 − (1 − 1/k)^c).

    Group-limited routing leaves it the places of the groups it chose: the chosen part where a group spans places, and where a place
    holds several groups the chance that one of them is chosen. Neighbours that are dealt in turns straddle places of w experts in
    c / w of the windows, less where windows and places begin together.
    """
    k = num(places)
    if routing.neighbours:
        held = np.maximum(routing.neighbours // k, 1.0)
        together = np.gcd(int(routing.copies), np.asarray(held, dtype=np.int64)).astype(np.float64)
        return np.minimum((1.0 + (routing.copies - together) / held) / routing.copies, 1.0)
    among = k
    if routing.groups > 1.0:
        missed: Num = 1.0
        for i in range(int(routing.topk_groups)):
            missed = missed * np.maximum((routing.groups - routing.groups / k - i) / (routing.groups - i), 0.0)
        among = np.where(k >= routing.groups, k * (routing.topk_groups / routing.groups), k * (1.0 - missed))
    alone = np.maximum(1.0 - 1.0 / np.maximum(among, 1.0), 1e-9)
    return np.minimum(among * (1.0 - np.exp2(routing.copies * np.log2(alone))) / routing.copies, 1.0)


def send_seconds(f: Fabric, span: Num, message_bytes: Num) -> Num:
    """Return the seconds of a send between ranks of a chain that covers `span` GPUs: by link where they share a domain, else by NIC."""
    rate = np.where(span <= f.domain, f.link_bytes_per_second, f.network_bytes_per_second)
    return message_bytes / (rate * f.send) + f.send_base_seconds
