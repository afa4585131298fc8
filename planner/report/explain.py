"""The explanations as text: terms with their figures, which add up as shown, and numbered sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cost_models.result import BUCKETS
from hardware.units import GIB, MIB, significant
from planner.explain.memory import MEANINGS
from planner.report.look import WIDTH, visible
from planner.report.table import Column, table
from planner.report.words import gib, percent, plural

if TYPE_CHECKING:
    from planner.explain.figures import Numbers
    from planner.explain.memory import MemoryExplanation, MemoryTerm, PhaseMemory, SavedTensor, StageMemory
    from planner.report.look import Look

SMALL = 0.002
"""Terms below this part of the whole are shown together, where there are several."""
NAME = 20
"""Columns of a term's name."""
_SHORT = {"gradients": "grad.", "optimizer": "optim.", "activations": "activ."}
"""Heads where the width is short."""
HARD = "\xa0"
"""A blank at which no line is broken."""
_ROOM = 30
"""Columns that formulas get at least."""


@dataclass(slots=True)
class Notes:
    """Sources by number, in order of appearance."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """Return the number of a source: `[3]`."""
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self, look: Look) -> list[str]:
        """Return the list of sources."""
        lines = []
        for number, text in enumerate(self.texts, 1):
            lines += look.headed(f"[{number}]", text, column=5, dim=True)
        return lines


def apportion(values: Sequence[float], units: int, step: float) -> list[int]:
    """Return whole multiples of `step` near `values` that sum to `units`, so that a column adds up as shown."""
    exact = [value / step for value in values]
    shown = [int(np.floor(x)) for x in exact]
    left = units - sum(shown)
    for index in sorted(range(len(exact)), key=lambda i: shown[i] - exact[i])[: max(left, 0)]:
        shown[index] += 1
    return shown


def decimals(total: float) -> int:
    """Return the digits after the point of a column that sums to `total`."""
    return 2 if total >= 10.0 else 3 if total >= 1.0 else 4


def how(formula: str, numbers: Numbers | None, mark: str) -> str:
    """Return formula, numbers and source in one line; figures keep their units when it is wrapped (`under` makes plain blanks of it)."""
    parts = [formula] if formula else []
    if numbers is not None:
        signs = ("=" if formula else "", *(sign for sign, _ in numbers.rest))
        figures = (figure.show().replace(" ", HARD) for figure in numbers.figures)
        parts += [f"{sign}{HARD if sign else ''}{figure}" for sign, figure in zip(signs, figures, strict=True)]
    return f"{' '.join(parts)}{HARD}{mark}".strip(f" {HARD}")


def under(column: int, text: str, look: Look) -> list[str]:
    """Return a dim text wrapped in the columns from `column` on."""
    lines = look.wrap(text, first=column, indent=column)
    return [f"{'':{column}}{look.dim(line.strip().replace(HARD, ' '))}" for line in lines if line.strip()]


def described(head: str, name: str, text: str, look: Look, *, room: int = NAME) -> list[str]:
    """Return a row: figures, name, and the text wrapped in the columns that are left."""
    column, lead = len(head) + room, f"{head}{name}"
    if look.width - column < _ROOM:
        return [lead, *under(len(head) + 2, text, look)]
    lines = under(column, text, look)
    if len(visible(lead)) >= column or not lines:
        return [lead, *lines]
    return [lead + " " * (column - len(visible(lead))) + lines[0].lstrip(), *lines[1:]]


def memory_lines(e: MemoryExplanation, look: Look, notes: Notes, *, every: bool = False, name: str = "") -> list[str]:
    """Return the memory of the stage and phase that win term by term, then the others in short."""
    s = e.stages[e.peak]
    where = f" on stage {s.stage}" if len(e.stages) > 1 else ""
    lines = [look.bold(f"Memory{name}{where} in {s.peak.phase}, where it is highest (GiB per GPU)")]
    digits = decimals(s.device_bytes / GIB)
    step = GIB / 10.0**digits
    whole = round(s.allocated_bytes / step)
    lines += _bucket_lines(s, whole, digits, look, notes)
    lines += _outer_lines(e, s, whole, digits, look, notes)
    lines += _saved_lines(e, s, look)
    lines += ["", look.dim("Phases of a step (GiB allocated; * is highest)"), *_phase_table(s, digits, look)]
    if len(e.stages) > 1:
        lines += ["", look.dim("Stages (GiB on the device; * needs most)"), *_stage_table(e, digits, look, every=every)]
    return lines + _host_lines(e, digits, look, notes)


def _bucket_lines(s: StageMemory, whole: int, digits: int, look: Look, notes: Notes) -> list[str]:
    """Each bucket with its terms, the largest first."""
    step = GIB / 10.0**digits
    buckets = sorted((item for item in s.peak.bucket_bytes().items() if item[1]), key=lambda item: -item[1])
    lines: list[str] = []
    for (bucket, size), units in zip(buckets, apportion([size for _, size in buckets], whole, step), strict=True):
        terms = sorted((t for t in s.peak.terms if t.bucket == bucket and t.bytes), key=lambda t: -t.bytes)
        lines.append(f"{units / 10**digits:7.{digits}f}  {look.bold(bucket.replace('_', ' '))}")
        if not size:
            continue
        large = [t for t in terms if abs(t.bytes) >= SMALL * s.device_bytes]
        small = [t for t in terms if t not in large]
        if len(small) == 1 or not large:
            large, small = terms, []
        values = [t.bytes for t in large] + ([sum(t.bytes for t in small)] if small else [])
        shown = apportion(values, units, step)
        for term, own in zip(large, shown, strict=False):
            lines += _term_line(term, own / 10**digits, digits, look, notes)
        if small:
            text = ", ".join(t.rest for t in small)
            lines += described(f"{'':7}  {shown[-1] / 10**digits:7.{digits}f}  ", plural(len(small), "smaller term"), text, look)
    return lines


def _term_line(term: MemoryTerm, own: float, digits: int, look: Look, notes: Notes) -> list[str]:
    text = how(term.formula, term.numbers, notes.mark(term.source))
    return described(f"{'':7}  {own:7.{digits}f}  ", term.rest, text, look)


def _outer_lines(e: MemoryExplanation, s: StageMemory, whole: int, digits: int, look: Look, notes: Notes) -> list[str]:
    """Allocated, reserved, device: what each prediction means and what leads from one to the next."""
    step, scale = GIB / 10.0**digits, 10**digits
    lines = ["  " + "─" * 5]
    before = whole
    for word, total, terms in (
        ("allocated", s.allocated_bytes, ()),
        ("reserved", s.reserved_bytes, s.reserved),
        ("device", s.device_bytes, s.device),
    ):
        after = round(total / step)
        kept = [t for t in terms if t.bytes]
        for term, own in zip(kept, apportion([t.bytes for t in kept], after - before, step), strict=True):
            text = how(term.formula, term.numbers, notes.mark(term.source))
            lines += described(f"{'':7}  {own / scale:7.{digits}f}  ", f"+ {term.rest.partition('.')[2]}", text, look)
        before = after
        lines += described(f"{after / scale:7.{digits}f}  ", look.bold(word), MEANINGS[word], look, room=NAME + 9)
    free = e.capacity_bytes - e.margin_bytes - s.device_bytes
    left = f"{gib(free)} GiB are left" if free >= 0 else f"{gib(-free)} GiB too many"
    text = f"of {gib(e.capacity_bytes)} GiB on the card, {gib(e.margin_bytes)} kept free as margin: {left}"
    return [*lines, *(f"{'':9}{line.strip()}" for line in look.wrap(text, first=9))]


def _saved_lines(e: MemoryExplanation, s: StageMemory, look: Look) -> list[str]:
    """What one layer of each kind keeps for backward."""
    lines: list[str] = []
    if not any(t.bucket == "activations" and t.bytes >= SMALL * s.device_bytes for t in s.peak.terms):
        return lines
    for kind in dict.fromkeys(t.layer for t in e.saved):
        tensors = [t for t in e.saved if t.layer == kind]
        for kept, head in ((True, "saved for backward"), (False, "recomputed instead")):
            found = [t for t in tensors if t.kept == kept and t.bytes]
            if found:
                total = sum(t.bytes for t in found)
                lines += ["", f"One {kind} layer and micro-batch, {head} ({significant(total / MIB)} MiB)"]
                lines += look.items("  ", _tensors(found, total), separator=" + ")
    return lines


def _tensors(found: Sequence[SavedTensor], total: float) -> list[str]:
    """The tensors by op, the largest first, small ones together."""
    largest = sorted(found, key=lambda t: -t.bytes)
    shown = [t for t in largest if t.bytes >= 0.01 * total]
    rest = total - sum(t.bytes for t in shown)
    items = [f"{t.op} {t.name} {significant(t.bytes / MIB)}" for t in shown]
    return [*items, f"others {significant(rest / MIB)}"] if rest > 1e-9 * total else items


def _cell(size: float, digits: int) -> str:
    return f"{size / GIB:.{digits}f}" if size else "0"


def _heads(phases: Iterable[PhaseMemory]) -> list[str]:
    """Buckets that hold something, in their usual order."""
    found = {bucket for p in phases for bucket, size in p.bucket_bytes().items() if size}
    return [b for b in BUCKETS if b in found] + sorted(found - set(BUCKETS))


def _head(bucket: str, look: Look) -> str:
    return (_SHORT.get(bucket, bucket) if look.width < WIDTH else bucket).replace("_", " ")


def _phase_table(s: StageMemory, digits: int, look: Look) -> list[str]:
    heads = _heads(s.phases)
    columns = [Column(head="phase", align="left"), *(Column(head=_head(h, look)) for h in heads), Column(head="allocated")]
    rows = []
    for index, p in enumerate(s.phases):
        mark = "*" if index == s.highest else ""
        sizes = p.bucket_bytes()
        rows.append([mark + p.phase, *(_cell(sizes.get(h, 0.0), digits) for h in heads), _cell(p.total_bytes, digits)])
    return table(columns, rows, look)


def _stage_table(e: MemoryExplanation, digits: int, look: Look, *, every: bool) -> list[str]:
    """Stages × buckets: first, second, the fullest and last, or all of them."""
    picked = sorted({0, 1, e.peak, len(e.stages) - 1})
    shown = list(e.stages) if every or len(e.stages) <= len(picked) + 1 else [e.stages[i] for i in picked]
    heads = _heads(s.peak for s in shown)
    columns = [Column(head="stage"), Column(head="layers", useful=2), Column(head="highest in", align="left", useful=1)]
    columns += [Column(head=_head(h, look)) for h in heads]
    columns += [Column(head="overhead"), Column(head="device")]
    rows = []
    for s in shown:
        sizes = s.peak.bucket_bytes()
        cells = [_cell(size, digits) for size in (*(sizes.get(h, 0.0) for h in heads), s.device_bytes - s.allocated_bytes)]
        mark = "*" if s is e.stages[e.peak] else ""
        rows.append([f"{mark}{s.stage}", f"{s.layers}", s.peak.phase, *cells, _cell(s.device_bytes, digits)])
    lines = table(columns, rows, look)
    if len(shown) < len(e.stages):
        lines.append(look.dim(f"{len(e.stages)} stages; --explain-stages all shows every one"))
    return lines


def _host_lines(e: MemoryExplanation, digits: int, look: Look, notes: Notes) -> list[str]:
    if not e.host:
        return []
    lines = ["", look.bold("Host memory of a server (GiB)")]
    for term in e.host:
        text = how(term.formula, term.numbers, notes.mark(term.source))
        lines += described(f"{term.bytes / GIB:7.{digits}f}  ", term.rest, text, look)
    return [*lines, f"{sum(t.bytes for t in e.host) / GIB:7.{digits}f}  together"]


def share(part: float, whole: float) -> str:
    """Return a share of the step."""
    return percent(part / whole) if whole else "0 %"
