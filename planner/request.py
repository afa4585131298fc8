"""What a request means, once its names are found and its defaults taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cost_models.architecture import Architecture
from cost_models.catalog import resolve as resolve_model
from cost_models.layout import RANK_ORDERS
from cost_models.throughput.collectives import links_assumed
from cost_models.training import Framework, Training
from hardware.cluster import parse_cluster
from hardware.spec import Cluster, Pool
from hardware.units import parse_bytes
from planner.asked import LAYOUT_FIELDS, OFFLOAD_FIELDS, Request, RequestError, parse_offload
from planner.bands import CONFIDENCE
from planner.case import Case
from planner.defaults import first_framework, global_batch, sequence
from planner.lengths import Lengths, of_mean, read_lengths
from planner.wish import Objective, Wish, WishFlag, parse_wishes

PADDED_TOKENS = 64
"""The longest sample is padded to a multiple of this, so that tensor and context groups can divide it."""
_TRAINING_FIELDS = ("regime", "implementation", "loss", "lora_rank", "lora_targets", "kv_bits", "weight_bits")


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
