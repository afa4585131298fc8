"""The machine of a row: its GPU from the catalogue, its server by site or by default, its network where the row tells."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from hardware.catalog import UnknownName, load_gpu, load_node
from hardware.pools import ClusterError, PoolRequest, make_pool
from hardware.units import BITS_PER_BYTE, GB
from planner.runs.assumed import Assumptions, Unfit

if TYPE_CHECKING:
    from hardware.spec import Gpu, Node, Pool
    from planner.runs.notes import Stated
    from planner.runs.row import Run

SITES: tuple[tuple[str, float], ...] = ((r"4x100Gb/s OPA per node", 96.0), (r"^Jean Zay$", 119.0))
"""Site -> network of one server, Gb/s in one direction: what would give NCCL what it got. Jean Zay has 4 Omni-Path links of 100 Gb/s, of
which all-reduces got up to 42 Gb/s of the message on 4 servers of A100 and 44 to 57 on 16 of V100: 81 and 101 Gb/s on the links, 0.85 of
these (bigscience-workshop/bigscience 9e64ede experiments/bandwidth/README.md)."""
LINKED: tuple[tuple[str, int], ...] = ((r"4x100Gb/s OPA per node", 4),)
"""Site -> GPUs on one NVLink domain (Jean Zay's A100 servers join 8 GPUs by "NVLink 4": two boards of four; the same, jz/hpc-specs.md)."""
SOURCES: tuple[tuple[str, float], ...] = ((r"^VIA-Research/vTrain$", 800.0),)
"""Source -> the same for all its rows (vTrain config/*/*.json: inter_node_bandwidth 800, four HDR links)."""
SERVERS: tuple[tuple[str, str], ...] = ((r"\bGCP A3\b", "gcp-a3-highgpu-8g"), (r"\bDGX-2\b", "dgx-2"), (r"\bGrand Teton\b", "dgx-h100"))
"""Site -> server of the catalogue."""


@cache
def _gpu(name: str) -> Gpu:
    return load_gpu(name)


@cache
def _server(name: str) -> Node:
    return load_node(name)


HALVES: dict[str, str] = {"mi250x": "mi250x-gcd"}
"""Card of two devices -> one of them, which is what torch counts as a GPU (AMD Instinct MI250X: two GCDs)."""


def gpu(run: Run) -> Gpu:
    """Return the row's accelerator, half a card where a server has more GPUs than cards. Raises Unfit where the catalogue lacks it."""
    try:
        card = _gpu(run.gpu)
        halved = card.id in HALVES and (run.gpus_per_node or 0) > (card.gpus_per_node or 0)
        return _gpu(HALVES[card.id]) if halved else card
    except UnknownName as error:
        raise Unfit(f"unknown GPU: {error}") from None


def pool(run: Run, said: Stated, card: Gpu, assumed: Assumptions) -> Pool:
    """Return the pool that the row ran on. Raises Unfit for counts that no cluster has."""
    assert run.num_gpus is not None
    server = next((name for pattern, name in SERVERS if re.search(pattern, run.site)), None)
    per_node = run.gpus_per_node
    node = _server(server) if server is not None else None
    if node is not None and per_node is not None and per_node > node.gpus_per_node:
        node = None
    elif node is not None and per_node is not None:
        per_node = min(per_node, node.gpus_per_node)
    rate = _network(run, said, per_node or card.gpus_per_node or 8)
    linked = next((size for pattern, size in LINKED if re.search(pattern, run.site)), None)
    return _halved(card, _pool(card, node, (run.num_gpus, per_node), rate, (linked, "no NVLink" in run.site), assumed))


def _halved(card: Gpu, made: Pool) -> Pool:
    """Give half a card half of the whole card's links, where its own are not known."""
    whole = next((name for name, half in HALVES.items() if half == card.id), None)
    link = None if whole is None or card.link_bytes_per_second is not None else _gpu(whole).link_bytes_per_second
    if link is None:
        return made
    links = {"link": card.link, "link_domain_size": made.gpus_per_node, "link_bytes_per_second": link / 2.0}
    return made.model_copy(update={"node": made.node.model_copy(update=links)})


def _pool(
    card: Gpu, node: Node | None, sizes: tuple[int, int | None], rate: float | None, links: tuple[int | None, bool], assumed: Assumptions
) -> Pool:
    (count, per_node), (linked, no_link) = sizes, links
    try:
        request = PoolRequest(gpu=card, node=node, count=count, gpus_per_node=per_node, inter_node_bytes_per_second=rate)
        report = make_pool(request)
    except ClusterError as error:
        raise Unfit(f"contradiction: {error}") from None
    made = report.pool
    if per_node is None and count > 1:
        assumed.note("gpus_per_node", made.gpus_per_node, made.node.name)
    if no_link:
        bare = {"link": "PCIe", "link_domain_size": 1, "link_bytes_per_second": card.pcie_bytes_per_second}
        made = made.model_copy(update={"node": made.node.model_copy(update=bare)})
    if linked is not None and linked < made.node.link_domain_size:
        made = made.model_copy(update={"node": made.node.model_copy(update={"link_domain_size": linked})})
    if rate is None and made.nodes > 1:
        assumed.note("network", made.node.network or made.node.name, "of the default server")
    return made


def _network(run: Run, said: Stated, per_node: int) -> float | None:
    """Network of one GPU, bytes/s in one direction, where the row states it; None otherwise."""
    per_gpu = said.integer("gpu_network_gbps")
    if per_gpu is not None:
        return per_gpu * GB / BITS_PER_BYTE
    text = said.facts.get("node_network_gbps")
    if text is not None:
        cards, _, speed = text.rpartition("x")
        return int(cards or 1) * int(speed) * GB / BITS_PER_BYTE / per_node
    site = next((gbps for pattern, gbps in SITES if re.search(pattern, run.site)), None)
    if site is None:
        site = next((gbps for pattern, gbps in SOURCES if re.search(pattern, run.source)), None)
    return None if site is None else site * GB / BITS_PER_BYTE / per_node
