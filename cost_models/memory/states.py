"""Model states of one stage: parameters by class, and the bytes that a regime keeps for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.offload import OFFLOAD
from cost_models.choices.zero import Division, Shares, division
from cost_models.ledger import Term, add
from cost_models.numeric import Num, nothing, num, plus, times

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.choices.precision import Regime
    from cost_models.layout import Layout
    from cost_models.model_ops import ModelOps
    from cost_models.op import Op, Params
    from cost_models.stages import Stages
    from cost_models.training import Training

NF4 = "bitsandbytes functional.py (quantize_4bit, block 64), checked against its CPU build"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Elements by class, of an op list (per rank) or of a stage."""

    matrices: Num = 0.0
    """Dense linear weights."""
    others: Num = 0.0
    """Embedding, head, norms, biases, routers."""
    experts: Num = 0.0
    adapters: Num = 0.0
    expert_adapters: Num = 0.0
    quantised_bytes: Num = 0.0
    """NF4 bytes of the dense matrices (0 unless QLoRA)."""
    quantised_expert_bytes: Num = 0.0

    def each(self, change: Callable[[Num], Num]) -> Tally:
        """Return the tally with `change` applied to every class."""
        return Tally(**{name: change(getattr(self, name)) for name in CLASSES})

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: plus(getattr(self, name), getattr(other, name)) for name in CLASSES})

    def times(self, factor: Num) -> Tally:
        """Return the tally of `factor` copies."""
        return self.each(lambda value: times(factor, value))

    def at_least(self, other: Tally) -> Tally:
        """Return the classwise larger of two tallies."""
        return Tally(**{name: np.maximum(getattr(self, name), getattr(other, name)) for name in CLASSES})

    @property
    def dense(self) -> Num:
        """Dense elements, adapters left out."""
        return plus(self.matrices, self.others)

    @property
    def total(self) -> Num:
        """All base elements."""
        return plus(self.dense, self.experts)


CLASSES = tuple(f.name for f in fields(Tally))


def nf4_bytes(elements: Num, matrices: Num, *, double_quant: bool) -> Num:
    """Return the bytes of `matrices` equal NF4 matrices of `elements` each (bitsandbytes, block 64).

    4 bits a weight; one absmax per 64 weights: fp32, or with double quantisation 1 byte and an fp32 absmax per 256 of them; then
    the code tables (64 bytes; 1,092 with the second level).
    """
    one: Num
    if double_quant:
        one = elements / 2.0 + elements / 64.0 + 4.0 * np.ceil(num(elements) / 64.0 / 256.0) + 1092.0
    else:
        one = elements / 2.0 + elements / 16.0 + 64.0
    return matrices * one


def tally(ops: tuple[Op, ...], training: Training) -> Tally:
    """Return the elements of `ops` by class, per rank."""
    found: dict[str, Num] = {}
    for op in ops:
        for p in op.params:
            for name, value in _classify(p, training):
                found[name] = plus(found.get(name, 0.0), value)
    return Tally(**found)


