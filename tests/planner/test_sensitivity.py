"""Sensitivity: every row is the search made again with the change, and nothing that only adds freedom makes it worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cost_models.numeric import num
from planner.asked import make_request
from planner.request import Resolved, resolve
from planner.search import search
from planner.sensitivity import scenarios, sensitivities

if TYPE_CHECKING:
    from planner.plan import Plan


def asked(**request: Any) -> Resolved:
    return resolve(make_request({"model": "llama-3.1-8b", "cluster": "2x4xA100-40G", "global_batch": 32, **request}))


def first(resolved: Resolved) -> Plan | None:
    return next(iter(search(resolved, top=1, remedies=False).plans), None)


def rate(plan: Plan) -> float:
    return float(num(plan.cost.time.tokens_per_second_per_gpu)) * plan.pool.count


def test_rows_are_searches_made_again() -> None:
    resolved = asked()
    now = first(resolved)
    assert now is not None
    rows = {row.change: row for row in sensitivities(resolved, now, first)}
    assert len(rows) == len(list(scenarios(resolved)))
    double = rows["global batch 64"]
    again = first(asked(global_batch=64))
    assert double.plan is not None
    assert again is not None
    assert double.plan.layout == again.layout
    assert double.gain == pytest.approx(rate(again) / rate(now) - 1.0)
    twice = next(row for change, row in rows.items() if change.startswith("twice the GPUs"))
    assert twice.plan is not None
    assert twice.plan.pool.count == 16
    for change, row in rows.items():
        if change.startswith(("1 GiB more", "links between servers")):
            assert row.gain is not None
            assert row.gain >= -1e-12
            assert row.same_layout == (row.plan is not None and row.plan.layout == now.layout)


def test_what_each_change_changes() -> None:
    resolved = asked(free_memory="30GiB")
    pool = resolved.cluster.pools[0]
    changed = {words: [one for _, one in options] for words, options in scenarios(resolved)}
    (memory,) = changed["1 GiB more on each GPU"]
    assert memory.cluster.pools[0].capacity_bytes == pool.capacity_bytes + 2**30
    (links,) = changed["links between servers 10 % faster"]
    assert pool.inter_node_bytes_per_second is not None
    assert links.cluster.pools[0].inter_node_bytes_per_second == pytest.approx(1.1 * pool.inter_node_bytes_per_second)
    server = next(options for words, options in changed.items() if "server" in words and "GPU" in words and "links" not in words)
    assert server[0].cluster.pools[0].count == pool.count + pool.node.gpus_per_node


def test_what_would_make_an_infeasible_request_fit() -> None:
    """8B in full on one 80 GB card without offload: one GiB more does not do, the whole server does."""
    resolved = asked(cluster="1xH100-80G", offload="none")
    assert first(resolved) is None
    rows = sensitivities(resolved, None, first)
    assert all(row.gain is None for row in rows)
    assert rows[0].plan is None
    assert any(row.plan is not None for row in rows if "GPU" in row.change and "GiB" not in row.change)


def test_serving_has_no_batch_to_double() -> None:
    assert not any("batch" in words for words, _ in scenarios(asked(method="inference", global_batch=None)))


def test_one_more_server_that_doubles_the_gpus_is_said_once() -> None:
    words = [words for words, _ in scenarios(asked(cluster="8xA100-40G"))]
    assert any(w.startswith("8 more GPUs") for w in words)
    assert "twice the GPUs" not in words
    assert "twice the GPUs" in [words for words, _ in scenarios(asked())]
