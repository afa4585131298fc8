"""Lengths of samples: plans are made for the longest padded micro-batch; the typical one is shorter, and some ways of batching save the rest.

A histogram (or a mean) of sample lengths gives the typical and the worst micro-batch of a layout, and what truncating, bucketing and
packing would change, all by the same cost functions at other sequence lengths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from cost_models.numeric import num
from hardware.records import quote
from planner.evaluate import evaluate, fit_probability, verdict

if TYPE_CHECKING:
    from cost_models.layout import Layout
    from planner.case import Case
    from planner.plan import Verdict

Array = npt.NDArray[np.float64]
Batching = Literal["truncate", "bucket", "pack"]
PERCENTILES = (0.99, 0.95)
"""Parts of the samples that stay whole where the others are truncated."""
POINTS = 8
"""Lengths, each of an equal part of the micro-batches, over which a typical step is averaged."""
TOKENS = 8
"""Padded lengths are multiples of this (tensor cores) on each rank of the tensor and context groups."""
MOST_LENGTHS = 10**8
MOST_FILE_BYTES = 256 * 2**20


class LengthsError(ValueError):
    """A file or a mean that gives no lengths; one line."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A histogram of sample lengths."""

    tokens: Array
    """Distinct lengths, ascending."""
    share: Array
    """Part of the samples of each length; sums to 1."""
    samples: int
    """Samples that were counted; 0 where only their mean is known."""
    spread_known: bool = True
    """False: a mean alone."""

    @property
    def mean(self) -> float:
        """Tokens of the mean sample."""
        return float(np.dot(self.tokens, self.share))

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return int(self.tokens[-1])

    def percentile(self, part: float) -> int:
        """Return the tokens that `part` of the samples do not exceed."""
        return int(self.tokens[min(int(np.searchsorted(np.cumsum(self.share), part - 1e-12)), len(self.tokens) - 1)])

    def truncated(self, limit: int) -> Lengths:
        """Return the lengths after cutting samples at `limit` tokens."""
        keep = self.tokens < limit
        over = float(self.share[~keep].sum())
        if over == 0.0:
            return self
        return replace(self, tokens=np.append(self.tokens[keep], float(limit)), share=np.append(self.share[keep], over))

    def padded(self, samples: int) -> Lengths:
        """Return the lengths of micro-batches of `samples` random samples, each padded to its longest: P(longest <= l) = P(one <= l)^b."""
        if samples == 1:
            return self
        upto = np.minimum(np.cumsum(self.share), 1.0)
        longest = np.exp(samples * np.log(upto))
        longest[-1] = 1.0
        return replace(self, share=np.diff(longest, prepend=0.0))

    def points(self) -> Array:
        """Return POINTS lengths that stand for equal parts of the samples, each the mean of its part."""
        edges = np.linspace(0.0, 1.0, POINTS + 1)
        upto = np.concatenate(([0.0], np.cumsum(self.share)))
        upto[-1] = 1.0
        amount = np.concatenate(([0.0], np.cumsum(self.share * self.tokens)))
        return np.diff(np.interp(edges, upto, amount)) * POINTS


def of_mean(mean: int, longest: int) -> Lengths:
    """Return what a mean alone tells. Raises LengthsError where it exceeds the longest sample."""
    if mean > longest:
        raise LengthsError(f"mean_seq={mean:,} exceeds the longest sample, seq={longest:,}")
    if mean == longest:
        return Lengths(np.asarray([float(longest)]), np.ones(1), 0, spread_known=False)
    return Lengths(np.asarray([float(mean), float(longest)]), np.asarray([1.0, 0.0]), 0, spread_known=False)


def read_lengths(path: str | Path) -> Lengths:
    """Return the histogram in a file: a length a line, or `length count` (comma, tab or space; a header is passed over), or JSON: a list
    of lengths, a list of [length, count], or an object of length: count. Raises LengthsError, one line, with the place of the fault."""
    file = Path(path)
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise LengthsError(f"{file}: more than {MOST_FILE_BYTES >> 20} MiB; give a histogram (length,count)")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, LengthsError):
            raise
        raise LengthsError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8 text'}") from None
    pairs = _json(file, text) if text.lstrip()[:1] in ("[", "{") else _lines(file, text)
    counts: Counter[int] = Counter()
    for length, count in pairs:
        counts[length] += count
    total = sum(counts.values())
    if not total:
        raise LengthsError(f"{file}: no lengths")
    tokens = np.asarray(sorted(length for length, count in counts.items() if count), dtype=np.float64)
    return Lengths(tokens, np.asarray([counts[int(length)] for length in tokens], dtype=np.float64) / total, total)


def _lines(file: Path, text: str) -> Iterable[tuple[int, int]]:
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.replace(",", " ").replace(";", " ").split()
        if not cells or cells[0].startswith("#"):
            continue
        header, first = first, False
        if header and not any(cell[:1].isdigit() or cell[:1] == "-" for cell in cells):
            continue
        if len(cells) > 2:
            raise LengthsError(f"{file}, line {number}: {len(cells)} values; give a length, or a length and its count")
        yield _pair(f"{file}, line {number}", *cells)


def _json(file: Path, text: str) -> Iterable[tuple[int, int]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise LengthsError(f"{file}: no valid JSON") from None
    items = list(found.items()) if isinstance(found, dict) else found
    for number, item in enumerate(items, 1):
        cells = item if isinstance(item, list | tuple) else [item]
        if len(cells) not in (1, 2):
            raise LengthsError(f"{file}, item {number}: give a length, or [length, count]")
        yield _pair(f"{file}, item {number}", *cells)


def _pair(where: str, length: object, count: object = 1) -> tuple[int, int]:
    made = []
    for name, value, least in (("length", length, 1), ("count", count, 0)):
        try:
            number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else float("nan")
        except (ValueError, OverflowError):
            number = float("nan")
        if not least <= number <= MOST_LENGTHS or number != int(number):
            raise LengthsError(f"{where}: {name} {quote(value)} is no whole number from {least} to {MOST_LENGTHS:,}")
        made.append(int(number))
    return made[0], made[1]


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
    if study.micro_batch > 1 and whole.spread_known:
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
        """Return the step of packs of the longest length that hold the samples of a global batch end to end."""
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
