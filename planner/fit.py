"""Whether a plan fits: the one verdict, from the device peak and its band, the memory of the server, and NVMe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.numeric import num
from planner.bands import LIKELY, Band, fit_band, memory_class

if TYPE_CHECKING:
    from cost_models.result import MemoryCost
    from planner.case import Case
    from planner.plan import Verdict


def band_of(case: Case) -> Band:
    """Return the band of what must fit."""
    return fit_band(memory_class(case.architecture, case.training))


def fit_probability(case: Case, memory: MemoryCost) -> float:
    """Return the probability that a single layout needs no more than the card's capacity; 0 where the server cannot hold the rest."""
    if beyond_server(case, memory):
        return 0.0
    return float(band_of(case).probability(case.pool.capacity_bytes / num(memory.peak_device_bytes)))


def verdict(case: Case, memory: MemoryCost) -> Verdict:
    """Return `fits` up to the case's limit (planner.evaluate.fitting is the same for a batch), `no` where fitting is less than LIKELY,
    `tight` between."""
    device = float(num(memory.peak_device_bytes))
    if beyond_server(case, memory):
        return "no"
    if device <= case.limit_bytes:
        return "fits"
    return "no" if device > case.pool.capacity_bytes / band_of(case).ratio(LIKELY) else "tight"


def beyond_server(case: Case, memory: MemoryCost) -> bool:
    """Tell whether the server's memory or NVMe cannot hold what is offloaded; unknown sizes are not checked."""
    host, limit = float(num(memory.host_bytes_per_node)), case.host_limit_bytes
    nvme, space = float(num(memory.nvme_bytes_per_node)), case.pool.node.nvme_bytes
    return (limit is not None and host > limit) or (space is not None and nvme > space)
