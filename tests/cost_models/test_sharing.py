"""Groups that share the network, and gradients that are reduced beside those of the replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.cost import cost
from cost_models.layout import Choices, Degrees, Layout
from cost_models.throughput.collectives import collective_seconds, fabric, place
from cost_models.throughput.ranks import Group
from cost_models.throughput.sharing import named, window_left
from cost_models.training import Training
from cost_models.transformer import model_ops
from hardware.cluster import parse_cluster

amounts = st.floats(0.0, 10.0)
parts = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


@given(amounts, st.floats(0.01, 10.0), parts, amounts)
def test_traffic_hides_as_far_as_compute_and_network_allow(window: float, busy: float, part: float, others: float) -> None:
    """No more than both limits allow (x <= window, x part + others <= window), and every larger x breaks one of them."""
    network = np.float64(busy * part)
    left = float(np.asarray(window_left(window, np.float64(busy), network, np.float64(others))))
    near = 1e-9 * (1.0 + window + others)
    assert 0.0 <= left <= window
    assert left == 0.0 or not part or left * part + others <= window + near
    for more in np.linspace(left, window, 50)[1:]:
        assert more <= left + near or (part and more * part + others > window - near)


@given(amounts, amounts, parts)
def test_a_free_network_leaves_the_window_as_it_is(window: float, busy: float, part: float) -> None:
    """To the bit, so that a batch in which others share the network equals its rows."""
    assert (
        float(np.asarray(window_left(np.float64(window), np.float64(busy), np.float64(busy * part), 0.0 * np.ones(1))).reshape(-1)[0])
        == window
    )
    assert window_left(window, busy, 0.0, 3.0) == window
    assert window_left(window, busy, busy * part, 0.0) == window


def timed(model: str, degrees: dict[str, float], choices: Choices, cluster: str = "64xH100-80G", **training: Any) -> Any:
    layout = Layout(degrees=Degrees(**degrees), choices=choices)
    task = Training(**{"seq": 4096, "global_batch": 256, "framework": "megatron", **training})
    return cost(load(model), task, layout, parse_cluster(cluster).pools[0]).time


def terms(time: Any, name: str) -> tuple[float, float]:
    """Busy and exposed seconds."""
    found = [t for t in time.ledger.terms if t.name == name]
    value = sum(float(np.asarray(t.value)) for t in found)
    return value, sum(float(np.asarray(t.value if t.exposed is None else t.exposed)) for t in found)


def hidden(time: Any, name: str) -> str:
    return next(t.hidden for t in time.ledger.terms if t.name == name)


def test_expert_traffic_between_servers_keeps_gradient_reduction_from_hiding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts in a server leave the NICs to the reduction, experts over servers take them; said in words."""
    inside = timed("mixtral-8x7b", {"ep": 8.0, "dp": 64.0}, Choices(zero=1))
    across = timed("mixtral-8x7b", {"tp": 8.0, "ep": 8.0, "etp": 8.0, "dp": 8.0}, Choices(zero=1))
    assert "network free" not in hidden(inside, "dp.reduce")
    assert "while EP leaves the network free" in hidden(across, "dp.reduce")
    shared = terms(across, "dp.reduce")
    monkeypatch.setattr("cost_models.throughput.replicas.window_left", lambda window, busy, network, others: window)
    alone = terms(timed("mixtral-8x7b", {"tp": 8.0, "ep": 8.0, "etp": 8.0, "dp": 8.0}, Choices(zero=1)), "dp.reduce")
    assert shared[0] == alone[0]
    assert shared[1] >= alone[1]
    assert terms(inside, "dp.reduce") == terms(timed("mixtral-8x7b", {"ep": 8.0, "dp": 64.0}, Choices(zero=1)), "dp.reduce")


def test_a_ring_of_context_between_servers_keeps_gathers_from_hiding(monkeypatch: pytest.MonkeyPatch) -> None:
    degrees = {"tp": 8.0, "cp": 8.0, "dp": 1.0}
    made = timed("llama-3.1-70b", degrees, Choices(zero=3), framework="torchtitan", seq=16384)
    assert "backward while CP leaves the network free" in hidden(made, "zero.backward")
    monkeypatch.setattr("cost_models.throughput.replicas.window_left", lambda window, busy, network, others: window)
    alone = timed("llama-3.1-70b", degrees, Choices(zero=3), framework="torchtitan", seq=16384)
    assert terms(made, "zero.forward")[1] > terms(alone, "zero.forward")[1]
    assert float(np.asarray(made.step_seconds)) > float(np.asarray(alone.step_seconds))


