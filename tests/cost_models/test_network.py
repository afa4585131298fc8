"""Fabric above the servers: leaves, oversubscription, rails and shared NICs against a count of what every link carries."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.throughput.collectives import fabric, place, send_network_seconds, send_seconds
from cost_models.throughput.ranks import Chain, Group
from cost_models.training import Training
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from hardware.spec import Pool

SERVER = 4
NIC = 10e9
"""Bytes/s of one GPU's share, after the measured fraction."""


def pool(servers: int, *, above: float = 1.0, leaf: int | None = None, rails: bool = False, fast: bool = True, nics: int = SERVER) -> Pool:
    made = parse_cluster(f"{servers}x{SERVER}xA100-80G").pools[0]
    links = {"link_domain_size": SERVER} if fast else {"link_domain_size": 1, "link": "PCIe", "link_bytes_per_second": 25e9}
    node = made.node.model_copy(update={"gpus_per_node": SERVER, "nic_count": nics, **links})
    changed = {"node": node, "inter_node_bytes_per_second": NIC / 0.85, "oversubscription": above, "leaf_servers": leaf, "rails": rails}
    return made.model_copy(update=changed)


def groups_of(size: int, stride: int, servers: int) -> list[list[int]]:
    """All groups of `size` ranks `stride` apart that tile the cluster."""
    block = size * stride
    return [[start + first + i * stride for i in range(size)] for start in range(0, servers * SERVER, block) for first in range(stride)]


def busiest(loads: Counter[int], rate: float) -> float:
    return max(loads.values(), default=0.0) / rate


