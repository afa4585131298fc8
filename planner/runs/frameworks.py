"""What a code base does where a row does not say: the entries of frameworks.toml, looked up by name and by the source's own words."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cost_models.architecture import Mla
from cost_models.training import Framework, Implementation, Loss
from planner.runs.names import canonical, named_first, trainer_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PATH = Path(__file__).parent / "frameworks.toml"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lora(_Entry):
    """Adapter settings."""

    rank: int
    targets: tuple[str, ...]
    dropout: float
    head: bool = False
    """An adapter on the language-model head too."""


class Habits(_Entry):
    """Defaults of one code base; see the head of frameworks.toml."""

    names: tuple[str, ...] = ()
    """Other names that tables call it by; case, hyphens and spaces do not count."""
    runs_as: Framework = "megatron"
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_sharded: Literal["none", "selective", "full"] | None = None
    """Default where the states are sharded over several ranks."""
    zero: Literal[0, 1, 2, 3] = 0
    zero_multi: Literal[0, 1, 2, 3] | None = None
    """Default on several GPUs."""
    zero1_since: str = ""
    """Date before which nothing was sharded by default."""
    sequence_parallel_since: str = "9999"
    flash_since: str = "9999"
    latent_flash_since: str = ""
    """The same for latent attention (unlike head sizes of keys and values) on Blackwell; empty: as `flash_since`."""
    implementation: Implementation | None = None
    loss: Loss | None = None
    regime: str | None = None
    vocab_multiple: int | None = None
    compile: bool | None = None
    precision: str = "bf16"
    optimizer: str = ""
    """Default of a blank cell in the words of the column; empty: AdamW."""
    adapter_fp32: bool | None = None
    """Adapters in fp32; None: the code base's default."""
    adapter_regime: str | None = None
    """State regime of adapters; None: the code base's default."""
    plain_dropout: float | None = None
    """Dropout of models without a gated MLP; None: Megatron-LM's rule by date."""
    quantization: str = "nf4"
    double_quant: bool = True
    kbit_prepare: bool = False
    untied: bool = False
    """Head and embedding are separate tensors even where the model ties them."""
    mean_tokens: int | None = None
    """Mean tokens of a sample where `seq_len` is the longest one: what step time is made of."""
    padding: bool = False
    """A padding mask is passed to the attention kernel."""
    activation_offload: float = 0.0
    """Part of the layer inputs that its checkpointing moves to the host."""
    offload: str = ""
    """What of the states its recipe keeps in host memory, in the words of the column; empty: nothing."""
    offloaded_layers: int = 0
    """Layers whose activations its recipe keeps in host memory (cpu_offloading_num_layers)."""
    recompute_modules: tuple[str, ...] = ()
    """Modules of selective recompute where a row names none; empty: the attention core."""
    balanced_routing: bool = False
    """Its recipes force the router to balance its load."""
    mtp: bool = False
    """Its recipes train a multi-token-prediction module."""
    pipeline_layouts: dict[str, str] = Field(default_factory=dict)
    """Pipeline layout by number of chunks (pp × vpp), where a row does not state one."""
    expert_tp: int | None = None
    """Tensor parallel size of the experts where a row does not state it; None: as tp (Megatron-LM)."""
    tensor_is_sequence: bool = False
    """What it calls tensor parallel cuts the sequence and leaves the weights whole (InternEvo's isp): counted as context parallel."""
    data_parallel_only: bool = False
    """It has no tensor or pipeline parallelism: blank tp and pp are 1."""
    trainer: bool = False
    """A trainer over Hugging Face models that rows name in their details."""
    memory_kind: Literal["allocated", "reserved", "nvidia-smi", "unknown"] = "unknown"
    """What its peak memory is where a row does not say: what its code prints, else what nvidia-smi shows."""
    tokens_counted: Literal["all", "trained"] = "all"
    """What its tokens per second count: every position, or only the tokens that the loss trains on."""
    one_gpu_only: bool = False
    """It runs on one GPU where the row does not say more."""
    lora: Lora | None = None
    extra: dict[str, str] = Field(default_factory=dict)
    finetune_extra: dict[str, str] = Field(default_factory=dict)
    """Switches of fine-tuning recipes, over `extra`."""
    origin: str = ""


class Setting(_Entry):
    """What a row says that decides which overrides hold."""

    detail: str = ""
    date: str = ""
    """ISO date; empty: today."""
    one_gpu: bool = False
    model_parallel: bool = False
    """The row uses tensor, pipeline or expert parallelism."""
    method: str = ""
    sharding: str = ""
    """Without the group's size; empty: not stated."""
    model: str = ""
    gpu: str = ""
    precision: str = ""
    """In the words of the column."""


