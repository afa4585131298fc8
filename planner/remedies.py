"""Remedies: single changes of an infeasible request that make it feasible, each verified by a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cost_models.training import Training
from hardware.catalog import gpu_names, load_gpu
from hardware.cluster import ClusterError, parse_cluster
from hardware.spec import Cluster, Gpu, Pool
from planner.plan import Plan, Remedy
from planner.request import Resolved

BUDGET_SECONDS = 60.0
"""A guard: remedies take a few seconds, and are looked for no longer than this."""
SHORTEST = 512
"""Shortest sequence that is offered."""
GROWTH = 64
"""Most times the GPUs are multiplied."""
CARDS = 6
"""Larger cards that are tried."""


Best = Callable[[Resolved, float], "Plan | None"]
"""A search: (request, deadline) -> its best plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A request like the given one but for one thing."""

    change: str
    flags: str
    resolved: Resolved
    family: str
    """Of several changes of one family only the first that helps is kept."""


def remedies_for(resolved: Resolved, best: Best, *, deadline: float | None = None) -> tuple[Remedy, ...]:
    """Return the single changes after which a plan fits, the gentlest first, each with the plan that `best` (the search) finds."""
    end = time.monotonic() + BUDGET_SECONDS
    end = end if deadline is None else min(end, deadline)
    found: list[Remedy] = []
    helped: set[str] = set()
    for change in changes(resolved):
        if time.monotonic() > end:
            break
        if change.family in helped:
            continue
        plan = best(change.resolved, end)
        if plan is not None:
            helped.add(change.family)
            found.append(Remedy(change=change.change, flags=_flags(change, plan), plan=plan))
    return tuple(found)


def _flags(change: Change, best: Plan) -> str:
    """Return the flags, with the words of the offload that was found."""
    if change.family != "offload":
        return change.flags
    c = best.layout.choices
    target = " --offload-target nvme" if c.offload_target == "nvme" else ""
    return f"--offload {c.offload.replace('+', ',')}{target}"


def changes(resolved: Resolved) -> Iterator[Change]:
    """Yield the single changes worth trying, the gentlest first."""
    t = resolved.training
    freed = ("offload", "offload_fraction", "activation_offload", "offload_target")
    if any(name in resolved.fixed for name in freed) and t.method != "inference":
        loose = {k: v for k, v in resolved.fixed.items() if k not in freed}
        yield Change(change="offload to the host", flags="--offload auto", resolved=replace(resolved, fixed=loose), family="offload")
    for name in ("recompute", "micro_batch", "zero"):
        if name in resolved.fixed:
            dropped = (name, "recompute_layers", "recompute_modules") if name == "recompute" else (name,)
            loose = {k: v for k, v in resolved.fixed.items() if k not in dropped}
            flag = name.replace("_", "-")
            free = replace(resolved, fixed=loose)
            yield Change(change=f"leave {flag} to planner", flags=f"(without --{flag})", resolved=free, family=name)
    if t.method == "full":
        yield _trained(resolved, "8-bit Adam", "--optimizer adam8bit", "adam8bit", optimizer="adam8bit")
        if t.precision == "bf16" and t.regime is None:
            both = "--optimizer adam8bit --regime pure-bf16"
            yield _trained(resolved, "8-bit Adam on pure bf16", both, "adam8bit", optimizer="adam8bit", regime="pure-bf16")
            yield _trained(resolved, "pure bf16: no fp32 master, 16-bit moments", "--regime pure-bf16", "regime", regime="pure-bf16")
        yield _trained(resolved, f"LoRA of rank {t.lora_rank}", "--method lora", "lora", method="lora", regime=None)
    if t.method in ("full", "lora"):
        yield _trained(resolved, f"QLoRA of rank {t.lora_rank} on a 4-bit base", "--method qlora", "qlora", method="qlora", regime=None)
    yield from _shorter(resolved)
    yield from _more_gpus(resolved)
    yield from _larger_cards(resolved)


def _trained(resolved: Resolved, change: str, flags: str, family: str, **update: object) -> Change:
    training = Training(**{**resolved.training.model_dump(), **update})
    return Change(change=change, flags=flags, resolved=replace(resolved, training=training), family=family)


def _shorter(resolved: Resolved) -> Iterator[Change]:
    seq = resolved.training.seq // 2
    while seq >= SHORTEST:
        yield _trained(resolved, f"sequence {seq:,}", f"--seq {seq}", "sequence", seq=seq)
        seq //= 2


def _more_gpus(resolved: Resolved) -> Iterator[Change]:
    if len(resolved.cluster.pools) > 1 or "dp" in resolved.fixed:
        return
    pool, times = resolved.cluster.pools[0], 2
    while times <= GROWTH:
        made = _same_server(pool, pool.count * times)
        text = f"{pool.count * times}x{label(pool.gpu)}"
        flags = f"--cluster {text}" if _spells(text, made) else f"(a cluster of {pool.count * times} such GPUs)"
        cluster = Cluster(name=text, pools=(made,))
        more = replace(resolved, cluster=cluster)
        yield Change(change=f"{pool.count * times} × {pool.gpu.name}", flags=flags, resolved=more, family="gpus")
        times *= 2


def _same_server(pool: Pool, count: int) -> Pool:
    """Return `count` GPUs in as many of the pool's servers as they need."""
    return pool.model_copy(update={"count": count, "gpus_per_node": min(pool.node.gpus_per_node, max(pool.gpus_per_node, count))})


def _spells(text: str, pool: Pool) -> bool:
    """Tell whether the cluster string means just this pool."""
    try:
        meant = parse_cluster(text, free_memory_bytes=pool.free_memory_bytes).pools[0]
    except (ClusterError, ValueError):
        return False
    return meant.node.id == pool.node.id and meant.count == pool.count


def label(gpu: Gpu) -> str:
    """Return the shortest spelling of a GPU in a cluster string."""
    return gpu.aliases[0] if gpu.aliases and " " not in gpu.aliases[0] else gpu.id


def _larger_cards(resolved: Resolved) -> Iterator[Change]:
    """Yield the same number of larger cards of the same vendor, the smallest first, one of each size."""
    if len(resolved.cluster.pools) > 1:
        return
    pool = resolved.cluster.pools[0]
    if pool.free_memory_bytes is not None and pool.free_memory_bytes < pool.gpu.usable_memory_bytes:
        whole = pool.model_copy(update={"free_memory_bytes": None})
        cluster = Cluster(name=resolved.cluster.name, pools=(whole,))
        yield Change(change="the whole card", flags="(without --free-memory)", resolved=replace(resolved, cluster=cluster), family="card")
    cards = [load_gpu(name) for name in gpu_names()]
    larger = [g for g in cards if g.vendor == pool.gpu.vendor and g.default_node and g.usable_memory_bytes > pool.capacity_bytes * 1.05]
    larger.sort(key=lambda g: (g.nominal_memory_bytes, -(g.release_year or 0), g.id))
    sizes: dict[float, Gpu] = {}
    for gpu in larger:
        sizes.setdefault(gpu.nominal_memory_bytes, gpu)
    for gpu in list(sizes.values())[:CARDS]:
        text = f"{pool.count}x{label(gpu)}"
        try:
            cluster = parse_cluster(text)
        except (ClusterError, ValueError):
            continue
        larger_card = replace(resolved, cluster=cluster)
        yield Change(change=f"{pool.count} × {gpu.name}", flags=f"--cluster {text}", resolved=larger_card, family="card")
