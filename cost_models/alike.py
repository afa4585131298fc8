"""Alike: layouts of a batch that have the same ops, so that ops are made, summed and priced once for all of them.

What one rank does with one micro-batch depends on few degrees; the others say how often it does so, and with how many peers. A batch of
thousands of layouts therefore has tens or hundreds of different ops.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cost_models.layout import Degrees, Layout
from cost_models.numeric import Num, num

READ = ("tp", "cp", "ep", "etp", "micro_batch")
"""Degrees that ops, their collectives included, depend on. Of `pp` they ask only whether it is above 1 (tied matrices)."""
LEAST = 512
"""Layouts from which sharing saves more than it costs."""
_WEIGHTS = (1.0, 2.0**0.5, 3.0**0.5, 5.0**0.5, 7.0**0.5, 11.0**0.5)
"""Without a common measure, so that sums of whole multiples differ."""
_UNREAD = {name: float("nan") for name in Degrees.__dataclass_fields__ if name not in (*READ, "pp")}
"""A formula of an op that reads one of these gets no number."""

Rows = npt.NDArray[np.intp]


def alike(layout: Layout) -> tuple[Layout, Rows | None]:
    """Return one layout for each kind of ops in a batch, and for each layout of the batch which of them it is, (N,).

    None: the two batches have the same rows, or the first has a single one for all. The layouts returned are for ops alone: degrees that
    no op reads are NaN where rows were shared.
    """
    size = layout.size
    if size < LEAST:
        return layout, None
    read = {name: num(getattr(layout.degrees, name)) for name in READ}
    read["pp"] = np.minimum(num(layout.degrees.pp), 2.0)
    many = {name: x for name, x in read.items() if x.size > 1}
    key = np.zeros(size)
    for weight, values in zip(_WEIGHTS, many.values(), strict=False):
        key = key + weight * values.reshape(-1)
    found, rows = np.unique(key, return_inverse=True, equal_nan=False)
    if 2 * len(found) > size:
        return layout, None
    first = np.empty(len(found), dtype=np.intp)
    first[rows] = np.arange(size)
    few = {name: x.take(first, axis=0) for name, x in many.items()}
    if not all(np.array_equal(few[name].take(rows, axis=0), x) for name, x in many.items()):
        return layout, None
    degrees = Degrees(**dict[str, Num]({**_UNREAD, **read, **few}))
    return replace(layout, degrees=degrees), rows if len(found) > 1 else None
