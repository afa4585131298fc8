"""A cluster described in a TOML file: catalogue names, overridden facts, or machines that exist in no catalogue.

One pool at the top level, or several as `[[pool]]` (then the top level may say how they are joined: `network_between_pools = "400 Gb/s"`,
all traffic between two pools together, and `latency_between_pools = "20 ms"`):

    name = "our lab"
    gpu = "A100-80G"                 # or a table [gpu]: base = "A100-80G" with changed facts, or all facts of an own GPU
    count = 32                       # GPUs; or nodes = 4 (servers)
    gpus_per_node = 8                # used in each server
    free_memory = "60 GiB"           # what is left of a shared card
    network_per_gpu = "20 GB/s"      # one direction; overrides the NICs
    oversubscription = 2.0           # the fabric above the leaf switches is thinner than the NICs by this factor
    leaf_servers = 32                # servers under one leaf (or pod), which reach each other at full rate; none given: one
    rails = true                     # each leaf joins the NICs of one index of its servers (rail-optimised)

    [node]                           # or node = "dgx-a100-80g"; or base = "…" with changed facts
    gpus_per_node = 8
    link_domain_size = 8
    link_bandwidth = "300 GB/s"
    nic_count = 4
    nic_bandwidth = "200 Gb/s"
    host_memory = "1 TiB"
    nvme = "4x 3.84 TB"

The keys of both tables are those of the catalogue's own files.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hardware.catalog import UnknownName, load_gpu, load_node
from hardware.pools import ClusterError, PoolReport, PoolRequest, default_server, make_pool, plain_server, resize_node
from hardware.records import GPU_FACTS, NODE_FACTS, Fact, RecordError, build_gpu, build_node, collect_facts
from hardware.units import BYTES, BYTES_PER_SECOND, SECONDS, quote

if TYPE_CHECKING:
    from pathlib import Path

    from hardware.spec import Gpu, Node

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE_BYTES = 65536
"""A cluster file is a few kilobytes; the TOML reader takes quadratic time on hostile ones."""
MAX_LINE = 2000
MAX_KEY_DOTS = 8
MAX_POOLS = 64
POOL_FACTS: dict[str, Fact] = {
    "count": Fact(field="count", kind="count"),
    "nodes": Fact(field="nodes", kind="count"),
    "gpus_per_node": Fact(field="gpus_per_node", kind="count"),
    "free_memory": Fact(field="free_memory_bytes", kind=BYTES),
    "network_per_gpu": Fact(field="inter_node_bytes_per_second", kind=BYTES_PER_SECOND),
    "oversubscription": Fact(field="oversubscription", kind="number"),
    "leaf_servers": Fact(field="leaf_servers", kind="count"),
    "rails": Fact(field="rails", kind="flag"),
}
BETWEEN_FACTS: dict[str, Fact] = {
    "network_between_pools": Fact(field="between_pools_bytes_per_second", kind=BYTES_PER_SECOND),
    "latency_between_pools": Fact(field="between_pools_latency_seconds", kind=SECONDS, zero=True),
}
"""Keys of the top level beside [[pool]]; the fields are those of Cluster."""
Built = TypeVar("Built")


def read_text(path: Path) -> str:
    """The text of a small regular UTF-8 file. Raises ClusterError, naming the path and what is wrong, for anything else."""
    shown = quote(str(path))
    try:
        mode = path.stat()
        if stat.S_ISDIR(mode.st_mode):
            raise ClusterError(f"{shown} is a directory; give a TOML file that describes a cluster")
        if not stat.S_ISREG(mode.st_mode):
            raise ClusterError(f"{shown} is not a regular file; give a TOML file that describes a cluster")
        if mode.st_size > MAX_FILE_BYTES:
            raise ClusterError(f"{shown} has {mode.st_size:,} bytes; a cluster file has at most {MAX_FILE_BYTES:,}")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise ClusterError(f"{shown} cannot be read: {error.strerror or type(error).__name__}") from None
    except ValueError as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(f"{shown} is not a path") from None
    if b"\0" in data:
        raise ClusterError(f"{shown} is a binary file; give a TOML file that describes a cluster")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClusterError(f"{shown} is not UTF-8 (byte {error.start}); give a TOML file that describes a cluster") from None
    if not text.strip():
        raise ClusterError(f"{shown} is empty; it needs at least gpu and count")
    return text


def _table(text: str, shown: str) -> dict[str, Any]:
    for number, line in enumerate(text.splitlines(), start=1):
        key = line if line.lstrip().startswith("[") else line.partition("=")[0]
        if len(line) > MAX_LINE or key.count(".") > MAX_KEY_DOTS:
            raise ClusterError(f"{shown}: line {number} is longer than {MAX_LINE} characters or nests its key too deep")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ClusterError(f"{shown}: values are nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and integers that Python refuses to read
        raise ClusterError(f"{shown} is not TOML: {' '.join(str(error).split())[:200]}") from None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "own"


_VOIDED = {
    "nominal_memory_bytes": ("driver_memory_bytes", "torch_memory_bytes"),
    "driver_memory_bytes": ("torch_memory_bytes",),
    "memory_bandwidth_bytes_per_second": ("measured_memory_bandwidth_bytes_per_second",),
}
"""Changed fact -> measured facts of the catalogue's card that no longer hold."""


