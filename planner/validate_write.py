"""Write the file of bands (hardware/measured/error.toml) that a run table gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.bands import BETWEEN_LAYOUTS, KINDS, MEMORY_CLASSES, RUN_CLASSES, fit_name, memory_name, step_name
from planner.validate_bands import band_of, counted, derive, derive_fit, layout_residuals, memory_residuals, step_residuals
from planner.validate_errors import errors, peak_error, step_error
from planner.validate_predict import Predictor
from planner.validate_regret import FEWEST_LAYOUTS, layout_groups

if TYPE_CHECKING:
    from datetime import date

    from hardware.calibration import Quantiles
    from planner.runs import Spec
    from planner.validate_predict import Prediction

SENTENCE = "How far measurements lie from predictions: measured / predicted, by class of run and kind of peak."
TODAY: dict[str, Any] = {
    "framework": "megatron",
    "date": "",
    "attention": "flash",
    "compile": None,
    "cuda_graphs": False,
    "dropout": 0.0,
    "extra": {},
    "implementation": None,
    "loss": None,
    "regime": None,
}
"""A training as planner takes it when nobody says which software runs: the first framework with its usual choices of today."""


def error_bands(predictions: Sequence[Prediction], table: str) -> dict[str, Quantiles]:
    """Return every band by its name; `table` names the run table in their origin. Raises ValueError for a table without measurements."""
    step, memory = step_residuals(errors(predictions, step_error)), memory_residuals(errors(predictions, peak_error))
    unknown = step_residuals(errors(_without_software(predictions), step_error))
    layouts = layout_residuals(layout_groups(predictions), FEWEST_LAYOUTS)
    lacking = [what for what, found in (("step times", step), ("peaks", memory), ("groups of layouts", layouts)) if not found]
    if lacking:
        raise ValueError(f"{table} has no {' and no '.join(lacking)} to derive bands from")
    origin = f"planner validate on {table}: rows of trust A and B; sources weighted by the square root of their configurations"
    made = {}
    for of in RUN_CLASSES:
        what = f"step time of class {of}: measured / predicted"
        if of == "unknown":
            what = "step time where nobody says which software runs, predicted as today's first framework: measured / predicted"
        made[step_name(of)] = derive(unknown if of == "unknown" and unknown else step, of, None, what, origin)
    between = "step time of one layout over that of the fastest predicted, measured / predicted, same model and cluster"
    made[BETWEEN_LAYOUTS] = band_of(layouts, between, origin, counted("differences of layouts, both ways", layouts))
    for kin in MEMORY_CLASSES:
        for kind in KINDS:
            made[memory_name(kin, kind)] = derive(memory, kin, kind, f"{kind} peak of class {kin}: measured / predicted", origin)
        made[fit_name(kin)] = derive_fit(memory, kin, f"what must fit, class {kin}: measured / predicted", origin)
    return {name: band.stated for name, band in made.items()}


def _without_software(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the dense rows that users ran, predicted as if nobody had said on which software."""
    predict = Predictor()
    specs = [_plain(p.spec) for p in predictions if p.run_class == "user" and p.step_seconds is not None]
    return [replace(predict(spec), run_class="unknown") for spec in specs]


def _plain(spec: Spec) -> Spec:
    return replace(spec, training=spec.training.model_copy(update=TODAY))


def error_text(bands: dict[str, Quantiles], made_on: date) -> str:
    """Return the file."""
    lines = [f"sentence = {json.dumps(SENTENCE)}", f'date = "{made_on.isoformat()}"']
    for name, band in bands.items():
        lines += ["", f"[bands.{name}]"]
        for key in ("probabilities", "values"):
            lines.append(f"{key} = [{', '.join(f'{value:g}' for value in getattr(band, key))}]")
        lines += [f"{key} = {json.dumps(getattr(band, key), ensure_ascii=False)}" for key in ("unit", "meaning", "origin", "rows")]
    return "\n".join(lines) + "\n"
