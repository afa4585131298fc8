"""Exports: every key and argument is a real one of the framework, the values say the plan, and what cannot run is refused by rule."""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.exporters import ExportRefused, UnknownExporter, adapted, degree, exporter, exporters, gpus
from planner.exporters._megatron_layout import layout_string
from tests.planner.handmade import make_plan

if TYPE_CHECKING:
    from planner.plan import Plan

DATA = Path(__file__).parent / "data"
MEGATRON: dict[str, dict[str, Any]] = json.loads((DATA / "megatron_arguments.json").read_text(encoding="utf-8"))["arguments"]
DEEPSPEED: dict[str, list[str]] = json.loads((DATA / "deepspeed_keys.json").read_text(encoding="utf-8"))["keys"]
DENSE = ("opt-30b", "llama-3.1-8b", "qwen2.5-7b", "gpt-175b")
MOE = ("mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-20b", "llama4-scout")


def parsed(arguments: list[str]) -> dict[str, list[str]]:
    """Split an argument list into flag -> values, by what Megatron-LM's parser takes: unknown flags and stray words fail."""
    found: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        assert flag in MEGATRON, f"{flag} is no argument of Megatron-LM"
        assert flag not in found, f"{flag} twice"
        values = []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        takes = MEGATRON[flag]["values"]
        assert len(values) == takes if isinstance(takes, int) else len(values) >= (takes == "+"), f"{flag} takes {takes} values"
        choices = MEGATRON[flag].get("choices")
        assert choices is None or set(values) <= set(choices), f"{flag} {values}"
        for value in values:
            {"int": int, "float": float}.get(MEGATRON[flag].get("type", ""), str)(value)
        found[flag] = values
    return found


def megatron(plan: Plan) -> dict[str, list[str]]:
    """Export to Megatron-LM and parse."""
    return parsed(json.loads(exporter("megatron").export(plan)["megatron.json"]))


def deepspeed(plan: Plan) -> dict[str, Any]:
    """Export to DeepSpeed and check every key."""
    config: dict[str, Any] = json.loads(exporter("deepspeed").export(plan)["deepspeed.json"])
    assert set(config) <= set(DEEPSPEED[""])
    for section, value in [*config.items(), *config["zero_optimization"].items()]:
        if isinstance(value, dict) and section in DEEPSPEED:
            assert set(value) <= set(DEEPSPEED[section]), section
    return config


def random_plans(count: int, framework: str, seed: int = 20261130) -> list[Plan]:
    """Layouts of many models, lawful or nearly so."""
    pick = random.Random(seed)
    plans = []
    for _ in range(count):
        model = pick.choice((*DENSE, *MOE))
        tp, pp = pick.choice((1, 2, 4, 8)), pick.choice((1, 2, 4))
        zero = pick.choice((0, 1) if framework == "megatron" else (0, 1, 2, 3))
        recompute = pick.choice(("none", "selective", "full"))
        expert = model in MOE
        plans.append(
            make_plan(
                model,
                "64xH100-80G",
                tp=tp,
                pp=pp,
                vpp=(vpp := pick.choice((1, 1, 2, 4)) if pp > 1 else 1),
                dp=64 // (tp * pp),
                ep=pick.choice((1, 2, 8)) if expert else 1,
                etp=tp if expert else 1,
                micro_batch=pick.choice((1, 2)),
                zero=zero,
                sequence_parallel=tp > 1 and framework == "megatron",
                schedule="interleaved" if vpp > 1 else "1f1b",
                recompute=recompute,
                recompute_layers=pick.choice((-1, 2, 4)) if recompute == "full" else -1,
                offload=pick.choice(("none", "none", "optimizer", "optimizer+params")),
                precision=pick.choice(("bf16", "fp16", "fp32")),
                optimizer=pick.choice(("adamw", "adamw", "sgd", "muon")),
                mtp=pick.random() < 0.5,
                framework=framework,
            )
        )
    return plans


