"""What a search says about its answer: the proof in words, and why the stages of the best plan hold what they hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from cost_models.numeric import num
from cost_models.stages import layer_kinds
from planner.evaluate import evaluate, stage_table
from planner.stage_problem import even_layers

if TYPE_CHECKING:
    from planner.board import Board, Entry
    from planner.plan import Certificate
    from planner.scan import Scan

GIB = 2.0**30


def proof(scan: Scan, certificate: Certificate | None, *, interrupted: bool) -> str:
    """Return what the search proves, in words."""
    c = certificate
    if interrupted:
        said = f"interrupted after {scan.evaluated:,} evaluations: better plans may exist"
        return said if c is None else f"{said}; {_gap(c)}"
    said = f"exhaustive over the grid ({scan.evaluated:,} evaluated; the others cannot fit or be faster)"
    if c is None or not c.families:
        return said
    split = f"{c.families:,} pipelines with open stages: {c.discarded:,} ruled out by bound, {c.solved:,} solved"
    if c.proved:
        quantum = f" within {c.quantum_seconds * 1e6:g} µs a stage time" if c.quantum_seconds else ""
        return f"{said}; {split}; plan 1 is proved optimal{quantum}"
    return f"{said}; {split}, {c.unsolved:,} could still win; {_gap(c)}"


def _gap(c: Certificate) -> str:
    if c.bound_seconds <= 0.0:
        return "no bound yet"
    return f"no plan takes less than {c.bound_seconds:.4g} s (gap {100.0 * c.gap:.2g} %)"


def split_notes(board: Board) -> tuple[str, ...]:
    """Return why the stages of the best plan hold unequal numbers of layers; nothing where they do not."""
    entry = board.best()[0]
    layout, case = entry.layout, entry.case
    pp, vpp = float(num(layout.degrees.pp)), float(num(layout.degrees.vpp))
    even = even_layers(case.architecture.layers, pp, vpp)
    held = layout.stage_layers or even
    if len(set(held)) == 1 and layout.stage_recompute is None:
        return ()
    said = f"stages of plan 1 hold {_runs(held)} layers: {_ends(entry)}"
    if layout.stage_layers is None and layout.stage_recompute is None:
        return (said,)
    plain = replace(layout, stage_layers=None, stage_recompute=None)
    result = evaluate(case, plain)
    seconds, over = float(num(result.time.step_seconds)), float(num(result.memory.peak_device_bytes)) - case.limit_bytes
    if over > 0.0:
        return (f"{said}; {_runs(even)} layers would be {over / GIB:.2f} GiB too large for a stage",)
    return (f"{said}; with {_runs(even)} layers a step takes {seconds:.4g} s instead of {entry.step_seconds:.4g} s",)


def _runs(held: tuple[int, ...]) -> str:
    """Return `7, 14 × 8, 7`."""
    parts = [(n, len(list(same))) for n, same in groupby(held)]
    return ", ".join(f"{n}" if times == 1 else f"{times} × {n}" for n, times in parts)


def _ends(entry: Entry) -> str:
    """Return what embedding and head weigh against a layer, from the times of the stages."""
    case, layout = entry.case, replace(entry.layout, stage_layers=None, stage_recompute=None)
    pp = float(num(layout.degrees.pp))
    kinds = len(layer_kinds(case.architecture)[0])
    one = np.array([1.0, 1.0, 1.0, 0.0])
    of_kind = tuple(one if k == kinds - 1 else 0.0 * one for k in range(kinds))
    # first and last stage with one layer, an inner stage with one layer and with none
    table = stage_table(
        case, layout, position=np.array([0.0, pp - 1.0, 0.5, 0.5]), layers=one, kind_layers=of_kind, recomputed=0.0 * one
    )
    time = table.forward_seconds + table.backward_seconds
    layer = float(time[2] - time[3])
    if layer <= 0.0:
        return "the best balance of time and memory"
    first, last = (float(time[i] - time[2]) / layer for i in (0, 1))
    return f"the embedding takes as long as {first:.2g} layers and the head with the loss as long as {last:.2g}"
