"""JSON of the band over unknown software."""

from __future__ import annotations

from planner.record import Record


class SoftwareBandRecord(Record):
    """Step time of one layout where the software is unknown."""

    interval_80_seconds: tuple[float, float]
    """From the lowest to the highest end of the frameworks' 80 % intervals."""
    step_seconds: dict[str, float]
    """Framework that can run the layout -> predicted step, fastest first."""