def exportable(name: str, framework: str, count: int) -> list[Plan]:
    """The plans of `random_plans` that are not refused."""
    found = []
    for plan in random_plans(count, framework):
        try:
            exporter(name).export(plan)
        except ExportRefused:
            continue
        found.append(plan)
    return found


def test_every_exporter_says_what_it_is() -> None:
    assert list(exporters()) == ["deepspeed", "megatron"]
    assert all(e.SENTENCE and e.FRAMEWORKS for e in exporters().values())


def test_an_unknown_exporter_names_the_nearest() -> None:
    with pytest.raises(UnknownExporter, match="did you mean deepspeed"):
        exporter("deepsped")
    with pytest.raises(UnknownExporter, match="deepspeed, megatron"):
        exporter("xyz")


def test_megatron_arguments_say_the_plan() -> None:
    """TP 4 · PP 4 · DP 2 of a GPT: the main job's layout."""
    plan = make_plan("opt-30b", tp=4, pp=4, dp=2, micro_batch=2, zero=1, recompute="selective")
    given = megatron(plan)
    assert given["--tensor-model-parallel-size"] == ["4"]
    assert given["--pipeline-model-parallel-size"] == ["4"]
    assert given["--micro-batch-size"] == ["2"]
    assert given["--global-batch-size"] == ["512"]
    assert given["--num-layers"] == ["48"]
    assert given["--hidden-size"] == ["7168"]
    assert given["--recompute-granularity"] == ["selective"]
    assert given["--recompute-modules"] == ["core_attn"]
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--bf16"} <= set(given)
    assert not {"--swiglu", "--disable-bias-linear", "--num-experts", "--pipeline-model-parallel-layout"} & set(given)


def test_megatron_describes_a_llama() -> None:
    given = megatron(make_plan("llama-3.1-8b", tp=2, dp=16, recompute="full", recompute_layers=4))
    assert given["--num-query-groups"] == ["8"]
    assert given["--ffn-hidden-size"] == ["14336"]
    assert given["--normalization"] == ["RMSNorm"]
    assert given["--recompute-method"] == ["block"]
    assert given["--recompute-num-layers"] == ["4"]
    assert {"--swiglu", "--group-query-attention", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} <= set(given)


def test_megatron_describes_latent_attention_and_experts() -> None:
    held = (3, *(4 for _ in range(14)), 2)
    plan = make_plan("deepseek-v3", "512xH800-80G", pp=16, dp=32, ep=32, sequence_parallel=False, mtp=True, stage_layers=held)
    given = megatron(plan)
    assert given["--q-lora-rank"] == ["1536"]
    assert given["--kv-lora-rank"] == ["512"]
    assert [given[f"--{n}"] for n in ("qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")] == [["128"], ["64"], ["128"]]
    assert given["--moe-layer-freq"] == ["([0]*3+[1]*58)"]
    assert given["--moe-shared-expert-intermediate-size"] == ["2048"]
    assert given["--expert-model-parallel-size"] == ["32"]
    assert given["--mtp-num-layers"] == ["1"]
    assert given["--pipeline-model-parallel-layout"] == ["Et*3|" + "t*4|" * 14 + "t*2mL"]


def test_uneven_stages_are_written_as_a_layout_of_all_layers() -> None:
    assert layout_string([7, 8, 8, 7]) == "Et*7|t*8|t*8|t*7L"
    assert layout_string([0, 4, 4, 0], mtp=1) == "E|t*4|t*4|mL"
    given = megatron(make_plan(pp=4, vpp=2, dp=8, schedule="interleaved", sequence_parallel=False, stage_layers=(7, 8, 8, 9)))
    assert given["--pipeline-model-parallel-layout"] == ["Et*4|t*4|t*4|t*5|t*3|t*4|t*4|t*4L"]


