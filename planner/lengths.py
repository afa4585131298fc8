"""Lengths of samples: a histogram from a file, or a mean alone, and what padding and cutting make of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hardware.units import quote

Array = npt.NDArray[np.float64]
POINTS = 8
"""Lengths, each of an equal part of the micro-batches, over which a typical step is averaged."""
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