def _changed_gpu(base: Gpu, values: Mapping[str, Any]) -> Gpu:
    """A catalogue GPU with some facts replaced, and what those make void left out."""
    merged = base.model_dump()
    for field, voided in _VOIDED.items():
        if field in values:
            merged.update(dict.fromkeys(voided))
    peaks = {**base.peak_flop_per_second, **values.get("peak_flop_per_second", {})}
    return build_gpu({**merged, **values, "peak_flop_per_second": peaks})


def _own_gpu(values: Mapping[str, Any]) -> Gpu:
    """A GPU that no catalogue holds. A peak for bf16 or fp8 means that the type is supported, unless the table says otherwise."""
    peaks = values.get("peak_flop_per_second", {})
    name = values.get("name", values.get("id"))
    problems = []
    if name is None:
        problems.append("name is missing: give the GPU's name, or base = a catalogue name")
    if not peaks:
        problems.append('peak_dense is missing: give the dense peaks, such as peak_dense = { bf16 = "312 TFLOP/s" }')
    if problems:
        raise RecordError(problems)
    defaults = {"id": _slug(str(name)), "name": name, "vendor": "unknown", "arch": "unknown"}
    return build_gpu({**defaults, "bf16_supported": "bf16" in peaks, "fp8_supported": "fp8" in peaks, **values})


def _table_with_base(
    given: object, what: str, facts: Mapping[str, Fact], load: Callable[[str], Built]
) -> tuple[dict[str, Any], Built | None]:
    """Facts of a table and the catalogue record that its `base` names. Raises RecordError with all problems of both."""
    if not isinstance(given, Mapping):
        raise RecordError([f"{quote(given)} must be a name or a table"])
    values, problems = collect_facts(given, facts, extra=("base",))
    base: Built | None = None
    if "base" in given and not isinstance(given["base"], str):
        problems.append(f"base {quote(given['base'])} must be the name of a {what} in the catalogue")
    elif "base" in given:
        try:
            base = load(given["base"])
        except UnknownName as error:
            problems.append(str(error))
    if problems:
        raise RecordError(problems)
    return values, base


def _read_gpu(given: object) -> Gpu:
    """The GPU that a name or a table means. Raises RecordError or UnknownName."""
    if isinstance(given, str):
        return load_gpu(given)
    values, base = _table_with_base(given, "GPU", GPU_FACTS, load_gpu)
    return _own_gpu(values) if base is None else _changed_gpu(base, values)


def _read_node(given: object, gpu: Gpu | None) -> tuple[Node, Gpu]:
    """The server that a name or a table means, and its GPU (`gpu`, else the server's own). Raises RecordError or UnknownName."""
    if isinstance(given, str):
        node = load_node(given)
        return node, gpu or load_gpu(node.gpu)
    values, base = _table_with_base(given, "server", NODE_FACTS, load_node)
    if gpu is None and base is None and "gpu" not in values:
        raise RecordError(["gpu is missing: give a name such as gpu = 'A100-80G', or a table"])
    gpu = gpu or load_gpu(values.get("gpu", base.gpu if base else ""))
    if base is None:
        if "gpus_per_node" not in values:
            raise RecordError(["gpus_per_node is missing: give it, or base = a catalogue server"])
        values.setdefault("name", values.get("id", "own server"))
        values.setdefault("id", _slug(values["name"]))
        base = plain_server(gpu, values["gpus_per_node"])
        if "link_bytes_per_second" in values:
            values.setdefault("link_domain_size", values["gpus_per_node"])
    elif "gpus_per_node" in values:
        base = resize_node(base, values["gpus_per_node"])
    if "link_domain_size" in values:
        values["link_domain_assumed"] = False
    return build_node({**base.model_dump(), **values, "gpu": gpu.id}), gpu


