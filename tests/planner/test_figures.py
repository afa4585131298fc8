"""Figures that the field states and that planner reproduces (tests/published/figures.toml): those of work, speed, fit and remedies.

The figures of states and activations stand in tests/cost_models/test_states.py and test_memory.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.architecture import Architecture
from cost_models.choices.precision import regime_of
from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.training import Training
from cost_models.transformer import model_ops
from planner.asked import make_request
from planner.assess import Assessment, assess
from planner.changes import FREED_FIRST
from planner.request import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from planner.plan import Plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def figures(published: Path) -> dict[str, Any]:
    return {f["id"]: f for f in tomllib.loads((published / "figures.toml").read_text(encoding="utf-8"))["figure"]}


def assessed(**flags: Any) -> Assessment:
    return assess(resolve(make_request(flags)))


def planned(**flags: Any) -> Plan:
    plan = assessed(**flags).plan
    assert plan is not None
    return plan


def step(plan: Plan) -> float:
    return float(num(plan.cost.time.step_seconds))


def test_activations_by_the_gpt_form(figures: dict[str, Any]) -> None:
    """34 s b h of a GPT layer without the attention core, as Korthikanti et al. 2022 (arXiv 2205.05198), table 2."""
    figure = figures["llama8b-activations-gpt-form"]
    seq, hidden, layers = 2048, 4096, 32
    gpt = Architecture(
        id="gpt",
        family="gpt2",
        layers=layers,
        hidden=hidden,
        ffn_hidden=4 * hidden,
        heads=32,
        kv_heads=32,
        head_dim=128,
        vocab=50257,
        gated_mlp=False,
        activation="gelu",
        norm="layer",
        norm_bias=True,
        qkv_bias=True,
        attn_out_bias=True,
        mlp_bias=True,
        positional="learned",
    )
    training = Training(seq=seq, implementation="megatron-unfused", attention="eager", dropout=0.1)
    ops = model_ops(gpt, training, Layout(degrees=Degrees(), choices=Choices(sequence_parallel=False)))
    kept = sum(float(num(s.bytes)) for op in ops.kinds[0][1] for s in op.saved if "core_attn" not in s.modules)
    assert kept == pytest.approx(34.0 * seq * hidden, rel=0.001)
    assert layers * kept == pytest.approx(figure["stated"]["activations_bytes"], rel=figure["tolerance"])


def test_full_recompute_adds_a_third_of_the_work_of_the_layers(figures: dict[str, Any]) -> None:
    stated = figures["llama8b-recompute-flop"]["stated"]["added_flop_fraction"]
    small_head = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128}
    plan = planned(dimensions=small_head, cluster="8xH100-80G", recompute="full", micro_batch=1, framework="megatron")
    time = plan.cost.time
    assert float(num(time.hardware_flop)) / float(num(time.model_flop)) - 1.0 == pytest.approx(stated, rel=0.001)


def test_sixteen_bytes_of_a_round_seven_billion(figures: dict[str, Any]) -> None:
    stated, parameters = figures["7b-adam-16-bytes"]["stated"], 7e9
    regime = regime_of(Training(regime="zero-paper"), Choices())
    assert parameters * regime.weight_bytes == stated["weights_bytes"]
    assert parameters * regime.gradient_bytes == stated["gradients_bytes"]
    assert parameters * regime.master_bytes == stated["master_bytes"]
    assert parameters * regime.moment_bytes == stated["moments_bytes"]


def test_checkpointing_trades_activations_for_time(figures: dict[str, Any]) -> None:
    """In kind: activations fall at least as far as stated, and the step gets longer by about what is stated."""
    stated = figures["7b-checkpointing"]["stated"]
    flags = {"model": "llama-2-7b", "cluster": "8xA100-80G", "framework": "deepspeed", "zero": 2, "micro_batch": 1}
    whole, again = planned(recompute="none", **flags), planned(recompute="full", **flags)

    def kept(plan: Plan) -> float:
        return float(np.max(plan.cost.memory.phases["forward"].bucket("activations")))

    assert kept(whole) / kept(again) > stated["activations_bytes_without"] / stated["activations_bytes_with"]
    assert 0.5 * stated["slower_fraction"] < step(again) / step(whole) - 1.0 < 2.0 * stated["slower_fraction"]


@pytest.mark.parametrize(("name", "model", "zero"), [("7b-8xa100-batch", "7b", 2), ("13b-8xa100-batch", "13b", 3)])
def test_stated_micro_batches_fit(figures: dict[str, Any], name: str, model: str, zero: int) -> None:
    stated = figures[name]["stated"]
    for batch in (stated["micro_batch_low"], stated["micro_batch_high"]):
        plan = planned(model=model, cluster="8xA100-80G", framework="deepspeed", zero=zero, recompute="full", micro_batch=batch, seq=2048)
        assert plan.fits


def test_the_balanced_start_for_30b_fits(figures: dict[str, Any]) -> None:
    assert figures["30b-tp4-pp4-dp2"]["stated"]["fits"]
    assert planned(model="30b", cluster="32xA100-80G", tp=4, pp=4, dp=2).fits


def test_a_v100_has_no_bf16(figures: dict[str, Any]) -> None:
    assert figures["mixed-v100-types"]["stated"] == {"bf16_supported": False}
    flags = {"model": "gpt2", "cluster": "8xV100-32G", "attention": "eager"}
    assert any("fp16" in b.message for b in assessed(precision="bf16", **flags).broken)
    assert assessed(precision="fp16", **flags).plan is not None


def test_offload_can_be_ten_times_slower(figures: dict[str, Any]) -> None:
    """With few tokens a step, moving every state over the host link outlasts the computation many times, and the terms say so."""
    flags = {"model": "llama-2-7b", "cluster": "4xRTX4090", "framework": "deepspeed", "zero": 3, "seq": 512, "global_batch": 4}
    inside, outside = planned(offload="none", **flags), planned(offload="optimizer,params", **flags)
    assert step(outside) > step(inside)
    assert step(outside) / float(num(outside.cost.time.ledger.bucket("compute"))) > figures["slow-offload"]["stated"]["slower_times"]
    assert float(num(outside.cost.time.ledger.bucket("offload"))) > 0.0


def test_zero3_loses_to_zero2_across_slow_links(figures: dict[str, Any]) -> None:
    assert figures["slow-links-zero3"]["relation"] == "="
    flags = {"model": "llama-2-7b", "cluster": "16xRTX4090", "framework": "deepspeed", "micro_batch": 1, "recompute": "full"}
    assert step(planned(zero=3, **flags)) > step(planned(zero=2, **flags))


def test_exposed_communication_can_eat_most_of_ten_gpus(figures: dict[str, Any]) -> None:
    """In kind: servers of one card on an unknown (slow) network train far less than ten times as fast as one of them."""
    flags = {"model": "gpt2-xl", "framework": "megatron-deepspeed", "seq": 512, "micro_batch": 1, "zero": 1}
    one = planned(cluster="1xL40S-48G", global_batch=1, **flags)
    ten = planned(cluster="10x1xL40S-48G", global_batch=10, dp=10, **flags)
    speedup = 10.0 * step(one) / step(ten)
    assert 1.0 < speedup < 2.0 * figures["no-overlap"]["stated"]["speedup"]
    assert float(num(ten.cost.time.ledger.exposed)) == pytest.approx(step(ten), rel=1e-9)


def test_remedies_free_the_cheapest_first(figures: dict[str, Any]) -> None:
    """Smaller micro-batch, recompute, sharding, offload: in the order that the field gives them."""
    order = figures["oom-order-of-remedies"]["remedies"]
    words = {"micro_batch": "micro-batch", "recompute": "recompute", "zero": "sharding", "offload": "offload"}
    places = [next(i for i, said in enumerate(order) if words[field] in said) for field in FREED_FIRST]
    assert places == sorted(places)
