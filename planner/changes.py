"""Changes: requests like a given one but for one thing, the gentlest first, each stated by the flags that make it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cost_models.layout import RANK_ORDERS
from hardware.catalog import gpu_names, load_gpu
from hardware.cluster import ClusterError, parse_cluster
from hardware.spec import Cluster, Gpu, Pool
from planner.asked import RequestError
from planner.request import Resolved, resolve
from planner.requirements import TOGETHER, requirements, same_server, trained

if TYPE_CHECKING:
    from planner.plan import Plan

SHORTEST = 512
"""Shortest sequence that is offered."""
GROWTH = 64
"""Most times the GPUs are multiplied."""
COUNTS = 24
"""Numbers of GPUs that are tried one by one between the given number and the first doubling that helps."""
CARDS = 6
"""Larger cards that are tried."""
FREED_FIRST = {"micro_batch": "micro-batch", "recompute": "recompute", "zero": "ZeRO", "offload": "offload"}
"""Layout fields that are freed first, the cheapest to give up first: accumulate, recompute, shard, offload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A request like the given one but for one thing."""

    change: str
    flags: str
    resolved: Resolved
    family: str
    """Of several changes of one family only the first that helps is kept."""
    freed: str = ""
    """Layout field that the change leaves open: the flags then name what was found for it."""


def again(resolved: Resolved, **update: Any) -> Resolved | None:
    """Return what the request means with other flags, defaults taken anew; None where they go not together.

    What was changed of the resolved request since (frameworks, pools) is kept.
    """
    if resolved.request is None:
        return None
    try:
        return resolve(resolved.request.model_copy(update=update))
    except (RequestError, ValueError):
        return None


def changes(resolved: Resolved) -> Iterator[Change]:
    """Yield the single changes worth trying, the gentlest first; the number of GPUs apart."""
    yield from _freed(resolved)
    yield from _unwished(resolved)
    yield from _runnable(resolved)
    yield from _batches(resolved)
    if resolved.training.method == "inference":
        yield from _fewer_bits(resolved)
    else:
        yield from _lighter(resolved)
    yield from _shorter(resolved)
    yield from larger_cards(resolved)


def _freed(resolved: Resolved) -> Iterator[Change]:
    """Yield the request without each layout field that it fixes, the cheapest first and those that change the model's cut last."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in resolved.fixed:
        head, members = next(((h, m) for h, m in TOGETHER if name in m), (name, (name,)))
        groups[head] = tuple(m for m in members if m in resolved.fixed)
    for head in sorted(groups, key=lambda h: (tuple(FREED_FIRST).index(h) if h in FREED_FIRST else len(FREED_FIRST), h)):
        if head == "offload" and resolved.training.method == "inference":
            continue
        loose = replace(resolved, fixed={k: v for k, v in resolved.fixed.items() if k not in groups[head]})
        yield Change(change=f"another {FREED_FIRST.get(head, head.replace('_', ' '))}", flags="", resolved=loose, family=head, freed=head)
    if resolved.frameworks:
        loose = replace(resolved, frameworks=())
        yield Change(change="another framework", flags="", resolved=loose, family="framework", freed="framework")


def _unwished(resolved: Resolved) -> Iterator[Change]:
    for number, wish in enumerate(resolved.wishes):
        loose = replace(resolved, wishes=tuple(w for w in resolved.wishes if w is not wish))
        yield Change(change=f"without {wish.words}", flags=f"(without {wish.spelled})", resolved=loose, family=f"wish {number}")


def _runnable(resolved: Resolved) -> Iterator[Change]:
    """Yield types and kernels that the device computes in, where it lacks those that are asked for."""
    t = resolved.training
    pieces: dict[str, str] = {}
    asked = {requirement.id for requirement in requirements(resolved)}
    if "attention" in asked:
        pieces["attention"] = "eager" if t.attention == "flash" else "flash"
    for precision in ("bf16", "fp16", "fp32"):
        pieces["precision"] = precision
        for held in ({"precision": precision}, {"attention": pieces.get("attention", t.attention)}, pieces):
            differs = {k: v for k, v in held.items() if getattr(t, k) != v}
            made = again(resolved, **differs) if differs else None
            if made is not None:
                words = " and ".join(f"{k} {v}" for k, v in differs.items())
                flags = " ".join(f"--{k} {v}" for k, v in differs.items())
                yield Change(change=words, flags=flags, resolved=made, family="precision")


