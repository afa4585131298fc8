"""The ledger of a step: which named terms the seconds fall into, each with its formula and source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.pipeline import longest
from cost_models.choices.schedules import schedule as find_schedule
from cost_models.ledger import Term
from cost_models.numeric import Num, nothing, plus
from cost_models.throughput.collectives import SOURCE as NETWORK
from cost_models.throughput.roofline import SOURCE as KERNELS
from cost_models.throughput.unit import Unit

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.throughput.replicas import Synchronised, Update
    from cost_models.throughput.stagewise import Parts
    from cost_models.training import Training

HOST = "hardware/measured/software.toml (host time per layer by class of software)"
HOST_LINK = "hardware/measured/host.toml (host link, CPU Adam, NVMe)"
_Read = Callable[[Unit], Num]
_Pick = Callable[[Num], Num]
"""Takes the value of the rank that sets the pace."""

_COMPUTE: tuple[tuple[str, _Read, str], ...] = (
    ("compute.gemm_forward", lambda u: u.gemm_f, "micro_batches x sum of forward GEMMs"),
    ("compute.attention_forward", lambda u: u.attention_f, "micro_batches x sum of attention cores"),
    ("compute.memory_forward", lambda u: u.memory_f, "micro_batches x (HBM bytes / HBM rate + launches)"),
)
_COMPUTE_BACKWARD: tuple[tuple[str, _Read, str], ...] = (
    ("compute.gemm_input_gradient", lambda u: u.gemm_b, "micro_batches x sum of input-gradient GEMMs"),
    ("compute.gemm_weight_gradient", lambda u: u.gemm_w, "micro_batches x sum of weight-gradient GEMMs"),
    ("compute.attention_backward", lambda u: u.attention_b, "micro_batches x sum of attention backwards"),
    ("compute.memory_backward", lambda u: u.memory_b, "micro_batches x (HBM bytes / HBM rate + launches)"),
    ("recompute.selective", lambda u: u.again, "micro_batches x forward of the dropped modules"),
)
_TRAFFIC: tuple[tuple[str, _Read, _Read, str, str], ...] = (
    ("tp.forward", lambda u: u.tp_f, lambda u: u.tp_exposed_f, "micro_batches x tensor parallel collectives", "products"),
    ("cp.forward", lambda u: u.cp_f, lambda u: u.cp_exposed_f, "micro_batches x ring", "attention"),
    ("ep.forward", lambda u: u.ep_f, lambda u: u.ep_exposed_f, "micro_batches x expert all-to-all", "another micro-batch"),
    ("zero.forward", lambda u: u.zero_f, lambda u: u.zero_exposed_f, "micro_batches x gather", "forward"),
    ("offload.layers_forward", lambda u: u.offload_f, lambda u: u.offload_exposed_f, "micro_batches x transfer", "forward"),
)
_TRAFFIC_BACKWARD: tuple[tuple[str, _Read, _Read, str, str], ...] = (
    ("tp.backward", lambda u: u.tp_b, lambda u: u.tp_exposed_b, "micro_batches x tensor parallel collectives", "products"),
    ("cp.backward", lambda u: u.cp_b, lambda u: u.cp_exposed_b, "micro_batches x ring", "attention"),
    ("ep.backward", lambda u: u.ep_b, lambda u: u.ep_exposed_b, "micro_batches x expert all-to-all", "another micro-batch"),
    ("zero.backward", lambda u: u.zero_b, lambda u: u.zero_exposed_b, "micro_batches x (gather + reduce-scatter)", "backward"),
    ("offload.layers_backward", lambda u: u.offload_b, lambda u: u.offload_exposed_b, "micro_batches x transfer", "backward"),
)
"""Name, busy, exposed, formula of the busy seconds, what hides the rest."""
_VOCABULARY = "micro_batches x (embedding + head + loss)"
_LAUNCH = "micro_batches x layers x max(host - device, 0)"
_LAUNCH_LATE = "micro_batches x layers x max(host - device, host of the experts - device on routed tokens, 0)"


def stage_terms(p: Parts, pick: _Pick, m: Num, training: Training, shared: str = "", *, late: bool = False) -> list[Term]:
    """Return what the micro-batches cost at the rank that sets the pace. Embedding and head stand in `compute.vocabulary_*`.

    `shared`: words for the groups that ZeRO's traffic shares the network with; `late`: the host waits for the router in every layer.
    """
    k = p.layer_kinds
    counts = [pick(c) for c in p.counts]
    body = tuple(zip((*p.units[:k], *p.units[k + 2 :]), (*counts[:k], *counts[k + 2 :]), strict=True))
    edge = tuple(zip(p.units[k : k + 2], counts[k : k + 2], strict=True))

    def layers(read: _Read) -> Num:
        return m * _total(body, read, pick)

    def edges(read: _Read) -> Num:
        return m * _total(edge, read, pick)

    def kernels(name: str, value: Num, formula: str) -> Term:
        return Term(name=name, value=value, source=KERNELS, formula=formula)

    trains = training.method != "inference"
    terms = [kernels(name, layers(read), formula) for name, read, formula in _COMPUTE]
    terms.append(kernels("compute.vocabulary_forward", edges(_device_forward), _VOCABULARY))
    if trains:
        terms += [kernels(name, layers(read), formula) for name, read, formula in _COMPUTE_BACKWARD]
        terms.append(kernels("compute.vocabulary_backward", edges(_device_backward), _VOCABULARY))
        terms.append(kernels("recompute.full", m * pick(p.again(rerun)), "micro_batches x forward of the recomputed layers"))
    for name, busy, exposed, formula, behind in (*_TRAFFIC, *(_TRAFFIC_BACKWARD if trains else ())):
        if all(nothing(busy(u)) for u in p.units):
            continue
        value = layers(busy) + edges(busy)
        if np.any(value):
            source = HOST_LINK if name.startswith("offload") else NETWORK
            shown = layers(exposed) + edges(exposed)
            hidden = behind + (shared if name.startswith("zero") else "")
            terms.append(Term(name=name, value=value, exposed=shown, source=source, formula=formula, hidden=hidden))
    launch = _LAUNCH_LATE if late else _LAUNCH
    terms.append(Term(name="host.launch_forward", value=layers(lambda u: u.host_f), source=HOST, formula=launch))
    if trains:
        terms.append(Term(name="host.launch_backward", value=layers(lambda u: u.host_b), source=HOST, formula=_LAUNCH))
    return terms


def rerun(u: Unit) -> Num:
    """Return the seconds of a recomputed forward: without a second offload, and without a ZeRO gather where backward's serves it too."""
    gathered: Num = 0.0 if u.zero_again else u.zero_exposed_f
    return u.forward - gathered - u.offload_exposed_f - u.kept_f


