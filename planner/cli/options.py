"""The flags of a request, spelled alike in every command and as the JSON keys. Values are read by planner.request, all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from planner.cli.output import Failure

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.request import Request, Resolved

Function = Callable[..., Any]


class Number(click.ParamType):
    """A whole number or a number; what is neither is passed on, so that all problems are told at once."""

    name = "number"

    def __init__(self, kind: type[int] | type[float] = int) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or the text as it is."""
        try:
            return self.kind(value)
        except (ValueError, OverflowError):
            return value


WHOLE, REAL = Number(int), Number(float)

_WHAT: list[tuple[str, str, click.ParamType | None, str]] = [
    ("--model", "NAME|FILE", None, "A catalogue name, a bare size (30b), a Hub config.json (file or folder) or a TOML file."),
    ("--cluster", "TEXT|FILE", None, "32xA100-80G, 4x8xH100-80G, 16xp5.48xlarge, 8xA100-80G+4xRTX3090-24G or a TOML file."),
    ("--free-memory", "SIZE", None, "What is left of each card where it is shared: 60GiB."),
    ("--margin", "PART", REAL, "Part of the capacity that stays free.  [default: 0.05]"),
]
_TRAINING: list[tuple[str, str, click.ParamType | None, str]] = [
    ("--method", "full|lora|qlora|inference", None, "What is trained.  [default: full]"),
    ("--seq", "TOKENS", WHOLE, "Tokens of one sample.  [default: 2048, or the model's limit]"),
    ("--global-batch", "SAMPLES", WHOLE, "Samples per optimizer step."),
    ("--precision", "fp32|fp16|bf16|fp8", None, "Type of the computation.  [default: bf16]"),
    ("--optimizer", "adamw|sgd|adafactor|adam8bit|lion|muon", None, "[default: adamw]"),
    ("--attention", "flash|eager", None, "Attention kernel.  [default: flash]"),
    ("--framework", "NAME|any", None, "Whose rules and defaults hold: megatron, deepspeed, fsdp, torchtitan, hf, …  [default: any]"),
    ("--regime", "NAME", None, "State regime: which types weights, gradients, master and moments have."),
    ("--lora-rank", "R", WHOLE, "Rank of the adapters.  [default: 16]"),
    ("--kv-bits", "16|8|4", WHOLE, "Bits of a KV-cache entry (inference)."),
    ("--weight-bits", "16|8|4", WHOLE, "Bits of a weight (inference)."),
]
_LAYOUT: list[tuple[str, str, click.ParamType | None, str]] = [
    ("--tp", "N", WHOLE, "Tensor parallel size."),
    ("--pp", "N", WHOLE, "Pipeline parallel size."),
    ("--vpp", "N", WHOLE, "Model chunks (virtual stages) per pipeline rank."),
    ("--cp", "N", WHOLE, "Context parallel size."),
    ("--ep", "N", WHOLE, "Expert parallel size."),
    ("--etp", "N", WHOLE, "Tensor parallel size inside an expert."),
    ("--dp", "N", WHOLE, "Data parallel size: tp × pp × cp × dp = GPUs."),
    ("--zero", "0|1|2|3", WHOLE, "ZeRO stage."),
    ("--shard-group", "N", WHOLE, "Ranks over which ZeRO shards (hybrid sharding); all data-parallel ranks if not given."),
    ("--schedule", "1f1b|interleaved|gpipe", None, "Pipeline schedule."),
    ("--recompute", "none|selective|full", None, "Activation recompute."),
    ("--recompute-modules", "NAMES", None, "What `selective` recomputes: core_attn, mlp, moe, moe_act, layernorm, …, joined by commas."),
    ("--recompute-layers", "K", WHOLE, "Layers of each stage that `full` recomputes."),
    ("--offload", "auto|none|WHAT", None, "optimizer[:part], params, activations[:part], joined by commas; none forbids it."),
    ("--offload-target", "host|nvme", None, "Where offloaded states live."),
    ("--micro-batch", "N", WHOLE, "Samples of one micro-batch."),
]
_DIMENSIONS: list[tuple[str, str, click.ParamType | None, str]] = [
    ("--layers", "N", WHOLE, "Layers; dimensions change the model, or make one up."),
    ("--hidden", "N", WHOLE, "Model width."),
    ("--heads", "N", WHOLE, "Attention heads."),
    ("--kv-heads", "N", WHOLE, "Key-value heads."),
    ("--head-dim", "N", WHOLE, "Width of a head."),
    ("--ffn-hidden", "N", WHOLE, "Width of the MLP."),
    ("--vocab", "N", WHOLE, "Vocabulary."),
    ("--experts", "N", WHOLE, "Routed experts of a layer."),
    ("--topk", "N", WHOLE, "Experts that a token visits."),
    ("--moe-ffn-hidden", "N", WHOLE, "Width of an expert."),
    ("--shared-experts", "N", WHOLE, "Experts that every token visits."),
]
_SWITCHES = [
    ("--sequence-parallel/--no-sequence-parallel", "Sequence parallelism beside tensor parallelism."),
    ("--mtp/--no-mtp", "Train the multi-token-prediction modules too."),
]
_DIMENSION_SWITCHES = [
    ("--gated-mlp/--no-gated-mlp", "SwiGLU-like MLP (LLaMA block), or a plain one (GPT block)."),
    ("--tied-embeddings/--no-tied-embeddings", "Input and output embedding share one matrix."),
]