def _batches(resolved: Resolved) -> Iterator[Change]:
    """Yield the nearest larger batch that every split of the GPUs, or at least the fixed one, divides."""
    t, fixed = resolved.training, resolved.fixed
    if t.method == "inference":
        return
    step = int(fixed.get("micro_batch", 1)) * int(fixed.get("dp", 1))
    world = math.lcm(step, *(pool.count for pool in resolved.cluster.pools))
    tried = [-(-t.global_batch // unit) * unit for unit in (step, world, world * int(fixed.get("pp", 1)))]
    tried += [t.global_batch // step * step]
    for batch in dict.fromkeys(b for b in tried if 0 < b != t.global_batch):
        for made in trained(resolved, global_batch=batch):
            flags = f"--global-batch {batch}"
            yield Change(change=f"global batch {batch:,}", flags=flags, resolved=made, family="global_batch")


def _lighter(resolved: Resolved) -> Iterator[Change]:
    t = resolved.training
    if t.method == "full":
        yield from _asked(resolved, "8-bit Adam", "adam8bit", optimizer="adam8bit")
        if t.precision == "bf16" and t.regime is None:
            yield from _asked(resolved, "8-bit Adam on pure bf16", "adam8bit", optimizer="adam8bit", regime="pure-bf16")
            yield from _asked(resolved, "pure bf16: no fp32 master, 16-bit moments", "regime", regime="pure-bf16")
        yield from _asked(resolved, f"LoRA of rank {t.lora_rank}", "lora", method="lora", regime=None)
    if t.method in ("full", "lora"):
        yield from _asked(resolved, f"QLoRA of rank {t.lora_rank} on a 4-bit base", "qlora", method="qlora", regime=None)


def _fewer_bits(resolved: Resolved) -> Iterator[Change]:
    t = resolved.training
    for bits in (8, 4):
        if bits < t.kv_bits:
            yield from _asked(resolved, f"KV cache of {bits} bits", "kv_bits", kv_bits=bits)
    for bits in (8, 4):
        if bits < t.weight_bits:
            yield from _asked(resolved, f"weights of {bits} bits", "weight_bits", weight_bits=bits)


def _shorter(resolved: Resolved) -> Iterator[Change]:
    seq = resolved.training.seq // 2
    while seq >= SHORTEST:
        yield from _asked(resolved, f"sequence {seq:,}", "sequence", seq=seq)
        seq //= 2


def _asked(resolved: Resolved, change: str, family: str, **update: Any) -> Iterator[Change]:
    """Yield the request with other flags; those that are None are left out of what is shown."""
    made = again(resolved, **update)
    if made is not None:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in update.items() if value is not None)
        yield Change(change=change, flags=flags, resolved=made, family=family)


def doublings(resolved: Resolved) -> list[Change]:
    """Return 2, 4, 8, … times the GPUs; nothing for a mixed cluster."""
    if len(resolved.cluster.pools) > 1:
        return []
    pool, counts = resolved.cluster.pools[0], [2]
    while counts[-1] < GROWTH:
        counts.append(counts[-1] * 2)
    return [with_gpus(resolved, pool.count * times) for times in counts]


def between(resolved: Resolved, helped: int) -> list[Change]:
    """Return the clusters with fewer GPUs than `helped`, in whole servers above one, ascending; the last ones where they are many."""
    pool = resolved.cluster.pools[0]
    whole = pool.node.gpus_per_node
    counts = [n for n in range(pool.count + 1, helped) if n <= whole or n % whole == 0] if helped <= 2**16 else []
    return [with_gpus(resolved, count) for count in counts[-COUNTS:]]


def with_gpus(resolved: Resolved, count: int) -> Change:
    """Return the request on `count` GPUs of the same server; a batch that was taken by default is taken anew."""
    pool = resolved.cluster.pools[0]
    made = same_server(pool, count)
    text = f"{count}x{label(pool.gpu)}"
    spelled = _spells(text, made)
    found = again(resolved, cluster=text) if spelled else None
    if found is None:
        found = replace(resolved, cluster=Cluster(name=text, pools=(made,)))
    flags = f"--cluster {text}" if spelled else f"(a cluster of {count} such GPUs)"
    return Change(change=f"{count} × {pool.gpu.name}", flags=flags, resolved=found, family="gpus")


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


def larger_cards(resolved: Resolved) -> Iterator[Change]:
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
        made = again(resolved, cluster=text, free_memory=None)
        if made is not None:
            yield Change(change=f"{pool.count} × {gpu.name}", flags=f"--cluster {text}", resolved=made, family="card")


def found_flags(change: Change, best: Plan) -> tuple[str, str]:
    """Return the change in words and its flags, with what was found for a field that was left open."""
    if not change.freed:
        return change.change, change.flags
    degrees, choices = best.layout.degrees, best.layout.choices
    if change.freed == "framework":
        return f"framework {best.training.framework}", f"--framework {best.training.framework}"
    if change.freed == "offload":
        return _offload_found(best)
    if change.freed == "recompute":
        modules = f" --recompute-modules {','.join(choices.recompute_modules)}" if choices.recompute == "selective" else ""
        return f"recompute {choices.recompute}", f"--recompute {choices.recompute}{modules}"
    value = getattr(choices, change.freed, None)
    value = float(getattr(degrees, change.freed)) if value is None else value
    flag = change.freed.replace("_", "-")
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {flag.replace('-', ' ')}", f"--{'' if value else 'no-'}{flag}"
    shown = value if isinstance(value, str) else f"{int(value)}"
    if change.freed == "rank_order":
        shown = RANK_ORDERS[int(shown)]
    if change.freed == "shard_group" and shown == "0":
        return "sharded over all ranks", "(without --shard-group)"
    return f"{FREED_FIRST.get(change.freed, flag)} {shown}", f"--{flag} {shown}"


def _offload_found(best: Plan) -> tuple[str, str]:
    degrees, choices = best.layout.degrees, best.layout.choices
    part, moved = float(degrees.offload_fraction), float(degrees.activation_offload)
    words = [w if w == "params" or part == 1.0 else f"{w}:{part:.12g}" for w in choices.offload.split("+") if w != "none"]
    words += [] if not moved else ["activations" if moved == 1.0 else f"activations:{moved:.12g}"]
    if not words:
        return "no offload", "--offload none"
    target = " --offload-target nvme" if choices.offload_target == "nvme" and choices.offload != "none" else ""
    names = [word.partition(":")[0] for word in words]
    where = "NVMe" if target else "host"
    said = f"{' and '.join(names)} on the {where}" if len(names) < 3 else f"offload to the {where}"
    return said, f"--offload {','.join(words)}{target}"
