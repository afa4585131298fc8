"""The refit finds constants that runs were made with, and keeps to its priors where no run says anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hardware.calibration import calibration, changed
from planner.runs import Spec, read, spec
from planner.validate_predict import Predictor
from tests.bench.free_constants import FREE, Free
from tests.bench.refit import Refit, Timed

if TYPE_CHECKING:
    from pathlib import Path

TRUE = {("hopper", "hbm_fraction", ""): 0.7, ("hopper", "gemm_fraction", ""): 0.80}
SILENT = Free("software", "host_zero3_deepspeed", 1e-3, 3e-4, 3e-3)
"""No run below uses it."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> list[Timed]:
    """Runs of NVIDIA's benchmarks on H100, each as fast as the model says with other constants."""
    table: Path = request.config.rootpath / "tests" / "published" / "runs.csv"
    picked = [r for r in read(table).runs if r.source.startswith("NVIDIA dgxc") and r.framework == "megatron" and r.class_ == "tuned"]
    found = [s for s in map(spec, picked) if isinstance(s, Spec) and s.measured.step_seconds]
    made = []
    with changed(TRUE):
        for s in found:
            p = Predictor()(s)
            made.append(replace(p, spec=replace(s, measured=replace(s.measured, step_seconds=p.step_seconds))))
    return [Timed.of(p) for p in made]


def test_constants_are_found_again(runs: list[Timed]) -> None:
    free = (Free("hopper", "hbm_fraction", 0.6, 0.45, 0.9), Free("hopper", "gemm_fraction", 0.76, 0.7, 0.84), SILENT)
    refit = Refit(runs, free)
    fit = refit.fit(np.ones(len(runs), dtype=bool))
    values = [f.prior * np.exp(x) for f, x in zip(free, fit.moved, strict=True)]
    assert values[:2] == pytest.approx([0.7, 0.8], rel=0.04)
    assert values[2] == SILENT.prior
    assert np.median(np.abs(fit.logs)) < 0.25 * np.median(np.abs(refit.start.logs))


@pytest.mark.parametrize("free", FREE, ids=[":".join(f.key) for f in FREE])
def test_every_free_constant_exists_and_ships_within_its_range(free: Free) -> None:
    assert free.low < free.prior < free.high
    constant = calibration(free.file).constants[free.name]
    shipped = constant.by_gpu[free.gpu] if free.gpu else constant.value
    assert free.low <= shipped <= free.high
