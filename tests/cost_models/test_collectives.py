"""Collectives: placement of groups, tiers of the network, and the published measurements that the constants were fitted on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cost_models.throughput.collectives import (
    Routing,
    collective_seconds,
    dispatch_seconds,
    fabric,
    links_assumed,
    place,
    send_seconds,
)
from cost_models.throughput.ranks import Chain, Group
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.op import Collective
    from hardware.spec import Pool

MIB = 2.0**20


def pool(text: str) -> Pool:
    return parse_cluster(text).pools[0]


@pytest.mark.parametrize(
    ("size", "stride", "together", "nodes"),
    [(8, 1, 8, 1), (4, 2, 4, 1), (8, 2, 4, 2), (16, 8, 1, 16), (2, 4, 2, 1), (12, 1, 8, 2), (1, 8, 1, 1)],
)
def test_members_of_a_server(size: int, stride: int, together: int, nodes: int) -> None:
    placed = place(fabric(pool("64xA100-80G")), Group(size=float(size), stride=float(stride)))
    assert (float(placed.together), float(placed.nodes)) == (together, nodes)


def test_a_rack_is_one_domain() -> None:
    placed = place(fabric(pool("144xGB200")), Group(size=64.0, stride=1.0))
    assert float(placed.nodes) == 1.0


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_group_of_one_takes_no_time(kind: Collective) -> None:
    assert float(collective_seconds(place(fabric(pool("16xH100-80G")), Group(size=1.0, stride=1.0)), kind, 1e9)) == 0.0


@pytest.mark.parametrize(
    ("gpus", "kind", "size", "bus_bytes_per_second"),
    [
        ("8xA100-80G", "all_gather", 8, 205e9),
        ("8xA100-80G", "all_gather", 2, 150e9),
        ("8xA100-80G", "all_reduce", 8, 222e9),
        ("8xH100-80G", "all_gather", 8, 335e9),
        ("8xH100-80G", "all_reduce", 8, 445e9),
        ("8xH100-80G", "all_reduce", 2, 318e9),
        ("8xH100-80G", "all_to_all", 8, 315e9),
        ("8xB200", "reduce_scatter", 8, 613e9),
        ("8xB200", "all_reduce", 8, 704e9),
    ],
)
def test_bus_rates_of_512_mib(gpus: str, kind: Collective, size: int, bus_bytes_per_second: float) -> None:
    """Published NCCL tests of one server (hardware notes, section 4); training runs get a little less, hence the wide side below."""
    t = float(collective_seconds(place(fabric(pool(gpus)), Group(size=float(size), stride=1.0)), kind, 512 * MIB))
    factor = (size - 1) / size * (2 if kind == "all_reduce" else 1)
    assert 0.75 <= 512 * MIB * factor / t / bus_bytes_per_second <= 1.2


def test_network_of_a_ring_over_two_servers() -> None:
    """p5.48xlarge, 2 servers, 16 GiB all-reduce: 487 GB/s bus rate alone on the network."""
    t = float(collective_seconds(place(fabric(pool("16xp5.48xlarge")), Group(size=16.0, stride=1.0)), "all_reduce", 16 * 2.0**30))
    assert 0.6 <= 16 * 2.0**30 * 2 * 15 / 16 / t / 487e9 <= 1.1


@pytest.mark.parametrize(
    ("cluster", "network", "kind", "gpus", "bus_bytes_per_second"),
    [
        ("16xA100-40G", 200e9, "all_reduce", 16, 189.6e9),
        ("24xA100-40G", 100e9, "all_reduce", 24, 96e9),
        ("16xH100-80G", 200e9, "all_gather", 16, 188.7e9),
        ("32xH100-80G", 400e9, "all_gather", 32, 323.5e9),
    ],
)
def test_bus_rates_between_servers(cluster: str, network: float, kind: Collective, gpus: int, bus_bytes_per_second: float) -> None:
    """Published NCCL tests of 2, 3 and 4 servers (hardware notes, section 5): a ring carries (n - 1) / n of the message over every edge."""
    wired = pool(cluster).model_copy(update={"inter_node_bytes_per_second": network / 8})
    size = 16 * 2.0**30
    t = float(collective_seconds(place(fabric(wired), Group(size=float(gpus), stride=1.0)), kind, size))
    factor = (gpus - 1) / gpus * (2 if kind == "all_reduce" else 1)
    assert 0.8 <= size * factor / t / bus_bytes_per_second <= 1.1


def test_two_boards_of_one_server_are_joined_by_pcie() -> None:
    """Two NVLink boards of four GPUs: a ring over all crosses by the PCIe links of four GPUs, one over four stays on its board."""
    whole = pool("8xA100-80G")
    boards = whole.node.model_copy(update={"link_domain_size": 4})
    split = whole.model_copy(update={"node": boards})
    times = {}
    for name, p in (("whole", whole), ("split", split)):
        for size in (4.0, 8.0):
            times[name, size] = float(collective_seconds(place(fabric(p), Group(size=size, stride=1.0)), "all_reduce", 512 * MIB))
    assert times["split", 4.0] == times["whole", 4.0]
    rate = 512 * MIB * 2 * 7 / 8 / times["split", 8.0]
    assert 2 < times["split", 8.0] / times["whole", 8.0] < 6
    assert 2 * 31.5e9 * 0.8 < rate < 4 * 31.5e9 * 0.83


def test_groups_that_cross_servers_are_slower_and_share_their_nics() -> None:
    f = fabric(pool("64xA100-80G"))
    inside = collective_seconds(place(f, Group(size=8.0, stride=1.0)), "all_gather", 1e9)
    wide = collective_seconds(place(f, Group(size=8.0, stride=8.0)), "all_gather", 1e9)
    pairs = collective_seconds(place(f, Group(size=8.0, stride=2.0)), "all_gather", 1e9)
    assert float(inside) < float(pairs) < float(wide)


def test_times_grow_with_size_and_message() -> None:
    f = fabric(pool("1024xH100-80G"))
    sizes = np.array([[2.0], [4.0], [8.0], [16.0], [64.0], [512.0]])
    for kind in ("all_gather", "reduce_scatter"):
        t = np.asarray(collective_seconds(place(f, Group(size=sizes, stride=1.0)), kind, 1e8))[:, 0]
        assert np.all(np.diff(t[3:]) > 0)
        more = np.asarray(collective_seconds(place(f, Group(size=sizes, stride=1.0)), kind, 2e8))[:, 0]
        assert np.all(more > t)


def test_expert_exchange_sends_a_token_once_to_a_server() -> None:
    f = fabric(pool("64xH100-80G"))
    placed = place(f, Group(size=32.0, stride=1.0))
    plain = float(collective_seconds(placed, "all_to_all", 1e8))
    assert float(dispatch_seconds(placed, 1e8, Routing(copies=8.0))) < plain
    assert float(dispatch_seconds(placed, 1e8, Routing())) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("size", "copies", "groups", "chosen"),
    [(8, 8, 1, 1), (8, 2, 1, 1), (16, 6, 1, 1), (64, 8, 1, 1), (4, 8, 8, 4), (8, 8, 8, 4), (16, 6, 8, 3), (64, 8, 8, 4)],
)
def test_expert_exchange_inside_a_domain_sends_a_token_once_to_a_rank(size: int, copies: int, groups: int, chosen: int) -> None:
    """Tokens routed at random among the groups that they chose: of `copies` experts those on one rank take one copy (counted in a draw)."""
    draw = np.random.default_rng(3)
    experts = 64 * 8
    sent = []
    for _ in range(4000):
        among = draw.choice(groups, chosen, replace=False)
        picked = draw.choice(among, copies) * (experts // groups) + draw.integers(0, experts // groups, copies)
        sent.append(len(set((picked // (experts // size)).tolist())))
    placed = place(fabric(pool("72xGB200")), Group(size=float(size), stride=1.0))
    routing = Routing(copies=float(copies), groups=float(groups), topk_groups=float(chosen))
    moved = float(dispatch_seconds(placed, 1e9, routing)) - float(placed.exchange_base_seconds)
    whole = float(collective_seconds(placed, "all_to_all", 1e9)) - float(placed.exchange_base_seconds)
    assert moved / whole == pytest.approx(np.mean(sent) / copies, rel=0.04)


@pytest.mark.parametrize(("experts", "size", "copies"), [(128, 8, 8), (256, 64, 8), (384, 32, 8), (128, 64, 4), (64, 64, 8), (60, 4, 4)])
def test_experts_dealt_in_turns_meet_on_few_ranks(experts: int, size: int, copies: int) -> None:
    """A forced balance that gives token i the experts ci, ci + 1, …: counted over a whole turn."""
    dealt = np.arange(experts * copies).reshape(-1, copies) % experts // (experts // size)
    sent = np.mean([len(set(ranks)) for ranks in dealt])
    placed = place(fabric(pool("64xB200")), Group(size=float(size), stride=1.0))
    turns, drawn = Routing(copies=float(copies), neighbours=experts), Routing(copies=float(copies))
    placed = replace(placed, nodes=np.float64(1.0), network_exchange_seconds_per_byte=np.float64(0.0))
    moved = float(dispatch_seconds(placed, 1e9, turns)) - float(placed.exchange_base_seconds)
    whole = float(placed.exchange_seconds_per_byte) * 1e9
    assert moved / whole == pytest.approx(sent / copies)
    assert moved <= float(dispatch_seconds(placed, 1e9, drawn)) or size == experts


TABLE_7 = [
    # GPUs, members, HybridEP (mean of dispatch and combine), all-to-all (the same): microseconds
    ("72xGB200", 8, 372, 738),
    ("72xGB200", 16, 552, 754),
    ("72xGB200", 32, 629, 764),
    ("72xGB200", 64, 710, 878),
    ("64xH100-80G", 8, 642, 1271),
    ("64xH100-80G", 16, 1586, 5701),
    ("64xH100-80G", 32, 3076, 7937),
    ("64xH100-80G", 64, 4512, 8945),
]


@pytest.mark.parametrize(("gpus", "size", "hybrid", "plain"), TABLE_7)
def test_expert_exchange_as_published(gpus: str, size: int, hybrid: float, plain: float) -> None:
    """Yan et al. 2026 (arXiv 2603.07685), table 7: 4,096 tokens of 7,168 elements in 16 bits to 8 of 256 experts (DeepSeek-V3's)."""
    message = 4096.0 * 8.0 * 7168.0 * 2.0
    placed = place(fabric(pool(gpus)), Group(size=float(size), stride=1.0))
    once = float(dispatch_seconds(placed, message, Routing(copies=8.0, groups=8.0, topk_groups=4.0)))
    assert float(collective_seconds(placed, "all_to_all", message)) == pytest.approx(plain * 1e-6, rel=0.3)
    assert once == pytest.approx(hybrid * 1e-6, rel=0.3)


def test_sends_leave_the_server_only_where_the_chain_does() -> None:
    f = fabric(pool("64xA100-80G"))
    assert float(send_seconds(f, Chain(stages=2.0, stride=4.0), 1e8)) < float(send_seconds(f, Chain(stages=4.0, stride=4.0), 1e8))


def test_an_unknown_network_is_named() -> None:
    known = pool("16xA100-80G")
    assert links_assumed(known) == ()
    unknown = known.model_copy(update={"inter_node_bytes_per_second": None})
    assert "100 Gb/s" in links_assumed(unknown)[0]
    assert links_assumed(unknown.model_copy(update={"count": 8})) == ()
    slow = float(collective_seconds(place(fabric(unknown), Group(size=16.0, stride=1.0)), "all_gather", 1e9))
    assert slow == pytest.approx(1e9 * 15 / 16 / (12.5e9 * 0.85), rel=0.1)
