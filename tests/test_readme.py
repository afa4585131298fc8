"""README.md cannot drift: its commands run, its set-up commands are those of .ci/run, its links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Ended

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL_FENCES = ("sh", "bash", "shell", "console")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
EXIT = re.compile(r"#\s*exit (\d+)\s*$")


class Command(NamedTuple):
    """A `planner …` command of the README and the exit code that it states."""

    arguments: tuple[str, ...]
    exit_code: int


def commands(text: str) -> Iterator[Command]:
    """Yield every planner command in the shell blocks of `text`, prompts and set-up steps before it taken off."""
    for language, block in FENCE.findall(text):
        if language not in SHELL_FENCES:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            stated = EXIT.search(line)
            for step in line.split("&&"):
                words = shlex.split(step.strip().removeprefix("$ "), comments=True)
                if words and Path(words[0]).name == "planner":
                    yield Command(tuple(words[1:]), int(stated.group(1)) if stated else 0)


@pytest.mark.parametrize("command", list(dict.fromkeys(commands(README))), ids=lambda command: " ".join(command.arguments))
def test_command_of_the_readme_runs(command: Command, run_planner: Callable[..., Ended]) -> None:
    """Each command ends with the exit code that the README states, with output, and without a traceback."""
    ended = run_planner(*command.arguments)
    assert ended.exit_code == command.exit_code, ended.out + ended.err
    assert ended.out.strip() or ended.err.strip()
    assert "Traceback" not in ended.out + ended.err


def test_readme_shows_every_command_and_each_explains_itself() -> None:
    cli = importlib.import_module("planner.cli")
    group = next(value for value in vars(cli).values() if isinstance(value, click.Group))
    shown = {command.arguments[0] for command in commands(README) if command.arguments}
    assert set(group.commands) - shown == set()
    assert [name for name, command in group.commands.items() if not command.help] == []


def test_readme_opens_with_the_two_set_up_commands() -> None:
    opening = [line for _, block in FENCE.findall(README)[:2] for line in block.splitlines()]
    assert opening == [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    job, tests = opening
    assert "planner search" in job
    assert "pytest" in tests


def test_ci_runs_the_set_up_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'sed -n "/(.*?)\$1/p" README\.md', script)
    wanted = re.findall(r"\$\(readme_command '(.+?)' ", script)
    found = [re.findall(f"^{pattern}{re.escape(name)}.*$", README, re.M) for name in wanted]
    assert wanted == ["planner search", "pytest"]
    assert [len(lines) for lines in found] == [1, 1]


def test_links_and_named_files_of_the_readme_exist() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    paths = [path for path in re.findall(r"`([\w./-]+)`", README) if "/" in path or path.endswith((".md", ".toml"))]
    assert links
    assert [path for path in (*links, *paths) if not (ROOT / path).exists()] == []


def test_commands_are_read_as_a_reader_would() -> None:
    """The parser itself: set-up prefixes, prompts, continuation lines, stated exit codes and other blocks."""
    text = "```sh\na && .venv/bin/planner search --model x\n$ planner estimate \\\n  --tp 2  # exit 3\nls\n```\n```text\nplanner no\n```\n"
    assert list(commands(text)) == [Command(("search", "--model", "x"), 0), Command(("estimate", "--tp", "2"), 3)]
