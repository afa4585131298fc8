"""Run: one measured (or imagined) training run as a row of a run table states it, in the table's own units and words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from hardware.units import GIGA, TERA

Kind = Literal["allocated", "reserved", "nvidia-smi", "unknown"]
MAX_COUNT = int(GIGA)
"""Largest size or degree that a cell may hold: nothing real is larger."""
MAX_NUMBER = TERA
_BLANK = frozenset({"", "-", "--", "?", "n/a", "na", "nan", "null", "unknown", "not stated"})


class CellError(ValueError):
    """A cell that cannot be read; the text says what it should have been."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Facts of one row. None and "": the row does not say."""

    id: str
    line: int = 0
    """Line of the file that the row begins on (the header is line 1)."""
    bad: tuple[str, ...] = ()
    """Cells that could not be read and that a prediction would need."""
    source: str = ""
    locator: str = ""
    date: str = ""
    model: str = ""
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    gated_mlp: bool | None = None
    experts: int | None = None
    topk: int | None = None
    seq_len: int | None = None
    gpu: str = ""
    site: str = ""
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    framework: str = ""
    framework_detail: str = ""
    precision: str = ""
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    sharding: str = ""
    sequence_parallel: bool | None = None
    recompute: str = ""
    micro_batch: int | None = None
    global_batch: int | None = None
    method: str = ""
    optimizer: str = ""
    offload: str = ""
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    peak_memory_gib: float | None = None
    peak_memory_kind: str = ""
    logged_stage: str = ""
    oom: bool = False
    class_: str = ""
    trust: str = ""
    inferred: str = ""
    notes: str = ""


def column_of(field: str) -> str:
    """Return the column of a field (`class` is a word of the language)."""
    return field.rstrip("_")


FIELD_OF_COLUMN = {column_of(f.name): f.name for f in fields(Run) if f.name not in ("line", "bad")}
"""Column -> field of Run."""
INFORMATIVE = frozenset({"params_b", "tflops_per_gpu", "mfu_pct", "hfu_pct"})
"""Columns that no prediction reads: a bad cell there is reported and the row predicted all the same."""


def _plain(text: str) -> str:
    """`text` without thousands separators: 4,096 -> 4096."""
    return text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d*)?", text) else text


def read_number(text: str) -> float:
    """Return a positive number."""
    try:
        value = float(_plain(text))
    except ValueError:
        raise CellError("is not a number") from None
    if not math.isfinite(value) or value <= 0 or value > MAX_NUMBER:
        raise CellError(f"must lie between 0 and {MAX_NUMBER:g}")
    return value


def read_count(text: str) -> int:
    """Return a whole number from 1."""
    try:
        value = float(_plain(text))
    except ValueError:
        raise CellError("is not a whole number") from None
    if not math.isfinite(value) or value != int(value) or not 1 <= value <= MAX_COUNT:
        raise CellError(f"must be a whole number from 1 to {MAX_COUNT:,}")
    return int(value)


def read_switch(text: str) -> bool:
    """Return yes or no."""
    word = text.lower()
    if word in ("yes", "true", "1", "y", "on"):
        return True
    if word in ("no", "false", "0", "n", "off"):
        return False
    raise CellError("must be yes or no")


def _one_of(*words: str, aliases: dict[str, str] | None = None) -> Callable[[str], str]:
    """Return a reader of one of `words`, in any case."""

    def read(text: str) -> str:
        word = (aliases or {}).get(text.lower(), text.lower())
        if word not in words:
            raise CellError(f"must be one of {', '.join(words)}")
        return word

    return read


def _pattern(expression: str, words: str) -> Callable[[str], str]:
    """Return a reader of text that matches `expression` whole."""

    def read(text: str) -> str:
        if not re.fullmatch(expression, text.lower()):
            raise CellError(f"must be {words}")
        return text.lower()

    return read


PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "bf16-pure", "bf16-mixed", "fp16-mixed", "fp32")
_PRECISION_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "tf32": "fp32", "float8": "fp8"}
_PART = r"(optimizer|params|activations(:(0(\.\d+)?|1(\.0+)?))?)"
_READERS: dict[str, Callable[[str], object]] = {
    "precision": _one_of(*PRECISIONS, aliases=_PRECISION_ALIASES),
    "sharding": _pattern(r"none|(zero[0-3]|hsdp|fsdp)(:[1-9]\d{0,6})?", "none, zero0 to zero3 or hsdp, with `:n` for a group of n ranks"),
    "recompute": _one_of("none", "selective", "full", aliases={"no": "none", "yes": "full"}),
    "method": _one_of("pretrain", "sft", "full", "lora", "qlora"),
    "offload": _pattern(rf"none|{_PART}(\+{_PART})*", "none, or optimizer, params, activations:0.5 joined by +"),
    "peak_memory_kind": _one_of("allocated", "reserved", "nvidia-smi", "unknown"),
    "logged_stage": _one_of("first", "last", "first,last", "worst", aliases={"last,first": "first,last", "all": "worst"}),
    "trust": lambda text: text.upper(),
}
_SIZES = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk", "seq_len")
_DEGREES = ("num_gpus", "gpus_per_node", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch", "global_batch")
_NUMBERS = ("params_b", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "hfu_pct", "peak_memory_gib")
_SWITCHES = ("gated_mlp", "sequence_parallel", "oom")
_READERS |= {name: read_count for name in (*_SIZES, *_DEGREES)}
_READERS |= {name: read_number for name in _NUMBERS}
_READERS |= {name: read_switch for name in _SWITCHES}


def read_cell(column: str, text: str) -> object | None:
    """Return the value of one cell, None where it is blank. Raises CellError."""
    word = text.strip()
    reader = _READERS.get(column)
    if reader is None:
        return word or None
    return None if word.lower() in _BLANK else reader(word)
