"""The laws of this floor: it imports nothing of the upper ones, runs one way, and keeps unit factors in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hardware

ROOT = Path(hardware.__file__).parent
FILES = sorted(ROOT.glob("*.py"))
ORDER = ("units", "spec", "records", "catalog", "pools", "cluster_file", "cluster")
UNIT_FACTORS = (1e6, 1e9, 1e12, 1e15, 2**30, 2**40)


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_files_are_there() -> None:
    assert {path.stem for path in FILES} >= {"__init__", *ORDER}
    assert (ROOT / "py.typed").read_bytes() == b""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_of_the_upper_floors_and_no_numpy(path: Path) -> None:
    tops = {name.partition(".")[0] for name in _imports(ast.parse(path.read_text(encoding="utf-8")))}
    assert tops.isdisjoint({"cost_models", "planner", "numpy", "ortools", "click", "tabulate"})


@pytest.mark.parametrize("stem", ORDER)
def test_imports_run_one_way(stem: str) -> None:
    imported = _imports(ast.parse((ROOT / f"{stem}.py").read_text(encoding="utf-8")))
    ours = {name.split(".")[1] for name in imported if name.startswith("hardware.")}
    assert ours <= set(ORDER[: ORDER.index(stem)])


def _constants(tree: ast.AST) -> set[float]:
    """Numbers written in a file, `2**30` and `1024**3` included."""
    found: set[float] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            found.add(float(node.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            left, right = node.left, node.right
            if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
                found.add(float(left.value) ** float(right.value))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("stem", [stem for stem in ORDER if stem != "units"])
def test_unit_factors_stand_in_units_only(stem: str) -> None:
    assert _constants(ast.parse((ROOT / f"{stem}.py").read_text(encoding="utf-8"))).isdisjoint(UNIT_FACTORS)


def test_the_check_above_sees_unit_factors() -> None:
    assert set(UNIT_FACTORS) <= _constants(ast.parse((ROOT / "units.py").read_text(encoding="utf-8")))
