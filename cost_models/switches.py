"""Switches of the software stack: what a user, a request file or a measured run may set apart from framework, date and compilation.

They travel in `Training.extra`. What is not set follows the framework and its date (cost_models.stack, cost_models.throughput.software).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

ON_OFF = ("yes", "no")
GRAPHS = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
"""Modules whose kernels Megatron captures (megatron/core/transformer/transformer_config.py, cuda_graph_scope)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One named switch."""

    sentence: str
    values: tuple[str, ...] = ()
    """What it may be; empty: a positive number."""
    several: bool = False
    """Values may be joined by commas."""


SWITCHES: dict[str, Switch] = {
    "class": Switch(
        sentence="whose host time and element-wise traffic apply",
        values=("megatron_local", "megatron_te", "megatron_deepspeed", "compiled", "xla", "eager", "hf"),
    ),
    "attention_backend": Switch(
        sentence="generation of the attention kernel, for time; flash3 also stands for cuDNN on Hopper and later",
        values=("eager", "triton", "flash2", "flash3"),
    ),
    "attention_kernel": Switch(
        sentence="attention as torch calls it, for what is saved for backward; for time where attention_backend is not given",
        values=("eager", "sdpa", "flash2", "mem_eff"),
    ),
    "cuda_graphs": Switch(
        sentence="full iteration, whole layers, or the modules that are captured; host time falls with attn and moe_router",
        values=("full", "layers", *GRAPHS),
        several=True,
    ),
    "overlap_all": Switch(
        sentence="no: no traffic hides behind compute but that of ring attention and the second gather of sequence parallelism",
        values=("no",),
    ),
    "overlap_grad_reduce": Switch(sentence="gradient reduction behind backward", values=ON_OFF),
    "overlap_param_gather": Switch(sentence="parameter gather of the distributed optimizer behind forward", values=ON_OFF),
    "overlap_tp": Switch(sentence="tensor parallel collectives behind GEMMs", values=ON_OFF),
    "overlap_p2p": Switch(sentence="pipeline sends of interleaved schedules beside compute", values=ON_OFF),
    "async_tp": Switch(sentence="torchtitan's asynchronous tensor parallelism", values=ON_OFF),
    "grouped_gemm": Switch(sentence="how many products of the experts are launched", values=("one", "each", "fp8", "loop")),
    "moe_a2a_overlap": Switch(sentence="expert all-to-all behind other work", values=ON_OFF),
    "moe_dispatcher": Switch(
        sentence="deepep, hybridep and flex send a token once to each server, the others once for each expert",
        values=("alltoall", "allgather", "deepep", "hybridep", "flex"),
    ),
    "capacity_factor": Switch(sentence="experts drop tokens beyond this multiple of the even share, so their load is even"),
    "capacity_padded": Switch(sentence="they are padded to it: shapes are fixed, and the host waits for no router", values=("yes",)),
    "recompute_policy": Switch(
        sentence="which operators selective recompute keeps: torchtitan's `op`, Paxml's names",
        values=("op", "SAVE_DOT_ONLY", "SAVE_DOT_WITH_NO_BATCH_DIM", "save_qkv_proj"),
    ),
    "fp8_recipe": Switch(sentence="how fp8 operands are scaled", values=("delayed", "current", "blockwise", "mxfp8", "nvfp4")),
    "fp8_param_gather": Switch(sentence="Megatron keeps weights in fp8 and gathers them so", values=ON_OFF),
    "float8_gather": Switch(sentence="FSDP gathers weights in fp8", values=ON_OFF),
    "norm_kernel": Switch(sentence="one kernel for a norm where the code base has several", values=("fused",)),
    "fused_qkv": Switch(sentence="q, k and v are one matrix, with one adapter", values=("yes",)),
    "rope_fusion": Switch(sentence="one kernel for the rotary embedding", values=ON_OFF),
    "swiglu_kernels": Switch(sentence="kernels of a gated activation", values=("single", "fused")),
    "reduce_dtype": Switch(sentence="gradients travel in the compute type (FSDP's MixedPrecision)", values=("16bit",)),
    "fsdp_version": Switch(sentence="2: fully_shard, which prefetches on its own stream", values=("1", "2")),
    "gradient_accumulation_fusion": Switch(sentence="Megatron adds weight gradients inside their products", values=ON_OFF),
    "optimizer_in_backward": Switch(sentence="each gradient is applied and freed as it is made (torchtune)", values=ON_OFF),
    "optimizer_kernel": Switch(sentence="foreach copies what it updates, fused does not", values=("foreach", "fused", "forloop")),
    "document_tokens": Switch(sentence="mean length of the documents packed into a sequence; attention does not cross them"),
}
"""Name -> switch, of those that a user may set."""


def switch_problems(given: Mapping[str, str]) -> list[str]:
    """Return a sentence for each unknown switch, with the nearest names, and for each value that a switch cannot have."""
    said = []
    for name, value in given.items():
        switch = SWITCHES.get(name)
        if switch is None:
            near = difflib.get_close_matches(name, SWITCHES, n=3, cutoff=0.5) or list(SWITCHES)
            said.append(f"stack {name}={value}: no switch is called {name}; nearest: {', '.join(near)}")
        elif not switch.values:
            if not _positive(value):
                said.append(f"stack {name}={value}: {name} is a number above 0 ({switch.sentence})")
        elif not set(value.split(",") if switch.several else (value,)) <= set(switch.values):
            each = "; give each switch a --stack of its own" if "=" in value else ""
            said.append(f"stack {name}={value}: {name} is {'some' if switch.several else 'one'} of {', '.join(switch.values)}{each}")
    return said


def _positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < float("inf")
    except ValueError:
        return False
