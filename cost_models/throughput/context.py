"""What pricing needs beside the ops: the groups of ranks where they sit, the load of the busiest rank, and how gradients are added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.choices.precision import regime_of
from cost_models.numeric import num
from cost_models.stack import ACCUMULATION_FUSED
from cost_models.throughput.collectives import Fabric, Placed, Routing, place
from cost_models.throughput.ranks import ranks
from cost_models.throughput.traffic import traffic
from cost_models.throughput.unit import Context
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.layout import Layout
    from cost_models.throughput.roofline import Rates
    from cost_models.throughput.software import Software
    from cost_models.training import Training


def context(architecture: Architecture, training: Training, layout: Layout, machine: tuple[Software, Rates, Fabric]) -> Context:
    """Return what pricing the ops of `layout` needs on a machine (software, rates of a GPU, network)."""
    stack, r, f = machine
    d, there = layout.degrees, ranks(layout)
    sizes = {"tp": there.tp, "etp": there.etp, "cp": there.cp, "ep": there.ep}
    groups: dict[str, Placed] = {name: place(f, g) for name, g in sizes.items() if np.max(g.size) > 1.0}
    regime = regime_of(training, layout.choices)
    accumulated = regime.main_gradient_bytes or regime.gradient_bytes
    fused = training.framework in ACCUMULATION_FUSED
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
        traffic=traffic(architecture, training, stack),
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
