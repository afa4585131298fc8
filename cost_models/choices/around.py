"""Interleaved 1F1B: the paths that go round the stages, from the last to the next chunk of the first (and backward the other way).

In passes of a chunk, with p stages of v chunks, N = m v passes of each kind, and stage i warming up with w_i = 2 (p - 1 - i) + (v - 1) p
of them, the path of cost_models.choices.pipeline may not be the longest where the last stage is not the slowest:
(1) a forward of the last stage leads to that of the first stage p passes later, except in the last p of every v p passes. So a path may
    pass the warm-up of stage i at the pace of the slowest forward of all stages, not only of those up to i, at the cost of one way round;
(2) from the last stage it may go on to a stage j before it in the same way, where the second group of v p passes begins, and to the first
    stage where the last group can, in place of going up by backwards;
(3) with m = p the first stages have all their forwards before their first backward (w_i >= N - 1): it may rest in all of one kind there.
Likewise for the drain, with forward and backward exchanged. All of these are paths, so that the longest is no longer than the time; that
there is none beside them was found by comparing with the event simulation (tests/cost_models/test_schedules_time.py), not proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.numeric import Num, num

if TYPE_CHECKING:
    from cost_models.choices.pipeline import Line

Array = npt.NDArray[np.float64]


def with_ways_around(line: Line, found: Num) -> Num:
    """Return `found`, the longest path of interleaved 1F1B that goes round no stages, () or (N,), or the longest that does where it is
    longer.

    Exact where all stages were evaluated and m is a multiple of p (other m are left as found). From the decisive stages alone it takes
    those between the second and the last as alike, and is exact where no forward is more than half of their forward and backward.
    """
    size = np.size(found)
    pp, forward_sum, backward_sum = (_row(x, size) for x in (line.pp, line.forward_sum, line.backward_sum))
    forward, backward = _columns(line.forward, size), _columns(line.backward, size)
    at = np.flatnonzero(_better(forward, backward, forward_sum, pp) | _better(backward, forward, backward_sum, pp))
    if not len(at):
        return found
    vpp, m, behind, before = _row(line.vpp, size), _row(line.micro_batches, size), _columns(line.behind, size), _columns(line.before, size)
    at = at[(pp[at] > 1.0) & (np.floor(m[at] / pp[at]) * pp[at] == m[at])]
    share = 1.0 / vpp[at]
    stages = [
        _Stage(forward=f[at] * share, backward=b[at] * share, behind=n[at], reached=(t[at] + f[at] + b[at]) * share)
        for f, b, n, t in zip(forward, backward, behind, before, strict=True)
    ]
    sums = forward_sum[at] * share, backward_sum[at] * share
    if not line.listed:
        stages.insert(-1, _last_between(stages, pp[at], sums[0] + sums[1]))
    best = np.array(found, dtype=np.float64).reshape(-1)
    best[at] = np.maximum(best[at], _longest(stages, pp[at], vpp[at], m[at], sums))
    return best.reshape(np.shape(found))


def _better(passes: list[Array], others: list[Array], total: Array, pp: Array) -> npt.NDArray[np.bool_]:
    """Tell where a path may gain by a way round: the last stage has not the slowest of these passes, so that its warm-up and turns are not
    the best; or the first stage's longer warm-up, less what a way round takes back, is worth more than the last stage's own rounds."""
    most, last = _largest(passes), passes[-1]
    return np.asarray((most > last) | (2.0 * (pp - 1.0) * most > pp * (last + others[-1]) + (total - last)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """One stage of many pipelines, (n,): seconds of a chunk."""

    forward: Array
    backward: Array
    behind: Array
    reached: Array
    """Sum of forward and backward of the stages up to this one."""

    @property
    def time(self) -> Array:
        return self.forward + self.backward


def _row(value: Num, size: int) -> Array:
    return np.broadcast_to(num(value).reshape(-1), (size,))


def _columns(value: Num, size: int) -> list[Array]:
    x = np.atleast_1d(num(value))
    return list(np.broadcast_to(x, (size, x.shape[-1])).T)


def _largest(values: list[Array]) -> Array:
    most = values[0]
    for value in values[1:]:
        most = np.maximum(most, value)
    return most


def _last_between(stages: list[_Stage], pp: Array, total: Array) -> _Stage:
    """Return the last of the alike stages, which was not evaluated: as the second, which it is where there are no more than three."""
    second, last = stages[min(1, len(stages) - 1)], stages[-1]
    more = pp > 3.0
    return _Stage(
        forward=second.forward,
        backward=second.backward,
        behind=np.where(more, 1.0, second.behind),
        reached=np.where(more, total - last.time, second.reached),
    )


def _longest(stages: list[_Stage], pp: Array, vpp: Array, m: Array, sums: tuple[Array, Array]) -> Array:
    """Return the longest path, (n,), over the given stages."""
    group, last = pp * vpp, m * vpp - 1.0
    warm = [2.0 * s.behind + group - pp for s in stages]
    turns = [w <= last for w in warm]
    down = _Ways.of([s.forward for s in stages], sums[0], stages, warm, (pp, group, last))
    up = _Ways.of([s.backward for s in stages], sums[1], stages, warm, (pp, group, last))
    several = (vpp > 1.0) & (m >= 2.0 * pp)
    # the last group's forward of the last stage that leads round, and from there all that follows a first forward
    ends = last - pp
    best = np.where(
        several, np.maximum(down.round_until(ends, stages, warm) + up.way[0], up.round_until(ends, stages, warm) + down.way[0]), 0.0
    )
    down_round, up_round = (ways.round_until(group, stages, warm) for ways in (down, up))
    for j, s in enumerate(stages):
        passes = last - warm[j]
        best = np.where(turns[j], np.maximum(best, passes * s.time - s.reached + down.way[j] + up.way[j]), best)
        # the way round reaches stage j so many of its passes later than its first backward
        later = 2.0 * (pp - s.behind)
        one = np.maximum(down_round + up.way[j], up_round + down.way[j]) + (passes - later) * s.time
        two = down_round + up_round + (passes - 2.0 * later) * s.time + s.reached
        best = np.where(several, np.maximum(best, one), best)
        best = np.where(several & (passes >= 2.0 * later), np.maximum(best, two), best)
    return np.where(turns[0], best, np.maximum(best, _few(stages, warm, last, (down, up))))


def _few(stages: list[_Stage], warm: list[Array], last: Array, ways: tuple[_Ways, _Ways]) -> Array:
    """Return the longest path, (n,), that rests at a stage whose forwards all come before its first backward."""
    down, up = ways
    rests = [w >= last for w in warm]
    forward, backward = (way.rest(rests) for way in ways)
    best = 0.0 * last
    for j, s in enumerate(stages):
        turned = np.maximum(down.turn[j] + backward, up.turn[j] + forward)
        best = np.maximum(best, np.where(rests[j], down.turn[j] + up.turn[j] - s.reached, turned))
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ways:
    """The ways by one kind of pass, to the stages in the order given; forwards in words, backwards alike."""

    passes: list[Array]
    """Seconds of one pass."""
    total: Array
    """Over all stages."""
    all_round: Array
    """All passes but one, by rests at the slowest stage and one way round; 0 where there is no other chunk."""
    last: Array
    """Passes, less one."""
    turn: list[Array]
    """The longest way there, to the first backward of each stage and up again from it."""
    way: list[Array]
    """The longest of those of the stage and all after it."""

    @classmethod
    def of(cls, passes: list[Array], total: Array, stages: list[_Stage], warm: list[Array], sizes: tuple[Array, Array, Array]) -> _Ways:
        pp, group, last = sizes
        slowest = [passes[0]]
        for x in passes[1:]:
            slowest.append(np.maximum(slowest[-1], x))
        chunked = group > pp
        turn = []
        for s, w, most in zip(stages, warm, slowest, strict=True):
            rests = np.minimum(w, last)
            before = np.minimum(rests - pp, group - pp - 1.0)
            around = np.where(chunked, total + before * slowest[-1] + (rests - pp - before) * most, 0.0)
            turn.append(s.reached + np.maximum(rests * most, around))
        way = [turn[-1]]
        for x in turn[-2::-1]:
            way.insert(0, np.maximum(way[0], x))
        all_round = np.where(chunked, total + (last - pp) * slowest[-1], 0.0)
        return cls(passes=passes, total=total, all_round=all_round, last=last, turn=turn, way=way)

    def rest(self, able: list[npt.NDArray[np.bool_]]) -> Array:
        """Return the longest that all passes but one take at a stage that is able to rest."""
        most = _largest([np.where(r, x, 0.0) for r, x in zip(able, self.passes, strict=True)])
        return np.maximum(self.last * most, self.all_round)

    def round_until(self, index: Array, stages: list[_Stage], warm: list[Array]) -> Array:
        """Return the longest way to the last stage's pass `index` and all round from it, by rounds of a stage that has warmed up then."""
        best = 0.0 * index
        for s, w, way in zip(stages, warm, self.way, strict=True):
            best = np.maximum(best, np.where(w <= index, way - s.reached + (index - w) * s.time, 0.0))
        return self.total + best
