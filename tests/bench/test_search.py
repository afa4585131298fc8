"""What a search takes, cold: wall time, memory and layouts spanned of whole commands; the same bytes on one core and on two.

Run with -m bench -s on a quiet machine. Limits are those that the project promises on two cores.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SEARCHES = (
    ("30b", ("--model", "30b", "--cluster", "32xA100-80G"), 2.0),
    ("405b", ("--model", "llama-3.1-405b", "--cluster", "16384xH100-80G", "--seq", "8192", "--global-batch", "2048"), 10.0),
    ("kimi-k2", ("--model", "kimi-k2", "--cluster", "65536xGB200", "--seq", "4096", "--global-batch", "16384"), 20.0),
)
MOST_BYTES = 1e9
RUNS = 10


def run(root: Path, arguments: tuple[str, ...], cores: set[int] | None = None) -> tuple[bytes, float]:
    """Return what a search prints, and its wall time with start-up."""

    def pinned() -> None:
        if cores:
            os.sched_setaffinity(0, cores)

    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "planner", "search", *arguments, "--json"],
        cwd=root,
        capture_output=True,
        check=True,
        preexec_fn=pinned,  # noqa: PLW1509
    )
    return done.stdout, time.perf_counter() - started


@pytest.mark.bench
@pytest.mark.parametrize(("name", "arguments", "seconds"), SEARCHES, ids=[s[0] for s in SEARCHES])
def test_cold_search(root: Path, name: str, arguments: tuple[str, ...], seconds: float) -> None:
    """The better of two cold commands."""
    text, wall = min((run(root, arguments) for _ in range(2)), key=lambda r: r[1])
    searched = json.loads(text)["searched"]
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0
    certificate = searched["certificate"]
    print(
        f"\n{name}: {wall:.2f} s, {most / 1e6:.0f} MB; {searched['layouts']:,} layouts spanned ({searched['layouts'] / wall:,.0f} /s),"
        f" {searched['lawful']:,} lawful; {certificate['families']:,} families, {certificate['discarded']:,} by bound,"
        f" {certificate['solved']:,} solved, gap {certificate['gap']:g}, proved {certificate['proved']}"
    )
    assert wall < seconds
    assert most < MOST_BYTES
    assert certificate["proved"]


@pytest.mark.bench
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity on this system")
def test_same_bytes_each_time_and_on_one_core_or_two(root: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    answers = {run(root, (*SEARCHES[0][1], "--framework", "megatron"), set(cores[: 1 + i % 2]))[0] for i in range(RUNS)}
    assert len(answers) == 1
