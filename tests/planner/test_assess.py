"""One layout: defaults that are told, verdicts, and users' broken configurations answered with the law and what would pass."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.numeric import num
from planner.asked import make_request
from planner.assess import assess
from planner.request import resolve


def judged(**request: Any) -> Any:
    return assess(resolve(make_request(request)))


def test_silent_fields_get_the_frameworks_usual_choices() -> None:
    found = judged(model="30b", cluster="32xA100-80G", tp=4, pp=4)
    assert found.plan is not None
    d, c = found.layout.degrees, found.layout.choices
    assert (float(num(d.dp)), c.zero, c.sequence_parallel, c.schedule, found.case.framework) == (2.0, 1, True, "1f1b", "megatron")
    assert {"dp 2 (the GPUs that are left)", "micro-batch 1", "ZeRO-1", "sequence parallel on", "framework megatron"} <= set(found.assumed)


def test_the_framework_follows_the_layout() -> None:
    assert judged(model="llama-3.1-8b", cluster="8xA100-80G", zero=3).case.framework == "torchtitan"
    assert judged(model="llama-3.1-8b", cluster="8xA100-80G", zero=3, offload="optimizer").case.framework == "deepspeed"
    assert judged(model="llama-3.1-8b", cluster="1xRTX4090", method="qlora").case.framework == "hf"


def test_all_broken_laws_of_a_layout() -> None:
    found = judged(model="llama-3.1-70b", cluster="8xA100-80G", tp=3, framework="megatron")
    assert found.plan is None
    text = "\n".join(b.message for b in found.broken)
    assert "tp=3 does not divide 64 attention heads" in text
    assert "tp=3 does not divide 8 key-value heads" in text
    assert "must equal 8 GPUs" in text


def test_verdicts() -> None:
    no = judged(model="llama-3.1-8b", cluster="1xH100-80G", framework="megatron")
    assert (no.plan.verdict, no.near_miss.where) == ("no", "device")
    assert no.near_miss.missing_bytes > 0
    fits = judged(model="llama-3.1-8b", cluster="8xH100-80G", framework="torchtitan")
    assert (fits.plan.verdict, fits.near_miss) == ("fits", None)
    peak = float(num(fits.plan.cost.memory.peak_device_bytes))
    tight = judged(model="llama-3.1-8b", cluster="8xH100-80G", framework="torchtitan", free_memory=f"{peak * 1.01 / 2**30} GiB")
    assert (tight.plan.verdict, tight.plan.fits) == ("tight", False)


# users' cases (tests/published/cases.jsonl): id, request, rule that answers it, what the answer names
CASES: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    (
        "cfg-01",
        {"model": "7b", "cluster": "7xA100-80G", "global_batch": 256, "micro_batch": 2, "framework": "deepspeed", "zero": 2},
        "batch",
        ("256", "2 × 7"),
    ),
    (
        "cfg-11",
        {"model": "gpt2", "cluster": "8xA100-80G", "tp": 8, "seq": 1024, "framework": "megatron"},
        "heads",
        ("12 attention heads", "tp=4"),
    ),
    ("cfg-12", {"model": "huggyllama/llama-30b", "cluster": "8xA100-80G", "tp": 8, "framework": "megatron"}, "heads", ("52", "tp=4")),
    (
        "cfg-13",
        {"model": "llama-3.1-70b", "cluster": "16x8xA100-80G", "tp": 8, "pp": 16, "vpp": 2, "framework": "megatron"},
        "chunks",
        ("32", "80 layers"),
    ),
    (
        "cfg-19",
        {"model": "llama-3.1-8b", "cluster": "4xA100-80G", "pp": 4, "vpp": 2, "global_batch": 10, "framework": "megatron"},
        "interleaved_micro_batches",
        ("10 micro-batches", "pp=4"),
    ),
    (
        "cfg-24",
        {"model": "Qwen/Qwen3-30B-A3B", "cluster": "8xA100-80G", "ep": 16, "framework": "torchtitan"},
        "expert_grid",
        ("1 × 16", "8 ranks"),
    ),
    (
        "cfg-25",
        {"model": "7b", "cluster": "8xA100-80G", "zero": 3, "offload": "optimizer", "optimizer": "sgd", "framework": "deepspeed"},
        "offload_optimizer",
        ("sgd", "adamw"),
    ),
]


@pytest.mark.parametrize(("case", "request_", "rule", "named"), CASES, ids=[c[0] for c in CASES])
def test_users_configuration_errors(case: str, request_: dict[str, Any], rule: str, named: tuple[str, ...]) -> None:
    found = assess(resolve(make_request(request_)))
    messages = {b.rule: b.message for b in found.broken}
    assert rule in messages, messages
    assert all(part in messages[rule] for part in named), messages[rule]


def test_uneven_layers_are_planned_not_dropped() -> None:
    """46 layers on 4 stages (cfg-15), 30 on 4 (cfg-14): every layer is held by some stage."""
    found = judged(model="zai-org/GLM-4.5-Air", cluster="32xH100-80G", tp=8, pp=4, framework="megatron", global_batch=16)
    assert found.plan is not None
    layers = found.case.architecture.layers
    assert layers % 4
    assert found.plan.cost.memory.stage_index.shape == (4,)


def test_replicated_key_value_heads_depend_on_the_framework() -> None:
    """2 key-value heads at TP 8 (cfg-08): Megatron-LM replicates them, torchtitan refuses."""
    request = {"model": "llama-3.1-8b", "dimensions": {"kv_heads": 2}, "cluster": "8xH100-80G", "tp": 8}
    assert judged(**request, framework="megatron").broken == ()
    assert "kv_heads" in {b.rule for b in judged(**request, framework="torchtitan").broken}
