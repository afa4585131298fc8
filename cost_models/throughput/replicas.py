"""What data-parallel replicas cost: gradient reduction, ZeRO gathers, the optimizer step, and offload to host or NVMe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.numeric import Num, nothing, num
from cost_models.throughput.collectives import (
    Fabric,
    Placed,
    collective_seconds,
    network_seconds,
    place,
    send_network_seconds,
    send_seconds,
)
from cost_models.throughput.ranks import Ends, Ranks, ranks
from cost_models.throughput.sharing import window_left
from cost_models.throughput.unit import behind
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.choices.precision import Regime
    from cost_models.layout import Layout
    from cost_models.op import Collective
    from cost_models.throughput.roofline import Rates
    from cost_models.throughput.software import Software
    from cost_models.throughput.unit import Unit
    from cost_models.training import Training
    from hardware.spec import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicas:
    """The groups that hold the same parameters, and how their state is divided."""

    dense: Placed
    """Ranks that divide (or copy) the dense state: the shard group where one is set, else dp × cp."""
    expert: Placed | None
    """Ranks that hold the same experts; None for a model without."""
    copies: Placed | None
    """Replicas of a shard group (hybrid sharding); None where no layout has any."""
    divided: Num
    """Ranks over which the optimizer state of dense parameters is divided."""
    expert_divided: Num
    ends: Placed
    """First and last stage."""
    chain_crosses: bool
    """Some layout's pipeline spans several domains."""
    ranks: Ranks
    """Where all groups sit."""


def replicas(layout: Layout, r: Ranks, f: Fabric, *, experts: bool) -> Replicas:
    """Return the data-parallel groups of `layout` placed on the fabric. `experts`: the model has some."""
    zero = layout.choices.zero
    return Replicas(
        dense=place(f, r.dense),
        expert=place(f, r.expert) if experts else None,
        copies=None if r.copies is None else place(f, r.copies),
        divided=r.dense.count if zero else 1.0,
        expert_divided=(r.expert.count if experts else 1.0) if zero else 1.0,
        ends=place(f, Ends(chain=r.chain)),
        chain_crosses=bool(np.any(num(r.chain.span) > f.domain)),
        ranks=r,
    )


def zero3(u: Unit, r: Replicas, regime: Regime, training: Training, stack: Software) -> None:
    """Add to a unit its ZeRO-3 gathers (forward and backward) and its gradient reduction, per micro-batch."""
    width = regime.frozen_bytes if training.method in ("lora", "qlora") else regime.gather_bytes
    if training.method == "qlora":
        width = 0.5
    elif training.extra.get("float8_gather") == "yes":
        width = 1.0
    gather, gather_network = _timed(r, "all_gather", u.dense * width, u.expert * width)
    reduce, reduce_network = _timed(r, "reduce_scatter", u.trained_dense * regime.reduce_bytes, u.trained_expert * regime.reduce_bytes)
    if stack.zero_messages > 1.0:
        more = (stack.zero_messages - 1.0) * r.dense.base_seconds
        gather, reduce = gather + more, reduce + more
    u.zero_f = gather
    u.zero_b = gather + reduce
    u.zero_again = stack.zero_again
    both = gather_network + reduce_network
    u.zero_exposed_f = behind(u.zero_f, window_left(u.forward, u.zero_f, gather_network, u.network_f), stack.fsdp_hidden)
    u.zero_exposed_b = behind(u.zero_b, window_left(u.backward, u.zero_b, both, u.network_b), stack.fsdp_hidden)
    u.network_f, u.network_b, u.zero_network_f = u.network_f + gather_network, u.network_b + both, gather_network
    u.forward = u.forward + u.zero_exposed_f
    u.backward = u.backward + u.zero_exposed_b


_PLACE = (
    "gather_seconds_per_byte",
    "reduce_seconds_per_byte",
    "tree_seconds_per_byte",
    "network_seconds_per_byte",
    "network_reduce_seconds_per_byte",
    "base_seconds",
    "tree_base_seconds",
)


def placed_better(one: Layout, other: Layout, f: Fabric, *, experts: bool) -> npt.NDArray[np.bool_]:
    """Tell of which rows some group of `one` is placed better than in `other`, a batch that differs in the order of ranks alone.

    Where none is, no collective or send is faster, none leaves the network more time, and so the step is not either.
    """
    a, b = (replicas(layout, ranks(layout), f, experts=experts) for layout in (one, other))
    better = num(send_seconds(f, a.ranks.chain, 1.0)) < send_seconds(f, b.ranks.chain, 1.0)
    better = better | (num(send_network_seconds(f, a.ranks.chain, 1.0)) < send_network_seconds(f, b.ranks.chain, 1.0))
    better = better & (num(one.degrees.pp) > 1.0)
    for mine, its in ((a.dense, b.dense), (a.expert, b.expert), (a.copies, b.copies), (a.ends, b.ends)):
        if mine is not None and its is not None:
            for name in _PLACE:
                better = better | (num(getattr(mine, name)) < getattr(its, name))
    return np.asarray(better).reshape(-1)


