"""Step time of sources that nothing was fitted to: each is left out in turn, constants are fitted to the others, and it is predicted.

Run with -m bench -s; takes about three minutes. It reports and does not gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from planner.validate import predicted
from planner.validate_errors import errors, step_error
from tests.bench.free_constants import FREE
from tests.bench.refit import Refit, Timed

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = ("tuned", "user", "lora")


def figures(logs: np.typing.NDArray[np.float64]) -> str:
    """Median / 90th percentile of the absolute errors and the median signed one, in %."""
    values = np.expm1(logs)
    size = np.abs(values)
    return f"{len(values):4d} {100 * np.median(size):6.1f} / {100 * np.percentile(size, 90):5.1f} {100 * np.median(values):+6.1f}"


@pytest.mark.bench
def test_sources_left_out(root: Path) -> None:
    found = errors(predicted(root / "tests" / "published" / "runs.csv").done, step_error)
    runs = [Timed.of(e.prediction) for e in found if e.prediction.spec.run.class_ in CLASSES]
    refit = Refit(runs, FREE)
    everything = refit.fit(np.ones(len(runs), dtype=bool))
    refit.linearise(everything)
    everything = refit.fit(np.ones(len(runs), dtype=bool))
    sources, classes = np.asarray([r.source for r in runs]), np.asarray([r.of_class for r in runs])
    shipped = np.asarray([np.log1p(r.error.value) for r in runs])
    left = np.zeros(len(runs))
    print(f"\n{'':52}{'runs shipped':>20}{'prior':>22}{'fitted to all':>22}{'left out':>22}")

    def line(name: str, rows: np.typing.NDArray[np.bool_]) -> None:
        print(f"{name[:50]:52}" + "  ".join(figures(x[rows]) for x in (shipped, refit.start.logs, everything.logs, left)))

    for source in sorted(set(sources)):
        own = sources == source
        left[own] = refit.fit(~own).logs[own]
        for of in CLASSES:
            if (own & (classes == of)).any():
                line(f"{of:6}{source}", own & (classes == of))
    for of in CLASSES:
        line(of, classes == of)
    print("constant: prior -> fitted to all")
    for f, x in zip(refit.free, everything.moved, strict=True):
        print(f"  {f.file}.{f.name}{'@' + f.gpu if f.gpu else ''}: {f.prior:.4g} -> {f.prior * np.exp(x):.4g} [{f.low:.4g}, {f.high:.4g}]")
    assert np.isfinite(left).all()