def _classify(p: Params, training: Training) -> tuple[tuple[str, Num], ...]:
    """Classes of the elements of `p`, and how many they are."""
    quantised: Num = 0.0
    if training.method == "qlora" and p.quantizable:
        quantised = nf4_bytes(p.largest, p.count / p.largest, double_quant=training.double_quant)
    if p.kind == "expert":
        return ("experts", p.count), ("expert_adapters", p.adapter), ("quantised_expert_bytes", quantised)
    if p.kind == "linear":
        return ("matrices", p.count), ("adapters", p.adapter), ("quantised_bytes", quantised)
    return ("others", p.count), ("adapters", p.adapter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Elements of every evaluated stage, and of the single units that ZeRO-3 gathers."""

    stage: Tally
    embedding: Tally
    head: Tally
    layer: Tally
    """The largest kind of layer."""
    largest_quantised: Num = 0.0
    """Elements of the largest matrix that QLoRA stores in 4 bits."""


def held(architecture: Architecture, training: Training, ops: ModelOps, stages: Stages) -> Held:
    """Return the elements that each stage holds before any ZeRO division, shape (…, K)."""
    kinds = [tally(rows, training).each(ops.spread) for _, rows in ops.kinds]
    embedding, head = tally(ops.embedding, training), tally(ops.head, training)
    if training.method in ("lora", "qlora") and "head" in training.lora_targets:
        head = head + Tally(adapters=training.lora_rank * (ops.dims.hidden + ops.dims.vocab))
    if training.framework == "litgpt" and architecture.tied_embeddings:
        matrix = np.where(num(ops.dims.pp) > 1.0, 0.0, ops.dims.vocab * ops.dims.hidden)
        head = head + Tally(others=matrix)
    embedding, head = embedding.each(ops.spread), head.each(ops.spread)
    stage = embedding.times(stages.embedding) + head.times(stages.head)
    for count, kind in zip(stages.kind_layers, kinds, strict=True):
        stage = stage + kind.times(count)
    if ops.mtp:
        stage = stage + tally(ops.mtp, training).each(ops.spread).times(stages.head)
    largest = kinds[0]
    for kind in kinds[1:]:
        largest = largest.at_least(kind)
    widest: Num = 0.0
    for p in (p for _, rows in ops.kinds for op in rows for p in op.params if p.quantizable):
        widest = np.maximum(widest, p.largest)
    return Held(stage=stage, embedding=embedding, head=head, layer=largest, largest_quantised=ops.spread(widest))


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """Bytes of one stage's states, on the device, per rank; `whole_*` are the bytes that left it."""

    weights: tuple[Term, ...]
    gradients: tuple[Term, ...]
    """Gradients that are made anew each step (freed after it)."""
    main_gradients: tuple[Term, ...]
    """Accumulation buffers that stay."""
    optimizer: tuple[Term, ...]
    host_optimizer: Num
    host_weights: Num
    trained: Tally
    """Elements that train (adapters as `matrices` and `experts` under LoRA)."""
    optimizer_shares: Shares
    division: Division

    @property
    def owned(self) -> Num:
        """Trained elements that one rank updates."""
        share = self.optimizer_shares
        return self.trained.dense / num(share.dense) + self.trained.experts / num(share.experts)


def states(training: Training, regime: Regime, layout: Layout, h: Held, stages: Stages) -> States:
    """Return the states of every evaluated stage under `regime`.

    Source: the regime's. Assumes: ZeRO pads partitions by less than one part in a thousand. Megatron's Muon deals whole parameters to
    the ranks (core/optimizer/layer_wise_optimizer.py): the rank that has embedding or head holds its states whole.
    """
    lora = training.method in ("lora", "qlora")
    trained = _trained(training, regime, h, stages) if lora else h.stage
    zero = division(layout)
    step, main = zero.of(regime.optimizer_from), zero.of(regime.main_gradient_from)
    elements = _elements(trained)
    weights, host_weights = _weights(training, regime, layout, h, elements, zero)
    optimizer, host_optimizer = _optimizer(training, regime, layout, trained, step)
    one = training.extra.get("optimizer_in_backward") == "yes" and not lora
    passing = _elements(_one_parameter(h)) if one else elements
    return States(
        weights=weights,
        gradients=_full("gradients", "gradient", regime.gradient_bytes, passing, zero.of(regime.gradient_from), regime.source),
        main_gradients=_full("gradients.main", "main gradient", regime.main_gradient_bytes, elements, main, regime.source),
        optimizer=optimizer,
        host_optimizer=host_optimizer,
        host_weights=host_weights,
        trained=trained,
        optimizer_shares=step,
        division=zero,
    )


def _weights(
    training: Training, regime: Regime, layout: Layout, h: Held, trained: tuple[Num, Num], zero: Division
) -> tuple[tuple[Term, ...], Num]:
    """Weights on the device, and the bytes of those that offload moved to the host."""
    share = zero.of(regime.weight_from)
    if training.method in ("lora", "qlora"):
        adapters = _full("weights.adapters", "adapter weight", regime.weight_bytes, trained, zero.of(3), regime.source)
        weights = (*_base(training, regime, h.stage, share), *adapters)
    else:
        weights = _full("weights", "weight", regime.weight_bytes, trained, share, regime.source)
    return _moved(weights, layout) if OFFLOAD[layout.choices.offload].weights else (weights, 0.0)


def _optimizer(training: Training, regime: Regime, layout: Layout, trained: Tally, share: Shares) -> tuple[tuple[Term, ...], Num]:
    """Master weights and moments on the device, and the bytes of those on the host: paged moments, and what offload moved."""
    stepped = trained
    if training.optimizer == "muon" and training.framework == "megatron":
        stepped = replace(trained, others=trained.others * num(share.dense))
    master = _full("optimizer.master", "master", regime.master_bytes, _elements(stepped), share, regime.source)
    moments = _moments(regime, stepped, share)
    paged = training.extra.get("paged_optimizer") == "yes"
    kept = master if paged else (*master, *moments)
    outside: Num = add(term.value for term in moments) if paged else 0.0
    if not OFFLOAD[layout.choices.offload].optimizer:
        return kept, outside
    here, moved = _moved(kept, layout)
    return here, plus(outside, moved)


def _moved(terms: tuple[Term, ...], layout: Layout) -> tuple[tuple[Term, ...], Num]:
    """What offload leaves of `terms` on the device, and the bytes that it moves."""
    away = num(layout.degrees.offload_fraction)
    here = tuple(replace(t, value=t.value * (1.0 - away), formula=f"{t.formula} × part left on the device") for t in terms)
    return here, add(t.value * away for t in terms)


def _one_parameter(h: Held) -> Tally:
    """The largest single parameter, where the optimizer runs inside backward and frees each gradient (torchtune training/memory.py)."""
    return Tally(others=np.maximum(h.embedding.others, h.head.others))


def _trained(training: Training, regime: Regime, h: Held, stages: Stages) -> Tally:
    """Adapters; with `train_embeddings` (peft's modules_to_save) also a trained copy of embedding and head, in the base's type: half
    the bytes of fp32 adapters."""
    share = 0.5 if regime.weight_bytes > regime.frozen_bytes else 1.0
    copies: Num = 0.0
    if training.extra.get("train_embeddings") == "yes":
        copies = share * (h.embedding.others * stages.embedding + h.head.others * stages.head)
    return Tally(matrices=h.stage.adapters, experts=h.stage.expert_adapters, others=copies)


def _elements(t: Tally) -> tuple[Num, Num]:
    """Dense elements and those of experts; plain 0 where no stage has any."""
    return t.dense, t.experts if np.any(num(t.experts)) else 0.0


def _full(prefix: str, what: str, width: float, elements: tuple[Num, Num], share: Shares, source: str) -> tuple[Term, ...]:
    """Terms of a state of `width` bytes for each of the dense elements and of those of experts."""
    if width == 0.0:
        return ()
    text = f"parameters × {width:g} bytes ({what}) / ranks that share them"
    dense = Term(name=f"{prefix}.dense", value=elements[0] * (width / num(share.dense)), source=source, formula=text)
    if nothing(elements[1]):
        return (dense,)
    experts = Term(name=f"{prefix}.experts", value=elements[1] * (width / num(share.experts)), source=source, formula=text)
    return (dense, experts)


def _moments(regime: Regime, t: Tally, share: Shares) -> tuple[Term, ...]:
    if regime.moment_bytes == 0.0 and regime.other_moment_bytes == 0.0:
        return ()
    text = f"matrices × {regime.moment_bytes:g} + others × {regime.other_moment_bytes:g} bytes / ranks that share them"
    dense = (t.matrices * regime.moment_bytes + t.others * regime.other_moment_bytes) / num(share.dense)
    terms = [Term(name="optimizer.moments.dense", value=dense, source=regime.source, formula=text)]
    if np.any(num(t.experts)):
        value = t.experts * (regime.moment_bytes / num(share.experts))
        terms.append(Term(name="optimizer.moments.experts", value=value, source=regime.source, formula=text))
    return tuple(terms)


def _base(training: Training, regime: Regime, t: Tally, share: Shares) -> tuple[Term, ...]:
    """The frozen base: 16-bit, or NF4 matrices with everything else in 16 bits (fp32 after peft's k-bit preparation)."""
    dense, experts = base_bytes(training, regime, t)
    source = NF4 if training.method == "qlora" else "frozen base weights as loaded"
    terms = [Term(name="weights.base.dense", value=dense / num(share.dense), source=source, formula="frozen dense weights / ranks")]
    if np.any(num(t.experts)):
        terms.append(Term(name="weights.base.experts", value=experts / num(share.experts), source=source, formula="frozen experts / ranks"))
    return tuple(terms)


def base_bytes(training: Training, regime: Regime, t: Tally) -> tuple[Num, Num]:
    """Return the undivided bytes of a frozen base: (dense, experts)."""
    if training.method == "qlora":
        rest = 4.0 if training.kbit_prepare else regime.frozen_bytes
        return t.quantised_bytes + t.others * rest, t.quantised_expert_bytes + 0.0 * num(t.experts)
    return t.dense * regime.frozen_bytes, t.experts * regime.frozen_bytes


def gathered_bytes(training: Training, regime: Regime, t: Tally) -> Num:
    """Return the bytes of a unit while ZeRO-3 holds it whole."""
    if training.method in ("lora", "qlora"):
        dense, experts = base_bytes(training, regime, t)
        return dense + experts + (t.adapters + t.expert_adapters) * regime.weight_bytes
    return t.total * regime.gather_bytes
