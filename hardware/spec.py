"""What a machine is: frozen records in base units (bytes, seconds, FLOP/s, bytes/s, one direction, per GPU).

Every record is validated by pydantic and refuses unknown keys. A fact that no source gives is ``None``:
whoever needs it says that it is unknown and skips the check, and never guesses.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DRIVER_TO_USABLE = 0.988
"""torch's total memory / the driver's total (hardware notes, section 7: A100 81050/81920 MiB, 3090 0.987, 4090 0.985)."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


class Spec(BaseModel):
    """Base of all hardware records: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(Spec):
    """One accelerator variant, as datasheets and measurements state it."""

    id: str
    name: str
    vendor: str
    arch: str
    """Generation (Ampere, Hopper, …): calibrations are kept per generation."""
    aliases: tuple[str, ...] = ()
    compute_capability: float | None = None
    compute_target: str = ""
    """The vendor's name of the instruction set where it is no number (gfx942)."""
    nominal_memory_bytes: float = Field(gt=0)
    """The marketing size; never a capacity."""
    driver_memory_bytes: float | None = None
    """nvidia-smi's or rocm-smi's total."""
    torch_memory_bytes: float | None = None
    """What torch.cuda.mem_get_info reports as total: what a process can use."""
    memory_note: str = ""
    """Where the two totals were read."""
    memory_bandwidth_bytes_per_second: float = Field(gt=0)
    measured_memory_bandwidth_bytes_per_second: float | None = None
    """The first measured triad rate."""
    measured_memory_bandwidth_note: str = ""
    """All measured rates (read, copy, scale, triad), GB/s, in the source's words."""
    peak_flop_per_second: dict[Precision, float]
    """Dense peak by type; a type that is absent is not supported or not known."""
    bf16_supported: bool = True
    fp8_supported: bool = False
    power_watts: float | None = None
    link: str = ""
    link_bytes_per_second: float | None = None
    """GPU-to-GPU link inside a server, per GPU, one direction."""
    pcie_generation: str = ""
    pcie_bytes_per_second: float | None = None
    release_year: int | None = None
    gpus_per_node: int | None = None
    price_usd: float | None = None
    default_node: str | None = None
    """Server that a bare GPU name stands for."""
    source: str = ""
    notes: str = ""

    @property
    def usable_memory_bytes(self) -> float:
        """Bytes that one process can really allocate: torch's total, else 0.988 of the driver's total.

        Where neither is published the driver's total is assumed to be 0.985 of the nominal GiB (see `capacity_assumed`).
        """
        if self.torch_memory_bytes is not None:
            return self.torch_memory_bytes
        if self.driver_memory_bytes is not None:
            return DRIVER_TO_USABLE * self.driver_memory_bytes
        return DRIVER_TO_USABLE * NOMINAL_TO_DRIVER * self.nominal_memory_bytes

    @property
    def capacity_assumed(self) -> bool:
        """True where no source gives torch's or the driver's total."""
        return self.torch_memory_bytes is None and self.driver_memory_bytes is None


NOMINAL_TO_DRIVER = 0.985
"""Driver's total / nominal GiB of the cards whose driver total is known, lower end; used only where none is published."""


