"""Host memory and NVMe of a server under offload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.choices.offload import OFFLOAD
from cost_models.ledger import Ledger, Term
from cost_models.numeric import Num, num, plus
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.choices.precision import Regime
    from cost_models.layout import Layout
    from cost_models.memory.states import States
    from hardware.spec import Pool

SOURCE = "DeepSpeed runtime/zero/offload_config.py (pinned by default), stage3.py (estimate_zero3_model_states_mem_needs)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Bytes of one server, of its heaviest stage."""

    ledger: Ledger
    nvme_bytes: Num


def host(regime: Regime, layout: Layout, pool: Pool, s: States, activations: Num) -> Host:
    """Return what the ranks of one server put on its host and its NVMe.

    Optimizer offload moves master and moments and keeps a 16-bit and an fp32 copy of the gradients on the host (pinned); NVMe
    takes the states and leaves pinned swap buffers on the host.
    """
    mode = OFFLOAD[layout.choices.offload]
    ranks = float(pool.gpus_per_node)
    away = num(layout.degrees.offload_fraction)
    gradients: Num = s.owned * 4.0 * away if mode.optimizer else 0.0
    states = plus(s.host_optimizer, s.host_weights)
    terms = []
    nvme: Num = 0.0
    if layout.choices.offload_target == "nvme":
        nvme = states * ranks
        if mode.optimizer or mode.weights:
            swap = calibration("memory").value("nvme_swap_bytes") * ranks
            terms.append(Term(name="host.swap_buffers", value=swap, source=SOURCE, formula="pinned swap buffers × ranks per server"))
    else:
        terms.append(Term(name="host.states", value=states * ranks, source=SOURCE, formula="offloaded states × ranks per server"))
    terms.append(
        Term(
            name="host.gradients", value=gradients * ranks, source=SOURCE, formula="fp32 gradients of the offloaded part × ranks per server"
        )
    )
    terms.append(
        Term(
            name="host.activations",
            value=activations * ranks,
            source="activations moved to pinned host memory",
            formula="offloaded activations × ranks per server",
        )
    )
    return Host(ledger=Ledger("bytes", tuple(terms)), nvme_bytes=nvme)