class _Detail(Habits):
    """Overrides: every condition that is given must hold. The fields of Habits that are set replace the framework's."""

    match: str = ""
    """Regular expression on the source's own words (`framework_detail`)."""
    frameworks: tuple[str, ...] | None = None
    since: str = ""
    before: str = ""
    one_gpu: bool | None = None
    """Holds only for rows on one GPU (or on several)."""
    parallel: bool | None = None
    """Holds only for rows with tensor, pipeline or expert parallelism (or without)."""
    method: str | None = None
    """Holds only for rows of this method."""
    methods: tuple[str, ...] | None = None
    sharding: tuple[str, ...] | None = None
    """Holds only where the cell is one of these; "" is a blank cell."""
    models: str = ""
    """Regular expression on the row's model."""
    gpus: tuple[str, ...] = ()
    """Holds only for cards whose names begin so."""
    precisions: tuple[str, ...] | None = None

    def holds(self, framework: str, at: Setting) -> bool:
        """Tell whether the conditions are met."""
        late = not at.date or at.date[: len(self.since)] >= self.since[: len(at.date)]
        early = not self.before or bool(at.date) and at.date[: len(self.before)] < self.before[: len(at.date)]
        return (
            (not self.match or re.search(self.match, at.detail) is not None)
            and (self.frameworks is None or framework in self.frameworks)
            and (not self.since or late)
            and early
            and self.one_gpu in (None, at.one_gpu)
            and self.parallel in (None, at.model_parallel)
            and self.method in (None, at.method)
            and (self.methods is None or at.method in self.methods)
            and (self.sharding is None or at.sharding in self.sharding)
            and (not self.models or re.search(self.models, at.model) is not None)
            and (not self.gpus or at.gpu.startswith(self.gpus))
            and (self.precisions is None or at.precision in self.precisions)
        )

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of Habits that this entry sets, `extra` left out (it is merged)."""
        return {name: getattr(self, name) for name in self.model_fields_set if name in Habits.model_fields and name != "extra"}


class _Recipe(_Entry):
    """What the recipe files whose names match `match` set."""

    match: str
    lora: Lora | None = None
    global_batch: int | None = None
    devices: int | None = None
    """GPUs that the recipe uses, however many the machine has."""


class _Mla(_Entry):
    match: str
    dims: Mla
    origin: str


class _File(_Entry):
    """The whole of frameworks.toml."""

    habits: dict[str, Habits]
    detail: tuple[_Detail, ...]
    recipe: tuple[_Recipe, ...]
    mla: tuple[_Mla, ...]
    tokenizer: dict[str, int]


@cache
def _file() -> _File:
    table: dict[str, Any] = tomllib.loads(_PATH.read_text(encoding="utf-8"))
    lists = {name: table.pop(name) for name in ("detail", "recipe", "mla", "tokenizer")}
    return _File(habits=table, **lists)


def framework_names() -> tuple[str, ...]:
    """Names that the column `framework` may hold."""
    return tuple(_file().habits)


@cache
def named_mla(model: str) -> Mla | None:
    """Return the latent attention of a named configuration, None where it is not listed."""
    return next((item.dims for item in _file().mla if re.search(item.match, model)), None)


def tokenizer_vocab(tokenizer: str) -> int | None:
    """Return the vocabulary of a tokenizer type of Megatron-LM's tests, None where it is not listed."""
    return _file().tokenizer.get(tokenizer)


@cache
def habits(framework: str, at: Setting) -> Habits | None:
    """Return the defaults of `framework` with what the overrides that hold `at` its row change; None for an unknown name.

    An unnamed framework of a row with tensor, pipeline or expert parallelism is taken for one that divides as Megatron-LM does, and fuses
    and overlaps nothing.
    """
    table = _file().habits
    name = canonical(framework, table)
    if name is None:
        return None
    unnamed = name == "other" and named_first(at.detail, table) is None
    if name == "other":
        name = named_first(at.detail, table) or ("megatron" if at.model_parallel else "other")
    host = name if name in _HOSTS else None
    name = (trainer_in(at.detail, table) or name) if host else name
    entry = table[name]
    changes: dict[str, Any] = {}
    extra = {**entry.extra, **({"class": "eager"} if unnamed else {})}
    for item in _file().detail:
        if item.holds(name, at):
            changes |= item.changes
            extra |= item.extra
    if entry.trainer and host in _SHARDERS:
        changes |= {"runs_as": host, "regime": host, "zero": table[host].zero}
    if entry.trainer and changes.get("runs_as") == "fsdp":
        extra |= ACCELERATE_FSDP
    return entry.model_copy(update={**changes, "extra": extra})


ACCELERATE_FSDP = {"reduce_dtype": "16bit"}
"""accelerate's FSDP plugin reduces gradients in the compute type (accelerate utils/dataclasses.py, set_mixed_precision: reduce_dtype)."""
_SHARDERS = ("deepspeed", "fsdp")
_HOSTS = ("hf", *_SHARDERS)
"""Frameworks under which a trainer of Hugging Face models may run."""


@cache
def recipe_lora(recipe: str) -> Lora | None:
    """Return the adapter settings of a named recipe file, None where it has none."""
    return next((item.lora for item in _file().recipe if item.lora is not None and re.search(item.match, recipe)), None)


@cache
def recipe_batch(recipe: str) -> int | None:
    """Return the global batch of a named recipe file, None where it is not listed."""
    return next((item.global_batch for item in _file().recipe if item.global_batch and re.search(item.match, recipe)), None)


@cache
def recipe_devices(recipe: str) -> int | None:
    """Return how many GPUs a named recipe file uses, None where it is not listed."""
    return next((item.devices for item in _file().recipe if item.devices and re.search(item.match, recipe)), None)
