"""A Hub config.json -> Architecture, by the table of families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_models.architecture import Architecture
from cost_models.hub.experts import Fields, whole
from cost_models.hub.families import Family, table
from cost_models.hub.files import is_folder, read_json
from cost_models.hub.keys import Keys
from cost_models.hub.quirks import QUIRKS
from cost_models.hub.refused import SCOPE, refusal, stem
from cost_models.hub.vision import vision_parameters
from cost_models.hub.windows import read_window
from cost_models.model_laws import ModelError, build, nearest, or_list, shown

CONFIG_NAME = "config.json"

NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "ffn_hidden": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim", "kv_channels"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
}
"""Field -> the keys that files of one family or another write it under, in order of preference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """What a config.json says."""

    architecture: Architecture
    assumed: tuple[str, ...]
    """Values that the file leaves to its class."""
    warnings: tuple[str, ...]


def read_config(path: Path, overrides: Mapping[str, int] | None = None) -> HubModel:
    """Read a config.json, or the one in a folder. `overrides` fill or replace sizes by field name (`vocab`: 32000).

    Raises ModelError, one line that names the file, the keys and the laws, or the architecture that planner does not describe.
    """
    if is_folder(path):
        if (path / "model_index.json").exists():
            raise ModelError(f"{path}: a diffusion pipeline (model_index.json); {SCOPE}")
        if not (path / CONFIG_NAME).exists():
            raise ModelError(f"{path}: a folder without {CONFIG_NAME}")
        path = path / CONFIG_NAME
    return parse_config(read_json(path), str(path), overrides)


def parse_config(values: Mapping[str, object], label: str, overrides: Mapping[str, int] | None = None) -> HubModel:
    """Do as read_config with an object that is already read; `label` names it in errors."""
    top = Keys(values)
    family, keys, wrapper = _recognise(top, label)
    fields = _fields(keys, top, family, overrides or {})
    fields["id"] = _identifier(label)
    fields["source"] = f"{label} ({top.text('model_type', default=family.model_types[0])})"
    if not top.problems and wrapper is not None:
        fields["vision_parameters"] = vision_parameters(wrapper, top, whole(fields, "hidden"))
    if top.get("quantization_config") is not None:
        top.warnings.append("its quantization_config is not read: precision is a choice of the training")
    if top.problems:
        raise ModelError(f"{label}: " + "; ".join(dict.fromkeys(top.problems)))
    warnings = tuple(f"{label}: {text}" for text in top.warnings)
    return HubModel(architecture=build(fields, label), assumed=tuple(top.assumed), warnings=warnings)


def _identifier(label: str) -> str:
    """Return a name for the model: `_name_or_path` would be the model that a fine-tune started from, so the folder or file names it."""
    path = Path(label)
    return path.parent.name if path.name == CONFIG_NAME and path.parent.name else path.stem or label


def _classes(keys: Keys) -> tuple[str, ...]:
    names = [name for name in keys.items("architectures") or () if isinstance(name, str)]
    diffusion = keys.get("_class_name")
    return (*names, diffusion) if isinstance(diffusion, str) else tuple(names)


def _recognise(top: Keys, label: str) -> tuple[Family, Keys, str | None]:
    """Return the family, the keys that describe the text model, and the multimodal wrapper if there is one."""
    model_type, classes = top.text("model_type", default=""), _classes(top)
    if top.problems:
        raise ModelError(f"{label}: " + "; ".join(top.problems))
    by_type, wrapper = table().by_type(model_type), table().wrapped(model_type, classes)
    named = bool(model_type) and (by_type or wrapper or table().by_class(classes)) is not None
    _refuse(label, (model_type,), () if named else classes)
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if top.flag(key, False):
            raise ModelError(f"{label}: {key} = true, an encoder-decoder model; {SCOPE}")
    if wrapper is None or (by_type is not None and wrapper.model_type != model_type):
        return _plain(top, label, model_type, classes), top, None
    text = top.part("text_config") or top
    inner = text.text("model_type", default="") if text is not top else ""
    _refuse(f"{label}: text_config", (inner,), ())
    family = table().by_type(inner) or table().by_class(_classes(text)) or table().by_type(wrapper.text)
    assert family is not None
    return family, text, wrapper.model_type


def _refuse(label: str, names: tuple[str, ...], classes: tuple[str, ...]) -> None:
    refused = refusal(names, classes)
    if refused:
        raise ModelError(f"{label}: {refused}; {SCOPE}")


def _plain(top: Keys, label: str, model_type: str, classes: tuple[str, ...]) -> Family:
    family, by_class = table().by_type(model_type), table().by_class(classes)
    if family is None and by_class is None:
        raise ModelError(f"{label}: {_unknown(model_type, classes)}")
    if family is None:
        assert by_class is not None
        if model_type:
            top.assumed.append(f"model_type {model_type} read as {by_class.model_types[0]}, because architectures says {classes[0]}")
        return by_class
    if by_class is not None and by_class is not family:
        raise ModelError(f"{label}: model_type = '{model_type}' and architectures = {shown(list(classes))} contradict each other")
    if by_class is None and classes:
        head = "has another head" if stem(classes[0]) in {stem(name) for name in family.classes} else "is not known to planner"
        top.warnings.append(f"{classes[0]} {head}; read as {model_type} with its language-model head")
    return family


