"""Step time: kernels against published timings, exact ledgers, batches equal to single layouts, and directions of every axis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.cost import parameters_used
from cost_models.layout import Choices, Degrees, Layout
from cost_models.op import AttentionCore
from cost_models.stages import stages
from cost_models.throughput.roofline import Rates, attention_seconds, product_seconds, rates
from cost_models.throughput.software import Software, software
from cost_models.throughput.step import step_time
from cost_models.training import Training
from cost_models.transformer import count_parameters, model_ops
from hardware.calibration import calibration, names, value
from hardware.catalog import gpu_names, load_gpu
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.result import TimeCost
    from hardware.spec import Pool

LLAMA = "llama-3.1-8b"


def timed(
    cluster: str = "32xA100-80G",
    model: str | Architecture = LLAMA,
    choices: Choices | None = None,
    *,
    every: bool = False,
    degrees: dict[str, Any] | None = None,
    **training: Any,
) -> TimeCost:
    architecture = load(model) if isinstance(model, str) else model
    task = Training(**{"seq": 2048, "global_batch": 512, **training})
    layout = Layout(degrees=Degrees(**(degrees or {"tp": 2.0, "pp": 2.0, "dp": 8.0})), choices=choices or Choices())
    pool = parse_cluster(cluster).pools[0]
    return timed_on(architecture, task, layout, pool, every=every)


def timed_on(architecture: Architecture, task: Training, layout: Layout, pool: Pool, *, every: bool = False) -> TimeCost:
    ops, held = model_ops(architecture, task, layout), stages(architecture, layout, every=every)
    return step_time(architecture, task, layout, pool, ops, held, parameters_used=parameters_used(architecture))


def kernels(gpu: str, **training: Any) -> tuple[Rates, Software]:
    card = load_gpu(gpu)
    task = Training(**training)
    stack = software(task, Choices(), card)
    return rates(task, stack, card), stack


def term(cost: TimeCost, name: str) -> float:
    return sum(float(np.asarray(t.value)) for t in cost.ledger.terms if t.name.startswith(name))


def gemm_seconds(r: Rates, rate: float, m: float, n: float, k: float) -> float:
    """Forward of one product."""
    return float(product_seconds(r, rate, m, n, k, 1.0, 0.0, weight=False)[0])


@pytest.mark.parametrize(
    ("gpu", "shape", "flop_per_second"),
    [
        ("a100-sxm-80g", (4096, 4096, 4096), 250e12),
        ("a100-sxm-80g", (8192, 8192, 8192), 256e12),
        ("a100-sxm-80g", (1024, 1024, 1024), 119e12),
        ("h100-sxm-80g", (8192, 8192, 8192), 760e12),
        ("b200-sxm", (4096, 28672, 8192), 1091e12),
    ],
)
def test_gemm_rates_of_published_shapes(gpu: str, shape: tuple[int, int, int], flop_per_second: float) -> None:
    """Hardware notes, section 1; training runs throttle a little below short benchmarks, hence the wide lower side."""
    m, n, k = (float(x) for x in shape)
    r, _ = kernels(gpu)
    rate = 2 * m * n * k / gemm_seconds(r, r.wide_flop_per_second, m, n, k)
    assert 0.8 <= rate / flop_per_second <= 1.15


def test_gemm_pays_for_partial_tiles_and_waves() -> None:
    r, _ = kernels("a100-sxm-80g")

    def per_row(m: float) -> float:
        return gemm_seconds(r, r.wide_flop_per_second, m, 4096.0, 4096.0) / m

    assert per_row(128.0) > per_row(3457.0) > per_row(3456.0)
    skinny = gemm_seconds(r, r.wide_flop_per_second, 8192.0, 16.0, 4096.0)
    assert skinny > 8192 * 4096 * 2 / r.hbm_bytes_per_second
    assert gemm_seconds(r, r.wide_flop_per_second, 1.0, 1.0, 1.0) >= r.launch_seconds


@pytest.mark.parametrize(("gpu", "low", "high"), [("a100-sxm-80g", 150e12, 200e12), ("h100-sxm-80g", 200e12, 400e12)])
def test_flash_attention_rates(gpu: str, low: float, high: float) -> None:
    """FlashAttention-2, causal, head size 128, 16K tokens, forward and backward: 189 TFLOP/s on A100, up to 328 on H100."""
    r, stack = kernels(gpu, extra={"attention_backend": "flash2"})
    core = AttentionCore(batch=1.0, heads=16.0, q_len=16384.0, kv_len=16384.0, qk_dim=128.0, v_dim=128.0)
    forward, backward = attention_seconds(r, stack, core, act_bytes=2.0)
    assert low <= 3.5 * 2 * 16 * 16384.0**2 * 128 / (float(forward) + float(backward)) <= high


def test_attention_kernels_are_ordered() -> None:
    core = AttentionCore(batch=1.0, heads=32.0, q_len=4096.0, kv_len=4096.0, qk_dim=128.0, v_dim=128.0)
    times = []
    for kernel in ("flash3", "flash2", "triton", "eager"):
        r, stack = kernels("h100-sxm-80g", extra={"attention_backend": kernel})
        times.append(sum(float(x) for x in attention_seconds(r, stack, core, act_bytes=2.0)))
    assert times == sorted(times)
    windowed = attention_seconds(r, replace(stack, attention="flash2"), replace(core, causal_fraction=0.1), act_bytes=2.0)
    assert float(windowed[0]) < times[1]


FAMILIES = [
    {},
    {"choices": Choices(zero=3, sequence_parallel=False)},
    {"choices": Choices(zero=2, offload="optimizer")},
    {"choices": Choices(recompute="full", schedule="interleaved")},
    {"choices": Choices(recompute="selective", recompute_modules=("core_attn", "mlp"), schedule="zb-h1")},
    {"choices": Choices(schedule="dualpipe", offload="optimizer+params", zero=3, offload_target="nvme")},
    {"method": "lora"},
    {"method": "qlora", "framework": "hf"},
    {"method": "inference"},
    {"precision": "fp8", "cluster": "32xH100-80G"},
    {"framework": "deepspeed", "attention": "eager"},
    {"model": "mixtral-8x7b", "choices": Choices(schedule="gpipe")},
]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_exposed_terms_sum_to_the_step(family: dict[str, Any]) -> None:
    cost = timed(**family)
    total = 0.0
    for t in cost.ledger.terms:
        total = total + float(np.asarray(t.value if t.exposed is None else t.exposed))
        assert t.formula and t.source
        assert float(np.asarray(t.value)) >= -1e-9, t.name
        if t.exposed is not None and not t.name.startswith("zero"):
            assert float(np.asarray(t.exposed)) <= float(np.asarray(t.value)) * (1 + 1e-9) + 1e-9, t.name
    assert total == float(np.asarray(cost.step_seconds)) > 0
    assert 0 < float(np.asarray(cost.mfu)) < 1


def column(values: list[float]) -> Any:
    return np.asarray(values, dtype=np.float64)[:, None]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_batch_equals_its_layouts_bit_for_bit(family: dict[str, Any]) -> None:
    rows = [
        dict(tp=tp, pp=pp, dp=32 / tp / pp, micro_batch=mb, cp=1.0, ep=ep, vpp=2.0, recompute_layers=rl, activation_offload=0.25)
        for tp, pp, mb, ep, rl in ((1, 1, 1, 1, -1), (2, 4, 2, 2, 1), (4, 2, 1, 1, 3), (8, 4, 1, 1, 0), (1, 8, 4, 4, -1))
    ]
    batch = {name: column([float(r[name]) for r in rows]) for name in rows[0]}
    together = timed(**{**family, "degrees": batch})
    for i, row in enumerate(rows):
        degrees = {name: np.float64(x) for name, x in row.items()}
        for every in (False, True):
            alone = timed(**{**family, "degrees": degrees}, every=every)
            assert alone.step_seconds == np.asarray(together.step_seconds)[i]
            assert alone.mfu == np.asarray(together.mfu)[i]
            assert alone.hfu == np.asarray(together.hfu)[i]


@pytest.mark.parametrize("model", ["llama-4-maverick", "deepseek-v3", "gemma-3-27b"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v", "dualpipe"])
def test_a_batch_equals_its_layouts_where_layers_differ(model: str, schedule: Any) -> None:
    """Rows whose stages differ in how many of them count (`decisive`) share one batch."""
    sizes = [(pp, vpp) for pp in (4, 5, 6, 8, 10, 12, 16) for vpp in ((2, 3) if schedule == "interleaved" else (1,)) if pp * vpp <= 48]
    degrees = {"pp": column([float(pp) for pp, _ in sizes]), "vpp": column([float(vpp) for _, vpp in sizes])}
    given: dict[str, Any] = {"model": model, "cluster": "64xH100-80G", "choices": Choices(schedule=schedule), "global_batch": 240}
    together = np.asarray(timed(**given, degrees=degrees).step_seconds)
    for (pp, vpp), step in zip(sizes, together, strict=True):
        assert timed(**given, degrees={"pp": float(pp), "vpp": float(vpp)}).step_seconds == step


def test_stage_seconds_cover_every_stage() -> None:
    cost = timed(every=True, degrees={"tp": 1.0, "pp": 8.0, "dp": 4.0})
    forward = np.asarray(cost.stage_forward_seconds)
    assert forward.shape == (8,) == np.asarray(cost.stage_backward_seconds).shape
    assert forward[-1] > forward[3]


def test_explicit_equal_stages_take_the_time_of_the_balanced_split() -> None:
    architecture = load(LLAMA)
    task = Training(seq=2048, global_batch=512)
    pool = parse_cluster("32xA100-80G").pools[0]
    balanced = Layout(degrees=Degrees(tp=1.0, pp=4.0, dp=8.0), choices=Choices())
    listed = replace(balanced, stage_layers=(8, 8, 8, 8))
    uneven = replace(balanced, stage_layers=(9, 9, 8, 6))
    times = [float(timed_on(architecture, task, x, pool).step_seconds) for x in (balanced, listed, uneven)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert times[2] < times[1]


def test_mfu_is_defined_as_printed() -> None:
    a = load(LLAMA)
    cost = timed(model=a)
    tokens = 512 * 2048
    flop = tokens * (6 * count_parameters(a).active_without_token_embedding + 12 * a.layers * a.heads * a.head_dim * 2048)
    assert float(np.asarray(cost.model_flop)) == pytest.approx(flop, rel=1e-12)
    assert float(np.asarray(cost.mfu)) == pytest.approx(flop / (32 * 312e12 * float(np.asarray(cost.step_seconds))), rel=1e-12)
    assert float(np.asarray(cost.tokens_per_second_per_gpu)) == pytest.approx(tokens / 32 / float(np.asarray(cost.step_seconds)), rel=1e-12)
    assert float(np.asarray(cost.hfu)) == float(np.asarray(cost.mfu))
    again = timed(model=a, choices=Choices(recompute="full"))
    assert 1.25 < float(np.asarray(again.hfu)) / float(np.asarray(again.mfu)) < 1.4


def seconds(**changes: Any) -> float:
    return float(np.asarray(timed(**changes).step_seconds))


def test_directions() -> None:
    base = seconds()
    assert seconds(cluster="32xH100-80G") < base
    assert seconds(choices=Choices(recompute="full")) > seconds(choices=Choices(recompute="selective")) > base
    assert seconds(choices=Choices(offload="optimizer")) > base
    assert seconds(method="lora", lora_targets=("q", "v")) < base
    assert seconds(attention="eager") > base
    assert seconds(framework="hf") > base
    assert seconds(seq=4096, global_batch=256) > base
    pipelined = {"tp": 1.0, "pp": 8.0, "dp": 4.0, "vpp": 4.0}
    plain, interleaved = (timed(choices=Choices(schedule=s), degrees=pipelined) for s in ("1f1b", "interleaved"))
    assert term(interleaved, "pp.bubble") < term(plain, "pp.bubble")
    slow = parse_cluster("32xA100-80G").pools[0].model_copy(update={"oversubscription": 4.0})
    architecture, task = load(LLAMA), Training(seq=2048, global_batch=64)
    layout = Layout(degrees=Degrees(dp=32.0), choices=Choices(zero=3, sequence_parallel=False))
    thin = timed_on(architecture, task, layout, slow)
    full = timed_on(architecture, task, layout, parse_cluster("32xA100-80G").pools[0])
    assert float(np.asarray(thin.step_seconds)) > float(np.asarray(full.step_seconds))


def test_small_layers_wait_for_the_host() -> None:
    tiny = timed(model="gpt2", cluster="8xH100-80G", framework="hf", degrees={"dp": 8.0}, seq=256, global_batch=8)
    assert term(tiny, "host.launch") > 0.3 * float(np.asarray(tiny.step_seconds))
    graphs = timed(model="gpt2", cluster="8xH100-80G", framework="hf", degrees={"dp": 8.0}, seq=256, global_batch=8, cuda_graphs=True)
    assert float(np.asarray(graphs.step_seconds)) < float(np.asarray(tiny.step_seconds))


def test_inference_names_the_time_of_a_further_token() -> None:
    cost = timed(method="inference", cluster="1xH100-80G", degrees={"dp": 1.0}, global_batch=1)
    decode = next(t for t in cost.ledger.terms if t.name == "decode.step")
    assert float(np.asarray(decode.exposed)) == 0.0
    weights = 2 * count_parameters(load(LLAMA)).active_without_token_embedding
    assert weights / 3.35e12 < float(np.asarray(decode.value)) < 3 * weights / 3.35e12
    half = timed(method="inference", weight_bits=8, cluster="1xH100-80G", degrees={"dp": 1.0}, global_batch=1)
    assert term(half, "decode.step") < term(cost, "decode.step")


def test_a_type_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no known peak for fp8"):
        timed(cluster="8xA100-80G", degrees={"dp": 8.0}, precision="fp8")
    with pytest.raises(ValueError, match="class of software"):
        timed(extra={"class": "quick"})


@given(
    st.sampled_from([1.0, 2.0, 4.0, 8.0]),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.sampled_from(["mixtral-8x7b", "deepseek-v2-lite", "gemma-2-2b"]),
)
@settings(max_examples=25)
def test_every_layout_takes_a_finite_time(tp: float, pp: float, ep: float, model: str) -> None:
    cost = timed(model=model, cluster="64xH100-80G", degrees={"tp": tp, "pp": pp, "ep": ep, "dp": 64 / tp / pp, "micro_batch": 1.0})
    assert np.isfinite(float(np.asarray(cost.step_seconds)))
    assert 0 < float(np.asarray(cost.mfu)) <= float(np.asarray(cost.hfu)) < 1


def test_every_gpu_has_every_constant() -> None:
    for gpu in gpu_names():
        card = load_gpu(gpu)
        for constant in calibration("default").constants:
            assert value(card, constant) > 0


@pytest.mark.parametrize("name", names())
def test_constants_say_where_they_come_from(name: str) -> None:
    for constant in calibration(name).constants.values():
        assert constant.meaning and constant.origin and constant.unit


def test_fp4_products_follow_the_fp4_peak() -> None:
    """GB300 has the 16-bit and fp8 peaks of GB200 and one and a half times its fp4 peak: timings 4.5 and 5.6 PFLOP/s (gemm.csv)."""
    rate = {g: kernels(g, precision="fp8", extra={"fp8_recipe": "nvfp4"})[0].gemm_flop_per_second for g in ("gb200", "gb300")}
    assert 1.1 < rate["gb300"] / rate["gb200"] < 1.4
    with pytest.raises(ValueError, match="fp4"):
        kernels("h100-sxm-80g", precision="fp8", extra={"fp8_recipe": "nvfp4"})


def test_ends_of_a_tile_take_as_long_in_fp8() -> None:
    """Twice the rate halves the inner loop alone: short inner lengths gain less (gemm.csv, H100: k0 128 in 16 bits, 256 in fp8)."""
    wide, narrow = kernels("h100-sxm-80g")[0], kernels("h100-sxm-80g", precision="fp8")[0]

    def gain(k: float) -> float:
        seconds = [float(product_seconds(r, r.gemm_flop_per_second, 8192.0, 8192.0, k, 1.0, 2.0, weight=False)[0]) for r in (wide, narrow)]
        return seconds[0] / seconds[1]

    assert gain(1024.0) < gain(4096.0) < gain(32768.0) < narrow.gemm_flop_per_second / wide.gemm_flop_per_second


def test_joined_matrices_have_one_adapter() -> None:
    """Megatron-LM's linear_qkv and linear_fc1: fewer thin products, the same trained elements."""
    given = {"method": "lora", "lora_rank": 8, "lora_targets": ("q", "k", "v", "gate", "up")}
    layout = Layout(degrees=Degrees(), choices=Choices())
    counts = {}
    for framework in ("megatron", "fsdp"):
        ops = model_ops(load(LLAMA), Training(framework=framework, **given), layout).kinds[0][1]
        counts[framework] = sum(len(op.gemm) for op in ops), sum(float(p.adapter) for op in ops for p in op.params)
    assert counts["fsdp"][0] - counts["megatron"][0] == 2 * (2 + 1)
    assert counts["fsdp"][1] == counts["megatron"][1]
