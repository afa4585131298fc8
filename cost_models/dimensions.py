"""A model from a few dimensions (flags or a TOML file), and changes to a model: what was not given is assumed and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.architecture import Architecture, Mla, Moe
from cost_models.model_laws import LIMITS, ModelError, build, nearest, or_list, shown, size_problem, size_problems

SYNONYMS: Mapping[str, str] = {
    "experts": "num_experts",
    "ffn": "ffn_hidden",
    "moe_layer_freq": "layer_freq",
    "window": "sliding_window",
    "tied": "tied_embeddings",
    "name": "id",
}
"""Short words for fields, as flags have them."""

MOE_FIELDS = frozenset(Moe.model_fields)
MLA_FIELDS = frozenset(Mla.model_fields)
PLAIN_FIELDS = frozenset(Architecture.model_fields) - {"moe", "mla"}

GPT_BLOCK: Mapping[str, object] = {
    "family": "gpt2",
    "activation": "gelu",
    "norm": "layer",
    "norm_bias": True,
    "qkv_bias": True,
    "attn_out_bias": True,
    "mlp_bias": True,
    "positional": "learned",
    "tied_embeddings": True,
    "vocab": 51200,
}
"""The GPT-2 and Megatron GPT block, taken where the MLP is not gated; 51,200 is GPT-2's vocabulary padded for eight tensor ranks."""

LLAMA_BLOCK: Mapping[str, object] = {"family": "llama", "activation": "silu", "norm": "rms", "positional": "rope", "vocab": 32000}
"""The LLaMA block with LLaMA's vocabulary, taken where the MLP is gated."""

POSITIONS = 2048
HEAD_DIM = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """An architecture made of dimensions, with what had to be assumed."""

    architecture: Architecture
    assumed: tuple[str, ...]


def from_dimensions(given: Mapping[str, object], label: str = "dimensions") -> Dimensions:
    """Make a model of fields of Architecture (MoE and MLA fields flat or in their tables). `layers` and `hidden` are needed at least.

    Raises ModelError (one line, `label` first) for unknown keys, for wrong sizes and for broken laws.
    """
    fields, moe, mla = _sorted(given, label)
    problems = [f"{key} is missing" for key in ("layers", "hidden") if fields.get(key) is None]
    if problems:
        raise ModelError(f"{label}: {'; '.join(problems)}: a model needs layers and hidden at least")
    problems = size_problems({**fields, **moe, **mla})
    if problems:
        raise ModelError(f"{label}: {'; '.join(problems)}")
    assumed: list[str] = []
    gated = fields.setdefault("gated_mlp", True)
    block = LLAMA_BLOCK if gated else GPT_BLOCK
    words = [_word(key, value) for key, value in block.items() if key not in fields and key != "family"]
    if words:
        assumed.append(f"a {'LLaMA' if gated else 'GPT'} block, because the MLP is {'' if gated else 'not '}gated: {', '.join(words)}")
    fields = {**block, **fields}
    _attention(fields, mla, assumed, label)
    _mlp(fields, moe, assumed, label)
    if fields["positional"] == "learned" and "learned_positions" not in fields:
        fields["learned_positions"] = fields.get("max_positions") or POSITIONS
        assumed.append(f"{fields['learned_positions']} learned positions")
    fields.setdefault("id", f"{fields['layers']}x{fields['hidden']}")
    if moe:
        fields["moe"] = moe
    if mla:
        fields["mla"] = mla
    architecture = build(with_qk_norm(fields), label)
    return Dimensions(architecture=architecture, assumed=tuple(assumed))