class Node(Spec):
    """One server: how many GPUs, how they are joined, and what else it holds."""

    id: str
    name: str
    gpu: str
    """Id of the accelerator it holds."""
    gpus_per_node: int = Field(gt=0)
    link_domain_size: int = Field(gt=0)
    """GPUs that reach each other over the fast link (8 in an HGX box, 72 in an NVL72 rack, 1 on plain PCIe)."""
    link_domain_assumed: bool = False
    """True where no source gives the domain: then the whole server where a link rate is known, else 1."""
    link: str = ""
    link_bytes_per_second: float | None = None
    nic_count: int | None = None
    nic_bytes_per_second: float | None = None
    """One NIC, one direction."""
    network_bytes_per_second: float | None = None
    """All NICs of the server together, one direction, where only the sum is published."""
    network: str = ""
    host_memory_bytes: float | None = None
    vcpus: int | None = None
    nvme_bytes: float | None = None
    nvme_read_bytes_per_second: float | None = None
    nvme_write_bytes_per_second: float | None = None
    pcie_bytes_per_second: float | None = None
    """Host link of one GPU, one direction, with all GPUs busy; None: the GPU's own figure."""
    power_watts: float | None = None
    price_usd_per_hour: float | None = None
    price_basis: str = ""
    price_date: str = ""
    purchase_price_usd: float | None = None
    aliases: tuple[str, ...] = ()
    fact_sources: dict[str, str] = {}
    """Field -> source, for a fact that `source` does not cover."""
    source: str = ""
    notes: str = ""

    @property
    def all_nics_bytes_per_second(self) -> float | None:
        """All NICs of the server together, one direction; None: unknown."""
        if self.nic_count is not None and self.nic_bytes_per_second is not None:
            return self.nic_count * self.nic_bytes_per_second
        return self.network_bytes_per_second


class Pool(Spec):
    """Equal servers with equal GPUs: what one cost evaluation runs on."""

    gpu: Gpu
    node: Node
    """The server; for a bare GPU name without a default server, one made up from the GPU's own facts (and named in `assumed`)."""
    count: int = Field(gt=0)
    """GPUs in the pool."""
    gpus_per_node: int = Field(gt=0)
    """GPUs used in each server (equals node.gpus_per_node, or fewer when the pool is smaller than a server)."""
    inter_node_bytes_per_second: float | None = None
    """Network of one GPU, one direction: the server's NICs divided by its GPUs; None: unknown."""
    oversubscription: float = Field(default=1.0, ge=1.0)
    """Factor by which the fabric above the leaf switches is thinner than the NICs."""
    leaf_servers: int | None = Field(default=None, gt=0)
    """Servers that reach each other at the full rate of their NICs, under one leaf (or pod); None: one, so that all traffic between
    servers meets the oversubscription."""
    rails: bool = False
    """Each leaf joins the NICs of one index of its servers: traffic between indices goes over the fast link first, or above the leaf."""
    free_memory_bytes: float | None = Field(default=None, gt=0)
    """What is left of a shared card (`--free-memory`)."""

    @property
    def nodes(self) -> int:
        """Servers in the pool, the last one perhaps half full."""
        return -(-self.count // self.gpus_per_node)

    @property
    def capacity_bytes(self) -> float:
        """Bytes that one rank can use on the device."""
        usable = self.gpu.usable_memory_bytes
        return usable if self.free_memory_bytes is None else min(usable, self.free_memory_bytes)

    @property
    def link_bytes_per_second(self) -> float | None:
        """GPU-to-GPU rate inside the server, per GPU, one direction."""
        return self.node.link_bytes_per_second or self.gpu.link_bytes_per_second

    @property
    def host_link_bytes_per_second(self) -> float | None:
        """GPU-to-host rate, per GPU, one direction."""
        return self.node.pcie_bytes_per_second or self.gpu.pcie_bytes_per_second


class Cluster(Spec):
    """One or several pools, and what was assumed while reading the request."""

    name: str
    pools: tuple[Pool, ...] = Field(min_length=1)
    assumed: tuple[str, ...] = ()
    """Sentences: what the reader took where the request left it open."""
    warnings: tuple[str, ...] = ()
    """Sentences: facts that are unknown and the checks skipped for want of them."""
    between_pools_bytes_per_second: float | None = Field(default=None, gt=0)
    """All traffic between two pools together, one direction; None: the slower of their servers' networks."""
    between_pools_latency_seconds: float = Field(default=0.0, ge=0)
    """What a message between two pools takes beyond the latency of a network (regions far apart)."""

    @property
    def count(self) -> int:
        """GPUs in all pools."""
        return sum(pool.count for pool in self.pools)
