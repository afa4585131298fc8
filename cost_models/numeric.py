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


def ceil_div(a: Num, b: Num) -> Num:
    """Return ceil(a / b) elementwise, in float64 (exact for integers below 2**53)."""
    return np.ceil(num(a) / num(b))


def round_up(a: Num, multiple: Num) -> Num:
    """Return the least multiple of `multiple` that is not below `a`."""
    return ceil_div(a, multiple) * multiple
