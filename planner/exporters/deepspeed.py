"""DeepSpeed configuration (JSON): keys of DeepSpeed 0.19.8, deepspeed/runtime/config.py and runtime/zero/config.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cost_models.choices.precision import regime_of
from planner.exporters import ExportRefused, degree, laws_broken, share

if TYPE_CHECKING:
    from cost_models.training import Framework
    from planner.plan import Plan

NAME = "deepspeed"
SENTENCE = "DeepSpeed configuration (JSON)"
FRAMEWORKS: tuple[Framework, ...] = ("deepspeed", "megatron-deepspeed")

OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor", "lion": "Lion", "muon": "Muon"}
"""Names that DeepSpeed resolves by itself (its own, else torch.optim's); 8-bit Adam is passed by the training script."""
TESTED_OPTIMIZERS = ("adamw", "lion", "muon", "adam8bit")
"""Optimizers that ZeRO accepts without zero_allow_untested_optimizer."""
FP32_ACCUMULATION = ("deepspeed-fp32-gradients", "bf16-optimizer")
"""State regimes whose 16-bit gradients are accumulated in fp32."""
NVME_PATH = "/local_nvme"
GRADIENT_CLIPPING = 1.0
"""Not planned: the usual value, which costs a norm and no memory."""


def export(plan: Plan) -> dict[str, str]:
    """Return the configuration as one JSON file; raise ExportRefused where DeepSpeed cannot run the plan."""
    broken = laws_broken(plan) or _broken(plan)
    if broken:
        raise ExportRefused(NAME, broken)
    micro, dp = degree(plan, "micro_batch"), degree(plan, "dp")
    config: dict[str, object] = {
        "train_batch_size": micro * plan.micro_batches * dp,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": plan.micro_batches,
        "gradient_clipping": GRADIENT_CLIPPING,
        **_precision(plan),
        **_optimizer(plan),
        "zero_optimization": _zero(plan),
    }
    if plan.layout.choices.recompute != "none":
        config["activation_checkpointing"] = _checkpointing(plan)
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}


def notes(plan: Plan) -> tuple[str, ...]:
    """Return what the training script still has to do."""
    c, tp, pp = plan.layout.choices, degree(plan, "tp"), degree(plan, "pp")
    said = ["the learning rate is yours to set: optimizer.params.lr"]
    if plan.training.optimizer not in OPTIMIZERS:
        said = ["8-bit Adam is made in the training script: bitsandbytes.optim.AdamW8bit"]
    if tp > 1:
        said.append(f"tp={tp} and pp={pp} are made by Megatron-DeepSpeed; the batch counts the {degree(plan, 'dp')} data-parallel ranks")
    elif pp > 1:
        said.append(f"pp={pp} is made in the training script: PipelineModule(num_stages={pp})")
    if c.recompute != "none":
        said.append(f"{c.recompute} recompute is switched on in the model's code; the JSON only holds its options")
    if c.offload != "none" and c.offload_target == "nvme":
        said.append(f"nvme_path is {NVME_PATH}: put your own")
    return tuple(said)


def _broken(plan: Plan) -> list[str]:
    """What DeepSpeed's configuration cannot state, beyond the laws of planner.rules."""
    c, stages, group = plan.layout.choices, plan.layout.stage_layers, degree(plan, "shard_group")
    activations = share(plan, "activation_offload")
    broken = []
    if plan.training.method == "inference":
        broken.append("method inference: a DeepSpeed configuration for training holds no inference plan")
    if stages is not None and len(set(stages)) > 1:
        broken.append(f"stage layers {', '.join(f'{n}' for n in stages)}: DeepSpeed's pipeline engine splits the layers itself")
    if group and group != degree(plan, "dp"):
        broken.append(f"shard_group={group}: a DeepSpeed configuration shards over all {degree(plan, 'dp')} data-parallel ranks")
    if activations and not (c.recompute == "full" and activations == 1):
        broken.append("activations on the host: DeepSpeed moves only the inputs of recomputed layers, and all of them (cpu_checkpointing)")
    return broken


def _regime(plan: Plan) -> str:
    return regime_of(plan.training, plan.layout.choices).name


def _precision(plan: Plan) -> dict[str, object]:
    precision, regime = plan.training.precision, _regime(plan)
    if precision == "fp32":
        return {}
    if precision == "fp16":
        return {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    keys: dict[str, object] = {"bf16": {"enabled": True}}
    if regime in FP32_ACCUMULATION:
        keys["data_types"] = {"grad_accum_dtype": "fp32"}
    return keys


def _optimizer(plan: Plan) -> dict[str, object]:
    name = plan.training.optimizer
    keys: dict[str, object] = {"optimizer": {"type": OPTIMIZERS[name], "params": {}}} if name in OPTIMIZERS else {}
    if plan.layout.choices.zero and name not in TESTED_OPTIMIZERS:
        keys["zero_allow_untested_optimizer"] = True
    return keys


def _zero(plan: Plan) -> dict[str, object]:
    """ZeRO's keys; sizes are in elements and DeepSpeed's own defaults, written out because memory depends on them."""
    c = plan.layout.choices
    zero: dict[str, object] = {"stage": c.zero}
    if c.zero == 0:
        return zero
    zero |= {"overlap_comm": degree(plan, "pp") == 1, "contiguous_gradients": True, "reduce_scatter": True}
    zero["reduce_bucket_size"] = 500_000_000
    if c.zero < 3:
        zero["allgather_bucket_size"] = 500_000_000
    else:
        zero |= {
            "sub_group_size": 1_000_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    return zero | _offload(plan)


def _offload(plan: Plan) -> dict[str, object]:
    c, fraction = plan.layout.choices, share(plan, "offload_fraction")
    target: dict[str, object] = {"device": "cpu", "pin_memory": True}
    if c.offload_target == "nvme":
        target = {"device": "nvme", "nvme_path": NVME_PATH, "pin_memory": True}
    keys: dict[str, object] = {}
    if "optimizer" in c.offload:
        keys["offload_optimizer"] = {**target, "ratio": fraction} if fraction < 1 else target
    if "params" in c.offload:
        keys["offload_param"] = dict(target)
    return keys


def _checkpointing(plan: Plan) -> dict[str, object]:
    return {
        "partition_activations": False,
        "contiguous_memory_optimization": False,
        "cpu_checkpointing": share(plan, "activation_offload") > 0,
    }
