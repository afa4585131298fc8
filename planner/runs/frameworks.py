"""What a code base does where a row does not say: the entries of frameworks.toml, looked up by name and by the source's own words."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cost_models.architecture import Mla
from cost_models.training import Framework, Implementation, Loss

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PATH = Path(__file__).parent / "frameworks.toml"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lora(_Entry):
    """Adapter settings."""

    rank: int
    targets: tuple[str, ...]
    dropout: float
    head: bool = False
    """An adapter on the language-model head too."""


class Habits(_Entry):
    """Defaults of one code base; see the head of frameworks.toml."""

    runs_as: Framework = "megatron"
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_sharded: Literal["none", "selective", "full"] | None = None
    """Default where the states are sharded over several ranks."""
    zero: Literal[0, 1, 2, 3] = 0
    zero_multi: Literal[0, 1, 2, 3] | None = None
    """Default on several GPUs."""
    zero1_since: str = ""
    """Date before which nothing was sharded by default."""
    sequence_parallel_since: str = "9999"
    flash_since: str = "9999"
    implementation: Implementation | None = None
    loss: Loss | None = None
    regime: str | None = None
    vocab_multiple: int | None = None
    compile: bool | None = None
    precision: str = "bf16"
    adapter_fp32: bool | None = None
    """Adapters in fp32; None: the code base's default."""
    quantization: str = "nf4"
    kbit_prepare: bool = False
    untied: bool = False
    """Head and embedding are separate tensors even where the model ties them."""
    mean_tokens: int | None = None
    """Mean tokens of a sample where `seq_len` is the longest one: what step time is made of."""
    padding: bool = False
    """A padding mask is passed to the attention kernel."""
    lora: Lora | None = None
    extra: dict[str, str] = Field(default_factory=dict)
    finetune_extra: dict[str, str] = Field(default_factory=dict)
    """Switches of fine-tuning recipes, over `extra`."""
    origin: str = ""


class _Detail(_Entry):
    """Overrides for rows whose `framework_detail` matches."""

    match: str
    one_gpu: bool | None = None
    """Holds only for rows on one GPU (or on several)."""
    method: str | None = None
    """Holds only for rows of this method."""
    runs_as: Framework | None = None
    zero: Literal[0, 1, 2, 3] | None = None
    adapter_fp32: bool | None = None
    regime: str | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    quantization: str | None = None
    kbit_prepare: bool | None = None
    padding: bool | None = None
    loss: Loss | None = None
    mean_tokens: int | None = None
    lora: Lora | None = None
    extra: dict[str, str] = Field(default_factory=dict)
    finetune_extra: dict[str, str] = Field(default_factory=dict)
    origin: str = ""


class _Recipe(_Entry):
    match: str
    lora: Lora


class _Mla(_Entry):
    match: str
    dims: Mla
    origin: str


class _File(_Entry):
    """The whole of frameworks.toml."""

    habits: dict[str, Habits]
    detail: tuple[_Detail, ...]
    recipe: tuple[_Recipe, ...]
    mla: tuple[_Mla, ...]
    tokenizer: dict[str, int]


@cache
def _file() -> _File:
    table: dict[str, Any] = tomllib.loads(_PATH.read_text(encoding="utf-8"))
    lists = {name: table.pop(name) for name in ("detail", "recipe", "mla", "tokenizer")}
    return _File(habits=table, **lists)


def framework_names() -> tuple[str, ...]:
    """Names that the column `framework` may hold."""
    return tuple(_file().habits)


@cache
def named_mla(model: str) -> Mla | None:
    """Return the latent attention of a named configuration, None where it is not listed."""
    return next((item.dims for item in _file().mla if re.search(item.match, model)), None)


def tokenizer_vocab(tokenizer: str) -> int | None:
    """Return the vocabulary of a tokenizer type of Megatron-LM's tests, None where it is not listed."""
    return _file().tokenizer.get(tokenizer)


@cache
def habits(framework: str, detail: str, *, model_parallel: bool, one_gpu: bool = False, method: str = "") -> Habits | None:
    """Return the defaults of `framework` with what its `detail` overrides; None for an unknown name.

    `one_gpu` and `method` tell apart the scripts of one project. `model_parallel`: the row uses tensor or pipeline parallelism,
    so that an unnamed framework is taken for Megatron-LM.
    """
    table = _file().habits
    name = framework.lower() or "other"
    if name == "other":
        name = _named_in(detail.lower(), table) or ("megatron" if model_parallel else "other")
    entry = table.get(name)
    if entry is None:
        return None
    changes: dict[str, Any] = {}
    extra = dict(entry.extra)
    for item in _file().detail:
        if re.search(item.match, detail) and item.one_gpu in (None, one_gpu) and item.method in (None, method):
            given = item.model_dump(exclude_none=True, exclude={"match", "one_gpu", "method", "extra", "origin"})
            changes |= {key: getattr(item, key) for key in given}
            extra |= item.extra
    return entry.model_copy(update={**changes, "extra": extra})


def _named_in(detail: str, table: dict[str, Habits]) -> str | None:
    """A framework whose name the source's own words begin with."""
    names = sorted((n for n in table if n not in ("other", "hf", "jax")), key=len, reverse=True)
    return next((name for name in names if detail.startswith(name)), None)


@cache
def recipe_lora(recipe: str) -> Lora | None:
    """Return the adapter settings of a named recipe file, None where it has none."""
    return next((item.lora for item in _file().recipe if re.search(item.match, recipe)), None)
