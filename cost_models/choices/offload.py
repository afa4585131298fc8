"""Offload: which states leave the device, and what the host then holds for them."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.layout import Offload


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadMode:
    """One entry."""

    name: Offload
    sentence: str
    optimizer: bool
    weights: bool
    source: str = "Ren et al. 2021 (arXiv 2101.06840); Rajbhandari et al. 2021 (arXiv 2104.07857); DeepSpeed runtime/zero/offload_config.py"


OFFLOAD: dict[str, OffloadMode] = {
    mode.name: mode
    for mode in (
        OffloadMode(name="none", sentence="all states stay on the device", optimizer=False, weights=False),
        OffloadMode(
            name="optimizer",
            sentence="master weights, moments and their gradients live on the host, which runs the step",
            optimizer=True,
            weights=False,
        ),
        OffloadMode(name="params", sentence="16-bit weights live on the host and are fetched unit by unit", optimizer=False, weights=True),
        OffloadMode(name="optimizer+params", sentence="all states live on the host", optimizer=True, weights=True),
    )
}
