"""Seconds of one optimizer step: units to stages to pipeline, then replicas, optimizer, offload and host, as one ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.precision import regime_of
from cost_models.choices.schedules import schedule
from cost_models.layout import Layout, micro_batches
from cost_models.ledger import Ledger, Term
from cost_models.numeric import Num, nothing, num
from cost_models.result import TimeCost
from cost_models.stages import FOLDED, MIRRORED, both
from cost_models.throughput.collectives import (
    Fabric,
    collective_seconds,
    fabric,
    place,
    send_network_seconds,
    send_seconds,
)
from cost_models.throughput.context import context
from cost_models.throughput.ranks import ranks
from cost_models.throughput.replicas import (
    Replicas,
    copied_embedding_bytes,
    mirrored_gradients,
    offload_layers,
    replicas,
    replicated_gradients,
    synchronise,
    update,
    zero3,
)
from cost_models.throughput.roofline import Rates, rates
from cost_models.throughput.sharing import named, window_left
from cost_models.throughput.software import Software, software
from cost_models.throughput.stagewise import Parts, decisive, flat, line, of_stages, parts, slowest
from cost_models.throughput.terms import gradient_terms, pipeline_terms, rerun, rerun_network, stage_terms, step_terms
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
    groups = replicas(layout, ranks(layout), f, experts=architecture.moe is not None)
    p = _parts(architecture, training, layout, pool, ops, stages, (stack, r, f, groups))
    forward, backward, weight = _passes(p, training)
    shown = tuple(of_stages(part[0], stages.index) for part in (forward, backward, weight))
    held = decisive(architecture, stages, layout)
    if held is not stages:
        p = _parts(architecture, training, layout, pool, ops, held, (stack, r, f, groups))
        forward, backward, weight = _passes(p, training)
    ledger, step = _ledger(architecture, training, layout, pool, held, p, (stack, r, f, groups), (forward, backward, weight), m, ops)
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
        stage_weight_seconds=shown[2],
    )


Wing = tuple[Software, Rates, Fabric, Replicas]
Passes = tuple[tuple[Num, Num], tuple[Num, Num], tuple[Num, Num]]


def _parts(architecture: Architecture, training: Training, layout: Layout, pool: Pool, ops: ModelOps, held: Stages, wing: Wing) -> Parts:
    c = context(architecture, training, ops.layout, wing[:3])
    stack, _, _, groups = wing
    layers = [unit(rows, c, moe=kind.moe) for kind, rows in ops.kinds]
    edges = unit(ops.embedding, c, layer=False), unit(ops.head, c, layer=False)
    module = unit(ops.mtp, c, moe=any(kind.moe for kind, _ in ops.kinds)) if ops.mtp else None
    everything = [*layers, *edges, *(() if module is None else (module,))]
    for u in everything:
        u.change(ops.spread)
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
        none = 0.0 * num(forward[0]), 0.0 * num(forward[1])
        return forward, none, none
    backward = (
        p.stage(lambda u: u.backward) + p.again(rerun),
        p.whole(lambda u: u.backward) + p.again_whole(rerun),
    )
    return forward, backward, (p.stage(lambda u: u.gemm_w), p.whole(lambda u: u.gemm_w))


def _ledger(
    architecture: Architecture,
    training: Training,
    layout: Layout,
    pool: Pool,
    held: Stages,
    p: Parts,
    wing: Wing,
    passes: Passes,
    m: Num,
    ops: ModelOps,
) -> tuple[Ledger, Num]:
    """Return the terms of a step and the sum of what they expose, added in their order."""
    stack, _, f, groups = wing
    (forward, forward_all), (backward, backward_all), (weight, weight_all) = passes
    d, names = layout.degrees, _sharing(layout, wing, p)
    send, taken = _send(groups, f, ops.spread(ops.dims.tokens / ops.dims.tp * (ops.dims.hidden * ops.dims.act_bytes)))
    chunks = num(d.vpp) if layout.choices.schedule == "interleaved" else 2.0 if layout.choices.schedule in FOLDED else 1.0
    exposed_send: Num = send * chunks
    if stack.send_hidden:
        window = window_left(num(forward_all) / d.pp / chunks, send, taken, p.whole(lambda u: u.network_f) / d.pp / chunks)
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
    pick = slowest(layout, there.forward + there.backward)
    within = named([n for n in names if not n.startswith(("ZeRO", "PP"))])
    terms = stage_terms(p, pick, flat(m), training, within, late=architecture.moe is not None and stack.synchronised)
    terms += pipeline_terms(
        whole=whole,
        stage=pick(there.forward + there.backward) * flat(m),
        sends=flat(2.0 * send * chunks * m),
        exposed_sends=flat(2.0 * exposed_send * m + 0.0 * num(d.pp)),
        schedule=layout.choices.schedule,
        shared=named([n for n in names if not n.startswith("PP")]) if stack.send_hidden else "",
    )
    if training.method != "inference":
        hidden = taken * chunks if stack.send_hidden and groups.chain_crosses else 0.0
        terms += _once(architecture, training, layout, pool, p, wing, ((forward, backward), m, hidden, ops), named(names))
    before = Ledger("s", tuple(terms)).exposed
    host = _host_terms(before, stack, pool)
    return Ledger("s", (*terms, *host)), num(before + host[0].value + host[1].value)


def _once(
    architecture: Architecture,
    training: Training,
    layout: Layout,
    pool: Pool,
    p: Parts,
    wing: Wing,
    run: tuple[tuple[Num, Num], Num, Num, ModelOps],
    shared: str,
) -> list[Term]:
    """Return what happens once a step. `run` = seconds of forward and backward of a micro-batch, micro-batches, network time of the sends
    that are hidden, ops."""
    stack, r, f, groups = wing
    window, m, sends, ops = run
    regime = regime_of(training, layout.choices)
    params = both(layout, p.stage(lambda u: u.trained_dense)), both(layout, p.stage(lambda u: u.trained_expert))
    others = p.stage(lambda u: u.network_f) + sends, p.stage(lambda u: u.network_b) + p.again(rerun_network) + sends
    sync = synchronise(layout, groups, regime, stack, params, window, others, m, training)
    copied = copied_embedding_bytes(architecture, training, regime, ops.spread(ops.dims.vocab))
    tied: Num | None = None
    if not nothing(copied) and np.any(num(layout.degrees.pp) > 1.0):
        tied = flat(collective_seconds(groups.ends, "all_reduce", copied))
    replicated: Num | None = None
    if layout.choices.sequence_parallel and training.method == "full" and np.any(num(layout.degrees.tp) > 1.0):
        replicated = replicated_gradients(place(f, groups.ranks.tp), regime, both(layout, p.stage(lambda u: u.trained_replicated)))
    mirrored = mirrored_gradients(groups, regime, params) if layout.choices.schedule in MIRRORED else None
    made = step_terms(sync, update(layout, pool, groups, regime, r, params), layout, shared)
    return [*made, *gradient_terms(tied, replicated, mirrored)]


def _sharing(layout: Layout, wing: Wing, p: Parts) -> list[str]:
    """Return the groups that take the network within a pass, as they are called: what runs behind a pass waits for them."""
    stack, _, f, groups = wing
    there = groups.ranks
    traffic = (("TP", there.tp, "tp_f"), ("CP", there.cp, "cp_f"), ("EP", there.ep, "ep_f"))
    names = [
        name
        for name, group, busy in traffic
        if any(np.any(getattr(u, busy)) for u in p.units) and np.any(group.within(f.domain) < group.count)
    ]
    names += ["ZeRO"] if layout.choices.zero == 3 and groups.dense.crosses else []
    return [*names, *(["PP"] if stack.send_hidden and groups.chain_crosses else [])]


def _decode(architecture: Architecture, training: Training, p: Parts, r: Rates, ops: ModelOps) -> Term:
    """One further token of every sample of a micro-batch: weights and KV cache are read once, stage by stage (HBM bytes alone)."""
    d = ops.dims
    copies: Num = 1.0
    if architecture.moe is not None:
        copies = ops.spread(np.minimum(1.0, d.batch * architecture.moe.topk / architecture.moe.num_experts))
    table = ops.spread(d.vocab * d.hidden)
    weights = (p.whole(lambda u: u.dense) - table + copies * p.whole(lambda u: u.expert)) * (training.weight_bits / 8.0)
    width = d.kv_heads * (d.qk_dim + d.v_dim)
    if architecture.mla is not None:
        width = float(architecture.mla.kv_lora_rank + architecture.mla.qk_rope_head_dim)
    cache = ops.spread(d.batch * d.full_seq * architecture.layers * width * (training.kv_bits / 8.0))
    return Term(
        name="decode.step",
        value=flat((weights + cache) / r.hbm_bytes_per_second),
        exposed=flat(0.0 * cache),
        source="roofline: batch-one decoding is bound by HBM; constants: hardware/measured",
        formula="(weights used + KV cache) / HBM rate; beside the sum",
    )


def _send(groups: Replicas, f: Fabric, message_bytes: Num) -> tuple[Num, Num]:
    """Seconds to hand one micro-batch to the next stage, and how long that takes the network; 0 without a pipeline. Every tp rank sends
    its share of the activation (Megatron's scatter-gather of pipeline tensors, DeepSpeed's partitioned pipe)."""
    chain = groups.ranks.chain
    piped = num(chain.stages) > 1.0
    taken: Num = np.where(piped, send_network_seconds(f, chain, message_bytes), 0.0) if groups.chain_crosses else 0.0
    return np.where(piped, send_seconds(f, chain, message_bytes), 0.0), taken


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
            formula="between two steps: data, logging, launches of the optimizer",
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
