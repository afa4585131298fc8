"""Megatron-LM argument list (JSON and a shell line): names of megatron-core 0.19.2, megatron/training/arguments.py."""

from __future__ import annotations

import json
import shlex

from planner.exporters import ExportRefused, degree
from planner.exporters._megatron_layout import layout_arguments, layout_broken
from planner.exporters._megatron_model import model_arguments, model_broken, model_notes
from planner.plan import Plan

NAME = "megatron"
SENTENCE = "Megatron-LM arguments (a JSON list, or one shell line where the file ends in .sh)"


def arguments(plan: Plan) -> list[str]:
    """Return the argument list; raise ExportRefused where Megatron-LM cannot run the plan."""
    broken = [*_method_broken(plan), *model_broken(plan), *layout_broken(plan)]
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
    if plan.layout.choices.zero >= 2:
        said.append("Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
    elif degree(plan, "tp") * degree(plan, "cp") > 1:
        said.append("set CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell")
    return (*said, *model_notes(plan))


def _method_broken(plan: Plan) -> list[str]:
    t = plan.training
    broken = []
    if t.method != "full":
        broken.append(f"method {t.method}: Megatron-LM's arguments train all weights")
    if t.optimizer in ("adafactor", "adam8bit"):
        broken.append(f"optimizer {t.optimizer}: Megatron-LM has adam, sgd, lion and muon")
    if plan.layout.choices.zero >= 2 and t.optimizer not in ("adamw", "sgd"):
        broken.append(f"optimizer {t.optimizer} with zero={plan.layout.choices.zero}: Megatron-FSDP takes adam and sgd")
    return broken
