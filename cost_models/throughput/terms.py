"""The ledger of a step: which named terms the seconds fall into, each with its formula and source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.layout import Layout
from cost_models.ledger import Term
from cost_models.numeric import Num
from cost_models.throughput.collectives import SOURCE as NETWORK
from cost_models.throughput.replicas import Synchronised, Update
from cost_models.throughput.roofline import SOURCE as KERNELS
from cost_models.throughput.stagewise import Parts, Pick, highest
from cost_models.throughput.units import Unit
from cost_models.training import Training

HOST = "hardware/measured/software.toml (host time per layer by class of software)"
HOST_LINK = "hardware/measured/host.toml (host link, CPU Adam, NVMe)"
_Read = Callable[[Unit], Num]

_COMPUTE: tuple[tuple[str, bool, _Read, str], ...] = (
    ("compute.gemm_forward", False, lambda u: u.gemm_f, "micro_batches x sum of forward GEMMs"),
    ("compute.attention_forward", False, lambda u: u.attention_f, "micro_batches x sum of attention cores"),
    ("compute.memory_forward", False, lambda u: u.memory_f, "micro_batches x HBM bytes / HBM rate + launches"),
    ("compute.gemm_input_gradient", True, lambda u: u.gemm_b, "micro_batches x sum of input-gradient GEMMs"),
    ("compute.gemm_weight_gradient", True, lambda u: u.gemm_w, "micro_batches x sum of weight-gradient GEMMs"),
    ("compute.attention_backward", True, lambda u: u.attention_b, "micro_batches x sum of attention backwards"),
    ("compute.memory_backward", True, lambda u: u.memory_b, "micro_batches x HBM bytes / HBM rate + launches"),
)
_TRAFFIC: tuple[tuple[str, bool, _Read, _Read, str], ...] = (
    ("tp.forward", False, lambda u: u.tp_f, lambda u: u.tp_exposed_f, "micro_batches x tensor parallel collectives"),
    ("tp.backward", True, lambda u: u.tp_b, lambda u: u.tp_exposed_b, "micro_batches x tensor parallel collectives"),
    ("cp.forward", False, lambda u: u.cp_f, lambda u: u.cp_exposed_f, "micro_batches x max(ring - attention, latency)"),
    ("cp.backward", True, lambda u: u.cp_b, lambda u: u.cp_exposed_b, "micro_batches x max(ring - attention, latency)"),
    ("ep.forward", False, lambda u: u.ep_f, lambda u: u.ep_exposed_f, "micro_batches x expert all-to-all"),
    ("ep.backward", True, lambda u: u.ep_b, lambda u: u.ep_exposed_b, "micro_batches x expert all-to-all"),
    ("zero.forward", False, lambda u: u.zero_f, lambda u: u.zero_exposed_f, "micro_batches x (gather - hidden)"),
    ("zero.backward", True, lambda u: u.zero_b, lambda u: u.zero_exposed_b, "micro_batches x (gather + reduce-scatter - hidden)"),
    ("offload.layers_forward", False, lambda u: u.offload_f, lambda u: u.offload_exposed_f, "micro_batches x max(transfer - forward, 0)"),
    ("offload.layers_backward", True, lambda u: u.offload_b, lambda u: u.offload_exposed_b, "micro_batches x max(transfer - backward, 0)"),
)


def stage_terms(p: Parts, pick: Pick, m: Num, training: Training) -> list[Term]:
    """Return what one micro-batch costs at the stage that sets the pace, times the micro-batches; head and embedding stand in `vocabulary`."""
    trains = training.method != "inference"
    k = p.layer_kinds
    counts = [pick(c) for c in p.counts]

    def layers(read: _Read) -> Num:
        total: Num = 0.0
        for u, n in zip((*p.units[:k], *p.units[k + 2 :]), (*counts[:k], *counts[k + 2 :]), strict=True):
            total = total + n * pick(read(u))
        return m * total

    def edges(read: _Read) -> Num:
        return m * (counts[k] * pick(read(p.units[k])) + counts[k + 1] * pick(read(p.units[k + 1])))

    terms = [
        Term(name=name, value=layers(read), source=KERNELS, formula=formula)
        for name, backward, read, formula in _COMPUTE
        if trains or not backward
    ]
    terms.append(Term(name="compute.vocabulary_forward", value=edges(_device_forward), source=KERNELS, formula="micro_batches x (embedding + head + loss)"))
    if trains:
        terms.append(Term(name="compute.vocabulary_backward", value=edges(_device_backward), source=KERNELS, formula="micro_batches x (embedding + head + loss)"))
        terms.append(Term(name="recompute.selective", value=layers(lambda u: u.again), source=KERNELS, formula="micro_batches x forward of the dropped modules"))
        rerun = pick(p.recomputed) * layers(lambda u: u.forward - u.zero_exposed_f - u.offload_exposed_f)
        if len(p.units) > k + 2:
            rerun = pick(p.again(lambda u: u.forward - u.zero_exposed_f - u.offload_exposed_f)) * m
        terms.append(Term(name="recompute.full", value=rerun, source=KERNELS, formula="micro_batches x forward of the recomputed layers"))
    for name, backward, busy, exposed, formula in _TRAFFIC:
        if backward and not trains:
            continue
        values = layers(busy) + edges(busy), layers(exposed) + edges(exposed)
        if np.any(values[0]):
            source = HOST_LINK if name.startswith("offload") else NETWORK
            terms.append(Term(name=name, value=values[0], exposed=values[1], source=source, formula=formula))
    terms.append(Term(name="host.launch_forward", value=layers(lambda u: u.host_f), source=HOST, formula="micro_batches x layers x max(host - device, 0)"))
    if trains:
        terms.append(Term(name="host.launch_backward", value=layers(lambda u: u.host_b), source=HOST, formula="micro_batches x layers x max(host - device, 0)"))
    return terms


def _device_forward(u: Unit) -> Num:
    return u.gemm_f + u.attention_f + u.memory_f


def _device_backward(u: Unit) -> Num:
    return u.gemm_b + u.gemm_w + u.attention_b + u.memory_b + u.again


def pipeline_terms(*, whole: Num, stage: Num, sends: Num, exposed_sends: Num, schedule: str) -> list[Term]:
    """Return bubble and sends: the bubble is what the pipeline takes beyond the work of its slowest stage."""
    from cost_models.choices.schedules import schedule as find

    return [
        Term(name="pp.bubble", value=whole - stage, source=find(schedule).SOURCE, formula=f"{schedule} pipeline - micro_batches x slowest stage"),
        Term(name="pp.send", value=sends, exposed=exposed_sends, source=NETWORK, formula="micro_batches x 2 x sends"),
    ]


def step_terms(sync: Synchronised, u: Update, layout: Layout, training: Training) -> list[Term]:
    """Return what happens once a step: gradient reduction, parameter gather, optimizer, offload; the slowest stage of each."""
    terms = [
        Term(name="dp.reduce", value=highest(sync.reduce), exposed=highest(sync.reduce_exposed), source=NETWORK, formula="gradients over the replicas - hidden behind backward"),
        Term(name="dp.gather", value=highest(sync.gather), exposed=highest(sync.gather_exposed), source=NETWORK, formula="updated weights over the replicas - hidden behind forward"),
        Term(name="optimizer.update", value=highest(u.device), source="hardware/measured/software.toml; bytes of the state regime", formula="owned states x bytes / HBM rate"),
    ]
    if "optimizer" in layout.choices.offload:
        terms.append(Term(name="offload.cpu_optimizer", value=highest(u.host), source=HOST_LINK, formula="parameters of a server / CPU Adam rate"))
        terms.append(Term(name="offload.transfer", value=highest(u.transfer), source=HOST_LINK, formula="gradients out + weights back (+ NVMe)"))
    return terms
