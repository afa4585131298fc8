"""Seconds of one unit of the model (a layer of one kind, the embedding, the head) per rank and micro-batch, by what takes them.

Ops of like kind are added up before they are priced: HBM bytes and collective messages are linear, so one pass prices them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.layout import Choices
from cost_models.numeric import Num, num
from cost_models.op import AttentionCore, Collective, Gemm, Op
from cost_models.throughput.collectives import Placed, collective_seconds, dispatch_seconds
from cost_models.throughput.roofline import Rates, attention_seconds, memory_seconds, product_seconds
from cost_models.throughput.software import Software
from cost_models.training import Training
from hardware.calibration import calibration

WIDE = ("moe.router", "head.logits", "embedding.lookup", "mtp.head.logits")
"""Products that stay in the 16-bit type under fp8."""


POLICIES: dict[str, tuple[float, float]] = {"op": (0.5, 0.0), "SAVE_DOT_ONLY": (0.0, 1.0)}
"""Selective recomputation by operator: which part of the products and of the attention cores runs again, beside all element-wise work.

`op`: torchtitan saves attention and every second product (torchtitan/distributed/activation_checkpoint.py); `SAVE_DOT_ONLY`: Paxml.
"""


@dataclass(kw_only=True, slots=True)
class Unit:
    """Seconds per micro-batch. `f`, `b`, `w`, `again` = forward, backward for inputs, for weights, and forward run again (selective)."""

    gemm_f: Num = 0.0
    gemm_b: Num = 0.0
    gemm_w: Num = 0.0
    attention_f: Num = 0.0
    attention_b: Num = 0.0
    memory_f: Num = 0.0
    memory_b: Num = 0.0
    again: Num = 0.0
    again_products: Num = 0.0
    """GEMMs and attention in `again`."""
    kept_f: Num = 0.0
    """Forward of products that `full` recomputation does not run again."""
    tp_f: Num = 0.0
    tp_b: Num = 0.0
    """Busy; what is exposed is `tp_exposed_*`."""
    tp_exposed_f: Num = 0.0
    tp_exposed_b: Num = 0.0
    cp_f: Num = 0.0
    cp_b: Num = 0.0
    cp_exposed_f: Num = 0.0
    cp_exposed_b: Num = 0.0
    ep_f: Num = 0.0
    ep_b: Num = 0.0
    ep_exposed_f: Num = 0.0
    ep_exposed_b: Num = 0.0
    host_f: Num = 0.0
    """Time the device waits for the host."""
    host_b: Num = 0.0
    zero_f: Num = 0.0
    """ZeRO-3 gathers (and reduction, in backward); busy and exposed, set by `zero3`."""
    zero_b: Num = 0.0
    zero_exposed_f: Num = 0.0
    zero_exposed_b: Num = 0.0
    zero_again: bool = False
    """A recomputed forward gathers too."""
    offload_f: Num = 0.0
    offload_b: Num = 0.0
    offload_exposed_f: Num = 0.0
    offload_exposed_b: Num = 0.0
    dense: Num = 0.0
    """Parameters outside the routed experts."""
    expert: Num = 0.0
    trained_dense: Num = 0.0
    trained_expert: Num = 0.0
    saved_bytes: Num = 0.0
    forward: Num = 0.0
    """Exposed seconds of the forward, all in all."""
    backward: Num = 0.0


@dataclass(kw_only=True, slots=True)
class _Sums:
    """Linear costs of one direction, before they are priced."""

    bytes: Num = 0.0
    kernels: float = 0.0
    messages: dict[tuple[str, Collective, bool], tuple[Num, float]] = field(default_factory=dict)
    """(group, collective, overlappable) -> bytes of all messages, and how many there are."""

    def message(self, group: str, kind: Collective, hidden: bool, size: Num, times: float) -> None:
        key = (group, kind, hidden)
        held, count = self.messages.get(key, (0.0, 0.0))
        self.messages[key] = (held + size * times, count + times)


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What pricing needs beside the ops."""

    training: Training
    choices: Choices
    rates: Rates
    stack: Software
    groups: dict[str, Placed]
    """tp, cp, ep, etp; groups that are 1 in every layout are left out."""
    imbalance: Num
    """Load of the busiest expert rank / mean."""
    copies: float
    """Experts of one token (top-k)."""
    clamped: bool
    """The gated unit clamps, scales and shifts its inputs (gpt-oss), which few kernels fuse."""
    act_bytes: float
    accumulate_bytes: float
    """HBM bytes that a weight gradient moves per element of the weight, inside its product (fused accumulation)."""
    add_bytes: float
    """HBM bytes per trained parameter and micro-batch of a separate accumulation pass; 0 where it is fused."""


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
        extra = _products(u, op, c, load, rerun)
        loss = c.stack.loss_bytes / 14.0 if op.kind == "loss" else 1.0
        plain = 1.0 if op.kind == "loss" else c.stack.memory_factor
        if op.kind == "memory" and op.tokens_imbalance:
            plain = plain * c.stack.moe_memory_factor
        if c.clamped and op.name == "moe.activation":
            plain = plain * c.stack.clamped_factor
        forward.bytes = forward.bytes + op.bytes_moved * (loss * plain * load) + extra[0]
        backward.bytes = backward.bytes + op.backward_bytes_moved * (loss * plain * load) + extra[1]
        forward.kernels += op.kernels
        backward.kernels += 2.0 * op.kernels
        if rerun:
            again.bytes = again.bytes + op.bytes_moved * (plain * load)
            again.kernels += op.kernels
        for comm in op.comm:
            if comm.group not in c.groups:
                continue
            size = comm.bytes * load
            if comm.forward_times:
                forward.message(comm.group, comm.kind, comm.overlappable, size, comm.forward_times)
                if rerun:
                    again.message(comm.group, comm.kind, comm.overlappable, size, comm.forward_times)
            if comm.backward is not None:
                backward.message(comm.group, comm.backward, comm.overlappable, size, 1.0)
    if c.add_bytes:
        backward.bytes = backward.bytes + (u.trained_dense + u.trained_expert) * c.add_bytes
    u.memory_f = memory_seconds(c.rates, forward.bytes, forward.kernels)
    u.memory_b = memory_seconds(c.rates, backward.bytes, backward.kernels)
    if policy in POLICIES and c.choices.recompute == "selective":
        products, attention = POLICIES[policy]
        u.again_products = products * u.gemm_f + attention * u.attention_f
        again.bytes, again.kernels = forward.bytes, forward.kernels
    u.again = u.again_products
    if again.kernels:
        u.again = u.again + memory_seconds(c.rates, again.bytes, again.kernels)
    _communicate(u, c, forward, backward, again)
    _settle(u, c, moe=moe, calls=(_calls(forward, c), _calls(backward, c)) if layer else None)
    return u


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
    for s in op.saved:
        u.saved_bytes = u.saved_bytes + s.bytes


