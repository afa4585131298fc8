"""The JSON schema as text, and as a page for people; both are made from the models of planner.schema."""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.json_schema import models_json_schema

from planner.schema import SCHEMA_VERSION, EstimateDocument, HardwareDocument, ModelsDocument, Record, SearchDocument
from planner.validate_schema import ValidationReport

DOCUMENTS: dict[str, type[Record]] = {
    "search": SearchDocument,
    "estimate": EstimateDocument,
    "models": ModelsDocument,
    "hardware": HardwareDocument,
    "validate": ValidationReport,
}
"""Command -> what it prints with --json."""


def json_schema(command: str | None = None) -> str:
    """Return the JSON schema of one command's document, or of all of them as alternatives."""
    chosen = {name: model for name, model in DOCUMENTS.items() if command in (None, name)}
    references, schema = models_json_schema(
        [(model, "serialization") for model in chosen.values()],
        title=f"planner --json, schema_version {SCHEMA_VERSION}",
    )
    alternatives = list(references.values())
    head = alternatives[0] if command is not None else {"anyOf": alternatives}
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **head, **schema}, indent=2)


def page() -> str:
    """Return the schema as a Markdown page: one table per object."""
    lines = [
        "# JSON",
        "",
        "Made by `planner schema --markdown` from `planner/schema.py`; `planner schema` prints the same as a JSON schema.",
        f"Every command takes `--json`. Documents carry `schema_version` {SCHEMA_VERSION}; within a version keys are only added.",
        "Base units throughout: bytes, seconds, FLOP, tokens; memory per GPU. The same request gives the same bytes.",
    ]
    seen: list[type[Record]] = list(DOCUMENTS.values())
    for model in seen:
        lines += _section(model, seen)
    return "\n".join(lines) + "\n"


def _section(model: type[Record], seen: list[type[Record]]) -> list[str]:
    """One object; the objects that it holds are put on the list."""
    lines = ["", f"## {model.__name__}", "", " ".join((model.__doc__ or "").split()), "", "| key | type | meaning |", "| --- | --- | --- |"]
    for name, field in model.model_fields.items():
        for inner in _models(field.annotation):
            if inner not in seen:
                seen.append(inner)
        lines.append(f"| `{name}` | {_type(field.annotation)} | {' '.join((field.description or '').split())} |")
    return lines


def _models(annotation: Any) -> list[type[Record]]:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in parts)
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _type(part) for part in parts)
    if origin is list:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"object of {_type(parts[1])}"
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    return names.get(annotation) or f"[{annotation.__name__}](#{annotation.__name__.lower()})"
