"""The sources of a plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.explain.sources import KINDS

if TYPE_CHECKING:
    from planner.explain.sources import Source
    from planner.report.look import Look


def source_lines(found: Sequence[Source], look: Look, name: str = "") -> list[str]:
    """Return the sources by kind, each once, with what rests on it."""
    lines = [look.bold(f"Sources{name}")]
    for kind, heading in KINDS.items():
        of_kind = [s for s in found if s.kind == kind]
        if of_kind:
            lines.append(heading)
        for source in of_kind:
            users = ", ".join(source.used_by[:3]) + (f" and {len(source.used_by) - 3} more" if len(source.used_by) > 3 else "")
            wrapped = look.wrap(f"{source.text}", indent=4, first=2)
            lines += [f"  {wrapped[0].strip()}", *wrapped[1:]]
            lines += [look.dim(line) for line in look.wrap(f"    for {users}", indent=6)]
    return lines
