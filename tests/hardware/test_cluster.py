"""Cluster strings: what they mean, what is assumed, what is unknown, and what is refused."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.catalog import gpu_names, load_gpu, load_node, node_names
from hardware.cluster import MAX_GPUS, ClusterError, describe_node, parse_cluster
from hardware.units import GIB


def test_the_main_example() -> None:
    cluster = parse_cluster("32xA100-80G")
    (pool,) = cluster.pools
    assert (cluster.name, cluster.count) == ("32xA100-80G", 32)
    assert (pool.gpu.id, pool.node.id, pool.nodes, pool.gpus_per_node) == ("a100-sxm-80g", "dgx-a100-80g", 4, 8)
    assert pool.node.link_domain_size == 8
    assert pool.link_bytes_per_second == 300e9
    assert pool.inter_node_bytes_per_second == 25e9
    assert pool.capacity_bytes == 79.15 * 2**30
    assert cluster.assumed == ("server DGX A100 (8 GPUs, NVLink3 300 GB/s, 8 x 200 Gb/s)",)
    assert cluster.warnings == ("price of DGX A100 is unknown: checks against it are skipped",)


@pytest.mark.parametrize(
    ("text", "count", "nodes", "gpus_per_node"),
    [
        ("4x8xH100-80G", 32, 4, 8),
        ("2xRTX4090", 2, 1, 2),
        ("A100-80G", 1, 1, 1),
        ("3090", 1, 1, 1),
        ("4x3090", 4, 1, 4),
        ("2x4x3090", 8, 2, 4),
        ("16xp5.48xlarge", 128, 16, 8),
        ("p5.48xlarge", 8, 1, 8),
        ("2x4xp5.48xlarge", 8, 2, 4),
        ("72xGB200", 72, 18, 4),
        ("12xA100-80G", 12, 2, 8),
        ("8xMI300X-192G", 8, 1, 8),
        ("16384xH100-80G", 16384, 2048, 8),
        ("2 × 8 x h100", 16, 2, 8),
        ("2x8xDGX-2", 16, 2, 8),
        ("2xDGX-2", 32, 2, 16),
        ("8xpcie-8x4090", 64, 8, 8),
        ("1048576xT4", 2**20, 2**17, 8),
    ],
)
def test_counts(text: str, count: int, nodes: int, gpus_per_node: int) -> None:
    cluster = parse_cluster(text)
    (pool,) = cluster.pools
    assert (cluster.count, pool.nodes, pool.gpus_per_node) == (count, nodes, gpus_per_node)


def test_several_pools_say_whose_each_sentence_is() -> None:
    cluster = parse_cluster("8xA100-80G + 4xRTX3090-24G")
    assert cluster.name == "8xA100-80G+4xRTX3090-24G"
    assert [pool.gpu.id for pool in cluster.pools] == ["a100-sxm-80g", "rtx3090"]
    assert cluster.count == 12
    assert cluster.assumed[0].startswith("8 x A100 SXM4 80GB: server DGX A100")
    assert all(sentence.startswith(("8 x A100", "4 x GeForce RTX 3090")) for sentence in (*cluster.assumed, *cluster.warnings))


def test_named_server_leaves_nothing_to_assume() -> None:
    cluster = parse_cluster("16xp5.48xlarge")
    assert cluster.assumed == ()
    assert cluster.warnings == ()
    assert cluster.pools[0].inter_node_bytes_per_second == 32 * 12.5e9 / 8


def test_pool_smaller_than_the_server_says_so() -> None:
    cluster = parse_cluster("4xA100-80G")
    assert cluster.pools[0].node.gpus_per_node == 8
    assert "4 of the 8 GPUs of one DGX A100 in use" in cluster.assumed
    assert "2 of the 8 GPUs of each AWS p5.48xlarge in use" not in cluster.assumed


def test_count_that_is_no_multiple_says_so() -> None:
    assert "12 GPUs are no multiple of 8 per server: the last server holds 4" in parse_cluster("12xA100-80G").assumed


@pytest.mark.parametrize(
    ("text", "per_node", "domain", "network"),
    [
        ("4x4xA100-80G", 4, 4, 25e9),
        ("2x16xA100-80G", 16, 8, 12.5e9),
        ("9x8xGB200", 8, 72, 50e9),
        ("4x2xRTX4090", 2, 1, None),
        ("4x1xA100-80G", 1, 1, 25e9),
    ],
)
def test_other_number_of_gpus_per_server(text: str, per_node: int, domain: int, network: float | None) -> None:
    """Fewer GPUs don't gain network, more share it, a rack's trays keep theirs; the link's domain never grows."""
    cluster = parse_cluster(text)
    (pool,) = cluster.pools
    assert (pool.node.gpus_per_node, pool.gpus_per_node, pool.node.link_domain_size) == (per_node, per_node, domain)
    assert pool.inter_node_bytes_per_second == network
    assert any(f"{per_node} GPU{'s' if per_node > 1 else ''} per server as given" in sentence for sentence in cluster.assumed)


