"""What the user asked: flags over a request file, as values that can be read. What they mean is found in planner.request."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cost_models.layout import OffloadTarget, RankOrder, Recompute, ScheduleName, Zero
from cost_models.switches import switch_problems
from cost_models.training import Attention, Framework, Implementation, Loss, Method, Optimizer, TrainPrecision
from hardware.units import quote
from planner.bands import CONFIDENCE, LIKELY
from planner.fixes import move_fixes
from planner.wish import Objective

MAX_DEGREE = 10**6
MAX_BATCH = 10**8
MAX_SEQUENCE = 10**9
_FIRST = {4: "-01-01", 7: "-01", 10: ""}
"""Length of a year, a month, a day -> what makes it a day."""


class RequestError(ValueError):
    """A request that cannot be understood; `lines` holds every problem, one line each."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__("\n".join(lines))


class Request(BaseModel):
    """What the user asked. None: not asked; planner chooses (layout) or takes its default (the rest) and says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(default=None, max_length=4096)
    """Catalogue name, bare size, or path of a Hub config or TOML file."""
    dimensions: dict[str, int | float | bool | str] = Field(default_factory=dict)
    """Architecture fields that replace the model's, or make one up where no model is named."""
    cluster: str | None = None
    free_memory: str | None = None
    """What is left of a shared card: `60GiB`."""

    method: Method = "full"
    seq: int | None = Field(default=None, gt=0, le=MAX_SEQUENCE)
    lengths: str | None = Field(default=None, max_length=4096)
    """File with the lengths of the samples; the plan is made for the longest."""
    mean_seq: int | None = Field(default=None, gt=0, le=MAX_SEQUENCE)
    """Tokens of the mean sample, where no file tells their lengths."""
    global_batch: int | None = Field(default=None, gt=0, le=MAX_BATCH)
    precision: TrainPrecision = "bf16"
    optimizer: Optimizer = "adamw"
    attention: Attention = "flash"
    framework: Framework | Literal["any", "unknown"] | None = None
    """`any`: planner's first choice that can run the layout; `unknown`: a band over all that can (one stated layout)."""
    software_date: str | None = None
    """Era of the software: a year, a month or a day; today's where it is not given."""
    compile: bool | None = None
    """torch.compile of the layers; None: what the framework does by default."""
    stack: dict[str, str] = Field(default_factory=dict)
    """Switches of the software (cost_models.switches)."""
    regime: str | None = None
    implementation: Implementation | None = None
    loss: Loss | None = None
    lora_rank: int | None = Field(default=None, gt=0, le=10**5)
    lora_targets: tuple[str, ...] | None = None
    kv_bits: Literal[16, 8, 4] | None = None
    weight_bits: Literal[16, 8, 4] | None = None
    mtp: bool = False

    tp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    pp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    vpp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    cp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    ep: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    etp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    dp: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    zero: Zero | None = None
    shard_group: int | None = Field(default=None, gt=0, le=MAX_DEGREE)
    sequence_parallel: bool | None = None
    schedule: ScheduleName | None = None
    recompute: Recompute | None = None
    recompute_modules: tuple[str, ...] | None = None
    recompute_layers: int | None = Field(default=None, ge=0, le=MAX_DEGREE)
    stage_layers: tuple[int, ...] | None = Field(default=None, max_length=10**4)
    """Layers of each pipeline stage, of one stated layout; a search chooses them."""
    stage_recompute: tuple[int, ...] | None = Field(default=None, max_length=10**4)
    """Recomputed layers of each stage, of one stated layout."""
    offload: str | None = Field(default=None, max_length=200)
    """`auto` (only where nothing fits without), `any` (always searched), `none`, or words of optimizer[:fraction], params,
    activations[:fraction] joined by commas."""
    offload_target: OffloadTarget | None = None
    rank_order: RankOrder | None = None
    """Order in which ranks are numbered, neighbours first."""
    micro_batch: int | None = Field(default=None, gt=0, le=MAX_BATCH)

    confidence: float = Field(default=CONFIDENCE, ge=LIKELY, lt=1)
    """Probability of fit from which a plan fits."""
    margin: float | None = Field(default=None, ge=0, lt=1)
    """Part of each card's capacity that stays free."""
    top: int = Field(default=10, gt=0, le=1000)
    max: tuple[str, ...] = ()
    """Upper limits: `pp=8`, `memory=70GiB`."""
    min: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    """Conditions that no plan may meet: `zero=3`."""
    require: tuple[str, ...] = ()
    """Conditions that every plan must meet: `tp*cp <= 8`, `step <= 12s`."""
    objective: Objective = "time"

    @field_validator("software_date")
    @classmethod
    def _a_date(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                datetime.datetime.strptime(value + _FIRST.get(len(value), "?"), "%Y-%m-%d")
            except ValueError:
                raise ValueError("give a year, a month or a day, such as 2024, 2024-05 or 2024-05-31") from None
        return value


LAYOUT_FIELDS = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard_group", "sequence_parallel", "schedule", "recompute",
    "recompute_modules", "recompute_layers", "offload_target", "rank_order", "micro_batch",
)  # fmt: skip
OFFLOAD_FIELDS = ("offload", "offload_fraction", "activation_offload", "offload_target")
_TABLES = ("training", "layout", "wishes")
FIXABLE = (*LAYOUT_FIELDS, "offload", "framework")
"""What `fix` may name."""


