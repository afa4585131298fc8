"""Laws about switches of the software."""

from __future__ import annotations

from cost_models.stack import MEGATRON
from planner.rules.rule import Rule

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
)
