"""What was understood of a request: model, cluster, training, and what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.transformer import count_parameters
from hardware.pools import describe_node
from planner.report.words import gib, parameters, plural

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.training import Training
    from hardware.spec import Cluster, Pool
    from planner.report.look import Look

LONG = 60
"""An assumption longer than this gets a line of its own."""


def understood(
    name: str | None,
    could_mean: Sequence[str],
    architecture: Architecture,
    cluster: Cluster,
    training: Training,
    assumed: Sequence[str],
    warnings: Sequence[str],
    look: Look,
) -> list[str]:
    """Return the opening lines of a report; `could_mean` is what else a bare size could stand for."""  # fmt: skip
    also = f"; could also be {', '.join(could_mean)} (planner models {name})" if could_mean else ""
    lines = look.headed("Model", model_text(name, architecture) + also)
    for index, pool in enumerate(cluster.pools):
        lines += look.headed("Cluster" if index == 0 else "", pool_text(pool))
    lines += look.headed("Train", training_text(training))
    said = [_without_description(text, cluster) for text in assumed if not (could_mean and text.startswith(f"{name}: took "))]
    together = " · ".join(text for text in said if len(text) <= LONG)
    for index, text in enumerate([*([together] if together else []), *(text for text in said if len(text) > LONG)]):
        lines += look.headed("Assumed" if index == 0 else "", text, dim=True)
    for index, text in enumerate(warnings):
        lines += look.headed("Warning" if index == 0 else "", text)
    return lines


def _without_description(text: str, cluster: Cluster) -> str:
    """An assumption about a server without the description that the line above holds."""
    for pool in cluster.pools:
        text = text.replace(describe_node(pool.node), describe_node(pool.node).partition(" (")[0])
    return text


def model_text(name: str | None, a: Architecture) -> str:
    """Return the model in a line: `30b → facebook/opt-30b, 48 layers × 7168, 29.97 B parameters`."""
    counts = count_parameters(a)
    arrow = f"{name} → " if name and name != a.id else ""
    active = f", {parameters(counts.active_parameters)} active" if counts.active_parameters != counts.parameters else ""
    experts = f", {a.moe.num_experts} experts (top {a.moe.topk})" if a.moe is not None else ""
    vision = f" (and a vision tower of {parameters(a.vision_parameters)}, not planned)" if a.vision_parameters else ""
    return f"{arrow}{a.id}, {a.layers} layers × {a.hidden}{experts}, {parameters(counts.parameters)} parameters{active}{vision}"


def pool_text(pool: Pool) -> str:
    """Return a pool in a line: `4 × DGX A100 (8 GPUs, NVLink3 300 GB/s, …): 32 × A100 SXM4 80GB, 79.2 GiB each`."""
    used = f", {pool.gpus_per_node} used of each" if pool.gpus_per_node < pool.node.gpus_per_node else ""
    shared = ", shared cards" if pool.free_memory_bytes is not None else ""
    servers = f"{pool.nodes} × " if pool.nodes > 1 else ""
    size = f"{gib(pool.capacity_bytes)} GiB each{shared}"
    return f"{servers}{describe_node(pool.node)}{used}: {pool.count:,} × {pool.gpu.name}, {size}{fabric_text(pool)}"


def fabric_text(pool: Pool) -> str:
    """Return what joins the servers where that is no full fabric: `, 4 : 1 oversubscribed above leaves of 32 servers by rail`."""
    if pool.nodes == 1 or (pool.oversubscription == 1.0 and not pool.rails):
        return ""
    above = f"above leaves of {plural(pool.leaf_servers, 'server')}" if pool.leaf_servers else "between servers"
    return f", {pool.oversubscription:g} : 1 oversubscribed {above}{' by rail' if pool.rails else ''}"


def training_text(t: Training) -> str:
    """Return the training in a line."""
    method = f"{t.method} (rank {t.lora_rank})" if t.method in ("lora", "qlora") else t.method
    if t.method == "inference":
        kinds = f"weights of {t.weight_bits} bits, KV cache of {t.kv_bits} bits"
        return f"{method}, {kinds}, sequence {t.seq:,}, {plural(t.global_batch, 'sequence')}"
    mtp = ", with the MTP modules" if t.mtp else ""
    shape = f"sequence {t.seq:,}, global batch {t.global_batch:,}{mtp}"
    return f"{method}, {t.precision}, {t.optimizer}, {t.attention} attention, {shape}{_stack_text(t)}"


def _stack_text(t: Training) -> str:
    """The switches of the software that were set; nothing where all are the framework's defaults of today."""
    said = [f"software of {t.date}"] if t.date else []
    said += [] if t.compile is None else ["compiled" if t.compile else "not compiled"]
    said += [f"{name}={value}" for name, value in t.extra.items()]
    return f"; {', '.join(said)}" if said else ""
