"""Mixture-of-experts block of one rank: router, dispatch, routed experts, combine, shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.blocks.linear import bias, weight
from cost_models.blocks.mlp import feed_forward
from cost_models.blocks.norm import norm
from cost_models.op import Comm, Gemm, Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture, Moe
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.numeric import Num
    from cost_models.training import Training

SOURCE = "Megatron-LM core/transformer/moe (router.py, token_dispatcher.py, experts.py); parallel folding: arXiv 2504.14960"


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, saved: dict[str, tuple[Saved, ...]]) -> list[Op]:
    """Return the ops of one MoE layer, per rank and micro-batch."""
    m = architecture.moe
    if m is None:
        raise ValueError(f"{architecture.id} has no experts")
    norms = float(architecture.norms_per_layer) - (1.0 if architecture.norms_per_layer < 4 else 2.0)
    ops = [
        norm(architecture, d, name="moe.norm", count=norms, saved=saved.get("norm", ()), weights=norms > 0),
        _router(d, m, saved.get("router", ())),
        _exchange("moe.dispatch", d, m, saved.get("dispatch", ()), "all_gather", "reduce_scatter"),
        *_experts(architecture, training, d, m, saved),
        _exchange("moe.combine", d, m, saved.get("combine", ()), "reduce_scatter", "all_gather"),
    ]
    if m.shared_ffn_hidden:
        shared = {key.removeprefix("shared_"): value for key, value in saved.items() if key.startswith("shared_")}
        ops += feed_forward(
            architecture, training, d, choices, name="moe.shared", width=d.shared_ffn, saved=shared, modules=("shared_experts", "moe")
        )
        if m.shared_gate:
            ops.append(Op(name="moe.shared.gate", kind="gemm", params=(weight(training, "shared_gate", d.hidden, 1.0),), source=SOURCE))
    return ops


def _router(d: Dims, m: Moe, saved: tuple[Saved, ...]) -> Op:
    """The router: a small GEMM in fp32 and a softmax or sigmoid over the experts, on the sequence-parallel share of the tokens."""
    experts = float(m.num_experts)
    count = d.hidden * experts + (experts if m.router_bias else 0.0)
    return Op(
        name="moe.router",
        kind="gemm",
        params=(Params(count=count, kind="router", shared=True),),
        gemm=(Gemm(m=d.sp_tokens, n=experts, k=d.hidden),),
        bytes_moved=d.sp_tokens * experts * 16.0,
        backward_bytes_moved=d.sp_tokens * experts * 16.0,
        kernels=8.0,
        saved=saved,
        modules=("moe",),
        source=SOURCE,
    )


def _exchange(name: str, d: Dims, m: Moe, saved: tuple[Saved, ...], over_etp: str, back: str) -> Op:
    """Permute token copies and exchange them over the expert group (all-to-all over ep, gather or scatter over etp)."""
    sent = d.tokens / d.tp * m.topk * d.hidden * d.act_bytes
    gathered = d.routed_tokens * d.hidden * d.act_bytes
    etp = (
        Comm(kind="all_gather", backward="reduce_scatter", group="etp", bytes=gathered)
        if over_etp == "all_gather"
        else Comm(kind="reduce_scatter", backward="all_gather", group="etp", bytes=gathered)
    )
    return Op(
        name=name,
        kind="memory",
        bytes_moved=2.0 * sent + 2.0 * gathered,
        backward_bytes_moved=2.0 * sent + 2.0 * gathered,
        kernels=4.0,
        saved=saved,
        comm=(Comm(kind="all_to_all", backward="all_to_all", group="ep", bytes=sent), etp),
        modules=("moe",),
        source=SOURCE,
        tokens_imbalance=True,
    )


def _experts(architecture: Architecture, training: Training, d: Dims, m: Moe, saved: dict[str, tuple[Saved, ...]]) -> list[Op]:
    """Grouped GEMMs over the local experts; each expert gets an equal share of the routed tokens."""
    gates = 2.0 if architecture.gated_mlp else 1.0
    ups = ("gate", "up") if architecture.gated_mlp else ("up",)
    rows: Num = d.routed_tokens / d.local_experts
    h, width, n = d.hidden, d.expert_ffn, d.local_experts
    up_bias = (bias(n * gates * width, kind="expert"),) if m.expert_bias else ()
    down_bias = (bias(n * h, kind="expert"),) if m.expert_bias else ()
    return [
        Op(
            name="moe.up",
            kind="grouped_gemm",
            params=(*(weight(training, u, h, width, n, "expert") for u in ups), *up_bias),
            gemm=(Gemm(m=rows, n=gates * width, k=h, count=n),),
            saved=saved.get("up", ()),
            modules=("moe",),
            source=SOURCE,
            tokens_imbalance=True,
        ),
        Op(
            name="moe.activation",
            kind="memory",
            bytes_moved=d.routed_tokens * width * (gates + 1.0) * d.act_bytes,
            backward_bytes_moved=d.routed_tokens * width * (2.0 * gates + 1.0) * d.act_bytes,
            saved=saved.get("activation", ()),
            modules=("moe", "moe_act"),
            source=SOURCE,
            tokens_imbalance=True,
        ),
        Op(
            name="moe.down",
            kind="grouped_gemm",
            params=(weight(training, "down", width, h, n, "expert"), *down_bias),
            gemm=(Gemm(m=rows, n=h, k=width, count=n),),
            saved=saved.get("down", ()),
            modules=("moe",),
            source=SOURCE,
            tokens_imbalance=True,
        ),
    ]
