"""Tables of facts, as the TOML files of this package and of users write them, to `Gpu` and `Node` records.

A key is the record's field without its unit suffix and its value is a text with a unit: `memory_bandwidth = "2039 GB/s"` becomes
`memory_bandwidth_bytes_per_second`. A plain number counts base units. Peaks stand in the table `peak_dense`, one key per type.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import ValidationError

from hardware.spec import Gpu, Node, Precision, Spec
from hardware.units import BYTES, BYTES_PER_SECOND, FLOP_PER_SECOND, USD, USD_PER_HOUR, WATTS, Quantity, UnitError, parse_sum, quote

Shape = Literal["text", "texts", "flag", "number", "count", "sources", "peaks"]
Record = TypeVar("Record", bound=Spec)
MAX_TEXT = 2000
MAX_COUNT = 2**20
MAX_NUMBER = 1e5


class RecordError(ValueError):
    """A table of facts that breaks laws; `problems` holds one line for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """How one key of a table is read."""

    field: str
    kind: Shape | Quantity
    zero: bool = False
    """True where zero is a fact and not a slip."""


def _plain(shape: Shape, *names: str) -> dict[str, Fact]:
    return {name: Fact(field=name, kind=shape) for name in names}


GPU_FACTS: dict[str, Fact] = {
    **_plain("text", "id", "name", "vendor", "arch", "compute_target", "memory_note", "measured_memory_bandwidth_note"),
    **_plain("text", "link", "pcie_generation", "default_node", "source", "notes"),
    **_plain("texts", "aliases"),
    **_plain("number", "compute_capability"),
    **_plain("count", "release_year", "gpus_per_node"),
    **_plain("flag", "bf16_supported", "fp8_supported"),
    "nominal_memory": Fact(field="nominal_memory_bytes", kind=BYTES),
    "driver_memory": Fact(field="driver_memory_bytes", kind=BYTES),
    "torch_memory": Fact(field="torch_memory_bytes", kind=BYTES),
    "memory_bandwidth": Fact(field="memory_bandwidth_bytes_per_second", kind=BYTES_PER_SECOND),
    "measured_memory_bandwidth": Fact(field="measured_memory_bandwidth_bytes_per_second", kind=BYTES_PER_SECOND),
    "peak_dense": Fact(field="peak_flop_per_second", kind="peaks"),
    "power": Fact(field="power_watts", kind=WATTS),
    "link_bandwidth": Fact(field="link_bytes_per_second", kind=BYTES_PER_SECOND),
    "pcie_bandwidth": Fact(field="pcie_bytes_per_second", kind=BYTES_PER_SECOND),
    "price": Fact(field="price_usd", kind=USD, zero=True),
}

NODE_FACTS: dict[str, Fact] = {
    **_plain("text", "id", "name", "gpu", "link", "network", "price_basis", "price_date", "source", "notes"),
    **_plain("texts", "aliases"),
    **_plain("count", "gpus_per_node", "link_domain_size", "nic_count", "vcpus"),
    **_plain("sources", "fact_sources"),
    "link_bandwidth": Fact(field="link_bytes_per_second", kind=BYTES_PER_SECOND),
    "nic_bandwidth": Fact(field="nic_bytes_per_second", kind=BYTES_PER_SECOND),
    "network_bandwidth": Fact(field="network_bytes_per_second", kind=BYTES_PER_SECOND),
    "host_memory": Fact(field="host_memory_bytes", kind=BYTES),
    "nvme": Fact(field="nvme_bytes", kind=BYTES, zero=True),
    "nvme_read_bandwidth": Fact(field="nvme_read_bytes_per_second", kind=BYTES_PER_SECOND),
    "nvme_write_bandwidth": Fact(field="nvme_write_bytes_per_second", kind=BYTES_PER_SECOND),
    "pcie_bandwidth": Fact(field="pcie_bytes_per_second", kind=BYTES_PER_SECOND),
    "power": Fact(field="power_watts", kind=WATTS),
    "price_per_hour": Fact(field="price_usd_per_hour", kind=USD_PER_HOUR, zero=True),
    "purchase_price": Fact(field="purchase_price_usd", kind=USD, zero=True),
}


def nearest(given: str, known: Iterable[str], count: int = 5) -> str:
    """ "; nearest: …" with the known spellings closest to `given`, or all of them where none is close and they are few."""
    names = list(known)
    close = difflib.get_close_matches(given[:80], names, n=count, cutoff=0.4)
    if not close and len(names) <= 40:
        return f"; known: {', '.join(names)}"
    return f"; nearest: {', '.join(close)}" if close else ""