def _unknown(model_type: str, classes: tuple[str, ...]) -> str:
    if not model_type and not classes:
        return "model_type and architectures are missing, so it is not known what its keys mean" + _advice()
    given = f"model_type '{model_type}'" if model_type else f"architecture {classes[0]}"
    near = nearest(model_type or stem(classes[0]), table().names(), 2)
    hint = f" (nearest: {or_list(near)})" if near else ""
    return f"{given} is none that planner reads{hint}" + _advice()


def _advice() -> str:
    return f"; give its dimensions as flags or as a TOML file, or use one of: {', '.join(table().names())}"


def _fields(keys: Keys, top: Keys, family: Family, overrides: Mapping[str, int]) -> Fields:
    keys = _overridden(keys, overrides)
    fields: Fields = {
        "family": family.name,
        "gated_mlp": True,
        "norm": "rms",
        "positional": "rope",
        **family.facts,
        "activation": keys.text("hidden_act", "hidden_activation", "activation_function", "activation", default=family.activation),
    }
    for field in ("layers", "hidden", "heads", "vocab"):
        fields[field] = _size(keys, family, field)
    fields["ffn_hidden"] = _mlp_width(keys, family, fields)
    fields["kv_heads"] = _kv_heads(keys, family, fields)
    fields["head_dim"] = _head_dim(keys, family, fields)
    fields["tied_embeddings"] = _tied(keys, top, family)
    for key, switch in family.switches.items():
        on = keys.flag(key, switch.default)
        for name in switch.sets:
            fields[name] = on
    positions = _positions(keys, family)
    fields["max_positions"] = positions
    if fields["positional"] == "learned":
        fields["learned_positions"] = (positions or 1) + family.positions_extra
    if family.window is not None:
        read_window(keys, fields, family.window)
    for quirk in family.quirks:
        QUIRKS[quirk](keys, fields)
    _qk_norm_weights(fields)
    return fields


def _overridden(keys: Keys, overrides: Mapping[str, int]) -> Keys:
    replaced = {name: None for field in overrides for name in NAMES.get(field, ())}
    given = {NAMES[field][0]: value for field, value in overrides.items() if field in NAMES}
    return keys.replaced({**replaced, **given}) if given else keys


def _size(keys: Keys, family: Family, field: str) -> int:
    names = NAMES[field]
    present = [name for name in names if keys.get(name) is not None]
    if field == "vocab" or not present:
        names = tuple(present[:1]) or (names[-1:] if field == "vocab" else names)
    default = family.sizes.get(field)
    if default is not None and not present:
        keys.assumed.append(f"{field} {default}, the default of its class")
    return keys.size(field, *names, default=default)


def _mlp_width(keys: Keys, family: Family, fields: Fields) -> int:
    if keys.get(*NAMES["ffn_hidden"]) is None and family.ffn_factor is not None:
        return whole(fields, "hidden") * family.ffn_factor
    return _size(keys, family, "ffn_hidden")


def _kv_heads(keys: Keys, family: Family, fields: Fields) -> int:
    if keys.get("num_key_value_heads") is None and family.kv_heads is not None and not keys.has("num_key_value_heads"):
        keys.assumed.append(f"kv_heads {family.kv_heads}, the default of its class")
        return family.kv_heads
    return keys.size("kv_heads", "num_key_value_heads", default=whole(fields, "heads"))


def _head_dim(keys: Keys, family: Family, fields: Fields) -> int:
    given = keys.optional_size("head_dim", *NAMES["head_dim"])
    if given is not None:
        return given
    if family.head_dim is not None:
        keys.assumed.append(f"head_dim {family.head_dim}, the default of its class")
        return family.head_dim
    hidden, heads = whole(fields, "hidden"), whole(fields, "heads")
    latent = keys.get("kv_lora_rank") is not None
    if hidden % heads and not latent and not keys.problems:
        keys.problem(f"head_dim is missing and hidden_size = {hidden} is not a multiple of {heads} heads")
    return max(hidden // heads, 1)


def _tied(keys: Keys, top: Keys, family: Family) -> bool:
    if not keys.has("tie_word_embeddings") and top is not keys and top.has("tie_word_embeddings"):
        return top.flag("tie_word_embeddings", family.tied)
    return keys.flag("tie_word_embeddings", family.tied)


def _positions(keys: Keys, family: Family) -> int | None:
    name = next((name for name in NAMES["max_positions"] if keys.get(name) is not None), None)
    if name is None:
        return family.sizes.get("max_positions")
    return keys.size("max_positions", name)


def _qk_norm_weights(fields: Fields) -> None:
    if "qk_norm_weights" in fields:
        return
    d, both = whole(fields, "head_dim"), whole(fields, "heads") + whole(fields, "kv_heads")
    fields["qk_norm_weights"] = {"head": 2 * d, "full": both * d}.get(str(fields.get("qk_norm")), 0)
