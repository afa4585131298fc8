"""State regimes: how many bytes each parameter costs, in which types, and from which ZeRO stage each part is divided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_models.stack import MEGATRON

if TYPE_CHECKING:
    from cost_models.layout import Choices
    from cost_models.training import Optimizer, Training


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """Bytes per trained parameter, and who shards what."""

    name: str
    sentence: str
    source: str
    weight_bytes: float
    """The weights that compute, as stored (the shards under FSDP)."""
    gradient_bytes: float
    """What autograd leaves in `.grad` until the step."""
    main_gradient_bytes: float
    """A separate accumulation buffer."""
    master_bytes: float
    """A second, wider copy of the weights that the optimizer updates."""
    state_bytes: float
    """One element of optimizer state (a moment)."""
    reduce_bytes: float
    """Width of the gradients that travel in the data-parallel reduction."""
    gather_bytes: float
    """Width of the weights that travel in a ZeRO gather, and of gathered (live) weights."""
    frozen_bytes: float
    """One weight of a frozen base (LoRA), before quantisation."""
    live_gradient_bytes: float
    """Gradient of a gathered ZeRO-3 unit before it is reduced."""
    moment_bytes: float = 0.0
    """Optimizer moments of matrices (linear layers, experts), set by `regime_of` from the optimizer."""
    other_moment_bytes: float = 0.0
    """Optimizer moments of embedding, head, norms, biases and routers."""
    cast_bytes: float = 0.0
    """Copies of the linear weights in the compute type that autocast keeps (unsharded)."""
    optimizer_from: int = 1
    """ZeRO stage from which master and moments are divided over the data-parallel ranks."""
    gradient_from: int = 2
    main_gradient_from: int = 2
    weight_from: int = 3

    @property
    def bytes_per_parameter(self) -> float:
        """All states of one matrix element, undivided."""
        return self.weight_bytes + self.gradient_bytes + self.main_gradient_bytes + self.master_bytes + self.moment_bytes

    @property
    def label(self) -> str:
        """Name and byte list: `megatron: 2 weight + 4 main gradient + 4 master + 8 moments`."""
        parts = (
            (self.weight_bytes, "weight"),
            (self.gradient_bytes, "gradient"),
            (self.main_gradient_bytes, "main gradient"),
            (self.master_bytes, "master"),
            (self.moment_bytes, "moments"),
        )
        return f"{self.name}: " + " + ".join(f"{value:g} {name}" for value, name in parts if value)


def _regime(
    name: str,
    sentence: str,
    source: str,
    parts: tuple[float, float, float, float, float],
    travel: tuple[float, float],
    stages: tuple[int, int, int, int] = (1, 2, 2, 3),
    *,
    cast_bytes: float = 0.0,
    frozen_bytes: float = 2.0,
) -> Regime:
    """Make a regime of (weight, gradient, main gradient, master, state element), (reduce, gather) and the ZeRO stages from which
    (optimizer, gradient, main gradient, weight) are divided."""
    weight, gradient, main, master, state = parts
    return Regime(
        name=name,
        sentence=sentence,
        source=source,
        weight_bytes=weight,
        gradient_bytes=gradient,
        main_gradient_bytes=main,
        master_bytes=master,
        state_bytes=state,
        reduce_bytes=travel[0],
        gather_bytes=travel[1],
        frozen_bytes=frozen_bytes,
        live_gradient_bytes=travel[1],
        cast_bytes=cast_bytes,
        optimizer_from=stages[0],
        gradient_from=stages[1],
        main_gradient_from=stages[2],
        weight_from=stages[3],
    )


_MEGATRON = (
    "Megatron-LM core/distributed/param_and_grad_buffer.py and core/optimizer (distributed optimizer: docs/source/api-guide/dist_optimizer)"
)
_DEEPSPEED = "DeepSpeed runtime/zero/stage_1_and_2.py, runtime/zero/stage3.py"
_FSDP = "PyTorch FSDP MixedPrecisionPolicy: shards stay in fp32, gathers and gradients of a unit are 16-bit"

REGIMES: dict[str, Regime] = {
    r.name: r
    for r in (
        _regime(
            "megatron",
            "16-bit weights, gradients accumulated straight into an fp32 buffer, fp32 master and moments",
            _MEGATRON,
            (2.0, 0.0, 4.0, 4.0, 4.0),
            (4.0, 2.0),
        ),
        _regime(
            "megatron-fp16",
            "16-bit weights and gradients (fp32 accumulation is set for bf16 alone), fp32 master and moments",
            "Megatron-LM megatron/training/arguments.py (accumulate_allreduce_grads_in_fp32 with bf16)",
            (2.0, 0.0, 2.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "megatron-bf16-gradients",
            "as megatron, gradients accumulated and reduced in 16 bits (grad_reduce_in_bf16; NeMo and Megatron-Bridge recipes)",
            _MEGATRON,
            (2.0, 0.0, 2.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "megatron-precision-aware",
            "as megatron with 16-bit moments (use_precision_aware_optimizer, exp_avg_dtype and exp_avg_sq_dtype bf16)",
            "Megatron-LM core/optimizer/optimizer_config.py",
            (2.0, 0.0, 4.0, 4.0, 2.0),
            (4.0, 2.0),
        ),
        _regime(
            "megatron-precision-aware-bf16-gradients",
            "16-bit gradients and moments, fp32 master",
            "Megatron-LM core/optimizer/optimizer_config.py",
            (2.0, 0.0, 2.0, 4.0, 2.0),
            (2.0, 2.0),
        ),
        _regime(
            "deepspeed",
            "16-bit weights and gradients, fp32 master and moments; the master is divided with the moments",
            _DEEPSPEED,
            (2.0, 2.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "deepspeed-fp32-gradients",
            "16-bit weights and gradients with fp32 gradient accumulation beside them: 20 bytes per parameter",
            "DeepSpeed runtime/bf16_optimizer.py (grad_acc_dtype fp32)",
            (2.0, 2.0, 4.0, 4.0, 4.0),
            (4.0, 2.0),
        ),
        _regime(
            "deepspeed-bf16-states",
            "16-bit weights, gradients, master and moments (bf16_master_weights_and_grads, bf16_optimizer_states)",
            "DeepSpeed runtime/config.py, runtime/zero/stage3.py",
            (2.0, 2.0, 0.0, 2.0, 2.0),
            (2.0, 2.0),
        ),
        _regime(
            "bf16-optimizer",
            "DeepSpeed's BF16_Optimizer under pipelines: whole fp32 gradients, master and moments divided at every ZeRO stage",
            "DeepSpeed runtime/bf16_optimizer.py; Megatron-DeepSpeed",
            (2.0, 2.0, 4.0, 4.0, 4.0),
            (4.0, 2.0),
            (0, 4, 4, 4),
        ),
        _regime(
            "fp32-master",
            "16-bit weights and gradients, an fp32 master that a plain torch optimizer updates from fp32 copies of the gradients",
            "traced loop over torch.optim (tests/published/truth.json)",
            (2.0, 2.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "zero-paper",
            "16 bytes per parameter: 2 weight, 2 gradient, 4 master, 4 + 4 moments",
            "Rajbhandari et al. 2020 (arXiv 1910.02054), section 3.1",
            (2.0, 2.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "fsdp",
            "fp32 shards of weights, gradients and moments; gathered units in 16 bits",
            _FSDP,
            (4.0, 4.0, 0.0, 0.0, 4.0),
            (4.0, 2.0),
        ),
        _regime(
            "autocast",
            "fp32 weights, gradients and moments; autocast computes on 16-bit copies of the linear weights",
            "PyTorch torch.autocast (weight cache)",
            (4.0, 4.0, 0.0, 0.0, 4.0),
            (4.0, 4.0),
            cast_bytes=2.0,
        ),
        _regime(
            "pure-bf16",
            "weights, gradients and moments all in the 16-bit type, no master",
            "torch.optim.AdamW keeps its state in the type of the weight",
            (2.0, 2.0, 0.0, 0.0, 2.0),
            (2.0, 2.0),
        ),
        _regime(
            "fp32",
            "everything in fp32",
            "torch.optim.AdamW keeps its state in the type of the weight",
            (4.0, 4.0, 0.0, 0.0, 4.0),
            (4.0, 4.0),
            frozen_bytes=4.0,
        ),
        _regime(
            "gemini",
            "16-bit weights whose chunks the gradients overwrite, fp32 master and moments: 14 bytes per parameter",
            "ColossalAI colossalai/zero/gemini/gemini_ddp.py (reuse_fp16_chunk with master weights and without accumulation)",
            (2.0, 0.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "paddle",
            "16-bit weights and gradients that stay, fp32 master and moments updated straight from the 16-bit gradients",
            "PaddleNLP fp16_opt_level O2 without amp_master_grad (llm/config/llama/pretrain_argument.json; paddle AdamW multi_precision)",
            (2.0, 2.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "nanotron",
            "16-bit weights, fp32 gradient accumulator, fp32 master and moments divided under ZeRO-1",
            "nanotron src/nanotron/optim/gradient_accumulator.py (FP32GradientAccumulator), optim/zero.py",
            (2.0, 0.0, 4.0, 4.0, 4.0),
            (4.0, 2.0),
        ),
        _regime(
            "adapter-fp32",
            "frozen base, adapters with gradients and moments in fp32 (peft's autocast_adapter_dtype)",
            "Hugging Face peft, LoraLayer (autocast_adapter_dtype=True)",
            (4.0, 4.0, 0.0, 0.0, 4.0),
            (4.0, 2.0),
        ),
        _regime(
            "adapter-bf16",
            "frozen base, adapters with gradients and moments in the 16-bit type",
            "torch.optim.AdamW keeps its state in the type of the weight",
            (2.0, 2.0, 0.0, 0.0, 2.0),
            (2.0, 2.0),
        ),
        _regime(
            "adapter-master",
            "frozen base, 16-bit adapters with gradients, fp32 master and moments: 16 bytes per trained parameter",
            _DEEPSPEED,
            (2.0, 2.0, 0.0, 4.0, 4.0),
            (2.0, 2.0),
        ),
        _regime(
            "inference",
            "weights only",
            "no gradients or optimizer state are made",
            (2.0, 0.0, 0.0, 0.0, 0.0),
            (2.0, 2.0),
        ),
    )
}

_DEFAULT_16BIT = {
    "megatron": "megatron",
    "megatron-deepspeed": "bf16-optimizer",
    "deepspeed": "deepspeed",
    "fsdp": "fsdp",
    "torchtitan": "fsdp",
    "hf": "autocast",
    "nanotron": "nanotron",
    "litgpt": "pure-bf16",
    "megatron-zb": "megatron",
    "dualpipe": "fp32-master",
}
"""Framework -> regime of a full 16-bit (or fp8) training."""

ADAM8BIT_STATE_BYTES = 2.0 * (1.0 + 4.0 / 256.0)
"""bitsandbytes block-wise Adam: two 1-byte moments and one fp32 absmax per block of 256 each (functional.py, optimizer.py)."""
FACTORED_STATE_BYTES = 0.0
"""Adafactor keeps one row and one column of sums a matrix instead of moments: below 0.1 % of the matrix (Shazeer & Stern 2018)."""

_STATE_ELEMENTS: dict[Optimizer, tuple[float, float]] = {
    "adamw": (2.0, 2.0),
    "sgd": (0.0, 0.0),
    "lion": (1.0, 1.0),
    "muon": (1.0, 2.0),
}
"""Optimizer -> state elements per parameter of (matrices, all others): none for torch's plain SGD, momentum alone for Lion; Muon
serves matrices and leaves embedding, head and vectors to AdamW (Jordan et al. 2024)."""


def regime_of(training: Training, choices: Choices) -> Regime:
    """Return the regime of `training`: the named one, else the framework's default for method and precision, with its optimizer.

    `training.extra`: `base_dtype` = fp32, a frozen base in fp32; `reduce_dtype` = 16bit, gradients that travel in the compute type (FSDP's
    MixedPrecision reduce_dtype). Raises ValueError with the known names for an unknown `training.regime`.
    """
    name = training.regime if training.regime is not None else default_name(training, choices)
    if name not in REGIMES:
        raise ValueError(f"no state regime is called {name!r}; there are {', '.join(REGIMES)}")
    regime = REGIMES[name]
    if training.method == "inference":
        return replace(regime, weight_bytes=training.weight_bits / 8.0, frozen_bytes=training.weight_bits / 8.0)
    if training.extra.get("base_dtype") == "fp32":
        regime = replace(regime, frozen_bytes=4.0)
    if training.extra.get("reduce_dtype") == "16bit":
        regime = replace(regime, reduce_bytes=2.0)
    if training.optimizer == "adam8bit":
        embedding = 2.0 * regime.state_bytes
        return replace(regime, moment_bytes=ADAM8BIT_STATE_BYTES, other_moment_bytes=embedding)
    if training.optimizer == "adafactor":
        return replace(regime, moment_bytes=FACTORED_STATE_BYTES, other_moment_bytes=FACTORED_STATE_BYTES)
    matrices, others = _STATE_ELEMENTS[training.optimizer]
    if training.optimizer == "sgd" and training.framework in MEGATRON:
        matrices, others = 1.0, 1.0
    return replace(regime, moment_bytes=matrices * regime.state_bytes, other_moment_bytes=others * regime.state_bytes)


def default_name(training: Training, choices: Choices) -> str:
    """Return the name of the framework's default regime."""
    if training.method == "inference":
        return "inference"
    if training.method in ("lora", "qlora"):
        return _adapter_name(training)
    if training.precision == "fp32":
        return "fp32"
    if training.precision == "fp16" and training.framework in MEGATRON:
        return "deepspeed" if training.framework == "megatron-deepspeed" else "megatron-fp16"
    if training.framework == "deepspeed" and training.extra.get("states") == "bf16":
        return "deepspeed-bf16-states"
    return _DEFAULT_16BIT[training.framework]


def _adapter_name(training: Training) -> str:
    if training.framework == "deepspeed" and training.adapter_fp32 is not True:
        return "adapter-master"
    peft = training.framework in ("hf", "fsdp") if training.adapter_fp32 is None else training.adapter_fp32
    if training.framework in MEGATRON:
        return "megatron"
    return "adapter-fp32" if peft else "adapter-bf16"