def test_even_chunks_need_no_layout() -> None:
    given = megatron(make_plan("llama-3.1-8b", tp=1, pp=4, vpp=2, dp=8, schedule="interleaved", sequence_parallel=False))
    assert given["--num-layers-per-virtual-pipeline-stage"] == ["4"]


def test_recompute_of_equal_stages_is_one_number_and_of_unequal_ones_refused() -> None:
    common: dict[str, Any] = {"tp": 1, "pp": 2, "dp": 16, "recompute": "full", "sequence_parallel": False, "stage_layers": (15, 17)}
    assert megatron(make_plan(**common, stage_recompute=(15, 17)))["--recompute-method"] == ["uniform"]
    assert megatron(make_plan(**common, stage_recompute=(4, 4)))["--recompute-num-layers"] == ["4"]
    with pytest.raises(ExportRefused, match="recomputed layers 5, 4"):
        megatron(make_plan(**common, stage_recompute=(5, 4)))


def test_the_shell_line_is_the_list() -> None:
    plan = make_plan("llama-3.1-8b", tp=1, pp=2, dp=16, sequence_parallel=False, stage_layers=(15, 17))
    files = exporter("megatron").export(plan)
    assert shlex.split(files["megatron.sh"]) == json.loads(files["megatron.json"])
    assert files["megatron.sh"].count("\n") == 1


def test_megatron_knows_every_argument_of_random_plans() -> None:
    plans = exportable("megatron", "megatron", 300)
    assert len(plans) > 60
    for plan in plans:
        given = megatron(plan)
        stages = given.get("--pipeline-model-parallel-layout", [""])[0]
        counted = sum(int(part.strip("EmL").removeprefix("t*") or 0) for part in stages.split("|")) if stages else plan.architecture.layers
        assert counted == plan.architecture.layers


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"zero": 3, "dp": 32, "sequence_parallel": False}, "zero"),
        ({"tp": 3, "dp": 10}, "tp=3"),
        ({"dp": 32, "method": "lora", "sequence_parallel": False}, "method lora"),
        ({"dp": 32, "optimizer": "adam8bit", "sequence_parallel": False}, "optimizer"),
        ({"dp": 32, "zero": 1, "offload": "optimizer+params", "sequence_parallel": False}, "offload"),
        ({"model": "bloom", "tp": 8, "dp": 4}, "ALiBi"),
        ({"model": "gemma2-9b", "tp": 4, "dp": 8}, "4 norms per layer"),
        ({"model": "falcon-7b", "dp": 32, "sequence_parallel": False}, "parallel block"),
    ],
)
def test_megatron_refuses_what_it_cannot_run(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportRefused, match=reason):
        exporter("megatron").export(make_plan(**{"model": "llama-3.1-8b", **given}))


def test_a_model_that_megatron_states_only_nearly_is_noted() -> None:
    notes = " ".join(exporter("megatron").notes(make_plan("opt-30b", tp=4, pp=4, dp=2)))
    assert "relu" in notes
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in notes


def test_deepspeed_batch_is_the_plans() -> None:
    plan = make_plan(dp=32, micro_batch=2, zero=3, framework="deepspeed", sequence_parallel=False, recompute="full")
    config = deepspeed(plan)
    assert config["train_batch_size"] == plan.training.global_batch == 512
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 8
    assert config["zero_optimization"]["stage"] == 3
    assert config["bf16"] == {"enabled": True}
    assert "activation_checkpointing" in config