def changed(base: Architecture, changes: Mapping[str, object], label: str) -> Dimensions:
    """Return `base` with some fields replaced; fields that follow from a replaced one follow, and `assumed` says so."""
    fields, moe, mla = _sorted(changes, label)
    old = base.model_dump()
    fields = _differing(fields, old)
    moe, mla = _differing(moe, old["moe"] or {}), _differing(mla, old["mla"] or {})
    if not (fields or moe or mla):
        return Dimensions(architecture=base, assumed=())
    assumed = [f"{key} {shown(value)} instead of {shown(old.get(key))}" for key, value in fields.items() if key != "id"]
    if "heads" in fields and "kv_heads" not in fields and base.mla is None and base.kv_heads == base.heads:
        fields["kv_heads"] = fields["heads"]
        assumed.append("kv_heads follows heads")
    if {"hidden", "heads"} & set(fields) and "head_dim" not in fields and base.mla is None:
        assumed.append(_head_dim(base, fields, label))
    if {"heads", "kv_heads", "head_dim", "qk_norm"} & set(fields) and "qk_norm_weights" not in fields:
        old["qk_norm_weights"] = None
    merged = {**old, "aliases": (), **fields}
    if moe:
        assumed += [f"{key} {shown(value)}" for key, value in moe.items()]
        if base.moe is None:
            _mlp(merged, moe, assumed, label)
        merged["moe"] = {**(old["moe"] or {}), **moe}
    if mla:
        merged["mla"] = {**(old["mla"] or {}), **mla}
        assumed += [f"{key} {shown(value)}" for key, value in mla.items()]
        if "head_dim" not in fields and {"qk_nope_head_dim", "qk_rope_head_dim"} <= set(merged["mla"]):
            merged["head_dim"] = _sum(merged["mla"]["qk_nope_head_dim"], merged["mla"]["qk_rope_head_dim"])
    if "id" not in fields:
        merged["id"] = f"{base.id} ({', '.join(f'{key}={shown(value)}' for key, value in {**fields, **moe, **mla}.items())})"
    return Dimensions(architecture=build(with_qk_norm(merged), label), assumed=tuple(assumed))


def _differing(fields: Mapping[str, object], old: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if key not in old or value != old[key] or type(value) is not type(old[key])}


def _head_dim(base: Architecture, fields: dict[str, object], label: str) -> str:
    """Let head_dim follow where the base has hidden = heads × head_dim; say what was done."""
    if base.heads * base.head_dim != base.hidden:
        return f"head_dim stays {base.head_dim}"
    sizes = {"hidden": base.hidden, "heads": base.heads, **fields}
    hidden, heads = _need(sizes, "hidden", label), _need(sizes, "heads", label)
    if hidden % heads:
        raise ModelError(f"{label}: hidden = {hidden} is not a multiple of {heads} heads; give head_dim")
    if hidden // heads == base.head_dim:
        return f"head_dim stays {base.head_dim}"
    fields["head_dim"] = hidden // heads
    return f"head_dim {hidden // heads}, hidden / heads"


def with_qk_norm(fields: Mapping[str, object]) -> dict[str, object]:
    """Return `fields` with `qk_norm_weights` computed where it is not given."""
    if fields.get("qk_norm_weights") is not None:
        return dict(fields)
    sizes = [fields.get(key) for key in ("head_dim", "heads", "kv_heads")]
    kind = fields.get("qk_norm", "none")
    weights = 0
    if all(isinstance(size, int) for size in sizes):
        d, heads, kv_heads = (size for size in sizes if isinstance(size, int))
        weights = 2 * d if kind == "head" else (heads + kv_heads) * d if kind == "full" else 0
    return {**fields, "qk_norm_weights": weights}


def _sorted(given: Mapping[str, object], label: str) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """Split `given` into plain, MoE and MLA fields; None means not given; unknown keys raise with the nearest names."""
    flat: dict[str, object] = {}
    unknown: list[str] = []
    for key, value in given.items():
        if key in ("moe", "mla") and isinstance(value, Mapping):
            flat |= {str(inner): v for inner, v in value.items()}
        elif value is not None:
            flat[key] = value
    parts: tuple[dict[str, object], dict[str, object], dict[str, object]] = ({}, {}, {})
    tables = (PLAIN_FIELDS, MOE_FIELDS, MLA_FIELDS)
    for written, value in flat.items():
        key = SYNONYMS.get(written, written)
        home = next((index for index, table in enumerate(tables) if key in table), None)
        if home is None:
            near = nearest(written, [*PLAIN_FIELDS, *MOE_FIELDS, *MLA_FIELDS, *SYNONYMS])
            unknown.append(f"{written} is no field of a model" + (f"; did you mean {or_list(near)}?" if near else ""))
        else:
            parts[home][key] = value
    if unknown:
        raise ModelError(f"{label}: {'; '.join(unknown)}")
    return parts


