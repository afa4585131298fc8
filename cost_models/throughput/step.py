"""Seconds of one optimizer step: units to stages to pipeline, then replicas, optimizer, offload and host, as one ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.precision import regime_of
from cost_models.choices.schedules import schedule
from cost_models.layout import Layout, micro_batches
from cost_models.ledger import Ledger, Term
from cost_models.numeric import Num, num
from cost_models.result import TimeCost
from cost_models.throughput.collectives import Fabric, Group, Placed, Routing, fabric, place, send_seconds
from cost_models.throughput.replicas import Replicas, offload_layers, replicas, synchronise, update, zero3
from cost_models.throughput.roofline import Rates, rates
from cost_models.throughput.software import Software, software
from cost_models.throughput.stagewise import Parts, decisive, flat, line, parts, slowest
from cost_models.throughput.terms import pipeline_terms, rerun, stage_terms, step_terms
from cost_models.throughput.unit import Context
from cost_models.throughput.units import unit
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.model_ops import ModelOps
    from cost_models.stages import Stages
    from cost_models.training import Training
    from hardware.spec import Pool


def step_time(
    architecture: Architecture, training: Training, layout: Layout, pool: Pool, ops: ModelOps, stages: Stages, *, parameters_used: float
) -> TimeCost:
    """Return the seconds of one optimizer step with their ledger, rates and utilisation. `parameters_used`: by a token (for model FLOP).

    Shapes: totals () or (N,), stage seconds (K,) or (N, K). Method `inference`: one forward of the global batch (prefill); the term
    `decode.step` beside it is the time of one further token and no part of the sum. Raises ValueError for a type that the GPU lacks.
    """
    m = micro_batches(layout, float(training.global_batch))
    stack = software(training, layout.choices, pool.gpu)
    r = rates(training, stack, pool.gpu)
    f = fabric(pool)
    groups = replicas(layout, f, experts=architecture.moe is not None)
    p = _parts(architecture, training, layout, pool, ops, stages, (stack, r, f, groups))
    forward, backward, weight = _passes(p, training)
    shown = forward[0] + 0.0 * stages.index, backward[0] + 0.0 * stages.index
    held = decisive(architecture, stages, layout)
    if held is not stages:
        p = _parts(architecture, training, layout, pool, ops, held, (stack, r, f, groups))
        forward, backward, weight = _passes(p, training)
    message = ops.dims.tokens / ops.dims.tp * (ops.dims.hidden * ops.dims.act_bytes)
    ledger, step = _ledger(training, layout, pool, held, p, (stack, r, f, groups), (forward, backward, weight), m, message)
    if training.method == "inference":
        ledger = ledger + Ledger("s", (_decode(architecture, training, p, r, ops),))
    tokens = float(training.global_batch) * training.seq
    model, hardware = _flop(architecture, training, p, parameters_used, tokens)
    gpus = float(pool.count)
    peak = gpus * r.dense_peak_flop_per_second
    return TimeCost(
        ledger=ledger,
        step_seconds=step,
        tokens_per_second_per_gpu=tokens / gpus / step,
        mfu=model / peak / step,
        hfu=hardware / peak / step,
        model_flop=num(model),
        hardware_flop=num(hardware),
        stage_forward_seconds=shown[0],
        stage_backward_seconds=shown[1],
    )


Wing = tuple[Software, Rates, Fabric, Replicas]
Passes = tuple[tuple[Num, Num], tuple[Num, Num], tuple[Num, Num]]


def _context(architecture: Architecture, training: Training, layout: Layout, wing: Wing) -> Context:
    stack, r, f, _ = wing
    d = layout.degrees
    tp, cp = num(d.tp), num(d.cp)
    sizes = {
        "tp": Group(size=tp, stride=1.0),
        "etp": Group(size=num(d.etp), stride=1.0),
        "cp": Group(size=cp, stride=tp),
        "ep": Group(size=num(d.ep), stride=num(d.etp)),
    }
    groups: dict[str, Placed] = {name: place(f, g) for name, g in sizes.items() if np.max(g.size) > 1.0}
    regime = regime_of(training, layout.choices)
    accumulated = regime.main_gradient_bytes or regime.gradient_bytes
    fused = training.framework == "megatron"
    even = training.balanced_routing or "capacity_factor" in training.extra
    uneven = 1.0 if even else calibration("software").value("routing_imbalance")
    return Context(
        training=training,
        choices=layout.choices,
        rates=r,
        stack=stack,
        groups=groups,
        imbalance=np.where(num(d.ep) > 1.0, uneven, 1.0),
        clamped=architecture.family == "gpt_oss",
        routing=_routing(architecture, training),
        local_experts=0.0 if architecture.moe is None else architecture.moe.num_experts / num(d.ep),
        act_bytes=4.0 if training.precision == "fp32" else 2.0,
        accumulate_bytes=2.0 * accumulated if fused else 2.0,
        add_bytes=0.0 if fused or layout.choices.zero == 3 else 2.0 + 2.0 * accumulated,
    )


def _routing(architecture: Architecture, training: Training) -> Routing:
    m = architecture.moe
    if m is None:
        return Routing()
    if training.balanced_routing and training.framework == "torchtitan":
        # _debug_force_load_balance_routing of torchtitan and FakeBalancedGate of AutoModel deal the experts in turns (Megatron draws).
        return Routing(copies=float(m.topk), neighbours=m.num_experts)
    return Routing(copies=float(m.topk), groups=float(m.groups), topk_groups=float(m.topk_groups))


def _parts(
    architecture: Architecture, training: Training, layout: Layout, pool: Pool, ops: ModelOps, held: Stages, wing: Wing
) -> Parts:
    c = _context(architecture, training, layout, wing)
    stack, _, _, groups = wing
    layers = [unit(rows, c, moe=kind.moe) for kind, rows in ops.kinds]
    edges = unit(ops.embedding, c, layer=False), unit(ops.head, c, layer=False)
    module = unit(ops.mtp, c, moe=any(kind.moe for kind, _ in ops.kinds)) if ops.mtp else None
    everything = [*layers, *edges, *(() if module is None else (module,))]
    if layout.choices.zero == 3:
        regime = regime_of(training, layout.choices)
        for u in everything:
            zero3(u, groups, regime, training, stack)
    if "params" in layout.choices.offload or np.any(num(layout.degrees.activation_offload) > 0.0):
        for u in everything:
            offload_layers(u, layout, pool, groups, training)
    return parts(architecture, layout, held, layers, edges, module)


def _passes(p: Parts, training: Training) -> Passes:
    """Return (stage, whole model) seconds of forward, backward (with recomputed forwards) and its weight-gradient part."""
    forward = p.stage(lambda u: u.forward), p.whole(lambda u: u.forward)
    if training.method == "inference":
        nothing = 0.0 * num(forward[0]), 0.0 * num(forward[1])
        return forward, nothing, nothing
    backward = (
        p.stage(lambda u: u.backward) + p.again(rerun),
        p.whole(lambda u: u.backward) + p.again_whole(rerun),
    )
    return forward, backward, (p.stage(lambda u: u.gemm_w), p.whole(lambda u: u.gemm_w))


def _ledger(
    training: Training, layout: Layout, pool: Pool, held: Stages, p: Parts, wing: Wing, passes: Passes, m: Num, message_bytes: Num
) -> tuple[Ledger, Num]:
    """Return the terms of a step and the sum of what they expose, added in their order."""
    stack, r, f, groups = wing
    (forward, forward_all), (backward, backward_all), (weight, weight_all) = passes
    d = layout.degrees
    send = _send(layout, f, message_bytes)
    chunks = num(d.vpp) if layout.choices.schedule in ("interleaved",) else 1.0
    exposed_send: Num = send * chunks
    if stack.send_hidden:
        window = num(forward_all) / d.pp / chunks
        slowed = calibration("software").value("overlap_slowdown") * send
        exposed_send = (np.maximum(send - window, 0.0) + slowed) * chunks
    there = line(
        layout,
        held,
        m,
        (forward + exposed_send, backward + exposed_send, weight),
        (forward_all + exposed_send * d.pp, backward_all + exposed_send * d.pp, weight_all),
    )
    whole = schedule(layout.choices.schedule).seconds(there)
    pick = slowest(there.forward + there.backward)
    terms = list(stage_terms(p, pick, flat(m), training))
    terms += pipeline_terms(
        whole=whole,
        stage=pick(there.forward + there.backward) * flat(m),
        sends=flat(2.0 * send * chunks * m),
        exposed_sends=flat(2.0 * exposed_send * m + 0.0 * num(d.pp)),
        schedule=layout.choices.schedule,
    )
    if training.method != "inference":
        params = p.stage(lambda u: u.trained_dense), p.stage(lambda u: u.trained_expert)
        regime = regime_of(training, layout.choices)
        sync = synchronise(layout, groups, regime, stack, params, (forward, backward), m, training)
        terms += step_terms(sync, update(layout, pool, groups, regime, r, params), layout)
    before = Ledger("s", tuple(terms)).exposed
    host = _host_terms(before, stack, pool)
    return Ledger("s", (*terms, *host)), num(before + host[0].value + host[1].value)


def _decode(architecture: Architecture, training: Training, p: Parts, r: Rates, ops: ModelOps) -> Term:
    """One further token of every sample of a micro-batch: weights and KV cache are read once, stage by stage (HBM bytes alone)."""
    d = ops.dims
    copies = 1.0 if architecture.moe is None else np.minimum(1.0, d.batch * architecture.moe.topk / architecture.moe.num_experts)
    weights = (p.whole(lambda u: u.dense) - d.vocab * d.hidden + copies * p.whole(lambda u: u.expert)) * (training.weight_bits / 8.0)
    width = d.kv_heads * (d.qk_dim + d.v_dim)
    if architecture.mla is not None:
        width = float(architecture.mla.kv_lora_rank + architecture.mla.qk_rope_head_dim)
    cache = d.batch * d.full_seq * architecture.layers * width * (training.kv_bits / 8.0)
    return Term(
        name="decode.step",
        value=flat((weights + cache) / r.hbm_bytes_per_second),
        exposed=flat(0.0 * d.batch),
        source="roofline: batch-one decoding is bound by HBM; constants: hardware/measured",
        formula="(weights used + KV cache) / HBM rate; beside the sum",
    )


def _send(layout: Layout, f: Fabric, message_bytes: Num) -> Num:
    """Seconds to hand one micro-batch to the next stage; 0 without a pipeline. Every tp rank sends its share of the activation
    (Megatron's scatter-gather of pipeline tensors, DeepSpeed's partitioned pipe)."""
    d = layout.degrees
    span = num(d.tp) * d.cp * d.dp * d.pp
    return np.where(num(d.pp) > 1.0, send_seconds(f, span, message_bytes), 0.0)


def _host_terms(before: Num, stack: Software, pool: Pool) -> tuple[Term, Term]:
    soft = calibration("software")
    doublings = float(np.log2(max(pool.nodes, 1)))
    return (
        Term(
            name="host.stragglers",
            value=before * (soft.value("straggler_per_doubling") * doublings),
            source="hardware/measured/software.toml: straggler_per_doubling",
            formula="step x straggler_per_doubling x log2(servers)",
        ),
        Term(
            name="host.between_steps",
            value=stack.step_seconds,
            source="hardware/measured/software.toml: host_step_seconds",
            formula="host_step_seconds",
        ),
    )


def _flop(architecture: Architecture, training: Training, p: Parts, parameters_used: float, tokens: float) -> tuple[float, Num]:
    """Model FLOP: 6 per parameter used and token and 12 × layers × heads × head size × sequence (inference 2 and 4); and with recompute."""
    passes = 1.0 if training.method == "inference" else 3.0
    attention = 4.0 * architecture.layers * architecture.heads * architecture.head_dim * training.seq
    once = tokens * (2.0 * parameters_used + attention)
    ratio = p.whole(lambda u: u.gemm_f + u.attention_f)
    again = p.whole(lambda u: u.again_products) + p.again_whole(lambda u: u.gemm_f + u.attention_f - u.kept_f)
    return once * passes, once * (passes + flat(again / ratio))
