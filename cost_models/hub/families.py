"""The families that planner reads from a Hub config.json, as families.toml has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cost_models.architecture import Shape
from cost_models.hub.files import read_toml


class Switch(Shape):
    """A boolean key: its class default and the fields of Architecture that it sets."""

    default: bool
    sets: tuple[str, ...]


class Window(Shape):
    """How a class uses a sliding window."""

    default: int | None = None
    """Width where the file has no such key."""
    every: int = 0
    """Every n-th layer attends to all; 0: every layer slides."""
    switched: bool = False
    """Only with `use_sliding_window` true."""
    key: str = "sliding_window"
    full_first: int | None = None
    """Class default of `max_window_layers`: layers before it attend to all; None: the class has no such key."""


class Family(Shape):
    """One family: names, fixed facts, class defaults."""

    name: str
    """`Architecture.family`."""
    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    facts: Mapping[str, bool | int | str] = {}
    tied: bool = False
    activation: str = "silu"
    switches: Mapping[str, Switch] = {}
    kv_heads: int | None = None
    """Class default; None: as many as heads."""
    head_dim: int | None = None
    """Class default; None: hidden / heads."""
    sizes: Mapping[str, int] = {}
    """Class defaults of sizes that real files of this family leave out."""
    ffn_factor: int | None = None
    """MLP width = this × hidden where the file gives none."""
    positions_extra: int = 0
    """Rows of the learned position table beyond the stated positions."""
    window: Window | None = None
    quirks: tuple[str, ...] = ()


class Wrapper(Shape):
    """A multimodal model around a text model."""

    model_type: str
    classes: tuple[str, ...]
    text: str
    """model_type of its `text_config` where that does not say one."""


class Table(Shape):
    """The whole file, with look-ups by model_type and by class."""

    family: tuple[Family, ...]
    wrapper: tuple[Wrapper, ...]

    def by_type(self, model_type: str) -> Family | None:
        """Return the family of a `model_type`."""
        return next((one for one in self.family if model_type in one.model_types), None)

    def by_class(self, classes: tuple[str, ...]) -> Family | None:
        """Return the family of the first known class."""
        return next((one for name in classes for one in self.family if name in one.classes), None)

    def wrapped(self, model_type: str, classes: tuple[str, ...]) -> Wrapper | None:
        """Return the multimodal wrapper of a `model_type`, or of the first known class."""
        by_type = next((one for one in self.wrapper if one.model_type == model_type), None)
        return by_type or next((one for name in classes for one in self.wrapper if name in one.classes), None)

    def names(self) -> tuple[str, ...]:
        """Return the model types that are read, sorted."""
        return tuple(sorted({one.model_types[0] for one in self.family} | {one.model_type for one in self.wrapper}))


@cache
def table() -> Table:
    """Return the table of families."""
    return Table.model_validate(read_toml(Path(__file__).with_name("families.toml")))
