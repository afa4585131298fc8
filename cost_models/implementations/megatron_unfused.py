"""Plain torch modules in Megatron's layout ("local" transformer implementation, Korthikanti)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.implementations import Kept, megatron_parts

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training

FUSED = False


def attention(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Tensors of norm, projections and core."""
    return megatron_parts.attention(architecture, training, d, fused=FUSED)


def mla(architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept:
    """Tensors of latent attention."""
    return megatron_parts.mla(architecture, training, d, fused=FUSED)


def mlp(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Tensors of the dense MLP."""
    return megatron_parts.mlp(architecture, training, d, fused=FUSED)


def moe(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Tensors of the expert block."""
    return megatron_parts.moe(architecture, training, d, fused=FUSED)


def embedding(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Tensors of the look-up."""
    return megatron_parts.embedding(architecture, training, d)


def head(architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept:
    """Tensors of final norm, head and loss."""
    return megatron_parts.head(architecture, training, d, fused=FUSED)
