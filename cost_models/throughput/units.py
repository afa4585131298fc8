"""Seconds of one unit of the model (a layer of one kind, the embedding, the head) per rank and micro-batch, by what takes them.

Ops of like kind are added up before they are priced: HBM bytes and collective messages are linear, so one pass prices them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from cost_models.numeric import Num, nothing, num
from cost_models.op import Collective, Op
from cost_models.throughput.collectives import (
    collective_seconds,
    dispatch_network_seconds,
    dispatch_seconds,
    latency_seconds,
    network_seconds,
)
from cost_models.throughput.products import products
from cost_models.throughput.roofline import memory_seconds
from cost_models.throughput.unit import Unit, behind

if TYPE_CHECKING:
    from cost_models.throughput.traffic import Factors
    from cost_models.throughput.unit import Context

POLICIES: dict[str, tuple[float, float]] = {"op": (0.5, 0.0), "SAVE_DOT_ONLY": (0.0, 1.0), "SAVE_DOT_WITH_NO_BATCH_DIM": (0.0, 1.0)}
"""Selective recomputation by operator: which part of the products and of the attention cores runs again, beside all element-wise work.

`op`: torchtitan saves attention and every second product (torchtitan/distributed/activation_checkpoint.py); `SAVE_DOT_…`: Paxml keeps the
products of the linear layers.
"""


Beside = Literal["nothing", "weights", "free"]
"""What may run beside a message: nothing that it does not wait for, the weight gradients of its ops, or enough to hide it."""


@dataclass(kw_only=True, slots=True)
class _Sums:
    """Linear costs of one direction, before they are priced."""

    bytes: Num = 0.0
    kernels: float = 0.0
    routed_bytes: Num = 0.0
    """Of `bytes`, those of work on routed tokens."""
    routed_products: Num = 0.0
    """Seconds of products on routed tokens."""
    messages: dict[tuple[str, Collective, Beside], tuple[Num, float]] = field(default_factory=dict)
    """(group, collective, what runs beside) -> bytes of all messages, and how many there are."""
    window: Num = 0.0
    """Weight gradients that hide messages of kind `weights`."""

    def message(self, group: str, kind: Collective, beside: Beside, size: Num, times: float) -> None:
        key = (group, kind, beside)
        held, count = self.messages.get(key, (0.0, 0.0))
        self.messages[key] = (held + size * times, count + times)


def unit(ops: tuple[Op, ...], c: Context, *, moe: bool = False, layer: bool = True) -> Unit:
    """Return the seconds of one pass through `ops`; a layer (not embedding or head) also waits for the host."""
    u = Unit()
    forward, backward, again = _Sums(), _Sums(), _Sums()
    policy = c.training.extra.get("recompute_policy", "") if layer else ""
    by_module = c.choices.recompute == "selective" and policy not in POLICIES
    dropped = set(c.choices.recompute_modules) if by_module else set()
    for op in ops:
        _parameters(u, op, c)
        rerun = bool(dropped.intersection(op.modules))
        load = c.imbalance if op.tokens_imbalance else 1.0
        weights, before = u.gemm_w, u.gemm_f
        extra = products(u, op, c, load, rerun)
        loss = c.stack.loss_bytes / 14.0 if op.kind == "loss" else 1.0
        plain, plain_backward = _traffic(op, c)
        forward.bytes = forward.bytes + op.bytes_moved * (loss * plain * load) + extra[0]
        backward.bytes = backward.bytes + op.backward_bytes_moved * (loss * plain_backward * load) + extra[1]
        if op.tokens_imbalance:
            forward.routed_bytes = forward.routed_bytes + op.bytes_moved * (plain * load) + extra[0]
            forward.routed_products = forward.routed_products + (u.gemm_f - before)
        forward.kernels += op.kernels
        backward.kernels += 2.0 * op.kernels
        if rerun:
            again.bytes = again.bytes + op.bytes_moved * (plain * load)
            again.kernels += op.kernels
        _messages(op, c, (forward, backward, again if rerun else None), load, u.gemm_w - weights)
    if c.add_bytes:
        backward.bytes = backward.bytes + (u.trained_dense + u.trained_expert) * c.add_bytes
        backward.kernels += sum(len(op.params) for op in ops)
    u.memory_f = memory_seconds(c.rates, forward.bytes, forward.kernels)
    u.memory_b = memory_seconds(c.rates, backward.bytes, backward.kernels)
    if policy in POLICIES and c.choices.recompute == "selective":
        dense, attention = POLICIES[policy]
        u.again_products = dense * u.gemm_f + attention * u.attention_f
        again.bytes, again.kernels = forward.bytes, forward.kernels
    u.again = u.again_products
    if again.kernels:
        u.again = u.again + memory_seconds(c.rates, again.bytes, again.kernels)
    _communicate(u, c, forward, backward, again)
    routed = forward.routed_products + forward.routed_bytes / c.rates.hbm_bytes_per_second + u.ep_exposed_f
    _settle(u, c, moe=moe, calls=(_calls(forward, c), _calls(backward, c)) if layer else None, routed=routed)
    return u


def _messages(op: Op, c: Context, sums: tuple[_Sums, _Sums, _Sums | None], load: Num, weights: Num) -> None:
    """Add what an op sends to forward, backward and, where its forward runs again, to that; `weights`: seconds of its weight gradients."""
    forward, backward, again = sums
    for comm in op.comm:
        if comm.group not in c.groups:
            continue
        size = comm.bytes * load
        beside: Beside = "free" if comm.overlappable else "nothing"
        if comm.forward_times:
            forward.message(comm.group, comm.kind, beside, size, comm.forward_times)
            if again is not None:
                again.message(comm.group, comm.kind, beside, size, comm.forward_times)
        if comm.backward is not None:
            if comm.behind_weights and c.stack.weights_hide:
                beside = "weights"
                backward.window = backward.window + weights
            backward.message(comm.group, comm.backward, beside, size, 1.0)


def _traffic(op: Op, c: Context) -> Factors:
    """Return the traffic of an op's element-wise work / that of fused kernels, forward and backward."""
    if op.kind == "loss":
        return 1.0, 1.0
    plain = c.stack.memory_factor
    if not op.tokens_imbalance:
        return c.traffic.get(op.name.rpartition(".")[2], (plain, plain))
    if op.kind == "memory":
        plain = plain * _expert_traffic(op, c)
    return plain, plain