def ring_seconds(groups: list[list[int]], above: float, leaf: int) -> float:
    """One byte gathered in every group at once: each edge of a ring carries (n - 1) / n of it, through the NICs of the server and the
    links of its leaf upwards."""
    nics: Counter[int] = Counter()
    uplinks: Counter[int] = Counter()
    for group in groups:
        n = len(group)
        for a, b in zip(group, [*group[1:], group[0]], strict=True):
            nics[a // SERVER] += (n - 1) / n if a // SERVER != b // SERVER else 0.0
            uplinks[a // SERVER // leaf] += (n - 1) / n if a // SERVER // leaf != b // SERVER // leaf else 0.0
    return max(busiest(nics, SERVER * NIC), busiest(uplinks, leaf * SERVER * NIC / above))


def exchange_seconds(groups: list[list[int]], above: float, leaf: int, *, rails: bool) -> float:
    """One byte exchanged in every group at once: a rank sends 1 / n to each other one. On rails what is meant for another index goes up."""
    nics: Counter[int] = Counter()
    uplinks: Counter[int] = Counter()
    for group in groups:
        for a, b in product(group, group):
            if a // SERVER == b // SERVER:
                continue
            nics[a // SERVER] += 1.0 / len(group)
            far = a // SERVER // leaf != b // SERVER // leaf
            uplinks[a // SERVER // leaf] += 1.0 / len(group) if far or (rails and a % SERVER != b % SERVER) else 0.0
    return max(busiest(nics, SERVER * NIC), busiest(uplinks, leaf * SERVER * NIC / above))


CASES = [(n, s, above, leaf) for n, s, above, leaf in product((2, 4, 8, 16), (1, 2, 4, 8), (1.0, 2.0, 3.5), (1, 2, 4)) if n * s <= 32]


@pytest.mark.parametrize(("size", "stride", "above", "leaf"), CASES)
def test_rings_and_exchanges_load_links_as_counted(size: int, stride: int, above: float, leaf: int) -> None:
    groups = groups_of(size, stride, 8)
    group = Group(size=float(size), stride=float(stride))
    f = fabric(pool(8, above=above, leaf=leaf))
    placed = place(f, group)
    assert float(placed.network_seconds_per_byte) == pytest.approx(ring_seconds(groups, above, leaf), rel=1e-12)
    exchanged = float(placed.network_exchange_seconds_per_byte) * f.all_to_all_network
    assert exchanged == pytest.approx(exchange_seconds(groups, above, leaf, rails=False), rel=1e-12)


@pytest.mark.parametrize(("size", "stride", "above", "leaf"), CASES)
def test_without_a_fast_link_what_crosses_rails_goes_above_the_leaf(size: int, stride: int, above: float, leaf: int) -> None:
    groups = groups_of(size, stride, 8)
    f = fabric(pool(8, above=above, leaf=leaf, rails=True, fast=False))
    placed = place(f, Group(size=float(size), stride=float(stride)))
    assert float(placed.network_seconds_per_byte) == pytest.approx(ring_seconds(groups, above, leaf), rel=1e-12)
    exchanged = float(placed.network_exchange_seconds_per_byte) * f.all_to_all_network
    assert exchanged == pytest.approx(exchange_seconds(groups, above, leaf, rails=True), rel=1e-12)


def test_with_a_fast_link_what_crosses_rails_goes_over_it_first() -> None:
    """PXN: of what leaves a server 3 of 4 parts change rails, and ride the link beside the 3 of 16 that stay inside."""
    plain, rails = (fabric(pool(4, above=4.0, leaf=4, rails=r)) for r in (False, True))
    group = Group(size=16.0, stride=1.0)
    assert float(place(rails, group).network_exchange_seconds_per_byte) == float(place(plain, group).network_exchange_seconds_per_byte)
    more = float(place(rails, group).exchange_seconds_per_byte) / float(place(plain, group).exchange_seconds_per_byte)
    assert more == pytest.approx((3 / 16 + 12 / 16 * 3 / 4) / (3 / 16), rel=1e-12)
    assert float(place(rails, group).gather_seconds_per_byte) == float(place(plain, group).gather_seconds_per_byte)


def hop_seconds(chain: tuple[int, int], servers: int, above: float, leaf: int, nics: int) -> float:
    """One byte handed on by every stage: the slowest NIC, and the slowest link of a leaf upwards, at the busiest single hop."""
    stages, stride = chain
    per_nic, slowest = SERVER // nics, 0.0
    for hop in range(stages - 1):
        ports: Counter[int] = Counter()
        uplinks: Counter[int] = Counter()
        for start in range(0, servers * SERVER, stages * stride):
            for rank in range(start + hop * stride, start + (hop + 1) * stride):
                there = rank + stride
                ports[rank // per_nic] += 1.0 if rank // SERVER != there // SERVER else 0.0
                uplinks[rank // SERVER // leaf] += 1.0 if rank // SERVER // leaf != there // SERVER // leaf else 0.0
        slowest = max(slowest, busiest(ports, NIC * per_nic), busiest(uplinks, leaf * SERVER * NIC / above))
    return slowest


@pytest.mark.parametrize(("stages", "stride"), [(n, s) for n, s in product((2, 4, 8, 16, 32), (1, 2, 4, 8, 16)) if n * s <= 32])
@pytest.mark.parametrize("nics", [4, 2, 1])
@pytest.mark.parametrize(("above", "leaf"), [(1.0, 1), (2.0, 1), (4.0, 2), (16.0, 2)])
def test_hops_load_nics_and_leaves_as_counted(stages: int, stride: int, nics: int, above: float, leaf: int) -> None:
    f = fabric(pool(8, above=above, leaf=leaf, nics=nics))
    took = float(send_network_seconds(f, Chain(stages=float(stages), stride=float(stride)), 1.0)) * f.send
    assert took == pytest.approx(hop_seconds((stages, stride), 8, above, leaf, nics), rel=1e-12)


def test_a_hop_between_rails_goes_above_the_leaf_only_without_a_fast_link() -> None:
    """Stages of two GPUs in servers of four: the hop that leaves a server changes the index."""
    chain, whole = Chain(stages=4.0, stride=2.0), Chain(stages=2.0, stride=4.0)
    for fast, slower in ((True, 1.0), (False, 2.0)):
        rails, plain = (fabric(pool(8, above=4.0, leaf=8, rails=r, fast=fast)) for r in (True, False))
        assert float(send_network_seconds(rails, chain, 1.0)) == pytest.approx(slower * float(send_network_seconds(plain, chain, 1.0)))
        assert float(send_seconds(rails, whole, 1.0)) == float(send_seconds(plain, whole, 1.0))


LLAMA = load("llama-3.1-8b")
MIXTRAL = load("mixtral-8x7b")
LAYOUTS = [
    (LLAMA, Degrees(tp=4.0, dp=8.0), Choices(zero=1)),
    (LLAMA, Degrees(tp=2.0, pp=4.0, dp=4.0), Choices(zero=1)),
    (LLAMA, Degrees(tp=2.0, pp=4.0, dp=4.0, rank_order=1.0), Choices(zero=1)),
    (LLAMA, Degrees(dp=32.0), Choices(zero=3, sequence_parallel=False)),
    (LLAMA, Degrees(dp=32.0, shard_group=8.0), Choices(zero=3, sequence_parallel=False)),
    (LLAMA, Degrees(tp=4.0, cp=4.0, dp=2.0), Choices(zero=1)),
    (MIXTRAL, Degrees(ep=8.0, dp=16.0, pp=2.0), Choices(zero=1)),
]


def step(which: int, made: Pool) -> float:
    architecture, degrees, choices = LAYOUTS[which]
    task = Training(seq=4096, global_batch=128, framework="torchtitan" if choices.zero == 3 else "megatron")
    return float(np.asarray(cost(architecture, task, Layout(degrees=degrees, choices=choices), made).time.step_seconds))


@given(
    st.integers(0, len(LAYOUTS) - 1),
    st.sampled_from([1.0, 1.5, 2.0, 4.0, 7.0]),
    st.sampled_from([1.0, 1.5, 2.0, 4.0, 7.0]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_thinner_fabric_or_a_smaller_leaf_is_never_faster(
    which: int, one: float, other: float, leaf: int, larger: int, rails: bool, fast: bool
) -> None:
    thick, thin, small, large = min(one, other), max(one, other), min(leaf, larger), max(leaf, larger)
    base = step(which, pool(8, above=thick, leaf=small, rails=rails, fast=fast))
    assert step(which, pool(8, above=thin, leaf=small, rails=rails, fast=fast)) >= base
    assert step(which, pool(8, above=thick, leaf=large, rails=rails, fast=fast)) <= base


@pytest.mark.parametrize("which", range(len(LAYOUTS)))
def test_a_leaf_over_all_servers_leaves_no_oversubscription(which: int) -> None:
    assert step(which, pool(8, above=4.0, leaf=8)) == step(which, pool(8))
    assert step(which, pool(8, above=4.0, leaf=None)) == step(which, pool(8, above=4.0, leaf=1))
    assert step(which, pool(8, above=4.0, leaf=1)) > step(which, pool(8))