def _key(flag: str) -> str:
    return flag.partition("/")[0].removeprefix("--").replace("-", "_")


DIMENSIONS = tuple(_key(flag) for flag, *_ in [*_DIMENSIONS, *_DIMENSION_SWITCHES])
KEYS = tuple(_key(flag) for flag, *_ in [*_WHAT, *_TRAINING, *_LAYOUT, *_SWITCHES]) + DIMENSIONS
LAYOUT_KEYS = (*(_key(flag) for flag, *_ in _LAYOUT), "sequence_parallel")


def request_options(function: Function) -> Function:
    """Give a command the flags that describe a request; it gets them as keyword arguments, None where not given."""
    plain = [*_WHAT, *_TRAINING, *_LAYOUT, *_DIMENSIONS]
    switches = [*_SWITCHES, *_DIMENSION_SWITCHES]
    for flags, text in reversed(switches):
        function = click.option(flags, default=None, help=text)(function)
    for flag, metavar, kind, text in reversed(plain):
        function = click.option(flag, metavar=metavar, type=kind or click.STRING, default=None, help=text)(function)
    return click.option("--request", "request_file", metavar="FILE", help="A TOML file with these keys; flags go before it.")(function)


def export_options(function: Function) -> Function:
    """Give a command --export and --force."""
    function = click.option("--force", is_flag=True, help="Let --export replace existing files.")(function)
    text = "Write a configuration: deepspeed=ds.json, megatron=args.json (a list) or megatron=args.sh (a shell line). Repeatable."
    return click.option("--export", "exports", metavar="KIND=FILE", multiple=True, help=text)(function)


def read_request(options: Mapping[str, Any], request_file: str | None, **more: Any) -> tuple[Request, Resolved]:
    """Return the request of the flags over the file, and what it means; raise Failure (exit 2) with every problem."""
    from planner.request import RequestError, make_request, resolve

    flags = {key: options[key] for key in KEYS if key in options and key not in DIMENSIONS}
    try:
        file = _read_file(request_file)
        dimensions = {key: options[key] for key in DIMENSIONS if options.get(key) is not None}
        held = file.get("dimensions", {})
        modules = flags.get("recompute_modules")
        if modules is not None:
            flags["recompute_modules"] = tuple(word.strip() for word in modules.split(",") if word.strip())
        if dimensions:
            flags["dimensions"] = {**(held if isinstance(held, Mapping) else {}), **dimensions}
        request = make_request({**flags, **more}, file)
        return request, resolve(request)
    except RequestError as error:
        raise Failure(error.lines, exit_code=2) from None


def _read_file(name: str | None) -> dict[str, object]:
    from cost_models.hub.files import read_toml

    if name is None:
        return {}
    try:
        return read_toml(Path(name))
    except ValueError as error:
        raise Failure([f"{error}"], exit_code=2) from None


def given_words(context: click.Context, *, layout: bool = True) -> list[str]:
    """Return the request's flags as the user typed them, with or without those of the layout, so that a hint can be pasted."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        wanted = name == "request_file" or (name in KEYS and (layout or name not in LAYOUT_KEYS))
        if not wanted or value is None or context.get_parameter_source(name) != ParameterSource.COMMANDLINE:
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            words += [parameter.opts[0], f"{value}"]
    return words


def layout_words(plan: Plan) -> list[str]:
    """Return the flags that give exactly the plan's layout to `planner estimate`."""
    from cost_models.numeric import num

    d, c = plan.layout.degrees, plan.layout.choices
    degrees = {name: int(num(getattr(d, name))) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch", "shard_group")}
    words = ["--framework", plan.training.framework]
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp"):
        if degrees[name] > 1 or name in ("tp", "pp", "dp"):
            words += [f"--{name}", f"{degrees[name]}"]
    words += ["--zero", f"{c.zero}"]
    words += ["--shard-group", f"{degrees['shard_group']}"] if degrees["shard_group"] else []
    words += ["--sequence-parallel" if c.sequence_parallel else "--no-sequence-parallel"] if degrees["tp"] > 1 else []
    words += ["--schedule", c.schedule] if degrees["pp"] > 1 else []
    words += ["--recompute", c.recompute]
    words += ["--recompute-modules", ",".join(c.recompute_modules)] if c.recompute == "selective" else []
    layers = int(num(d.recompute_layers))
    words += ["--recompute-layers", f"{layers}"] if c.recompute == "full" and layers >= 0 else []
    words += ["--offload", _offload_word(plan)]
    words += ["--offload-target", c.offload_target] if c.offload != "none" and c.offload_target != "host" else []
    return [*words, "--micro-batch", f"{degrees['micro_batch']}"]


def _offload_word(plan: Plan) -> str:
    """The value of --offload that says what the plan offloads."""
    from cost_models.numeric import num

    d, c = plan.layout.degrees, plan.layout.choices
    fraction, activations = float(num(d.offload_fraction)), float(num(d.activation_offload))
    parts = [] if c.offload == "none" else c.offload.split("+")
    words = [f"{part}:{fraction:.12g}" if part == "optimizer" and fraction < 1 else part for part in parts]
    if activations:
        words.append("activations" if activations == 1 else f"activations:{activations:.12g}")
    return ",".join(words) or "none"
