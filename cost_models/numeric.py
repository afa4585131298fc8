"""Numbers that may be one or many: the same formula serves a single layout and a batch of a million."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Num: TypeAlias = float | np.float64 | npt.NDArray[np.float64]
"""A float64 scalar, or an array of them: shape () or (N, 1) for degrees, (K,) or (N, K) per stage."""


def num(value: object) -> npt.NDArray[np.float64]:
    """Return `value` as a float64 array (0-d for a scalar)."""
    return np.asarray(value, dtype=np.float64)


def nothing(value: Num) -> bool:
    """Tell whether a value is lacking altogether (the plain 0 that sums begin with), so that it need not be added."""
    return isinstance(value, float) and value == 0.0


def plus(a: Num, b: Num) -> Num:
    """Return a + b, where one of them is lacking the other as it is."""
    return b if nothing(a) else a if nothing(b) else a + b


def times(factor: Num, value: Num) -> Num:
    """Return factor × value; 0 where the value is lacking."""
    return 0.0 if nothing(value) else factor * value


def keep_freed_memory() -> None:
    """Let batch after batch use the same memory.

    glibc returns what is free at the end of its heap to the system above a threshold, and asks for it anew: the page faults of that take
    a quarter of the time of a batch. When it frees a large block it raises the threshold to twice the size of that block (mallopt(3),
    M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; at most 64 MiB), so one is made and freed, untouched. Elsewhere this does nothing.
    """
    np.empty(4_000_000)


def ceil_div(a: Num, b: Num) -> Num:
    """Return ceil(a / b) elementwise, in float64 (exact for integers below 2**53)."""
    return np.ceil(num(a) / num(b))


def round_up(a: Num, multiple: Num) -> Num:
    """Return the least multiple of `multiple` that is not below `a`."""
    return ceil_div(a, multiple) * multiple