def _expert_traffic(op: Op, c: Context) -> float:
    """Traffic of permutation or of the experts' activation / what the block counts, for the dispatcher and the kernels of the stack."""
    if op.name != "moe.activation":
        return c.stack.permute_factor
    return c.stack.clamped_factor if c.clamped else c.stack.activation_factor


def _parameters(u: Unit, op: Op, c: Context) -> None:
    frozen = c.training.method in ("lora", "qlora")
    for p in op.params:
        trained = p.adapter if frozen else p.count
        if p.kind == "expert":
            u.expert = u.expert + p.count
            u.trained_expert = u.trained_expert + trained
        else:
            u.dense = u.dense + p.count
            u.trained_dense = u.trained_dense + trained
            if p.shared and p.kind != "embedding":
                u.trained_replicated = u.trained_replicated + trained
    for s in op.saved:
        u.saved_bytes = u.saved_bytes + s.bytes


def _communicate(u: Unit, c: Context, forward: _Sums, backward: _Sums, again: _Sums) -> None:
    """Price the messages. The second gather for a weight gradient hides behind the input gradient's product, an overlapped expert exchange
    behind the work of another micro-batch, a ring behind its attention but for its latency."""
    u.tp_f, u.tp_exposed_f = _priced(c, forward, ("tp", "etp"), c.stack.tp_hidden)
    u.tp_b, u.tp_exposed_b = _priced(c, backward, ("tp", "etp"), c.stack.tp_hidden)
    u.ep_f, _ = _priced(c, forward, ("ep",), 0.0)
    u.ep_b, _ = _priced(c, backward, ("ep",), 0.0)
    u.ep_exposed_f = behind(u.ep_f, u.gemm_f + u.attention_f + u.memory_f, c.stack.ep_hidden)
    u.ep_exposed_b = behind(u.ep_b, u.gemm_b + u.gemm_w + u.attention_b + u.memory_b, c.stack.ep_hidden)
    rerun, exposed = _priced(c, again, ("tp", "etp"), c.stack.tp_hidden)
    u.again = u.again + exposed
    _, exposed = _priced(c, again, ("ep",), c.stack.ep_hidden)
    u.again = u.again + exposed
    u.network_f, u.network_b = _network(c, forward), _network(c, backward) + _network(c, again)
    u.cp_f, _ = _priced(c, forward, ("cp",), 0.0)
    u.cp_b, _ = _priced(c, backward, ("cp",), 0.0)
    if not nothing(u.cp_f):
        ring = c.groups["cp"]
        u.cp_exposed_f = np.maximum(u.cp_f - u.attention_f * ring.moved, ring.base_seconds)
        u.cp_exposed_b = np.maximum(u.cp_b - u.attention_b * ring.moved, ring.base_seconds)


