"""Quantities: exact values, refusals, and round trips."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware import units

EXACT = [
    ("3.35 TB/s", units.BYTES_PER_SECOND, 3.35e12),
    ("200 Gb/s", units.BYTES_PER_SECOND, 25e9),
    ("200Gbps", units.BYTES_PER_SECOND, 25e9),
    ("200 Gbit/s", units.BYTES_PER_SECOND, 25e9),
    ("25 GB/s", units.BYTES_PER_SECOND, 25e9),
    ("60GiB", units.BYTES, 60 * 2.0**30),
    ("60 gib", units.BYTES, 60 * 2.0**30),
    ("80GB", units.BYTES, 80e9),
    ("1.5TB", units.BYTES, 1.5e12),
    ("81920 MiB", units.BYTES, 80 * 2.0**30),
    ("1e3 kB", units.BYTES, 1e6),
    (".5 GiB", units.BYTES, 2.0**29),
    ("64", units.BYTES, 64.0),
    (64, units.BYTES, 64.0),
    (64.5, units.BYTES, 64.5),
    ("0 TB", units.BYTES, 0.0),
    ("312 TFLOP/s", units.FLOP_PER_SECOND, 312e12),
    ("1.2 PFLOPS", units.FLOP_PER_SECOND, 1.2e15),
    ("25 us", units.SECONDS, 25 * 1e-6),
    ("2 h", units.SECONDS, 7200.0),
    ("10.2 kW", units.WATTS, 10200.0),
    ("55.04 USD/h", units.USD_PER_HOUR, 55.04),
    ("15000 usd", units.USD, 15000.0),
]

BAD: list[tuple[Any, units.Quantity, str]] = [
    ("", units.BYTES, "is not a size"),
    ("GiB", units.BYTES, "is not a size"),
    ("80 XB", units.BYTES, "no unit of size"),
    ("60 G", units.BYTES, "no unit of size"),
    ("1,000 GB", units.BYTES, "no unit of size"),
    ("80 GB GB", units.BYTES, "no unit of size"),
    ("-5 GB", units.BYTES, "negative"),
    (-5, units.BYTES, "negative"),
    ("nan GB", units.BYTES, "not a finite"),
    ("inf", units.BYTES, "not a finite"),
    ("-Infinity GB", units.BYTES, "not a finite"),
    ("1e999 GB", units.BYTES, "not a finite"),
    (math.nan, units.BYTES, "not a finite"),
    (math.inf, units.BYTES, "not a finite"),
    ("1e30 GB", units.BYTES, "no sensible size"),
    (10**30, units.BYTES, "no sensible size"),
    (10**5000, units.BYTES, "must not exceed"),
    ("0.01 B", units.BYTES, "no sensible size"),
    (True, units.BYTES, "is not a size"),
    (None, units.BYTES, "is not a size"),
    ([1], units.BYTES, "is not a size"),
    ("200 gb/s", units.BYTES_PER_SECOND, "no unit of bandwidth"),
    ("200 GB", units.BYTES_PER_SECOND, "no unit of bandwidth"),
    ("200 Gb", units.BYTES_PER_SECOND, "no unit of bandwidth"),
    ("300 TFLOP", units.FLOP_PER_SECOND, "no unit of compute rate"),
    ("１２ GB", units.BYTES, "is not a size"),
    ("5 GB\n6 GB", units.BYTES, "no unit of size"),
]


@pytest.mark.parametrize(("text", "quantity", "expected"), EXACT)
def test_parse_is_exact(text: str | float, quantity: units.Quantity, expected: float) -> None:
    assert units.parse(text, quantity) == expected


@pytest.mark.parametrize(("given_", "quantity", "law"), BAD, ids=range(len(BAD)))
def test_nonsense_is_refused_in_one_line(given_: Any, quantity: units.Quantity, law: str) -> None:
    with pytest.raises(units.UnitError, match=re.escape(law)) as caught:
        units.parse(given_, quantity)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_wrong_unit_names_the_text_and_all_units() -> None:
    with pytest.raises(units.UnitError) as caught:
        units.parse_bytes("80 XB")
    message = str(caught.value)
    assert "'80 XB'" in message
    assert all(unit in message for unit in ("kB", "GB", "TB", "MiB", "GiB", "TiB"))


def test_parts_are_added() -> None:
    assert units.parse_sum("8x 3.84 TB", units.BYTES) == 8 * 3.84e12
    assert units.parse_sum("30 TB", units.BYTES) == 30e12
    with pytest.raises(units.UnitError):
        units.parse_sum("0x 3.84 TB", units.BYTES)
    with pytest.raises(units.UnitError):
        units.parse_sum("2x 3x 4 TB", units.BYTES)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (79.15, "79.2"),
        (1052.0, "1,052"),
        (31.449, "31.4"),
        (9.999, "10.0"),
        (1.2345e-4, "0.000123"),
        (0, "0"),
        (100.0, "100"),
        (-2.5, "-2.50"),
    ],
)
def test_three_significant_digits(value: float, shown: str) -> None:
    assert units.significant(value) == shown


def test_shown_with_units() -> None:
    assert units.show_gib(79.15 * units.GIB) == "79.2 GiB"
    assert units.show_gb_per_second(300e9) == "300 GB/s"
    assert units.show_gbit_per_second(25e9) == "200 Gb/s"
    assert units.show_tflop_per_second(312e12) == "312 TFLOP/s"
    assert units.show_tb(8 * 3.84e12) == "30.7 TB"


@given(st.floats(min_value=1.1, max_value=9.9e17))
def test_shown_size_reads_back_within_half_a_percent(size_bytes: float) -> None:
    shown = units.show_gib(size_bytes).replace(",", "")
    assert units.in_gib(units.parse_bytes(shown)) == pytest.approx(units.in_gib(size_bytes), rel=5.1e-3)


@given(st.integers(min_value=1, max_value=10**9), st.sampled_from(sorted(units.BYTES.scales)))
def test_every_size_unit_scales(count: int, unit: str) -> None:
    if count * units.BYTES.scales[unit] <= units.BYTES.maximum:
        assert units.parse_bytes(f"{count}{unit}") == units.parse_bytes(f" {count} {unit} ") == count * units.BYTES.scales[unit]


@given(st.one_of(st.text(max_size=200), st.integers(), st.floats()))
def test_any_input_is_a_quantity_or_one_line(anything: Any) -> None:
    for quantity in (units.BYTES, units.BYTES_PER_SECOND, units.SECONDS):
        try:
            value = units.parse(anything, quantity)
        except units.UnitError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 500
        else:
            assert value == 0 or quantity.minimum <= value <= quantity.maximum
