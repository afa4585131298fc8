"""The software stack as an input: its era, switches, compilation, and a band where nobody knows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cost_models.numeric import num
from cost_models.switches import SWITCHES, switch_problems
from cost_models.training import Training
from planner.asked import RequestError, make_request
from planner.assess import Assessment, assess
from planner.request import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ended

ASKED: dict[str, Any] = {"model": "7b", "cluster": "8xA100-80G", "recompute": "full"}


def assessed(**flags: Any) -> Assessment:
    return assess(resolve(make_request({**ASKED, **flags})))


def step(**flags: Any) -> float:
    plan = assessed(**flags).plan
    assert plan is not None
    return float(num(plan.cost.time.step_seconds))


def test_every_switch_and_value_is_accepted_by_both_models() -> None:
    """Whatever the table offers changes a prediction or leaves it, and never fails."""
    for name, switch in SWITCHES.items():
        for value in switch.values or ("512",):
            assert not switch_problems({name: value})
            narrow = {"cluster": "8xB200", "precision": "fp8"} if name == "fp8_recipe" else {}
            assert step(framework="megatron", stack={name: value}, **narrow) > 0.0


@pytest.mark.parametrize(
    ("cluster", "precision", "said"), [("8xH100-80G", "fp8", "no units for it"), ("8xB200", "bf16", "--precision fp8")]
)
def test_recipes_of_narrow_types_need_their_units(cluster: str, precision: str, said: str) -> None:
    found = assessed(cluster=cluster, framework="megatron", precision=precision, stack={"fp8_recipe": "nvfp4"})
    assert found.plan is None
    assert [law.rule for law in found.broken] == ["fp8_recipe"]
    assert said in found.broken[0].message


LLAMA = {"model": "llama-3.1-8b", "cluster": "16xH100-80G"}
CONTEXTS: dict[str, dict[str, Any]] = {
    "interleaved": {**LLAMA, "framework": "megatron", "tp": 2, "pp": 2, "vpp": 4, "schedule": "interleaved"},
    "selective": {**LLAMA, "framework": "torchtitan", "zero": 3, "recompute": "selective"},
    "fsdp": {**LLAMA, "framework": "fsdp", "zero": 3, "recompute": "none"},
    "experts": {"model": "qwen3-30b-a3b", "cluster": "32xB200", "framework": "megatron", "ep": 8, "precision": "fp8", "seq": 512},
    "experts after long attention": {"model": "qwen3-30b-a3b", "cluster": "32xB200", "framework": "megatron", "ep": 8, "seq": 8192},
    "adapters": {"model": "llama-3.1-8b", "cluster": "1xH100-80G", "framework": "hf", "method": "lora", "recompute": "none"},
    "small": {"model": "gpt2", "cluster": "8xH100-80G", "framework": "megatron", "seq": 512, "global_batch": 8},
}  # fmt: skip
"""Requests of which each switch changes one at least."""


def cost_of(**flags: Any) -> tuple[float, float]:
    plan = assess(resolve(make_request(flags))).plan
    assert plan is not None
    return float(num(plan.cost.time.step_seconds)), float(num(plan.cost.memory.peak_device_bytes))


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_changes_some_prediction(name: str) -> None:
    values = SWITCHES[name].values or ("512",)
    for request in [CONTEXTS["experts"]] if name == "fp8_recipe" else CONTEXTS.values():
        if any(cost_of(**request, stack={name: value}) != cost_of(**request) for value in values):
            return
    pytest.fail(f"{name} changes neither time nor memory")


def test_no_overlap_hides_nothing_of_any_framework() -> None:
    """Gathers of FSDP, sends of an interleaved pipeline and gradients beside weight gradients hide no more than gradient buckets."""
    for context, names in (("fsdp", ("zero.forward", "zero.backward")), ("interleaved", ("pp.send", "dp.reduce", "dp.gather"))):
        plan = assess(resolve(make_request({**CONTEXTS[context], "stack": {"overlap_all": "no"}}))).plan
        assert plan is not None
        for term in plan.cost.time.ledger.terms:
            if term.name in names and term.exposed is not None:
                assert num(term.exposed) == pytest.approx(num(term.value), rel=1e-12), term.name


def test_a_stated_first_fsdp_is_the_first_whatever_the_date() -> None:
    today, first = (cost_of(**CONTEXTS["fsdp"], stack=stack)[0] for stack in ({}, {"fsdp_version": "1"}))
    assert first > today
    assert cost_of(**CONTEXTS["fsdp"], stack={"fsdp_version": "2"})[0] == today


def test_no_overlap_is_never_faster() -> None:
    usual = step(framework="megatron", dp=8)
    assert step(framework="megatron", dp=8, stack={"overlap_grad_reduce": "no"}) > usual
    assert step(framework="megatron", dp=8, stack={"overlap_all": "no"}) >= step(
        framework="megatron", dp=8, stack={"overlap_grad_reduce": "no"}
    )


def test_an_older_stack_is_slower_and_graphs_never_are() -> None:
    assert step(framework="megatron", dp=8, software_date="2022-05") > step(framework="megatron", dp=8)
    small = {"model": "gpt2", "framework": "megatron", "seq": 512, "global_batch": 8}
    assert step(**small, stack={"cuda_graphs": "full"}) < step(**small)


def test_compiled_layers_are_faster_than_eager_ones() -> None:
    assert step(framework="fsdp", compile=True) < step(framework="fsdp", compile=False)


def test_megatron_has_no_compile_switch() -> None:
    found = assessed(framework="megatron", compile=True)
    assert found.plan is None
    assert [law.rule for law in found.broken] == ["compile"]
    assert assessed(compile=True).case.framework != "megatron"


def test_unknown_software_is_a_band_that_holds_every_framework() -> None:
    found = assessed(framework="unknown", zero=3)
    band = found.software
    assert band is not None and found.plan is not None
    assert {name for name, _ in band.step_seconds} == {"torchtitan", "deepspeed", "fsdp"}
    for name, seconds in band.step_seconds:
        alone = assessed(framework=name, zero=3)
        assert alone.plan is not None and alone.software is None
        assert seconds == float(num(alone.plan.cost.time.step_seconds))
        low, high = alone.plan.step_interval_seconds
        assert band.interval_seconds[0] <= low and high <= band.interval_seconds[1]


def test_all_bad_switches_are_told_at_once_with_the_nearest() -> None:
    with pytest.raises(RequestError) as caught:
        make_request({**ASKED, "stack": {"overlap_grads": "yes", "fp8_recipe": "fast", "document_tokens": "-1"}})
    lines = "\n".join(caught.value.lines)
    assert "nearest: overlap_grad_reduce" in lines
    assert "delayed, current, blockwise, mxfp8, nvfp4" in lines
    assert "a number above 0" in lines


def test_switches_joined_by_a_comma_are_told_apart() -> None:
    with pytest.raises(RequestError, match="a --stack of its own"):
        make_request({"stack": {"moe_a2a_overlap": "yes,moe_dispatcher=deepep"}})


def test_the_switches_are_shown_and_handed_on(run_planner: Callable[..., Ended]) -> None:
    flags = ["--model", "7b", "--cluster", "8xA100-80G", "--stack", "overlap_grad_reduce=no", "--software-date", "2024-03"]
    shown = run_planner("estimate", *flags)
    assert "software of 2024-03, overlap_grad_reduce=no" in " ".join(shown.out.split())
    assert "--stack overlap_grad_reduce=no" in " ".join(shown.out.split())
    record = json.loads(run_planner("estimate", *flags, "--json").out)
    assert record["training"]["stack"] == {"overlap_grad_reduce": "no"}
    assert record["software_unknown"] is None
    assert run_planner("estimate", *flags[:4], "--stack", "overlap_tp").exit_code == 2


def test_a_search_refuses_unknown_software(run_planner: Callable[..., Ended]) -> None:
    ended = run_planner("search", "--model", "7b", "--cluster", "8xA100-80G", "--framework", "unknown")
    assert ended.exit_code == 2 and "planner estimate" in ended.err


def test_training_keeps_what_was_asked() -> None:
    made = resolve(make_request({**ASKED, "software_date": "2024", "compile": False, "stack": {"fp8_recipe": "mxfp8"}})).training
    assert isinstance(made, Training)
    assert (made.date, made.compile, made.extra) == ("2024", False, {"fp8_recipe": "mxfp8"})
