"""What a search says about its answer: the proof in words, and why the stages of the best plan hold what they hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from cost_models.numeric import num
from hardware.units import in_gib, significant
from planner.evaluate import as_batch, ends_and_layers, evaluate
from planner.stage_problem import even_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.board import Board, Entry
    from planner.plan import Certificate
    from planner.scan import Scan


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
    """Return why the stages of the best plan are unequal and what that asks for; nothing where they are alike."""
    entries = board.best()
    return (*_held(entries[0]), *_unequal_recompute(entries))


def _unequal_recompute(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Say what running the best plan takes where its stages recompute different numbers of layers, and which plan is free of that."""
    entry, counts = entries[0], entries[0].layout.stage_recompute
    if counts is None or len(set(counts)) == 1:
        return ()
    free = next(((rank, e) for rank, e in enumerate(entries, 1) if len(set(e.layout.stage_recompute or ())) < 2), None)
    other = "no plan shown does without" if free is None else f"plan {free[0]} does without, {significant(free[1].step_seconds)} s a step"
    return (
        f"stages of plan 1 recompute {_runs(counts)} layers: no flag of {entry.case.framework} gives each stage its own number, so it"
        f" takes a change of the training code ({other}); --export writes the best plan that flags can state",
    )


def _held(entry: Entry) -> tuple[str, ...]:
    """Return why the stages hold unequal numbers of layers."""
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
        return (f"{said}; {_runs(even)} layers would be {in_gib(over):.2f} GiB too large for a stage",)
    depth = int(num(layout.degrees.recompute_layers))
    again = "" if layout.stage_recompute is None else " and full recompute" if depth < 0 else f", {depth} of each stage recomputed,"
    now = significant(entry.step_seconds, 4)
    return (f"{said}; with {_runs(even)} layers{again} a step takes {significant(seconds, 4)} s instead of {now} s",)


def _runs(held: tuple[int, ...]) -> str:
    """Return `7, 14 × 8, 7`."""
    parts = [(n, len(list(same))) for n, same in groupby(held)]
    return ", ".join(f"{n}" if times == 1 else f"{times} × {n}" for n, times in parts)


def _ends(entry: Entry) -> str:
    """Return what embedding and head weigh against a layer, from the times of the stages."""
    case = entry.case
    layout = replace(entry.layout, stage_layers=None, stage_recompute=None)
    _, first, last, *layers = ends_and_layers(case, as_batch(layout))
    forward, backward = layers[-1]
    layer = float(forward[0] + backward[0])
    if layer <= 0.0:
        return "the best balance of time and memory"
    ends = [float(end[0][0] + end[1][0]) / layer for end in (first, last)]
    return f"the embedding takes as long as {ends[0]:.2g} layers and the head with the loss as long as {ends[1]:.2g}"