def _timed(r: Replicas, kind: Collective, dense_bytes: Num, expert_bytes: Num) -> tuple[Num, Num]:
    """Seconds of one collective over the dense replicas and one over those of the experts, and how long they take the network."""
    seconds = collective_seconds(r.dense, kind, dense_bytes)
    network: Num = network_seconds(r.dense, kind, dense_bytes) if r.dense.crosses else 0.0
    if r.expert is not None and not nothing(expert_bytes):
        some = num(expert_bytes) > 0.0
        seconds = seconds + np.where(some, collective_seconds(r.expert, kind, expert_bytes), 0.0)
        network = network + network_seconds(r.expert, kind, expert_bytes) if r.expert.crosses else network
    return seconds, network


def offload_layers(u: Unit, layout: Layout, pool: Pool, r: Replicas, training: Training) -> None:
    """Add to a unit the host transfers of offloaded parameters (fetched for forward and backward) and activations (out and back)."""
    host = calibration("host")
    rate = (pool.host_link_bytes_per_second or host.value("unknown_host_link_bytes_per_second")) * host.value("host_link_fraction")
    moved_f: Num = 0.0
    if "params" in layout.choices.offload:
        shards = (u.dense / r.divided + u.expert / r.expert_divided) * 2.0
        moved_f = moved_f + shards * layout.degrees.offload_fraction
    moved_b = moved_f
    if np.any(num(layout.degrees.activation_offload) > 0.0):
        kept = u.saved_bytes * layout.degrees.activation_offload
        moved_f, moved_b = moved_f + kept, moved_b + kept
    u.offload_f, u.offload_b = moved_f / rate, moved_b / rate
    u.offload_exposed_f = np.maximum(u.offload_f - u.forward, 0.0)
    u.offload_exposed_b = np.maximum(u.offload_b - u.backward, 0.0)
    u.forward = u.forward + u.offload_exposed_f
    u.backward = u.backward + u.offload_exposed_b


@dataclass(frozen=True, kw_only=True, slots=True)
class Synchronised:
    """Seconds of one step, busy and exposed, of the slowest stage ((…, K) arrays)."""

    reduce: Num
    reduce_exposed: Num
    gather: Num
    gather_exposed: Num


def synchronise(
    layout: Layout,
    r: Replicas,
    regime: Regime,
    stack: Software,
    params: tuple[Num, Num],
    window: tuple[Num, Num],
    others: tuple[Num, Num],
    micro_batches: Num,
    training: Training,
) -> Synchronised:
    """Return gradient reduction and parameter gather of ZeRO 0, 1, 2, and of the copies of a ZeRO-3 shard group.

    `params` = trained dense and expert parameters of each stage; `window` = forward and backward seconds of a micro-batch of the stage,
    `others` = for how long of them other groups take the network. Reduction hides behind the last micro-batch's backward, the gather
    behind the first one's forward; a tail of a twentieth remains.
    """
    dense, expert = params
    zero = layout.choices.zero
    copies: Num = 0.0
    if r.copies is not None:
        held = dense * (regime.reduce_bytes / np.maximum(num(r.divided), 1.0))
        copies = np.where(num(r.copies.size) > 1.0, collective_seconds(r.copies, "all_reduce", held), 0.0)
    if zero == 3:
        taken: Num = 0.0 if r.copies is None or not r.copies.crosses else network_seconds(r.copies, "all_reduce", held)
        left = _behind_window(copies, window_left(window[1], copies, taken, others[1]), stack.grad_hidden)
        return Synchronised(reduce=copies, reduce_exposed=left, gather=0.0, gather_exposed=0.0)
    kind: Collective = "all_reduce" if zero == 0 else "reduce_scatter"
    once, taken = _timed(r, kind, dense * regime.reduce_bytes, expert * regime.reduce_bytes)
    each = zero == 2 and training.framework not in ("megatron",)
    times = micro_batches if each else 1.0
    reduce = once * times + copies
    exposed = _behind_window(once, window_left(window[1], once, taken, others[1]), stack.grad_hidden) * times + copies
    gather: Num = 0.0
    taken = 0.0
    if zero:
        gather, taken = _timed(r, "all_gather", dense * regime.gather_bytes, expert * regime.gather_bytes)
    shown = _behind_window(gather, window_left(window[0], gather, taken, others[0]), stack.gather_hidden)
    return Synchronised(reduce=reduce, reduce_exposed=exposed, gather=gather, gather_exposed=shown)


