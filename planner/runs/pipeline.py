"""How a row deals its layers to pipeline stages where that is not the even split."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planner.runs.assumed import Assumptions, Unfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.runs.notes import Stated
    from planner.runs.row import Run

MAX_EXPANDED = 100_000
"""Characters of an expanded pipeline layout; more is taken for a mistake."""


def held_layers(run: Run, said: Stated, usual: Mapping[str, str], assumed: Assumptions) -> tuple[int, tuple[int, ...] | None]:
    """Return the virtual stages per rank and the layers of each stage (None: the even split).

    `usual`: pipeline layout of the row's recipe by number of chunks.
    """
    assert run.pp is not None and run.layers is not None
    vpp = run.vpp or 1
    if run.pp == 1:
        return 1, None
    text = said.arguments.get("pipeline-model-parallel-layout") or said.facts.get("pp_layout", "")
    if text:
        chunks = chunk_layers(text)
        if chunks is not None and len(chunks) % run.pp == 0 and sum(chunks) == run.layers:
            return len(chunks) // run.pp, _deal(chunks, run.pp)
    else:
        chunks = chunk_layers(usual.get(str(run.pp * vpp), ""))
        if chunks is not None and len(chunks) == run.pp * vpp and sum(chunks) == run.layers:
            assumed.note("stage_layers", usual[str(run.pp * vpp)], "of the recipe")
            return vpp, _deal(chunks, run.pp)
    first, last = said.argument("decoder-first-pipeline-num-layers"), said.argument("decoder-last-pipeline-num-layers")
    if first is not None and last is not None and run.pp > 2:
        middle = (run.layers - first - last) // (run.pp - 2)
        if first + last + middle * (run.pp - 2) == run.layers:
            return vpp, (first, *([middle] * (run.pp - 2)), last)
    stages = run.pp * vpp
    counted = said.says("embedding_is_layer") or "account_for_embedding_loss" in run.model
    if counted or (run.layers % stages and (run.layers + 2) % stages == 0):
        if not counted:
            assumed.note("stage_layers", "embedding and loss count as layers", f"{run.layers} + 2 layers divide over {stages} stages")
        return vpp, _deal(_with_ends(run.layers, stages), run.pp)
    if stages > run.layers:
        raise Unfit(f"contradiction: {run.layers} layers on {stages} pipeline stages")
    return vpp, None


def chunk_layers(text: str) -> list[int] | None:
    """Return the layers of each chunk of a Megatron pipeline layout such as `Et*3|(tt|)*6mL`; None where it cannot be read.

    E embedding, t layer, m multi-token prediction, L loss; `|` ends a chunk, `*n` repeats the letter or the bracket before it.
    """
    flat = re.sub(r"\s", "", text)
    while True:
        match = re.search(r"\(([^()]*)\)\*(\d+)", flat)
        if match is None:
            break
        if len(match.group(1)) * int(match.group(2)) > MAX_EXPANDED:
            return None
        flat = flat[: match.start()] + match.group(1) * int(match.group(2)) + flat[match.end() :]
    if any(int(n) > MAX_EXPANDED for n in re.findall(r"\*(\d{1,18})", flat)) or re.search(r"\*\d{19}", flat):
        return None
    flat = re.sub(r"([A-Za-z])\*(\d+)", lambda m: m.group(1) * int(m.group(2)), flat)
    if re.search(r"[^EtmL|]", flat) or "t" not in flat:
        return None
    return [chunk.count("t") for chunk in flat.split("|")]


def _deal(chunks: list[int], pp: int) -> tuple[int, ...]:
    """Layers of each stage: stage i holds the chunks i, i + pp, i + 2 pp, …"""
    return tuple(sum(chunks[stage::pp]) for stage in range(pp))


def _with_ends(layers: int, stages: int) -> list[int]:
    """Layers per chunk when embedding and head each count as one: the even split of layers + 2, larger chunks first."""
    each, rest = divmod(layers + 2, stages)
    sizes = [each + (1 if i < rest else 0) for i in range(stages)]
    sizes[0] -= 1
    sizes[-1] -= 1
    return sizes
