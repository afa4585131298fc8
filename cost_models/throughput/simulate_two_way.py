"""Event simulation of the schedules whose micro-batches take several ways through the ranks: zero-bubble V and DualPipe.

Each rank takes whatever can start first: input gradients before forwards before weight gradients where several can. Forwards wait
while a rank holds as many micro-batches as the schedule's memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost_models.throughput.simulate import Durations, Event, Pass

TWO_WAY = ("zb-v", "dualpipe")
NEVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One way through the ranks: the rank of each position, its seconds, and how many micro-batches it may hold."""

    ranks: Sequence[int]
    forward: Sequence[float]
    inputs: Sequence[float]
    weight: Sequence[float]
    held: Sequence[int]
    micro_batches: int
    chunks: Sequence[int]
    """What the events call each position."""


@dataclass(slots=True)
class _State:
    """What has run so far."""

    counts: dict[tuple[int, int], dict[Pass, int]]
    """(route, position) -> passes done of each kind."""
    done: dict[tuple[int, int, Pass, int], float] = field(default_factory=dict)


def simulate_two_way(schedule: str, durations: Durations, micro_batches: int) -> list[Event]:
    """Return the events of all ranks. Sends take no time. Raises ValueError for a schedule that is not simulated here."""
    if schedule == "zb-v":
        return play(_v(durations, micro_batches), 1)
    if schedule == "dualpipe":
        return play(_both_ends(durations, micro_batches), 2)
    raise ValueError(f"{schedule} is not simulated; these are: {', '.join(TWO_WAY)}")


def _weight(d: Durations) -> Sequence[float]:
    return d.weight or [0.0] * len(d.forward)


def _v(d: Durations, m: int) -> list[Route]:
    """Down all ranks with the first chunk, up again with the second; p micro-batches of the whole stage at most."""
    p = len(d.forward)
    down = list(range(p))
    ranks = down + down[::-1]
    weight = _weight(d)
    return [
        Route(
            ranks=ranks,
            forward=[d.forward[r] / 2.0 for r in ranks],
            inputs=[(d.backward[r] - weight[r]) / 2.0 for r in ranks],
            weight=[weight[r] / 2.0 for r in ranks],
            held=[2 * p - r if k < p else m for k, r in enumerate(ranks)],
            micro_batches=m,
            chunks=[0] * p + [1] * p,
        )
    ]


def _both_ends(d: Durations, m: int) -> list[Route]:
    """Half of the micro-batches enter at either end; each direction holds what 1F1B holds, p + 1 together."""
    p = len(d.forward)
    weight = _weight(d)
    inputs = [b - w for b, w in zip(d.backward, weight, strict=True)]
    ways = []
    for way, ranks in enumerate((list(range(p)), list(range(p))[::-1])):
        held = [p - k for k in range(p)]
        size = (m + 1 - way) // 2
        ways.append(
            Route(ranks=ranks, forward=d.forward, inputs=inputs, weight=weight, held=held, micro_batches=size, chunks=[way] * p)
        )
    return ways


def play(routes: Sequence[Route], stride: int) -> list[Event]:
    """Run all passes of all routes; micro-batch i of route r is called i × stride + r."""
    ranks = 1 + max(r for route in routes for r in route.ranks)
    here = [[(w, k) for w, route in enumerate(routes) for k, r in enumerate(route.ranks) if r == rank] for rank in range(ranks)]
    state = _State({place: {"forward": 0, "backward": 0, "weight": 0} for places in here for place in places})
    free = [0.0] * ranks
    offers = [_offer(routes, here[r], free[r], state) for r in range(ranks)]
    events: list[Event] = []
    for _ in range(3 * sum(len(route.ranks) * route.micro_batches for route in routes)):
        rank = min(range(ranks), key=lambda r: (offers[r][0], r))
        start, _, kind, way, k = offers[rank]
        if start == NEVER:
            raise RuntimeError("the passes wait for each other")
        route = routes[way]
        length = {"forward": route.forward, "backward": route.inputs, "weight": route.weight}[kind][k]
        i = state.counts[way, k][kind]
        free[rank] = state.done[way, k, kind, i] = start + length
        state.counts[way, k][kind] += 1
        events.append(Event(rank, kind, route.chunks[k], i * stride + way, start, free[rank]))
        after = k + 1 if kind == "forward" else k - 1
        touched = {rank} | ({route.ranks[after]} if kind != "weight" and 0 <= after < len(route.ranks) else set())
        for r in touched:
            offers[r] = _offer(routes, here[r], free[r], state)
    return sorted(events, key=lambda e: (e.start_seconds, e.stage))


def _offer(
    routes: Sequence[Route], places: Sequence[tuple[int, int]], free: float, state: _State
) -> tuple[float, int, Pass, int, int]:
    """What a rank would run next: start, preference, pass, route and position; start NEVER where nothing is ready."""
    best: tuple[float, int, Pass, int, int] = (NEVER, 0, "weight", 0, 0)
    for way, k in places:
        route, c, done = routes[way], state.counts[way, k], state.done
        last = len(route.ranks) - 1
        if c["backward"] < c["forward"]:
            i = c["backward"]
            ready = done.get((way, k + 1, "backward", i)) if k < last else done.get((way, k, "forward", i))
            if ready is not None:
                best = min(best, (max(free, ready), -3, "backward", way, k))
        if c["forward"] < route.micro_batches and c["forward"] - c["weight"] < route.held[k]:
            ready = 0.0 if k == 0 else done.get((way, k - 1, "forward", c["forward"]))
            if ready is not None:
                best = min(best, (max(free, ready), -2 if k > last // 2 else -1, "forward", way, k))
        if c["weight"] < c["backward"]:
            best = min(best, (free, 0, "weight", way, k))
    return best
