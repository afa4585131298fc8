"""Small files from outside, read with limits before parsing: JSON and TOML objects, and one-line errors for all that can be wrong."""

from __future__ import annotations

import json
import sys
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from cost_models.model_laws import ModelError

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_JSON_BYTES = 10_000_000
"""A Hub config.json has some kilobytes; a file above this is something else (weights, a tokenizer)."""

MAX_TOML_BYTES = 256_000
"""The TOML parser is slow Python: this much takes a fraction of a second."""


def read_json(path: Path) -> dict[str, object]:
    """Return the object that a JSON file holds. Raises ModelError naming the file and what is wrong with it."""
    text = _text(path, MAX_JSON_BYTES)
    try:
        value = json.loads(text)
    except RecursionError:
        raise ModelError(f"{path}: JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}: not valid JSON, line {error.lineno} column {error.colno}: {error.msg}") from None
    except ValueError as error:
        raise ModelError(f"{path}: not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds {_kind(value)}, not an object")
    return value


def read_toml(path: Path) -> dict[str, object]:
    """Return the table that a TOML file holds. Raises ModelError naming the file and what is wrong with it."""
    text = _text(path, MAX_TOML_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ModelError(f"{path}: TOML nested too deeply") from None
    except ValueError as error:
        raise ModelError(f"{path}: not valid TOML: {error}") from None


def is_folder(path: Path) -> bool:
    """Tell whether `path` is a folder. Raises ModelError where that cannot be asked."""
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror if isinstance(error, OSError) else error}") from None


def _text(path: Path, limit: int) -> str:
    try:
        status = path.stat()
        if S_ISDIR(status.st_mode):
            raise ModelError(f"{path}: is a folder, not a file")
        if not S_ISREG(status.st_mode):
            raise ModelError(f"{path}: is no regular file")
        if status.st_size > limit:
            raise ModelError(f"{path}: {status.st_size:,} bytes; a model description has at most {limit:,}")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from None
    if len(data) > limit:
        raise ModelError(f"{path}: more than {limit:,} bytes")
    if not data.strip():
        raise ModelError(f"{path}: is empty")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start})") from None


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "something else")
