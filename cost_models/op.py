"""Op: one row of a block, per rank and per micro-batch. Blocks make ops; memory and throughput read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cost_models.numeric import Num

Kind = Literal["gemm", "grouped_gemm", "attention", "memory", "loss"]
Group = Literal["tp", "cp", "ep", "etp"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
Drop = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts", "layer"]
ParamKind = Literal["embedding", "linear", "norm", "expert", "router", "head"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Parameters of an op that one rank holds before any ZeRO division."""

    count: Num
    """Elements per rank, after tp / ep / etp division."""
    kind: ParamKind
    shared: bool = False
    """True for `expert` parameters' siblings that are replicated over tp (norms, router): gradients need a tp all-reduce under SP."""
    adapter: Num = 0.0
    """Trainable LoRA elements beside it (0 where the op is not a target)."""
    quantizable: bool = False
    """A linear weight that QLoRA stores in 4 bits."""
    largest: Num = 0.0
    """Elements of the largest single matrix (for temporaries); 0: `count`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A tensor kept for backward."""

    name: str
    bytes: Num
    """Per rank and micro-batch."""
    modules: tuple[Drop, ...] = ()
    """Selective recompute modules that drop it (every saved tensor of a layer falls under full recompute)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comm:
    """A collective that the op's forward runs (and whose mirror its backward runs)."""

    kind: Collective
    backward: Collective | None
    """What backward runs instead; None: nothing."""
    group: Group
    bytes: Num
    """Size of the whole (unsharded) message: what an all-gather yields, the full input of a reduce-scatter, all-reduce or all-to-all."""
    overlappable: bool = False
    """Independent of the kernels beside it (ring attention's next block, the second gather for a weight gradient)."""
    forward_times: float = 1.0
    """How often forward runs `kind`; 0 for a collective that backward alone needs."""
    behind_weights: bool = False
    """What backward runs does not wait for the op's weight gradient, which may run beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm:
    """Matrix product of an op: (m × k) · (k × n), `count` times (experts: groups)."""

    m: Num
    n: Num
    k: Num
    count: Num = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCore:
    """Scaled dot-product attention of one rank."""

    batch: Num
    heads: Num
    q_len: Num
    kv_len: Num
    """Keys each query could see before masking (window or sequence)."""
    qk_dim: float
    v_dim: float
    kv_heads: Num = 1.0
    causal_fraction: Num = 0.5
    """Part of the score matrix that the mask leaves (0.5 for causal, window-dependent for sliding)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One row of a block: what it holds, computes, moves, saves and sends, per rank and micro-batch."""

    name: str
    """Dotted, from the block down: ``attention.qkv``."""
    kind: Kind
    params: tuple[Params, ...] = ()
    gemm: tuple[Gemm, ...] = ()
    attention: AttentionCore | None = None
    bytes_moved: Num = 0.0
    """HBM traffic of the forward of memory-bound work (backward moves `backward_bytes_moved`)."""
    backward_bytes_moved: Num = 0.0
    kernels: float = 1.0
    """Kernels launched in forward (host and launch cost)."""
    saved: tuple[Saved, ...] = ()
    comm: tuple[Comm, ...] = ()
    modules: tuple[Drop, ...] = ()
    """Selective recompute modules that run this op's forward again."""
    source: str = ""
    tokens_imbalance: bool = field(default=False)
    """True where the busiest rank's share depends on routing."""
