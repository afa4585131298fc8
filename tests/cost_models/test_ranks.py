"""Ranks: groups against the rank lists that Megatron-LM's numbering gives, enumerated here anew.

A rank is a mixed-radix number whose digits are its places on the axes, the first axis of the order the lowest digit
(Megatron-LM core/parallel_state.py: global_rank = sum of place × product of the sizes before it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.layout import RANK_ORDERS, Choices, Degrees, Layout
from cost_models.throughput.ranks import Chain, Ends, Group, ranks

if TYPE_CHECKING:
    from cost_models.throughput.ranks import Ranks

ORDERS = range(len(RANK_ORDERS))
SIZES = [s for s in product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 4)) if 8 <= np.prod(s) <= 64]
"""tp, cp, dp, pp."""


def numbered(order: str, sizes: dict[str, int], axes: set[str]) -> list[list[int]]:
    """All groups over `axes`: ranks that agree in every other digit, by the lower axis first."""
    names = order.split("-")
    groups: dict[tuple[int, ...], list[int]] = {}
    for places in product(*(range(sizes[name]) for name in reversed(names))):
        place = dict(zip(reversed(names), places, strict=True))
        rank, weight = 0, 1
        for name in names:
            rank += place[name] * weight
            weight *= sizes[name]
        groups.setdefault(tuple(place[name] for name in names if name not in axes), []).append(rank)
    return sorted(sorted(group) for group in groups.values())


def layouts() -> Iterator[tuple[str, dict[str, int], Ranks]]:
    for order, (tp, cp, dp, pp) in product(ORDERS, SIZES):
        sizes = {"tp": tp, "cp": cp, "ep": 1, "dp": dp, "pp": pp}
        degrees = Degrees(tp=float(tp), cp=float(cp), dp=float(dp), pp=float(pp), rank_order=float(order))
        yield RANK_ORDERS[order], sizes, ranks(Layout(degrees=degrees, choices=Choices()))


def members(group: Group) -> list[int]:
    """The group of rank 0."""
    runs, size = int(np.asarray(group.runs)), int(np.asarray(group.size))
    return sorted(i * int(np.asarray(group.stride)) + j * int(np.asarray(group.leap)) for i in range(size) for j in range(runs))


def check(group: Group, enumerated: list[list[int]]) -> None:
    """The groups tile the ranks, that of rank 0 is the enumerated one, and every server holds as many members of every group as is said."""
    assert members(group) == next(g for g in enumerated if 0 in g)
    assert sorted(r for g in enumerated for r in g) == list(range(sum(map(len, enumerated))))
    assert {len(g) for g in enumerated} == {int(np.asarray(group.count))}
    for server in (1, 2, 4, 8, 16, 32):
        found = {count for g in enumerated for count in Counter(rank // server for rank in g).values()}
        assert found == {int(np.asarray(group.within(float(server))))}, (server, group)


def test_dense_groups_are_those_of_the_rank_generator() -> None:
    for order, sizes, made in layouts():
        check(made.tp, numbered(order, sizes, {"tp"}))
        check(made.cp, numbered(order, sizes, {"cp"}))
        check(made.dense, numbered(order, sizes, {"dp", "cp"}))


def test_expert_groups_are_those_of_the_experts_own_grid() -> None:
    """etp, ep and expert dp in place of tp, cp and dp; with stages inside, both grids have as many replicas."""
    for order, (etp, ep, dp, pp) in product(ORDERS, SIZES):
        sizes = {"tp": etp, "cp": 1, "ep": ep, "dp": dp, "pp": pp}
        degrees = Degrees(tp=float(etp * ep), ep=float(ep), etp=float(etp), dp=float(dp), pp=float(pp), rank_order=float(order))
        made = ranks(Layout(degrees=degrees, choices=Choices()))
        check(made.etp, numbered(RANK_ORDERS[order], sizes, {"tp"}))
        check(made.ep, numbered(RANK_ORDERS[order], sizes, {"ep"}))
        check(made.expert, numbered(RANK_ORDERS[order], sizes, {"dp"}))


def test_shard_groups_are_consecutive_members_of_the_replicas() -> None:
    """Megatron-LM's distributed optimizer instances: the list of dp × cp ranks cut into equal pieces, copies across the pieces."""
    for order, (tp, cp, dp, pp) in product(ORDERS, SIZES):
        sizes = {"tp": tp, "cp": cp, "ep": 1, "dp": dp, "pp": pp}
        whole = numbered(RANK_ORDERS[order], sizes, {"dp", "cp"})
        for shard in (s for s in (1, 2, 4, 8) if s <= dp * cp):
            degrees = Degrees(tp=float(tp), cp=float(cp), dp=float(dp), pp=float(pp), rank_order=float(order), shard_group=float(shard))
            made = ranks(Layout(degrees=degrees, choices=Choices()))
            check(made.dense, [g[i : i + shard] for g in whole for i in range(0, len(g), shard)])
            assert made.copies is not None
            check(made.copies, [g[i::shard] for g in whole for i in range(shard)])


