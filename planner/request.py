"""Request: what the user asked, from flags and a TOML file, and what it means once names and defaults are resolved."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cost_models.architecture import Architecture
from cost_models.catalog import resolve as resolve_model
from cost_models.layout import RANK_ORDERS, OffloadTarget, RankOrder, Recompute, ScheduleName, Zero
from cost_models.switches import switch_problems
from cost_models.throughput.collectives import links_assumed
from cost_models.training import Attention, Framework, Implementation, Loss, Method, Optimizer, Training, TrainPrecision
from hardware.cluster import parse_cluster
from hardware.spec import Cluster, Pool
from hardware.units import parse_bytes, quote
from planner.bands import CONFIDENCE, LIKELY
from planner.case import Case
from planner.defaults import first_framework, global_batch, sequence
from planner.fixes import move_fixes
from planner.lengths import Lengths, of_mean, read_lengths
from planner.wish import Objective, Wish, WishFlag, parse_wishes

MAX_DEGREE = 10**6
MAX_BATCH = 10**8
MAX_SEQUENCE = 10**9
DATE = r"^\d{4}(-\d{2}(-\d{2})?)?$"
PADDED_TOKENS = 64
"""The longest sample is padded to a multiple of this, so that tensor and context groups can divide it."""


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
    software_date: str | None = Field(default=None, pattern=DATE)
    """Era of the software; today's where it is not given."""
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


LAYOUT_FIELDS = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard_group", "sequence_parallel", "schedule", "recompute",
    "recompute_modules", "recompute_layers", "offload_target", "rank_order", "micro_batch",
)  # fmt: skip
OFFLOAD_FIELDS = ("offload", "offload_fraction", "activation_offload", "offload_target")
_TRAINING_FIELDS = ("regime", "implementation", "loss", "lora_rank", "lora_targets", "kv_bits", "weight_bits")
_TABLES = ("training", "layout", "wishes")
FIXABLE = (*LAYOUT_FIELDS, "offload", "framework")
"""What `fix` may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A request whose names are found and whose open ends are closed."""

    architecture: Architecture
    training: Training
    """`framework` is the asked one, or planner's first choice."""
    cluster: Cluster
    frameworks: tuple[Framework, ...]
    """What a search goes over; empty: all that planner searches."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Layout field (of Degrees or Choices) -> the value that the user gave."""
    confidence: float = CONFIDENCE
    margin: float | None = None
    top: int = 10
    lengths: Lengths | None = None
    """Of the samples, where they differ; `training.seq` is the longest that is trained on."""
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wishes: tuple[Wish, ...] = ()
    objective: Objective = "time"
    request: Request | None = None
    """What was resolved; changes of it can be resolved again."""

    @property
    def offload_last(self) -> bool:
        """Whether offload is left to planner, which then turns to it only where nothing fits without: a transfer that hides in the
        prediction leans on the host's links and memory, on which least is known."""
        asked = None if self.request is None else self.request.offload
        named = {name for wish in self.wishes for name in wish.expression.names}
        return asked in (None, "auto") and not any(name in self.fixed or name in named for name in OFFLOAD_FIELDS)

    def without_offload(self) -> Resolved:
        """Return the same request with `--offload none`."""
        return replace(self, fixed={**self.fixed, **parse_offload("none")})

    def case(self, pool: Pool | None = None, framework: Framework | None = None) -> Case:
        """Return what layouts are judged against, on one pool (the first) and in one framework."""
        training = self.training if framework is None else self.training.model_copy(update={"framework": framework})
        return Case(
            architecture=self.architecture,
            training=training,
            pool=pool or self.cluster.pools[0],
            confidence=self.confidence,
            margin=self.margin,
            given=self.fixed,
            wishes=self.wishes,
        )


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
    return [f"{'.'.join(str(p) for p in e['loc'])}={quote(e['input'])}: {_lower(e['msg'])}" for e in error.errors()]


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


def resolve(request: Request) -> Resolved:
    """Return the request with its names found and its defaults taken, each default as a sentence in `assumed`.

    Raises RequestError with every problem found.
    """
    problems: list[str] = []
    assumed: list[str] = []
    warnings: list[str] = []
    architecture = _try(problems, lambda: _architecture(request, assumed, warnings))
    cluster = _try(problems, lambda: _cluster(request))
    wishes, wish_problems = _wishes(request)
    problems += wish_problems
    fixed = _try(problems, lambda: _fixed(request))
    lengths = _try(problems, lambda: _lengths(request))
    if architecture is None or cluster is None or fixed is None or problems:
        raise RequestError(problems)
    if unpriced := _unpriced(request, wishes, cluster):
        raise RequestError(unpriced)
    training = _training(request, architecture, cluster, fixed, assumed, lengths)
    if request.mean_seq is not None:
        lengths = _try(problems, lambda: of_mean(request.mean_seq or 1, training.seq))
        if problems:
            raise RequestError(problems)
    return Resolved(
        architecture=architecture,
        training=training,
        cluster=cluster,
        frameworks=() if request.framework in (None, "any", "unknown") else (training.framework,),
        fixed=fixed,
        confidence=request.confidence,
        margin=request.margin,
        top=request.top,
        lengths=lengths,
        assumed=(*cluster.assumed, *(said for pool in cluster.pools for said in links_assumed(pool)), *assumed),
        warnings=(*cluster.warnings, *warnings),
        wishes=wishes,
        objective=request.objective,
        request=request,
    )