def test_only_layers_wait_for_the_ring() -> None:
    """Where attention hides the ring, each of 80 layers shows one latency of it per micro-batch; embedding and head exchange nothing."""
    made = timed("llama-3.1-70b", {"tp": 4.0, "cp": 2.0, "dp": 8.0}, Choices(zero=1), seq=65536)
    ring = place(fabric(parse_cluster("64xH100-80G").pools[0]), Group(size=2.0, stride=4.0))
    busy, exposed = terms(made, "cp.forward")
    assert exposed == pytest.approx(80 * (256 / 8) * float(ring.base_seconds), rel=1e-12)
    assert exposed < busy


@pytest.mark.parametrize("tp", [2.0, 8.0])
def test_tensor_groups_inside_a_server_take_nothing_of_the_network(tp: float) -> None:
    made = timed("llama-3.1-70b", {"tp": tp, "dp": 64 / tp}, Choices(zero=1))
    assert "network free" not in hidden(made, "dp.reduce")


def test_words_of_who_shares() -> None:
    assert named([]) == ""
    assert named(["EP"]) == " while EP leaves the network free"
    assert named(["TP", "EP", "ZeRO"]) == " while TP, EP and ZeRO leave the network free"


def test_a_tied_embedding_is_reduced_between_first_and_last_stage() -> None:
    """Vocabulary rows of a tp rank × width × 4 bytes of an fp32 gradient, all-reduced by two ranks in different servers."""
    degrees = {"tp": 2.0, "pp": 4.0, "dp": 8.0}
    busy, exposed = terms(timed("llama-3.2-1b", degrees, Choices(zero=1)), "pp.tied_embedding")
    pair = place(fabric(parse_cluster("64xH100-80G").pools[0]), Group(size=2.0, stride=16.0))
    task = Training(seq=4096, global_batch=256, framework="megatron")
    rows = model_ops(load("llama-3.2-1b"), task, Layout(degrees=Degrees(**degrees), choices=Choices(zero=1))).dims.vocab
    assert busy == exposed == pytest.approx(float(collective_seconds(pair, "all_reduce", float(rows) * 2048 * 4.0)), rel=1e-12)
    assert float(rows) >= 128256 / 2
    close = timed("llama-3.2-1b", {**degrees, "rank_order": 1.0}, Choices(zero=1))
    assert terms(close, "pp.tied_embedding")[0] < 0.3 * busy


def test_only_copied_and_trained_embeddings_are_reduced() -> None:
    pipeline = {"tp": 2.0, "pp": 4.0, "dp": 8.0}
    assert terms(timed("llama-3.1-8b", pipeline, Choices(zero=1)), "pp.tied_embedding") == (0.0, 0.0)
    assert terms(timed("llama-3.2-1b", {"tp": 2.0, "dp": 32.0}, Choices(zero=1)), "pp.tied_embedding") == (0.0, 0.0)
    assert terms(timed("llama-3.2-1b", pipeline, Choices(zero=1), method="lora", lora_targets=("q",)), "pp.tied_embedding") == (0.0, 0.0)
    untied, mtp = (
        timed("deepseek-v3", {"pp": 16.0, "ep": 64.0, "dp": 64.0}, Choices(zero=1), "1024xH100-80G", mtp=m) for m in (False, True)
    )
    assert terms(untied, "pp.tied_embedding") == (0.0, 0.0)
    assert terms(mtp, "pp.tied_embedding")[0] > 0.0


def test_norms_are_reduced_over_tp_under_sequence_parallelism() -> None:
    """Two norms of 4096 in each of 32 layers and the last one, 4 bytes each, on one stage."""
    degrees = {"tp": 4.0, "dp": 16.0}
    placed = place(fabric(parse_cluster("64xH100-80G").pools[0]), Group(size=4.0, stride=1.0))
    expected = float(collective_seconds(placed, "all_reduce", 65 * 4096 * 4.0))
    assert terms(timed("llama-3.1-8b", degrees, Choices(zero=1)), "sp.gradients")[0] == pytest.approx(expected, rel=1e-12)
    assert terms(timed("llama-3.1-8b", degrees, Choices(zero=1, sequence_parallel=False)), "sp.gradients") == (0.0, 0.0)
    assert terms(timed("llama-3.1-8b", {"dp": 64.0}, Choices(zero=1)), "sp.gradients") == (0.0, 0.0)


def test_hidden_sends_between_servers_share_the_network_with_reduction() -> None:
    pipeline = {"tp": 8.0, "pp": 4.0, "vpp": 2.0, "dp": 2.0}
    far = timed("llama-3.1-8b", pipeline, Choices(zero=1, schedule="interleaved"))
    assert "while PP leaves the network free" in hidden(far, "dp.reduce")
    assert "network free" not in hidden(far, "pp.send")
    near = timed("llama-3.1-8b", {"pp": 4.0, "vpp": 2.0, "dp": 2.0}, Choices(zero=1, schedule="interleaved"), "8xH100-80G")
    assert "network free" not in hidden(near, "dp.reduce")
