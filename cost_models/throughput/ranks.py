"""Ranks: which GPUs form each group, by the order in which a framework numbers the axes.

The first axis of the order has neighbours side by side. Megatron-LM numbers tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp with
`--use-tp-pp-dp-mapping` (megatron/training/initialize.py; RankGenerator of megatron/core/parallel_state.py, where experts have a grid
of their own: etp, ep and expert dp in place of tp, cp and dp). torchtitan (distributed/parallel_dims.py), DeepSpeed
(runtime/pipe/topology.py) and accelerate (parallelism_config.py) have the first order alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.layout import Layout, expert_dp, shard_ranks
from cost_models.numeric import Num, num


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that communicate: `runs` times `size` of them, `stride` apart in a run; runs begin `leap` apart."""

    size: Num
    stride: Num
    runs: Num = 1.0
    leap: Num = 0.0

    @property
    def count(self) -> Num:
        """Members."""
        return self.size if _plain(self.runs) else self.size * self.runs

    def within(self, gpus: float) -> Num:
        """Return how many members sit among `gpus` neighbours (a server, a leaf) that begin at a multiple of their number."""
        inside = np.minimum(np.maximum(np.floor(gpus / self.stride), 1.0), self.size)
        if _plain(self.runs):
            return inside
        return inside * np.minimum(np.maximum(np.floor(gpus / self.leap), 1.0), self.runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Ranks of a pipeline: `stages` of them, each hands on to the one `stride` further, the last one's next chunk back to the first."""

    stages: Num
    stride: Num

    @property
    def span(self) -> Num:
        """GPUs that the chain reaches over: where they share a server, no hop leaves it."""
        return self.stride * self.stages


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """First and last rank of a chain: what Megatron-LM calls the embedding group; one rank without a pipeline."""

    chain: Chain

    @property
    def count(self) -> Num:
        """Members."""
        return np.minimum(num(self.chain.stages), 2.0)

    def within(self, gpus: float) -> Num:
        """Return how many members sit among `gpus` neighbours."""
        return np.where(self.chain.span <= gpus, self.count, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """All groups of a layout."""

    tp: Group
    etp: Group
    cp: Group
    ep: Group
    dense: Group
    """Ranks that divide (or copy) the dense state: the shard group where one is set, else dp × cp."""
    expert: Group
    """Ranks that hold the same experts."""
    copies: Group | None
    """Replicas of a shard group (hybrid sharding); None where no layout has any."""
    chain: Chain


def ranks(layout: Layout) -> Ranks:
    """Return the groups of `layout`, each degree a number or an (N, 1) array.

    Shard groups are consecutive members of the dp × cp group (Megatron-LM's distributed optimizer instances, HYBRID_SHARD, MiCS).
    """
    d = layout.degrees
    tp, cp, dp, pp = num(d.tp), num(d.cp), num(d.dp), num(d.pp)
    cell = num(d.etp) * d.ep
    shard, everyone = shard_ranks(layout), dp * cp
    grouped = bool(np.any(num(d.shard_group) > 0.0))
    replicas = expert_dp(layout)
    if grouped:
        replicas = np.maximum(1.0, replicas * np.minimum(1.0, shard / everyone))
    inside = num(d.rank_order) > 0.0
    one_order = not np.any(inside)
    dense = Group(size=shard, stride=tp)
    if not one_order:
        size, runs = np.where(inside, np.minimum(shard, cp), shard), np.where(inside, np.maximum(1.0, shard / cp), 1.0)
        dense = Group(size=size, stride=tp, runs=runs, leap=tp * cp * pp)
    return Ranks(
        tp=Group(size=tp, stride=1.0),
        etp=Group(size=num(d.etp), stride=1.0),
        cp=Group(size=cp, stride=tp),
        ep=Group(size=num(d.ep), stride=num(d.etp)),
        dense=dense,
        expert=Group(size=replicas, stride=cell if one_order else np.where(inside, cell * pp, cell)),
        copies=_copies(None if one_order else inside, tp, cp, pp, shard, everyone) if grouped else None,
        chain=Chain(stages=pp, stride=tp * cp * dp if one_order else np.where(inside, tp * cp, tp * cp * dp)),
    )


def _copies(inside: npt.NDArray[np.bool_] | None, tp: Num, cp: Num, pp: Num, shard: Num, everyone: Num) -> Group:
    """Every shard-th member of the dp × cp group; with stages inside (None: nowhere) across the ring of cp first, where a shard group is
    smaller than it."""
    copies = np.maximum(1.0, everyone / shard)
    if inside is None:
        return Group(size=copies, stride=tp * shard)
    around = np.where(inside, np.maximum(1.0, cp / shard), copies)
    return Group(size=around, stride=tp * shard, runs=copies / around, leap=tp * cp * pp * np.maximum(1.0, shard / cp))


def _plain(runs: Num) -> bool:
    """Tell whether the group is one run in every layout of the batch."""
    return isinstance(runs, float) and runs == 1.0