def copied_embedding_bytes(architecture: Architecture, training: Training, regime: Regime, vocab: Num) -> Num:
    """Return the gradient bytes of the matrix that first and last stage of a pipeline both hold, on a tp rank with `vocab` rows; 0: none.

    A tied embedding, and in Megatron-LM the one that multi-token-prediction modules look tokens up in. In the type that gradients are
    accumulated in, whole also where the optimizer is sharded (core/distributed/finalize_model_grads.py `_allreduce_embedding_grad`;
    DeepSpeed runtime/pipe/engine.py `_exec_reduce_tied_grads`). Learned positions are held by the first stage alone
    (core/parallel_state.py `default_position_embedding_ranks`), so nothing is reduced for them.
    """
    copied = architecture.tied_embeddings or (training.mtp and architecture.mtp_layers > 0)
    if training.method != "full" or not copied:
        return 0.0
    return vocab * (float(architecture.embed_proj_dim or architecture.hidden) * (regime.main_gradient_bytes or regime.gradient_bytes))


def replicated_gradients(tp: Placed, regime: Regime, elements: Num) -> Num:
    """Return the seconds of the all-reduce over tp of the gradients of norms and routers, whose ranks saw a part of the sequence each.

    Once a step, behind nothing (finalize_model_grads.py `_allreduce_non_tensor_model_parallel_grads`). `elements`: of each stage.
    """
    return collective_seconds(tp, "all_reduce", elements * (regime.main_gradient_bytes or regime.gradient_bytes))


def mirrored_gradients(r: Replicas, regime: Regime, params: tuple[Num, Num]) -> Num:
    """Return the seconds in which two ranks that hold the same two stages add up their gradients, of which each has those of half the
    micro-batches: once a step, behind nothing, as far apart as the first and the last rank.

    `params`: trained dense and expert parameters of a rank. Source: deepseek-ai/DualPipe examples/example_dualpipe.py (after `step`).
    """
    owned = params[0] / r.divided + params[1] / r.expert_divided
    return collective_seconds(r.ends, "all_reduce", owned * regime.reduce_bytes)


def _behind_window(busy: Num, window: Num, hidden: float) -> Num:
    if hidden == 0.0:
        return busy
    covered = np.minimum(busy * 0.95, window * hidden)
    return busy - covered + calibration("software").value("overlap_slowdown") * covered


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Seconds of the optimizer step of each stage ((…, K))."""

    device: Num
    host: Num
    """The part that runs on host CPUs."""
    transfer: Num
    """Gradients out and weights back over the host link, and states from and to NVMe."""


def update(layout: Layout, pool: Pool, r: Replicas, regime: Regime, rates: Rates, params: tuple[Num, Num]) -> Update:
    """Return the optimizer step: states read and written once over HBM, or on the host where they are offloaded."""
    soft, host = calibration("software"), calibration("host")
    owned = params[0] / r.divided + params[1] / r.expert_divided
    wide = regime.master_bytes or regime.weight_bytes
    gradient = regime.main_gradient_bytes or regime.gradient_bytes
    moved = 2.0 * wide + 2.0 * regime.moment_bytes + gradient + (regime.weight_bytes if regime.master_bytes else 0.0)
    moved += soft.value("optimizer_extra_bytes")
    rate = rates.hbm_bytes_per_second * soft.value("optimizer_fraction")
    zeroed = (params[0] + params[1]) * gradient
    device = (owned * moved + zeroed) / rate
    if "optimizer" not in layout.choices.offload:
        return Update(device=device, host=0.0, transfer=0.0)
    away = num(layout.degrees.offload_fraction)
    per_node = float(pool.gpus_per_node)
    cpu = owned * away * per_node / host.value("cpu_adam_parameters_per_second")
    link = (pool.host_link_bytes_per_second or host.value("unknown_host_link_bytes_per_second")) * host.value("host_link_fraction")
    transfer = owned * away * (gradient + regime.gather_bytes) / link
    if layout.choices.offload_target == "nvme":
        state = owned * away * per_node * (wide + regime.moment_bytes)
        read = pool.node.nvme_read_bytes_per_second or host.value("nvme_read_bytes_per_second")
        write = pool.node.nvme_write_bytes_per_second or host.value("nvme_write_bytes_per_second")
        transfer = transfer + state / read + state / write
    return Update(device=device * (1.0 - away) + zeroed * away / rate, host=cpu, transfer=transfer)