def test_rack_domain_needs_no_network_inside() -> None:
    (pool,) = parse_cluster("72xGB200").pools
    assert (pool.gpus_per_node, pool.node.link_domain_size) == (4, 72)
    assert not any("network" in sentence for sentence in parse_cluster("72xGB300").warnings)


def test_gpu_without_a_server_gets_a_plain_one() -> None:
    cluster = parse_cluster("16xL20")
    (pool,) = cluster.pools
    assert pool.inter_node_bytes_per_second is None
    assert (pool.node.gpus_per_node, pool.node.link_domain_size) == (8, 1)
    assert pool.link_bytes_per_second == pool.gpu.pcie_bytes_per_second == 31e9
    assert "the catalogue has no server for L20; 8 per server is taken where no source says" in cluster.assumed[0]
    assert cluster.warnings[0] == "the network between 2 x plain L20 server is unknown"
    assert cluster.warnings[1] == "host memory, NVMe and price of plain L20 server are unknown: checks against them are skipped"
    assert cluster.warnings[2].startswith("no driver total of L20 is published: 46.7 GiB usable is assumed")


def test_plain_server_uses_the_gpus_own_switched_link() -> None:
    (pool,) = parse_cluster("8xMI350X").pools
    assert (pool.node.link_domain_size, pool.link_bytes_per_second) == (8, 537.6e9)
    assert parse_cluster("8xL20").warnings[0].startswith("host memory")
    (pool,) = parse_cluster("4xMI210").pools
    assert (pool.node.link_domain_size, pool.link_bytes_per_second) == (1, 31e9)


def test_default_server_of_another_gpu_is_named() -> None:
    cluster = parse_cluster("8xH100-96G")
    assert cluster.pools[0].node.gpu == "h100-96g"
    assert "holding H100 96GB" in cluster.assumed[0]


def test_free_memory_lowers_the_capacity_only() -> None:
    assert parse_cluster("8xA100-80G", free_memory_bytes=60 * GIB).pools[0].capacity_bytes == 60 * GIB
    cluster = parse_cluster("8xA100-80G", free_memory_bytes=90 * GIB)
    assert cluster.pools[0].capacity_bytes == 79.15 * GIB
    assert any("free memory 90.0 GiB is more than a process can use" in sentence for sentence in cluster.warnings)
    for bad in (float("nan"), float("inf"), -1.0, 0.0, 1e30):
        with pytest.raises(ClusterError, match="free memory"):
            parse_cluster("8xA100-80G", free_memory_bytes=bad)


BAD = [
    ("", "is empty"),
    ("   ", "is empty"),
    ("0xA100-80G", "counts lie between 1 and 1,048,576"),
    ("4x0xA100-80G", "counts lie between"),
    ("-4xA100-80G", "'-4' in cluster"),
    ("4x-8xA100-80G", "'-8' in cluster"),
    ("2.5xA100-80G", "not a whole number"),
    ("1e30xA100-80G", "not a whole number"),
    ("10^30xA100-80G", "not a whole number"),
    ("nanxA100-80G", "not a whole number"),
    ("infxA100-80G", "not a whole number"),
    (f"{10**30}xA100-80G", "counts lie between"),
    ("9" * 1500 + "xA100-80G", "counts lie between"),
    ("1048577xA100-80G", "counts lie between"),
    ("1048576x8xA100-80G", "between 1 and 1,048,576 GPUs"),
    ("1048576xp5.48xlarge", "between 1 and 1,048,576 GPUs"),
    ("1048576xA100-80G+1xA100-80G", "at most 1,048,576"),
    ("8x", "names no GPU"),
    ("8", "names no GPU"),
    ("x", "unknown GPU or server 'x'"),
    ("+", "lacks a pool"),
    ("8xA100-80G+", "lacks a pool"),
    ("+".join(["T4"] * 65), "has 65 pools"),
    ("2x2x2xA100-80G", "too many counts"),
    ("8xFOO", "unknown GPU or server 'FOO'"),
    ("8xA100-60G", "nearest: A100-80G, A100-40G"),
    ("16xp5.48xlarg", "nearest: p5.48xlarge"),
    ("8xA100-SXM", "ambiguous: it could be A100-40G, A100-80G"),
    ("4x9xp5.48xlarge", "AWS p5.48xlarge has 8; give 8 or fewer"),
    ("8xA100-80G,4xH100", "unknown GPU or server"),
    ("8xA100\n-80G\x00", "unknown GPU or server"),
    ("\x00\x01\x02", "unknown GPU or server"),
    ("x" * 100_000, "100,000 characters"),
    ("１６xA100", "unknown GPU or server"),
    ("8xA100;rm -rf", "unknown GPU or server"),
    (".", "is a directory"),
]


