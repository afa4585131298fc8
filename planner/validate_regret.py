"""Ranking: groups of rows that differ only in layout, and how much slower the predicted best is than the measured best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.validate_schema import Regret, RegretGroup

if TYPE_CHECKING:
    from planner.validate_predict import Prediction

FEWEST_LAYOUTS = 3
COMPOSED_SOURCE = "vTrain"
"""Its single-node times are composed from per-layer times, not measured."""


def regret(predictions: Sequence[Prediction]) -> Regret:
    """Return regret and Kendall's tau of every group of at least three layouts; repeats of one layout count once, by their medians."""
    made = []
    for name, layouts in layout_groups(predictions).items():
        if len(layouts) < FEWEST_LAYOUTS:
            continue
        measured = np.asarray([np.median([m for m, _ in pairs]) for pairs in layouts.values()])
        predicted = np.asarray([np.median([p for _, p in pairs]) for pairs in layouts.values()])
        best = float(np.min(measured))
        made.append(
            RegretGroup(
                name=" · ".join(name),
                rows=len(measured),
                regret=float(measured[int(np.argmin(predicted))]) / best - 1.0,
                tau=kendall_tau(predicted, measured),
                random=float(np.mean(measured)) / best - 1.0,
            )
        )
    values = [group.regret for group in made]
    return Regret(
        groups=made,
        median=float(np.median(values)) if made else None,
        mean=float(np.mean(values)) if made else None,
        p90=float(np.percentile(values, 90.0)) if made else None,
        mean_tau=float(np.mean([g.tau for g in made])) if made else None,
        random_mean=float(np.mean([g.random for g in made])) if made else None,
    )


def layout_groups(predictions: Sequence[Prediction]) -> dict[tuple[str, ...], dict[str, list[tuple[float, float]]]]:
    """Return group (its source first) -> layout -> (measured, predicted) step times."""
    found: dict[tuple[str, ...], dict[str, list[tuple[float, float]]]] = {}
    for prediction in predictions:
        spec, run = prediction.spec, prediction.spec.run
        measured, predicted = spec.measured.step_seconds, prediction.step_seconds
        if measured is None or predicted is None or run.trust == "C" or run.oom or not spec.time_representative:
            continue
        if COMPOSED_SOURCE in run.source and spec.pool.nodes == 1:
            continue
        a = spec.architecture
        shape = f"{a.id} {a.layers}x{a.hidden}, {a.heads} heads"
        what = (f"{run.num_gpus}x{run.gpu}", f"batch {run.global_batch}", f"sequence {run.seq_len}", run.precision, run.method)
        layout = repr((spec.layout, spec.training.extra.get("recompute_policy")))
        group = found.setdefault((run.source, run.framework, shape, *(w for w in what if w)), {})
        group.setdefault(layout, []).append((measured, predicted))
    return found


def kendall_tau(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Return Kendall's tau-b of two rankings (Kendall 1945), 0 where one of them is all ties."""
    first = np.sign(a[:, None] - a[None, :])
    second = np.sign(b[:, None] - b[None, :])
    upper = np.triu_indices(len(a), 1)
    x, y = first[upper], second[upper]
    scale = np.sqrt(np.sum(x != 0.0) * np.sum(y != 0.0))
    return float(np.sum(x * y) / scale) if scale > 0.0 else 0.0
