"""Quantities as people write them ("3.35 TB/s", "60 GiB", "200 Gb/s") to base units and back.

Base units are bytes, seconds, FLOP, bytes/s, FLOP/s, watts and USD. GB is 10^9 bytes and GiB is 2^30 bytes; `b` is a bit and `B` a byte.
No other file holds a power of ten or of two that stands for a unit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

KB, MB, GB, TB, PB = 1e3, 1e6, 1e9, 1e12, 1e15
KIB, MIB, GIB, TIB, PIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40, 2.0**50
BITS_PER_BYTE = 8.0
KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15

SHOWN_CHARACTERS = 60
"""How much of a bad text an error message repeats."""


class UnitError(ValueError):
    """A text or number that is not a sensible quantity; the message is one line and names what was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A kind of quantity: what it is called, its units, and the bounds outside which a figure is a slip."""

    name: str
    base: str
    scales: dict[str, float]
    """Unit as people spell it -> base units."""
    example: str
    minimum: float
    """Smallest figure other than zero, in base units."""
    maximum: float
    any_case: bool = False
    """True where upper and lower case mean the same (never where b is a bit and B a byte)."""


_SIZES = {
    "B": 1.0, "kB": KB, "MB": MB, "GB": GB, "TB": TB, "PB": PB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "PiB": PIB,
}  # fmt: skip
_BITS = {"kb/s": KILO, "Mb/s": MEGA, "Gb/s": GIGA, "Tb/s": TERA}

BYTES = Quantity(
    name="size", base="bytes", example="80 GiB", minimum=1.0, maximum=1e18, any_case=True, scales={**_SIZES, "bytes": 1.0, "byte": 1.0}
)
BYTES_PER_SECOND = Quantity(
    name="bandwidth",
    base="bytes/s",
    example="300 GB/s or 200 Gb/s",
    minimum=1.0,
    maximum=1e18,
    scales={
        **{f"{unit}/s": scale for unit, scale in _SIZES.items()},
        **{unit: scale / BITS_PER_BYTE for unit, scale in _BITS.items()},
        **{unit.replace("b/s", suffix): scale / BITS_PER_BYTE for unit, scale in _BITS.items() for suffix in ("bit/s", "bps")},
    },
)
FLOP_PER_SECOND = Quantity(
    name="compute rate",
    base="FLOP/s",
    example="312 TFLOP/s",
    minimum=1.0,
    maximum=1e21,
    any_case=True,
    scales={
        prefix + word: scale
        for word in ("FLOP/s", "FLOPS")
        for prefix, scale in (("", 1.0), ("M", MEGA), ("G", GIGA), ("T", TERA), ("P", PETA))
    },
)
SECONDS = Quantity(
    name="time",
    base="seconds",
    example="2.5 ms",
    minimum=1e-12,
    maximum=1e12,
    scales={"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0},
)
WATTS = Quantity(name="power", base="watts", example="700 W", minimum=1e-3, maximum=1e9, scales={"W": 1.0, "kW": KILO, "MW": MEGA})
USD = Quantity(name="price", base="USD", example="15000 USD", minimum=1e-4, maximum=1e12, any_case=True, scales={"USD": 1.0, "$": 1.0})
USD_PER_HOUR = Quantity(
    name="hourly price", base="USD/h", example="55.04 USD/h", minimum=1e-4, maximum=1e9, any_case=True, scales={"USD/h": 1.0, "$/h": 1.0}
)

_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_NOT_A_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)(?![a-z])", re.IGNORECASE)
_TIMES = re.compile(r"([1-9][0-9]{0,5})\s*[x×]\s*(.+)", re.DOTALL)


def quote(given: object) -> str:
    """What the user gave, on one line, in quotes, cut to a readable length."""
    try:
        text = given if isinstance(given, str) else f"{given}"
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    shown = "".join(c if c.isprintable() else "?" for c in text[: SHOWN_CHARACTERS + 1])
    return f"'{shown}'" if len(shown) <= SHOWN_CHARACTERS else f"'{shown[:SHOWN_CHARACTERS]}…'"


def _units(quantity: Quantity) -> str:
    return ", ".join(quantity.scales)


def _bounded(value: float, given: object, quantity: Quantity) -> float:
    """`value` if it is a sensible amount of `quantity`, else an error that gives the bounds."""
    if not math.isfinite(value):
        raise UnitError(f"{quote(given)} is not a finite {quantity.name}; give one such as {quantity.example}")
    if value < 0:
        raise UnitError(f"{quote(given)} is negative; a {quantity.name} is zero or more, such as {quantity.example}")
    if value != 0 and not quantity.minimum <= value <= quantity.maximum:
        raise UnitError(
            f"{quote(given)} is no sensible {quantity.name}: "
            f"it must lie between {quantity.minimum:g} and {quantity.maximum:g} {quantity.base}"
        )
    return value


def _scale(unit: str, given: str, quantity: Quantity) -> float:
    """Base units in one `unit`."""
    if unit in quantity.scales:
        return quantity.scales[unit]
    if quantity.any_case:
        for known, scale in quantity.scales.items():
            if known.lower() == unit.lower():
                return scale
    raise UnitError(f"{quote(given)}: {quote(unit)} is no unit of {quantity.name}; use {_units(quantity)} (as in {quantity.example})")


def parse(given: str | float, quantity: Quantity) -> float:
    """Base units of a text with a unit, or of a plain number, which counts base units already.

    Raises UnitError (one line: what was given, the accepted units or bounds) for anything else, NaN, infinities,
    negative figures and figures outside the quantity's bounds. Zero is accepted: whoever needs more says so.
    """
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise UnitError(f"{quote(given)} is not a {quantity.name}; give one such as {quantity.example}")
    if not isinstance(given, str):
        try:
            return _bounded(float(given), given if abs(given) < quantity.maximum else f"{float(given):g}", quantity)
        except OverflowError:
            raise UnitError(f"a {quantity.name} must not exceed {quantity.maximum:g} {quantity.base}") from None
    text = given.strip()
    number = _NUMBER.match(text)
    if number is None:
        if _NOT_A_NUMBER.match(text):
            raise UnitError(f"{quote(given)} is not a finite {quantity.name}; give one such as {quantity.example}")
        raise UnitError(f"{quote(given)} is not a {quantity.name}: give a number and one of {_units(quantity)} (as in {quantity.example})")
    unit = text[number.end() :].strip()
    scale = _scale(unit, given, quantity) if unit else 1.0
    return _bounded(float(number[1]) * scale, given, quantity)


def parse_sum(given: str | float, quantity: Quantity) -> float:
    """Like `parse`, and also accepts several equal parts: "8x 3.84 TB" is 30.72e12 bytes."""
    times = _TIMES.fullmatch(given.strip()) if isinstance(given, str) else None
    if times is None:
        return parse(given, quantity)
    return _bounded(int(times[1]) * parse(times[2], quantity), given, quantity)


def parse_bytes(given: str | float) -> float:
    """Bytes of a size such as "60GiB", "80 GB" or a plain number of bytes."""
    return parse(given, BYTES)


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in powers of ten; whole digits are all kept and grouped (1,052)."""
    if not math.isfinite(value):
        return f"{value}"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    if rounded and decimals and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1
    return f"{value:,.{decimals}f}"


