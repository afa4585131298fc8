"""What is trained and how: method, lengths, batch, optimizer, types, kernels and software."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Method = Literal["full", "lora", "qlora", "inference"]
TrainPrecision = Literal["fp32", "fp16", "bf16", "fp8"]
Optimizer = Literal["adamw", "sgd", "adafactor", "adam8bit", "lion", "muon"]
Attention = Literal["eager", "flash"]
Framework = Literal[
    "megatron", "deepspeed", "fsdp", "torchtitan", "hf", "nanotron", "litgpt", "megatron-deepspeed", "megatron-zb", "dualpipe"
]
"""`megatron-zb`: the fork of Megatron-LM with zero-bubble schedules (sail-sg/zero-bubble-pipeline-parallelism); `dualpipe`: the library
deepseek-ai/DualPipe around modules of plain PyTorch."""
Implementation = Literal["megatron", "hf", "compiled", "megatron-unfused"]
Loss = Literal["eager", "compiled", "chunked", "fused", "vocab-parallel"]

LORA_ALL = ("q", "k", "v", "o", "gate", "up", "down")


class Training(BaseModel):
    """One training (or serving) task on one architecture. `None` = the framework's default, resolved by cost_models.stack."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = "full"
    seq: int = Field(default=2048, gt=0)
    """Tokens of the longest (padded or packed) sample."""
    global_batch: int = Field(default=512, gt=0)
    """Samples per optimizer step."""
    precision: TrainPrecision = "bf16"
    optimizer: Optimizer = "adamw"
    attention: Attention = "flash"
    framework: Framework = "megatron"
    date: str = ""
    """ISO date of the software (era); empty: today's."""
    implementation: Implementation | None = None
    """Whose module code runs the layers, which decides what is saved for backward and how many kernels run."""
    loss: Loss | None = None
    regime: str | None = None
    """Name of a state regime (cost_models.choices.precision); None: the framework's default for the precision."""
    lora_rank: int = Field(default=16, gt=0)
    lora_targets: tuple[str, ...] = LORA_ALL
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    adapter_fp32: bool | None = None
    """Adapters and their inputs in fp32 (peft's default) or in the compute type; None: the framework's default."""
    kbit_prepare: bool = False
    """peft's prepare_model_for_kbit_training: embedding, head and norms in fp32."""
    double_quant: bool = True
    mtp: bool = False
    """Train the multi-token-prediction modules too."""
    padding_mask: bool = False
    """A padding mask is passed to the attention kernel."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    vocab_multiple: int | None = None
    """Rows of the embedding are padded to this × tp; None: the framework's default (Megatron 128, else 1)."""
    kv_bits: Literal[16, 8, 4] = 16
    """`inference` only: bits of one KV-cache entry."""
    weight_bits: Literal[16, 8, 4] = 16
    """`inference` only: bits of one weight."""
    cuda_graphs: bool = False
    compile: bool | None = None
    balanced_routing: bool = False
    """Forced load balance of the router (benchmarks); otherwise experts see an imbalance factor."""
    extra: dict[str, str] = Field(default_factory=dict)
    """Further named software switches of a measured run (see cost_models.stack)."""
