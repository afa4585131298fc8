"""What pricing a unit of the model needs, and what it gives: the seconds of a layer of one kind, of the embedding or the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from cost_models.layout import Choices
from cost_models.numeric import Num
from cost_models.throughput.collectives import Placed, Routing
from cost_models.throughput.roofline import Rates
from cost_models.throughput.software import Software
from cost_models.throughput.traffic import Factors
from cost_models.training import Training
from hardware.calibration import calibration


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
    network_f: Num = 0.0
    """Time for which the traffic above, and that of ZeRO-3, takes the share of the network (throughput/sharing.py)."""
    network_b: Num = 0.0
    zero_network_f: Num = 0.0
    """What ZeRO-3's gather adds to `network_f`."""
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
    trained_replicated: Num = 0.0
    """Trained parameters that every tp rank holds while its gradient is of its part of the sequence alone: norms, routers."""
    saved_bytes: Num = 0.0
    forward: Num = 0.0
    """Exposed seconds of the forward, all in all."""
    backward: Num = 0.0

    def change(self, spread: Callable[[Num], Num]) -> None:
        """Replace every value by what `spread` makes of it."""
        for name in _VALUES:
            setattr(self, name, spread(getattr(self, name)))


_VALUES = tuple(f.name for f in fields(Unit) if f.name != "zero_again")


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
    routing: Routing
    local_experts: Num
    """Routed experts of one rank."""
    clamped: bool
    """The gated unit clamps, scales and shifts its inputs (gpt-oss), which few kernels fuse."""
    traffic: dict[str, Factors]
    """Traffic of element-wise ops / that of fused kernels, by the last part of their name."""
    act_bytes: float
    accumulate_bytes: float
    """HBM bytes that a weight gradient moves per element of the weight, inside its product (fused accumulation)."""
    add_bytes: float
    """HBM bytes per trained parameter and micro-batch of a separate accumulation pass; 0 where it is fused."""


def behind(busy: Num, window: Num, hidden: float) -> Num:
    """Return the exposed part of traffic of which `hidden` may run behind a window of compute, at a cost to that compute
    (it takes multiprocessors and HBM from it)."""
    if not hidden:
        return busy
    covered = np.minimum(hidden * busy, window)
    return busy - covered + calibration("software").value("overlap_slowdown") * covered
