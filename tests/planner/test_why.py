"""Why not: the terms add up to what the kind loses, and what rules a kind out is told with its numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cost_models.numeric import num
from planner.asked import RequestError, make_request
from planner.cli import main
from planner.exists import any_plan
from planner.request import Resolved, resolve
from planner.search import best, frameworks, search
from planner.why import of_kind, parse_kind, why_not

if TYPE_CHECKING:
    from planner.answers import WhyNot


def asked(**request: Any) -> Resolved:
    return resolve(make_request({"model": "30b", "cluster": "32xA100-80G", **request}))


def why(resolved: Resolved, text: str, *, winner: bool = True) -> WhyNot:
    found = search(resolved, top=1, remedies=False).plans if winner else ()
    return why_not(
        resolved,
        text,
        found[0] if found else None,
        lambda r: search(r, top=1, remedies=False),
        lambda r: any_plan(r, frameworks, best),
        frameworks,
    )


def test_the_readme_example() -> None:
    """TP 4 · PP 4 · DP 2 for 30b on 32 A100: its best plan, and the terms in which it loses, which sum to the difference."""
    told = why(asked(), "tp=4,pp=4,dp=2")
    assert told.plan is not None
    assert told.winner is not None
    d = told.plan.layout.degrees
    assert (float(num(d.tp)), float(num(d.pp)), float(num(d.dp))) == (4.0, 4.0, 2.0)
    step, fastest = (float(num(p.cost.time.step_seconds)) for p in (told.plan, told.winner))
    assert step >= fastest
    assert sum(row.more for row in told.time) == pytest.approx(step - fastest, abs=1e-9 * step)
    assert sum(row.asked for row in told.time) == pytest.approx(step)
    assert [row.more for row in told.time] == sorted((row.more for row in told.time), reverse=True)
    peaks = [float(num(p.cost.memory.peak_device_bytes)) for p in (told.plan, told.winner)]
    assert sum(row.asked for row in told.memory) == pytest.approx(peaks[0])
    assert sum(row.winner for row in told.memory) == pytest.approx(peaks[1])


def test_it_is_the_best_of_its_kind() -> None:
    told = why(asked(), "tp=8,zero=1,recompute=full")
    alone = search(asked(tp=8, zero=1, recompute="full"), top=1, remedies=False).plans[0]
    assert told.plan is not None
    assert told.plan.layout == alone.layout


def test_the_kind_overrides_what_the_request_fixes() -> None:
    kind = of_kind(asked(tp=8, recompute="full"), "tp=2,offload=optimizer,params")
    assert kind.fixed["tp"] == 2
    assert kind.fixed["recompute"] == "full"
    assert kind.fixed["offload"] == "optimizer+params"
    assert kind.training == asked(tp=8).training


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=3", "tp=3 does not divide 56 attention heads"),
        ("tp=8,pp=8", "must equal 32 GPUs"),
        ("tp=4,pp=2,cp=1,dp=8", "4 × 2 × 1 × 8 must equal 32 GPUs; try dp=4"),
        ("tp=4,sequence_parallel=on,pp=1,ep=2", "has none"),
    ],
)
def test_broken_laws_are_told_with_their_numbers(text: str, says: str) -> None:
    told = why(asked(), text, winner=False)
    assert told.plan is None
    assert says in " | ".join(broken.message for broken in told.broken)


def test_wishes_rule_out_a_kind() -> None:
    told = why(asked(max=["tp=4"]), "tp=8", winner=False)
    assert any("--max tp=4" in broken.message for broken in told.broken)


def test_a_kind_that_is_too_large_misses_by_so_much() -> None:
    told = why(asked(framework="fsdp"), "zero=2,micro_batch=16,recompute=none,offload=none", winner=False)
    assert told.plan is None
    assert told.broken == ()
    assert told.near_misses[0].missing_bytes > 0
    assert dict(told.excluded)["memory"] > 0
    assert told.clash is not None
    assert any("GiB per GPU" in member.requirement for member in told.clash.members)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [("tp=4,qp=2", 6, "nearest: tp"), ("tp", 3, "FIELD=VALUE"), ("tp=4,pp=", 9, "FIELD=VALUE"), ("", 1, "FIELD=VALUE")],
)
def test_kinds_that_cannot_be_read(text: str, column: int, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_kind(text)
    assert says in caught.value.lines[0]
    assert f"(column {column})" in caught.value.lines[0]


@pytest.mark.parametrize("text", ["tp=x", "zero=9", "tp=0", "offload=moon"])
def test_values_that_do_not_exist(text: str) -> None:
    with pytest.raises(RequestError):
        of_kind(asked(), text)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["search", "--model", "Qwen/Qwen2.5-0.5B", "--cluster", "4xRTX4090", "--global-batch", "16", "--top", "2"]
    assert main([*request, "--why", "tp=2", "--why", "tp=3", "--pareto", "--sensitivity"]) == 0
    text = capsys.readouterr().out
    headings = ("Why not tp=2", "Why not tp=3", "Front of step time against memory", "1 GiB more on each GPU")
    for piece in (*headings, "plan 1", "does not divide"):
        assert piece in text
    assert all(len(line) <= 96 or line.lstrip().startswith(("Next", "planner")) for line in text.splitlines())
    assert main([*request, "--why", "tp=2", "--why", "tp=3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found, none = document["why"]
    assert found["plan"]["layout"]["tp"] == 2
    assert sum(row["asked"] - row["winner"] for row in found["time"]) == pytest.approx(
        found["plan"]["step_seconds"] - document["plans"][0]["time"]["step_seconds"]
    )
    assert none["plan"] is None
    assert none["broken"]
    assert main([*request, "--why", "qq=4"]) == 2
    assert "unknown layout field 'qq'" in capsys.readouterr().err