def _wishes(request: Request) -> tuple[tuple[Wish, ...], list[str]]:
    """Return the wishes of all flags, and the lines about those that cannot be read."""
    flags: tuple[WishFlag, ...] = ("max", "min", "forbid", "require")
    read = [parse_wishes(flag, getattr(request, flag)) for flag in flags]
    return tuple(wish for made, _ in read for wish in made), [line for _, lines in read for line in lines]


def _unpriced(request: Request, wishes: tuple[Wish, ...], cluster: Cluster) -> list[str]:
    """Return why tokens per dollar cannot be told, where the request asks for them and a server's price is unknown."""
    asked = ["--objective cost"] if request.objective == "cost" else []
    asked += [wish.spelled for wish in wishes if "tokens_per_dollar" in wish.expression.names]
    names = sorted({pool.node.name for pool in cluster.pools if pool.node.price_usd_per_hour is None})
    return [f"{what} needs a price and the hourly price of {', '.join(names)} is unknown" for what in asked] if names else []


def _try(problems: list[str], make: Any) -> Any:
    """Return what `make` returns; None where it raises, with its lines put among the problems."""
    try:
        return make()
    except RequestError as error:
        problems.extend(error.lines)
    except ValueError as error:
        problems.append(str(error))
    return None


def _architecture(request: Request, assumed: list[str], warnings: list[str]) -> Architecture:
    if request.model is None and not request.dimensions:
        raise RequestError(["no model: give --model NAME, a config.json, a TOML file, or dimensions (--layers, --hidden, --heads …)"])
    found = resolve_model(request.model, request.dimensions)
    assumed.extend(found.assumed)
    warnings.extend(found.warnings)
    return found.architecture


def _cluster(request: Request) -> Cluster:
    if request.cluster is None:
        raise RequestError(["no cluster: give --cluster, such as 32xA100-80G, 4x8xH100-80G, 16xp5.48xlarge or a TOML file"])
    free = None if request.free_memory is None else parse_bytes(request.free_memory)
    return parse_cluster(request.cluster, free_memory_bytes=free)


def _fixed(request: Request) -> dict[str, Any]:
    fixed = {name: value for name in LAYOUT_FIELDS if (value := getattr(request, name)) is not None}
    if request.rank_order is not None:
        fixed["rank_order"] = RANK_ORDERS.index(request.rank_order)
    if request.offload is not None:
        fixed.update(parse_offload(request.offload))
    if "recompute" not in fixed:
        if fixed.get("recompute_modules"):
            fixed["recompute"] = "selective"
        elif "recompute_layers" in fixed:
            fixed["recompute"] = "full"
    return fixed


def _lengths(request: Request) -> Lengths | None:
    if request.lengths is None:
        return None
    if request.mean_seq is not None:
        raise RequestError(["lengths and mean_seq: a file of lengths has its own mean; give one of the two"])
    return read_lengths(request.lengths)


def _training(
    request: Request, a: Architecture, cluster: Cluster, fixed: Mapping[str, Any], assumed: list[str], lengths: Lengths | None
) -> Training:
    """Return the training with defaults for sequence, batch and framework, which are added to `assumed`."""
    given = {name: value for name in _TRAINING_FIELDS if (value := getattr(request, name)) is not None}
    seq, batch, framework = request.seq, request.global_batch, request.framework
    if seq is None and lengths is not None:
        seq = -(-lengths.longest // PADDED_TOKENS) * PADDED_TOKENS
        assumed.append(f"sequence {seq:,} (the longest sample)")
    elif seq is None:
        seq = max(sequence(a), request.mean_seq or 0)
        assumed.append(f"sequence {seq:,}")
    if batch is None:
        batch = global_batch(request.method, seq, cluster.pools[0].count, fixed)
        assumed.append(f"global batch {batch:,}")
    usual = first_framework(request.method, cluster.count)
    first = usual if framework is None or framework == "any" or framework == "unknown" else framework
    return Training(
        method=request.method,
        seq=seq,
        global_batch=batch,
        precision=request.precision,
        optimizer=request.optimizer,
        attention=request.attention,
        framework=first,
        mtp=request.mtp,
        date=request.software_date or "",
        compile=request.compile,
        extra=request.stack,
        **given,
    )
