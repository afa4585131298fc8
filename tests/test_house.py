"""The house holds: imports go one way, rooms stay small, formulas stay plain, units stay in their place (see README.md).

The tests read the source and the project's own configuration; they scan what is there, so they grow with the tree.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("hardware", "cost_models", "planner")
"""Packages from the ground up: each may import itself and those before it."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
"""Without its docstring. The aim is 300 and 40; past these limits a file or a function holds two things."""

ORDER = {
    "hardware": (("units",), ("spec",), ("catalog",), ("cluster",)),
    "cost_models": (
        ("numeric", "architecture", "training"),
        ("op", "ledger", "layout", "result"),
        ("choices",),
        ("blocks", "memory", "throughput"),
        ("transformer",),
        ("cost",),
    ),
    "planner": (
        ("asked",),
        ("request", "solver", "plan"),
        ("rules", "evaluate"),
        ("space",),
        ("search", "explain", "exporters"),
        ("report",),
        ("cli",),
    ),
}
"""Storeys inside each package: a room may import its own storey and those before it. Rooms not named here only may not make a circle."""

WINGS = ("cost_models.blocks", "cost_models.memory", "cost_models.throughput")
"""Same storey, and never import each other."""

ONLY_IN = {
    "ortools": "planner.solver",
    "click": "planner.cli",
    "cost_models.cost": "planner.evaluate",
}
"""What is imported -> the one room that may."""

READERS = tuple(f"cost_models.{room}" for room in ("catalog", "catalog_index", "catalog_names", "dimensions", "hub", "model_laws"))
"""Rooms of cost_models that read names and files and hold no formula of cost."""

UNIT_SIZES = {1e9, 1e12, 2**30, 2**40}
UNIT_NAME = re.compile(r"(?:^|_)(?:bytes|seconds|flop|usd|watts|tokens)(?:_per_[a-z]+)*$")
WRONG_UNIT = re.compile(r"_(?:kb|mb|gb|tb|kib|mib|gib|tib|ms|us|flops|gflops?|tflops?|gbps|tbps|mbps)$", re.I)
UNITLESS = re.compile(
    r"(?:^|_)(?:mfu|hfu|count|fraction|ratio|index|stage|phase|oversubscription|compute_capability|year|margin|efficiency|factor|vcpus|size|probability|confidence|gap)$"
)
RECORD_FILES = ("hardware/spec.py", "cost_models/result.py", "planner/plan.py")
"""Where results and facts cross a floor: each number's name states its unit."""


class Module(NamedTuple):
    """One source file of the packages."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def shown(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@cache
def modules() -> dict[str, Module]:
    """All modules of the three packages, by dotted name."""
    found = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def targets(module: Module) -> Iterator[str]:
    """Yield the dotted names that a module imports, at any depth, TYPE_CHECKING included; submodules rather than their package."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in modules() else base


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> what it imports."""
    return {name: frozenset(targets(module)) for name, module in modules().items()}


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def storey(name: str) -> tuple[int, str] | None:
    """The storey and the room of a module, None where its room is not named in ORDER."""
    floor, _, rest = name.partition(".")
    for level, rooms in enumerate(ORDER.get(floor, ())):
        for room in rooms:
            if inside(rest, room):
                return level, room
    return None


def test_packages_are_there_and_import_one_way() -> None:
    assert {name.partition(".")[0] for name in modules()} == set(FLOORS)
    wrong = []
    for name, found in imports().items():
        above = FLOORS[FLOORS.index(name.partition(".")[0]) + 1 :]
        wrong += [f"{name} imports {target}" for target in found if any(inside(target, floor) for floor in (*above, "tests"))]
    assert wrong == [], "\n".join(wrong)


def test_storeys_import_downwards() -> None:
    wrong = []
    for name, found in imports().items():
        here = storey(name)
        for target in found:
            there = storey(target)
            if here and there and target.partition(".")[0] == name.partition(".")[0] and there[0] > here[0]:
                wrong.append(f"{name} imports {target}: {there[1]} stands above {here[1]}")
    assert wrong == [], "\n".join(wrong)


def test_wings_never_import_each_other() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, found in imports().items()
        for target in found
        for wing in WINGS
        if inside(name, wing) and any(inside(target, other) for other in WINGS if other != wing)
    ]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(("package", "room"), ONLY_IN.items())
def test_only_one_room_imports(package: str, room: str) -> None:
    users = {name for name, found in imports().items() if any(inside(target, package) for target in found)}
    assert {name for name in users if not inside(name, room) and not inside(name, package)} == set()


def test_hardware_does_without_numpy() -> None:
    assert [name for name, found in imports().items() if inside(name, "hardware") and any(inside(t, "numpy") for t in found)] == []


def circle() -> list[str]:
    """One circle of imports, empty where there is none (depth-first, three colours)."""
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        trail.append(name)
        for target in sorted(imports()[name]):
            if target in imports() and target != name and (found := visit(target)):
                return found
        trail.pop()
        done.add(name)
        return []

    return next((found for name in imports() if (found := visit(name))), [])


def test_no_import_circles() -> None:
    assert circle() == []


def sources() -> list[Path]:
    """All Python files of the project, tests included."""
    return [path for folder in (*FLOORS, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_files_and_functions_stay_small() -> None:
    wrong = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        shown = path.relative_to(ROOT)
        if (lines := text.count("\n")) > MAX_FILE_LINES:
            wrong.append(f"{shown}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > MAX_FUNCTION_LINES:
                wrong.append(f"{shown}:{node.lineno} {node.name}: {length(node)} lines")
    assert wrong == [], "\n".join(wrong)


def test_formulas_are_plain() -> None:
    """No power and no math: array and scalar power differ in the last bit, and math.* takes no arrays. No pairwise sums either."""
    forbidden = {"power", "float_power", "sum", "mean", "dot", "einsum", "matmul", "prod"}
    wrong = []
    for name, module in modules().items():
        if not inside(name, "cost_models") or any(inside(name, room) for room in READERS):
            continue
        if "math" in imports()[name]:
            wrong.append(f"{module.shown}: imports math")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.MatMult) and constant(node) is None:
                wrong.append(f"{module.shown}:{node.lineno} uses ** or @")
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Pow | ast.MatMult):
                wrong.append(f"{module.shown}:{node.lineno} uses **= or @=")
            elif isinstance(node, ast.Attribute) and node.attr in forbidden:
                wrong.append(f"{module.shown}:{node.lineno} uses .{node.attr}")
    assert wrong == [], "\n".join(wrong)


def constant(node: ast.expr) -> float | None:
    """The value of a literal, or of +, *, ** and << on literals; None for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.BinOp):
        left, right = constant(node.left), constant(node.right)
        if left is None or right is None or abs(right) > 64 and isinstance(node.op, ast.Pow | ast.LShift):
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Pow):
            return float(left**right)
        if isinstance(node.op, ast.LShift):
            return left * 2.0**right
    return None


