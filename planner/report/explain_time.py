"""The step as text: every term busy and exposed, what bounds it, the stages, and what MFU is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardware.units import significant
from planner.explain.figures import seconds as duration
from planner.report.documents import MFU
from planner.report.explain import HARD, SMALL, Notes, apportion, decimals, how, share, under
from planner.report.table import Column, table
from planner.report.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.explain.step import StageTime, TimeExplanation, TimeTerm
    from planner.report.look import Look


def time_lines(e: TimeExplanation, look: Look, notes: Notes, *, every: bool = False, name: str = "") -> list[str]:
    """Return the terms of the step, the largest first, then stages and utilisation; a plan with a `name` has MFU defined above."""
    scale, unit = (1.0, "s") if e.step_seconds >= 1.0 else (1e3, "ms")
    lines = [look.bold(f"Time of a step{name} ({unit}): busy, and exposed, which is what lengthens the step")]
    lines += _term_lines(e, scale, look, notes)
    lines += _per_token(e, scale, unit, look, notes)
    lines += ["", *_stage_table(e, look, every=every)]
    for word, numbers in (("MFU", e.mfu), ("HFU", e.hfu)):
        lines += look.wrap(f"{word} {numbers.result():.3f} = {numbers.show()}", indent=4)
    return lines + ([] if name else [look.dim(line) for line in look.wrap(f"MFU: {MFU}.", indent=5)])


def _term_lines(e: TimeExplanation, scale: float, look: Look, notes: Notes) -> list[str]:
    digits = decimals(e.step_seconds * scale)
    step = 10.0**-digits
    terms = sorted((t for t in e.terms if t.seconds and not _beside(t)), key=lambda t: (-t.exposed_seconds, t.name))
    large = [t for t in terms if max(t.exposed_seconds, t.seconds) >= SMALL * e.step_seconds]
    small = [t for t in terms if t not in large]
    if len(small) == 1:
        large, small = terms, []
    values = [t.exposed_seconds * scale for t in large] + ([sum(t.exposed_seconds for t in small) * scale] if small else [])
    whole = round(e.step_seconds * scale / step)
    shown = [units * step for units in apportion(values, whole, step)]
    lines = [look.dim(f"{'busy':>8} {'exposed':>8} {'share':>7}  term, and what bounds it")]
    for term, exposed in zip(large, shown, strict=False):
        busy = term.seconds * scale if term.hidden else exposed
        head = f"{busy:8.{digits}f} {exposed:8.{digits}f} {share(term.exposed_seconds, e.step_seconds):>7}  "
        lines += _row(head, term, look, notes)
    if small:
        busy, rest = sum(t.seconds for t in small) * scale, shown[-1]
        head = f"{busy:8.{digits}f} {rest:8.{digits}f} {share(values[-1] / scale, e.step_seconds):>7}  "
        lines += [head + plural(len(small), "smaller term")]
        lines += under(29, ", ".join(t.name for t in small), look)
    return [*lines, f"{'':8} {whole * step:8.{digits}f} {'100 %':>7}  {look.bold('step')}"]


def _row(head: str, term: TimeTerm, look: Look, notes: Notes) -> list[str]:
    """The term with what bounds it, and its formula below."""
    bound = "" if term.bound is None else term.bound.words
    first = f"{head}{term.name:<30}{bound}".rstrip()
    lines = [first]
    if len(first) > look.width:
        lines = [f"{head}{term.name}  {bound}"]
    if len(lines[0]) > look.width:
        lines = [head + term.name, *(f"{'':29}{line.strip()}" for line in look.wrap(bound, first=29, indent=29))]
    text = how(term.formula, term.numbers, notes.mark(term.source))
    if term.hidden:
        text += f"; {duration(term.seconds - term.exposed_seconds).replace(' ', HARD)} hidden behind {term.hidden}"
    return [*lines, *under(29, text, look)]


def _beside(term: TimeTerm) -> bool:
    return term.name == "decode.step"


def _per_token(e: TimeExplanation, scale: float, unit: str, look: Look, notes: Notes) -> list[str]:
    """One further token, which stands beside the sum (inference)."""
    lines: list[str] = []
    for term in e.terms:
        if _beside(term):
            bound = "" if term.bound is None else f"; bound by {term.bound.words}"
            formula = how(term.formula, None, notes.mark(term.source)).replace(HARD, " ")
            text = f"one further token: {significant(term.seconds * scale)} {unit}{bound}. {formula}"
            lines += look.wrap(text, indent=2)
    return lines


def _stage_table(e: TimeExplanation, look: Look, *, every: bool) -> list[str]:
    """Forward and backward of the stages, beside the slowest."""
    slowest = e.slowest
    one = slowest.forward_seconds + slowest.backward_seconds
    shown: Sequence[StageTime] = e.stages
    if not every and len(e.stages) > 4:
        shown = sorted({e.stages[0], e.stages[1], slowest, e.stages[-1]}, key=lambda s: s.stage)
    columns = [Column(head=head) for head in ("stage", "forward ms", "backward ms", "both ms", "of the slowest")]
    rows = []
    for s in shown:
        both = s.forward_seconds + s.backward_seconds
        cells = [significant(x * 1e3, 4) for x in (s.forward_seconds, s.backward_seconds, both)]
        rows.append([f"{s.stage}", *cells, share(both, one)])
    head = look.dim(f"One micro-batch of {e.micro_batches:,} through a stage, exposed traffic and recompute included")
    lines = [head, *table(columns, rows, look)]
    if len(shown) < len(e.stages):
        lines.append(look.dim(f"{len(e.stages)} stages; --explain-stages all shows every one"))
    return lines
