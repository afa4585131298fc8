"""The index of the model catalogue: one small file that start-up reads, made from architectures/*.toml.

`python -m cost_models.catalog_index` writes it anew; a test holds it against the files. A TOML file that the index does not know yet
is read as well, so that adding a model is adding one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from cost_models.architecture import Shape
from cost_models.hub.files import read_toml
from hardware.units import GIGA

FOLDER = Path(__file__).parent / "architectures"
INDEX = FOLDER / "index.json"


class Entry(Shape):
    """One model of the catalogue, as lists show it."""

    id: str
    aliases: tuple[str, ...]
    family: str
    layers: int
    hidden: int
    experts: int
    """0 for a dense model."""
    parameters: int | None
    """Exact; None where the file states none."""
    active_parameters: int | None
    """With only top-k of the routed experts."""
    active_without_token_embedding: int | None
    mtp_parameters: int
    vision_parameters: int
    published: float | None
    """The rounded public figure, in units."""
    published_active: float | None

    @property
    def file(self) -> Path:
        """The model's TOML file."""
        return FOLDER / f"{self.id.replace('/', '--')}.toml"


@cache
def entries() -> tuple[Entry, ...]:
    """Return all models, by id without regard to case."""
    known = TypeAdapter(tuple[Entry, ...]).validate_json(INDEX.read_bytes()) if INDEX.exists() else ()
    files = {entry.file.name for entry in known}
    fresh = [entry_of(path) for path in FOLDER.glob("*.toml") if path.name not in files]
    return tuple(sorted((*known, *fresh), key=_order))


def entry_of(path: Path) -> Entry:
    """Return the index entry of a catalogue file."""
    table = read_toml(path)
    facts, moe = table.get("facts"), table.get("moe")
    figures = facts if isinstance(facts, Mapping) else {}
    row = {
        **{key: table.get(key) for key in ("id", "aliases", "family", "layers", "hidden")},
        "experts": moe["num_experts"] if isinstance(moe, Mapping) else 0,
        "parameters": figures.get("exact_total"),
        "active_parameters": figures.get("exact_active"),
        "active_without_token_embedding": figures.get("exact_active_without_token_embedding"),
        "mtp_parameters": figures.get("mtp_extra_params", 0),
        "vision_parameters": table.get("vision_parameters", 0),
        "published": _units(figures.get("published_total_b")),
        "published_active": _units(figures.get("published_active_b")),
    }
    return Entry.model_validate(row)


def rebuilt() -> str:
    """Return the text of the index as the files have it."""
    rows = sorted((entry_of(path) for path in FOLDER.glob("*.toml")), key=_order)
    return "[\n" + ",\n".join(json.dumps(row.model_dump(mode="json"), ensure_ascii=False) for row in rows) + "\n]\n"


def _order(entry: Entry) -> str:
    return entry.id.lower()


def _units(billions: object) -> float | None:
    return float(round(billions * GIGA)) if isinstance(billions, (int, float)) else None


if __name__ == "__main__":
    INDEX.write_text(rebuilt(), encoding="utf-8")
