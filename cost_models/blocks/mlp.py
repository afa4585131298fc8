"""Dense feed-forward block of one rank, gated (SwiGLU, GeGLU) or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.blocks.linear import bias, enter, joint_lora_gemms, leave, lora_gemms, weight
from cost_models.blocks.norm import norm
from cost_models.op import Drop, Gemm, Op, Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.numeric import Num
    from cost_models.training import Training

SOURCE = "Shazeer 2020 (arXiv 2002.05202) for gated units; Megatron-LM core/transformer/mlp.py"


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, saved: dict[str, tuple[Saved, ...]]) -> list[Op]:
    """Return norm, up, activation and down of one dense layer, per rank and micro-batch."""
    norms = float(architecture.norms_per_layer) - (1.0 if architecture.norms_per_layer < 4 else 2.0)
    first = norm(architecture, d, name="mlp.norm", count=norms, saved=saved.get("norm", ()), weights=norms > 0)
    return [first, *feed_forward(architecture, training, d, choices, name="mlp", width=d.ffn, saved=saved, modules=("mlp",))]


def feed_forward(
    architecture: Architecture,
    training: Training,
    d: Dims,
    choices: Choices,
    *,
    name: str,
    width: Num,
    saved: dict[str, tuple[Saved, ...]],
    modules: tuple[Drop, ...],
) -> list[Op]:
    """Return up, activation and down of an MLP of `width` per rank (the dense one, or a shared expert)."""
    h = d.hidden
    gates = 2.0 if architecture.gated_mlp else 1.0
    ups = ("gate", "up") if architecture.gated_mlp else ("up",)
    biased = architecture.mlp_bias
    return [
        Op(
            name=f"{name}.up",
            kind="gemm",
            params=(*(weight(training, u, h, width) for u in ups), *((bias(gates * width),) if biased else ())),
            gemm=(Gemm(m=d.tokens, n=gates * width, k=h), *joint_lora_gemms(training, tuple((u, width) for u in ups), d.tokens, h)),
            saved=saved.get("up", ()),
            comm=enter(d, choices, h),
            modules=modules,
            source=SOURCE,
        ),
        Op(
            name=f"{name}.activation",
            kind="memory",
            bytes_moved=d.tokens * width * (gates + 1.0) * d.act_bytes,
            backward_bytes_moved=d.tokens * width * (2.0 * gates + 1.0) * d.act_bytes,
            saved=saved.get("activation", ()),
            modules=modules,
            source="reads the pre-activations and writes the product; backward reads them and the gradient and writes both",
        ),
        Op(
            name=f"{name}.down",
            kind="gemm",
            params=(weight(training, "down", width, h), *((bias(h),) if biased else ())),
            gemm=(Gemm(m=d.tokens, n=h, k=width), *lora_gemms(training, "down", d.tokens, width, h)),
            saved=saved.get("down", ()),
            comm=leave(d, choices, h),
            modules=modules,
            source=SOURCE,
        ),
    ]