def test_hops_leave_a_server_where_the_chain_does() -> None:
    """Every hop to the next stage, and the one from the last stage back to the first, which interleaved chunks take."""
    for order, sizes, made in layouts():
        chains = numbered(order, sizes, {"pp"})
        assert all(b - a == int(np.asarray(made.chain.stride)) for g in chains for a, b in zip(g, g[1:], strict=False))
        for server in (1, 2, 4, 8, 16, 32):
            leaves = any(a // server != b // server for g in chains for a, b in zip(g, [*g[1:], g[0]], strict=True))
            assert leaves == (float(np.asarray(made.chain.span)) > server and sizes["pp"] > 1)
            ends = Ends(chain=made.chain)
            if sizes["pp"] > 1:
                servers = {len({g[0] // server, g[-1] // server}) for g in chains}
                assert servers == {2 // int(np.asarray(ends.within(float(server))))}
            assert int(np.asarray(ends.count)) == min(sizes["pp"], 2)


def test_a_batch_of_both_orders_places_its_rows_like_each_alone() -> None:
    rows = [(float(o), *map(float, s), float(g)) for o, s, g in product(ORDERS, SIZES, (0, 2)) if s[1] * s[2] % 2 == 0]
    columns = np.array(rows)
    order, tp, cp, dp, pp, shard = (columns[:, i : i + 1] for i in range(6))
    whole = ranks(Layout(degrees=Degrees(tp=tp, cp=cp, dp=dp, pp=pp, rank_order=order, shard_group=shard), choices=Choices()))
    for i, row in enumerate(rows):
        o, t, c, d, p, s = row
        one = ranks(Layout(degrees=Degrees(tp=t, cp=c, dp=d, pp=p, rank_order=o, shard_group=s), choices=Choices()))
        for name in ("dense", "expert", "cp", "copies"):
            mine, alone = getattr(whole, name), getattr(one, name)
            if alone is None:
                continue
            for server in (2.0, 8.0, 32.0):
                assert float(at(mine.within(server), i)) == float(np.asarray(alone.within(server))), (name, row)
            assert float(at(mine.count, i)) == float(np.asarray(alone.count))
        assert float(at(whole.chain.stride, i)) == float(np.asarray(one.chain.stride))


def at(values: Any, row: int) -> Any:
    flat = np.asarray(values).reshape(-1)
    return flat[row if flat.size > 1 else 0]


@pytest.mark.parametrize(("stages", "stride", "server", "together"), [(4, 2, 8, 2), (4, 3, 8, 1), (8, 2, 8, 1), (2, 8, 8, 1), (1, 8, 8, 1)])
def test_first_and_last_stage_share_a_server_where_the_chain_does(stages: int, stride: int, server: int, together: int) -> None:
    ends = Ends(chain=Chain(stages=float(stages), stride=float(stride)))
    assert float(np.asarray(ends.within(float(server)))) == together
