"""One pool of equal servers: joins a GPU, a server and a count, and says what it assumed and what stays unknown."""

from __future__ import annotations

from dataclasses import dataclass

from hardware.catalog import load_node
from hardware.spec import DRIVER_TO_USABLE, NOMINAL_TO_DRIVER, Gpu, Node, Pool
from hardware.units import quote, show_gb_per_second, show_gbit_per_second, show_gib

MAX_GPUS = 2**20
"""Largest cluster that planner accepts."""
TYPICAL_GPUS_PER_NODE = 8
"""GPUs in a server of a GPU for which no source names a usual number."""


class ClusterError(ValueError):
    """A cluster that cannot be read; one line: what was given, the law, and examples or nearest names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReport:
    """A pool, and the sentences that belong to it."""

    pool: Pool
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRequest:
    """What was asked for; None where the request left it open."""

    gpu: Gpu
    node: Node | None = None
    """The server that was named or described."""
    count: int
    gpus_per_node: int | None = None
    inter_node_bytes_per_second: float | None = None
    oversubscription: float = 1.0
    leaf_servers: int | None = None
    rails: bool = False
    free_memory_bytes: float | None = None


def short(name: str) -> str:
    """A server's name as it is said aloud: without the vendor and what else it is called."""
    return name.removeprefix("NVIDIA ").partition(" / ")[0]


def _rate(rate_bytes_per_second: float) -> str:
    return show_gb_per_second(rate_bytes_per_second).replace(".0 ", " ").replace(".00 ", " ")


def describe_node(node: Node) -> str:
    """The server in a few words: "DGX A100 (8 GPUs, NVLink3 300 GB/s, 8 x 200 Gb/s)"; unknown parts are left out."""
    parts = [f"{node.gpus_per_node} GPU" + ("s" if node.gpus_per_node > 1 else "")]
    if node.link_bytes_per_second is not None:
        parts.append(f"{node.link.replace(',', ' ').split(' ')[0] or 'link'} {_rate(node.link_bytes_per_second)}")
    if node.link_domain_size > node.gpus_per_node:
        parts.append(f"{node.link_domain_size} GPUs in one link domain")
    if node.nic_count is not None and node.nic_bytes_per_second is not None:
        parts.append(f"{node.nic_count} x {show_gbit_per_second(node.nic_bytes_per_second)}")
    elif node.network_bytes_per_second is not None:
        parts.append(f"network {show_gbit_per_second(node.network_bytes_per_second)}")
    return f"{short(node.name)} ({', '.join(parts)})"


def plain_server(gpu: Gpu, gpus_per_node: int | None) -> Node:
    """A server made up from the GPU's own facts: its fast link where that joins all GPUs, else PCIe; network unknown."""
    size = gpus_per_node or gpu.gpus_per_node or TYPICAL_GPUS_PER_NODE
    link = gpu.link.lower()
    bridged = "bridge" in link or "pairs" in link
    switched = gpu.link_bytes_per_second is not None and not bridged and not link.startswith("pcie") and size > 1
    return Node(
        id=f"{gpu.id}-server",
        name=f"plain {gpu.name} server",
        gpu=gpu.id,
        gpus_per_node=size,
        link_domain_size=size if switched else 1,
        link_domain_assumed=size > 1 and (bridged or not link.startswith("pcie")),
        link=gpu.link if switched else "C2C" if gpu.pcie_generation == "C2C" else "PCIe",
        link_bytes_per_second=gpu.link_bytes_per_second if switched else gpu.pcie_bytes_per_second,
    )


def resize_node(node: Node, gpus_per_node: int) -> Node:
    """The server with another number of GPUs; a link domain that was the whole server shrinks with it, all else stays."""
    domain = node.link_domain_size
    shrunk = min(domain, gpus_per_node) if domain <= node.gpus_per_node else domain
    return node.model_copy(update={"gpus_per_node": gpus_per_node, "link_domain_size": shrunk})


def _network_share(node: Node, listed_gpus: int) -> float | None:
    """Network of one GPU, bytes/s: all NICs over the GPUs that the server is listed with; None: unknown.

    GPUs left out of a server don't lend their share to the others, whose own host link rarely carries more.
    """
    total = node.all_nics_bytes_per_second
    if total is None:
        return None
    in_rack = node.link_domain_size > listed_gpus
    return total / (listed_gpus if in_rack else max(listed_gpus, node.gpus_per_node))


def default_server(gpu: Gpu, wanted: int | None) -> tuple[Node, str]:
    """The server that a bare GPU name stands for, and the sentence that says so."""
    if gpu.default_node is None:
        node = plain_server(gpu, wanted)
        size = "as given" if wanted else "usual for it" if gpu.gpus_per_node else "taken where no source says"
        return node, f"{describe_node(node)}: the catalogue has no server for {gpu.name}; {node.gpus_per_node} per server is {size}"
    node = load_node(gpu.default_node)
    sentence = f"server {describe_node(node)}"
    if node.gpu != gpu.id:
        sentence += f" holding {gpu.name} in place of its own GPUs"
        node = node.model_copy(update={"gpu": gpu.id})
    return node, sentence


