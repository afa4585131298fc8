"""JSON of one plan: model, training, hardware and layout with their memory, time and verdict."""

from __future__ import annotations

from typing import Literal

from planner.record import Record


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
    software_date: str | None = None
    """Era of the software; null: today's."""
    compile: bool | None = None
    """Whether torch.compile runs the layers; null: as the framework does by default."""
    stack: dict[str, str] = {}
    """Switches of the software that were set."""


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
    rank_order: str
    """Order in which ranks are numbered, neighbours first: `tp-cp-ep-dp-pp`, or `tp-cp-ep-pp-dp`."""
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
    """Kept free for the prediction's error (--confidence) or as asked (--margin): a plan fits when its device peak is at most capacity
    less this."""
    peak_allocated_bytes: float
    """torch.cuda.max_memory_allocated."""
    peak_reserved_bytes: float
    """torch.cuda.max_memory_reserved."""
    peak_device_bytes: float
    """What nvidia-smi shows."""
    confidence: float | None
    """Probability of fit from which a plan fits; null: --margin was given instead."""
    interval_80_bytes: tuple[float, float]
    """Where the device peak lies with 80 % probability, from the errors of measured runs."""
    fit_probability: float
    """That the card holds what is needed (an allocator that runs short gives back its cache, so less than the device peak can do);
    0 where the server cannot hold what is offloaded."""
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
    interval_80_seconds: tuple[float, float]
    """Where the step time lies with 80 % probability, from the errors of measured runs of the same class."""
    run_class: Literal["tuned", "user", "moe", "lora", "unknown"]
    """Whose errors those are: dense pretraining on a tuned stack, dense on a user's own, mixture of experts, adapters; unknown: none
    was measured, so the interval only reaches from a well-tuned stack to a slow one."""
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
    """`fits` from the asked confidence (95 %), `no` where fitting is less likely than not, `tight` between."""
    memory: MemoryRecord
    time: TimeRecord
    frameworks: list[str]
    """Frameworks whose rules the plan keeps."""
    warnings: list[str]
