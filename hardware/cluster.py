"""What people type after `--cluster` to a `Cluster`.

32xA100-80G                   GPUs of one kind, in the server that their name stands for
4x8xH100-80G                  servers × GPUs in each
16xp5.48xlarge                servers by name
8xA100-80G+4xRTX3090-24G      several pools
lab.toml                      a file (see hardware.cluster_file)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hardware.catalog import UnknownName, find, load_gpu, load_node, unknown
from hardware.cluster_file import MAX_POOLS, read_cluster_file
from hardware.pools import MAX_GPUS, ClusterError, PoolReport, PoolRequest, describe_node, make_pool, unknowns
from hardware.spec import Cluster
from hardware.units import UnitError, parse_bytes, quote

__all__ = ["EXAMPLES", "MAX_GPUS", "ClusterError", "describe_node", "parse_cluster"]

EXAMPLES = "32xA100-80G, 4x8xH100-80G, 16xp5.48xlarge, 8xA100-80G+4xRTX3090-24G or a .toml file"
MAX_TEXT = 2000
_COUNT = re.compile(r"([0-9]+)\s*[x×*]\s*")
_BAD_COUNT = re.compile(r"([+-]?(?:[0-9.,_^]+(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?))\s*[x×*](?!$)", re.IGNORECASE)


def _counts(term: str) -> tuple[list[int], str]:
    """Leading counts (two at most) and the name that follows them. Raises ClusterError."""
    counts: list[int] = []
    rest = term
    while len(counts) < 2 and (match := _COUNT.match(rest)):
        if len(match[1].lstrip("0")) > len(str(MAX_GPUS)) or not 1 <= int(match[1]) <= MAX_GPUS:
            raise ClusterError(f"{quote(match[1])} in cluster {quote(term)}: counts lie between 1 and {MAX_GPUS:,}, as in {EXAMPLES}")
        counts.append(int(match[1]))
        rest = rest[match.end() :]
    if not rest or (not counts and rest.isdecimal() and find(rest, "gpu") is None):
        raise ClusterError(f"cluster {quote(term)} names no GPU or server; give {EXAMPLES}")
    if _COUNT.match(rest) and len(counts) == 2:
        raise ClusterError(f"cluster {quote(term)} has too many counts; give servers x GPUs x name at most, as in 4x8xH100-80G")
    bad = _BAD_COUNT.match(rest)
    if bad:
        raise ClusterError(f"{quote(bad[1])} in cluster {quote(term)} is not a whole number from 1 to {MAX_GPUS:,}; give {EXAMPLES}")
    return counts, rest


def _find(name: str) -> tuple[str | None, str | None]:
    """Ids of the GPU, or else the server, that `name` means. Raises UnknownName."""
    try:
        gpu = find(name, "gpu")
    except UnknownName:
        node = find(name, "node")
        if node is None:
            raise
        return None, node
    if gpu is not None:
        return gpu, None
    node = find(name, "node")
    if node is None:
        raise unknown(name, "gpu", "node")
    return None, node


def _read_term(term: str, free_memory_bytes: float | None) -> PoolReport:
    """One pool of a cluster string. Raises ClusterError."""
    counts, name = _counts(term)
    try:
        gpu_id, node_id = _find(name)
    except UnknownName as error:
        raise ClusterError(f"{error}" if error.nearest else f"{error}; a cluster is written {EXAMPLES}") from None
    node = load_node(node_id) if node_id is not None else None
    gpu = load_gpu(gpu_id or (node.gpu if node else name))
    per_node = counts[1] if len(counts) == 2 else None
    servers = counts[0] if counts else 1
    count = servers if node is None and per_node is None else servers * (per_node or (node.gpus_per_node if node else 1))
    return make_pool(PoolRequest(gpu=gpu, node=node, count=count, gpus_per_node=per_node, free_memory_bytes=free_memory_bytes))


def _read_string(text: str, free_memory_bytes: float | None) -> tuple[str, list[PoolReport]]:
    """Canonical text and pools of a cluster string. Raises ClusterError."""
    terms = [" ".join(term.split()) for term in text.split("+")]
    if not all(terms):
        what = "is empty" if not text.strip() else "lacks a pool beside a +"
        raise ClusterError(f"cluster {quote(text)} {what}; give {EXAMPLES}")
    if len(terms) > MAX_POOLS:
        raise ClusterError(f"cluster {quote(text)} has {len(terms)} pools; at most {MAX_POOLS} are read")
    name = "+".join(_COUNT.sub(lambda match: f"{match[1]}x", term, count=2) for term in terms)
    return name, [_read_term(term, free_memory_bytes) for term in terms]


def _is_path(text: str) -> bool:
    """True for a text that means a file: it ends in .toml, holds a path separator, or exists and names nothing known."""
    if text.lower().endswith(".toml") or "/" in text or "\\" in text:
        return True
    if not text.strip() or _COUNT.match(text) or not os.path.exists(text):
        return False
    try:
        return find(text, "gpu") is None and find(text, "node") is None
    except UnknownName:
        return False


def _merged(reports: list[PoolReport]) -> list[PoolReport]:
    """Pools of equal servers are one pool: same GPU, server, network, GPUs used of each server (full servers alone) and free memory."""
    found: dict[str, PoolReport] = {}
    for report in reports:
        pool = report.pool
        whole = pool.count % pool.gpus_per_node == 0
        key = pool.model_copy(update={"count": 1}).model_dump_json() if whole else f"{len(found)}"
        if key not in found:
            found[key] = report
            continue
        before = found[key]
        count = before.pool.count + pool.count
        sentence = f"{before.pool.count} x and {pool.count} x {pool.gpu.name} in equal servers are one pool of {count}"
        assumed = (*before.assumed, *report.assumed, sentence)
        joined = before.pool.model_copy(update={"count": count})
        found[key] = PoolReport(pool=joined, assumed=tuple(dict.fromkeys(assumed)), warnings=tuple(unknowns(joined)))
    return list(found.values())


def _cluster(name: str, reports: list[PoolReport], between: Mapping[str, float] | None = None) -> Cluster:
    """Joins the pools; with several, each sentence says whose it is. Equal pools are one unless `between` says how they are joined."""
    reports = reports if between else _merged(reports)

    def label(report: PoolReport, sentence: str) -> str:
        return sentence if len(reports) == 1 else f"{report.pool.count} x {report.pool.gpu.name}: {sentence}"

    cluster = Cluster(
        name=name,
        pools=tuple(report.pool for report in reports),
        assumed=tuple(dict.fromkeys(label(report, sentence) for report in reports for sentence in report.assumed)),
        warnings=tuple(dict.fromkeys(label(report, sentence) for report in reports for sentence in report.warnings)),
        **(between or {}),
    )
    if cluster.count > MAX_GPUS:
        raise ClusterError(f"cluster {quote(name)} has {cluster.count:,} GPUs; at most {MAX_GPUS:,} are planned")
    return cluster


def parse_cluster(text_or_path: str | Path, *, free_memory_bytes: float | None = None) -> Cluster:
    """The cluster that a string or a TOML file means.

    `free_memory_bytes` is what is left of each card where it is shared; it replaces the file's own.
    Raises ClusterError (one line: what was given, the law, valid examples or the nearest names).
    """
    if free_memory_bytes is not None:
        try:
            free_memory_bytes = parse_bytes(free_memory_bytes)
        except UnitError as error:
            raise ClusterError(f"free memory: {error}") from None
        if free_memory_bytes == 0:
            raise ClusterError("free memory must be more than zero, such as 60 GiB")
    if isinstance(text_or_path, Path):
        return _cluster(*read_cluster_file(text_or_path, free_memory_bytes))
    if len(text_or_path) > MAX_TEXT:
        raise ClusterError(f"cluster {quote(text_or_path)} has {len(text_or_path):,} characters; give {EXAMPLES}")
    if _is_path(text_or_path):
        return _cluster(*read_cluster_file(Path(text_or_path), free_memory_bytes))
    return _cluster(*_read_string(text_or_path, free_memory_bytes))
