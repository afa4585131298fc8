"""The JSON of machines: accelerators and servers of the catalogue."""

from __future__ import annotations

from planner.record import Record


class GpuRecord(Record):
    """An accelerator; None: no source gives it."""

    id: str
    name: str
    aliases: list[str]
    vendor: str
    capacity_bytes: float
    """What a process can really use."""
    capacity_assumed: bool
    nominal_memory_bytes: float
    memory_bandwidth_bytes_per_second: float
    peak_flop_per_second: dict[str, float]
    """Dense, by type."""
    link: str
    link_bytes_per_second: float | None
    pcie_bytes_per_second: float | None
    power_watts: float | None
    default_node: str | None
    source: str


class NodeRecord(Record):
    """A server; None: no source gives it."""

    id: str
    name: str
    aliases: list[str]
    gpu: str
    gpus_per_node: int
    link: str
    link_bytes_per_second: float | None
    network_bytes_per_second: float | None
    """All NICs together, one direction."""
    host_memory_bytes: float | None
    nvme_bytes: float | None
    price_usd_per_hour: float | None
    source: str