def rerun_network(u: Unit) -> Num:
    """Return how long a recomputed forward takes the share of the network."""
    return u.network_f - (0.0 if u.zero_again else u.zero_network_f)


def _total(parts: tuple[tuple[Unit, Num], ...], read: _Read, pick: _Pick) -> Num:
    total: Num = 0.0
    for u, count in parts:
        value = read(u)
        if not nothing(value):
            total = plus(total, count * pick(value))
    return total


def _device_forward(u: Unit) -> Num:
    return u.gemm_f + u.attention_f + u.memory_f


def _device_backward(u: Unit) -> Num:
    return u.gemm_b + u.gemm_w + u.attention_b + u.memory_b + u.again


def pipeline_terms(*, whole: Num, stage: Num, sends: Num, exposed_sends: Num, schedule: str, shared: str) -> list[Term]:
    """Return bubble and sends: the bubble is what the pipeline takes beyond the work of its slowest rank."""
    return [
        Term(
            name="pp.bubble",
            value=whole - stage,
            source=find_schedule(schedule).SOURCE,
            formula=f"{schedule} pipeline - micro_batches x slowest stage",
        ),
        Term(
            name="pp.send",
            value=sends,
            exposed=exposed_sends,
            source=NETWORK,
            formula="micro_batches x 2 x sends",
            hidden=f"the passes{shared}",
        ),
    ]


FINALIZE = "Megatron-LM core/distributed/finalize_model_grads.py; alpha-beta by tier"
MIRROR = "deepseek-ai/DualPipe examples/example_dualpipe.py; alpha-beta by tier"


def gradient_terms(tied: Num | None, replicated: Num | None, mirrored: Num | None) -> list[Term]:
    """Return the reductions of gradients beyond those of the replicas, each exposed: of a copied embedding between first and last stage,
    of norms and routers over tp, and of stages that two ranks hold. None: the model or layout has none."""
    terms = []
    if tied is not None:
        text = "gradient of the embedding, all-reduced between first and last stage: vocabulary / tp x width x gradient bytes"
        terms.append(Term(name="pp.tied_embedding", value=tied, source=FINALIZE, formula=text))
    if replicated is not None:
        text = "gradients of norms and routers, all-reduced over tp under sequence parallelism"
        terms.append(Term(name="sp.gradients", value=longest(replicated), source=FINALIZE, formula=text))
    if mirrored is not None:
        text = "gradients of both stages of a rank, all-reduced with the rank at the same distance from the other end"
        terms.append(Term(name="dp.mirror", value=longest(mirrored), source=MIRROR, formula=text))
    return terms


def step_terms(sync: Synchronised, u: Update, layout: Layout, shared: str = "") -> list[Term]:
    """Return what happens once a step: gradient reduction, parameter gather, optimizer, offload; the slowest stage of each.

    `shared`: words for the groups that share the network with parameter gather and gradient reduction.
    """
    terms = [
        Term(
            name="dp.reduce",
            value=longest(sync.reduce),
            exposed=longest(sync.reduce_exposed),
            source=NETWORK,
            formula="gradients over the replicas",
            hidden=f"backward{shared}",
        ),
        Term(
            name="dp.gather",
            value=longest(sync.gather),
            exposed=longest(sync.gather_exposed),
            source=NETWORK,
            formula="updated weights over the replicas",
            hidden=f"forward{shared}",
        ),
        Term(
            name="optimizer.update",
            value=longest(u.device),
            source="hardware/measured/software.toml; bytes of the state regime",
            formula="owned states x bytes / HBM rate",
        ),
    ]
    if "optimizer" in layout.choices.offload:
        away = (
            ("offload.cpu_optimizer", u.host, "parameters of a server / CPU Adam rate"),
            ("offload.transfer", u.transfer, "gradients out + weights back (+ NVMe)"),
        )
        terms += [Term(name=name, value=longest(value), source=HOST_LINK, formula=text) for name, value, text in away]
    return terms
