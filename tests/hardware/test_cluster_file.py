"""Cluster files: catalogue names with changed facts, machines of one's own, and files that are none."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardware.cluster import ClusterError, parse_cluster
from hardware.units import GIB

LAB = """
name = "our lab"
gpu = "A100-80G"
count = 32
free_memory = "60 GiB"
oversubscription = 2.0

[node]
base = "dgx-a100-80g"
nic_count = 4
host_memory = "1 TiB"
nvme = "4x 3.84 TB"
"""
OWN = """
[[pool]]
nodes = 3
[pool.gpu]
name = "Foo 1000"
nominal_memory = "64 GiB"
driver_memory = "65000 MiB"
memory_bandwidth = "2 TB/s"
peak_dense = { bf16 = "400 TFLOP/s", fp8 = "800 TFLOP/s" }
link = "FooLink"
link_bandwidth = "200 GB/s"
pcie_bandwidth = "25 GB/s"
[pool.node]
gpus_per_node = 4
link_domain_size = 4
nic_count = 2
nic_bandwidth = "100 Gb/s"
host_memory = "512 GiB"
nvme = "0 TB"

[[pool]]
node = "p4d.24xlarge"
count = 12
network_per_gpu = "5 GB/s"
"""


def _write(folder: Path, text: str | bytes, name: str = "lab.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_catalogue_server_with_changed_facts(tmp_path: Path) -> None:
    cluster = parse_cluster(str(_write(tmp_path, LAB)))
    (pool,) = cluster.pools
    assert (cluster.name, cluster.count, pool.nodes, pool.gpus_per_node) == ("our lab", 32, 4, 8)
    assert pool.inter_node_bytes_per_second == 4 * 25e9 / 8
    assert pool.node.host_memory_bytes == 2**40
    assert pool.node.nvme_bytes == 4 * 3.84e12
    assert pool.link_bytes_per_second == 300e9
    assert (pool.capacity_bytes, pool.oversubscription) == (60 * GIB, 2.0)
    assert cluster.assumed == ()
    assert cluster == parse_cluster(_write(tmp_path, LAB))


def test_option_replaces_the_files_free_memory(tmp_path: Path) -> None:
    assert parse_cluster(_write(tmp_path, LAB), free_memory_bytes=50 * GIB).pools[0].capacity_bytes == 50 * GIB


def test_machines_of_ones_own(tmp_path: Path) -> None:
    cluster = parse_cluster(_write(tmp_path, OWN))
    own, cloud = cluster.pools
    assert (cluster.name, cluster.count) == ("lab", 24)
    assert (own.count, own.nodes, own.gpu.id, own.gpu.name) == (12, 3, "foo-1000", "Foo 1000")
    assert own.gpu.usable_memory_bytes == 0.988 * 65000 * 2**20
    assert own.gpu.peak_flop_per_second == {"bf16": 400e12, "fp8": 800e12}
    assert own.gpu.fp8_supported
    assert own.link_bytes_per_second == 200e9
    assert own.host_link_bytes_per_second == 25e9
    assert own.inter_node_bytes_per_second == 2 * 12.5e9 / 4
    assert own.node.nvme_bytes == 0
    assert "12 x Foo 1000: price of own server is unknown: checks against it are skipped" in cluster.warnings
    assert (cloud.gpu.id, cloud.nodes, cloud.inter_node_bytes_per_second) == ("a100-sxm-40g", 2, 5e9)
    assert any("the last server holds 4" in sentence for sentence in cluster.assumed)


def test_fabric_above_the_servers(tmp_path: Path) -> None:
    text = 'gpu = "H100"\nnodes = 64\noversubscription = 2\nleaf_servers = 32\nrails = true'
    (pool,) = parse_cluster(_write(tmp_path, text)).pools
    assert (pool.oversubscription, pool.leaf_servers, pool.rails) == (2.0, 32, True)
    (plain,) = parse_cluster(_write(tmp_path, 'gpu = "H100"\nnodes = 64')).pools
    assert (plain.oversubscription, plain.leaf_servers, plain.rails) == (1.0, None, False)


def test_bare_gpu_name_takes_its_server(tmp_path: Path) -> None:
    assert parse_cluster(_write(tmp_path, 'gpu = "A100-80G"\nnodes = 4')).pools == parse_cluster("32xA100-80G").pools
    four = parse_cluster(_write(tmp_path, 'gpu = "A100-80G"\nnodes = 4\ngpus_per_node = 4'))
    assert four.pools == parse_cluster("4x4xA100-80G").pools


def test_changed_gpu_facts_make_older_measurements_void(tmp_path: Path) -> None:
    changed = 'nominal_memory = "40 GiB", memory_bandwidth = "1 TB/s", peak_dense = { bf16 = "300 TFLOP/s" }'
    text = f'gpu = {{ base = "A100-80G", {changed} }}\ncount = 8'
    (pool,) = parse_cluster(_write(tmp_path, text)).pools
    assert pool.gpu.capacity_assumed
    assert pool.gpu.usable_memory_bytes == 0.988 * 0.985 * 40 * GIB
    assert pool.gpu.measured_memory_bandwidth_bytes_per_second is None
    assert pool.gpu.peak_flop_per_second["bf16"] == 300e12
    assert pool.gpu.peak_flop_per_second["fp16"] == 312e12


def test_own_server_takes_the_link_of_its_gpu(tmp_path: Path) -> None:
    cluster = parse_cluster(_write(tmp_path, 'gpu = "A100-80G"\ncount = 16\nnode = { gpus_per_node = 4 }'))
    (pool,) = cluster.pools
    assert (pool.node.link_domain_size, pool.link_bytes_per_second, pool.inter_node_bytes_per_second) == (4, 300e9, None)
    assert any("network between 4 x own server is unknown" in sentence for sentence in cluster.warnings)
    assert any("4 assumed" in sentence for sentence in cluster.warnings)


def test_full_field_names_are_read_too(tmp_path: Path) -> None:
    (pool,) = parse_cluster(_write(tmp_path, 'node = { base = "p5.48xlarge", host_memory_bytes = 1e12 }\nnodes = 1')).pools
    assert pool.node.host_memory_bytes == 1e12


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = """
gpu = { base = "A100-8G", memory = "3 GiB" }
count = -32
gpus_per_nod = 8
free_memory = "60 G"
oversubscription = 0.5
[node]
bas = "dgx-a100-80g"
nic_bandwidth = "nan GB/s"
host_memory = "0 GiB"
"""
    with pytest.raises(ClusterError) as caught:
        parse_cluster(_write(tmp_path, text))
    message = str(caught.value)
    for part in (
        "unknown key 'memory'",
        "nominal_memory",
        "unknown GPU 'A100-8G'; nearest: A100-80G",
        "count '-32' must lie between 1 and",
        "unknown key 'gpus_per_nod'; nearest: gpus_per_node",
        "'G' is no unit of size",
        "oversubscription 0.5 must be 1 or more",
        "unknown key 'bas'; nearest: base",
        "nic_bandwidth: 'nan GB/s' is not a finite bandwidth",
        "host_memory must be more than zero",
    ):
        assert part in message
    assert message.isprintable()


BAD_TEXT = [
    ("", "is empty"),
    (" \n\n", "is empty"),
    ("gpu = ", "is not TOML"),
    ("{", "is not TOML"),
    ('{"gpu": "A100-80G"}', "is not TOML"),
    (b"\xff\xfe\x00gpu", "is a binary file"),
    (b'gpu = "\xe9"', "is not UTF-8 (byte 7)"),
    ("x = 1", "unknown key 'x'"),
    ("count = 8", "gpu is missing"),
    ('gpu = "A100-80G"', "count is missing"),
    ('gpu = "A100-80G"\ncount = 0', "must lie between 1 and 1048576"),
    ('gpu = "A100-80G"\ncount = 8.5', "is not a whole number"),
    ('gpu = "A100-80G"\ncount = true', "is not a whole number"),
    ('gpu = "A100-80G"\ncount = nan', "is not a whole number"),
    ('gpu = "A100-80G"\ncount = ' + "9" * 30, "must lie between 1 and 1048576"),
    ('gpu = "A100-80G"\ncount = ' + "9" * 1900, "must lie between 1 and 1048576"),
    ('gpu = "A100-80G"\nnodes = 1048576', "between 1 and 1,048,576 GPUs"),
    ('gpu = "A100-80G"\ncount = 32\nnodes = 5', "make 4 servers, but nodes = 5"),
    ('gpu = "A100-80G"\ncount = 8\nfree_memory = "nan GiB"', "not a finite size"),
    ('gpu = "A100-80G"\ncount = 8\nfree_memory = 0', "must be more than zero"),
    ('gpu = "A100-80G"\ncount = 8\noversubscription = inf', "is not a number between"),
    ('gpu = "A100-80G"\ncount = 8\nleaf_servers = 0', "leaf_servers '0' must lie between 1 and 1048576"),
    ('gpu = "A100-80G"\ncount = 8\nleaf_servers = 1.5', "leaf_servers '1.5' is not a whole number"),
    ('gpu = "A100-80G"\ncount = 8\nleaf_server = 4', "unknown key 'leaf_server'; nearest: leaf_servers"),
    ('gpu = "A100-80G"\ncount = 8\nrails = 8', "rails '8' must be true or false"),
    ('gpu = "A100-80G"\nnodes = 4\nrails = true', "rails = true needs leaf_servers: the servers that the leaf of one rail joins"),
    ('gpu = "A100-80G"\ncount = 8\noversubscription = 0.5', "must be 1 or more (NICs / fabric above them); try 1"),
    ('gpu = "A100-80G"\ncount = 8\nname = 5', "name must be a text"),
    ("gpu = 5\ncount = 8", "gpu: '5' must be a name or a table"),
    ("gpu = 1979-05-27\ncount = 8", "must be a name or a table"),
    ("gpu = {}\ncount = 8", "name is missing"),
    ("gpu = { base = 3 }\ncount = 8", "base '3' must be the name of a GPU"),
    ('gpu = { name = "Foo", peak_dense = { bf16 = "1 TFLOP/s" } }\ncount = 8', "nominal_memory: is missing"),
    ('gpu = { name = "Foo", peak_dense = { int8 = "1 TFLOP/s" } }\ncount = 8', "knows no type 'int8'"),
    ('gpu = { name = "Foo", peak_dense = 5 }\ncount = 8', "peak_dense must be a table"),
    ('gpu = { base = "A100-80G", default_node = "nowhere" }\ncount = 8', "unknown server 'nowhere'"),
    ('gpu = "A100-80G"\ncount = 8\nnode = {}', "gpus_per_node is missing"),
    ("node = { gpus_per_node = 8 }\ncount = 8", "gpu is missing"),
    ('gpu = "A100-80G"\ncount = 8\nnode = "dgx"', "unknown server 'dgx'; nearest: "),
    ('node = "p5.48xlarge"\ncount = 16\ngpus_per_node = 9', "AWS p5.48xlarge has 8; give 8 or fewer"),
    ('gpu = "A100-80G"\ncount = 8\nnode = { gpus_per_node = 8, aliases = "x" }', "aliases must be a list of texts"),
    ('gpu = "A100-80G"\ncount = 8\nnode = { gpus_per_node = 8, fact_sources = 3 }', "fact_sources must be a table of texts"),
    ('gpu = "A100-80G"\ncount = 8\nnode = { gpus_per_node = 8, host_memory = "1 GiB", host_memory_bytes = 5 }', "is given twice"),
    ('gpu = "A100-80G"\ncount = 8\nnode = { gpus_per_node = 8, network = 3 }', "network '3' must be a text"),
    ('gpu = { base = "A100-80G", bf16_supported = "yes" }\ncount = 8', "must be true or false"),
    ('gpu = { base = "A100-80G", compute_capability = nan }\ncount = 8', "is not a number between"),
    ("pool = 3", "pool must be one to 64"),
    ("pool = []", "pool must be one to 64"),
    ("pool = [3]", "'3' must be a table"),
    ('count = 3\n[[pool]]\ngpu = "A100-80G"\ncount = 8', "not both"),
    ('[[pool]]\ngpu = "T4"\ncount = 8\n[[pool]]\ngpu = "T5"\ncount = 8', "pool 2: unknown GPU 'T5'"),
    ("[[pool]]\n" * 65, "pool must be one to 64"),
    ("x = " + "[" * 1500, "nested too deep"),
    ("x = 1 #" + "x" * 3000, "longer than 2000 characters"),
    (".".join("a" * 900) + " = 1", "nests its key too deep"),
    ("#" * 70_000, "has 70,000 bytes; a cluster file has at most 65,536"),
]


@pytest.mark.parametrize(("text", "law"), BAD_TEXT, ids=range(len(BAD_TEXT)))
def test_bad_file_is_one_line_at_once(tmp_path: Path, text: str | bytes, law: str) -> None:
    path = _write(tmp_path, text)
    start = time.perf_counter()
    with pytest.raises(ClusterError, match=re.escape(law)) as caught:
        parse_cluster(path)
    assert time.perf_counter() - start < 1.0
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(2**40)
    for path, law in (
        (tmp_path, "is a directory"),
        (tmp_path / "none.toml", "cannot be read: No such file"),
        (tmp_path / "pipe.toml", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (huge, "1,099,511,627,776 bytes"),
        (tmp_path / ("n" * 300 + ".toml"), "cannot be read"),
        (tmp_path / "a\0b.toml", "is not a path"),
    ):
        for given_ in (path, str(path)):
            start = time.perf_counter()
            with pytest.raises(ClusterError, match=law) as caught:
                parse_cluster(given_)
            assert str(caught.value).isprintable()
            assert time.perf_counter() - start < 1.0


def test_file_without_the_usual_ending_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, LAB, "our-lab")
    _write(tmp_path, "nonsense", "A100-80G")
    monkeypatch.chdir(tmp_path)
    assert parse_cluster("our-lab").name == "our lab"
    assert parse_cluster("A100-80G").count == 1


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"a{i} = {{ {'.'.join('b' * 500)} = 1 }}" for i in range(60)),
        "\n".join(f"[a.b.c.d.e.f.g.h.{i}]\nx = 1" for i in range(2000)),
        "\n".join(f"k{i} = 1" for i in range(6000)),
        "x = [" + "1," * 900 + "]",
        "[[pool]]\n" * 64 + "".join(f"k{i} = 'x'\n" for i in range(3000)),
    ],
    ids=range(5),
)
def test_hostile_files_fail_fast(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path, text)
    start = time.process_time()
    with pytest.raises(ClusterError) as caught:
        parse_cluster(path)
    assert time.process_time() - start < 1.0
    assert str(caught.value).isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_bytes_are_a_cluster_or_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster(_write(tmp_path, data))
    assert str(caught.value).isprintable()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "host_memory": st.integers(1, 10**6).map(lambda size: (f"{size} GiB", "host_memory_bytes", size * 2**30)),
            "nvme": st.integers(0, 10**6).map(lambda size: (f"{size} GB", "nvme_bytes", size * 1e9)),
            "nic_bandwidth": st.integers(1, 10**4).map(lambda rate: (f"{rate} Gb/s", "nic_bytes_per_second", rate * 1.25e8)),
            "link_bandwidth": st.integers(1, 10**4).map(lambda rate: (f"{rate} GB/s", "link_bytes_per_second", rate * 1e9)),
            "pcie_bandwidth": st.integers(1, 10**3).map(lambda rate: (f"{rate} GB/s", "pcie_bytes_per_second", rate * 1e9)),
            "price_per_hour": st.integers(0, 10**3).map(lambda usd: (f"{usd} USD/h", "price_usd_per_hour", float(usd))),
        },
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_overridden_facts_read_back(tmp_path: Path, facts: dict[str, tuple[str, str, float]]) -> None:
    lines = "".join(f'{key} = "{text}"\n' for key, (text, _, _) in facts.items())
    (pool,) = parse_cluster(_write(tmp_path, f'gpu = "H100"\ncount = 16\n[node]\nbase = "dgx-h100"\n{lines}')).pools
    for _, field, value in facts.values():
        assert getattr(pool.node, field) == value
    assert pool.inter_node_bytes_per_second == pool.node.all_nics_bytes_per_second / 8
