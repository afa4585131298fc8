"""Every rule has an example that keeps it and one that breaks it, says so with numbers, and looks only at the fields that it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.catalog import load
from cost_models.layout import Choices, Degrees, Layout
from cost_models.training import Training
from hardware.cluster import parse_cluster
from planner.case import Case
from planner.rules import RULES, SUPPORT, broken, frameworks_of, laws
from planner.rules.rule import CHOICES, DEGREES, candidates, value, with_field

BY_ID = {rule.id: rule for rule in RULES}


def case(
    model: str = "meta-llama/Llama-3.1-70B", cluster: str = "32xA100-80G", given: dict[str, Any] | None = None, **training: Any
) -> Case:
    return Case(architecture=load(model), training=Training(**training), pool=parse_cluster(cluster).pools[0], given=given or {})


def layout(**fields: Any) -> Layout:
    degrees = {k: float(v) for k, v in fields.items() if k in DEGREES}
    choices: dict[str, Any] = {"sequence_parallel": False, "zero": 1, **{k: v for k, v in fields.items() if k in CHOICES}}
    assert set(fields) <= {*DEGREES, *CHOICES}
    return Layout(degrees=Degrees(**degrees), choices=Choices(**choices))


MIXTRAL, DEEPSEEK, QWEN, OPT = "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen2.5-0.5B", "facebook/opt-30b"

# rule, what the case is, what keeps it, what breaks it, what the message must name
EXAMPLES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("world", {}, {"tp": 4, "pp": 4, "dp": 2}, {"tp": 4, "pp": 4, "dp": 3}, ("4 × 4 × 1 × 3", "32 GPUs", "dp=2")),
    ("world", {}, {"dp": 32}, {"tp": 3, "dp": 1}, ("3 does not divide",)),
    ("heads", {}, {"tp": 8}, {"tp": 3}, ("tp=3", "64 attention heads", "tp=2 or tp=4")),
    ("heads", {"model": "huggyllama/llama-30b"}, {"tp": 4}, {"tp": 8}, ("52 attention heads", "tp=4")),
    ("kv_heads", {}, {"tp": 16}, {"tp": 3}, ("8 key-value heads",)),
    ("kv_heads", {"framework": "torchtitan"}, {"tp": 8}, {"tp": 16}, ("torchtitan does not replicate",)),
    ("ffn", {}, {"tp": 8}, {"tp": 3}, ("MLP width 28,672",)),
    ("experts", {"model": MIXTRAL}, {"ep": 8}, {"ep": 3}, ("ep=3", "8 experts")),
    ("experts", {}, {"ep": 1}, {"ep": 2}, ("has none",)),
    ("expert_width", {"model": MIXTRAL}, {"etp": 4}, {"etp": 3}, ("14,336",)),
    ("expert_width", {}, {"etp": 1}, {"etp": 2}, ("has none",)),
    ("expert_bias", {"model": "openai/gpt-oss-20b"}, {"etp": 1}, {"etp": 2}, ("etp must be 1",)),
    ("expert_grid", {"model": MIXTRAL}, {"tp": 2, "ep": 8, "dp": 4}, {"tp": 2, "ep": 8, "dp": 3}, ("1 × 8", "6 ranks")),
    ("expert_tensor", {"model": MIXTRAL, "framework": "torchtitan"}, {"tp": 4, "etp": 4}, {"tp": 4, "etp": 2}, ("etp=2", "tp=4")),
    ("moe_sequence_parallel", {"model": MIXTRAL}, {"tp": 2, "sequence_parallel": True}, {"tp": 2}, ("sequence parallelism",)),
    ("layers", {}, {"pp": 80}, {"pp": 81}, ("pp=81", "80 layers")),
    ("schedule_pipeline", {}, {"pp": 2, "schedule": "gpipe"}, {"schedule": "gpipe"}, ("pp=1",)),
    ("folded_layers", {"framework": "torchtitan"}, {"pp": 40, "schedule": "zb-v"}, {"pp": 80, "schedule": "zb-v"}, ("80 layers",)),
    (
        "folded_layers",
        {"framework": "megatron-zb"},
        {"pp": 8, "schedule": "zb-v"},
        {"pp": 16, "schedule": "zb-v"},
        ("pp=16", "an even number of layers", "80"),
    ),
    ("fork_layers", {"framework": "megatron-zb"}, {"pp": 16}, {"pp": 32, "schedule": "zb-h1"}, ("pp=32", "80 layers", "pp=16")),
    ("fork_layers", {"framework": "megatron-zb", "model": "openai-community/gpt2-xl"}, {"pp": 25}, {"pp": 32}, ("pp=32", "48 layers")),
    (
        "fork_v_micro_batches",
        {"framework": "megatron-zb", "global_batch": 64},
        {"pp": 4, "dp": 8, "schedule": "zb-v"},
        {"pp": 4, "dp": 16, "schedule": "zb-v"},
        ("4 micro-batches", "2 pp - 1"),
    ),
    ("dualpipe_ranks", {"framework": "dualpipe"}, {"pp": 4, "schedule": "dualpipe"}, {"pp": 5, "schedule": "dualpipe"}, ("even", "pp=4")),
    (
        "dualpipe_micro_batches",
        {"framework": "dualpipe", "global_batch": 64},
        {"pp": 4, "dp": 8, "schedule": "dualpipe"},
        {"pp": 4, "dp": 16, "schedule": "dualpipe"},
        ("4 micro-batches", "at least 8"),
    ),
    (
        "chunks",
        {"framework": "megatron-zb"},
        {"pp": 16, "vpp": 5, "schedule": "interleaved"},
        {"pp": 9, "vpp": 9, "schedule": "interleaved"},
        ("9 × 9 = 81", "80 layers"),
    ),
    ("folded_compile", {"framework": "torchtitan"}, {"pp": 2}, {"pp": 2, "schedule": "zb-v"}, ("--no-compile",)),
    ("vpp_schedule", {}, {"vpp": 2, "schedule": "interleaved"}, {"vpp": 2}, ("vpp=2", "1f1b")),
    ("vpp_pipeline", {}, {"pp": 2, "vpp": 2}, {"vpp": 2}, ("pp > 1",)),
    (
        "chunks",
        {},
        {"pp": 16, "vpp": 5, "schedule": "interleaved"},
        {"pp": 16, "vpp": 2, "schedule": "interleaved"},
        ("16 × 2 = 32", "80 layers"),
    ),
    (
        "chunks",
        {"framework": "torchtitan"},
        {"pp": 16, "vpp": 5, "schedule": "interleaved"},
        {"pp": 16, "vpp": 6, "schedule": "interleaved"},
        ("96", "exceed"),
    ),
    ("rank_order_framework", {"framework": "deepspeed"}, {}, {"rank_order": 1}, ("tp-cp-ep-pp-dp", "try rank_order=tp-cp-ep-dp-pp")),
    ("rank_order_framework", {"model": MIXTRAL, "framework": "nanotron"}, {"rank_order": 1}, {}, ("nanotron with experts",)),
    (
        "rank_order_experts",
        {"model": MIXTRAL},
        {"tp": 2, "pp": 2, "ep": 2, "rank_order": 1},
        {"tp": 2, "pp": 2, "ep": 4, "rank_order": 1},
        ("1 × 4", "2 × 1", "try ep=2"),
    ),
    ("rank_order_alone", {}, {"pp": 2, "dp": 16, "rank_order": 1}, {"dp": 32, "rank_order": 1}, ("pp=1", "dp=32")),
    ("rank_order_better", {}, {"tp": 2, "pp": 4, "dp": 4, "rank_order": 1}, {"tp": 8, "pp": 2, "dp": 2, "rank_order": 1}, ("no group",)),
    (
        "interleaved_micro_batches",
        {},
        {"pp": 4, "dp": 8, "schedule": "interleaved"},
        {"pp": 3, "dp": 8, "schedule": "interleaved"},
        ("64 micro-batches", "pp=3"),
    ),
    ("full_pipeline", {"framework": "torchtitan"}, {"pp": 4, "dp": 8}, {"pp": 4, "dp": 256}, ("2 micro-batches", "pp=4")),
    ("tied_pipeline", {"model": QWEN, "framework": "torchtitan"}, {"pp": 1}, {"pp": 2}, ("tied embeddings",)),
    ("mtp_pipeline", {"model": DEEPSEEK, "framework": "torchtitan", "mtp": True}, {"pp": 1}, {"pp": 2}, ("mtp",)),
    ("batch", {"global_batch": 256}, {"micro_batch": 2, "dp": 8}, {"micro_batch": 2, "dp": 7}, ("256", "2 × 7", "dp=8")),
    ("cp_sequence", {"seq": 2048}, {"cp": 4}, {"cp": 3}, ("cp=3", "2,048")),
    ("cp_attention", {"attention": "eager"}, {"cp": 1}, {"cp": 2}, ("eager",)),
    ("sequence_parallel_tp", {}, {"tp": 2, "sequence_parallel": True}, {"sequence_parallel": True}, ("tp > 1",)),
    ("sequence_parallel_seq", {"seq": 2048}, {"tp": 8, "sequence_parallel": True}, {"tp": 3, "sequence_parallel": True}, ("2,048",)),
    ("fp8_rows", {"precision": "fp8", "seq": 2048}, {"micro_batch": 1}, {"cp": 11}, ("multiple of 16",)),
    ("positions", {"model": OPT, "seq": 2048}, {}, {}, ()),
    ("zero_framework", {}, {"zero": 1}, {"zero": 3}, ("zero=3", "megatron offers ZeRO stages 0, 1")),
    ("schedule_framework", {"framework": "deepspeed"}, {"schedule": "1f1b"}, {"schedule": "interleaved"}, ("deepspeed offers",)),
    ("schedule_framework", {}, {"schedule": "1f1b"}, {"pp": 4, "schedule": "zb-h1"}, ("run by megatron-zb; megatron offers",)),
    ("recompute_framework", {"framework": "hf"}, {"recompute": "full"}, {"recompute": "selective"}, ("none, full",)),
    ("offload_framework", {}, {"offload": "optimizer"}, {"offload": "params"}, ("none, optimizer",)),
    ("tp_framework", {"framework": "deepspeed"}, {"tp": 1}, {"tp": 2}, ("deepspeed has no tp",)),
    ("pp_framework", {"framework": "fsdp"}, {"pp": 1}, {"pp": 2}, ("fsdp has no pp",)),
    ("vpp_framework", {"framework": "deepspeed"}, {"vpp": 1}, {"vpp": 2}, ("no vpp",)),
    ("cp_framework", {"framework": "deepspeed"}, {"cp": 1}, {"cp": 2}, ("no cp",)),
    ("ep_framework", {"framework": "fsdp"}, {"ep": 1}, {"ep": 2}, ("no ep",)),
    ("etp_framework", {"framework": "fsdp"}, {"etp": 1}, {"etp": 2}, ("no etp",)),
    ("sequence_parallel_framework", {"framework": "fsdp"}, {}, {"sequence_parallel": True}, ("fsdp has no",)),
    ("zero_pipeline", {"framework": "deepspeed"}, {"pp": 2, "zero": 1}, {"pp": 2, "zero": 2}, ("zero=2", "ZeRO 0, 1")),
    ("shard_group", {}, {"dp": 8, "shard_group": 4}, {"dp": 8, "shard_group": 3}, ("shard_group=3", "8")),
    (
        "shard_group_experts",
        {"model": MIXTRAL},
        {"dp": 8, "ep": 2, "shard_group": 4},
        {"dp": 8, "ep": 8, "shard_group": 4},
        ("expert replicas",),
    ),
    ("shard_group_zero", {}, {"zero": 1, "shard_group": 4}, {"zero": 0, "shard_group": 4}, ("zero=0",)),
    ("offload_zero", {"framework": "deepspeed"}, {"offload": "params", "zero": 3}, {"offload": "params", "zero": 2}, ("zero=2", "zero=3")),
    (
        "offload_nvme",
        {"framework": "deepspeed"},
        {"offload": "optimizer", "offload_target": "nvme", "zero": 3},
        {"offload": "optimizer", "offload_target": "nvme", "zero": 2},
        ("nvme", "ZeRO 3"),
    ),
    (
        "offload_optimizer",
        {"framework": "deepspeed", "optimizer": "sgd"},
        {"offload": "none"},
        {"offload": "optimizer"},
        ("sgd", "adamw, lion"),
    ),
    (
        "offload_fraction",
        {"framework": "deepspeed"},
        {"offload": "optimizer", "zero": 3, "offload_fraction": 0.5},
        {"offload": "optimizer", "zero": 2, "offload_fraction": 0.5},
        ("0.5",),
    ),
    ("activation_offload", {}, {"activation_offload": 1}, {"activation_offload": 1, "pp": 2}, ("pp=2",)),
    (
        "recompute_layers",
        {},
        {"recompute": "full", "recompute_layers": 3},
        {"recompute": "none", "recompute_layers": 3},
        ("recompute_layers=3",),
    ),
    (
        "recompute_layers",
        {"framework": "fsdp"},
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": 3},
        ("all layers or none",),
    ),
    (
        "recompute_modules",
        {},
        {"recompute": "selective"},
        {"recompute": "selective", "recompute_modules": ("moe_act",)},
        ("moe_act", "core_attn"),
    ),
    (
        "recompute_fp8",
        {"precision": "fp8"},
        {"recompute": "selective"},
        {"recompute": "selective", "recompute_modules": ("layernorm",)},
        ("fp8",),
    ),
    ("pipeline_method", {"framework": "deepspeed", "method": "lora"}, {"pp": 1}, {"pp": 2}, ("lora",)),
    ("qlora_tp", {"framework": "fsdp", "method": "qlora"}, {"tp": 1}, {"tp": 2}, ("qlora",)),
    ("inference", {"method": "inference"}, {}, {"recompute": "full"}, ("inference",)),
    ("tp_node", {}, {"tp": 8}, {"tp": 16}, ("tp=16", "8 GPUs")),
    ("sequence_parallel_used", {}, {"tp": 2, "sequence_parallel": True}, {"tp": 2}, ("tp=2",)),
    ("cp_tokens", {"seq": 2048}, {"cp": 2}, {"cp": 4}, ("1,024",)),
    ("expert_tensor_tp", {"model": MIXTRAL}, {"tp": 2, "etp": 2}, {"tp": 2, "etp": 4}, ("etp=4",)),
    ("zero_ranks", {}, {"zero": 1, "dp": 2}, {"zero": 1}, ("shards nothing",)),
    ("shard_group_whole", {}, {"dp": 8, "shard_group": 4}, {"dp": 8, "shard_group": 8}, ("all ranks",)),
    ("offload_target_used", {}, {"offload": "none"}, {"offload": "none", "offload_target": "nvme"}, ("nvme",)),
]

# rule, a case that keeps it, a case that breaks it, what the message must name
TASKS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("positions", {"model": OPT, "seq": 2048}, {"model": OPT, "seq": 4096}, ("4,096", "2,048")),
    ("method", {"method": "lora"}, {"method": "qlora"}, ("qlora", "full, lora, inference")),
    ("precision", {"framework": "deepspeed"}, {"framework": "deepspeed", "precision": "fp8"}, ("fp8",)),
    ("optimizer", {}, {"optimizer": "adafactor"}, ("adafactor",)),
    ("bf16_device", {}, {"cluster": "8xV100-32G"}, ("V100", "fp16")),
    ("fp8_device", {"cluster": "8xH100-80G", "precision": "fp8"}, {"precision": "fp8"}, ("A100",)),
    ("known_peak", {"cluster": "8xH100-80G", "precision": "fp8"}, {"cluster": "8xRTX4090", "precision": "fp8"}, ("4090", "bf16")),
    ("flash_device", {}, {"cluster": "8xV100-32G"}, ("7", "eager")),
    ("regime", {"regime": "megatron"}, {"regime": "autocast"}, ("autocast", "hf")),
    ("compile", {"compile": False}, {"compile": True}, ("megatron", "torchtitan")),
    ("fork_model", {"framework": "megatron-zb"}, {"framework": "megatron-zb", "model": DEEPSEEK}, ("latent attention",)),
    ("fork_model", {"framework": "megatron-zb"}, {"framework": "megatron-zb", "model": QWEN}, ("tied embeddings",)),
    (
        "fp8_recipe",
        {"cluster": "8xB200", "precision": "fp8", "extra": {"fp8_recipe": "mxfp8"}},
        {"cluster": "8xH100-80G", "precision": "fp8", "extra": {"fp8_recipe": "mxfp8"}},
        ("mxfp8", "H100", "blockwise"),
    ),
    ("torchtitan_model", {"framework": "torchtitan"}, {"framework": "torchtitan", "model": OPT}, ("learned",)),
]


def test_ids_are_unique_and_each_rule_is_exemplified() -> None:
    assert len(BY_ID) == len(RULES)
    assert {e[0] for e in EXAMPLES} | {t[0] for t in TASKS} == set(BY_ID)


@pytest.mark.parametrize(
    ("rule", "where", "good", "bad", "named"), [e for e in EXAMPLES if e[2] or e[3]], ids=lambda x: x if isinstance(x, str) else ""
)
def test_layouts_keep_and_break_each_rule(
    rule: str, where: dict[str, Any], good: dict[str, Any], bad: dict[str, Any], named: tuple[str, ...]
) -> None:
    c, law = case(**where), BY_ID[rule]
    assert law.binds(c)
    assert np.all(law.holds(c, layout(**good)))
    assert not np.all(law.holds(c, layout(**bad)))
    if law.kind == "law":
        message = next(b.message for b in broken(c, layout(**bad)) if b.rule == rule)
        assert "\n" not in message
        for part in named:
            assert part in message
    else:
        assert rule not in {b.rule for b in broken(c, layout(**bad))}
        assert all(part in law.given(c, layout(**bad)) for part in named)
        fixed = case(given={(law.lifted_by or law.reads)[0]: 1}, **where)
        assert not law.binds(fixed)


@pytest.mark.parametrize(("rule", "good", "bad", "named"), TASKS, ids=[t[0] for t in TASKS])
def test_tasks_keep_and_break_each_rule(rule: str, good: dict[str, Any], bad: dict[str, Any], named: tuple[str, ...]) -> None:
    law = BY_ID[rule]
    assert law.holds(case(**good), layout())
    assert not law.holds(case(**bad), layout())
    message = law.given(case(**bad), layout())
    assert all(part in message for part in named)


def test_all_broken_laws_are_told_at_once() -> None:
    found = {b.rule: b.message for b in broken(case(cluster="8xA100-80G"), layout(tp=3, micro_batch=7))}
    assert {"heads", "kv_heads", "ffn", "world", "batch"} <= set(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rules_read_only_the_fields_that_they_name(rule: Any) -> None:
    """A change of any other field leaves the verdict as it is: the space relies on it to cut early."""
    for where in ({}, {"model": MIXTRAL}, {"framework": "deepspeed"}, {"framework": "torchtitan", "model": DEEPSEEK, "mtp": True}):
        c = case(**where)
        for base in (layout(tp=4, pp=2, dp=4), layout(tp=3, pp=3, dp=5, micro_batch=3, schedule="interleaved", vpp=2, zero=3)):
            before = bool(np.all(rule.holds(c, base)))
            for field in (*DEGREES, *CHOICES):
                if field in rule.reads:
                    continue
                others = candidates(c, base, field) if field != "recompute_modules" else (("mlp",),)
                for other in others[:4]:
                    changed = with_field(base, field, other)
                    assert bool(np.all(rule.holds(c, changed))) == before, (field, value(base, field), other)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_batch_is_judged_as_its_rows(rule: Any) -> None:
    tp, pp, dp = np.meshgrid([1.0, 2.0, 3.0, 8.0], [1.0, 2.0, 5.0], [1.0, 4.0, 6.0], indexing="ij")
    many = Degrees(tp=tp.reshape(-1, 1), pp=pp.reshape(-1, 1), dp=dp.reshape(-1, 1), ep=2.0, micro_batch=2.0)
    for where in ({}, {"model": MIXTRAL}, {"framework": "torchtitan"}):
        c = case(**where)
        batch = Layout(degrees=many, choices=Choices(schedule="1f1b", zero=2))
        mask = np.broadcast_to(np.asarray(rule.holds(c, batch)).reshape(-1), (batch.size,))
        assert [bool(np.all(rule.holds(c, batch.row(i)))) for i in range(batch.size)] == mask.tolist()


def test_hints_keep_the_law() -> None:
    """Each value that a message offers passes the rule that it was offered for."""
    c = case(model=MIXTRAL)
    for rule, _, _, bad, _ in EXAMPLES:
        law = BY_ID[rule]
        for field in law.vary:
            if field not in DEGREES:
                continue
            one = layout(**bad)
            for number in candidates(c, one, field):
                good = np.all(law.holds(c, with_field(one, field, float(number))))
                if rule in {b.rule for b in broken(c, one)} and f"{field}={number}" in next(
                    b.message for b in broken(c, one) if b.rule == rule
                ).split("; try ")[-1].split(" or "):
                    assert good


def test_frameworks_of_a_plan() -> None:
    c = case(cluster="32xA100-80G")
    assert "megatron" in frameworks_of(c, layout(tp=4, pp=4, dp=2, sequence_parallel=True))
    assert "deepspeed" not in frameworks_of(c, layout(tp=4, pp=4, dp=2, sequence_parallel=True))
    assert {"deepspeed", "torchtitan", "fsdp"} <= set(frameworks_of(c, layout(dp=32, zero=3)))
    assert frameworks_of(c, layout(dp=31)) == ()


def test_every_framework_can_run_something() -> None:
    for framework, support in SUPPORT.items():
        c = case(framework=framework)
        pp = 1 if "1f1b" in support.schedules else 2
        ok = layout(pp=pp, dp=32 // pp, zero=support.zero[-1], schedule=support.schedules[0])
        assert not [r.id for r in laws(c) if not np.all(r.holds(c, ok))], framework
    assert replace(case(), margin=0.1).limit_bytes < replace(case(), margin=0.0).limit_bytes == case().pool.capacity_bytes
    assert replace(case(), confidence=0.99).limit_bytes < case().limit_bytes < replace(case(), confidence=0.6).limit_bytes
