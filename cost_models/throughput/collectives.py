"""Seconds of one collective (alpha-beta by tier of the network) for a group whose place is known (throughput/ranks.py).

A group has some members inside one fast domain (a server, or an NVL72 rack), and one NIC share for each of them; beyond the servers under
one leaf switch a share of the thinner fabric above for each member under the leaf. Gathers and reduce-scatters are rings through all
members, so every tier carries (n - 1) / n of the message: links, PCIe between the link domains of a server, NICs, and the fabric above the
leaves, each as often as the members behind them. The slowest sets the pace. An all-reduce between servers is the faster of a ring and of
a tree of servers, whose steps grow with log2 of their number (NVIDIA/nccl src/graph/tuning.cc): each of k servers passes the whole message
up and down, or where the switch inside reduces (NVLSTree) as little as (k - 1) / k of it. An all-to-all sends to each tier what is meant
for members beyond it.

Where the leaves join NICs of the same index (a rail), rings stay on their rail; what crosses rails goes over the fast link first
(NCCL's PXN: NVIDIA blog on NCCL 2.12), or through the fabric above where there is none. Servers under a leaf: 32 of a DGX SuperPOD's
scalable unit (RA-11333), 128 in Alibaba HPN (SIGCOMM 2024), whose leaves are rails.
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
    from cost_models.throughput.ranks import Chain, Ends, Group
    from hardware.spec import Pool

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
    pcie_exchange: float
    """Rate of an all-to-all over PCIe / rate of a ring over it."""
    network_bytes_per_second: float
    """To servers under the same leaf."""
    oversubscription: float
    """Network / fabric above the leaves."""
    reach: float
    """GPUs under one leaf, at least a domain."""
    rails: float
    """NICs of a server that hang on leaves of their own; 0: all hang on one."""
    server: float
    """GPUs of one server."""
    gpus_per_nic: float
    ring: float
    switched: bool
    """The switch inside a server reduces (NVLink SHARP of Hopper and later)."""
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
    shared = max(1.0, pool.node.gpus_per_node / pool.node.nic_count) if pool.node.nic_count else 1.0
    return Fabric(
        domain=domain,
        link_domain=link_domain if fast else 1.0,
        link_bytes_per_second=link if fast else pcie,
        pcie_bytes_per_second=pcie,
        pcie_exchange=c("pcie_exchange_fraction"),
        network_bytes_per_second=per_gpu * c("network_fraction"),
        oversubscription=pool.oversubscription,
        reach=max(domain, float((pool.leaf_servers or 1) * pool.gpus_per_node)),
        rails=pool.gpus_per_node / shared if pool.rails else 0.0,
        server=float(pool.gpus_per_node),
        gpus_per_nic=shared,
        ring=c("link_ring_fraction") if fast else 1.0,
        switched=switched and fast,
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
    """All-reduce of the message round a ring."""
    tree_seconds_per_byte: Num
    """The same up and down a tree of servers."""
    exchange_seconds_per_byte: Num
    """All-to-all inside the domain, of the whole message."""
    network_exchange_seconds_per_byte: Num
    """The same between domains: 0 for a group inside one."""
    network_seconds_per_byte: Num
    """Of the gathered message: how long the ring takes the share of the network; 0 for a group inside one domain."""
    network_reduce_seconds_per_byte: Num
    """The same of an all-reduce."""
    nodes: Num
    """Domains that the group spans."""
    crosses: bool
    """Some layout's group spans several domains."""
    base_seconds: Num
    """Latency; 0 for a group of one."""
    tree_base_seconds: Num
    """The same of an all-reduce, which climbs a tree of servers and comes down again."""
    exchange_base_seconds: Num
    """The same of an all-to-all, which posts a message to every member but takes no steps from server to server as a ring does."""


def place(f: Fabric, group: Group | Ends) -> Placed:
    """Return `group` placed on the fabric."""
    n = group.count
    others = n - 1.0
    moved = others / n
    together = group.within(f.domain)
    nodes = np.ceil(n / together)
    network = np.where(nodes > 1.0, moved, 0.0) / (f.network_bytes_per_second * together)
    tree = np.where(nodes > 1.0, 1.0 - 1.0 / nodes if f.switched else 1.0, 0.0) / (f.network_bytes_per_second * together)
    outside, rail = (n - together) / n, _other_rails(f, together)
    network_exchange = outside / (f.network_bytes_per_second * f.all_to_all_network)
    if f.oversubscription > 1.0:
        near = np.maximum(group.within(f.reach), together)
        above = f.network_bytes_per_second / f.oversubscription
        network = np.maximum(network, np.where(near < n, moved, 0.0) / (above * near))
        tree = np.maximum(tree, np.where(near < n, 1.0 - 1.0 / np.ceil(n / near) if f.switched else 1.0, 0.0) / (above * near))
        beyond = (n - near) / n
        if f.link_domain <= 1.0:
            beyond = beyond + (near - together) / n * rail
        network_exchange = np.maximum(network_exchange, beyond / (above * f.all_to_all_network))
    linked = together
    pcie: Num = 0.0
    exchange: Num = 0.0
    if f.link_domain < f.domain:
        linked = np.minimum(group.within(f.link_domain), together)
        pcie = np.where(linked < together, moved, 0.0) / (f.pcie_bytes_per_second * linked)
        exchange = (together - linked) / n / (f.pcie_bytes_per_second * f.pcie_exchange)
    rate = f.link_bytes_per_second * (linked / (linked + f.members))
    link = np.where(linked > 1.0, moved, 0.0) / rate
    relayed: Num = outside * rail if f.rails and f.link_domain > 1.0 else 0.0
    steps = f.hop_seconds * others + f.network_hop_seconds * (nodes - 1.0)
    climbs = 2.0 * (f.hop_seconds * (together - 1.0) + f.network_hop_seconds * np.log2(nodes))
    fixed = np.where(others > 0.0, f.base_seconds, 0.0) + np.where(nodes > 1.0, f.network_base_seconds, 0.0)
    return Placed(
        size=n,
        together=together,
        moved=moved,
        gather_seconds_per_byte=np.maximum(link / f.ring, np.maximum(network, pcie)),
        reduce_seconds_per_byte=2.0 * np.maximum(link / f.all_reduce, np.maximum(network, pcie)),
        tree_seconds_per_byte=2.0 * np.maximum(link / f.all_reduce, np.maximum(tree, pcie)),
        exchange_seconds_per_byte=np.maximum(((linked - 1.0) / n + relayed) / (rate * f.all_to_all), exchange),
        network_exchange_seconds_per_byte=network_exchange,
        network_seconds_per_byte=network,
        network_reduce_seconds_per_byte=2.0 * np.minimum(network, tree),
        nodes=nodes,
        crosses=bool(np.any(nodes > 1.0)),
        base_seconds=steps + fixed,
        tree_base_seconds=climbs + fixed,
        exchange_base_seconds=f.hop_seconds * others + fixed,
    )


