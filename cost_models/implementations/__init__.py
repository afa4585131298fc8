"""Implementations: what each module's code keeps for backward, tensor by tensor. One file each, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from cost_models.op import Saved

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.dims import Dims
    from cost_models.layout import Choices
    from cost_models.training import Training

Kept = dict[str, tuple[Saved, ...]]
"""Op name within its block (norm, qkv, rotary, core, out, up, …) -> tensors kept, per rank and micro-batch."""


class ImplementationCode(Protocol):
    """What a file of this folder defines."""

    def attention(self, architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept: ...
    def mla(self, architecture: Architecture, training: Training, d: Dims, choices: Choices, *, sliding: bool) -> Kept: ...
    def mlp(self, architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept: ...
    def moe(self, architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept: ...
    def embedding(self, architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept: ...
    def head(self, architecture: Architecture, training: Training, d: Dims, choices: Choices) -> Kept: ...


def implementation(name: str) -> ImplementationCode:
    """Return the implementation `name` (file `name` with `_` for `-`)."""
    return cast("ImplementationCode", import_module(f"cost_models.implementations.{name.replace('-', '_')}"))
