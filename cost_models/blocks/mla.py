"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.blocks.attention import core
from cost_models.blocks.linear import bias, enter, leave, lora_gemms, weight
from cost_models.blocks.norm import norm
from cost_models.op import Gemm, Op, Params, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture, Mla
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training

SOURCE = "DeepSeek-V2 (arXiv 2405.04434), section 2.1; Megatron-LM core/transformer/multi_latent_attention.py"


def mla(
    architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool, saved: dict[str, tuple[Saved, ...]]
) -> list[Op]:
    """Return norm, down- and up-projections, core and output of one layer. The down-projections are whole on every tp rank."""
    m = architecture.mla
    if m is None:
        raise ValueError(f"{architecture.id} has no multi-head latent attention")
    h = d.hidden
    out_in = d.heads * d.v_dim
    return [
        norm(architecture, d, name="attention.norm", count=1.0, saved=saved.get("norm", ())),
        _down(training, d, m, saved.get("qkv_down", ())),
        _up(training, d, choices, m, saved.get("qkv_up", ())),
        core(architecture, d, sliding=sliding, saved=saved.get("core", ())),
        Op(
            name="attention.out",
            kind="gemm",
            params=(weight(training, "o", out_in, h), *((bias(h),) if architecture.attn_out_bias else ())),
            gemm=(Gemm(m=d.tokens, n=h, k=out_in), *lora_gemms(training, "o", d.tokens, out_in, h)),
            saved=saved.get("out", ()),
            comm=leave(d, choices, h),
            source=SOURCE,
        ),
    ]


def _down(training: Training, d: Dims, m: Mla, saved: tuple[Saved, ...]) -> Op:
    """Down-projections of q (where it is compressed) and kv, with their norms; run on the sequence-parallel share of the tokens."""
    h, kv = d.hidden, float(m.kv_lora_rank + m.qk_rope_head_dim)
    params = [weight(training, "kv_a", h, kv), Params(count=float(m.kv_lora_rank), kind="norm", shared=True)]
    width = kv
    if m.q_lora_rank is not None:
        params += [weight(training, "q_a", h, float(m.q_lora_rank)), Params(count=float(m.q_lora_rank), kind="norm", shared=True)]
        width += float(m.q_lora_rank)
    return Op(
        name="attention.qkv_down",
        kind="gemm",
        params=tuple(params),
        gemm=(Gemm(m=d.sp_tokens, n=width, k=h),),
        bytes_moved=4.0 * d.sp_tokens * width * d.act_bytes,
        backward_bytes_moved=6.0 * d.sp_tokens * width * d.act_bytes,
        kernels=4.0,
        saved=saved,
        source=SOURCE,
    )


def _up(training: Training, d: Dims, choices: Choices, m: Mla, saved: tuple[Saved, ...]) -> Op:
    """Up-projections to the heads of this rank, with rotary part; their latent inputs are gathered over the sequence."""
    q_out = d.heads * d.qk_dim
    kv_out = d.heads * float(m.qk_nope_head_dim + m.v_head_dim)
    q_in = d.hidden if m.q_lora_rank is None else float(m.q_lora_rank)
    latent = float(m.kv_lora_rank + m.qk_rope_head_dim)
    rotary = d.tokens * d.heads * (2.0 * d.qk_dim) * d.act_bytes
    return Op(
        name="attention.qkv_up",
        kind="gemm",
        params=(weight(training, "q_b", q_in, q_out), weight(training, "kv_b", float(m.kv_lora_rank), kv_out)),
        gemm=(Gemm(m=d.tokens, n=q_out, k=q_in), Gemm(m=d.tokens, n=kv_out, k=float(m.kv_lora_rank))),
        bytes_moved=2.0 * rotary,
        backward_bytes_moved=2.0 * rotary,
        kernels=4.0,
        saved=saved,
        comm=enter(d, choices, q_in + latent),
        modules=("mla_up_proj",),
        source=SOURCE,
    )
