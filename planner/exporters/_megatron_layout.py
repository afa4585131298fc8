"""The layout's share of a Megatron-LM argument list, and the layouts that it cannot state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.choices.precision import regime_of
from cost_models.numeric import num
from cost_models.stages import chunk_start
from planner.exporters import degree, share

if TYPE_CHECKING:
    from planner.plan import Plan

OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}


def layout_arguments(plan: Plan) -> list[str]:
    """Return the arguments of degrees, batch, types, optimizer, recompute and offload."""
    given: list[str | int] = ["--tensor-model-parallel-size", degree(plan, "tp"), "--pipeline-model-parallel-size", degree(plan, "pp")]
    given += ["--context-parallel-size", degree(plan, "cp")]
    if plan.architecture.moe is not None:
        given += ["--expert-model-parallel-size", degree(plan, "ep"), "--expert-tensor-parallel-size", degree(plan, "etp")]
    if plan.layout.choices.sequence_parallel and degree(plan, "tp") > 1:
        given.append("--sequence-parallel")
    given += _pipeline(plan)
    given += ["--use-tp-pp-dp-mapping"] if degree(plan, "rank_order") else []
    given += ["--micro-batch-size", degree(plan, "micro_batch")]
    given += ["--global-batch-size", degree(plan, "micro_batch") * plan.micro_batches * degree(plan, "dp")]
    given += [*_types(plan), *_optimizer(plan), *_recompute(plan), *_offload(plan), *_kernels(plan)]
    return [f"{word}" for word in given]


def layout_broken(plan: Plan) -> list[str]:
    """Return what about the layout no argument can say, beyond the laws of planner.rules; one line each."""
    c, counts = plan.layout.choices, plan.layout.stage_recompute
    vpp, k = degree(plan, "vpp"), degree(plan, "recompute_layers")
    broken = []
    if c.recompute == "full" and counts is not None and _uniform_recompute(plan) is None:
        shown = ", ".join(f"{n}" for n in counts)
        broken.append(f"recomputed layers {shown}: Megatron-LM takes one number for all stages (--recompute-num-layers)")
    if c.recompute == "full" and counts is None and vpp > 1 and k > 0 and k % vpp:
        broken.append(f"recompute_layers={k} with vpp={vpp}: Megatron-LM counts per model chunk; try {k // vpp * vpp or vpp}")
    return broken


def _pipeline(plan: Plan) -> list[str | int]:
    """Layers of the stages: nothing where the even split says it, else the layout string."""
    layers, pp, vpp = plan.architecture.layers, degree(plan, "pp"), degree(plan, "vpp")
    mtp = plan.architecture.mtp_layers if plan.training.mtp else 0
    chunks = _chunks(plan)
    if pp == 1:
        return []
    if len(set(chunks)) > 1 or (mtp and vpp > 1):
        return ["--pipeline-model-parallel-layout", layout_string(chunks, mtp)]
    return ["--num-layers-per-virtual-pipeline-stage", layers // (pp * vpp)] if vpp > 1 else []


def _chunks(plan: Plan) -> list[int]:
    """Layers of each model chunk in the order of the layers: chunk v × pp + stage."""
    layers, pp, vpp = plan.architecture.layers, degree(plan, "pp"), degree(plan, "vpp")
    held = plan.layout.stage_layers
    if held is not None:
        return [held[stage] // vpp + (v < held[stage] % vpp) for v in range(vpp) for stage in range(pp)]
    starts = [int(num(chunk_start(layers, pp, vpp, chunk))) for chunk in range(pp * vpp + 1)]
    return [end - start for start, end in zip(starts, starts[1:], strict=False)]


def layout_string(chunks: list[int], mtp: int = 0) -> str:
    """Return Megatron's stage layout: `Et*7|t*8|t*8|t*7L` (E embedding, t layer, m MTP module, L loss)."""
    stages = [f"t*{count}" if count else "" for count in chunks]
    stages[0] = f"E{stages[0]}"
    stages[-1] += ("m" * mtp) + "L"
    return "|".join(stages)


def _types(plan: Plan) -> list[str]:
    precision, regime = plan.training.precision, regime_of(plan.training, plan.layout.choices).name
    given = {"fp32": [], "fp16": ["--fp16"], "bf16": ["--bf16"], "fp8": ["--bf16", "--fp8-format", "hybrid"]}[precision]
    if regime.endswith("bf16-gradients") and precision != "fp32":
        given = [*given, "--grad-reduce-in-bf16"]
    elif precision == "fp16":
        given = [*given, "--accumulate-allreduce-grads-in-fp32"]
    if "precision-aware" in regime:
        given = [*given, "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16"]
    return given


def _optimizer(plan: Plan) -> list[str | int]:
    zero, group = plan.layout.choices.zero, degree(plan, "shard_group")
    given: list[str | int] = ["--optimizer", OPTIMIZERS[plan.training.optimizer]]
    ranks = degree(plan, "dp") * degree(plan, "cp")
    if zero:
        given.append("--use-distributed-optimizer")
    if zero and 0 < group < ranks:
        given += ["--num-distributed-optimizer-instances", ranks // group]
    if ranks > 1:
        given.append("--overlap-grad-reduce")
        if zero:
            given.append("--overlap-param-gather")
    regime = regime_of(plan.training, plan.layout.choices).name
    if "optimizer" in plan.layout.choices.offload or "precision-aware" in regime:
        given.append("--use-precision-aware-optimizer")
    return given


def _uniform_recompute(plan: Plan) -> int | None:
    """The one number of layers that says every stage's recompute, -1 for all of them; None where none does."""
    counts = plan.layout.stage_recompute
    if counts is None:
        return degree(plan, "recompute_layers")
    pp = degree(plan, "pp")
    chunks = _chunks(plan)
    held = [sum(chunks[stage::pp]) for stage in range(pp)]
    if all(count >= layers for count, layers in zip(counts, held, strict=True)):
        return -1
    largest = max(counts)
    return largest if all(c == min(largest, n) for c, n in zip(counts, held, strict=True)) else None


def _recompute(plan: Plan) -> list[str | int]:
    c, vpp = plan.layout.choices, degree(plan, "vpp")
    if c.recompute == "none":
        return []
    if c.recompute == "selective":
        return ["--recompute-granularity", "selective", "--recompute-modules", *c.recompute_modules]
    layers = _uniform_recompute(plan)
    if layers is None or layers < 0:
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1]
    if layers == 0:
        return []
    return ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", max(1, layers // vpp)]


def _offload(plan: Plan) -> list[str | int]:
    given: list[str | int] = []
    if "optimizer" in plan.layout.choices.offload:
        given += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", f"{share(plan, 'offload_fraction'):g}"]
        given.append("--overlap-cpu-optimizer-d2h-h2d")
    activations = share(plan, "activation_offload")
    if activations:
        given += ["--cpu-offloading-num-layers", min(round(activations * plan.architecture.layers), plan.architecture.layers - 1)]
    return given


def _kernels(plan: Plan) -> list[str]:
    given = ["--attention-backend", "flash" if plan.training.attention == "flash" else "unfused"]
    if plan.training.loss == "fused":
        given.append("--cross-entropy-loss-fusion")
    if plan.training.implementation == "megatron-unfused":
        given += ["--transformer-impl", "local"]
    return given
