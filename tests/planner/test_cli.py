"""The command line: exit codes, one line per problem, nothing but the result on stdout, files whole or not at all."""

from __future__ import annotations

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from planner.asked import Request
from planner.cli import planner as group
from planner.cli.options import KEYS, LAYOUT_KEYS, SECTIONS
from planner.cli.search import NO_PLAN
from tests.planner.handmade import make_plan, make_search

Runner = Callable[..., Any]
SMALL = ("--model", "llama-3.1-8b", "--cluster", "8xH100-80G", "--framework", "megatron")
ROOT = Path(__file__).resolve().parents[2]


def command_line(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m planner` as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    words = [sys.executable, "-W", "error", "-m", "planner", *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=False, **options)


def problems(ended: Any, exit_code: int) -> list[str]:
    """The problems of a run that must fail: one line each, without a traceback, nothing on stdout."""
    assert ended.exit_code == exit_code, ended
    assert ended.out == ""
    lines: list[str] = ended.err.splitlines()
    assert lines
    assert all(line.startswith("✗ ") for line in lines), lines
    assert "Traceback" not in ended.err
    assert "bug in planner" not in ended.err
    return lines


def test_help_and_version_start_fast_and_import_nothing_heavy() -> None:
    code = "import sys; from planner.cli import main; main(['--help']); main(['search', '--help']); main(['--version']); "
    code += "print([m for m in ('numpy', 'pydantic', 'ortools', 'tabulate') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_version_is_one_line(run_planner: Runner) -> None:
    ended = run_planner("--version")
    assert ended.exit_code == 0
    assert ended.out.startswith("planner ")
    assert ended.out.count("\n") == 1


def test_every_command_has_help_and_the_output_options() -> None:
    assert {"search", "estimate", "models", "hardware", "validate", "schema"} <= set(group.commands)
    for command in group.commands.values():
        assert command.help
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {"--json", "--timings", "--debug"} <= flags, command.name
        assert all(p.help for p in command.params if isinstance(p, click.Option)), command.name


WISH_FLAGS = {"--fix", "--max", "--min", "--forbid", "--require", "--objective", "--why", "--pareto", "--sensitivity"}
"""Flags of a search alone."""


def test_layout_and_training_flags_are_spelled_as_the_json_keys() -> None:
    """The flags that the request knows, one for one, in both commands; help sections name flags that exist."""
    from planner.schema import LayoutRecord, TrainingRecord

    for name in ("search", "estimate"):
        flags = {flag for parameter in group.commands[name].params for flag in parameter.opts}
        assert {f"--{key.replace('_', '-')}" for key in KEYS} <= flags
        further = WISH_FLAGS if name == "estimate" else set()
        assert {flag for section in SECTIONS.values() for flag in section} - further <= flags
    known = {*LayoutRecord.model_fields, *TrainingRecord.model_fields, *Request.model_fields}
    assert set(LAYOUT_KEYS) - known == set()


def test_values_shown_in_help_are_those_that_the_request_takes() -> None:
    for parameter in group.commands["search"].params:
        field = Request.model_fields.get(parameter.name or "")
        metavar = getattr(parameter, "metavar", None) or ""
        if field is None or "|" not in metavar or not metavar.islower():
            continue
        accepted = {f"{value}" for part in (field.annotation, *get_args(field.annotation)) for value in get_args(part)}
        shown = set(metavar.split("|"))
        assert shown <= accepted, (parameter.name, shown - accepted)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["search", "--model", "lama-3.1-8b", "--cluster", "8xH100-80G"], "llama-3.1-8b"),
        (["search", "--model", "30b", "--cluster", "32xA100-80GX"], "A100-80G"),
        (["search", "--model", "30b", "--cluster", "1" + "0" * 30 + "xA100-80G"], "1,048,576"),
        (["search", "--model", "30b", "--cluster", "0xA100-80G"], "counts"),
        (["search", "--model", "30b", "--cluster", "-1xA100-80G"], "whole number"),
        (["search", "--model", "30b", "--cluster", "rm -rf"], "unknown GPU"),
        (["search", "--model", "30b", "--cluster", ""], "empty"),
        (["search", "--model", "", "--cluster", "8xH100-80G"], "no model name"),
        (["search", "--modle", "30b"], "--model"),
        (["serch"], "search"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--margin", "nan"], "margin"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--free-memory", "-3GiB"], "negative"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--free-memory", "1e30GiB"], "sensible"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--seq", "1" + "0" * 30], "seq"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--seq", "9" * 5000], "seq"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--global-batch", "0"], "global_batch"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--top", "0"], "--top"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--recompute", "fulll"], "'full'"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--framework", "megatrom"], "megatron"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--offload", "gpu"], "optimizer"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--regime", "megatrn"], "megatron"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--export", "foo=x"], "deepspeed, megatron"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--export", "deepspeed"], "KIND=FILE"),
        (["search", "--model", "30b", "--cluster", "8xH100-80G", "--export", "deepspeed=a", "--export", "megatron=a"], "same file"),
        (["search", "--request", "absent.toml"], "no such file"),
        (["estimate", "--layers", "10", "--hidden", "-5", "--cluster", "8xH100-80G"], "-5"),
        (["estimate", "--layers", "10", "--hidden", "1" + "0" * 30, "--cluster", "8xH100-80G"], "hidden"),
        (["estimate", "--model", "nosuch.json", "--cluster", "8xH100-80G"], "no such file"),
        (["models", "no-such-model"], "unknown model"),
        (["models", "a", "b"], "extra argument"),
        (["hardware", "no-such-card"], "unknown GPU"),
        (["schema", "nothing"], "search"),
        (["validate", "absent.csv"], "absent.csv"),
    ],
)
def test_bad_input_is_one_line_that_helps(run_planner: Runner, arguments: list[str], names: str) -> None:
    """Exit 2 in under a second (of processor time: the machine may be busy)."""
    start = time.process_time()
    lines = problems(run_planner(*arguments), 2)
    assert time.process_time() - start < 1.0
    assert any(names in line for line in lines), lines
    assert all(len(line) < 600 for line in lines)


SHAPE = b'"num_hidden_layers":2,"num_attention_heads":2,"vocab_size":9,"intermediate_size":8}'
FILES = {
    "empty": b"",
    "truncated": b'{"model_type": "llama", "hidden_size": 40',
    "binary": bytes(range(256)) * 16,
    "latin": b'{"name": "caf\xe9"}',
    "list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "negative": b'{"model_type":"llama","hidden_size":-8,' + SHAPE,
    "nan": b'{"model_type":"llama","hidden_size":NaN,' + SHAPE,
    "mamba": b'{"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}',
    "encoder-decoder": b'{"model_type": "t5", "d_model": 64, "num_layers": 2, "vocab_size": 100}',
    "huge": b" " * 12_000_000,
}


@pytest.mark.parametrize("name", FILES)
def test_bad_config_files_are_one_line(run_planner: Runner, tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(FILES[name])
    (line,) = problems(run_planner("estimate", "--model", str(path), "--cluster", "8xH100-80G"), 2)
    assert "config.json" in line
    if name == "mamba":
        assert "mamba" in line


@pytest.mark.parametrize("text", ["modle = '30b'", "[layout]\ntpp = 2", "model = ", "model = '30b'\ncluster = 3", "\x00"])
def test_bad_request_files_are_told(run_planner: Runner, tmp_path: Path, text: str) -> None:
    path = tmp_path / "request.toml"
    path.write_text(text, encoding="utf-8")
    problems(run_planner("search", "--request", str(path)), 2)


def test_all_broken_laws_are_told_at_once(run_planner: Runner) -> None:
    lines = problems(run_planner("estimate", "--model", "llama-3.1-70b", "--cluster", "8xA100-80G", "--tp", "3"), 2)
    text = "\n".join(lines)
    assert "64 attention heads" in text
    assert "8 key-value heads" in text
    assert "must equal 8 GPUs" in text


def test_all_bad_values_are_told_at_once(run_planner: Runner) -> None:
    lines = problems(run_planner("estimate", *SMALL, "--zero", "7", "--method", "ful", "--seq", "abc"), 2)
    assert len(lines) == 3


def test_unknown_model_and_cluster_are_told_together(run_planner: Runner) -> None:
    assert len(problems(run_planner("search", "--model", "nosuch", "--cluster", "8xnosuch"), 2)) == 2


def test_nothing_fits_is_exit_3_with_the_miss(run_planner: Runner) -> None:
    ended = run_planner("estimate", "--model", "llama-3.1-70b", "--cluster", "8xA100-40G", "--tp", "8")
    assert ended.exit_code == NO_PLAN
    assert "GiB too many" in " ".join(ended.out.split())
    assert "does not fit" in ended.out
    assert ended.err == ""


def test_estimate_fits_and_json_says_the_same(run_planner: Runner) -> None:
    flags = (*SMALL, "--tp", "2", "--micro-batch", "1", "--global-batch", "64")
    shown, given = run_planner("estimate", *flags), run_planner("estimate", *flags, "--json")
    assert (shown.exit_code, given.exit_code) == (0, 0)
    document = json.loads(given.out)
    assert document["fits"] is True
    assert document["layout"]["tp"] == 2
    assert document["layout"]["dp"] == 4
    assert document["layout"]["accumulation"] == 16
    assert document["training"]["global_batch"] == 64
    assert "fits" in shown.out


def fake_search(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    """Let the command find `result` at once."""
    monkeypatch.setattr(importlib.import_module("planner.search"), "search", lambda *_, **__: result)


@pytest.fixture
def one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds one Megatron plan."""
    fake_search(monkeypatch, make_search(make_plan(tp=2, dp=16)))


@pytest.mark.usefixtures("one_plan")
def test_exports_are_written_where_asked(run_planner: Runner, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    ended = run_planner("search", *SMALL, "--export", "megatron=args.json", "--export", "megatron=args.sh", "--export", "megatron=folder")
    assert ended.exit_code == 0, ended.err
    assert json.loads((tmp_path / "args.json").read_text(encoding="utf-8"))[0] == "--num-layers"
    assert (tmp_path / "args.sh").read_text(encoding="utf-8").startswith("--num-layers ")
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["megatron.json", "megatron.sh"]
    assert "wrote args.json" in ended.err
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.usefixtures("one_plan")
def test_an_existing_file_is_kept_without_force(run_planner: Runner, tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text("mine", encoding="utf-8")
    (line,) = problems(run_planner("search", *SMALL, "--export", "megatron=args.json"), 1)
    assert "--force" in line
    assert (tmp_path / "args.json").read_text(encoding="utf-8") == "mine"
    assert run_planner("search", *SMALL, "--export", "megatron=args.json", "--force").exit_code == 0
    assert (tmp_path / "args.json").read_text(encoding="utf-8") != "mine"


def test_a_refused_export_is_exit_1_and_writes_nothing(run_planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interleaved pipeline is no DeepSpeed plan; the Megatron arguments that were asked for beside it are not written either."""
    interleaved = make_plan(tp=2, pp=2, vpp=2, dp=8, schedule="interleaved")
    fake_search(monkeypatch, make_search(interleaved))
    before = sorted(tmp_path.iterdir())
    ended = run_planner("search", *SMALL, "--export", "megatron=args.json", "--export", "deepspeed=ds.json")
    assert ended.exit_code == 1
    assert "deepspeed cannot run this plan" in ended.err
    assert "(rule " in ended.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("one_plan")
def test_a_file_that_cannot_be_written_is_exit_1(run_planner: Runner, tmp_path: Path) -> None:
    ended = run_planner("search", *SMALL, "--export", "megatron=args.json", "--export", "megatron=absent/args.sh")
    assert ended.exit_code == 1
    assert "cannot be written" in ended.err
    assert not (tmp_path / "args.json").exists()


def test_an_infeasible_search_shows_misses_and_remedies(run_planner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_search(monkeypatch, make_search())
    ended = run_planner("search", *SMALL)
    assert ended.exit_code == NO_PLAN
    assert "No plan fits" in ended.out
    assert "113 GiB too many" in " ".join(ended.out.split())
    assert "--method lora" in ended.out
    assert "memory 9,310" in ended.out
    assert f"planner search {' '.join(SMALL)} --method lora" in ended.out


def test_an_interrupted_search_with_a_plan_is_exit_0(run_planner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_search(monkeypatch, make_search(make_plan(tp=2, dp=16), status="interrupted"))
    ended = run_planner("search", *SMALL, "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.out)["status"] == "interrupted"


def test_an_interrupt_without_a_plan_is_exit_3(run_planner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("planner.search"), "search", interrupted)
    (line,) = problems(run_planner("search", *SMALL), NO_PLAN)
    assert "interrupted" in line


def test_an_unexpected_error_is_one_line_unless_debugged(run_planner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(importlib.import_module("planner.search"), "search", broken)
    ended = run_planner("search", *SMALL)
    assert ended.exit_code == 1
    assert ended.err == "✗ this is a bug in planner: ZeroDivisionError: a (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        run_planner("search", *SMALL, "--debug")


def test_timings_are_on_stderr_only(run_planner: Runner) -> None:
    plain, timed = run_planner("estimate", *SMALL, "--json"), run_planner("estimate", *SMALL, "--json", "--timings")
    assert plain.out == timed.out
    assert plain.err == ""
    assert "request " in timed.err


def test_same_request_same_bytes() -> None:
    outputs = {command_line("estimate", *SMALL, "--json", env={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(outputs) == 1


def test_a_closed_pipe_is_quiet() -> None:
    words = [sys.executable, "-m", "planner", "models", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) in (0, -signal.SIGPIPE)


def test_ascii_terminals_get_the_message() -> None:
    ended = command_line("estimate", *SMALL, "--tp", "3", env={"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 2
    assert "attention heads" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_colour_in_a_pipe(run_planner: Runner) -> None:
    assert "\x1b" not in run_planner("estimate", *SMALL).out


def test_only_the_command_line_imports_click() -> None:
    for path in (ROOT / "planner").rglob("*.py"):
        if path.parent.name == "cli":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        assert not {"click"} & {*names, *(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))}, path
