"""Every fact of the published tables is in the catalogue, in base units, and nothing blank was filled in."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hardware.catalog import gpu_names, load_gpu, load_node, node_names

if TYPE_CHECKING:
    from hardware.spec import Gpu, Node

PUBLISHED = Path(__file__).parents[1] / "published" / "hardware"
Row = dict[str, str]


def _rows(name: str) -> list[Row]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


GPUS = {row["id"]: row for row in _rows("gpus.csv")}
NODES = {row["id"]: row for row in _rows("nodes.csv")}


def _text(field: str) -> Callable[[Any], object]:
    return lambda record: getattr(record, field)


def _number(field: str, scale: float = 1.0) -> Callable[[Any], object]:
    """The record's figure in the table's unit; None where the record has none."""

    def read(record: Any) -> object:
        value = getattr(record, field)
        return None if value is None else value / scale

    return read


def _peak(precision: Any) -> Callable[[Any], object]:
    return lambda gpu: gpu.peak_flop_per_second[precision] / 1e12 if precision in gpu.peak_flop_per_second else None


GPU_COLUMNS: dict[str, Callable[[Any], object]] = {
    **{name: _text(name) for name in ("id", "vendor", "name", "arch", "source", "notes", "bf16_supported")},
    "compute_capability": lambda gpu: gpu.compute_target or gpu.compute_capability,
    "memory_gb": _number("nominal_memory_bytes", 2**30),
    "memory_usable_bytes": _number("driver_memory_bytes"),
    "memory_usable_note": _text("memory_note"),
    "torch_total_gib": _number("torch_memory_bytes", 2**30),
    "memory_bandwidth_gbs": _number("memory_bandwidth_bytes_per_second", 1e9),
    "measured_mem_bw_gbs": _text("measured_memory_bandwidth_note"),
    **{f"{precision}_tflops": _peak(precision) for precision in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")},
    "fp8_supported": _text("fp8_supported"),
    "tdp_w": _number("power_watts"),
    "intra_link": _text("link"),
    "link_unidir_gbs_per_gpu": _number("link_bytes_per_second", 1e9),
    "pcie_gen": _text("pcie_generation"),
    "pcie_unidir_gbs": _number("pcie_bytes_per_second", 1e9),
    "release_year": _number("release_year"),
    "typical_gpus_per_node": _number("gpus_per_node"),
    "approx_unit_price_usd": _number("price_usd"),
    "default_node": _text("default_node"),
}
NODE_COLUMNS: dict[str, Callable[[Any], object]] = {
    **{name: _text(name) for name in ("id", "name", "gpu", "price_basis", "price_date", "source", "notes")},
    "gpus_per_node": _number("gpus_per_node"),
    "nvlink_domain_size": lambda node: None if node.link_domain_assumed else node.link_domain_size,
    "gpu_link": _text("link"),
    "gpu_link_unidir_gbs": _number("link_bytes_per_second", 1e9),
    "nic_count": _number("nic_count"),
    "nic_gbps": _number("nic_bytes_per_second", 1e9 / 8),
    "nic_total_gbps": _number("all_nics_bytes_per_second", 1e9 / 8),
    "network_kind": _text("network"),
    "host_mem_gib": _number("host_memory_bytes", 2**30),
    "vcpus": _number("vcpus"),
    "local_nvme": _number("nvme_bytes"),
    "power_kw": _number("power_watts", 1e3),
    "price_usd_hour": _number("price_usd_per_hour"),
    "purchase_price_usd": _number("purchase_price_usd"),
}


def _same(cell: str, fact: object) -> bool:
    """True if a table's cell and a record's fact say the same; a blank cell and an absent fact do."""
    if cell == "":
        return fact is None or fact == "" or fact is False
    if isinstance(fact, bool):
        return cell == str(fact).lower()
    if isinstance(fact, (int, float)):
        return float(fact) == pytest.approx(float(cell), rel=1e-12)
    return cell == fact


def _compare(row: Row, record: Gpu | Node, columns: dict[str, Callable[[Any], object]]) -> list[str]:
    return [
        f"{name}: table {row[name]!r}, catalogue {read(record)!r}" for name, read in columns.items() if not _same(row[name], read(record))
    ]


def _nvme_bytes(text: str) -> str:
    """Bytes of "8x 3.84 TB" or "30 TB", by a reader of this test's own."""
    match = re.fullmatch(r"(?:(\d+)x )?([\d.]+) TB", text)
    return "" if match is None else str(int(match[1] or 1) * float(match[2]) * 1e12)


