"""Time of expert layers: what the host launches, what CUDA graphs and fused kernels leave of it, and published grouped products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.catalog import load
from cost_models.cost import parameters_used
from cost_models.layout import Choices, Degrees, Layout
from cost_models.stages import stages
from cost_models.throughput.roofline import product_seconds, rates
from cost_models.throughput.software import software
from cost_models.throughput.step import step_time
from cost_models.training import Training
from cost_models.transformer import model_ops
from hardware.catalog import load_gpu
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.result import TimeCost

QWEN = load("qwen3-30b-a3b")


def timed(cluster: str = "8xB200", ep: float = 8.0, micro_batch: float = 1.0, *, balanced: bool = True, **extra: str) -> TimeCost:
    pool = parse_cluster(cluster).pools[0]
    values: dict[str, Any] = {"precision": "fp8", "date": "2026-02"}
    task = Training(seq=4096, global_batch=512, balanced_routing=balanced, extra={"fp8_recipe": "mxfp8", **extra}, **values)
    layout = Layout(degrees=Degrees(dp=float(pool.count), ep=ep, micro_batch=micro_batch), choices=Choices(zero=1))
    ops, held = model_ops(QWEN, task, layout), stages(QWEN, layout)
    return step_time(QWEN, task, layout, pool, ops, held, parameters_used=parameters_used(QWEN))


def term(cost: TimeCost, name: str) -> float:
    return sum(float(np.asarray(t.value)) for t in cost.ledger.terms if t.name.startswith(name))


def test_the_host_launches_every_local_expert() -> None:
    """Twice the local experts take longer where the host sets the pace, and nothing more where a graph holds the step."""
    waits = [term(timed(ep=ep), "host.launch") for ep in (8.0, 4.0, 2.0)]
    assert 0.0 < waits[0] < waits[1] < waits[2]
    assert term(timed(ep=2.0, cuda_graphs="full"), "host.launch") == 0.0


def test_larger_micro_batches_hide_the_host() -> None:
    assert term(timed(micro_batch=8.0), "host.launch") < 0.2 * term(timed(micro_batch=1.0), "host.launch")


def test_graphs_leave_less_of_the_host_the_more_they_capture() -> None:
    captured = ("moe_router,moe_preprocess", "attn,moe_router,moe_preprocess", "layers")
    steps = [float(timed(**scope).step_seconds) for scope in ({}, *({"cuda_graphs": scopes} for scopes in captured))]
    assert steps == sorted(steps, reverse=True) and steps[-1] < steps[0]


def test_a_host_that_reads_the_counts_cannot_run_ahead() -> None:
    """Dropless routing waits in forward; padded capacity does not."""
    dropless, padded = timed(micro_batch=2.0), timed(micro_batch=2.0, capacity_padded="yes")
    assert term(dropless, "host.launch_forward") > term(padded, "host.launch_forward")
    assert term(dropless, "host.launch_backward") == term(padded, "host.launch_backward")


def test_whole_iteration_graphs_bring_fused_expert_kernels() -> None:
    separate, fused = timed(micro_batch=8.0), timed(micro_batch=8.0, cuda_graphs="full")
    assert term(fused, "compute.memory") < term(separate, "compute.memory")
    assert term(fused, "compute.gemm") == term(separate, "compute.gemm")


def test_overlap_hides_the_exchange_and_costs_the_host() -> None:
    plain, beside = timed(micro_batch=8.0), timed(micro_batch=8.0, moe_a2a_overlap="yes")
    exposed = [sum(float(np.asarray(t.exposed)) for t in c.ledger.terms if t.name.startswith("ep.")) for c in (plain, beside)]
    assert exposed[1] < 0.3 * exposed[0]
    assert term(timed(moe_a2a_overlap="yes"), "host.launch") > term(timed(), "host.launch")


@pytest.mark.parametrize(
    ("dispatcher", "framework", "date", "once"),
    [
        ("", "megatron", "", True),
        ("", "megatron", "2024-06", False),
        ("alltoall", "megatron", "", False),
        ("hybridep", "megatron", "", True),
        ("", "hf", "", False),
    ],
)
def test_dispatchers(dispatcher: str, framework: str, date: str, *, once: bool) -> None:
    extra = {"moe_dispatcher": dispatcher} if dispatcher else {}
    task = Training(framework=framework, date=date, extra=extra)  # type: ignore[arg-type]
    assert software(task, Choices(), load_gpu("h100-sxm-80g")).dispatch_once is once


def test_experts_in_a_loop_pass_zero3_hooks_one_by_one() -> None:
    """Hugging Face models before transformers 5 run expert by expert; DeepSpeed's hooks surround each of their linear layers."""
    card = load_gpu("a100-sxm-80g")
    old, new = (software(Training(framework="hf", date=date), Choices(zero=3), card) for date in ("2025-05", "2026-05"))
    whole = software(Training(framework="hf", date="2025-05"), Choices(zero=1), card)
    assert old.host_expert_forward_seconds > whole.host_expert_forward_seconds > 0.0
    assert new.host_expert_forward_seconds == 0.0


GROUPED = [
    # groups, rows of each, n, k, published TFLOP/s of forward, input gradient, weight gradient (gemm.csv, B200, SimuMax)
    (20, 1232, 3072, 5120, 1155.2, 948.5, 737.1),
    (32, 1024, 4096, 7168, 1028.5, 979.9, 649.8),
    (40, 2460, 3072, 5120, 1095.2, 1016.8, 937.3),
    (40, 9832, 3072, 5120, 1067.9, 1069.9, 941.8),
    (256, 128, 4096, 7168, 468.2, 509.4, 174.4),
]


@pytest.mark.parametrize(("groups", "m", "n", "k", "forward", "inputs", "weights"), GROUPED)
def test_grouped_products_as_published(groups: float, m: float, n: float, k: float, forward: float, inputs: float, weights: float) -> None:
    """Tiles are whole for every expert, and few rows are bound by the weights' traffic (fp32 gradients read and written)."""
    card = load_gpu("b200-sxm")
    task = Training()
    r = rates(task, software(task, Choices(), card), card)
    found = product_seconds(r, r.gemm_flop_per_second * r.grouped, float(m), float(n), float(k), float(groups), 8.0, weight=True)
    flop = 2.0 * groups * m * n * k
    for seconds, published in zip(found, (forward, inputs, weights), strict=True):
        assert flop / float(seconds) == pytest.approx(published * 1e12, rel=0.5)
