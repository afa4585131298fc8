"""The typical and the worst micro-batch of a layout on samples of many lengths, and what other ways of batching would save.

Plans are made for the longest padded micro-batch. What shorter ones need, and what truncating, bucketing and packing change, comes from
the same cost functions at other sequence lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from cost_models.numeric import num
from planner.evaluate import evaluate
from planner.fit import fit_probability, verdict
from planner.lengths import Lengths
from planner.plan import Verdict

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case
    from planner.plan import Plan
    from planner.request import Resolved

Batching = Literal["truncate", "bucket", "pack"]
PERCENTILES = (0.99, 0.95)
"""Parts of the samples that stay whole where the others are truncated."""
TOKENS = 8
"""Padded lengths are multiples of this (tensor cores) on each rank of the tensor and context groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthStep:
    """One micro-batch length, and what it needs."""

    seq: int
    """Tokens of each padded sample."""
    step_seconds: float
    """For the samples of one global batch."""
    peak_device_bytes: float
    verdict: Verdict
    fit_probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthOption:
    """One way of batching instead of padding each micro-batch to its longest sample."""

    name: Batching
    at_tokens: int
    """Where samples are cut (truncate), or the length of a pack; the longest sample (bucket)."""
    typical: LengthStep
    worst: LengthStep
    saved_bytes: float
    """Of the worst device peak."""
    saved_time_fraction: float
    """Of the typical step."""
    lost_tokens_fraction: float
    """Of the data's tokens, cut off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthReport:
    """The typical and the worst step of a layout on samples of many lengths."""

    lengths: Lengths
    typical: LengthStep
    worst: LengthStep
    padding_fraction: float | None
    """Tokens of padding in all tokens computed, with random micro-batches; None where only a mean is known."""
    options: tuple[LengthOption, ...]


def study(resolved: Resolved, plan: Plan) -> LengthReport | None:
    """Return what the request's lengths do to a plan; None where all samples are of one length."""
    if resolved.lengths is None:
        return None
    case = replace(resolved.case(plan.pool, plan.training.framework), training=plan.training)
    return report(case, plan.layout, resolved.lengths)


def report(case: Case, layout: Layout, lengths: Lengths) -> LengthReport:
    """Return what lengths do to one layout of a case whose `training.seq` is the longest sample (longer ones are cut there)."""
    study = _Study(case, layout)
    whole = lengths.truncated(case.training.seq)
    batches = whole.padded(study.micro_batch) if whole.spread_known else whole
    typical, worst = study.typical(batches), study.at(whole.longest)
    options = []
    limits = dict.fromkeys(whole.percentile(part) for part in PERCENTILES) if whole.spread_known else {}
    for limit in limits:
        if study.aligned(limit) < worst.seq:
            cut = whole.truncated(limit)
            lost = 1.0 - cut.mean / whole.mean
            options.append(_option("truncate", limit, study.typical(cut.padded(study.micro_batch)), study.at(limit), typical, worst, lost))
    if study.micro_batch > 1 and whole.spread_known and len(whole.tokens) > 1:
        options.append(_option("bucket", whole.longest, study.typical(whole), worst, typical, worst, 0.0))
    if worst.seq > study.aligned(whole.mean):
        options.append(_option("pack", whole.longest, study.packed(whole), worst, typical, worst, 0.0))
    padding = 1.0 - whole.mean / study.mean_aligned(batches) if whole.spread_known else None
    return LengthReport(lengths=whole, typical=typical, worst=worst, padding_fraction=padding, options=tuple(options))


def _option(
    name: Batching, at_tokens: int, typical: LengthStep, worst: LengthStep, before: LengthStep, before_worst: LengthStep, lost: float
) -> LengthOption:
    return LengthOption(
        name=name,
        at_tokens=at_tokens,
        typical=typical,
        worst=worst,
        saved_bytes=before_worst.peak_device_bytes - worst.peak_device_bytes,
        saved_time_fraction=1.0 - typical.step_seconds / before.step_seconds,
        lost_tokens_fraction=lost,
    )


class _Study:
    """One layout at many sequence lengths."""

    def __init__(self, case: Case, layout: Layout) -> None:
        d = layout.degrees
        self.case, self.layout = case, layout
        self.micro_batch = int(num(d.micro_batch))
        cp = int(num(d.cp))
        self.multiple = TOKENS * int(num(d.tp)) * cp * (2 if cp > 1 else 1)
        self._known: dict[int, LengthStep] = {}

    def aligned(self, tokens: float) -> int:
        """Return the padded length: a multiple that the groups can divide, never above that of the plan."""
        return min(self.case.training.seq, -(-int(np.ceil(tokens)) // self.multiple) * self.multiple)

    def mean_aligned(self, batches: Lengths) -> float:
        """Return the mean tokens of padded samples."""
        return float(np.dot(np.asarray([self.aligned(tokens) for tokens in batches.tokens]), batches.share))

    def at(self, tokens: float) -> LengthStep:
        """Return the step of micro-batches that are all padded to `tokens`."""
        seq = self.aligned(tokens)
        if seq not in self._known:
            self._known[seq] = self._evaluated(seq, self.case.training.global_batch, 1.0)
        return self._known[seq]

    def typical(self, batches: Lengths) -> LengthStep:
        """Return the mean step over micro-batches of these lengths: memory of the mean one, time averaged."""
        middle = self.at(batches.mean)
        if not batches.spread_known or len(batches.tokens) == 1:
            return middle
        seconds = [self.at(tokens).step_seconds for tokens in batches.points()]
        return replace(middle, step_seconds=float(np.mean(seconds)))

    def packed(self, whole: Lengths) -> LengthStep:
        """Return the step of packs of the longest length that hold the samples of a global batch end to end, attention over whole packs
        (kernels that keep to each sample do less)."""
        round_of = self.micro_batch * int(num(self.layout.degrees.dp))
        packs = self.case.training.global_batch * whole.mean / whole.longest
        batch = max(1, -(-int(np.ceil(packs)) // round_of)) * round_of
        return self._evaluated(self.aligned(whole.longest), batch, packs / batch)

    def _evaluated(self, seq: int, global_batch: int, scale: float) -> LengthStep:
        training = self.case.training.model_copy(update={"seq": seq, "global_batch": global_batch})
        case = replace(self.case, training=training)
        result = evaluate(case, self.layout)
        return LengthStep(
            seq=seq,
            step_seconds=float(num(result.time.step_seconds)) * scale,
            peak_device_bytes=float(num(result.memory.peak_device_bytes)),
            verdict=verdict(case, result.memory),
            fit_probability=fit_probability(case, result.memory),
        )
