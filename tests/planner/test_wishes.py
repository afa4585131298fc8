"""Wishes: the language against Python's own reading, searches with wishes against filtering everything, objectives too."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.numeric import num
from planner.asked import RequestError, make_request
from planner.cli import main
from planner.evaluate import fitting, totals
from planner.exists import any_plan, at_extremes
from planner.expression import parse
from planner.measures import layout_values, result_values
from planner.objectives import pareto, planned, tokens_per_dollar
from planner.request import Resolved, resolve
from planner.search import best, frameworks, search, spaces
from planner.space import Counts
from planner.tokens import ExpressionError
from planner.wish import NAMES, parse_wishes

if TYPE_CHECKING:
    from planner.plan import Plan

VALUES: dict[str, Any] = {
    **{name: np.array([1.0, 2.0, 8.0]) for name, about in NAMES.items() if about.kind == "number"},
    **{name: np.array([1.0, 2.0, 8.0]) * 2.0**30 for name, about in NAMES.items() if about.kind == "bytes"},
    **{name: about.words[0] for name, about in NAMES.items() if about.kind == "word"},
    "step": np.array([0.5, 2.0, 60.0]),
    "sequence_parallel": True,
}

PIECES = [*NAMES, "<=", "=", "*", "(", ")", "and", "not", "70GiB", "8", "1f1b", " ", "-"]


def asked(**request: Any) -> Resolved:
    return resolve(make_request({"model": "Qwen/Qwen2.5-0.5B", "cluster": "4xRTX4090", "global_batch": 16, **request}))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tp*cp <= 8", [True, True, False]),
        ("tp × cp ≤ 8", [True, True, False]),
        ("memory <= 2GiB", [True, True, False]),
        ("memory<=2.0 GiB and step < 1 s", [True, False, False]),
        ("step <= 1min", [True, True, True]),
        ("1 < tp <= 4", [False, True, False]),
        ("not tp = 2", [True, False, True]),
        ("tp=1 or tp == 8 and pp != 8", [True, False, False]),
        ("(tp=1 or tp=8) and pp != 1", [False, False, True]),
        ("-tp < -1.5", [False, True, True]),
        ("tp/2 + 1 >= 2", [False, True, True]),
        ("mfu >= 150%", [False, True, True]),
        ("memory / 2 <= 1GiB", [True, True, False]),
        ("2 * step > memory / 1GiB * 1s", [False, True, True]),
        ("micro-batch > 1 && micro_batch < 8", [False, True, False]),
        ("sequence_parallel", [True] * 3),
        ("sequence_parallel = off", [False] * 3),
        ("schedule != interleaved", [True] * 3),
        ("offload = optimizer+params or 'none' = offload", [True] * 3),
        ("tp - 1", None),
    ],
)
def test_conditions(text: str, wanted: list[bool] | None) -> None:
    if wanted is None:
        with pytest.raises(ExpressionError):
            parse(text, NAMES)
        return
    told = np.broadcast_to(np.asarray(parse(text, NAMES).evaluate(VALUES)), (3,))
    assert told.tolist() == wanted


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("tp*cq <= 8", 4, "nearest: cp"),
        ("memory <= 70", 11, "70GiB"),
        ("memory <= 70GBB", 13, "'GBB' is no unit"),
        ("tp <=", 6, "missing"),
        ("(tp <= 8", 9, "column 1 is not closed"),
        ("tp = 4 pp = 2", 8, "join conditions with and"),
        ("offload < none", 9, "has no order"),
        ("schedule = interleved", 12, "unknown name"),
        ("schedule = full", 12, "is no schedule"),
        ("tp", 1, "compare it"),
        ("tp + memory <= 8", 4, "has no meaning"),
        ("tp <= 8 and pp", 13, "joins conditions"),
        ("zero = sequence_parallel", 8, "zero"),
        ("", 1, "nothing is said"),
        ("tp ? 4", 4, "cannot be read"),
        ("(" * 60 + "tp", 42, "nested"),
    ],
)
def test_errors_point_at_the_place(text: str, column: int, says: str) -> None:
    with pytest.raises(ExpressionError, match=r"\(column") as caught:
        parse(text, NAMES)
    message, shown, caret = f"{caught.value}".split("\n")
    assert f"(column {column})" in message
    assert says in message
    assert caret.index("^") - 2 == column - 1
    assert shown.strip() == text.strip()


@settings(deadline=None, max_examples=400)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_a_condition_or_refused_with_a_place(text: str) -> None:
    try:
        read = parse(text, NAMES)
    except ExpressionError as error:
        assert 0 <= error.at <= len(text)
        return
    told = np.asarray(read.evaluate(VALUES))
    assert told.dtype == bool
    assert told.shape in ((), (3,))


def _random_text(choose: random.Random, depth: int) -> str:
    """A condition that Python reads alike, over tp, pp and micro_batch."""
    if depth and choose.random() < 0.6:
        left, right = _random_text(choose, depth - 1), _random_text(choose, depth - 1)
        return choose.choice([f"({left}) and ({right})", f"{left} or {right}", f"not ({left})"])
    amounts = [choose.choice(["tp", "pp", "micro_batch", "3", "0.5"]) for _ in range(4)]
    left = f"{amounts[0]} {choose.choice('+-*')} {amounts[1]}"
    right = choose.choice([amounts[2], f"({amounts[2]} / 2 - {amounts[3]})"])
    return f"{left} {choose.choice(['<', '<=', '>', '>=', '==', '!='])} {right}"


def test_conditions_mean_what_python_means() -> None:
    choose = random.Random(7)
    for _ in range(300):
        text = _random_text(choose, 3)
        told = np.broadcast_to(np.asarray(parse(text, NAMES).evaluate(VALUES)), (3,))
        for i in range(3):
            names = {name: float(VALUES[name][i]) for name in ("tp", "pp", "micro_batch")}
            assert bool(told[i]) == bool(eval(text, {"__builtins__": {}}, names)), text  # the oracle, on our own text


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [("max", "pp=8", "pp <= 8"), ("min", "micro-batch = 2", "micro-batch >= 2"), ("max", "memory=70GiB", "memory <= 70GiB")],
)
def test_limits(flag: Any, text: str, words: str) -> None:
    (wish,), problems = parse_wishes(flag, [text])
    assert not problems
    assert wish.words == words


@pytest.mark.parametrize(("text", "column"), [("pp", 3), ("pp<=8", 3), ("pp=8GiB", 4), ("qq=8", 1), ("pp=8 and tp=2", 1), ("pp==8", 3)])
def test_bad_limits_point_at_the_place(text: str, column: int) -> None:
    made, problems = parse_wishes("max", [text])
    assert not made
    assert f"(column {column})" in problems[0]


def every_plan(resolved: Resolved) -> list[tuple[float, float, dict[str, Any]]]:
    """Step seconds, device bytes and names of every plan of the grid without reliefs."""
    found = []
    for pool in resolved.cluster.pools:
        for group in spaces(resolved, pool, Counts()):
            for v in range(len(group.variants)):
                rows = np.flatnonzero(group.lawful[v])
                if len(rows):
                    layout = group.layouts(v, rows)
                    got = totals(group.case, layout)
                    names = layout_values(group.case, layout)
                    for i in np.flatnonzero(fitting(group.case, got)):
                        row = {n: x if isinstance(x, str | int | float) else float(x[i if len(x) > 1 else 0]) for n, x in names.items()}
                        found.append((float(got.step_seconds[i]), float(got.device_bytes[i]), row))
    return found


@pytest.mark.parametrize(
    "wishes",
    [
        {"require": ["tp*cp <= 2"]},
        {"forbid": ["zero=3", "framework = megatron"]},
        {"max": ["micro_batch=2"], "require": ["recompute != full"]},
        {"min": ["pp=2"], "forbid": ["offload != none or sequence_parallel"]},
        {"require": ["accumulation >= 4 and dp < 4"]},
    ],
)
def test_a_search_with_wishes_is_everything_filtered(wishes: dict[str, Any]) -> None:
    """Plans keep the wishes, and the best is at least as good as the best of all plans that keep them."""
    plain, wished = asked(), asked(**wishes)
    kept = [p for p in every_plan(plain) if all(wish.holds(p[2]) for wish in wished.wishes)]
    result = search(wished, top=5, remedies=False)
    assert kept
    assert step(result.plans[0]) <= min(p[0] for p in kept)
    for plan in result.plans:
        assert kept_by(wished, plan)


def kept_by(resolved: Resolved, plan: Plan) -> bool:
    case = resolved.case(plan.pool, plan.training.framework)
    values = {**layout_values(case, plan.layout), **result_values(case, plan.cost)}
    return all(bool(np.asarray(wish.holds(values)).all()) for wish in resolved.wishes)


@pytest.mark.parametrize(
    "wish", ["memory <= 12GiB", "step <= 2s", "mfu >= 20%", "headroom >= 10GiB", "step <= 3s and memory < 14GiB", "host_memory = 0B"]
)
def test_wishes_about_results(wish: str) -> None:
    resolved = asked(require=[wish])
    result = search(resolved, top=5, remedies=False)
    plain = [p for p in search(asked(), top=200, remedies=False).plans if kept_by(resolved, p)]
    assert bool(result.plans) or not plain
    for plan in result.plans:
        assert kept_by(resolved, plan)
    if plain and result.plans:
        assert step(result.plans[0]) <= step(plain[0])


def step(plan: Plan) -> float:
    return float(num(plan.cost.time.step_seconds))


def size(plan: Plan) -> float:
    return float(num(plan.cost.memory.peak_device_bytes))


def test_fix_is_the_layout_flag() -> None:
    assert asked(fix=["tp=2", "zero=1", "recompute=full"]).fixed == asked(tp=2, zero=1, recompute="full").fixed
    assert asked(require=["zero=1", "tp == 2"]).fixed == asked(zero=1, tp=2).fixed
    assert asked(require=["zero=1"]).wishes == ()


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"fix": ["tpp=8"]}, "nearest: tp"),
        ({"fix": ["tp"]}, "FIELD=VALUE"),
        ({"fix": ["tp=2"], "tp": 4}, "asked for too"),
        ({"fix": ["zero=7"]}, "zero"),
        ({"require": ["tp <"], "forbid": ["xx"]}, "--forbid"),
        ({"objective": "cost"}, "price"),
        ({"require": ["tokens_per_dollar > 5"]}, "price"),
        ({"objective": "beauty"}, "objective"),
    ],
)
def test_bad_wishes_are_refused(wishes: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**wishes)
    assert says in "\n".join(caught.value.lines)


def test_the_command_shows_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "--model", "gpt2", "--cluster", "2xRTX4090", "--require", "tp*cq <= 8", "--max", "pp=8GiB"]
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("unknown name 'cq'; nearest: cp (column 4)" in line for line in lines)
    at = next(i for i, line in enumerate(lines) if "tp*cq <= 8" in line and "column" not in line)
    assert lines[at + 1].index("^") == lines[at].index("cq")


def test_least_memory() -> None:
    """No plan of the grid needs less than the first, and each is the leanest of its degrees."""
    result = planned(asked(objective="memory"), top=4)
    everything = every_plan(asked())
    assert size(result.plans[0]) == min(p[1] for p in everything)
    assert [size(p) for p in result.plans] == sorted(size(p) for p in result.plans)


def test_front_is_what_nothing_beats() -> None:
    resolved = asked()
    whole = every_plan(resolved)
    ends: dict[float, float] = {}
    least = math.inf
    for seconds, held, _ in sorted(whole, key=lambda p: (p[0], p[1])):
        if held < least:
            ends[seconds], least = held, held
    shown, count = pareto(resolved)
    assert count == len(ends)
    assert len(shown) <= 12
    assert all(ends[step(p)] == size(p) for p in shown)
    assert step(shown[0]) == min(ends)
    assert size(shown[-1]) == min(ends.values())
    seeded, _ = pareto(resolved, search(resolved, remedies=False).plans)
    assert step(seeded[0]) <= step(shown[0])


def test_fewest_gpus() -> None:
    """8B in full without offload fits 4 of these 8 GPUs and not 2."""
    request = {"model": "llama-3.1-8b", "cluster": "8xA100-80G", "offload": "none", "global_batch": 16}
    result = planned(resolve(make_request({**request, "objective": "gpus"})), top=2)
    fewest = {p.pool.count for p in result.plans}
    assert len(fewest) == 1
    (count,) = fewest
    for fewer in (1, 2, 4):
        if fewer < count:
            assert search(resolve(make_request({**request, "cluster": f"{fewer}xA100-80G"})), remedies=False).status == "infeasible"
    assert search(resolve(make_request({**request, "cluster": f"{count}xA100-80G"})), remedies=False).plans


def test_most_tokens_per_dollar() -> None:
    resolved = resolve(make_request({"model": "llama-3.1-8b", "cluster": "2xp4d.24xlarge", "objective": "cost", "global_batch": 32}))
    result = planned(resolved, top=4)
    bought = [tokens_per_dollar(p) for p in result.plans]
    assert None not in bought
    assert bought == sorted(bought, reverse=True)  # type: ignore[type-var]
    by_time = planned(resolve(make_request({"model": "llama-3.1-8b", "cluster": "2xp4d.24xlarge", "global_batch": 32})), top=1).plans[0]
    assert (bought[0] or 0.0) >= (tokens_per_dollar(by_time) or 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_whether_there_is_a_plan_agrees_with_the_search(seed: int) -> None:
    choose = random.Random(seed)
    request: dict[str, Any] = {
        "model": choose.choice(["Qwen/Qwen2.5-0.5B", "llama-3.1-8b"]),
        "cluster": choose.choice(["1xRTX4090", "2xRTX4090", "4xA100-40G"]),
        "global_batch": choose.choice([8, 32]),
        "method": choose.choice(["full", "full", "lora"]),
    }
    request |= choose.choice([{}, {"offload": "none"}, {"zero": 3}, {"micro_batch": 8}, {"recompute": "none"}])
    request |= choose.choice([{}, {"max": ["memory=9GiB"]}, {"require": ["step <= 4s"]}, {"require": ["mfu >= 45%"]}])
    resolved = resolve(make_request(request))
    found = at_extremes(resolved, frameworks)
    wanted = best(resolved)
    assert not found.sure or (found.plan is not None) == (wanted is not None)
    some = any_plan(resolved, frameworks, best)
    assert (some is not None) == (wanted is not None)
    if some is not None:
        assert kept_by(resolved, some)
        assert some.fits