def make_request(flags: Mapping[str, object], file: Mapping[str, object] | None = None) -> Request:
    """Return the request of flags (those that are None are not given) over the values of a request file.

    Raises RequestError with every problem: unknown keys with their nearest names, values with what they may be.
    """
    values: dict[str, object] = {}
    for key, entry in (file or {}).items():
        if key in _TABLES and isinstance(entry, Mapping):
            values.update({str(k).replace("-", "_"): v for k, v in entry.items()})
        else:
            values[key.replace("-", "_")] = entry
    values.update({k.replace("-", "_"): v for k, v in flags.items() if v is not None})
    unknown = [*move_fixes(values, FIXABLE), *(_unknown_key(key) for key in values if key not in Request.model_fields)]
    try:
        made = Request.model_validate({k: v for k, v in values.items() if k in Request.model_fields})
    except ValidationError as error:
        raise RequestError(unknown + _problems(error)) from None
    if unknown := [*unknown, *switch_problems(made.stack)]:
        raise RequestError(unknown)
    return made


def _unknown_key(key: str) -> str:
    close = difflib.get_close_matches(key, Request.model_fields, n=3, cutoff=0.5)
    return f"unknown key {quote(key)}" + (f"; nearest: {', '.join(close)}" if close else f"; known: {', '.join(Request.model_fields)}")


def _problems(error: ValidationError) -> list[str]:
    """Return a line for each value that cannot be read; what it may be in several ways is said in one."""
    told: dict[str, str] = {}
    for e in error.errors():
        place = ".".join(str(p) for p in e["loc"] if not str(p).startswith("literal["))
        name, said = f"{place}={quote(e['input'])}", _lower(e["msg"].removeprefix("Value error, "))
        told[name] = f"{told[name]}, or {said.removeprefix('input should be ')}" if name in told else said
    return [f"{name}: {said}" for name, said in told.items()]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].replace("\n", " ")


def parse_offload(text: str) -> dict[str, Any]:
    """Return the layout fields that `--offload` fixes; none for `auto` and `any`.

    Raises RequestError for a word that is unknown or a fraction outside 0..1.
    """
    if text.strip() in ("auto", "any"):
        return {}
    parts: dict[str, float] = {}
    for word in text.replace("+", ",").split(","):
        name, _, part = word.strip().partition(":")
        if name not in ("none", "optimizer", "params", "activations"):
            raise RequestError([f"offload={quote(text)}: give auto, any, none, or some of optimizer[:part],params,activations[:part]"])
        parts[name] = _part(text, part)
    if "none" in parts and len(parts) > 1 or ("params" in parts and parts["params"] != 1.0):
        raise RequestError([f"offload={quote(text)}: none stands alone, and params takes no part"])
    states = "+".join(name for name in ("optimizer", "params") if name in parts) or "none"
    fixed: dict[str, Any] = {"offload": states, "activation_offload": parts.get("activations", 0.0)}
    if parts.get("optimizer", 1.0) != 1.0:
        fixed["offload_fraction"] = parts["optimizer"]
    return fixed


def _part(text: str, part: str) -> float:
    if not part:
        return 1.0
    try:
        number = float(part)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= 1.0:
        raise RequestError([f"offload={quote(text)}: the part {quote(part)} must be above 0 and at most 1"])
    return number