def _other_rails(f: Fabric, together: Num) -> Num:
    """Part of the members of another server that sit on other rails than a member here; 0 where all NICs hang on one leaf."""
    return 1.0 - 1.0 / np.minimum(together, f.rails) if f.rails else 0.0


def network_seconds(p: Placed, kind: Collective, message_bytes: Num) -> Num:
    """Return how long one collective takes its share of the network, in which no other group of these ranks can use it."""
    if kind == "all_to_all":
        return message_bytes * p.network_exchange_seconds_per_byte
    return message_bytes * (p.network_reduce_seconds_per_byte if kind == "all_reduce" else p.network_seconds_per_byte)


def collective_seconds(p: Placed, kind: Collective, message_bytes: Num) -> Num:
    """Return the seconds of one collective of `message_bytes` (the whole message), 0 in a group of one.

    The slowest of the tiers sets the pace: chunks are pipelined through all.
    """
    if kind == "all_reduce":
        ring = message_bytes * p.reduce_seconds_per_byte + p.base_seconds
        return np.minimum(ring, message_bytes * p.tree_seconds_per_byte + p.tree_base_seconds) if p.crosses else ring
    if kind == "all_to_all":
        return message_bytes * np.maximum(p.exchange_seconds_per_byte, p.network_exchange_seconds_per_byte) + p.exchange_base_seconds
    return message_bytes * p.gather_seconds_per_byte + p.base_seconds


def latency_seconds(p: Placed, kind: Collective) -> Num:
    """Return the part of `collective_seconds` that does not depend on the message."""
    return p.exchange_base_seconds if kind == "all_to_all" else p.base_seconds


def dispatch_seconds(p: Placed, message_bytes: Num, routing: Routing) -> Num:
    """Return the seconds of an expert exchange that sends a token once to each rank, and over the network once to each server, that
    holds some of its experts (DeepEP's normal kernels, HybridEP; deepseek-ai/DeepEP README).
    """
    outside = p.network_exchange_seconds_per_byte * _visited(p.nodes, routing)
    return message_bytes * np.maximum(p.exchange_seconds_per_byte * _visited(p.size, routing), outside) + p.exchange_base_seconds


def dispatch_network_seconds(p: Placed, message_bytes: Num, routing: Routing) -> Num:
    """Return how long such an exchange takes its share of the network."""
    return message_bytes * p.network_exchange_seconds_per_byte * _visited(p.nodes, routing)


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


def send_seconds(f: Fabric, chain: Chain, message_bytes: Num) -> Num:
    """Return the seconds of the slowest hop of a chain: by link where all of it shares a domain, else by NIC.

    A hop that leaves a server whose stages are smaller than it has the NICs of that server to itself: each rank as much as one NIC carries
    where several GPUs share it. A hop that leaves a leaf has all of the leaf's links upwards, and no more than its NICs carry.
    """
    rate = np.where(chain.span <= f.domain, f.link_bytes_per_second, _hop_bytes_per_second(f, chain))
    return message_bytes / (rate * f.send) + f.send_base_seconds


def send_network_seconds(f: Fabric, chain: Chain, message_bytes: Num) -> Num:
    """Return how long a send takes its share of the network: 0 where the chain shares a domain."""
    return np.where(chain.span <= f.domain, 0.0, message_bytes / (_hop_bytes_per_second(f, chain) * f.send))


def _hop_bytes_per_second(f: Fabric, chain: Chain) -> Num:
    """Rate of a rank whose next stage is in another domain."""
    rate: Num = f.network_bytes_per_second
    if f.gpus_per_nic > 1.0:
        rate = rate * (f.gpus_per_nic / np.minimum(chain.stride, f.gpus_per_nic))
    if f.oversubscription <= 1.0:
        return rate
    above = f.network_bytes_per_second / f.oversubscription
    near = np.minimum(rate, above * np.maximum(f.domain / chain.stride, 1.0))
    far = np.minimum(rate, above * np.maximum(f.reach / chain.stride, 1.0))
    if f.rails and f.link_domain <= 1.0:
        straight = np.mod(chain.stride, f.server) == 0.0
        rate, far = np.where(straight, rate, near), np.where(straight, far, near)
    return np.where(chain.span <= f.reach, rate, far)
