"""What comes on top of allocated bytes: cached and fragmented memory (reserved), context and communicators (device)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.ledger import Ledger, Term
from cost_models.numeric import Num, num
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Layout

SOURCE = "hardware/measured/memory.toml"


def overheads(layout: Layout, allocated: Num, apart: Num) -> Ledger:
    """Return the overhead of every stage, bytes per rank: `overhead.reserved.*` and `overhead.device.*`."""
    c = calibration("memory")
    d = layout.degrees
    pipelined = np.where(num(d.pp) > 1.0, 1.0, 0.0)
    share = c.value("cache_share") + pipelined * c.value("cache_share_pipeline")
    cached = Term(
        name="overhead.reserved.cache",
        value=share * allocated + apart,
        source=f"{SOURCE}: cache_share",
        formula="allocated × share that stays cached or fragmented + copies of the optimizer step",
    )
    kinds: Num = 0.0
    for degree in (d.tp, d.pp, d.cp, d.ep, d.dp):
        kinds = kinds + np.where(num(degree) > 1.0, 1.0, 0.0)
    zero = 0.0 * allocated
    return Ledger(
        "bytes",
        (
            cached,
            Term(
                name="overhead.device.context",
                value=c.value("context_bytes") + zero,
                source=f"{SOURCE}: context_bytes",
                formula="CUDA context, modules, libraries",
            ),
            Term(
                name="overhead.device.nccl",
                value=kinds * c.value("communicator_bytes") + zero,
                source=f"{SOURCE}: communicator_bytes",
                formula="kinds of communicator × bytes",
            ),
        ),
    )
