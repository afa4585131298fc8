"""Clash and remedies: random infeasible requests, each clash minimal, each suggested change made and searched again."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.numeric import num
from planner.asked import Request, RequestError, make_request
from planner.clash import clash_for
from planner.cli import main
from planner.exists import any_plan
from planner.measures import layout_values, result_values
from planner.remedies import remedies_for
from planner.request import Resolved, resolve
from planner.requirements import Requirement, requirements
from planner.rules import broken
from planner.search import best, frameworks, search

if TYPE_CHECKING:
    from planner.plan import ClashMember, Plan, SearchResult
    from planner.wish import Wish

MODELS = ("Qwen/Qwen2.5-0.5B", "gpt2", "llama-3.1-8b", "Qwen/Qwen2.5-7B", "gpt-neox-20b")
CLUSTERS = ("1xRTX4090", "2xRTX3090-24G", "4xA100-40G", "1xH100-80G", "8xV100-32G", "3xRTX4090")
PIECES: tuple[dict[str, Any], ...] = (
    {"offload": "none"},
    {"offload": "none", "recompute": "none"},
    {"tp": 3},
    {"tp": 2, "pp": 2},
    {"dp": 8},
    {"micro_batch": 64},
    {"micro_batch": 3},
    {"zero": 3, "pp": 2},
    {"zero": 0},
    {"global_batch": 7},
    {"seq": 32768},
    {"method": "lora"},
    {"framework": "deepspeed", "tp": 2},
    {"optimizer": "muon", "framework": "torchtitan"},
    {"precision": "fp8"},
    {"precision": "fp32", "offload": "none"},
    {"max": ["memory=3GiB"]},
    {"max": ["memory=2GiB", "host_memory=4GiB"]},
    {"require": ["tp > 2"]},
    {"require": ["step <= 1ms"]},
    {"require": ["sequence_parallel"], "tp": 1},
    {"forbid": ["tp=1 and pp=1"], "max": ["dp=1"]},
    {"min": ["mfu=99%"]},
    {"min": ["accumulation=4096"]},
)
FLAGS = {f"--{name.replace('_', '-')}": name for name in Request.model_fields}


def exists(resolved: Resolved) -> Plan | None:
    return any_plan(resolved, frameworks, best)


def random_request(choose: random.Random) -> dict[str, Any]:
    request: dict[str, Any] = {"model": choose.choice(MODELS), "cluster": choose.choice(CLUSTERS)}
    for piece in choose.sample(PIECES, choose.choice((1, 1, 2, 3))):
        for key, value in piece.items():
            request[key] = [*request.get(key, []), *value] if isinstance(value, list) else value
    return request


def infeasible(seed: int) -> tuple[dict[str, Any], Resolved, SearchResult]:
    """The first infeasible request of a seed."""
    choose = random.Random(seed)
    while True:
        request = random_request(choose)
        try:
            resolved = resolve(make_request(request))
        except RequestError:
            continue
        if exists(resolved) is None:
            result = search(resolved, top=1, remedies=False)
            if result.status == "infeasible":
                return request, resolved, result


def dropped(resolved: Resolved, gone: list[Requirement]) -> list[Resolved]:
    """All requests that dropping some requirements allows, at their most permissive and at their least."""
    found = []
    for number in (0, -1):
        made = resolved
        for requirement in gone[::-1]:
            options = requirement.relax(made)
            made = options[number]
        found.append(made)
    return found


def check_member(resolved: Resolved, member: ClashMember, members: tuple[ClashMember, ...]) -> None:
    """The plan that the clash allows without `member` is lawful and keeps all its other members."""
    plan = member.plan
    assert plan is not None
    case = resolved.case(plan.pool, plan.training.framework)
    assert broken(type(case)(architecture=case.architecture, training=plan.training, pool=plan.pool, given=case.given), plan.layout) == ()
    for requirement in requirements(resolved):
        if requirement.words != member.requirement and requirement.words in {m.requirement for m in members}:
            assert keeps(resolved, plan, requirement), f"without {member.requirement} the plan breaks {requirement.words}"
    if member.requirement in {r.words for r in requirements(resolved) if r.id not in ("memory", "host_memory", "nvme")}:
        (own,) = [r for r in requirements(resolved) if r.words == member.requirement]
        assert not keeps(resolved, plan, own) or own.id in ("offload", "recompute"), f"{member.requirement} is kept after all"


def keeps(resolved: Resolved, plan: Plan, requirement: Requirement) -> bool:
    """Whether a plan keeps one requirement of a request, judged from its numbers."""
    t, given, pool = plan.training, resolved.training, resolved.cluster.pools[0]
    name = requirement.id
    own = replace(resolved.case(), training=t, wishes=())  # the card and the server alone, for what the plan trains
    if name in ("method", "seq", "global_batch", "attention", "mtp"):
        return bool(getattr(t, name) == getattr(given, name))
    if name == "states":
        return (t.precision, t.optimizer, t.regime) == (given.precision, given.optimizer, given.regime)
    if name == "gpus":
        return plan.pool.count == pool.count
    if name == "memory":
        return float(num(plan.cost.memory.peak_device_bytes)) <= own.limit_bytes
    if name in ("host_memory", "nvme"):
        limit = own.host_limit_bytes if name == "host_memory" else pool.node.nvme_bytes
        used = plan.cost.memory.host_bytes_per_node if name == "host_memory" else plan.cost.memory.nvme_bytes_per_node
        return limit is not None and float(num(used)) <= limit
    if name == "framework":
        return t.framework in resolved.frameworks
    if name.startswith("wish "):
        return holds(resolved, plan, resolved.wishes[int(name.split()[1])])
    return all(_value(plan, field) == resolved.fixed[field] for field in _fields(resolved, name))


def _fields(resolved: Resolved, name: str) -> list[str]:
    groups = {"offload": ("offload", "offload_fraction", "activation_offload", "offload_target")}
    groups["recompute"] = ("recompute", "recompute_layers", "recompute_modules")
    return [field for field in groups.get(name, (name,)) if field in resolved.fixed]


def _value(plan: Plan, field: str) -> object:
    choice = getattr(plan.layout.choices, field, None)
    return float(num(getattr(plan.layout.degrees, field))) if choice is None else choice


def holds(resolved: Resolved, plan: Plan, wish: Wish) -> bool:
    case = replace(resolved.case(plan.pool, plan.training.framework), training=plan.training)
    values = {**layout_values(case, plan.layout), **result_values(case, plan.cost)}
    return bool(np.asarray(wish.holds(values)).all())


def check_clash(resolved: Resolved) -> int:
    """Check the clash of an infeasible request; return its size."""
    clash = clash_for(resolved, exists)
    assert clash.minimal, f"{clash.searches} searches"
    names = {m.requirement for m in clash.members}
    every = requirements(resolved)
    others = [r for r in every if r.words not in names]
    for allowed in dropped(resolved, others):
        if clash.members:
            assert exists(allowed) is None, "what clashes has a plan"
    for member in clash.members:
        check_member(resolved, member, clash.members)
        (own,) = [r for r in every if r.words == member.requirement]
        assert member.enough == any(exists(one) is not None for one in own.relax(resolved))
    return len(clash.members)


def changed(request: dict[str, Any], flags: str) -> Resolved | None:
    """The request with the flags of a remedy, resolved anew; None where the flags are told in words."""
    made = dict(request)
    without = flags.startswith("(without ")
    if not without and not flags.startswith("--"):
        return None
    words = shlex.split(flags.removeprefix("(without ").removesuffix(")") if without else flags)
    while words:
        word = words.pop(0)
        value: Any = words.pop(0) if words and not words[0].startswith("--") else True
        if word.startswith("--no-"):
            word, value = f"--{word[5:]}", False
        name = FLAGS[word]
        if without:
            made[name] = [text for text in made[name] if text != value] if isinstance(made.get(name), list) else None
        else:
            made[name] = _read(name, value)
    if "recompute" in made and "--recompute " in flags:
        made = {k: v for k, v in made.items() if k not in ("recompute_layers",)}
    return resolve(make_request({k: v for k, v in made.items() if v is not None}))


def _read(name: str, value: Any) -> Any:
    if name == "recompute_modules":
        return tuple(value.split(","))
    return int(value) if isinstance(value, str) and value.isdigit() else value


def check_remedies(request: dict[str, Any], resolved: Resolved) -> int:
    """Make each suggested change from its flags alone, and search."""
    found = remedies_for(resolved, exists, best)
    for remedy in found:
        assert remedy.plan.fits
        made = changed(request, remedy.flags)
        if made is not None:
            assert search(made, top=1, remedies=False).plans, f"{remedy.change}: {remedy.flags} does not do"
    return len(found)


@pytest.mark.parametrize("seed", range(3))
def test_random_infeasible_requests(seed: int) -> None:
    request, resolved, _ = infeasible(seed)
    check_clash(resolved)
    check_remedies(request, resolved)


@pytest.mark.bench
def test_two_hundred_infeasible_requests() -> None:
    """The whole of it: every clash minimal, every change does; a single change helps about every second request."""
    sizes, helped = [], 0
    for seed in range(1000, 1200):
        request, resolved, _ = infeasible(seed)
        sizes.append(check_clash(resolved))
        helped += check_remedies(request, resolved) > 0
    assert sum(size > 0 for size in sizes) >= 190
    assert helped >= 80


def test_the_sum_that_settles_it() -> None:
    """70B in full on 8 × 40 GB without offload: memory, GPUs, method and offload clash, and each alone would do."""
    resolved = resolve(make_request({"model": "llama-3.1-70b", "cluster": "8xA100-40G", "offload": "none"}))
    clash = clash_for(resolved, exists)
    words = [m.requirement for m in clash.members]
    assert any("GiB per GPU" in word for word in words)
    assert {"8 GPUs", "full training", "--offload none"} <= set(words)
    assert all(m.enough for m in clash.members)


def test_a_lone_law_is_a_clash_of_one() -> None:
    clash = clash_for(resolve(make_request({"model": "30b", "cluster": "32xA100-80G", "tp": 3})), exists)
    assert [m.flags for m in clash.members] == ["--tp 3"]


def test_two_wishes_clash() -> None:
    resolved = resolve(make_request({"model": "gpt2", "cluster": "8xA100-40G", "tp": 8, "max": ["tp=4"], "forbid": ["zero=3"]}))
    clash = clash_for(resolved, exists)
    assert {m.flags for m in clash.members} <= {"--tp 8", "--max tp=4"}


def test_no_wall_clock_decides() -> None:
    """The same request twice: the same clash, the same remedies."""
    resolved = resolve(make_request({"model": "gpt2", "cluster": "1xRTX4090", "offload": "none", "max": ["memory=2GiB"]}))
    first, second = ([(r.change, r.flags, r.plan.layout) for r in remedies_for(resolved, exists, best)] for _ in range(2))
    assert first == second
    told = [[(m.requirement, m.flags, m.enough) for m in clash_for(resolved, exists).members] for _ in range(2)]
    assert told[0] == told[1]


def test_the_fewest_more_gpus() -> None:
    """Not only doublings: 8B in full without offload on A100-40G."""
    request: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "1xA100-40G", "offload": "none", "global_batch": 60}
    found = remedies_for(resolve(make_request(request)), exists, best)
    card = resolve(make_request(request)).cluster.pools[0].gpu.id
    (more,) = [r for r in found if r.flags.startswith("--cluster") and r.plan.pool.gpu.id == card]
    count = more.plan.pool.count
    for fewer in range(1, count):
        assert search(resolve(make_request({**request, "cluster": f"{fewer}xA100-40G"})), remedies=False).status == "infeasible"


def test_json_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "--model", "gpt2", "--cluster", "1xRTX4090", "--offload", "none", "--max", "memory=2GiB"]
    assert main([*words, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "infeasible"
    assert document["clash_minimal"] is True
    assert "--max memory=2GiB" in {member["flags"] for member in document["clash"]}
    assert all(member["without"]["layout"]["tp"] >= 1 for member in document["clash"])
    assert main(words) == 3
    assert "Clash" in capsys.readouterr().out
