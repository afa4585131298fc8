"""Measures: the names that wishes use, as numbers or arrays of one batch of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cost_models.layout import Choices, Degrees, micro_batches
from cost_models.numeric import num
from planner.wish import CASE_NAMES, LAYOUT_NAMES

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from cost_models.result import Cost
    from hardware.spec import Pool
    from planner.case import Case
    from planner.wish import Wish

SECONDS_PER_HOUR = 3600.0


def layout_values(case: Case, layout: Layout) -> dict[str, Any]:
    """Return every name of the layout and the case: degrees flat, (N,) or (1,); choices as they are."""
    values: dict[str, Any] = {name: num(getattr(layout.degrees, name)).reshape(-1) for name in Degrees.__dataclass_fields__}
    values.update({name: getattr(layout.choices, name) for name in Choices.__dataclass_fields__ if name in LAYOUT_NAMES})
    values["framework"] = case.framework
    values["accumulation"] = num(micro_batches(layout, case.training.global_batch)).reshape(-1)
    case_values = (float(case.pool.count), float(case.pool.nodes), float(case.training.seq), float(case.training.global_batch))
    values.update(zip(CASE_NAMES, case_values, strict=True))
    return values


def result_values(case: Case, result: Cost) -> dict[str, Any]:
    """Return every name of the results, flat. `tokens_per_dollar` is NaN where the price is unknown."""
    memory, time = result.memory, result.time
    per_gpu = num(time.tokens_per_second_per_gpu).reshape(-1)
    rate = usd_per_hour(case.pool)
    found = {
        "memory": memory.peak_device_bytes,
        "allocated": memory.peak_allocated_bytes,
        "reserved": memory.peak_reserved_bytes,
        "headroom": case.pool.capacity_bytes - num(memory.peak_device_bytes),
        "host_memory": memory.host_bytes_per_node,
        "nvme": memory.nvme_bytes_per_node,
        "step": time.step_seconds,
        "tokens_per_second": per_gpu * case.pool.count,
        "tokens_per_second_per_gpu": per_gpu,
        "tokens_per_dollar": np.full(1, np.nan) if rate is None else per_gpu * case.pool.count * SECONDS_PER_HOUR / rate,
        "mfu": time.mfu,
        "hfu": time.hfu,
    }
    return {name: num(value).reshape(-1) for name, value in found.items()}


def wished(case: Case, layout: Layout, result: Cost) -> npt.NDArray[np.bool_]:
    """Return which layouts of a batch keep the wishes about results, (N,)."""
    size = layout.size
    keep = np.ones(size, dtype=bool)
    about_results = [wish for wish in case.wishes if wish.needs_results]
    if not about_results:
        return keep
    values = {**layout_values(case, layout), **result_values(case, result)}
    for wish in about_results:
        keep &= _mask(wish, values, size)
    return keep


def wished_layout(case: Case, layout: Layout, wish: Wish) -> npt.NDArray[np.bool_]:
    """Return which layouts of a batch keep one wish about the layout alone, (N,)."""
    return _mask(wish, layout_values(case, layout), layout.size)


def broken_wishes(case: Case, layout: Layout, result: Cost) -> tuple[Wish, ...]:
    """Return the wishes that one evaluated layout breaks."""
    values = {**layout_values(case, layout), **result_values(case, result)}
    return tuple(wish for wish in case.wishes if not _mask(wish, values, 1)[0])


def _mask(wish: Wish, values: Mapping[str, Any], size: int) -> npt.NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(wish.holds(values), dtype=bool).reshape(-1), (size,))


def usd_per_hour(pool: Pool) -> float | None:
    """Return what the pool's servers cost an hour; a server that is used in part is paid whole. None: unknown."""
    price = pool.node.price_usd_per_hour
    return None if price is None else price * pool.nodes
