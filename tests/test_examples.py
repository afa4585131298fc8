"""Every file of examples/ says in its head how it is used, and that command runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ended

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
USE = re.compile(r"^# planner (.+?)(?:\s+# exit (\d+))?$", re.M)


def uses(path: Path) -> list[tuple[list[str], int]]:
    """The commands in the comments of an example, each with the exit code that it states (0 without one)."""
    return [(shlex.split(line), int(code or 0)) for line, code in USE.findall(path.read_text(encoding="utf-8"))]


def test_every_example_shows_a_command_that_names_it() -> None:
    assert EXAMPLES
    unnamed = [
        path.name for path in EXAMPLES if not any(f"examples/{path.relative_to(ROOT / 'examples')}" in words for words, _ in uses(path))
    ]
    assert unnamed == []


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [pytest.param(*use, id=f"{path.name}: {' '.join(use[0])}") for path in EXAMPLES for use in uses(path)],
)
def test_example_runs(arguments: list[str], exit_code: int, run_planner: Callable[..., Ended]) -> None:
    ended = run_planner(*arguments)
    assert ended.exit_code == exit_code, ended.out + ended.err
    assert ended.out.strip()
    assert "Traceback" not in ended.out + ended.err
