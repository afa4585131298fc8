"""What every test shares: the hypothesis profiles and the folder of published facts."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def published(root: Path) -> Path:
    """The folder of published runs, traces, cases and figures (see its README.md)."""
    return root / "tests" / "published"


class Ended(NamedTuple):
    """How a run of the command line ended."""

    exit_code: int
    out: str
    err: str


@pytest.fixture
def run_planner(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run `planner ARGUMENT…` as the console script would, in an empty folder that sees examples/ and tests/ of the project."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["planner", *arguments])
        main = importlib.import_module("planner.cli").main
        with pytest.raises(SystemExit) as ended:
            sys.exit(main())
        shown = capsys.readouterr()
        return Ended(int(ended.value.code or 0), shown.out, shown.err)

    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(root / name)
    monkeypatch.chdir(tmp_path)
    return run
