"""Memory of whole layouts: phases, recompute, pipelines, offload, serving, and batches against single layouts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog import load
from cost_models.choices.schedules import interleaved, schedule
from cost_models.layout import Choices, Degrees, Layout
from cost_models.memory.total import memory
from cost_models.numeric import num
from cost_models.result import BUCKETS, PHASES
from cost_models.stages import stages
from cost_models.training import Training
from cost_models.transformer import model_ops
from hardware.cluster import parse_cluster

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from cost_models.architecture import Architecture
    from cost_models.result import MemoryCost

PUBLISHED = Path(__file__).resolve().parents[1] / "published"
FIGURES = {f["id"]: f for f in tomllib.loads((PUBLISHED / "figures.toml").read_text(encoding="utf-8"))["figure"]}
POOL = parse_cluster("64xA100-80G").pools[0]
LLAMA, MOE, MLA, GPT = load("llama-3.1-8b"), load("qwen3-30b-a3b"), load("deepseek-v3"), load("gpt2-xl")
MODELS = (LLAMA, MOE, MLA, GPT)
TOTALS = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_device_bytes",
    "peak_stage",
    "host_bytes_per_node",
    "nvme_bytes_per_node",
)
PER_STAGE = ("stage_allocated_bytes", "stage_reserved_bytes", "stage_device_bytes")
FRAMEWORKS = ("megatron", "deepspeed", "fsdp", "torchtitan", "hf", "nanotron", "litgpt", "megatron-deepspeed")


def evaluate(architecture: Architecture, training: Training, layout: Layout, *, every: bool = False) -> MemoryCost:
    ops = model_ops(architecture, training, layout)
    return memory(architecture, training, layout, POOL, ops, stages(architecture, layout, every=every))


def single(choices: Choices | None = None, **degrees: float) -> Layout:
    return Layout(degrees=Degrees(**{k: float(v) for k, v in degrees.items()}), choices=choices or Choices(zero=0))


def activations(cost: MemoryCost) -> float:
    return float(np.max(cost.phases["forward"].bucket("activations")))


@given(data=st.data())
def test_a_batch_equals_its_rows_bit_for_bit(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    framework = data.draw(st.sampled_from(FRAMEWORKS))
    method = data.draw(st.sampled_from(("full", "lora", "qlora", "inference")))
    training = Training(framework=framework, method=method, seq=2048, global_batch=64)
    vpp = data.draw(st.sampled_from(((1,), (1, 2, 3))))
    choices = Choices(
        zero=data.draw(st.sampled_from((0, 1, 2, 3))),
        recompute=data.draw(st.sampled_from(("none", "selective", "full"))),
        schedule="interleaved" if len(vpp) > 1 else data.draw(st.sampled_from(("1f1b", "gpipe"))),
        offload=data.draw(st.sampled_from(("none", "optimizer", "params", "optimizer+params"))),
        offload_target=data.draw(st.sampled_from(("host", "nvme"))),
    )
    grid: dict[str, Any] = {
        "tp": (1, 2, 4),
        "pp": (1, 2, 3, 8),
        "vpp": vpp,
        "cp": (1, 2),
        "dp": (1, 2, 8),
        "micro_batch": (1, 2, 5),
        "recompute_layers": (-1, 0, 3),
        "offload_fraction": (0.25, 1.0),
        "activation_offload": (0.0, 0.5),
    }
    rows = data.draw(st.lists(st.fixed_dictionaries({k: st.sampled_from(v) for k, v in grid.items()}), min_size=2, max_size=5))
    batch = Layout(degrees=Degrees(**{k: np.array([[float(row[k])] for row in rows]) for k in grid}), choices=choices)
    many = evaluate(model, training, batch)
    for i in range(len(rows)):
        one = evaluate(model, training, batch.row(i))
        for name in TOTALS:
            assert getattr(many, name)[i] == getattr(one, name), name
        for name in PER_STAGE:
            assert np.max(getattr(many, name)[i]) == np.max(getattr(one, name)), name


@given(
    model=st.sampled_from(MODELS),
    framework=st.sampled_from(FRAMEWORKS),
    attention=st.sampled_from(("eager", "flash")),
    tp=st.sampled_from((1, 2)),
    pp=st.sampled_from((1, 4)),
    layers=st.integers(0, 12),
)
def test_more_recompute_never_saves_more(model: Architecture, framework: Any, attention: Any, tp: int, pp: int, layers: int) -> None:
    training = Training(framework=framework, attention=attention, seq=1024, global_batch=16)
    degrees = {"tp": tp, "pp": pp}
    none = activations(evaluate(model, training, single(Choices(zero=0, recompute="none"), **degrees)))
    some = activations(evaluate(model, training, single(Choices(zero=0, recompute="selective"), **degrees)))
    part = activations(evaluate(model, training, single(Choices(zero=0, recompute="full"), **degrees, recompute_layers=layers)))
    more = activations(evaluate(model, training, single(Choices(zero=0, recompute="full"), **degrees, recompute_layers=layers + 1)))
    full = activations(evaluate(model, training, single(Choices(zero=0, recompute="full"), **degrees)))
    assert full <= some <= none
    assert full <= more <= part <= none


@given(model=st.sampled_from(MODELS), framework=st.sampled_from(FRAMEWORKS), method=st.sampled_from(("full", "lora", "qlora", "inference")))
def test_terms_are_named_by_bucket_and_have_a_source(model: Architecture, framework: Any, method: Any) -> None:
    cost = evaluate(model, Training(framework=framework, method=method, global_batch=8), single(Choices(zero=3), dp=4, pp=2))
    assert tuple(cost.phases) == PHASES
    for ledger in (*cost.phases.values(), cost.overhead):
        names = [term.name for term in ledger.terms]
        assert len(names) == len(set(names))
        assert all(term.bucket in BUCKETS and term.source for term in ledger.terms)
    assert all(term.name.split(".")[1] in ("reserved", "device") for term in cost.overhead.terms)
    allocated = num(cost.stage_allocated_bytes)
    highest = np.max([num(ledger.total) + 0.0 * allocated for ledger in cost.phases.values()], axis=0)
    assert allocated == pytest.approx(highest)
    assert np.all(num(cost.stage_reserved_bytes) >= allocated)
    assert np.all(num(cost.stage_device_bytes) > num(cost.stage_reserved_bytes))


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_gpipe_holds_more_than_1f1b_and_no_less_than_one(pp: int) -> None:
    training = Training(global_batch=32, seq=1024)
    held = {name: activations(evaluate(LLAMA, training, single(Choices(zero=0, schedule=name), pp=pp))) for name in ("gpipe", "1f1b")}  # type: ignore[arg-type]
    one = activations(evaluate(LLAMA, training.model_copy(update={"global_batch": 1}), single(pp=pp)))
    assert held["gpipe"] == pytest.approx(32 * one, rel=0.02)
    assert held["1f1b"] == pytest.approx(pp * one, rel=0.02)


def test_interleaving_counts_chunks_where_layers_do_not_divide() -> None:
    """4 stages of 2 chunks, one layer on the last: its one layer sits in the first chunk, which holds 4 of the 5 chunks in flight."""
    last = interleaved.layer_passes(num(3.0), num(1.0), num(4.0), num(2.0), num(8.0))
    assert float(last) == 4.0
    even = interleaved.layer_passes(num(3.0), num(6.0), num(4.0), num(2.0), num(8.0))
    assert float(even) == 6.0 * float(schedule("interleaved").in_flight(num(3.0), num(4.0), num(2.0), num(8.0)))
    wider = interleaved.layer_passes(num(3.0), num(6.0), num(4.0), num(2.0), num(8.0), 6.0)
    assert float(wider) > float(even)


def test_offload_moves_states_from_the_device_to_the_host() -> None:
    training = Training(framework="deepspeed", global_batch=8)
    stay = evaluate(LLAMA, training, single(Choices(zero=3), dp=8))
    away = evaluate(LLAMA, training, single(Choices(zero=3, offload="optimizer"), dp=8))
    half = evaluate(LLAMA, training, single(Choices(zero=3, offload="optimizer"), dp=8, offload_fraction=0.5))
    moved = float(np.max(stay.phases["optimizer"].bucket("optimizer")))
    assert float(np.max(away.phases["optimizer"].bucket("optimizer"))) == 0.0
    assert float(np.max(half.phases["optimizer"].bucket("optimizer"))) == pytest.approx(moved / 2.0)
    assert float(stay.host_bytes_per_node) == 0.0
    assert float(away.host_bytes_per_node) >= 8.0 * moved
    nvme = evaluate(LLAMA, training, single(Choices(zero=3, offload="optimizer+params", offload_target="nvme"), dp=8))
    assert float(nvme.nvme_bytes_per_node) > 8.0 * moved > 0.0
    assert float(nvme.host_bytes_per_node) < float(away.host_bytes_per_node)


def test_serving_holds_weights_and_a_cache() -> None:
    training = Training(method="inference", seq=4096)
    cost = evaluate(LLAMA, training, single(micro_batch=2))
    cache = 2 * LLAMA.layers * LLAMA.kv_heads * LLAMA.head_dim * 2 * 4096 * 2
    assert float(np.max(cost.phases["forward"].bucket("kv_cache"))) == cache
    eight = evaluate(LLAMA, training.model_copy(update={"kv_bits": 8}), single(micro_batch=2))
    assert float(np.max(eight.phases["forward"].bucket("kv_cache"))) == pytest.approx(cache * (8 / 16 + 2 / 64))
    latent = evaluate(MLA, training, single())
    assert MLA.mla is not None
    width = MLA.mla.kv_lora_rank + MLA.mla.qk_rope_head_dim
    assert float(np.max(latent.phases["forward"].bucket("kv_cache"))) == MLA.layers * width * 4096 * 2
    window = load("gemma-3-12b-pt")
    full = window.model_copy(update={"sliding_window": None})
    sizes = [float(np.max(evaluate(m, training, single()).phases["forward"].bucket("kv_cache"))) for m in (window, full)]
    assert sizes[0] < 0.5 * sizes[1]


def _figure(name: str) -> tuple[dict[str, float], float]:
    figure = FIGURES[name]
    return figure.get("planner", figure["stated"]), max(figure.get("tolerance", 0.0), 1e-9)


HF = Training(framework="hf", regime="pure-bf16", seq=2048, global_batch=1)


def test_figure_traced_activations_and_logits() -> None:
    said, within = _figure("llama8b-activations-traced")
    cost = evaluate(LLAMA, HF, single())
    layers = sum(
        float(np.max(num(t.value))) for t in cost.phases["forward"].terms if t.name in ("activations.attention", "activations.feed_forward")
    )
    assert layers == pytest.approx(said["activations_bytes"], rel=within)
    said, within = _figure("llama8b-logits-peak")
    assert float(np.max(cost.phases["forward"].bucket("logits"))) == pytest.approx(said["logits_bytes"], rel=within)
    said, within = _figure("llama8b-logits-one-copy")
    saved = next(float(np.max(num(t.value))) for t in cost.phases["forward"].terms if t.name == "logits.saved")
    assert saved == pytest.approx(said["logits_bytes"], rel=within)


def test_figure_layer_inputs_under_full_recompute() -> None:
    said, within = _figure("llama8b-full-recompute")
    cost = evaluate(LLAMA, HF, single(Choices(zero=0, recompute="full")))
    inputs = next(float(np.max(num(t.value))) for t in cost.phases["forward"].terms if t.name == "activations.layer_inputs")
    assert inputs == pytest.approx(said["layer_inputs_bytes"], rel=within)


def test_figure_activations_grow_with_tokens() -> None:
    said, within = _figure("llama8b-activations-scale-micro-batch")
    base = activations(evaluate(LLAMA, HF, single()))
    assert activations(evaluate(LLAMA, HF, single(micro_batch=4))) / base == pytest.approx(said["activations_ratio"], rel=within)
    said, within = _figure("llama8b-activations-scale-sequence")
    longer = HF.model_copy(update={"seq": 8192})
    assert activations(evaluate(LLAMA, longer, single())) / base == pytest.approx(said["activations_ratio"], rel=within)


@pytest.mark.parametrize(
    ("name", "changes", "recompute"),
    [
        ("llama8b-total-full", {"regime": "zero-paper", "extra": {"optimizer_kernel": "fused"}}, "none"),
        ("llama8b-total-lora", {"method": "lora"}, "full"),
        ("llama8b-total-qlora", {"method": "qlora"}, "full"),
    ],
)
def test_figure_totals_on_one_gpu(name: str, changes: dict[str, Any], recompute: Any) -> None:
    said, within = _figure(name)
    training = Training(**({"framework": "hf", "seq": 2048, "global_batch": 1, "lora_rank": 16} | changes))
    cost = evaluate(LLAMA, training, single(Choices(zero=0, recompute=recompute)))
    assert float(cost.peak_allocated_bytes) == pytest.approx(said["total_bytes"], rel=within)


@pytest.mark.parametrize(("name", "seq"), [("llama8b-lora-padded-1024", 1024), ("llama8b-lora-padded-8192", 8192)])
def test_figure_longest_sample_decides(name: str, seq: int) -> None:
    said, within = _figure(name)
    training = Training(framework="hf", method="lora", seq=seq, global_batch=4)
    ledger = evaluate(LLAMA, training, single(Choices(zero=0, recompute="full"), micro_batch=4)).phases["forward"]
    assert float(np.max(ledger.bucket("activations") + ledger.bucket("logits"))) == pytest.approx(said["activations_bytes"], rel=within)


def _term(cost: MemoryCost, phase: str, name: str) -> float:
    return float(np.max(sum(num(t.value) for t in cost.phases[phase].terms if t.name == name)))


def test_accumulating_under_fsdp1_keeps_whole_gradients() -> None:
    """litgpt accumulates under no_sync: one micro-batch divides the gradients over the ranks, two keep them whole."""
    training = Training(framework="litgpt", seq=512, global_batch=4)
    once = evaluate(LLAMA, training, single(Choices(zero=3), dp=4))
    twice = evaluate(LLAMA, training.model_copy(update={"global_batch": 8}), single(Choices(zero=3), dp=4))
    assert _term(twice, "optimizer", "gradients.dense") == 4.0 * _term(once, "optimizer", "gradients.dense")
    frozen = evaluate(LLAMA, training.model_copy(update={"method": "lora"}), single(Choices(zero=3), dp=4))
    assert _term(frozen, "optimizer", "gradients.dense") > 0.8 * _term(once, "optimizer", "gradients.dense")


def test_fine_grained_offload_leaves_a_window_on_the_device() -> None:
    training = Training(framework="megatron", seq=4096, global_batch=8)
    away = training.model_copy(update={"extra": {"offload_modules": "core_attn,attn_proj"}})
    stay, moved = evaluate(LLAMA, training, single(pp=4)), evaluate(LLAMA, away, single(pp=4))
    assert activations(moved) < 0.9 * activations(stay)
    assert float(stay.host_bytes_per_node) == 0.0 < float(moved.host_bytes_per_node)
    window = _term(moved, "forward", "activations.offload_window")
    assert activations(stay) - activations(moved) == pytest.approx(float(moved.host_bytes_per_node) / POOL.gpus_per_node)
    assert 0.0 < window < activations(stay) - activations(moved)


def test_cached_blocks_do_not_count_beyond_the_card() -> None:
    """A foreach step leaves blocks that activations cannot use; they fill the card, but are given back before memory runs out."""
    roomy = evaluate(GPT, Training(framework="hf", seq=1024, global_batch=1), single())
    full = evaluate(LLAMA, Training(framework="hf", seq=1024, global_batch=1), single())
    shares = [float(np.max(num(c.overhead.terms[0].value))) / float(c.peak_allocated_bytes) for c in (roomy, full)]
    assert float(full.peak_allocated_bytes) > POOL.capacity_bytes
    assert shares[1] == pytest.approx(0.05)
    assert shares[0] > 2.0 * shares[1]


@pytest.mark.parametrize(("method", "bytes_per_logit"), [("full", 12.0), ("lora", 8.0 * (1.0 + 128.0 / 1024.0))])
def test_fabric_returns_logits_in_fp32(method: Any, bytes_per_logit: float) -> None:
    """litgpt: fp32 logits, their fp32 log-softmax, and one chunk of 128 tokens more where the head is computed in chunks."""
    cost = evaluate(LLAMA, Training(framework="litgpt", method=method, seq=1024, global_batch=1), single())
    assert float(np.max(cost.phases["forward"].bucket("logits"))) == pytest.approx(1024 * LLAMA.vocab * bytes_per_logit)


@pytest.mark.parametrize(
    ("cluster", "recipe", "primary", "bytes_per_weight"),
    [
        ("8xH100-80G", "current", "no", 2.0),  # by rows and by columns, beside the 16-bit weight
        ("8xH100-80G", "current", "yes", 0.0),  # both in its place
        ("8xB200", "current", "no", 1.0),  # data-centre Blackwell multiplies fp8 in every layout
        ("8xB200", "current", "yes", -1.0),
        ("8xB200", "mxfp8", "no", 2.0 * 33 / 32),  # a scale byte for every 32 elements, both ways
        ("8xB200", "nvfp4", "no", 2.0 * 9 / 16),
    ],
)
def test_fp8_copies_of_the_weights(cluster: str, recipe: str, primary: str, bytes_per_weight: float) -> None:
    """Transformer Engine keeps what it cast from one micro-batch to the next."""
    layout = single(Choices(zero=1), dp=8, ep=8, micro_batch=1)
    task = Training(seq=4096, precision="fp8", extra={"fp8_recipe": recipe, "fp8_param_gather": primary})
    pool, ops = parse_cluster(cluster).pools[0], model_ops(MOE, task, layout)
    cost = memory(MOE, task, layout, pool, ops, stages(MOE, layout))
    of_layer = [p for _, op_rows in ops.kinds for op in op_rows for p in op.params if p.kind in ("linear", "expert")]
    linear = sum(float(np.asarray(p.count)) for p in of_layer) * MOE.layers
    assert _term(cost, "forward", "weights.fp8") == pytest.approx(linear * bytes_per_weight)
    plain = memory(MOE, task.model_copy(update={"precision": "bf16"}), layout, pool, ops, stages(MOE, layout))
    assert all(t.name != "weights.fp8" for t in plain.phases["forward"].terms)


def test_expandable_segments_do_not_fragment_a_pipeline() -> None:
    layout = single(Choices(zero=1), pp=4, dp=2, micro_batch=1)
    fixed = evaluate(LLAMA, Training(seq=4096, global_batch=64), layout)
    grown = evaluate(LLAMA, Training(seq=4096, global_batch=64, extra={"allocator": "expandable"}), layout)
    assert float(num(grown.peak_allocated_bytes)) == float(num(fixed.peak_allocated_bytes))
    assert float(num(grown.peak_reserved_bytes)) < float(num(fixed.peak_reserved_bytes))