@pytest.mark.parametrize(("text", "law"), BAD, ids=range(len(BAD)))
def test_nonsense_is_one_line_at_once(text: str, law: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ClusterError, match=re.escape(law)) as caught:
        parse_cluster(text)
    assert time.perf_counter() - start < 1.0
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, ValueError)


NAMES = [load_gpu(name).aliases[0] if load_gpu(name).aliases else name for name in gpu_names()]


@given(st.integers(min_value=1, max_value=MAX_GPUS), st.sampled_from(NAMES))
def test_count_and_gpu_read_back(count: int, name: str) -> None:
    cluster = parse_cluster(f"{count}x{name}")
    (pool,) = cluster.pools
    assert (pool.count, pool.gpu) == (count, load_gpu(name))
    assert (pool.nodes - 1) * pool.gpus_per_node < count <= pool.nodes * pool.gpus_per_node
    assert pool.gpus_per_node <= pool.node.gpus_per_node
    assert parse_cluster(cluster.name) == cluster


@given(st.integers(min_value=1, max_value=1000), st.integers(min_value=1, max_value=64), st.sampled_from(NAMES))
def test_servers_times_gpus_read_back(servers: int, per_node: int, name: str) -> None:
    (pool,) = parse_cluster(f"{servers}x{per_node}x{name}").pools
    assert (pool.nodes, pool.gpus_per_node, pool.count) == (servers, per_node, servers * per_node)
    total = pool.node.all_nics_bytes_per_second
    if total is not None and pool.node.link_domain_size <= pool.node.gpus_per_node:
        assert pool.inter_node_bytes_per_second is not None
        assert pool.inter_node_bytes_per_second * per_node <= total * (1 + 1e-12)


@given(st.integers(min_value=1, max_value=1000), st.sampled_from(node_names()))
def test_servers_by_name_read_back(servers: int, name: str) -> None:
    (pool,) = parse_cluster(f"{servers}x{name}").pools
    node = load_node(name)
    assert (pool.nodes, pool.gpus_per_node, pool.node) == (servers, node.gpus_per_node, node)
    total = node.all_nics_bytes_per_second
    assert pool.inter_node_bytes_per_second == (None if total is None else total / node.gpus_per_node)


@given(st.one_of(st.text(max_size=100), st.text(alphabet="0123456789x+-.× A10HG", max_size=40)))
def test_any_text_is_a_cluster_or_one_line(text: str) -> None:
    try:
        cluster = parse_cluster(text)
    except ClusterError as error:
        assert str(error).isprintable()
    else:
        assert 1 <= cluster.count <= MAX_GPUS


def test_every_server_is_described_and_unknown_facts_are_named() -> None:
    for name in node_names():
        node = load_node(name)
        described = describe_node(node)
        assert described.startswith(node.name.removeprefix("NVIDIA ").partition(" / ")[0])
        warnings = " ".join(parse_cluster(f"2x{name}").warnings)
        for word, value in (
            ("host memory", node.host_memory_bytes),
            ("NVMe", node.nvme_bytes),
            ("network", node.all_nics_bytes_per_second),
        ):
            inside_rack = word == "network" and node.link_domain_size >= 2 * node.gpus_per_node
            assert (word in warnings) == (value is None and not inside_rack), (name, word)