def in_gib(size_bytes: float) -> float:
    """Size in GiB, for table columns whose head holds the unit."""
    return size_bytes / GIB


def in_gb_per_second(rate_bytes_per_second: float) -> float:
    """Bandwidth in GB/s (10^9 bytes)."""
    return rate_bytes_per_second / GB


def in_tflop_per_second(rate_flop_per_second: float) -> float:
    """Compute rate in TFLOP/s."""
    return rate_flop_per_second / TERA


def show_gib(size_bytes: float) -> str:
    """Memory, three significant digits: "31.4 GiB"."""
    return f"{significant(in_gib(size_bytes))} GiB"


def show_tb(size_bytes: float) -> str:
    """Storage in TB (10^12 bytes): "30.7 TB"."""
    return f"{significant(size_bytes / TB)} TB"


def show_gb_per_second(rate_bytes_per_second: float) -> str:
    """Bandwidth: "25.0 GB/s"."""
    return f"{significant(in_gb_per_second(rate_bytes_per_second))} GB/s"


def show_gbit_per_second(rate_bytes_per_second: float) -> str:
    """Network rate in bits: "200 Gb/s"."""
    return f"{significant(rate_bytes_per_second * BITS_PER_BYTE / GIGA)} Gb/s"


def show_tflop_per_second(rate_flop_per_second: float) -> str:
    """Compute rate: "312 TFLOP/s"."""
    return f"{significant(in_tflop_per_second(rate_flop_per_second))} TFLOP/s"


def show_usd(usd: float) -> str:
    """Price: "55.0 USD"."""
    return f"{significant(usd)} USD"
