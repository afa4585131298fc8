"""Explanations: shown terms add up to the ledger, numbers give their terms, what bounds a term, sources, and the look of it all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.choices.schedules import interleaved, one_f_one_b
from cost_models.ledger import add
from cost_models.numeric import num
from planner.asked import make_request
from planner.assess import assess
from planner.explain.bounds import bounds
from planner.explain.figures import numbers
from planner.explain.memory import MEANINGS, explain_memory
from planner.explain.sources import sources
from planner.explain.step import explain_time
from planner.report.explain import Notes, apportion, memory_lines
from planner.report.explain_time import time_lines
from planner.report.look import WIDTH, Look, visible
from planner.report.schema_page import page
from planner.request import resolve

if TYPE_CHECKING:
    from planner.plan import Plan

Runner = Callable[..., Any]
A100 = {"model": "30b", "cluster": "32xA100-80G", "framework": "megatron"}
PLANS: dict[str, dict[str, Any]] = {
    "pipeline": {**A100, "tp": 4, "pp": 4, "recompute": "selective"},
    "interleaved": {**A100, "tp": 4, "pp": 4, "vpp": 3, "schedule": "interleaved"},
    "some layers recomputed": {**A100, "tp": 4, "pp": 4, "recompute": "full", "recompute_layers": 5},
    "experts": {"model": "mixtral-8x7b", "cluster": "32xH100-80G", "framework": "megatron", "tp": 2, "pp": 2, "ep": 8, "recompute": "full"},
    "zero3 offload": {"model": "llama-3.1-8b", "cluster": "16xH100-80G", "framework": "deepspeed", "zero": 3, "offload": "optimizer:0.5"},
    "fsdp": {"model": "llama-3.1-8b", "cluster": "16xH100-80G", "framework": "fsdp"},
    "activations offloaded": {"model": "llama-3.1-8b", "cluster": "8xH100-80G", "framework": "fsdp", "offload": "activations"},
    "qlora": {"model": "llama-3.1-8b", "cluster": "1xRTX4090", "method": "qlora", "global_batch": 8},
    "inference": {"model": "llama-3.1-8b", "cluster": "1xH100-80G", "method": "inference", "global_batch": 1},
}


@cache
def planned(name: str) -> Plan:
    """The plan of one of PLANS."""
    found = assess(resolve(make_request(PLANS[name])))
    assert found.plan is not None, found.broken
    return found.plan


@pytest.mark.parametrize("name", PLANS)
def test_memory_terms_sum_to_the_ledger_on_every_stage_and_phase(name: str) -> None:
    plan = planned(name)
    m, e = plan.cost.memory, explain_memory(plan)
    assert len(e.stages) == int(num(plan.layout.degrees.pp))
    for s in e.stages:
        for phase in s.phases:
            assert float(add(t.bytes for t in phase.terms)) == phase.total_bytes
        assert s.peak.total_bytes == s.allocated_bytes == max(p.total_bytes for p in s.phases)
        assert sum(t.bytes for t in (*s.peak.terms, *s.reserved)) == pytest.approx(s.reserved_bytes, rel=1e-12)
        assert sum(t.bytes for t in (*s.peak.terms, *s.reserved, *s.device)) == pytest.approx(s.device_bytes, rel=1e-12)
    assert e.stages[e.peak].device_bytes == float(num(m.peak_device_bytes)) == max(s.device_bytes for s in e.stages)
    assert sum(t.bytes for t in e.host) == pytest.approx(float(num(m.host_bytes_per_node)), rel=1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_numbers_give_the_terms_and_no_large_term_lacks_them(name: str) -> None:
    """Constants of a calibration are one figure; everything else that matters shows what it is made of."""
    plan = planned(name)
    one_figure = ("overhead.device.context", "buffers.workspace", "kv_cache", "activations.ends", "offload.transfer", "host.between_steps")
    e = explain_memory(plan)
    for s in e.stages:
        for term in (*s.peak.terms, *s.reserved, *s.device, *e.host):
            assert term.numbers is None or term.numbers.result() == pytest.approx(term.bytes, rel=1e-9)
            large = abs(term.bytes) > 0.01 * s.device_bytes and not term.name.startswith(one_figure)
            assert term.numbers is not None or not large, term.name
            assert term.source
    time = explain_time(plan)
    for t in time.terms:
        assert t.numbers is None or t.numbers.result() == pytest.approx(t.seconds, rel=1e-9)
        assert t.numbers is not None or t.seconds < 0.01 * time.step_seconds or t.name.startswith((*one_figure, "decode")), t.name
        assert t.source
        assert t.formula
        assert "hidden" not in t.formula
        assert t.name == "decode.step" or bool(t.hidden) == (t.exposed_seconds < t.seconds * (1.0 - 1e-9)), t.name


def test_numbers_are_those_of_the_layout() -> None:
    """What is shown is looked up, not fitted: parameters of the stage, ranks, layers, and micro-batches in flight of the schedule."""
    plan = planned("pipeline")
    e = explain_memory(plan)
    for k, s in enumerate(e.stages):
        terms = {t.name: t.numbers for t in s.phases[1].terms if t.numbers is not None}
        flight = {f.name: f.value for f in terms["activations.attention"].figures}
        assert flight["in flight"] == pytest.approx(float(num(one_f_one_b.in_flight(np.float64(k), 4.0, 1.0, plan.micro_batches))))
        assert flight["layers"] == s.layers == 12
        master = {f.name: f.value for f in terms["optimizer.master.dense"].figures}
        assert (master["bytes"], master["ranks"]) == (4.0, 2.0)
    parameters = sum(t.numbers.first.value for s in e.stages for t in s.peak.terms if t.name == "weights.dense" and t.numbers is not None)
    assert parameters * 4 == pytest.approx(29.97e9, rel=0.02)  # the tied matrix stands on both ends
    spread = explain_memory(planned("interleaved"))
    shown = next(t.numbers for t in spread.stages[0].phases[1].terms if t.name == "activations.attention")
    assert shown is not None
    assert shown.figures[-1].value == pytest.approx(float(num(interleaved.in_flight(num(0.0), num(4.0), num(3.0), num(64.0)))))


@pytest.mark.parametrize("name", PLANS)
def test_exposed_seconds_sum_to_the_step_and_mfu_to_its_figures(name: str) -> None:
    plan = planned(name)
    e = explain_time(plan)
    assert sum(t.exposed_seconds for t in e.terms) == pytest.approx(e.step_seconds, rel=1e-12)
    assert e.step_seconds == float(num(plan.cost.time.step_seconds))
    assert e.mfu.result() == pytest.approx(float(num(plan.cost.time.mfu)), rel=1e-12)
    assert e.hfu.result() == pytest.approx(float(num(plan.cost.time.hfu)), rel=1e-12)
    assert all((t.bound is None) == (t.seconds == 0.0) for t in e.terms)
    assert all(abs(sum(part for _, part in t.bound.parts) - 1.0) < 0.1 for t in e.terms if t.bound is not None)


def test_what_bounds_the_terms() -> None:
    pipeline = bounds(planned("pipeline"))
    assert pipeline["compute.gemm_forward"].words == "compute"
    assert pipeline["pp.bubble"].words == "bubble"
    assert pipeline["optimizer.update"].words == "memory"
    assert pipeline["tp.forward"].parts[0][0] == "link"  # tp 4 stays inside a server
    assert pipeline["dp.reduce"].parts[0][0] == "link"  # and so do its two replicas
    assert bounds(planned("experts"))["dp.reduce"].parts[0][0] == "NIC"
    assert {name for name, _ in pipeline["compute.memory_forward"].parts} == {"memory", "launch"}
    offloaded = bounds(planned("zero3 offload"))
    assert offloaded["offload.transfer"].words == "host link"
    assert offloaded["offload.cpu_optimizer"].words == "host CPU"
    assert offloaded["zero.forward"].parts[0][0] in ("NIC", "link")


def test_sources_are_those_of_the_terms_each_once() -> None:
    found = sources(planned("pipeline"))
    assert len({(s.kind, s.text) for s in found}) == len(found)
    assert all(s.text and s.used_by for s in found)
    text = "\n".join(s.text for s in found)
    assert "arXiv 2104.04473" in text
    assert "hardware/measured/ampere.toml" in text
    assert "measured/hopper" not in text
    assert not any("zero3" in user or user.startswith("offload") for s in found for user in s.used_by)
    assert "hardware/measured/host.toml" in "\n".join(s.text for s in sources(planned("zero3 offload")))


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30), st.sampled_from([0.01, 1.0, 7.5]))
def test_apportioned_figures_add_up_and_stay_near(values: list[float], step: float) -> None:
    units = round(sum(values) / step)
    shown = apportion(values, units, step)
    assert sum(shown) == units
    assert all(abs(s * step - v) <= step * 1.001 for s, v in zip(shown, values, strict=True))


def test_figures_in_words() -> None:
    found = numbers("parameters", 3.8e9, "parameter").times("bytes", 4.0, "bytes").over("ranks", 1.0, "rank")
    assert found.show() == "3.80 B parameters × 4 bytes / 1 rank"
    assert found.gives(15.2e9)
    assert not found.gives(15.3e9)
    assert numbers("micro-batches", 128.0, "micro-batch").times("each", 0.0635, "seconds").show() == "128 micro-batches × 63.5 ms"


def _columns(lines: list[str], pattern: str) -> list[float]:
    return [float(found[1]) for line in lines if (found := re.match(pattern, line))]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [WIDTH, 80])
def test_the_text_fits_and_adds_up_as_shown(name: str, width: int) -> None:
    plan, look, notes = planned(name), Look(width=width), Notes()
    lines = memory_lines(explain_memory(plan), look, notes)
    time = time_lines(explain_time(plan), look, notes)
    assert max(len(line) for line in (*lines, *time, *notes.lines(look)) if not re.match(r"\s+\S+$", line)) <= width
    assert "\xa0" not in "\n".join((*lines, *time))
    rule = next(i for i, line in enumerate(lines) if line.strip() and not line.strip().strip("─"))
    buckets, allocated = _columns(lines[:rule], r" {0,6}(-?\d+\.\d+)  [a-z]"), _columns(lines[rule:], r"\s*(-?\d+\.\d+)  allocated")
    terms = _columns(lines[:rule], r" {9,}(-?\d+\.\d+)  ")
    assert sum(buckets) == pytest.approx(allocated[0], abs=1e-6)
    assert sum(terms) == pytest.approx(allocated[0], abs=1e-6)
    steps = _columns(time, r"\s+([\d.]+)\s+100 %  step")
    assert sum(_columns(time, r"\s*[\d.]+\s+([\d.]+)\s+[\d.]+ %  ")) == pytest.approx(steps[0], abs=1e-6)
    assert all(f"[{i}]" in "\n".join((*lines, *time)) for i in range(1, len(notes.texts) + 1))
    assert all(word in "\n".join(lines) for word in MEANINGS)


def test_colour_changes_nothing_but_colour() -> None:
    plan = planned("pipeline")
    plain, coloured = ([*memory_lines(explain_memory(plan), look, Notes())] for look in (Look(), Look(colour=True)))
    assert [visible(line) for line in coloured] == plain


FLAGS = ("--model", "30b", "--cluster", "32xA100-80G", "--framework", "megatron", "--tp", "4", "--pp", "8")


def test_explain_on_the_command_line(run_planner: Runner) -> None:
    ended = run_planner("estimate", *FLAGS, "--explain", "memory,time", "--explain", "time", "--explain-stages", "all", "--sources")
    assert ended.exit_code == 0, ended.err
    assert "parameters × 4 bytes (master)" in ended.out
    assert "torch.cuda.max_memory_reserved" in ended.out
    assert "compute.gemm_forward" in ended.out
    assert "Calibrations" in ended.out
    assert ended.out.count("Stages (GiB") == 1
    assert re.search(r"^\s+7  ", ended.out.split("Stages (GiB")[1], re.M)
    few = run_planner("estimate", *FLAGS, "--explain", "memory")
    assert "8 stages; --explain-stages all shows every one" in few.out
    assert "compute.gemm_forward" not in few.out


def test_words_that_are_not_known_are_refused(run_planner: Runner) -> None:
    ended = run_planner("estimate", *FLAGS, "--explain", "memory,speed", "--explain-stages", "most")
    assert (ended.exit_code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 2
    assert "'speed': it is one of memory, time" in ended.err


def test_the_json_holds_every_term(run_planner: Runner) -> None:
    ended = run_planner("estimate", *FLAGS, "--explain", "memory,time", "--json")
    assert ended.exit_code == 0, ended.err
    document = json.loads(ended.out)
    memory, time = document["explanation"]["memory"], document["explanation"]["time"]
    assert document["explanation"]["sources"] is None
    assert [s["stage"] for s in memory["stages"]] == list(range(8))
    peak = memory["stages"][memory["peak_stage"]]
    shown = next(p for p in peak["phases"] if p["phase"] == peak["highest_phase"])
    total = sum(t["bytes"] for t in (*shown["terms"], *peak["reserved_terms"], *peak["device_terms"]))
    assert total == pytest.approx(document["memory"]["peak_device_bytes"], rel=1e-12)
    assert sum(t["exposed_seconds"] for t in time["terms"]) == pytest.approx(document["time"]["step_seconds"], rel=1e-12)
    assert sum(t["share"] for t in time["terms"]) == pytest.approx(1.0)
    assert "explanation" in json.loads(run_planner("estimate", *FLAGS, "--json").out)


def test_search_explains_the_best_plan_and_the_nearest_miss(run_planner: Runner) -> None:
    found = run_planner("search", "--model", "llama-3.1-8b", "--cluster", "8xH100-80G", "--framework", "megatron", "--explain", "memory")
    assert found.exit_code == 0, found.err
    assert "Memory of plan 1" in found.out
    words = ("--model", "llama-3.1-70b", "--cluster", "1xA100-40G", "--framework", "megatron", "--offload", "none", "--tp", "1")
    none = run_planner("search", *words, "--explain", "memory", "--json")
    assert none.exit_code == 3
    document = json.loads(none.out)
    assert bool(document["near_misses"]) == (document["explanation"] is not None)


def test_the_schema_page_has_the_explanation(root: Any) -> None:
    assert "## MemoryExplanationRecord" in page()
    assert (root / "docs" / "schema.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", PLANS)
def test_what_hides_is_said_beside_the_formula(name: str) -> None:
    """A term that nothing hides is as long exposed as it is busy, to the last digit shown; any other says how much hides behind what."""
    e = explain_time(planned(name))
    terms = {t.name: t for t in e.terms}
    shown = [line.strip() for line in time_lines(e, Look(width=200), Notes())]
    row = re.compile(r"([\d.,]+) +([\d.,]+) +[\d.]+ % +([a-z_.]+)( |$)")
    rows = [(found, shown[i + 1]) for i, line in enumerate(shown) if (found := row.match(line))]
    assert len(rows) >= 3
    for found, formula in rows:
        busy, exposed, term = found.group(1, 2, 3)
        assert ("hidden behind" in formula) == bool(terms[term].hidden)
        assert terms[term].hidden or busy == exposed