def _network(c: Context, sums: _Sums) -> Num:
    """Return how long the messages take the share of the network: those of groups that span servers."""
    total: Num = 0.0
    for (group, kind, _), (size, _) in sums.messages.items():
        placed = c.groups[group]
        if not placed.crosses:
            continue
        if kind == "all_to_all" and c.stack.dispatch_once:
            total = total + dispatch_network_seconds(placed, size, c.routing)
        else:
            total = total + network_seconds(placed, kind, size)
    return total


def _priced(c: Context, sums: _Sums, groups: tuple[str, ...], hidden: float) -> tuple[Num, Num]:
    busy: Num = 0.0
    exposed: Num = 0.0
    covered: Num = 0.0
    for (group, kind, beside), (size, count) in sums.messages.items():
        if group not in groups:
            continue
        placed = c.groups[group]
        if kind == "all_to_all" and c.stack.dispatch_once:
            seconds = dispatch_seconds(placed, size, c.routing)
        else:
            seconds = collective_seconds(placed, kind, size)
        seconds = seconds + latency_seconds(placed, kind) * (count - 1.0)
        busy = busy + seconds
        if beside == "weights":
            covered = covered + seconds
        elif beside == "nothing":
            exposed = exposed + seconds * (1.0 - hidden)
    if not nothing(covered):
        exposed = exposed + behind(covered, sums.window, 1.0)
    return busy, exposed


def _calls(sums: _Sums, c: Context) -> Num:
    """Collectives of tensor and context parallelism that the host launches; none where the group has one member."""
    total: Num = 0.0
    for (group, _, _), (_, count) in sums.messages.items():
        if group != "ep":
            total = total + np.where(num(c.groups[group].size) > 1.0, count, 0.0)
    return total


def _settle(u: Unit, c: Context, *, moe: bool, calls: tuple[Num, Num] | None, routed: Num) -> None:
    """Sum the exposed seconds; where the host takes longer to launch a layer (`calls` collectives in it) than the device to run it, the
    device waits.

    A host that waits for the router's counts cannot launch the work on routed tokens (`routed` seconds of the forward) while the device
    is still at the attention before it, so that part has to keep up by itself. Backward knows the counts.
    """
    forward = u.gemm_f + u.attention_f + u.memory_f + u.tp_exposed_f + u.cp_exposed_f + u.ep_exposed_f
    backward = u.gemm_b + u.gemm_w + u.attention_b + u.memory_b + u.tp_exposed_b + u.cp_exposed_b + u.ep_exposed_b + u.again
    if calls is not None:
        s = c.stack
        launch_f = s.host_forward_seconds + calls[0] * s.host_collective_seconds
        launch_b = s.host_backward_seconds + calls[1] * s.host_collective_seconds
        late: Num = 0.0
        if moe:
            more = s.host_overlap if s.ep_hidden else 1.0
            experts = (s.host_route_forward_seconds + c.local_experts * s.host_expert_forward_seconds) * more
            launch_f = launch_f * more + experts
            launch_b = (launch_b + s.host_route_backward_seconds + c.local_experts * s.host_expert_backward_seconds) * more
            if s.synchronised:
                late = np.maximum(experts - routed, 0.0)
        u.host_f = np.maximum(np.maximum(launch_f - forward, 0.0), late)
        u.host_b = np.maximum(launch_b - backward, 0.0)
    u.forward = forward + u.host_f
    u.backward = backward + u.host_b
