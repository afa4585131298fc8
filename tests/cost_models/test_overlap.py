"""What runs beside what: the reduction of a column-parallel input gradient, and the gathers of ZeRO-3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.numeric import num
from cost_models.training import Training
from hardware.calibration import calibration, changed
from hardware.cluster import parse_cluster


def exposed(name: str, choices: Choices | None = None, degrees: dict[str, float] | None = None, **given: Any) -> tuple[float, float]:
    """Busy and exposed seconds of a term."""
    pool = parse_cluster("8xA100-80G").pools[0]
    layout = Layout(degrees=Degrees(**(degrees or {"tp": 8.0})), choices=choices or Choices(zero=0))
    training = Training(**{"seq": 2048, "global_batch": 8, **given})
    terms = {t.name: t for t in cost(load("llama-3.1-8b"), training, layout, pool).time.ledger.terms}
    term = terms[name]
    return float(num(term.value)), float(num(term.value if term.exposed is None else term.exposed))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_input_gradients_are_reduced_beside_weight_gradients(sequence_parallel: bool) -> None:
    """A layer sends four messages in backward with sequence parallelism, two of which wait for no weight gradient; two without it."""
    choices = Choices(zero=0, sequence_parallel=sequence_parallel)
    busy, early = exposed("tp.backward", choices, date="2021-04", attention="eager")
    same, late = exposed("tp.backward", choices, date="2022-06", attention="eager")
    assert busy == same
    slowdown = calibration("software").value("overlap_slowdown")
    assert slowdown * busy <= late < 0.75 * early


def test_frozen_weights_hide_nothing() -> None:
    given = {"method": "lora", "lora_targets": ("q",), "lora_rank": 4}
    _, frozen = exposed("tp.backward", Choices(zero=0), **given)
    with changed({("software", "overlap_slowdown", ""): 0.0}):
        _, free = exposed("tp.backward", Choices(zero=0), **given)
    assert frozen == pytest.approx(free, rel=0.05)


def test_a_slow_link_is_not_hidden_whole() -> None:
    """Beside products that last less than the message, what is left is exposed: two servers, one NIC each."""
    pool = parse_cluster("16x1xA100-80G").pools[0]
    layout = Layout(degrees=Degrees(tp=16.0), choices=Choices(zero=0))
    terms = {t.name: t for t in cost(load("llama-3.1-8b"), Training(seq=2048, global_batch=1), layout, pool).time.ledger.terms}
    backward = terms["tp.backward"]
    weights = terms["compute.gemm_weight_gradient"]
    assert num(backward.exposed) >= num(backward.value) / 2.0 - num(weights.value)


def test_second_generation_fsdp_hides_more() -> None:
    choices, degrees = Choices(zero=3, sequence_parallel=False), {"dp": 8.0}
    _, first = exposed("zero.forward", choices, degrees, framework="fsdp", date="2024-01")
    _, second = exposed("zero.forward", choices, degrees, framework="fsdp", date="2024-01", extra={"fsdp_version": "2"})
    assert second < first


def test_a_row_reduces_in_the_type_that_it_states() -> None:
    choices, degrees = Choices(zero=3, sequence_parallel=False), {"dp": 8.0}
    wide, _ = exposed("zero.backward", choices, degrees, framework="fsdp")
    narrow, _ = exposed("zero.backward", choices, degrees, framework="fsdp", extra={"reduce_dtype": "16bit"})
    gather, _ = exposed("zero.forward", choices, degrees, framework="fsdp")
    assert wide - narrow == pytest.approx(gather, rel=0.02), "two bytes less a parameter: as much as a gather of 16-bit weights"
    assert np.isfinite(wide)


def test_what_the_zero_bubble_fork_hides() -> None:
    """Its runtime sends beside compute, a V twice as often; a weight gradient that waits for its own pass hides no message of its layer,
    and gradients are reduced after the pipeline."""

    def of(name: str, schedule: Any) -> tuple[float, float]:
        degrees = {"tp": 2.0, "pp": 2.0, "dp": 2.0}
        choices = Choices(zero=1, schedule=schedule, sequence_parallel=False)
        return exposed(name, choices, degrees, framework="megatron-zb", global_batch=64)

    busy, shown = of("tp.backward", "1f1b")
    assert shown < busy
    for schedule in ("zb-h1", "zb-v"):
        assert of("tp.backward", schedule) == (busy, busy)
        sent, left = of("pp.send", schedule)
        assert left < sent == pytest.approx(of("pp.send", "1f1b")[0] * (2.0 if schedule == "zb-v" else 1.0))
        assert of("dp.reduce", schedule)[0] == of("dp.reduce", schedule)[1] > 0.0
    assert of("pp.send", "1f1b")[0] == of("pp.send", "1f1b")[1]
