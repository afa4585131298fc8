"""DeepSpeed configuration (JSON): keys of DeepSpeed 0.19.8, deepspeed/runtime/config.py and runtime/zero/config.py."""

from __future__ import annotations

import json

from cost_models.choices.precision import regime_of
from planner.exporters import ExportRefused, degree, share
from planner.plan import Plan

NAME = "deepspeed"
SENTENCE = "DeepSpeed configuration (JSON)"

OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor", "lion": "Lion", "muon": "Muon"}
"""Names that DeepSpeed resolves by itself (its own, else torch.optim's); 8-bit Adam is passed by the training script."""
ZERO_OPTIMIZERS = ("adamw", "lion", "muon", "adam8bit")
"""Optimizers that ZeRO accepts without zero_allow_untested_optimizer."""
FP32_ACCUMULATION = ("megatron", "megatron-precision-aware", "nanotron", "deepspeed-fp32-gradients", "bf16-optimizer")
"""State regimes whose 16-bit gradients are accumulated in fp32."""
NVME_PATH = "/local_nvme"
GRADIENT_CLIPPING = 1.0
"""Not planned: the usual value, which costs a norm and no memory."""


def export(plan: Plan) -> dict[str, str]:
    """Return the configuration as one JSON file."""
    broken = _broken(plan)
    if broken:
        raise ExportRefused(NAME, broken)
    config: dict[str, object] = {**_batch(plan), "gradient_clipping": GRADIENT_CLIPPING, **_precision(plan), **_optimizer(plan)}
    config["zero_optimization"] = _zero(plan)
    if plan.layout.choices.recompute != "none":
        config["activation_checkpointing"] = _checkpointing(plan)
    if _autotp(plan):
        config["tensor_parallel"] = {"autotp_size": degree(plan, "tp")}
    if degree(plan, "cp") > 1:
        config["sequence_parallel_size"] = degree(plan, "cp")
    return {"deepspeed.json": json.dumps(config, indent=2) + "\n"}


def notes(plan: Plan) -> tuple[str, ...]:
    """Return what the training script still has to do."""
    c = plan.layout.choices
    said = ["the optimizer's learning rate is yours to set: optimizer.params.lr"]
    if plan.training.optimizer not in OPTIMIZERS:
        said = ["8-bit Adam is made in the training script: bitsandbytes.optim.AdamW8bit"]
    if not _autotp(plan) and degree(plan, "tp") * degree(plan, "pp") > 1:
        said.append(
            f"tp={degree(plan, 'tp')} and pp={degree(plan, 'pp')} are made in the training script "
            "(PipelineModule, Megatron-DeepSpeed's mpu): train_batch_size counts the data-parallel ranks only"
        )
    if degree(plan, "ep") > 1:
        said.append(f"ep={degree(plan, 'ep')} is made in the training script: deepspeed.moe.layer.MoE(ep_size={degree(plan, 'ep')})")
    if c.recompute != "none":
        said.append(f"{c.recompute} recompute is switched on in the model's code; the JSON only holds its options")
    if c.offload != "none" and c.offload_target == "nvme":
        said.append(f"nvme_path is {NVME_PATH}: put your own")
    return tuple(said)


def _regime(plan: Plan) -> str:
    return regime_of(plan.training, plan.layout.choices).name


def _autotp(plan: Plan) -> bool:
    """DeepSpeed's own tensor parallelism: without pipeline and without Megatron's sequence parallelism."""
    tensor = degree(plan, "tp") > 1 and degree(plan, "pp") == 1 and not plan.layout.choices.sequence_parallel
    return tensor and plan.training.framework != "megatron-deepspeed"