def test_all_columns_are_compared() -> None:
    assert set(GPU_COLUMNS) | {"aliases"} == set(next(iter(GPUS.values())))
    assert set(NODE_COLUMNS) | {"aliases"} == set(next(iter(NODES.values())))


def test_the_catalogue_holds_all_rows() -> None:
    assert (len(GPUS), len(NODES)) == (57, 55)
    assert set(GPUS) <= set(gpu_names())
    assert set(NODES) <= set(node_names())


@pytest.mark.parametrize("identity", GPUS)
def test_gpu_facts(identity: str) -> None:
    gpu = load_gpu(identity)
    assert _compare(GPUS[identity], gpu, GPU_COLUMNS) == []
    assert set(filter(None, GPUS[identity]["aliases"].split(";"))) <= set(gpu.aliases)


@pytest.mark.parametrize("identity", NODES)
def test_node_facts(identity: str) -> None:
    node = load_node(identity)
    row = {**NODES[identity], "local_nvme": _nvme_bytes(NODES[identity]["local_nvme"])}
    assert bool(row["local_nvme"]) == bool(NODES[identity]["local_nvme"])
    assert _compare(row, node, NODE_COLUMNS) == []
    assert set(filter(None, NODES[identity]["aliases"].split(";"))) <= set(node.aliases)


def test_measured_bandwidth_is_the_first_triad_of_the_sources_words() -> None:
    for identity in gpu_names():
        gpu = load_gpu(identity)
        measured = gpu.measured_memory_bandwidth_bytes_per_second
        triads = [float(a or b) for a, b in re.findall(r"(\d+) triad|triad (\d+)", gpu.measured_memory_bandwidth_note)]
        assert (measured is None) == (not triads)
        if measured is not None:
            assert measured == triads[0] * 1e9
            assert measured < gpu.memory_bandwidth_bytes_per_second


def test_facts_beside_the_tables_name_their_source() -> None:
    beside = {identity: node for identity in node_names() if (node := load_node(identity)).fact_sources}
    for identity in node_names():
        node = load_node(identity)
        extra = {
            key
            for key, value in (
                ("pcie_bandwidth", node.pcie_bytes_per_second),
                ("nvme_read_bandwidth", node.nvme_read_bytes_per_second),
                ("nvme_write_bandwidth", node.nvme_write_bytes_per_second),
            )
            if value is not None
        }
        assert extra == set(node.fact_sources), identity
    assert "dgx-2" in beside


def test_nominal_size_is_gib_for_every_card_with_a_driver_total() -> None:
    """The totals that drivers report lie just below the marketing figure read as GiB, and never above it."""
    ratios = [gpu.driver_memory_bytes / gpu.nominal_memory_bytes for gpu in map(load_gpu, gpu_names()) if gpu.driver_memory_bytes]
    assert len(ratios) >= 25
    assert min(ratios) > 0.92
    assert max(ratios) <= 1.0


def test_capacity_is_never_the_marketing_size() -> None:
    a100 = load_gpu("A100-80G")
    assert a100.usable_memory_bytes == 79.15 * 2**30
    assert load_gpu("t4").usable_memory_bytes == 0.988 * 15360 * 2**20
    for gpu in map(load_gpu, gpu_names()):
        assert gpu.usable_memory_bytes < gpu.nominal_memory_bytes
        assert gpu.capacity_assumed == (gpu.driver_memory_bytes is None and gpu.torch_memory_bytes is None)


def test_peaks_are_dense() -> None:
    """Where both are stated fp8 is at most about twice bf16 on one card; a sparse figure among dense ones would make it four times."""
    for gpu in map(load_gpu, gpu_names()):
        peaks = gpu.peak_flop_per_second
        if "fp8" in peaks and "bf16" in peaks:
            assert peaks["fp8"] <= 2.05 * peaks["bf16"], gpu.id
    assert load_gpu("h100").peak_flop_per_second["bf16"] == 989e12