def _products(u: Unit, op: Op, c: Context, load: Num, rerun: bool) -> tuple[Num, Num]:
    """Add the GEMMs and the attention core of `op`; return HBM bytes that come on top in forward and backward (casts, dequantisation)."""
    r = c.rates
    wide = not r.quantised or op.name in WIDE
    rate = r.wide_flop_per_second if wide else r.gemm_flop_per_second
    if op.kind == "grouped_gemm":
        rate = rate * r.grouped
    more_f: Num = 0.0
    more_b: Num = 0.0
    for g in op.gemm:
        adapted = _is_adapter(g, c.training)
        trained = adapted or c.training.method not in ("lora", "qlora")
        m = g.m * load
        seconds, inputs, weights = product_seconds(r, rate, m, g.n, g.k, g.count, c.accumulate_bytes, weight=trained)
        u.gemm_f = u.gemm_f + seconds
        if _kept(op, c):
            u.kept_f = u.kept_f + seconds
        u.gemm_b = u.gemm_b + inputs
        u.gemm_w = u.gemm_w + weights
        if rerun:
            u.again_products = u.again_products + seconds
        if not wide:
            cast = c.stack.quantise_bytes
            more_f = more_f + cast * (m * g.k * g.count)
            more_b = more_b + cast * (m * g.n * g.count)
        if adapted:
            traffic = _adapter_bytes(g, m, c)
            more_f, more_b = more_f + traffic[0], more_b + traffic[1]
        elif c.training.method == "qlora" and op.name not in WIDE:
            once = calibration("software").value("dequantise_bytes") * (g.n * g.k * g.count)
            more_f, more_b = more_f + once, more_b + once
    if op.attention is not None:
        forward, backward = attention_seconds(r, c.stack, _packed(op.attention, c.training), act_bytes=c.act_bytes)
        if "cp" in c.groups:
            extra = _ring_bytes(op.attention, c)
            more_f, more_b = more_f + extra, more_b + 2.0 * extra
        u.attention_f = u.attention_f + forward
        u.attention_b = u.attention_b + backward
        if rerun:
            u.again_products = u.again_products + forward
    return more_f, more_b


def _kept(op: Op, c: Context) -> bool:
    """Tell whether full recomputation leaves a product out: its output is kept (policy save_qkv_proj), or compilers see that no gradient
    needs it (the last product of a layer ends in the next one's input, which is kept)."""
    if op.name == "attention.qkv":
        return c.training.extra.get("recompute_policy") == "save_qkv_proj"
    return op.name == "mlp.down" and c.stack.name in ("compiled", "xla")


def _packed(a: AttentionCore, training: Training) -> AttentionCore:
    """Short documents packed into one sequence attend to themselves only: the switch `document_tokens` names their mean length."""
    given = training.extra.get("document_tokens")
    if given is None:
        return a
    length = float(given)
    return replace(a, kv_len=np.minimum(a.kv_len, length))


