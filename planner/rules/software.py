"""Laws about switches of the software."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.stack import MEGATRON
from planner.rules.rule import Rule

if TYPE_CHECKING:
    from planner.case import Case

SCALED_BLOCKS = ("mxfp8", "nvfp4")
"""Recipes of narrow types with a scale for each few elements, which the units of cards with fp4 multiply."""


def _recipe(case: Case) -> str:
    return case.training.extra.get("fp8_recipe", "")


RULES = (
    Rule(
        id="compile",
        sentence="Megatron-LM brings its own fused kernels; its layers have no switch for torch.compile",
        source="Megatron-LM megatron/training/arguments.py (no such argument); megatron/core/jit.py compiles single functions alone",
        reads=(),
        holds=lambda case, layout: not (case.training.compile and case.framework in MEGATRON),
        given=lambda case, layout: (
            f"compile: {case.framework} cannot run its layers through torch.compile; leave it out, or try framework "
            "torchtitan, fsdp, deepspeed, hf"
        ),
    ),
    Rule(
        id="fp8_recipe",
        sentence="a recipe of fp8 needs precision fp8, and mxfp8 and nvfp4 the units of Blackwell or CDNA 4",
        source="Transformer Engine pytorch/quantization.py (check_mxfp8_support, check_nvfp4_support: compute capability 10.0, gfx950)",
        reads=(),
        holds=lambda case, layout: (
            not _recipe(case)
            or (case.training.precision == "fp8" and (_recipe(case) not in SCALED_BLOCKS or "fp4" in case.pool.gpu.peak_flop_per_second))
        ),
        given=lambda case, layout: (
            f"stack fp8_recipe={_recipe(case)}: precision is {case.training.precision}; add --precision fp8"
            if case.training.precision != "fp8"
            else f"stack fp8_recipe={_recipe(case)}: {case.pool.gpu.name} has no units for it; try fp8_recipe=delayed, current, blockwise"
        ),
    ),
)
