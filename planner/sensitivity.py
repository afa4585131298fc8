"""Sensitivity: what a little more of something would buy, by making the search again with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import GIB
from planner.answers import Sensitivity
from planner.defaults import odd_part
from planner.requirements import same_server, trained, with_pools

if TYPE_CHECKING:
    from hardware.spec import Pool
    from planner.plan import Plan
    from planner.request import Resolved

FASTER = 1.1
"""Factor of the links between servers."""

Best = Callable[["Resolved"], "Plan | None"]
"""A search for the best plan."""


def sensitivities(resolved: Resolved, now: Plan | None, find: Best) -> tuple[Sensitivity, ...]:
    """Return what each change would buy against `now`, the best plan as it is."""
    rows = []
    for words, options in scenarios(resolved):
        found = [(note, plan) for note, changed in options if (plan := find(changed)) is not None]
        note, best = max(found, key=lambda one: _tokens_per_second(one[1])) if found else ("", None)
        rows.append(_row(words + note, best, now))
    return tuple(rows)


Option = tuple[str, "Resolved"]
"""What is added to the words of a change, and the request with it."""


def scenarios(resolved: Resolved) -> Iterator[tuple[str, list[Option]]]:
    """Yield the changes: a GiB more on each GPU, faster links between servers, a double batch, one more server, twice the GPUs.

    More GPUs come with the batch as it is, and with the nearest larger one that they divide, whichever is faster. Where one more server is
    twice the GPUs, it is said once.
    """
    yield "1 GiB more on each GPU", [("", with_pools(resolved, _more_memory))]
    if any(pool.nodes > 1 for pool in resolved.cluster.pools):
        yield f"links between servers {100 * (FASTER - 1):.0f} % faster", [("", with_pools(resolved, _faster_links))]
    if resolved.training.method != "inference":
        double = 2 * resolved.training.global_batch
        yield f"global batch {double:,}", [("", made) for made in trained(resolved, global_batch=double)]
    added = [_grown(pool) - pool.count for pool in resolved.cluster.pools]
    words = f"{sum(added)} more GPU" + ("s" if sum(added) > 1 else "")
    server = "the rest of the server" if resolved.cluster.count < resolved.cluster.pools[0].node.gpus_per_node else "one server"
    where = f"({server}{' of each pool' if len(added) > 1 else ''})"
    yield f"{words} {where}", _batches(with_pools(resolved, lambda pool: same_server(pool, _grown(pool))))
    if added != [pool.count for pool in resolved.cluster.pools]:
        yield "twice the GPUs", _batches(with_pools(resolved, lambda pool: same_server(pool, 2 * pool.count)))


def _batches(resolved: Resolved) -> list[Option]:
    """Return the request as it is, and with a batch that the odd part of its GPUs divides."""
    batch = resolved.training.global_batch
    unit = math.lcm(*(odd_part(pool.count) for pool in resolved.cluster.pools)) * int(resolved.fixed.get("micro_batch", 1))
    suited = -(-batch // unit) * unit
    return [("", resolved), *((f", batch {suited:,}", made) for made in trained(resolved, global_batch=suited))]


def _grown(pool: Pool) -> int:
    """Return the GPUs of the pool with one server more; of a part of a server, all of it."""
    whole = pool.node.gpus_per_node
    return whole if pool.count < whole else pool.count + whole


def _more_memory(pool: Pool) -> Pool:
    size = pool.capacity_bytes + GIB
    return pool.model_copy(update={"gpu": pool.gpu.model_copy(update={"torch_memory_bytes": size}), "free_memory_bytes": None})


def _faster_links(pool: Pool) -> Pool:
    rate = pool.inter_node_bytes_per_second
    node = pool.node
    changed = {
        name: getattr(node, name) * FASTER
        for name in ("nic_bytes_per_second", "network_bytes_per_second")
        if getattr(node, name) is not None
    }
    update = {"node": node.model_copy(update=changed), "inter_node_bytes_per_second": None if rate is None else rate * FASTER}
    return pool.model_copy(update=update)


def _row(words: str, found: Plan | None, now: Plan | None) -> Sensitivity:
    if found is None or now is None:
        return Sensitivity(change=words, plan=found, gain=None, same_layout=False)
    gain = _tokens_per_second(found) / _tokens_per_second(now) - 1.0
    same = found.layout == now.layout and found.training.framework == now.training.framework
    return Sensitivity(change=words, plan=found, gain=gain, same_layout=same)


def _tokens_per_second(plan: Plan) -> float:
    return float(num(plan.cost.time.tokens_per_second_per_gpu)) * plan.pool.count