def scales(tree: ast.Module) -> Iterator[int]:
    """Yield the lines where a unit's size is written. A whole power of ten that scales nothing is a limit, not a unit."""
    factors = {
        id(side)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
        for side in (node.left, node.right)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (size := constant(node)) in UNIT_SIZES:
            whole = not isinstance(node, ast.Constant) or isinstance(node.value, int)
            if id(node) in factors or not (whole and size in {1e9, 1e12}):
                yield node.lineno


def test_unit_sizes_stand_in_one_file() -> None:
    """1e9, 2**30 and their like are written in hardware/units.py only, so no conversion happens elsewhere."""
    wrong = [f"{m.shown}:{line}" for m in modules().values() if m.name != "hardware.units" for line in sorted(set(scales(m.tree)))]
    assert wrong == [], "\n".join(wrong)


def fields(module: Module) -> Iterator[tuple[str, int, str, str]]:
    """Yield class, line, name and annotation of the annotated fields of a module's classes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield node.name, item.lineno, item.target.id, ast.unparse(item.annotation)


def test_numbers_that_cross_a_floor_state_their_unit() -> None:
    wrong = []
    for file in RECORD_FILES:
        module = next(module for module in modules().values() if module.shown == file)
        for owner, line, name, annotation in fields(module):
            number = re.search(r"\b(?:float|Num)\b", annotation)
            if number and not UNIT_NAME.search(name) and not UNITLESS.search(name):
                wrong.append(f"{file}:{line} {owner}.{name}: {annotation}")
    assert wrong == [], "\n".join(wrong)


def test_no_field_holds_a_scaled_unit() -> None:
    """Inside there are base units only: no field in GB, GiB, ms or TFLOP/s (the run table's columns keep their published names)."""
    wrong = [
        f"{module.shown}:{line} {owner}.{name}"
        for module in modules().values()
        if not inside(module.name, "planner.runs")
        for owner, line, name, _ in fields(module)
        if WRONG_UNIT.search(name)
    ]
    assert wrong == [], "\n".join(wrong)


def test_every_file_of_the_packages_is_packed() -> None:
    """Each file of the packages matches the wheel's list in pyproject.toml, and each folder with code is a package."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["only-include"]) == sorted(FLOORS)
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path for path in files if not any(fnmatch.fnmatch(path.name, pattern) for pattern in wheel["include"])] == []
    assert [path for path in files if path.suffix == ".py" and not (path.parent / "__init__.py").is_file()] == []
    assert [floor for floor in FLOORS if not (ROOT / floor / "py.typed").is_file()] == []


REGISTRIES = (
    ("hardware/gpus", "*.toml", "hardware.catalog", "gpu_names"),
    ("hardware/nodes", "*.toml", "hardware.catalog", "node_names"),
    ("hardware/measured", "*.toml", "hardware.calibration", "names"),
    ("cost_models/choices/schedules", "*.py", "cost_models.choices.schedules", "names"),
    ("planner/exporters", "*.py", "planner.exporters", "exporters"),
)
"""Folder, its files, and who lists them: whoever adds one touches that file alone."""


@pytest.mark.parametrize(("folder", "pattern", "module", "function"), REGISTRIES, ids=[row[0] for row in REGISTRIES])
def test_a_new_file_in_its_folder_is_found(folder: str, pattern: str, module: str, function: str) -> None:
    """A TOML is known by its stem, a module by its NAME; files that begin with _ are parts of others."""
    files = [path for path in (ROOT / folder).glob(pattern) if not path.name.startswith("_")]
    if pattern == "*.py":
        expected = {importlib.import_module(f"{folder.replace('/', '.')}.{path.stem}").NAME for path in files}
    else:
        expected = {path.stem for path in files}
    assert len(expected) == len(files) > 0
    assert set(getattr(importlib.import_module(module), function)()) == expected


def tracked() -> list[Path]:
    """Files that git tracks or would track; all files outside hidden folders where this is no git checkout."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True)
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def test_no_path_of_a_machine_is_written_down() -> None:
    path = re.compile(rb"(?<![\w.:/-])/(?:tm[p]|wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/")
    files = tracked()
    assert ROOT / "pyproject.toml" in files
    assert [file.relative_to(ROOT) for file in files if path.search(file.read_bytes())] == []
