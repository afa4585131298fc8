"""What every description of a model must obey, whoever wrote it: Hub file, TOML, flags or catalogue. One-line errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from cost_models.architecture import Architecture, Mla, Moe

LIMITS: Mapping[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "ffn_hidden": 10_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "vocab": 100_000_000,
    "learned_positions": 100_000_000,
    "max_positions": 10_000_000_000,
    "embed_proj_dim": 1_000_000,
    "sliding_window": 10_000_000_000,
    "mtp_layers": 100,
    "norms_per_layer": 8,
    "qk_norm_weights": 1_000_000_000,
    "full_attention_every": 10_000,
    "vision_parameters": 1_000_000_000_000,
    "num_experts": 100_000,
    "topk": 100_000,
    "moe_ffn_hidden": 10_000_000,
    "shared_experts": 10_000,
    "shared_ffn_hidden": 10_000_000,
    "first_k_dense": 10_000,
    "layer_freq": 10_000,
    "q_lora_rank": 1_000_000,
    "kv_lora_rank": 1_000_000,
    "qk_nope_head_dim": 100_000,
    "qk_rope_head_dim": 100_000,
    "v_head_dim": 100_000,
}
"""Largest size that planner reads, per field: an order of magnitude and more above any public model."""

MAX_PARAMETERS = 10**15
"""Above it float64 would soon lose single parameters (2**53 = 9e15)."""


class ModelError(ValueError):
    """A model description that cannot be used. Its text is one line: what was given, the law, what would pass."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class UnknownModel(ModelError):
    """A name that no catalogue entry answers to; the text gives the nearest names."""


def one_line(text: str) -> str:
    """Return `text` with every unprintable character escaped, so that no input can break the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    """Return a short text of a value that a user gave."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 60:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known words nearest to `word`, best first."""
    return difflib.get_close_matches(word.lower(), list(known), n=count, cutoff=0.5)


def or_list(words: Iterable[str]) -> str:
    """Return "a, b or c"."""
    items = list(words)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " or " + items[-1] if items else ""


def size_problem(key: str, value: object, limit: int, minimum: int = 1) -> str | None:
    """Tell in one phrase why `value` is no size between `minimum` and `limit`; None if it is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{key} = {shown(value)} must be a whole number"
    if value < minimum:
        return f"{key} = {shown(value)} must be at least {minimum}"
    if value > limit:
        return f"{key} = {shown(value)} is above {limit:,}, the largest that planner reads"
    return None


def build(fields: Mapping[str, object], label: str) -> Architecture:
    """Make an Architecture of plain fields (`moe` and `mla` as mappings) and hold it against the laws.

    Raises ModelError that starts with `label` and names every broken law.
    """
    problems: list[str] = []
    values = dict(fields)
    if isinstance(values.get("id"), str):
        values["id"] = one_line(str(values["id"]))
    for key, kind in (("moe", Moe), ("mla", Mla)):
        part = values.get(key)
        if isinstance(part, Mapping):
            problems += size_problems(part)
            values[key] = _validated(kind, part, problems)
    problems += size_problems(values)
    aliases = values.get("aliases")
    if isinstance(aliases, list):
        values["aliases"] = tuple(aliases)
    made = None if problems else _validated(Architecture, values, problems)
    if isinstance(made, Architecture):
        problems += laws(made)
        if not problems:
            return made
    raise ModelError(f"{label}: " + "; ".join(dict.fromkeys(problems)))


def laws(architecture: Architecture) -> list[str]:
    """Return the broken laws between the fields of an architecture, in words; an empty list if it is sound."""
    a, moe, mla = architecture, architecture.moe, architecture.mla
    found = []
    if mla is None and a.heads % a.kv_heads:
        found.append(f"kv_heads = {a.kv_heads} must divide heads = {a.heads}; try {or_list(map(str, divisors_near(a.heads, a.kv_heads)))}")
    if mla is not None and a.head_dim != mla.qk_nope_head_dim + mla.qk_rope_head_dim:
        found.append(
            f"head_dim = {a.head_dim} must be qk_nope_head_dim + qk_rope_head_dim = {mla.qk_nope_head_dim} + {mla.qk_rope_head_dim}"
        )
    if a.positional == "learned" and a.learned_positions == 0:
        found.append("learned positions need learned_positions, the rows of their table")
    if moe is not None:
        if moe.topk > moe.num_experts:
            found.append(f"topk = {moe.topk} is above the {moe.num_experts} experts")
        if moe.first_k_dense > a.layers:
            found.append(f"first_k_dense = {moe.first_k_dense} is above the {a.layers} layers")
        if (moe.shared_experts > 0) != (moe.shared_ffn_hidden > 0):
            found.append(f"shared_experts = {moe.shared_experts} and shared_ffn_hidden = {moe.shared_ffn_hidden} go together")
    rough = rough_parameters(a)
    if rough > MAX_PARAMETERS:
        found.append(f"about {rough:.1e} parameters in all, planner reads up to {MAX_PARAMETERS:.0e}")
    return found


def rough_parameters(a: Architecture) -> float:
    """Return an upper estimate of the parameters (large matrices only), for the size limit; counts come from the blocks."""
    widths = float(a.ffn_hidden)
    if a.moe is not None:
        widths = max(widths, float(a.moe.moe_ffn_hidden) * a.moe.num_experts + a.moe.shared_ffn_hidden)
    return 2.0 * a.vocab * a.hidden + float(a.layers) * a.hidden * (4.0 * a.heads * a.head_dim + 3.0 * widths)


def divisors_near(number: int, wanted: int, count: int = 3) -> list[int]:
    """Return up to `count` divisors of `number`, nearest to `wanted`, ascending."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return sorted(sorted(divisors, key=lambda d: (abs(d - wanted), d))[:count])


def size_problems(values: Mapping[str, object]) -> list[str]:
    """Return what is wrong with the sizes among `values` (fields by name), in words."""
    optional = {"max_positions", "embed_proj_dim", "sliding_window", "q_lora_rank"}
    from_zero = {"learned_positions", "mtp_layers", "norms_per_layer", "qk_norm_weights", "full_attention_every", "vision_parameters"}
    from_zero |= {"shared_experts", "shared_ffn_hidden", "first_k_dense"}
    found = []
    for key, limit in LIMITS.items():
        if key not in values or (values[key] is None and key in optional):
            continue
        problem = size_problem(key, values[key], limit, 0 if key in from_zero else 1)
        if problem:
            found.append(problem)
    return found


def _validated(kind: type[Architecture] | type[Moe] | type[Mla], values: Mapping[str, object], problems: list[str]) -> object:
    try:
        return kind.model_validate(dict(values), strict=True)
    except ValidationError as error:
        for item in error.errors():
            problems.append(_sentence(kind, item["type"], ".".join(map(str, item["loc"])), item["input"], item.get("ctx", {})))
        return None


def _sentence(kind: type[Architecture] | type[Moe] | type[Mla], law: str, key: str, value: object, context: Mapping[str, object]) -> str:
    if law == "missing":
        return f"{key} is missing"
    if law == "extra_forbidden":
        near = nearest(key, kind.model_fields)
        return f"{key} is no field of a model" + (f"; did you mean {or_list(near)}?" if near else "")
    if law == "literal_error":
        words_allowed = str(context.get("expected", "another word")).replace("'", "")
        return f"{key} = {shown(value)} must be {words_allowed}"
    words = {
        "bool_type": "true or false",
        "int_type": "a whole number",
        "string_type": "text",
        "greater_than": f"above {context.get('gt')}",
    }
    return f"{key} = {shown(value)} must be {words.get(law, 'of another kind (' + law + ')')}"