def test_deepspeed_offload_to_nvme_has_a_path_and_to_the_host_none() -> None:
    common: dict[str, Any] = {"dp": 32, "zero": 3, "framework": "deepspeed", "offload": "optimizer+params", "sequence_parallel": False}
    zero = deepspeed(make_plan(**common, offload_target="nvme"))["zero_optimization"]
    assert zero["offload_param"]["nvme_path"]
    assert zero["offload_optimizer"]["device"] == "nvme"
    assert deepspeed(make_plan(**common))["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_deepspeed_states_the_types_of_the_regime() -> None:
    common: dict[str, Any] = {"dp": 32, "zero": 2, "framework": "deepspeed", "sequence_parallel": False}
    assert deepspeed(make_plan(**common, regime="deepspeed-fp32-gradients"))["data_types"] == {"grad_accum_dtype": "fp32"}
    assert deepspeed(make_plan(**common, precision="fp16"))["fp16"]["enabled"] is True
    assert not {"bf16", "fp16"} & set(deepspeed(make_plan(**common, precision="fp32")))


def test_deepspeed_knows_every_key_of_random_plans() -> None:
    plans = exportable("deepspeed", "deepspeed", 600) + exportable("deepspeed", "megatron-deepspeed", 300)
    assert len(plans) > 30
    for plan in plans:
        config = deepspeed(plan)
        micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
        assert config["train_batch_size"] == micro * steps * degree(plan, "dp")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"pp": 4, "dp": 8, "zero": 3}, "zero"),
        ({"pp": 4, "dp": 8, "zero": 1, "vpp": 2, "schedule": "interleaved"}, "vpp|interleaved"),
        ({"tp": 4, "dp": 8}, "tp"),
        ({"dp": 32, "precision": "fp8", "cluster": "32xH100-80G"}, "precision|fp8"),
        ({"dp": 32, "zero": 2, "offload": "optimizer+params"}, "offload"),
        ({"pp": 2, "dp": 16, "zero": 1, "stage_layers": (15, 17)}, "stage layers"),
        ({"dp": 32, "zero": 3, "shard_group": 8}, "shard_group|shard group"),
    ],
)
def test_deepspeed_refuses_what_it_cannot_run(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportRefused, match=reason):
        exporter("deepspeed").export(make_plan(**{"framework": "deepspeed", "sequence_parallel": False, **given}))


def test_a_plan_of_another_framework_is_evaluated_where_it_will_run() -> None:
    plan = make_plan(dp=32, zero=3, framework="fsdp", sequence_parallel=False, recompute="full")
    there = adapted(plan, exporter("deepspeed"))
    assert there.training.framework in ("deepspeed", "megatron-deepspeed")
    assert there.layout == plan.layout
    assert there.cost is not plan.cost
    with pytest.raises(ExportRefused, match="zero"):
        adapted(plan, exporter("megatron"))


def test_the_real_deepspeed_parser_accepts_the_exports() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config as module

    for plan in [*exportable("deepspeed", "deepspeed", 200), *exportable("deepspeed", "megatron-deepspeed", 100)]:
        module.dist.get_rank = lambda *_, **__: 0
        ranks = degree(plan, "dp")
        module.dist.get_world_size = lambda *_, ranks=ranks, **__: ranks
        assert module.DeepSpeedConfig(deepspeed(plan)).train_batch_size == plan.training.global_batch


def test_the_real_megatron_parser_accepts_the_exports(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Needs megatron-core with megatron.training, and a card or its stand-in (the parser asks for a compute capability)."""
    module = pytest.importorskip("megatron.training.arguments", exc_type=ImportError)
    monkeypatch.setattr(module, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(module.torch.cuda, "get_device_capability", lambda *_, **__: (9, 0))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    own = ["--train-iters", "10", "--lr", "1e-4", "--tokenizer-type", "NullTokenizer", "--mock-data", "--no-rope-fusion"]
    for plan in exportable("megatron", "megatron", 200):
        monkeypatch.setenv("WORLD_SIZE", f"{gpus(plan)}")
        monkeypatch.setenv("RANK", os.environ.get("RANK", "0"))
        monkeypatch.setattr(sys, "argv", ["pretrain", *json.loads(exporter("megatron").export(plan)["megatron.json"]), *own])
        read = module.validate_args(module.parse_args())
        module.core_transformer_config_from_args(read)
        assert read.data_parallel_size == degree(plan, "dp")
        assert read.global_batch_size == plan.training.global_batch
        capsys.readouterr()