def _check_counts(request: PoolRequest) -> None:
    """Raises ClusterError for counts that no cluster has."""
    for name, value in (("GPUs", request.count), ("GPUs per server", request.gpus_per_node)):
        if value is not None and not 1 <= value <= MAX_GPUS:
            raise ClusterError(f"{quote(value)} {name}: a cluster has between 1 and {MAX_GPUS:,} GPUs, such as 32xA100-80G")


def _size_sentences(node: Node, count: int, used: int) -> list[str]:
    """What is said of a server that is not full."""
    if count < used or (count == used and used < node.gpus_per_node):
        return [f"{min(count, used)} of the {node.gpus_per_node} GPUs of one {short(node.name)} in use"]
    if count % used:
        return [f"{count} GPUs are no multiple of {used} per server: the last server holds {count % used}"]
    if used < node.gpus_per_node:
        return [f"{used} of the {node.gpus_per_node} GPUs of each {short(node.name)} in use"]
    return []


def unknowns(pool: Pool) -> list[str]:
    """Warnings: facts that no source gives, and what is skipped for want of them."""
    gpu, node = pool.gpu, pool.node
    lines = []
    if pool.count > max(pool.gpus_per_node, node.link_domain_size) and pool.inter_node_bytes_per_second is None:
        lines.append(f"the network between {pool.nodes} x {short(node.name)} is unknown")
    if pool.count > 1 and pool.link_bytes_per_second is None:
        lines.append(f"the GPU-to-GPU link of {short(node.name)} is unknown: traffic inside a server is taken over the host link")
    elif pool.count > 1 and node.link_domain_assumed:
        lines.append(f"no source says how many GPUs of {short(node.name)} share the fast link: {node.link_domain_size} assumed")
    missing = [
        word
        for word, value in (
            ("host memory", node.host_memory_bytes),
            ("NVMe", node.nvme_bytes),
            ("price", node.price_usd_per_hour if node.price_usd_per_hour is not None else node.purchase_price_usd),
        )
        if value is None
    ]
    if missing:
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        verb, these = ("is", "it") if len(missing) == 1 else ("are", "them")
        lines.append(f"{listed} of {short(node.name)} {verb} unknown: checks against {these} are skipped")
    if gpu.capacity_assumed:
        lines.append(
            f"no driver total of {gpu.name} is published: {show_gib(gpu.usable_memory_bytes)} usable is assumed "
            f"({DRIVER_TO_USABLE} x {NOMINAL_TO_DRIVER} of {show_gib(gpu.nominal_memory_bytes)})"
        )
    free = pool.free_memory_bytes
    if free is not None and free > gpu.usable_memory_bytes:
        usable = show_gib(gpu.usable_memory_bytes)
        lines.append(f"free memory {show_gib(free)} is more than a process can use on {gpu.name}: {usable} is taken")
    return lines


def _server(request: PoolRequest) -> tuple[Node, float | None, list[str]]:
    """The server, the network of one of its GPUs, and what was assumed about both."""
    gpu, node, wanted = request.gpu, request.node, request.gpus_per_node
    if node is not None:
        if wanted is not None and wanted > node.gpus_per_node:
            law = f"{short(node.name)} has {node.gpus_per_node}; give {node.gpus_per_node} or fewer"
            raise ClusterError(f"{wanted} GPUs per server: {law}")
        if node.gpu == gpu.id:
            return node, _network_share(node, node.gpus_per_node), []
        swapped = node.model_copy(update={"gpu": gpu.id})
        return swapped, _network_share(node, node.gpus_per_node), [f"{short(node.name)} holds {gpu.name} in place of its own GPUs"]
    node, sentence = default_server(gpu, wanted)
    listed = node.gpus_per_node
    if wanted is None or wanted == listed:
        return node, _network_share(node, listed), [sentence]
    node = resize_node(node, wanted)
    share = _network_share(node, listed)
    network = "" if share is None else f", {_rate(share)} of network per GPU"
    gpus = "1 GPU" if wanted == 1 else f"{wanted} GPUs"
    resized = f"{gpus} per server as given, where {short(node.name)} has {listed}: its host memory and NVMe{network}"
    return node, share, [sentence, resized]


def make_pool(request: PoolRequest) -> PoolReport:
    """The pool that a request means. Raises ClusterError for counts that break laws."""
    _check_counts(request)
    node, share, assumed = _server(request)
    used = min(request.gpus_per_node or node.gpus_per_node, request.count)
    pool = Pool(
        gpu=request.gpu,
        node=node,
        count=request.count,
        gpus_per_node=used,
        inter_node_bytes_per_second=request.inter_node_bytes_per_second or share,
        oversubscription=request.oversubscription,
        leaf_servers=request.leaf_servers,
        rails=request.rails,
        free_memory_bytes=request.free_memory_bytes,
    )
    return PoolReport(pool=pool, assumed=(*assumed, *_size_sentences(node, request.count, used)), warnings=tuple(unknowns(pool)))
