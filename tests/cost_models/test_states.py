"""States: who keeps what, how it is divided, and the byte counts that people quote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.choices.precision import REGIMES, regime_of
from cost_models.layout import Choices, Degrees, Layout
from cost_models.memory.states import Tally, base_bytes, held, nf4_bytes, states, tally
from cost_models.memory.total import memory
from cost_models.numeric import num
from cost_models.stages import stages
from cost_models.training import Framework, Optimizer, Training
from cost_models.transformer import count_parameters, model_ops
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.result import MemoryCost

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PUBLISHED = Path(__file__).resolve().parents[1] / "published"
POOL = parse_cluster("64xA100-80G").pools[0]
LLAMA, MOE, MLA = load("llama-3.1-8b"), load("qwen3-30b-a3b"), load("deepseek-v3")
FIGURES = {f["id"]: f for f in tomllib.loads((PUBLISHED / "figures.toml").read_text(encoding="utf-8"))["figure"]}
GIB = 2**30


def evaluate(architecture: Any, training: Training, layout: Layout, *, every: bool = False) -> MemoryCost:
    ops = model_ops(architecture, training, layout)
    return memory(architecture, training, layout, POOL, ops, stages(architecture, layout, every=every))


def state_bytes(cost: MemoryCost) -> float:
    """Weights, gradients and optimizer of the heaviest stage."""
    ledger = cost.phases["optimizer"]
    return float(np.max(ledger.bucket("weights") + ledger.bucket("gradients") + ledger.bucket("optimizer")))


def single(zero: Any = 0, **degrees: float) -> Layout:
    return Layout(degrees=Degrees(**{k: float(v) for k, v in degrees.items()}), choices=Choices(zero=zero))


@pytest.mark.parametrize("framework", get_args(Framework))
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_every_framework_and_optimizer_has_a_regime(framework: Framework, optimizer: Optimizer) -> None:
    for precision in ("fp32", "fp16", "bf16", "fp8"):
        regime = regime_of(Training(framework=framework, optimizer=optimizer, precision=precision), Choices())
        assert regime.name in REGIMES
        assert regime.weight_bytes > 0.0
        assert regime.label.startswith(regime.name)


def test_an_unknown_regime_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="zero-paper"):
        regime_of(Training(regime="zero-papier"), Choices())


@pytest.mark.parametrize(
    ("regime", "total"),
    [
        ("megatron", 18),
        ("megatron-bf16-gradients", 16),
        ("deepspeed", 16),
        ("deepspeed-fp32-gradients", 20),
        ("zero-paper", 16),
        ("fsdp", 16),
    ],
)
def test_bytes_per_parameter(regime: str, total: float) -> None:
    assert regime_of(Training(regime=regime), Choices()).bytes_per_parameter == total


@given(
    zero=st.sampled_from((0, 1, 2, 3)),
    dp=st.sampled_from((1, 2, 4, 8, 16)),
    ep=st.sampled_from((1, 2, 4)),
    framework=st.sampled_from(get_args(Framework)),
    model=st.sampled_from((LLAMA, MOE, MLA)),
)
def test_sharded_states_sum_to_the_whole(zero: Any, dp: int, ep: int, framework: Framework, model: Any) -> None:
    """Over all ranks that share it, every state adds up to bytes × parameters; FSDP1 under litgpt keeps accumulating gradients whole."""
    if model.moe is None or dp % ep:
        ep = 1
    training = Training(framework=framework, vocab_multiple=1)
    regime = regime_of(training, Choices())
    cost = evaluate(model, training, single(zero, dp=dp, ep=ep))
    counts = count_parameters(model)
    parts = (
        ("weights", regime.weight_bytes, regime.weight_from),
        ("gradients", regime.gradient_bytes, regime.gradient_from),
        ("optimizer", regime.master_bytes + regime.moment_bytes, regime.optimizer_from),
    )
    experts = float(num(tally(model_ops(model, training, single(zero, dp=dp, ep=ep)).kinds[-1][1], training).experts))
    moe_layers = sum(model.is_moe_layer(i) for i in range(model.layers))
    whole_experts = experts * moe_layers * ep
    dense = counts.parameters - whole_experts
    for name, width, from_stage in parts:
        terms = [t for t in cost.phases["optimizer"].terms if t.bucket == name and not t.name.startswith("gradients.main")]
        got_dense = float(sum(np.max(num(t.value)) for t in terms if t.name.endswith("dense")))
        got_experts = float(sum(np.max(num(t.value)) for t in terms if t.name.endswith("experts")))
        accumulating = name == "gradients" and framework == "litgpt"
        divided = zero >= from_stage and not accumulating
        assert got_dense * (dp if divided else 1) == pytest.approx(dense * width, rel=1e-9)
        assert got_experts * (dp if divided else ep) == pytest.approx(whole_experts * width, rel=1e-9)


@given(
    dp=st.sampled_from((1, 2, 8, 32)),
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2, 4)),
    framework=st.sampled_from(get_args(Framework)),
    optimizer=st.sampled_from(get_args(Optimizer)),
    model=st.sampled_from((LLAMA, MOE)),
)
def test_states_never_grow_with_the_zero_stage(dp: int, tp: int, pp: int, framework: Framework, optimizer: Optimizer, model: Any) -> None:
    training = Training(framework=framework, optimizer=optimizer)
    sizes = [state_bytes(evaluate(model, training, single(zero, dp=dp, tp=tp, pp=pp))) for zero in (0, 1, 2, 3)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "row", [r for r in json.loads((PUBLISHED / "truth.json").read_text(encoding="utf-8")) if r["row"] == "qlora"], ids=lambda r: r["id"]
)
def test_qlora_bytes_equal_bitsandbytes(row: dict[str, Any]) -> None:
    for check in row["checks"]:
        elements = float(check["shape"][0] * check["shape"][1])
        assert float(nf4_bytes(elements, 1.0, double_quant=check["double_quant"])) == check["real"]
    architecture = load(row["model"])
    for prepare, key in ((False, "total_bytes_bf16_rest"), (True, "total_bytes_after_prepare")):
        training = Training(method="qlora", framework="hf", kbit_prepare=prepare, lora_rank=16)
        layout = single()
        h = held(architecture, training, model_ops(architecture, training, layout), stages(architecture, layout, every=True))
        dense, experts = base_bytes(training, regime_of(training, Choices()), h.stage)
        assert float(np.max(num(dense) + num(experts))) == row[key]


def test_a_tied_matrix_is_held_on_both_ends_of_a_pipeline() -> None:
    tied = load("llama-3.2-1b")
    matrix = float(tied.vocab * tied.hidden * 2)
    one = float(np.max(evaluate(tied, Training(framework="deepspeed"), single()).phases["load"].total))
    two = evaluate(tied, Training(framework="deepspeed"), single(pp=2), every=True).phases["load"].total
    assert float(two[0] + two[1]) == pytest.approx(one + matrix, rel=1e-6)


def test_hybrid_sharding_divides_over_the_group() -> None:
    training = Training(framework="fsdp")
    whole = state_bytes(evaluate(LLAMA, training, single(3, dp=32)))
    grouped = state_bytes(evaluate(LLAMA, training, single(3, dp=32, shard_group=8)))
    assert grouped == pytest.approx(4.0 * whole)


def _stated(name: str) -> tuple[dict[str, float], float]:
    figure = FIGURES[name]
    return figure.get("planner", figure["stated"]), max(figure["tolerance"], 1e-9)


def _llama_states(zero: Literal[0, 3], dp: int) -> MemoryCost:
    return evaluate(LLAMA, Training(regime="zero-paper", framework="deepspeed", global_batch=dp, seq=2048), single(zero, dp=dp))


def test_figure_16_bytes_per_parameter() -> None:
    said, within = _stated("llama8b-states-16-bytes")
    cost = _llama_states(0, 1)
    ledger = cost.phases["optimizer"]
    assert state_bytes(cost) == pytest.approx(said["states_bytes"], rel=within)
    assert float(np.max(ledger.bucket("weights"))) == pytest.approx(said["weights_bytes"], rel=within)
    assert float(np.max(ledger.bucket("gradients"))) == pytest.approx(said["gradients_bytes"], rel=within)
    moments = said["first_moment_bytes"] + said["second_moment_bytes"]
    assert float(np.max(ledger.bucket("optimizer"))) == pytest.approx(said["master_bytes"] + moments, rel=within)


def test_figure_fully_sharded_states() -> None:
    said, within = _stated("llama8b-states-8-gpus")
    assert state_bytes(_llama_states(3, 8)) == pytest.approx(said["states_bytes"], rel=within)


@pytest.mark.parametrize(("name", "dp"), [("7b-zero2-8-gpus", 8), ("7b-zero2-2-gpus", 2)])
def test_figure_zero2_shards_the_master(name: str, dp: int) -> None:
    said, _ = _stated(name)
    training = Training(framework="deepspeed")
    regime = regime_of(training, Choices(zero=2))
    even = Tally(matrices=num([7e9]))
    one = held(LLAMA, training, model_ops(LLAMA, training, single(2, dp=dp)), stages(LLAMA, single(2, dp=dp)))
    h = type(one)(stage=even, embedding=one.embedding, head=one.head, layer=one.layer)
    s = states(training, regime, single(2, dp=dp), h, stages(LLAMA, single(2, dp=dp)))
    total = sum(float(num(t.value)[0]) for t in (*s.weights, *s.gradients, *s.main_gradients, *s.optimizer))
    assert total == pytest.approx(said["states_bytes"])


def test_figure_20_bytes() -> None:
    said, _ = _stated("7b-20-bytes")
    assert regime_of(Training(regime="deepspeed-fp32-gradients"), Choices()).bytes_per_parameter == said["bytes_per_parameter"]


def test_figure_lora_states() -> None:
    said, within = _stated("llama8b-lora-states")
    cost = evaluate(LLAMA, Training(method="lora", framework="hf", lora_rank=16), single())
    ledger = cost.phases["optimizer"]
    base = float(sum(np.max(num(t.value)) for t in ledger.terms if t.name.startswith("weights.base")))
    assert base == pytest.approx(said["base_bytes"], rel=within)
    assert state_bytes(cost) - base == pytest.approx(said["adapter_states_bytes"], rel=within)
    assert state_bytes(cost) == pytest.approx(said["states_bytes"], rel=within)
    counted, _ = _stated("llama8b-lora-parameters")
    layer = tally(model_ops(LLAMA, Training(method="lora", lora_rank=16), single()).kinds[0][1], Training(method="lora"))
    assert float(num(layer.adapters)) == counted["parameters_per_layer"]
    assert float(num(layer.adapters)) * LLAMA.layers == counted["trainable_parameters"]


def test_figure_qlora_states() -> None:
    said, within = _stated("llama8b-qlora-base")
    for double, key in ((True, "base_bytes"), (False, "base_bytes_single_quant")):
        cost = evaluate(LLAMA, Training(method="qlora", framework="hf", lora_rank=16, double_quant=double), single())
        base = float(sum(np.max(num(t.value)) for t in cost.phases["optimizer"].terms if t.name.startswith("weights.base")))
        assert base == pytest.approx(said[key], rel=within)
        if double:
            assert state_bytes(cost) == pytest.approx(said["states_bytes"], rel=0.01)
    prepared, exactly = _stated("llama8b-qlora-kbit-prepare")
    cost = evaluate(LLAMA, Training(method="qlora", framework="hf", kbit_prepare=True), single())
    base = float(sum(np.max(num(t.value)) for t in cost.phases["optimizer"].terms if t.name.startswith("weights.base")))
    assert base == pytest.approx(prepared["base_bytes"], rel=exactly)


def test_figure_int8_weights_are_half_of_bf16() -> None:
    said, _ = _stated("7b-int8-inference")
    by_bits = {}
    for bits in (16, 8):
        cost = evaluate(LLAMA, Training(method="inference", weight_bits=bits), single())
        by_bits[bits] = float(np.max(cost.phases["load"].total))
    assert by_bits[8] / by_bits[16] == said["weights_ratio"]
