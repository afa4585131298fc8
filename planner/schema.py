"""The JSON that every command prints with --json: these models are its schema (`planner schema`, docs/schema.md).

Base units throughout: bytes, seconds, FLOP, tokens; memory per GPU. The same request gives the same bytes; there are no wall times.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of all JSON objects: fields are documented where they are declared; NaN and infinity never occur."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="null")


class ModelRecord(Record):
    """A language model and its exact size."""

    id: str
    """Catalogue id (`owner/name`), or the name of the file or description it was read from."""
    aliases: list[str] = []
    family: str = ""
    parameters: int
    """The text model: a tied matrix once, without multi-token-prediction modules and vision tower."""
    active_parameters: int
    """With only the routed experts that a token visits."""
    mtp_parameters: int = 0
    """Multi-token-prediction modules (trained with --mtp)."""
    vision_parameters: int = 0
    """Vision tower; not planned."""
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int | None = None
    topk: int | None = None
    max_positions: int | None = None
    source: str = ""


class TrainingRecord(Record):
    """What is trained and how; keys are the flags."""

    method: str
    seq: int
    """Tokens of one sample."""
    global_batch: int
    """Samples per optimizer step."""
    precision: str
    optimizer: str
    attention: str
    framework: str
    regime: str
    """State regime and its bytes per parameter."""
    lora_rank: int | None = None
    """Only with method lora or qlora."""
    mtp: bool = False


class PoolRecord(Record):
    """Equal GPUs in equal servers."""

    gpu: str
    node: str
    count: int
    gpus_per_node: int
    nodes: int


class LayoutRecord(Record):
    """A layout; keys are the flags. tp × pp × cp × dp = GPUs."""

    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    dp: int
    zero: int
    shard_group: int
    """Ranks over which ZeRO shards; 0: all data-parallel ranks."""
    sequence_parallel: bool
    schedule: str
    recompute: str
    recompute_layers: int
    """Layers of a stage that `full` recomputes; -1: all of them."""
    recompute_modules: list[str]
    """What `selective` recomputes."""
    offload: str
    offload_target: str
    offload_fraction: float
    activation_offload: float
    """Part of the layers whose saved activations are moved to the host."""
    micro_batch: int
    accumulation: int
    """Micro-batches per step and replica: global batch = micro_batch × accumulation × dp."""
    stage_layers: list[int] | None = None
    """Layers of each stage where they are not split evenly."""
    stage_recompute: list[int] | None = None
    """Recomputed layers of each stage where they differ from recompute_layers."""


class BucketsRecord(Record):
    """Bytes of one stage by bucket, at its highest phase; they sum to the stage's device_bytes."""

    weights_bytes: float
    """The frozen or quantised base included."""
    gradients_bytes: float
    optimizer_bytes: float
    """Master weights and moments."""
    activations_bytes: float
    logits_bytes: float
    kv_cache_bytes: float
    buffers_bytes: float
    """ZeRO-3 live parameters, reduce and gather buckets."""
    overhead_bytes: float
    """What comes on top of allocated: cached and fragmented memory, CUDA context, NCCL."""


class StageRecord(Record):
    """Memory of the ranks of one pipeline stage."""

    stage: int
    phase: str
    """The phase of a step at which this stage peaks: load, forward, backward or optimizer."""
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    buckets: BucketsRecord


class MemoryRecord(Record):
    """Memory of one GPU (of the stage that needs most) and of one server."""

    capacity_bytes: float
    """What a process can really use, or --free-memory."""
    margin_bytes: float
    """Kept free: a plan fits when its device peak is at most capacity less margin."""
    peak_allocated_bytes: float
    """torch.cuda.max_memory_allocated."""
    peak_reserved_bytes: float
    """torch.cuda.max_memory_reserved."""
    peak_device_bytes: float
    """What nvidia-smi shows."""
    peak_stage: int
    """Stage with the highest device peak, from 0."""
    stages: list[StageRecord]
    host_bytes_per_node: float
    host_capacity_bytes: float | None
    """None: unknown, and not checked."""
    nvme_bytes_per_node: float


class TimeTermRecord(Record):
    """One named share of a step."""

    name: str
    seconds: float
    """Busy."""
    exposed_seconds: float
    """What lengthens the step; these sum to step_seconds."""
    source: str


class TimeRecord(Record):
    """One optimizer step."""

    step_seconds: float
    terms: list[TimeTermRecord]
    tokens_per_second_per_gpu: float
    mfu: float
    """Model FLOP utilisation: see mfu_definition."""
    hfu: float
    """As mfu, with the FLOP that recompute runs again."""
    model_flop: float
    """Of a step, over all GPUs."""
    hardware_flop: float
    mfu_definition: str
    limited_by: str
    """What takes the most time beyond perfect compute."""


class PlanRecord(Record):
    """A layout with its memory, its time and the verdict."""

    model: ModelRecord
    training: TrainingRecord
    hardware: PoolRecord
    layout: LayoutRecord
    fits: bool
    verdict: Literal["fits", "tight", "no"]
    """`tight`: within capacity, but inside the safety margin."""
    memory: MemoryRecord
    time: TimeRecord
    frameworks: list[str]
    """Frameworks whose rules the plan keeps."""
    warnings: list[str]


class SearchedRecord(Record):
    """How far the search looked."""

    layouts: int
    lawful: int
    feasible: int
    excluded: dict[str, int]
    """Rule id, or memory, host_memory, nvme -> layouts that it excluded."""
    proof: str
    """What the result proves."""


class NearMissRecord(Record):
    """A lawful layout that does not fit, and what it lacks."""

    missing_bytes: float
    """Over capacity less margin."""
    stage: int
    phase: str
    bucket: str
    """Largest bucket there."""
    bucket_bytes: float
    where: Literal["device", "host", "nvme"]
    plan: PlanRecord


class RemedyRecord(Record):
    """One change of the request that makes it feasible, verified by a search."""

    change: str
    flags: str
    """Flags that make the change."""
    plan: PlanRecord


class BrokenRecord(Record):
    """A law that a layout breaks."""

    rule: str
    message: str


class Document(Record):
    """Base of all documents."""

    schema_version: Literal[1] = 1
    command: str


class SearchDocument(Document):
    """`planner search --json`."""

    command: Literal["search"] = "search"
    status: Literal["found", "infeasible", "interrupted"]
    assumed: list[str]
    """What the request left open, and how it was read."""
    notes: list[str]
    searched: SearchedRecord
    plans: list[PlanRecord]
    """Best first: --top of them."""
    near_misses: list[NearMissRecord]
    remedies: list[RemedyRecord]


class EstimateDocument(PlanRecord, Document):
    """`planner estimate --json`: a plan, and what was assumed."""

    command: Literal["estimate"] = "estimate"
    status: Literal["found", "infeasible"]
    assumed: list[str]
    notes: list[str]
    near_misses: list[NearMissRecord]
    """Of this layout, where it does not fit."""


class BareSizeRecord(Record):
    """What a bare size such as `30b` stands for."""

    size: str
    id: str
    """The public architecture that is taken."""
    could_mean: list[str]
    """What else the name could mean."""
    why: str
    """Why that one is taken."""


class ModelsDocument(Document):
    """`planner models --json`."""

    command: Literal["models"] = "models"
    models: list[ModelRecord]
    bare_sizes: list[BareSizeRecord]


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


class HardwareDocument(Document):
    """`planner hardware --json`."""

    command: Literal["hardware"] = "hardware"
    gpus: list[GpuRecord]
    servers: list[NodeRecord]