def _attention(fields: dict[str, object], mla: dict[str, object], assumed: list[str], label: str) -> None:
    hidden = _need(fields, "hidden", label)
    if mla:
        missing = [key for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim") if key not in mla]
        if missing or "heads" not in fields:
            raise ModelError(f"{label}: latent attention needs {', '.join(missing or ['heads'])} too")
        fields["head_dim"] = _sum(mla["qk_nope_head_dim"], mla["qk_rope_head_dim"])
        fields.setdefault("kv_heads", fields["heads"])
        return
    if "heads" not in fields:
        width = fields.get("head_dim") or next((d for d in (HEAD_DIM, 64) if hidden % d == 0), None)
        if not isinstance(width, int) or width < 1 or hidden % width:
            raise ModelError(f"{label}: heads is missing and hidden = {hidden} is not a multiple of {shown(width or 64)}; give heads")
        fields["heads"] = hidden // width
        assumed.append(f"{fields['heads']} heads of {width}")
    heads = _need(fields, "heads", label)
    if "kv_heads" not in fields:
        fields["kv_heads"] = heads
        assumed.append(f"kv_heads {heads}, as many as heads")
    if "head_dim" not in fields:
        if hidden % heads:
            raise ModelError(f"{label}: hidden = {hidden} is not a multiple of {heads} heads; give head_dim")
        fields["head_dim"] = hidden // heads


def _mlp(fields: dict[str, object], moe: dict[str, object], assumed: list[str], label: str) -> None:
    hidden = _need(fields, "hidden", label)
    if "ffn_hidden" not in fields:
        if "moe_ffn_hidden" in moe:
            fields["ffn_hidden"] = moe["moe_ffn_hidden"]
        else:
            fields["ffn_hidden"] = -(-(hidden * 8 // 3) // 256) * 256 if fields.get("gated_mlp") else 4 * hidden
            law = "8/3 of hidden, rounded up to 256" if fields.get("gated_mlp") else "4 times hidden"
            assumed.append(f"ffn_hidden {fields['ffn_hidden']}, {law}")
    if not moe:
        return
    if "num_experts" not in moe:
        raise ModelError(f"{label}: {or_list(moe)} given without experts")
    if "topk" not in moe:
        moe["topk"] = 2
        assumed.append("topk 2")
    if "moe_ffn_hidden" not in moe:
        moe["moe_ffn_hidden"] = fields["ffn_hidden"]
        assumed.append(f"moe_ffn_hidden {shown(fields['ffn_hidden'])}, as ffn_hidden")
    shared, width = moe.get("shared_experts", 0), moe["moe_ffn_hidden"]
    if "shared_ffn_hidden" not in moe and isinstance(shared, int) and isinstance(width, int) and shared:
        moe["shared_ffn_hidden"] = shared * width
        assumed.append(f"shared_ffn_hidden {shared * width}, shared_experts times moe_ffn_hidden")


def _need(fields: Mapping[str, object], key: str, label: str) -> int:
    value = fields.get(key)
    problem = size_problem(key, value, LIMITS[key])
    if problem:
        raise ModelError(f"{label}: {problem}")
    assert isinstance(value, int)
    return value


def _sum(first: object, second: object) -> object:
    return first + second if isinstance(first, int) and isinstance(second, int) else first


def _word(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else f"no {key}"
    return f"{key} {value}"
