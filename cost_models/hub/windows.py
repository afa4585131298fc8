"""Which layers attend to a sliding window: from `layer_types`, from a pattern key, or from the class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.hub.experts import Fields, whole
from cost_models.model_laws import shown

if TYPE_CHECKING:
    from cost_models.hub.families import Window
    from cost_models.hub.keys import Keys

FULL = "full_attention"
SLIDING = ("sliding_attention", "chunked_attention")


def read_window(keys: Keys, fields: Fields, window: Window) -> None:
    """Set `sliding_window` and `full_attention_every`.

    A layout of layers that the record cannot say (the first k layers full, the rest sliding) is planned with full attention in
    every layer, an upper bound of time and cache, and a warning says so.
    """
    width = keys.optional_size("sliding_window", window.key) if keys.has(window.key) else window.default
    if width is None or (window.switched and not keys.flag("use_sliding_window", False)):
        return
    layers = whole(fields, "layers")
    every = _every_from_types(keys, layers)
    if every is None:
        every = _every_from_keys(keys, window, layers)
    if every == 1:
        return
    fields["sliding_window"], fields["full_attention_every"] = width, every


def _every_from_types(keys: Keys, layers: int) -> int | None:
    kinds = keys.items("layer_types")
    if kinds is None:
        return None
    if len(kinds) != layers:
        keys.problem(f"layer_types has {len(kinds)} entries for {layers} layers")
        return 1
    for kind in kinds:
        if kind != FULL and kind not in SLIDING:
            keys.problem(f"layer_types: {shown(kind)} is no attention that planner describes")
            return 1
    return _period([kind in SLIDING for kind in kinds], keys)


def _every_from_keys(keys: Keys, window: Window, layers: int) -> int:
    if window.full_first is not None:
        first = keys.size("first", "max_window_layers", default=window.full_first, minimum=0)
        return _period([index >= first for index in range(layers)], keys)
    pattern = keys.get("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) == {"L", "G"} and pattern == "L" * (len(pattern) - 1) + "G":
        return len(pattern)
    if window.every and pattern is not None:
        return keys.size("every", "sliding_window_pattern", "_sliding_window_pattern")
    return window.every


def _period(slides: list[bool], keys: Keys) -> int:
    """Return n where every n-th layer is full (1: all full, 0: none)."""
    if not any(slides):
        return 1
    if all(slides):
        return 0
    every = slides.index(False) + 1
    if all(slide == ((index + 1) % every != 0) for index, slide in enumerate(slides)):
        return every
    keys.warnings.append("its sliding layers follow no simple period; planned with full attention in every layer, an upper bound")
    return 1
