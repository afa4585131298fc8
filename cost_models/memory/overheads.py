"""What comes on top of allocated bytes: cached and fragmented memory (reserved), context and communicators (device)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.ledger import Ledger, Term
from cost_models.numeric import Num, nothing, num
from hardware.calibration import calibration

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.training import Training
    from hardware.spec import Pool

SOURCE = "hardware/measured/memory.toml"
CACHED_UP_TO = 0.92
"""Part of the card up to which blocks that could be given back count: beyond it they say nothing about what a run needs."""


def overheads(training: Training, layout: Layout, pool: Pool, allocated: Num, apart: Num) -> Ledger:
    """Return the overhead of every stage, bytes per rank: `overhead.reserved.*` and `overhead.device.*`.

    `apart`: blocks that stay cached beside the peak because it cannot use them. They fill what room the card has: before torch's
    allocator runs out of memory it gives cached blocks back (c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks). A pipeline's
    micro-batches in flight fragment blocks of fixed size, but not expandable segments (the switch `allocator`).
    """
    c = calibration("memory")
    d = layout.degrees
    fixed = training.extra.get("allocator") != "expandable"
    pipelined = np.where(num(d.pp) > 1.0, 1.0, 0.0) if fixed else 0.0
    share = c.value("cache_share") + pipelined * c.value("cache_share_pipeline")
    kinds: Num = 0.0
    for degree in (d.tp, d.pp, d.cp, d.ep, d.dp):
        kinds = kinds + np.where(num(degree) > 1.0, 1.0, 0.0)
    context = float(training.extra.get("context_bytes", c.value("context_bytes")))
    communicators = kinds * c.value("communicator_bytes")
    kept: Num = share * allocated
    if not nothing(apart):
        room = np.maximum(CACHED_UP_TO * pool.capacity_bytes - (context + communicators) - (1.0 + share) * allocated, 0.0)
        kept = kept + np.minimum(apart, room)
    cached = Term(
        name="overhead.reserved.cache",
        value=kept,
        source=f"{SOURCE}: cache_share",
        formula="allocated × share that stays cached or fragmented + copies of the optimizer step, where the card has room",
    )
    return Ledger(
        "bytes",
        (
            cached,
            Term(
                name="overhead.device.context",
                value=context,
                source=f"{SOURCE}: context_bytes",
                formula="CUDA context, modules, libraries",
            ),
            Term(
                name="overhead.device.nccl",
                value=communicators,
                source=f"{SOURCE}: communicator_bytes",
                formula="kinds of communicator × bytes",
            ),
        ),
    )
