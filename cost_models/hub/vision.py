"""Parameters of a vision tower with its projector, which planner states and does not plan.

Closed forms of three towers (h width, f MLP width, p patch, c channels, t text width), from transformers 5.24 modelling files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cost_models.hub.keys import Keys


def vision_parameters(wrapper: str, keys: Keys, text_hidden: int) -> int:
    """Return the parameters of the tower that `vision_config` describes; 0 with a warning where it describes none that is known."""
    vision = keys.part("vision_config")
    counters = {"gemma3": _siglip_gemma3, "llama4": _llama4, "mistral3": _pixtral}
    if vision is None or wrapper not in counters:
        keys.warnings.append("it has a vision tower, whose parameters are not counted; only the text model is planned")
        return 0
    count = counters[wrapper](keys, vision, text_hidden)
    if not keys.problems:
        keys.warnings.append(f"its vision tower ({count:,} parameters) is stated apart; only the text model is planned")
    return count


def _size(vision: Keys, name: str, default: int) -> int:
    return vision.size("hidden", name, default=default)


def _square(vision: Keys, name: str, default: int) -> int:
    value = vision.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and isinstance(value[0], int):
        return value[0]
    return _size(vision, name, default)


def _patches(vision: Keys, image: int, patch: int) -> tuple[int, int]:
    """Return (patches of an image, inputs of one patch)."""
    side, edge = _square(vision, "image_size", image), _square(vision, "patch_size", patch)
    if side < edge:
        vision.problem(f"image_size = {side} is below patch_size = {edge}")
    return (side // edge) * (side // edge), _size(vision, "num_channels", 3) * edge * edge


def _block_with_biases(h: int, f: int) -> int:
    """Return the parameters of one layer: four projections, two-matrix MLP, two LayerNorms, all with biases."""
    return 4 * (h * h + h) + 2 * h * f + f + h + 4 * h


def _siglip_gemma3(keys: Keys, vision: Keys, text_hidden: int) -> int:
    h, f = _size(vision, "hidden_size", 768), _size(vision, "intermediate_size", 3072)
    layers = _size(vision, "num_hidden_layers", 12)
    patches, inputs = _patches(vision, 224, 16)
    tower = inputs * h + h + patches * h + layers * _block_with_biases(h, f) + 2 * h
    if vision.flag("vision_use_head", True):
        tower += h + 4 * (h * h + h) + 2 * h + 2 * h * f + f + h
    return tower + h * text_hidden + h


def _llama4(keys: Keys, vision: Keys, text_hidden: int) -> int:
    h, f = _size(vision, "hidden_size", 768), _size(vision, "intermediate_size", 5632)
    layers = _size(vision, "num_hidden_layers", 34)
    patches, inputs = _patches(vision, 448, 14)
    wide_in, wide_out = _size(vision, "projector_input_dim", 4096), _size(vision, "projector_output_dim", 4096)
    tower = inputs * h + h + (patches + 1) * h + 4 * h + layers * _block_with_biases(h, f)
    adapter = f * wide_in + wide_out * wide_out
    return tower + adapter + _size(vision, "vision_output_dim", 7680) * text_hidden


def _pixtral(keys: Keys, vision: Keys, text_hidden: int) -> int:
    h, f = _size(vision, "hidden_size", 1024), _size(vision, "intermediate_size", 4096)
    layers = _size(vision, "num_hidden_layers", 24)
    _, inputs = _patches(vision, 1024, 16)
    merge = keys.size("hidden", "spatial_merge_size", default=2)
    levels = keys.get("vision_feature_layer")
    taken = len(levels) if isinstance(levels, list) else 1
    biases = 2 * text_hidden if keys.flag("multimodal_projector_bias", False) else 0
    tower = inputs * h + h + layers * (4 * h * h + 3 * h * f + 2 * h)
    return tower + h + merge * merge * h * h + taken * h * text_hidden + text_hidden * text_hidden + biases
