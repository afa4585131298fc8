"""Requirements: what a request demands, piece by piece, and what the request becomes when one piece is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Training
from hardware.spec import Cluster, Pool
from hardware.units import in_gib, significant
from planner.request import Resolved
from planner.rules import laws
from planner.rules.rule import spelled

UNLIMITED_BYTES = 1e18
"""Capacity of a card whose size is no requirement."""
SHORT = 512
"""Sequence that stands for any shorter one."""
TIMES = (4, 64)
"""Factors that stand for more GPUs."""
TOGETHER = (
    ("offload", ("offload", "offload_fraction", "activation_offload", "offload_target")),
    ("recompute", ("recompute", "recompute_layers", "recompute_modules")),
)
"""Fixed fields that are dropped as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One demand of a request."""

    id: str
    words: str
    flags: str
    """How the request states it, or what would change it."""
    relax: Callable[[Resolved], list[Resolved]]
    """The requests that stand for all that dropping it allows, the most permissive first, the given one last."""


def requirements(resolved: Resolved) -> list[Requirement]:
    """Return what may be dropped, from what is least telling in an explanation to what is most."""
    return [
        *_details(resolved),
        *_sizes(resolved),
        *_states(resolved),
        *_named_framework(resolved),
        *_fixed(resolved),
        *_wishes(resolved),
        *_method(resolved),
        *_machine(resolved),
    ]


def _given(one: Callable[[Resolved], list[Resolved]]) -> Callable[[Resolved], list[Resolved]]:
    """Add the request as it stands to what a change makes of it."""
    return lambda resolved: [*one(resolved), resolved]


def trained(resolved: Resolved, **update: Any) -> list[Resolved]:
    """Return the request with another training; nothing where those values go not together or change nothing."""
    try:
        training = Training(**{**resolved.training.model_dump(), **update})
    except ValueError:
        return []
    return [] if training == resolved.training else [replace(resolved, training=training)]


def with_pools(resolved: Resolved, change: Callable[[Pool], Pool]) -> Resolved:
    """Return the request with every pool of its cluster changed."""
    cluster = resolved.cluster
    changed = Cluster(name=cluster.name, pools=tuple(change(pool) for pool in cluster.pools), assumed=cluster.assumed)
    return replace(resolved, cluster=changed)


def _details(resolved: Resolved) -> Iterator[Requirement]:
    t = resolved.training
    if t.mtp:
        relax = _given(lambda r: trained(r, mtp=False))
        yield Requirement(id="mtp", words="multi-token prediction", flags="--mtp", relax=relax)
    if t.attention == "eager" or not _device_runs(resolved, "flash_device"):
        relax = _given(lambda r: trained(r, attention="eager" if t.attention == "flash" else "flash"))
        yield Requirement(id="attention", words=f"{t.attention} attention", flags=f"--attention {t.attention}", relax=relax)
    if t.method != "inference":
        words, flags = f"global batch {t.global_batch:,}", f"--global-batch {t.global_batch}"
        yield Requirement(id="global_batch", words=words, flags=flags, relax=_given(_any_batch))


def _any_batch(resolved: Resolved) -> list[Resolved]:
    """Return batches that every split of the GPUs divides: a small one, and one with micro-batches enough for every pipeline."""
    step = max(1, int(resolved.fixed.get("micro_batch", 1))) * max(1, int(resolved.fixed.get("dp", 1)))
    small = math.lcm(*(pool.count for pool in resolved.cluster.pools), step)
    return [*trained(resolved, global_batch=small), *trained(resolved, global_batch=small * max(p.count for p in resolved.cluster.pools))]


def _sizes(resolved: Resolved) -> Iterator[Requirement]:
    node = resolved.cluster.pools[0].node
    if node.nvme_bytes is not None:
        words = f"{significant(in_gib(node.nvme_bytes))} GiB of NVMe per server"
        yield Requirement(id="nvme", words=words, flags="", relax=lambda r: [_on_nodes(r, nvme_bytes=None)])
    if node.host_memory_bytes is not None:
        words = f"{significant(in_gib(node.host_memory_bytes))} GiB of host memory per server"
        yield Requirement(id="host_memory", words=words, flags="", relax=lambda r: [_on_nodes(r, host_memory_bytes=None)])
    seq = resolved.training.seq
    shorter = SHORT if seq > SHORT else seq // 4
    if shorter >= 1:
        relax = _given(lambda r: trained(r, seq=shorter))
        yield Requirement(id="seq", words=f"sequence {seq:,}", flags=f"--seq {seq}", relax=relax)


def _on_nodes(resolved: Resolved, **update: Any) -> Resolved:
    return with_pools(resolved, lambda pool: pool.model_copy(update={"node": pool.node.model_copy(update=update)}))


def _states(resolved: Resolved) -> Iterator[Requirement]:
    t = resolved.training
    if t.method == "inference":
        return
    regime = f", regime {t.regime}" if t.regime is not None else ""
    flags = f"--precision {t.precision} --optimizer {t.optimizer}" + (f" --regime {t.regime}" if t.regime is not None else "")
    yield Requirement(id="states", words=f"{t.precision} with {t.optimizer}{regime}", flags=flags, relax=_given(_any_states))


def _any_states(resolved: Resolved) -> list[Resolved]:
    """Return the leanest states, and plain ones in the first type that the device computes in."""
    found = []
    if resolved.training.method == "full":
        found += trained(resolved, precision="bf16", optimizer="adam8bit", regime="pure-bf16")
    for precision in ("bf16", "fp16", "fp32"):
        plain = trained(resolved, precision=precision, optimizer="adamw", regime=None)
        if any(_device_runs(one, "bf16_device", "fp8_device", "known_peak") for one in plain):
            return [*found, *plain]
    return found


def _device_runs(resolved: Resolved, *rules: str) -> bool:
    """Tell whether the request keeps these laws about the device."""
    case = resolved.case()
    layout = Layout(degrees=Degrees(), choices=Choices(sequence_parallel=False))
    return all(bool(rule.holds(case, layout)) for rule in laws(case) if rule.id in rules)


def _named_framework(resolved: Resolved) -> Iterator[Requirement]:
    if resolved.frameworks:
        name = resolved.frameworks[0]
        relax = _given(lambda r: [replace(r, frameworks=())])
        yield Requirement(id="framework", words=f"framework {name}", flags=f"--framework {name}", relax=relax)


def _fixed(resolved: Resolved) -> Iterator[Requirement]:
    done: set[str] = set()
    for name, value in resolved.fixed.items():
        if name in done:
            continue
        group = next(((head, members) for head, members in TOGETHER if name in members), (name, (name,)))
        held = [member for member in group[1] if member in resolved.fixed]
        done.update(held)
        words = offload_words(resolved) if group[0] == "offload" else ", ".join(_spelled(m, resolved.fixed[m]) for m in held)
        flags = words if group[0] == "offload" else " ".join(_flag(m, resolved.fixed[m]) for m in held)
        relax = _given(lambda r, held=tuple(held): [_without(r, held)])  # type: ignore[misc]
        yield Requirement(id=group[0] if len(held) > 1 else name, words=words if held else f"{value}", flags=flags, relax=relax)


def _without(resolved: Resolved, fields: tuple[str, ...]) -> Resolved:
    return replace(resolved, fixed={name: value for name, value in resolved.fixed.items() if name not in fields})


def _spelled(name: str, value: object) -> str:
    return f"{name}={','.join(value)}" if isinstance(value, tuple) else spelled(name, value)


def _flag(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return flag if value else "--no-" + flag[2:]
    return f"{flag} {','.join(value) if isinstance(value, tuple) else value}"


def offload_words(resolved: Resolved) -> str:
    """Return the flags that fix the offload, as given: `--offload none`."""
    asked = None if resolved.request is None else resolved.request.offload
    target = resolved.fixed.get("offload_target")
    parts = [] if asked is None and "offload" not in resolved.fixed else [f"--offload {asked or resolved.fixed['offload']}"]
    return " ".join([*parts, *([f"--offload-target {target}"] if target is not None else [])])


def _wishes(resolved: Resolved) -> Iterator[Requirement]:
    for number, wish in enumerate(resolved.wishes):
        relax = _given(lambda r, wish=wish: [replace(r, wishes=tuple(w for w in r.wishes if w is not wish))])  # type: ignore[misc]
        yield Requirement(id=f"wish {number}", words=wish.words, flags=wish.spelled, relax=relax)


def _method(resolved: Resolved) -> Iterator[Requirement]:
    t = resolved.training
    others = {"full": ("qlora", "lora"), "lora": ("qlora",)}.get(t.method, ())
    if others:
        words = {"full": "full training", "lora": "LoRA"}[t.method]
        relax = _given(lambda r: [one for method in others for one in trained(r, method=method, regime=None)])
        yield Requirement(id="method", words=words, flags=f"--method {t.method}", relax=relax)


def _machine(resolved: Resolved) -> Iterator[Requirement]:
    pools = resolved.cluster.pools
    if len(pools) == 1:
        words = f"{pools[0].count:,} GPU" + ("s" if pools[0].count > 1 else "")
        yield Requirement(id="gpus", words=words, flags=f"--cluster {resolved.cluster.name}", relax=_given(_any_gpus))
    sizes = " and ".join(dict.fromkeys(f"{significant(in_gib(pool.capacity_bytes))} GiB" for pool in pools))
    if resolved.margin is None:
        words, flags = f"{sizes} per GPU, with {100 * resolved.confidence:g} % confidence", f"--confidence {resolved.confidence:g}"
    else:
        words, flags = f"{sizes} per GPU, {100 * resolved.margin:g} % of it kept free", f"--margin {resolved.margin:g}"
    yield Requirement(id="memory", words=words, flags=flags, relax=lambda r: [with_pools(r, _unlimited)])


def _any_gpus(resolved: Resolved) -> list[Resolved]:
    """Return clusters of the same server: as many GPUs as the fixed degrees need, more, and less."""
    count = resolved.cluster.pools[0].count
    fixed = [int(resolved.fixed[name]) for name in ("tp", "pp", "cp", "dp") if name in resolved.fixed]
    product = math.prod(fixed)
    wanted = [product * times for times in (1, *TIMES)] if fixed else []
    wanted += [count * times for times in reversed(TIMES)] + [1]
    return [with_pools(resolved, lambda pool, n=n: same_server(pool, n)) for n in dict.fromkeys(wanted) if n != count]  # type: ignore[misc]


def same_server(pool: Pool, count: int) -> Pool:
    """Return `count` GPUs in as many of the pool's servers as they need."""
    return pool.model_copy(update={"count": count, "gpus_per_node": min(pool.node.gpus_per_node, max(pool.gpus_per_node, count))})


def _unlimited(pool: Pool) -> Pool:
    gpu = pool.gpu.model_copy(update={"torch_memory_bytes": UNLIMITED_BYTES})
    return pool.model_copy(update={"gpu": gpu, "free_memory_bytes": None})