def read_count(given: object, name: str, maximum: int = MAX_COUNT) -> int:
    """A whole number from 1 to `maximum`, else UnitError."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise UnitError(f"{name} {quote(given)} is not a whole number")
    if not 1 <= given <= maximum:
        raise UnitError(f"{name} {quote(given)} must lie between 1 and {maximum}")
    return given


def _number(given: object, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < MAX_NUMBER:
        raise UnitError(f"{name} {quote(given)} is not a number between 0 and {MAX_NUMBER:g}")
    return float(given)


def _texts(given: object, name: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise UnitError(f"{name} must be a list of texts")
    return tuple(given)


def _text(given: object, name: str) -> str:
    if not isinstance(given, str) or len(given) > MAX_TEXT:
        raise UnitError(f"{name} {quote(given)} must be a text of at most {MAX_TEXT} characters")
    return given


def _amount(given: Any, name: str, quantity: Quantity, zero: bool) -> float:
    try:
        value = parse_sum(given, quantity)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None
    if value == 0 and not zero:
        raise UnitError(f"{name} must be more than zero; leave it out where it is unknown")
    return value


def _peaks(given: object, name: str) -> dict[str, float]:
    types = get_args(Precision)
    if not isinstance(given, Mapping):
        raise UnitError(f'{name} must be a table such as {{ bf16 = "312 TFLOP/s" }}')
    for key in given:
        if key not in types:
            raise UnitError(f"{name} knows no type {quote(key)}; known: {', '.join(types)}")
    return {key: _amount(value, f"{name}.{key}", FLOP_PER_SECOND, zero=False) for key, value in given.items()}


def _value(fact: Fact, given: object, name: str) -> object:
    """The record's value of one key. Raises UnitError."""
    if isinstance(fact.kind, Quantity):
        return _amount(given, name, fact.kind, fact.zero)
    if fact.kind == "count":
        return read_count(given, name)
    if fact.kind == "number":
        return _number(given, name)
    if fact.kind == "flag":
        if not isinstance(given, bool):
            raise UnitError(f"{name} {quote(given)} must be true or false")
        return given
    if fact.kind == "texts":
        return _texts(given, name)
    if fact.kind == "peaks":
        return _peaks(given, name)
    if fact.kind == "sources":
        if not isinstance(given, Mapping):
            raise UnitError(f"{name} must be a table of texts")
        return {key: _text(value, f"{name}.{key}") for key, value in given.items()}
    return _text(given, name)


def collect_facts(table: Mapping[str, object], facts: Mapping[str, Fact], extra: Iterable[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Field -> value of the keys of a table that are right, and one line for each that is not; `extra` keys are the caller's."""
    by_field = {fact.field: fact for fact in facts.values()}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, given in table.items():
        if key in extra:
            continue
        fact = facts.get(key) or by_field.get(key)
        if fact is None:
            problems.append(f"unknown key {quote(key)}{nearest(key, (*facts, *extra))}")
            continue
        if fact.field in values:
            problems.append(f"{key} is given twice")
            continue
        try:
            values[fact.field] = _value(fact, given, key)
        except UnitError as error:
            problems.append(str(error))
    return values, problems


def read_facts(table: Mapping[str, object], facts: Mapping[str, Fact]) -> dict[str, Any]:
    """Field -> value of a table. Raises RecordError with all problems at once."""
    values, problems = collect_facts(table, facts)
    if problems:
        raise RecordError(problems)
    return values


def _build(record: type[Record], values: Mapping[str, Any], facts: Mapping[str, Fact]) -> Record:
    try:
        return record(**values)
    except ValidationError as error:
        keys = {fact.field: key for key, fact in facts.items()}
        lines = []
        for item in error.errors():
            field = str(item["loc"][0]) if item["loc"] else record.__name__
            lines.append(f"{keys.get(field, field)}: {'is missing' if item['type'] == 'missing' else item['msg']}")
        raise RecordError(lines) from None


def build_gpu(values: Mapping[str, Any]) -> Gpu:
    """A Gpu from `read_facts` values. Raises RecordError."""
    return _build(Gpu, values, GPU_FACTS)


def build_node(values: Mapping[str, Any]) -> Node:
    """A Node from `read_facts` values. Raises RecordError.

    Where the link's domain is not stated it is the whole server if a link rate is known, else 1, and marked as assumed.
    """
    completed = dict(values)
    if "link_domain_size" not in completed and "gpus_per_node" in completed:
        completed["link_domain_size"] = completed["gpus_per_node"] if "link_bytes_per_second" in completed else 1
        completed["link_domain_assumed"] = True
    return _build(Node, completed, NODE_FACTS)