def _count(values: Mapping[str, Any], size: int) -> int:
    """GPUs of a pool whose servers use `size` each, from `count`, `nodes` or both."""
    count, nodes = values.get("count"), values.get("nodes")
    if count is None:
        return int(nodes or 0) * size
    needed = -(-count // size)
    if nodes is not None and needed != nodes:
        raise RecordError([f"count = {count} GPUs at {size} per server make {needed} servers, but nodes = {nodes}; leave one out"])
    return int(count)


def _read_machines(table: Mapping[str, Any], problems: list[str]) -> tuple[Gpu | None, Node | None]:
    """GPU and server of a pool; what is wrong with either is added to `problems`."""
    gpu: Gpu | None = None
    node: Node | None = None
    if "gpu" in table:
        try:
            gpu = _read_gpu(table["gpu"])
        except RecordError as error:
            problems.extend(f"gpu: {problem}" for problem in error.problems)
        except UnknownName as error:
            problems.append(str(error))
    if "node" in table:
        try:
            node, gpu = _read_node(table["node"], gpu)
        except RecordError as error:
            problems.extend(f"node: {problem}" for problem in error.problems)
        except UnknownName as error:
            problems.append(str(error))
    elif "gpu" not in table:
        problems.append("gpu is missing: give a name such as gpu = 'A100-80G', or a table")
    return gpu, node


def _read_pool(table: object, free_memory_bytes: float | None) -> PoolReport:
    """One pool. Raises RecordError with all problems of it at once."""
    if not isinstance(table, Mapping):
        raise RecordError([f"{quote(table)} must be a table"])
    problems: list[str] = []
    gpu, node = _read_machines(table, problems)
    values, wrong = collect_facts(table, POOL_FACTS, extra=("gpu", "node", "name"))
    problems.extend(wrong)
    if values.get("oversubscription", 1.0) < 1:
        problems.append(f"oversubscription {values['oversubscription']:g} must be 1 or more (NICs / fabric above them); try 1")
    if values.get("rails") and "leaf_servers" not in values:
        problems.append("rails = true needs leaf_servers: the servers that the leaf of one rail joins, such as 32, or all of them")
    if not problems and "count" not in values and "nodes" not in values:
        problems.append("count is missing: give count (GPUs) or nodes (servers)")
    if problems or gpu is None:
        raise RecordError(problems)
    try:
        server = node or default_server(gpu, values.get("gpus_per_node"))[0]
        values["count"] = _count(values, values.get("gpus_per_node", server.gpus_per_node))
        values.pop("nodes", None)
        if free_memory_bytes is not None:
            values["free_memory_bytes"] = free_memory_bytes
        return make_pool(PoolRequest(gpu=gpu, node=node, **values))
    except (ClusterError, UnknownName) as error:
        raise RecordError([str(error)]) from None


def _between(table: Mapping[str, object], problems: list[str]) -> dict[str, float]:
    """How the pools are joined: fields of Cluster. What is wrong is added to `problems`."""
    given = {key: value for key, value in table.items() if key in BETWEEN_FACTS}
    pools = table.get("pool")
    if given and not (isinstance(pools, list) and len(pools) > 1):
        problems.append(f"{' and '.join(given)} joins pools: give two or more [[pool]] tables")
        return {}
    values, wrong = collect_facts(given, BETWEEN_FACTS)
    problems.extend(wrong)
    return values


def read_cluster_file(path: Path, free_memory_bytes: float | None) -> tuple[str, list[PoolReport], dict[str, float]]:
    """Name and pools of a cluster file, and how they are joined (fields of Cluster). Raises ClusterError: one line with everything that
    is wrong in it."""
    shown = quote(str(path))
    table = _table(read_text(path), shown)
    name = table.get("name", path.stem)
    pools = table.get("pool", [table])
    problems: list[str] = []
    if not isinstance(name, str) or not name.isprintable() or len(name) > MAX_LINE:
        problems.append("name must be a text on one line")
    if not isinstance(pools, list) or not 1 <= len(pools) <= MAX_POOLS:
        raise ClusterError(f"{shown}: pool must be one to {MAX_POOLS} [[pool]] tables")
    between = _between(table, problems)
    if "pool" in table and set(table) - {"pool", "name", *BETWEEN_FACTS}:
        problems.append("give either one pool's keys at the top level or [[pool]] tables, not both")
    reports = []
    for number, pool in enumerate(pools, start=1):
        try:
            reports.append(_read_pool(pool, free_memory_bytes))
        except RecordError as error:
            where = f"pool {number}: " if len(pools) > 1 else ""
            problems.extend(where + problem for problem in error.problems)
    if problems:
        raise ClusterError(f"{shown}: {'; '.join(problems[:20])}{'; …' if len(problems) > 20 else ''}")
    return str(name), reports, between