def _broken(plan: Plan) -> list[str]:
    """What DeepSpeed cannot run, or a configuration of it cannot state."""
    c, t = plan.layout.choices, plan.training
    pp, cp, group = degree(plan, "pp"), degree(plan, "cp"), degree(plan, "shard_group")
    broken = []
    if t.method == "inference":
        broken.append("method inference: a DeepSpeed training configuration holds no inference plan")
    if t.precision == "fp8":
        broken.append("precision fp8 is no key of a DeepSpeed configuration; plan with --precision bf16")
    if t.precision == "bf16" and _regime(plan) == "pure-bf16" and c.zero == 0:
        broken.append("states all in bf16 with zero=0: DeepSpeed keeps an fp32 master unless ZeRO is 1, 2 or 3")
    if pp > 1 and c.zero >= 2:
        broken.append(f"zero={c.zero} with pp={pp}: DeepSpeed's pipeline engine takes ZeRO 0 or 1 (runtime/pipe/engine.py)")
    if pp > 1 and c.schedule != "1f1b":
        broken.append(f"schedule {c.schedule}: DeepSpeed's pipeline engine has 1f1b only")
    if pp > 1 and plan.layout.stage_layers is not None and len(set(plan.layout.stage_layers)) > 1:
        broken.append(f"stage layers {plan.layout.stage_layers}: DeepSpeed's pipeline engine splits layers evenly")
    if pp > 1 and cp > 1:
        broken.append(f"cp={cp} with pp={pp}: Ulysses sequence parallelism runs without a pipeline")
    if cp > 1 and plan.architecture.heads % (cp * degree(plan, "tp")):
        broken.append(f"cp={cp} does not divide {plan.architecture.heads} attention heads (Ulysses)")
    if group and group != degree(plan, "dp") * cp:
        broken.append(f"shard_group={group}: a DeepSpeed configuration shards over all data-parallel ranks")
    return broken + _offload_broken(plan)


def _offload_broken(plan: Plan) -> list[str]:
    c, fraction, activations = plan.layout.choices, share(plan, "offload_fraction"), share(plan, "activation_offload")
    broken = []
    if "params" in c.offload and c.zero != 3:
        broken.append(f"offload {c.offload} with zero={c.zero}: DeepSpeed offloads parameters with ZeRO-3 only")
    if "optimizer" in c.offload and c.zero == 0:
        broken.append("offload optimizer with zero=0: DeepSpeed offloads the optimizer with ZeRO 1, 2 or 3")
    if c.offload != "none" and c.offload_target == "nvme" and c.zero != 3:
        broken.append(f"offload to NVMe with zero={c.zero}: DeepSpeed needs ZeRO-3")
    if c.offload != "none" and fraction < 1 and ("params" in c.offload or c.zero != 3):
        broken.append(f"offload_fraction={fraction:g}: DeepSpeed divides only the optimizer, and only with ZeRO-3")
    if activations and not (c.recompute == "full" and activations == 1):
        broken.append("activations on the host: DeepSpeed moves only the inputs of recomputed layers, and all of them (cpu_checkpointing)")
    return broken


def _batch(plan: Plan) -> dict[str, object]:
    """Batch keys; under AutoTP the total is left out, for DeepSpeed checks it against all ranks before it makes the groups."""
    micro = degree(plan, "micro_batch")
    rest = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": plan.micro_batches}
    if _autotp(plan):
        return {**rest}
    return {"train_batch_size": micro * plan.micro_batches * degree(plan, "dp"), **rest}


def _precision(plan: Plan) -> dict[str, object]:
    precision, regime = plan.training.precision, _regime(plan)
    if precision == "fp32":
        return {}
    if precision == "fp16":
        return {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    bf16: dict[str, object] = {"enabled": True}
    if regime == "pure-bf16":
        bf16 |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    keys: dict[str, object] = {"bf16": bf16}
    if regime in FP32_ACCUMULATION:
        keys["data_types"] = {"grad_accum_dtype": "fp32"}
    return keys


def _optimizer(plan: Plan) -> dict[str, object]:
    name = plan.training.optimizer
    keys: dict[str, object] = {"optimizer": {"type": OPTIMIZERS[name], "params": {}}} if name in OPTIMIZERS else {}
    if plan.layout.choices.zero and name not in ZERO_OPTIMIZERS:
        keys["zero_allow_untested_optimizer"] = True
    return keys


def _zero(plan: Plan) -> dict[str, object]:
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
