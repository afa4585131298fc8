"""The index of the model catalogue: one small file that start-up reads, made from architectures/*.toml.

`python -m cost_models.catalog_index` writes it anew; a test holds it against the files. A TOML file that the index does not know yet
is read as well, so that adding a model is adding one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from cost_models.hub.files import read_toml

FOLDER = Path(__file__).parent / "architectures"
INDEX = FOLDER / "index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
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
    known = {row["id"]: _entry(row) for row in json.loads(INDEX.read_text(encoding="utf-8"))} if INDEX.exists() else {}
    files = {entry.file.name for entry in known.values()}
    fresh = [entry_of(path) for path in FOLDER.glob("*.toml") if path.name not in files]
    return tuple(sorted([*known.values(), *fresh], key=lambda entry: entry.id.lower()))


def entry_of(path: Path) -> Entry:
    """Return the index entry of a catalogue file."""
    table = read_toml(path)
    facts = table.get("facts")
    return _entry({**table, **_figures(facts if isinstance(facts, Mapping) else {}), "experts": _experts(table.get("moe"))})


def rebuilt() -> str:
    """Return the text of the index as the files have it."""
    rows = sorted((asdict(entry_of(path)) for path in FOLDER.glob("*.toml")), key=lambda row: str(row["id"]).lower())
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def _figures(facts: Mapping[str, object]) -> dict[str, object]:
    return {
        "parameters": facts.get("exact_total"),
        "active_parameters": facts.get("exact_active"),
        "active_without_token_embedding": facts.get("exact_active_without_token_embedding"),
        "mtp_parameters": facts.get("mtp_extra_params", 0),
        "published": _units(facts.get("published_total_b")),
        "published_active": _units(facts.get("published_active_b")),
    }


def _units(billions: object) -> float | None:
    return round(billions * 1e9) * 1.0 if isinstance(billions, (int, float)) else None


def _experts(moe: object) -> object:
    return moe["num_experts"] if isinstance(moe, Mapping) else 0


def _entry(row: Mapping[str, object]) -> Entry:
    values = {name: row.get(name) for name in Entry.__dataclass_fields__}
    values["aliases"] = tuple(row.get("aliases") or ())  # type: ignore[arg-type]
    values["vision_parameters"] = row.get("vision_parameters") or 0
    return Entry(**values)  # type: ignore[arg-type]


if __name__ == "__main__":
    INDEX.write_text(rebuilt(), encoding="utf-8")
