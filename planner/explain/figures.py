"""The numbers behind a term: figures with a name and a unit, joined by × and /, so that they can be shown and be checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hardware.units import GIGA, KILO, MEGA, MIB, PETA, TERA, in_gib, show_gb_per_second, show_tflop_per_second, significant

EXACT = 1e-9
"""Relative distance up to which figures give a term's value."""
UNCOUNTED = ("in flight", "parameters/s")
"""Units that have no plural."""
Sign = Literal["×", "/", "+", "−"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its name and unit (`bytes`, `seconds`, a noun in the singular, `in flight`, or empty for a ratio)."""

    name: str
    value: float
    unit: str = ""

    def show(self) -> str:
        """Return the number with its unit: `3.80 B parameters`, `95.3 MiB`, `4 bytes`."""
        if self.unit == "bytes":
            return size(self.value)
        if self.unit == "seconds":
            return seconds(self.value)
        if self.unit == "FLOP":
            return f"{significant(self.value / PETA)} PFLOP"
        if self.unit == "FLOP/s":
            return show_tflop_per_second(self.value)
        if self.unit == "bytes/s":
            return show_gb_per_second(self.value)
        noun = self.unit and self.unit not in UNCOUNTED and self.value != 1.0
        plural = ("es" if self.unit.endswith("ch") else "s") if noun else ""
        return f"{count(self.value)} {self.unit}{plural}".rstrip()


@dataclass(frozen=True, slots=True)
class Numbers:
    """Figures joined from left to right (no precedence: `a + b × c` is (a + b) × c)."""

    first: Figure
    rest: tuple[tuple[Sign, Figure], ...] = ()

    def times(self, name: str, value: float, unit: str = "") -> Numbers:
        """Return the numbers multiplied."""
        return Numbers(self.first, (*self.rest, ("×", Figure(name, value, unit))))

    def over(self, name: str, value: float, unit: str = "") -> Numbers:
        """Return the numbers divided."""
        return Numbers(self.first, (*self.rest, ("/", Figure(name, value, unit))))

    def plus(self, name: str, value: float, unit: str = "") -> Numbers:
        """Return the numbers with one added."""
        return Numbers(self.first, (*self.rest, ("+", Figure(name, value, unit))))

    def less(self, name: str, value: float, unit: str = "") -> Numbers:
        """Return the numbers with one taken off."""
        return Numbers(self.first, (*self.rest, ("−", Figure(name, value, unit))))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All of them, in order."""
        return (self.first, *(figure for _, figure in self.rest))

    def result(self) -> float:
        """Return what they come to."""
        value = self.first.value
        act: dict[Sign, Callable[[float, float], float]] = {
            "×": lambda a, b: a * b,
            "/": lambda a, b: a / b,
            "+": lambda a, b: a + b,
            "−": lambda a, b: a - b,
        }
        for sign, figure in self.rest:
            value = act[sign](value, figure.value)
        return value

    def gives(self, value: float) -> bool:
        """Tell whether they come to `value`."""
        return abs(self.result() - value) <= EXACT * max(abs(value), 1e-12)

    def show(self) -> str:
        """Return them as text: `3.80 B parameters × 4 bytes / 8 ranks`."""
        return " ".join([self.first.show(), *(f"{sign} {figure.show()}" for sign, figure in self.rest)])


def numbers(name: str, value: float, unit: str = "") -> Numbers:
    """Return the beginning of a chain of figures."""
    return Numbers(Figure(name, value, unit))


def count(value: float) -> str:
    """Return a count: whole numbers as they are up to a million, else three digits with k, M, B, T."""
    if value == int(value) and abs(value) < MEGA:
        return f"{int(value):,}"
    for scale, letter in ((TERA, " T"), (GIGA, " B"), (MEGA, " M"), (KILO, " k")):
        if abs(value) >= scale:
            return f"{significant(value / scale)}{letter}"
    return significant(value)


def size(value: float) -> str:
    """Return bytes: GiB, MiB, or plain bytes for widths."""
    if abs(value) >= MIB * KILO:
        return f"{significant(in_gib(value))} GiB"
    if abs(value) >= MIB / KILO:
        return f"{significant(value / MIB)} MiB"
    return f"{value:.4g} byte" + ("" if value == 1.0 else "s")


def seconds(value: float) -> str:
    """Return a time: s, ms or µs."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value * MEGA)} µs" if value else "0 s"
