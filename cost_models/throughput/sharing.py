"""Sharing: a rank has one share of the network, which only one of its groups can use at a time.

What runs behind compute (gathers and reductions of ZeRO-3 and FSDP, gradient reduction, parameter gather, pipeline sends) progresses only
while other groups of the same ranks leave the network free. Groups inside a server take none of it: their traffic runs beside.
"""

from __future__ import annotations

import numpy as np

from cost_models.numeric import Num, nothing, num


def window_left(window: Num, busy: Num, network: Num, others: Num) -> Num:
    """Return how many of `busy` seconds of traffic `window` seconds of compute can hide.

    `network`: the part of `busy` in which the traffic itself takes the network; `others`: seconds of the window in which other groups do.
    x of the traffic's seconds need x network / busy of the network, of which window - others are left: x <= (window - others) busy /
    network, and x <= window. All of one shape, or broadcast.
    """
    if nothing(others) or nothing(network):
        return window
    taken = num(network)
    free = np.maximum(window - others, 0.0) * (busy / np.where(taken > 0.0, taken, 1.0))
    return np.where(taken > 0.0, np.minimum(window, free), window)


def named(groups: list[str]) -> str:
    """Return words for the groups that take the network too: ` while EP and ZeRO leave the network free`."""
    if not groups:
        return ""
    listed = " and ".join(filter(None, [", ".join(groups[:-1]), groups[-1]]))
    return f" while {listed} {'leave' if len(groups) > 1 else 'leaves'} the network free"
