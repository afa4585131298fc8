"""Traces: valid trace events, no two slices of one stream at once, the end of the step, every schedule, and files whole or not at all."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.choices.schedules import names
from cost_models.choices.schedules import schedule as schedule_of
from cost_models.numeric import num
from cost_models.throughput.simulate import Durations, Event, seconds, simulate
from planner.asked import make_request
from planner.assess import Assessment, assess
from planner.evaluate import plan as evaluated
from planner.explain.passes import MOST_PASSES
from planner.explain.timeline import STREAMS, timeline
from planner.report.trace import trace_text
from planner.request import resolve

if TYPE_CHECKING:
    from planner.plan import Plan

Runner = Callable[..., Any]
UNEVEN = (5, 6, 6, 7, 7, 6, 6, 5)
NEAR = 1e-5
"""Microseconds: what is left of nanoseconds as floats."""


@cache
def judged(**changed: Any) -> Assessment:
    request = {"model": "30b", "cluster": "32xA100-80G", "framework": "megatron", "tp": 4, "pp": 8, "recompute": "selective", **changed}
    found = assess(resolve(make_request(request)))
    assert found.plan is not None, found.broken
    return found


def scheduled(schedule: str, layers: tuple[int, ...] | None = None, **changed: Any) -> Plan:
    """A plan under a schedule, whether or not a framework runs it."""
    found = judged(**changed)
    choices = replace(found.layout.choices, schedule=schedule)
    degrees = replace(found.layout.degrees, vpp=3.0 if schedule == "interleaved" else 1.0)
    return evaluated(found.case, replace(found.layout, choices=choices, degrees=degrees, stage_layers=layers))


def checked(plan: Plan) -> dict[str, Any]:
    """The trace of a plan, after all that must hold of every trace."""
    document: dict[str, Any] = json.loads(trace_text(plan, timeline(plan)))
    lanes: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    named = set()
    for e in document["traceEvents"]:
        assert e["ph"] in ("X", "M")
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        assert isinstance(e["ts"], float | int)
        assert isinstance(e["name"], str)
        if e["ph"] == "M":
            named.add((e["name"], e["pid"], e["tid"]))
            continue
        assert e["ts"] >= 0
        assert e["dur"] >= 0
        assert e["cat"] == STREAMS[e["tid"]]
        lanes[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    for (pid, tid), slices in lanes.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        slices.sort()
        for before, after in zip(slices, slices[1:], strict=False):
            assert after[0] >= before[1] - NEAR, (pid, tid, before, after)
    for pid in range(int(num(plan.layout.degrees.pp))):
        end = max(end for (p, _), slices in lanes.items() if p == pid for _, end, _ in slices)
        assert end / 1e6 == pytest.approx(float(num(plan.cost.time.step_seconds)), abs=1e-6)
    return document


@pytest.mark.parametrize("layers", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("schedule", names())
def test_every_schedule_is_drawn_to_the_end_of_the_step(schedule: str, layers: tuple[int, ...] | None) -> None:
    plan = scheduled(schedule, layers, global_batch=128)
    document = checked(plan)
    passes = [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] == "compute" and e["args"].get("pass") == "forward"]
    chunks = {"interleaved": 3, "zb-v": 2}.get(schedule, 1)
    assert len(passes) == plan.micro_batches * 8 * chunks
    assert {e["args"]["micro_batch"] for e in passes} == set(range(plan.micro_batches))
    assert document["otherData"]["schedule"] == schedule


@pytest.mark.parametrize("schedule", names())
def test_even_stages_are_drawn_as_long_as_they_take(schedule: str) -> None:
    """Closed form and simulation agree: nothing is drawn shorter, and nothing is filled in."""
    plan = scheduled(schedule, global_batch=128)
    made = timeline(plan)
    assert len(made.notes) == 1
    last = max(s.start_seconds + float(s.facts["pass_seconds"]) for s in made.slices if "pass_seconds" in s.facts)
    after = sum(float(num(t.value if t.exposed is None else t.exposed)) for t in plan.cost.time.ledger.terms if _once(t.name))
    assert last == pytest.approx(made.step_seconds - after, rel=1e-9)


def _once(name: str) -> bool:
    return name.startswith(("dp.", "sp.", "pp.tied", "optimizer.", "host.stragglers", "host.between"))


def test_passes_wait_for_the_stage_before_them() -> None:
    starts, ends = {}, {}
    for s in timeline(scheduled("1f1b")).slices:
        if s.facts.get("pass") == "forward":
            key = (s.stage, s.facts["micro_batch"])
            starts[key] = s.start_seconds
            ends[key] = s.start_seconds + float(s.facts["pass_seconds"])
    assert all(starts[stage, i] >= ends[stage - 1, i] - 1e-9 for stage, i in starts if stage)


@pytest.mark.parametrize("schedule", names())
def test_thousands_of_micro_batches_stay_a_small_file_and_say_so(schedule: str) -> None:
    plan = scheduled(schedule, global_batch=65536)
    assert plan.micro_batches == 65536
    document = checked(plan)
    assert len(document["traceEvents"]) < 8 * MOST_PASSES
    left_out = [e for e in document["traceEvents"] if "not drawn one by one" in e["name"]]
    assert {e["pid"] for e in left_out} == set(range(8))
    assert any("micro-batches of the middle are drawn as one slice" in note for note in document["otherData"]["notes"])


@pytest.mark.parametrize(
    "changed",
    [
        {"pp": 1, "tp": 1, "framework": "fsdp", "recompute": "full", "model": "llama-3.1-8b"},
        {"pp": 1, "tp": 1, "framework": "deepspeed", "recompute": "full", "model": "llama-3.1-8b", "zero": 3, "offload": "optimizer"},
        {"pp": 1, "tp": 1, "framework": "deepspeed", "recompute": "full", "model": "llama-3.1-8b", "zero": 2},
        {"pp": 2, "tp": 2, "ep": 8, "model": "mixtral-8x7b", "recompute": "full"},
        {"pp": 4, "global_batch": 6, "tp": 8},
    ],
    ids=["fsdp", "offload", "zero2", "experts", "few micro-batches"],
)
def test_other_layouts(changed: dict[str, Any]) -> None:
    plan = judged(**changed).plan
    assert plan is not None
    drawn = {e["name"] for e in checked(plan)["traceEvents"]}
    once = {t.name for t in plan.cost.time.ledger.terms if _once(t.name) or t.name.startswith(("offload.t", "offload.c"))}
    shown = {n for n in once if any(float(num(t.value if t.exposed is None else t.exposed)) > 1e-9 for t in _named(plan, n))}
    assert shown <= drawn


def _named(plan: Plan, name: str) -> list[Any]:
    return [t for t in plan.cost.time.ledger.terms if t.name == name]


PARTS = st.floats(0.1, 4.0)


@settings(max_examples=150)
@given(st.sampled_from(names()), st.lists(st.tuples(PARTS, PARTS, PARTS), min_size=1, max_size=6), st.integers(1, 12))
def test_schedules_run_every_pass_once_and_in_order(schedule: str, stages: list[tuple[float, float, float]], m: int) -> None:
    forward, inputs, weight = zip(*stages, strict=True)
    backward = [i + w for i, w in zip(inputs, weight, strict=True)]
    m *= len(stages) if schedule == "interleaved" else 1
    events = simulate(schedule, Durations(forward=forward, backward=backward, weight=weight), m, 2)
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for e in events:
        by_rank[e.stage].append(e)
    for mine in by_rank.values():
        mine.sort(key=lambda e: (e.start_seconds, e.end_seconds))
        assert all(b.start_seconds >= a.end_seconds - 1e-9 for a, b in zip(mine, mine[1:], strict=False))
    when = {(e.stage, e.kind, e.chunk, e.micro_batch): e for e in events}
    assert len(when) == len(events)
    assert sum(e.kind == "forward" for e in events) == m * len(stages) * (2 if schedule in ("zb-v", "interleaved") else 1)
    for (rank, kind, chunk, i), e in when.items():
        if kind != "forward":
            before = when[rank, "inputs" if kind == "weight" else "forward", chunk, i]
            assert e.start_seconds >= before.end_seconds - 1e-9
    work = max(sum(e.end_seconds - e.start_seconds for e in mine) for mine in by_rank.values())
    assert seconds(events) >= work - 1e-9


FLAGS = ("--model", "30b", "--cluster", "32xA100-80G", "--framework", "megatron", "--tp", "4", "--pp", "4")


def test_a_trace_is_written_whole_and_never_over_a_file(run_planner: Runner) -> None:
    ended = run_planner("estimate", *FLAGS, "--trace", "step.json", "--json")
    assert ended.exit_code == 0, ended.err
    step = json.loads(ended.out)["time"]["step_seconds"]
    written = Path("step.json").read_text(encoding="utf-8")
    assert json.loads(written)["otherData"]["step_seconds"] == step
    again = run_planner("estimate", *FLAGS, "--trace", "step.json")
    assert (again.exit_code, again.out) == (1, "")
    assert "step.json exists; --force replaces it" in again.err
    assert Path("step.json").read_text(encoding="utf-8") == written
    Path("step.json").write_text("old", encoding="utf-8")
    assert run_planner("estimate", *FLAGS, "--trace", "step.json", "--force").exit_code == 0
    assert Path("step.json").read_text(encoding="utf-8") == written
    assert [p.name for p in Path().glob(".planner-*")] == []


RUN_BY = {
    "gpipe": ("torchtitan", "nanotron"),
    "1f1b": ("megatron", "torchtitan", "deepspeed", "megatron-zb"),
    "interleaved": ("megatron", "torchtitan", "megatron-zb"),
    "zb-h1": ("megatron-zb",),
    "zb-v": ("torchtitan", "megatron-zb"),
    "dualpipe": ("dualpipe",),
}
OF_A_PASS = ("compute.", "recompute.", "tp.", "cp.", "ep.", "zero.", "offload.layers", "host.launch", "pp.send", "pp.bubble")


@pytest.mark.parametrize(("schedule", "framework"), [(s, f) for s, names in RUN_BY.items() for f in names])
def test_every_schedule_is_drawn_from_the_command_line(run_planner: Runner, schedule: str, framework: str) -> None:
    """The last pass ends with the pipeline of the ledger, the last slice with the step."""
    flags = ["--model", "7b", "--cluster", "8xA100-80G", "--pp", "4", "--framework", framework, "--schedule", schedule]
    flags += ["--vpp", "2"] if schedule == "interleaved" else []
    flags += ["--no-compile"] if framework == "torchtitan" else []
    ended = run_planner("estimate", *flags, "--trace", "x.json", "--json", "--explain", "time")
    assert ended.exit_code in (0, 3), ended.err
    told = json.loads(ended.out)
    terms = told["explanation"]["time"]["terms"]
    pipeline = sum(t["exposed_seconds"] for t in terms if t["name"].startswith(OF_A_PASS))
    drawn = json.loads(Path("x.json").read_text(encoding="utf-8"))
    assert (drawn["otherData"]["schedule"], drawn["otherData"]["framework"]) == (schedule, framework)
    slices = [e for e in drawn["traceEvents"] if e["ph"] == "X"]
    passes = [e["ts"] * 1e-6 + e["args"]["pass_seconds"] for e in slices if "pass_seconds" in e["args"]]
    assert max(passes) == pytest.approx(pipeline, rel=1e-7)
    assert max(e["ts"] + e["dur"] for e in slices) * 1e-6 == pytest.approx(told["time"]["step_seconds"], abs=1e-6)
    assert {e["args"]["micro_batch"] for e in slices if "pass_seconds" in e["args"]} == set(range(64))
    bubble = next(t for t in terms if t["name"] == "pp.bubble")
    assert bubble["source"] == schedule_of(schedule).SOURCE


@pytest.mark.parametrize("schedule", RUN_BY)
def test_a_schedule_alone_finds_who_runs_it(run_planner: Runner, schedule: str) -> None:
    flags = ["--model", "7b", "--cluster", "8xA100-80G", "--pp", "4", "--schedule", schedule]
    flags += ["--vpp", "2"] if schedule == "interleaved" else []
    ended = run_planner("estimate", *flags, "--json")
    assert ended.exit_code in (0, 3), ended.err
    assert json.loads(ended.out)["training"]["framework"] in RUN_BY[schedule]
    unknown = run_planner("estimate", *flags, "--framework", "unknown")
    assert unknown.exit_code in (0, 3), unknown.err


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe"])
def test_a_search_under_a_rare_schedule_finds_who_runs_it(run_planner: Runner, schedule: str) -> None:
    flags = ("--model", "7b", "--cluster", "8xH100-80G", "--schedule", schedule, "--min", "pp=2", "--json")
    ended = run_planner("search", *flags)
    assert ended.exit_code == 0, ended.err
    best = json.loads(ended.out)["plans"][0]
    assert (best["training"]["framework"], best["layout"]["schedule"]) == (RUN_BY[schedule][-1], schedule)


def test_a_framework_without_the_schedule_says_who_has_it(run_planner: Runner) -> None:
    ended = run_planner("estimate", *FLAGS, "--schedule", "zb-h1")
    assert ended.exit_code == 2
    assert "schedule=zb-h1: run by megatron-zb; megatron offers schedules 1f1b, interleaved" in ended.err


def test_help_names_every_schedule(run_planner: Runner) -> None:
    told = run_planner("estimate", "--help").out
    assert all(name in told for name in names())


@pytest.mark.parametrize(
    ("name", "said"), [(".", "give a file name"), ("missing/step.json", "cannot be written"), ("a\0b", "no usable file name")]
)
def test_a_trace_that_cannot_be_written(run_planner: Runner, name: str, said: str) -> None:
    ended = run_planner("estimate", *FLAGS, "--trace", name)
    assert ended.exit_code in (1, 2)
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_trace_needs_training_and_its_own_file(run_planner: Runner) -> None:
    words = ("--model", "llama-3.1-8b", "--cluster", "1xH100-80G", "--method", "inference", "--global-batch", "1")
    ended = run_planner("estimate", *words, "--trace", "step.json")
    assert ended.exit_code == 1
    assert "this is inference" in ended.err
    assert not Path("step.json").exists()
    same = run_planner("estimate", *FLAGS, "--export", "megatron=x.json", "--trace", "x.json")
    assert (same.exit_code, Path("x.json").exists()) == (2, False)
