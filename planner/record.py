"""Base of the JSON objects that planner prints."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all JSON objects: fields are documented where they are declared; NaN and infinity never occur."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="null")
