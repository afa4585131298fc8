"""The flags of a request, spelled alike in every command and as the JSON keys. Values are read by planner.asked, all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from cost_models.switches import SWITCHES
from planner.cli.output import Failure

if TYPE_CHECKING:
    from planner.asked import Request
    from planner.plan import Plan
    from planner.request import Resolved

Function = Callable[..., Any]


def whole(value: str) -> int | str:
    """Return the whole number, or the text as it is, so that all problems are told at once."""
    try:
        return int(value)
    except ValueError:
        return value


def real(value: str) -> float | str:
    """Return the number, or the text as it is."""
    try:
        return float(value)
    except ValueError:
        return value


class Flag(NamedTuple):
    """One option that takes a value."""

    flag: str
    metavar: str
    kind: Callable[[str], Any]
    help: str


_WHAT: list[Flag] = [
    Flag("--model", "NAME|FILE", str, "A catalogue name, a bare size (30b), a Hub config.json (file or folder) or a TOML file."),
    Flag("--cluster", "TEXT|FILE", str, "32xA100-80G, 4x8xH100-80G, 16xp5.48xlarge, 8xA100-80G+4xRTX3090-24G or a TOML file."),
    Flag("--free-memory", "SIZE", str, "What is left of each card where it is shared: 60GiB."),
    Flag("--confidence", "PART", real, "Probability of fit from which a plan fits, from measured errors.  [default: 0.95]"),
    Flag("--margin", "PART", real, "Part of the capacity that stays free, instead of --confidence."),
]
_TRAINING: list[Flag] = [
    Flag("--method", "full|lora|qlora|inference", str, "What is trained.  [default: full]"),
    Flag("--seq", "TOKENS", whole, "Tokens of one sample.  [default: 2048, or the model's limit]"),
    Flag("--lengths", "FILE", str, "Lengths of the samples, one a line or length,count: plans are made for the longest."),
    Flag("--mean-seq", "TOKENS", whole, "Tokens of the mean sample, where there is no such file."),
    Flag("--global-batch", "SAMPLES", whole, "Samples per optimizer step."),
    Flag("--precision", "fp32|fp16|bf16|fp8", str, "Type of the computation.  [default: bf16]"),
    Flag("--optimizer", "adamw|sgd|adafactor|adam8bit|lion|muon", str, "[default: adamw]"),
    Flag("--attention", "flash|eager", str, "Attention kernel.  [default: flash]"),
    Flag("--regime", "NAME", str, "State regime: which types weights, gradients, master and moments have."),
    Flag("--lora-rank", "R", whole, "Rank of the adapters.  [default: 16]"),
    Flag("--kv-bits", "16|8|4", whole, "Bits of a KV-cache entry (inference)."),
    Flag("--weight-bits", "16|8|4", whole, "Bits of a weight (inference)."),
]
_SOFTWARE: list[Flag] = [
    Flag(
        "--framework",
        "NAME|any|unknown",
        str,
        "Whose rules and defaults hold: megatron, deepspeed, fsdp, torchtitan, hf, …; unknown: a band over all that can run the layout"
        " (estimate).  [default: any]",
    ),
    Flag("--software-date", "YYYY-MM", str, "Era of the software.  [default: today]"),
]
_LAYOUT: list[Flag] = [
    Flag("--tp", "N", whole, "Tensor parallel size."),
    Flag("--pp", "N", whole, "Pipeline parallel size."),
    Flag("--vpp", "N", whole, "Model chunks (virtual stages) per pipeline rank."),
    Flag("--cp", "N", whole, "Context parallel size."),
    Flag("--ep", "N", whole, "Expert parallel size."),
    Flag("--etp", "N", whole, "Tensor parallel size inside an expert."),
    Flag("--dp", "N", whole, "Data parallel size: tp × pp × cp × dp = GPUs."),
    Flag("--zero", "0|1|2|3", whole, "ZeRO stage."),
    Flag("--shard-group", "N", whole, "Ranks over which ZeRO shards (hybrid sharding); all data-parallel ranks if not given."),
    Flag("--schedule", "1f1b|interleaved|gpipe|zb-h1|zb-v|dualpipe", str, "Pipeline schedule; the last three run in few frameworks."),
    Flag("--recompute", "none|selective|full", str, "Activation recompute."),
    Flag("--recompute-modules", "NAMES", str, "What `selective` recomputes: core_attn, mlp, moe, moe_act, layernorm, …, joined by commas."),
    Flag("--recompute-layers", "K", whole, "Layers of each stage that `full` recomputes."),
    Flag("--stage-layers", "N,N,…", str, "Layers of each pipeline stage (estimate; a search chooses them)."),
    Flag("--stage-recompute", "K,K,…", str, "Layers of each stage that `full` recomputes (estimate)."),
    Flag("--offload", "auto|any|none|WHAT", str, "optimizer[:part], params, activations[:part]; auto: if nothing fits without."),
    Flag("--offload-target", "host|nvme", str, "Where offloaded states live."),
    Flag("--rank-order", "ORDER", str, "Numbering of ranks: tp-cp-ep-dp-pp; in Megatron-LM also tp-cp-ep-pp-dp."),
    Flag("--micro-batch", "N", whole, "Samples of one micro-batch."),
]
_DIMENSIONS: list[Flag] = [
    Flag("--layers", "N", whole, "Layers."),
    Flag("--hidden", "N", whole, "Model width."),
    Flag("--heads", "N", whole, "Attention heads."),
    Flag("--kv-heads", "N", whole, "Key-value heads."),
    Flag("--head-dim", "N", whole, "Width of a head."),
    Flag("--ffn-hidden", "N", whole, "Width of the MLP."),
    Flag("--vocab", "N", whole, "Vocabulary."),
    Flag("--experts", "N", whole, "Routed experts of a layer."),
    Flag("--topk", "N", whole, "Experts that a token visits."),
    Flag("--moe-ffn-hidden", "N", whole, "Width of an expert."),
    Flag("--shared-experts", "N", whole, "Experts that every token visits."),
]
_SWITCHES = [
    ("--sequence-parallel/--no-sequence-parallel", "Sequence parallelism beside tensor parallelism."),
    ("--mtp/--no-mtp", "Train the multi-token-prediction modules too."),
    ("--compile/--no-compile", "Layers run through torch.compile, or not.  [default: as the framework does]"),
]
_DIMENSION_SWITCHES = [
    ("--gated-mlp/--no-gated-mlp", "SwiGLU-like MLP (LLaMA block), or a plain one (GPT block)."),
    ("--tied-embeddings/--no-tied-embeddings", "Input and output embedding share one matrix."),
]


def _key(flag: str) -> str:
    return flag.partition("/")[0].removeprefix("--").replace("-", "_")


SECTIONS = {
    "Request": (*(f.flag for f in _WHAT), "--request"),
    "Training": (*(f.flag for f in _TRAINING), "--mtp"),
    "Software": (*(f.flag for f in _SOFTWARE), "--compile", "--stack"),
    "Layout (what is not given is searched, or one)": (*(f.flag for f in _LAYOUT), "--sequence-parallel"),
    "Wishes (what plans must be, and how they are ranked)": ("--fix", "--max", "--min", "--forbid", "--require", "--objective"),
    "Questions beside the ranking": ("--why", "--pareto", "--sensitivity"),
    "Dimensions (change the model, or make one up)": (*(f.flag for f in _DIMENSIONS), "--gated-mlp", "--tied-embeddings"),
}
"""Heading of the help -> first names of its options (where the command has them); all others stand under Output."""

WISH_KEYS = ("fix", "max", "min", "forbid", "require", "objective")
"""Options of a search that belong to its layout: commands about one layout do not have them."""

DIMENSIONS = (*(_key(f.flag) for f in _DIMENSIONS), *(_key(flags) for flags, _ in _DIMENSION_SWITCHES))
LAYOUT_KEYS = (*(_key(f.flag) for f in _LAYOUT), "sequence_parallel")
KEYS = (*(_key(f.flag) for f in (*_WHAT, *_TRAINING, *_SOFTWARE)), "mtp", "compile", "stack", *LAYOUT_KEYS, *DIMENSIONS)


class RequestCommand(click.Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
        shown = {param.opts[0]: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx)) is not None}
        for heading, flags in SECTIONS.items():
            if held := [shown.pop(flag) for flag in flags if flag in shown]:
                with formatter.section(heading):
                    formatter.write_dl(held)
        with formatter.section("Output"):
            formatter.write_dl(list(shown.values()))


def request_options(function: Function) -> Function:
    """Give a command the flags that describe a request; it gets them as keyword arguments, None where not given."""
    plain = [*_WHAT, *_TRAINING, *_SOFTWARE, *_LAYOUT, *_DIMENSIONS]
    switches = [*_SWITCHES, *_DIMENSION_SWITCHES]
    for flags, text in reversed(switches):
        function = click.option(flags, default=None, help=text)(function)
    function = click.option(
        "--stack", metavar="NAME=VALUE", multiple=True, help=f"Switch of the software: {', '.join(SWITCHES)}. Repeatable."
    )(function)
    for flag, metavar, kind, text in reversed(plain):
        function = click.option(flag, metavar=metavar, type=kind, default=None, help=text)(function)
    return click.option("--request", "request_file", metavar="FILE", help="A TOML file with these keys; flags go before it.")(function)


def read_request(options: Mapping[str, Any], request_file: str | None, **more: Any) -> tuple[Request, Resolved]:
    """Return the request of the flags over the file, and what it means; raise Failure (exit 2) with every problem."""
    from planner.asked import RequestError, make_request
    from planner.request import resolve

    flags = {key: options[key] for key in KEYS if key in options and key not in DIMENSIONS}
    try:
        file = _read_file(request_file)
        dimensions = {key: options[key] for key in DIMENSIONS if options.get(key) is not None}
        held = file.get("dimensions", {})
        for key in ("recompute_modules", "stage_layers", "stage_recompute"):
            if flags.get(key) is not None:
                flags[key] = tuple(word.strip() for word in flags[key].split(",") if word.strip())
        if switches := _switches(flags.pop("stack", ())):
            held_switches = file.get("stack", {})
            flags["stack"] = {**(held_switches if isinstance(held_switches, Mapping) else {}), **switches}
        if dimensions:
            flags["dimensions"] = {**(held if isinstance(held, Mapping) else {}), **dimensions}
        request = make_request({**flags, **more}, file)
        _check_regime(request)
        return request, resolve(request)
    except RequestError as error:
        raise Failure(error.lines, exit_code=2) from None


def _switches(words: tuple[str, ...]) -> dict[str, str]:
    """Return the switches of NAME=VALUE words; raise Failure for a word without a value."""
    if bad := [word for word in words if "=" not in word]:
        raise Failure([f"stack={word[:60]!r}: give NAME=VALUE, such as overlap_grad_reduce=no" for word in bad], exit_code=2)
    return {name.strip(): value.strip() for name, _, value in (word.partition("=") for word in words)}


def _check_regime(request: Request) -> None:
    """Raise Failure for an unknown state regime, with the names that exist."""
    from cost_models.choices.precision import REGIMES

    if request.regime is not None and request.regime not in REGIMES:
        raise Failure([f"regime={request.regime[:60]!r}: it is one of {', '.join(REGIMES)}"], exit_code=2)


def _read_file(name: str | None) -> dict[str, object]:
    from cost_models.hub.files import read_toml

    if name is None:
        return {}
    try:
        return read_toml(Path(name))
    except ValueError as error:
        raise Failure([f"{error}"], exit_code=2) from None


def given_words(context: click.Context, *, layout: bool = True, without: Collection[str] = ()) -> list[str]:
    """Return the request's flags as the user typed them, without those of the layout or `without` if so asked: hints can be pasted."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        wanted = name == "request_file" or (name in KEYS and (layout or name not in LAYOUT_KEYS)) or (layout and name in WISH_KEYS)
        if not wanted or value is None or parameter.opts[0] in without or context.get_parameter_source(name) != ParameterSource.COMMANDLINE:
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        elif isinstance(value, tuple):
            words += [word for each in value for word in (parameter.opts[0], f"{each}")]
        else:
            words += [parameter.opts[0], f"{value}"]
    return words


def layout_words(plan: Plan) -> list[str]:
    """Return the flags that give exactly the plan's layout to `planner estimate`."""
    from cost_models.layout import RANK_ORDERS
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
    for flag, held in (("--stage-layers", plan.layout.stage_layers), ("--stage-recompute", plan.layout.stage_recompute)):
        words += [flag, ",".join(f"{n}" for n in held)] if held is not None else []
    words += ["--offload", _offload_word(plan)]
    words += ["--rank-order", RANK_ORDERS[order]] if (order := int(num(d.rank_order))) else []
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
