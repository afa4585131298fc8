"""Laws about tensor, context, expert and data parallel degrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from planner.rules.rule import Mask, Rule, divides, show

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case


def _world(case: Case, layout: Layout) -> Mask:
    d = layout.degrees
    return np.asarray(num(d.tp) * d.pp * d.cp * d.dp == case.world)


def _world_given(case: Case, layout: Layout) -> str:
    d = layout.degrees
    product = float(num(d.tp) * d.pp * d.cp)
    given = f"tp × pp × cp × dp = {show(d.tp)} × {show(d.pp)} × {show(d.cp)} × {show(d.dp)} must equal {case.world:,} GPUs"
    if case.world % product == 0:
        return f"{given}; try dp={show(case.world / product)}"
    return f"{given}, which {show(product)} does not divide"


def _kv_heads(case: Case, layout: Layout) -> Mask:
    tp, heads = num(layout.degrees.tp), float(case.architecture.kv_heads)
    if case.architecture.mla is not None:
        return True
    whole = divides(tp, heads)
    return whole if case.framework != "megatron" else whole | divides(heads, tp)


def _kv_heads_given(case: Case, layout: Layout) -> str:
    a, tp = case.architecture, show(layout.degrees.tp)
    copies = " (nor do they divide it)" if case.framework == "megatron" else f" ({case.framework} does not replicate them)"
    return f"tp={tp} does not divide {a.kv_heads} key-value heads of {a.id}{copies}"


def _widths(case: Case) -> tuple[tuple[str, int], ...]:
    """Widths that tensor parallelism cuts."""
    a = case.architecture
    dense = a.moe is None or any(not a.is_moe_layer(i) for i in range(a.layers))
    shared = 0 if a.moe is None else a.moe.shared_ffn_hidden
    return (*((("MLP width", a.ffn_hidden),) if dense else ()), *((("shared-expert width", shared),) if shared else ()))


def _ffn(case: Case, layout: Layout) -> Mask:
    keep: Mask = True
    for _, width in _widths(case):
        keep = keep & divides(layout.degrees.tp, float(width))
    return keep


def _ffn_given(case: Case, layout: Layout) -> str:
    tp = float(num(layout.degrees.tp))
    bad = " and ".join(f"{name} {width:,}" for name, width in _widths(case) if width % tp)
    return f"tp={show(tp)} does not divide {bad} of {case.architecture.id}"


def _experts(case: Case, layout: Layout) -> Mask:
    moe = case.architecture.moe
    return np.asarray(num(layout.degrees.ep) == 1.0) if moe is None else divides(layout.degrees.ep, float(moe.num_experts))


def _experts_given(case: Case, layout: Layout) -> str:
    a, ep = case.architecture, show(layout.degrees.ep)
    if a.moe is None:
        return f"ep={ep} needs experts and {a.id} has none"
    return f"ep={ep} does not divide {a.moe.num_experts} experts of {a.id}"


def _expert_width(case: Case, layout: Layout) -> Mask:
    moe, etp = case.architecture.moe, layout.degrees.etp
    return np.asarray(num(etp) == 1.0) if moe is None else divides(etp, float(moe.moe_ffn_hidden))


def _expert_width_given(case: Case, layout: Layout) -> str:
    a, etp = case.architecture, show(layout.degrees.etp)
    if a.moe is None:
        return f"etp={etp} needs experts and {a.id} has none"
    return f"etp={etp} does not divide expert width {a.moe.moe_ffn_hidden:,} of {a.id}"


def _expert_bias(case: Case, layout: Layout) -> Mask:
    moe = case.architecture.moe
    return True if moe is None or not moe.expert_bias else np.asarray(num(layout.degrees.etp) == 1.0)


def _expert_grid(case: Case, layout: Layout) -> Mask:
    d = layout.degrees
    return divides(num(d.etp) * d.ep, num(d.tp) * d.cp * d.dp)


def _expert_grid_given(case: Case, layout: Layout) -> str:
    d = layout.degrees
    ranks = show(num(d.tp) * d.cp * d.dp)
    return f"etp × ep = {show(d.etp)} × {show(d.ep)} does not divide the tp × cp × dp = {ranks} ranks of a pipeline stage"


def _titan_etp(case: Case, layout: Layout) -> Mask:
    etp = num(layout.degrees.etp)
    return np.asarray((etp == 1.0) | (etp == num(layout.degrees.tp)))


def _moe_sequence(case: Case, layout: Layout) -> Mask:
    if case.architecture.moe is None or layout.choices.sequence_parallel or case.training.method == "inference":
        return True
    return np.asarray(num(layout.degrees.tp) == 1.0)


RULES = (
    Rule(
        id="world",
        sentence="tp × pp × cp × dp equals the number of GPUs",
        source="Megatron-LM arguments.py:431; torchtitan parallel_dims.py:176; accelerate parallelism_config.py:365",
        reads=("tp", "pp", "cp", "dp"),
        holds=_world,
        given=_world_given,
    ),
    Rule(
        id="heads",
        sentence="tp divides the attention heads",
        source="Megatron-LM core/transformer/transformer_config.py:1447; torchtitan models/common/decoder.py:186",
        reads=("tp",),
        holds=lambda case, layout: divides(layout.degrees.tp, float(case.architecture.heads)),
        given=lambda case, layout: (
            f"tp={show(layout.degrees.tp)} does not divide {case.architecture.heads} attention heads of {case.architecture.id}"
        ),
        vary=("tp",),
    ),
    Rule(
        id="kv_heads",
        sentence="tp divides the key-value heads; in Megatron-LM the heads may also divide tp (they are then replicated)",
        source="Megatron-LM core/transformer/transformer_config.py:1460-1469; torchtitan models/common/decoder.py:186-199",
        reads=("tp",),
        holds=_kv_heads,
        given=_kv_heads_given,
        vary=("tp",),
    ),
    Rule(
        id="ffn",
        sentence="tp divides the width of the MLP and of the shared experts",
        source="Megatron-LM core/tensor_parallel/layers.py:1038, 1408",
        reads=("tp",),
        holds=_ffn,
        given=_ffn_given,
        vary=("tp",),
    ),
    Rule(
        id="experts",
        sentence="ep divides the number of routed experts, and is 1 without any",
        source="Megatron-LM arguments.py:1655; torchtitan models/common/decoder.py:201",
        reads=("ep",),
        holds=_experts,
        given=_experts_given,
        vary=("ep",),
    ),
    Rule(
        id="expert_width",
        sentence="etp divides the width of an expert, and is 1 without any",
        source="Megatron-LM core/tensor_parallel/layers.py:1038 within experts",
        reads=("etp",),
        holds=_expert_width,
        given=_expert_width_given,
        vary=("etp",),
    ),
    Rule(
        id="expert_bias",
        sentence="experts with biases are not cut by etp",
        source="Megatron-LM core/transformer/transformer_config.py:2613",
        reads=("etp",),
        holds=_expert_bias,
        given=lambda case, layout: f"etp={show(layout.degrees.etp)} with expert biases of {case.architecture.id}: etp must be 1",
        vary=("etp",),
    ),
    Rule(
        id="expert_grid",
        sentence="etp × ep divides the ranks of a pipeline stage, so that each expert has a whole number of replicas",
        source="Megatron-LM core/parallel_state.py:871-907; torchtitan parallel_dims.py:187",
        reads=("tp", "cp", "dp", "ep", "etp"),
        holds=_expert_grid,
        given=_expert_grid_given,
        vary=("ep", "etp"),
    ),
    Rule(
        id="expert_tensor",
        sentence="torchtitan cuts experts by tp or not at all",
        source="torchtitan distributed/parallel_dims.py",
        reads=("tp", "etp"),
        holds=_titan_etp,
        given=lambda case, layout: f"etp={show(layout.degrees.etp)} must be 1 or tp={show(layout.degrees.tp)} in torchtitan",
        vary=("etp",),
        frameworks=("torchtitan",),
    ),
    Rule(
        id="moe_sequence_parallel",
        sentence="training experts with tp > 1 needs sequence parallelism",
        source="Megatron-LM core/transformer/moe/moe_layer.py:636",
        reads=("tp", "sequence_parallel"),
        holds=_moe_sequence,
        given=lambda case, layout: f"tp={show(layout.degrees.tp)} with experts needs sequence parallelism",
        vary=("sequence_parallel",),
        frameworks=("megatron",),
    ),
)
