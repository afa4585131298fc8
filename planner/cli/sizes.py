"""What a bare size such as `30b` stands for, as the catalogue's table has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.schema import BareSizeRecord


def bare_size(name: str | None) -> BareSizeRecord | None:
    """Return what a bare size stands for; None where the name is no bare size."""
    from cost_models.catalog_names import GENERIC
    from cost_models.hub.files import read_toml
    from planner.schema import BareSizeRecord

    sizes = read_toml(GENERIC)["sizes"]
    size = (name or "").strip().lower()
    row = sizes.get(size) if isinstance(sizes, dict) else None
    return None if row is None else BareSizeRecord(size=size, id=row["pick"], could_mean=row["alternatives"], why=row["why"])


def could_mean(name: str | None) -> list[str]:
    """Return what else a bare size could stand for; empty where the name is no bare size."""
    found = bare_size(name)
    return [] if found is None else found.could_mean
