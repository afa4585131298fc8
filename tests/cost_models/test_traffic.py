"""Traffic of element-wise work in single kernels: counted again by running the operators, and against a published pair of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cost_models.catalog import load
from cost_models.layout import Choices
from cost_models.throughput.software import software
from cost_models.throughput.traffic import traffic
from cost_models.training import Training
from hardware.catalog import load_gpu
from planner.runs import Run, Spec, read, spec
from planner.validate_predict import Predictor

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = {"norm": (4.0 + 6.0, 8.0 + 6.0), "rotary": (4.0, 4.0), "activation": (6.0, 10.0)}
"""Bytes per element that the blocks state for fused kernels in 16 bits, forward and backward; `norm` with the residual sum."""


@dataclass
class Tensor:
    """One element of 2 or 4 bytes (0: one number a row); every operator is a kernel that reads its inputs and writes its result."""

    log: list[float]
    size: float = 2.0

    def make(self, size: float, *inputs: Tensor) -> Tensor:
        self.log.append(size + sum(x.size for x in inputs))
        return Tensor(self.log, size)

    def to(self, size: float) -> Tensor:
        return self.make(size, self)

    def times(self, other: Tensor) -> Tensor:
        return self.make(max(self.size, other.size), self, other)

    def plus(self, other: Tensor) -> Tensor:
        return self.make(max(self.size, other.size), self, other)

    def mean(self) -> Tensor:
        return self.make(0.0, self)


def factors(name: str = "llama-3.1-8b", **given: object) -> dict[str, tuple[float, float]]:
    training = Training(**given)  # type: ignore[arg-type]
    return traffic(load(name), training, software(training, Choices(), load_gpu("a100-sxm-80g")))


def test_rms_norm_of_single_operators() -> None:
    """transformers models/llama/modeling_llama.py LlamaRMSNorm, then the residual sum."""
    x = Tensor([])
    wide = x.to(4.0)
    square = wide.make(4.0, wide)
    normed = wide.times(square.mean()).to(2.0)
    normed.times(Tensor(x.log, 0.0))
    x.plus(x)
    assert factors(framework="hf")["norm"][0] == pytest.approx(sum(x.log) / BLOCK["norm"][0])


def test_rotary_embedding_of_single_operators() -> None:
    """transformers apply_rotary_pos_emb: q·cos + rotate_half(q)·sin, whose tables are one row for all heads."""
    x = Tensor([])
    table = Tensor(x.log, 0.0)
    straight = x.times(table)
    x.log.append(2.0)  # half of the elements negated: read and written
    turned = x.make(2.0, x).times(table)
    straight.plus(turned)
    assert factors(framework="hf")["rotary"][0] == pytest.approx(sum(x.log) / BLOCK["rotary"][0])


def test_gated_activation_of_single_operators() -> None:
    """transformers LlamaMLP: act(gate) · up; backward: two products of the gradient, and the activation's own."""
    gate = Tensor([])
    up = Tensor(gate.log)
    gate.to(2.0).times(up)
    forward, gate.log[:] = sum(gate.log), []
    gradient = Tensor(gate.log)
    gradient.times(up), gradient.times(gate), gradient.make(2.0, gradient, gate)
    found = factors(framework="hf")["activation"]
    assert found == pytest.approx((forward / BLOCK["activation"][0], sum(gate.log) / BLOCK["activation"][1]))


def test_fused_kernels_move_what_the_blocks_state() -> None:
    fused = factors(framework="hf", extra={"norm_kernel": "fused", "mlp_kernel": "fused", "rope_fusion": "yes"})
    assert set(fused.values()) == {(1.0, 1.0)}
    assert set(factors(framework="megatron").values()) == {(1.0, 1.0)}


def test_torch_has_a_kernel_for_layer_norm() -> None:
    plain = factors("gpt2", framework="hf")["norm"]
    assert plain[0] < factors(framework="hf")["norm"][0] / 2.0


def test_compiled_and_single_kernels_differ_as_measured(published: Path) -> None:
    """torchtitan, Llama-3.1-8B on 8 GPUs, with and without torch.compile: 15.7 % apart (rows tt-001 and tt-002)."""
    runs: dict[str, Run] = {run.id: run for run in read(published / "runs.csv").runs}
    found = [spec(runs[name]) for name in ("tt-001", "tt-002")]
    assert all(isinstance(s, Spec) for s in found)
    predict = Predictor()
    seconds = [predict(s).step_seconds or 0.0 for s in found if isinstance(s, Spec)]
    measured = [s.measured.step_seconds or 0.0 for s in found if isinstance(s, Spec)]
    assert seconds[0] / seconds[1] == pytest.approx(measured[0] / measured[1], rel=0.04)
