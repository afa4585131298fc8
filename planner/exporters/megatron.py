"""Megatron-LM argument list (JSON and a shell line): names of megatron-core 0.19.2, megatron/training/arguments.py."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from planner.exporters import ExportRefused, degree, laws_broken
from planner.exporters._megatron_layout import layout_arguments, layout_broken
from planner.exporters._megatron_model import model_arguments, model_broken, model_notes

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.plan import Plan

NAME = "megatron"
SENTENCE = "Megatron-LM arguments (a JSON list, or one shell line where the file ends in .sh)"
FRAMEWORKS: tuple[Framework, ...] = ("megatron",)


def arguments(plan: Plan) -> list[str]:
    """Return the argument list; raise ExportRefused where Megatron-LM cannot run the plan."""
    broken = laws_broken(plan) or [*_method_broken(plan), *model_broken(plan), *layout_broken(plan)]
    if broken:
        raise ExportRefused(NAME, broken)
    return [*model_arguments(plan), *layout_arguments(plan)]


def export(plan: Plan) -> dict[str, str]:
    """Return the arguments as a JSON list and as one shell line."""
    given = arguments(plan)
    return {"megatron.json": json.dumps(given, indent=1) + "\n", "megatron.sh": shlex.join(given) + "\n"}


def notes(plan: Plan) -> tuple[str, ...]:
    """Return what the command still needs, and where the model differs."""
    said = ["data, tokenizer, learning rate and training length are yours to add (--data-path, --tokenizer-type, --lr, --train-iters)"]
    if degree(plan, "tp") * degree(plan, "cp") > 1:
        said.append("set CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell")
    return (*said, *model_notes(plan))


def _method_broken(plan: Plan) -> list[str]:
    method = plan.training.method
    return [] if method == "full" else [f"method {method}: Megatron-LM's arguments train all weights"]