def _ring_bytes(a: AttentionCore, c: Context) -> Num:
    """HBM bytes of ring attention beside its kernels: every step corrects and adds up a partial output of the rank; none for cp = 1."""
    steps = c.groups["cp"].size * np.where(num(c.groups["cp"].size) > 1.0, 1.0, 0.0)
    return calibration("software").value("ring_passes") * c.act_bytes * steps * (a.batch * a.q_len * a.heads * a.v_dim)


def _adapter_bytes(g: Gemm, m: Num, c: Context) -> tuple[Num, Num]:
    """HBM bytes beside the two thin products of an adapter: dropout of its input, the sum with the frozen output, the sum of gradients."""
    wide = c.act_bytes * c.stack.memory_factor
    if isinstance(g.n, float) and g.n == float(c.training.lora_rank):
        dropped = 2.0 if c.training.lora_dropout else 0.0
        return (dropped * wide) * (m * g.k), ((dropped + 3.0) * wide) * (m * g.k)
    return (3.0 * wide) * (m * g.n), 0.0


def _is_adapter(g: Gemm, training: Training) -> bool:
    if training.method not in ("lora", "qlora"):
        return False
    rank = float(training.lora_rank)
    return (isinstance(g.n, float) and g.n == rank) or (isinstance(g.k, float) and g.k == rank)


def _communicate(u: Unit, c: Context, forward: _Sums, backward: _Sums, again: _Sums) -> None:
    """Price the messages. The second gather for a weight gradient hides behind the input gradient's product."""
    u.tp_f, u.tp_exposed_f = _priced(c, forward, ("tp", "etp"), c.stack.tp_hidden)
    u.tp_b, u.tp_exposed_b = _priced(c, backward, ("tp", "etp"), c.stack.tp_hidden)
    u.ep_f, u.ep_exposed_f = _priced(c, forward, ("ep",), c.stack.ep_hidden)
    u.ep_b, u.ep_exposed_b = _priced(c, backward, ("ep",), c.stack.ep_hidden)
    rerun, exposed = _priced(c, again, ("tp", "etp"), c.stack.tp_hidden)
    u.again = u.again + exposed
    _, exposed = _priced(c, again, ("ep",), c.stack.ep_hidden)
    u.again = u.again + exposed
    if "cp" in c.groups:
        ring = c.groups["cp"]
        u.cp_f, _ = _priced(c, forward, ("cp",), 0.0)
        u.cp_b, _ = _priced(c, backward, ("cp",), 0.0)
        part = ring.moved
        u.cp_exposed_f = np.maximum(u.cp_f - u.attention_f * part, ring.base_seconds)
        u.cp_exposed_b = np.maximum(u.cp_b - u.attention_b * part, ring.base_seconds)


def _priced(c: Context, sums: _Sums, groups: tuple[str, ...], hidden: float) -> tuple[Num, Num]:
    busy: Num = 0.0
    exposed: Num = 0.0
    for (group, kind, free), (size, count) in sums.messages.items():
        if group not in groups:
            continue
        placed = c.groups[group]
        if kind == "all_to_all" and c.stack.dispatch_once:
            seconds = dispatch_seconds(placed, size, c.copies) + placed.base_seconds * (count - 1.0)
        else:
            seconds = collective_seconds(placed, kind, size) + placed.base_seconds * (count - 1.0)
        busy = busy + seconds
        if not free:
            exposed = exposed + seconds * (1.0 - hidden)
    return busy, exposed


def _calls(sums: _Sums, c: Context) -> Num:
    """Collectives of tensor and context parallelism that the host launches; none where the group has one member."""
    total: Num = 0.0
    for (group, _, _), (_, count) in sums.messages.items():
        if group != "ep":
            total = total + np.where(num(c.groups[group].size) > 1.0, count, 0.0)
    return total


def _settle(u: Unit, c: Context, *, moe: bool, calls: tuple[Num, Num] | None) -> None:
    """Sum the exposed seconds; where the host takes longer to launch a layer (`calls` collectives in it) than the device to run it, the
    device waits."""
    forward = u.gemm_f + u.attention_f + u.memory_f + u.tp_exposed_f + u.cp_exposed_f + u.ep_exposed_f
    backward = u.gemm_b + u.gemm_w + u.attention_b + u.memory_b + u.tp_exposed_b + u.cp_exposed_b + u.ep_exposed_b + u.again
    if calls is not None:
        s = c.stack
        launch_f = s.host_forward_seconds + (s.host_moe_forward_seconds if moe else 0.0) + calls[0] * s.host_collective_seconds
        launch_b = s.host_backward_seconds + (s.host_moe_backward_seconds if moe else 0.0) + calls[1] * s.host_collective_seconds
        u.host_f = np.maximum(launch_f - forward, 0.0)
        u.host_b = np.maximum(launch_b - backward, 0.0)
    u.forward = forward + u.host_f
    u.backward = backward + u.host_b
