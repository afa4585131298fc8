"""Constants that are changed in a context: seen inside, gone outside, and only where they exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from hardware.calibration import calibration, changed, generation, value
from hardware.catalog import load_gpu


def test_a_changed_constant_is_read_inside_and_forgotten_outside() -> None:
    before = calibration("software").value("ring_passes")
    with changed({("software", "ring_passes", ""): 2.0 * before}):
        assert calibration("software").value("ring_passes") == 2.0 * before
        with changed({("software", "grad_hidden", ""): 0.1}):
            assert calibration("software").value("ring_passes") == 2.0 * before
            assert calibration("software").value("grad_hidden") == 0.1
    assert calibration("software").value("ring_passes") == before


def test_an_error_inside_forgets_too() -> None:
    before = calibration("software").value("ring_passes")
    with pytest.raises(RuntimeError), changed({("software", "ring_passes", ""): 1.0}):
        raise RuntimeError
    assert calibration("software").value("ring_passes") == before


def test_one_accelerator_or_its_generation() -> None:
    h100, h20 = load_gpu("h100-sxm-80g"), load_gpu("h20-96g")
    with changed({("hopper", "gemm_fraction", ""): 0.5}):
        assert value(h100, "gemm_fraction") == 0.5
        assert value(h20, "gemm_fraction") == 0.95
    with changed({("hopper", "gemm_fraction", "h20-96g"): 0.5}):
        assert value(h20, "gemm_fraction") == 0.5
        own = generation("Hopper")
        assert own is not None and own.constants["gemm_fraction"].by_gpu["h20-96g"] == 0.5


@pytest.mark.parametrize("key", [("software", "no_such", ""), ("no_such", "ring_passes", "")])
def test_what_does_not_exist_cannot_be_changed(key: tuple[str, str, str]) -> None:
    with pytest.raises(KeyError), changed({key: 1.0}):
        pass


PACKAGES = Path(__file__).resolve().parents[2]


@cache
def asked() -> re.Pattern[str]:
    """Every text of the packages, with anything where one is put together (`host_forward_{name}`)."""
    found: set[str] = set()
    for path in (p for package in ("cost_models", "hardware", "planner") for p in (PACKAGES / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+", node.value):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant) and len(str(node.values[0].value)) > 3:
                parts = [re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"\w+" for v in node.values]
                found.add("".join(parts))
    return re.compile("|".join(sorted(found)))


@pytest.mark.parametrize("name", sorted(p.stem for p in (PACKAGES / "hardware" / "measured").glob("*.toml") if p.stem != "error"))
def test_every_constant_is_read(name: str) -> None:
    assert [key for key in calibration(name).constants if not asked().fullmatch(key)] == []
