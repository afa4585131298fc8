"""Every traced row of real PyTorch modules (published/truth.json): bytes per layer, outside the layers, and peaks of whole steps."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cost_models.architecture import Architecture
from cost_models.catalog import load
from cost_models.layout import Choices, Degrees, Layout
from cost_models.ledger import add
from cost_models.memory.total import memory
from cost_models.numeric import num
from cost_models.stages import stages
from cost_models.training import Training
from cost_models.transformer import model_ops
from hardware.cluster import parse_cluster

if TYPE_CHECKING:
    from cost_models.model_ops import ModelOps

WITHIN = 0.01
TRUTH = Path(__file__).resolve().parents[1] / "published" / "truth.json"

CPU_SDPA_MODELS = ("gpt2-small", "gpt2-xl", "deepseek-v3")
CATALOGUE = {
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "gpt2-small": "openai-community/gpt2",
    "gemma-3-12b-text": "google/gemma-3-12b-pt",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
}
KERNELS = {
    "eager": "eager",
    "sdpa": "sdpa",
    "sdpa+padmask": "sdpa",
    "fa2_sim": "flash2",
    "sdpa_cudafa": "flash2",
    "sdpa_mem_eff": "mem_eff",
}
OPTIMIZERS = {
    "adamw_fused": ("adamw", "fused"),
    "adamw_foreach": ("adamw", "foreach"),
    "adamw_forloop": ("adamw", "forloop"),
    "sgd": ("sgd", "fused"),
}


@cache
def _all_rows() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(TRUTH.read_text(encoding="utf-8")))


def _rows(kind: str) -> list[dict[str, Any]]:
    return [row for row in _all_rows() if row["row"] == kind]


def cpu_only(row: dict[str, Any]) -> str:
    """Why a row shows a path that CUDA does not take; empty for all others."""
    if row["attn_impl"] == "sdpa" and row["model"] in CPU_SDPA_MODELS:
        return "CPU SDPA falls to the math path with dropout or unequal head widths"
    return ""


EXEMPT_NUMBERS = "0280 0282 0283 0296 0297 0298 0299 0312 0313 0314"
EXEMPT = frozenset(f"truth-{number}" for number in EXEMPT_NUMBERS.split())
"""Rows that their own notes name as paths of the CPU build alone."""


def test_exempt_rows_are_the_cpu_only_paths() -> None:
    candidates = [row for row in _all_rows() if row["row"] in ("saved", "step")]
    assert {row["id"] for row in candidates if cpu_only(row)} == EXEMPT
    assert all(row["device"] == "cpu" for row in candidates if row["id"] in EXEMPT)


@cache
def _architecture(model: str) -> Architecture:
    found = load(CATALOGUE.get(model, model))
    if model in ("phi-3-mini", "mistral-7b"):
        return found.model_copy(update={"sliding_window": None})
    return found.model_copy(update={"activation": "gelu_fast"}) if model == "gpt-neox-20b" else found


def _training(row: dict[str, Any]) -> Training:
    label = row.get("label") or {}
    values: dict[str, Any] = {
        "seq": row["seq"],
        "global_batch": row["micro_batch"],
        "framework": "hf",
        "implementation": "hf",
        "loss": "eager",
        "regime": "autocast" if "autocast" in row["dtype"] else "pure-bf16",
        "attention": "eager" if row["attn_impl"] == "eager" else "flash",
        "padding_mask": row["attn_impl"].endswith("padmask"),
        "dropout": 0.1 if row["model"].startswith("gpt2") else 0.0,
        "extra": {"attention_kernel": KERNELS[row["attn_impl"]], "autocast_device": row["device"]},
    }
    if label:
        fp32 = label["autocast_adapter_dtype"]
        values |= {"method": "lora", "lora_rank": label["r"], "lora_dropout": label["dropout"], "adapter_fp32": fp32}
        values["regime"] = "adapter-fp32" if fp32 else "adapter-bf16"
    return Training(**values)


def _layout(row: dict[str, Any]) -> Layout:
    recompute: Any = "full" if row.get("checkpointing") else "none"
    return Layout(degrees=Degrees(micro_batch=float(row["micro_batch"])), choices=Choices(zero=0, recompute=recompute))


def _layers(ops: ModelOps, training: Training) -> list[float]:
    """Bytes of each kind of layer, and of a first layer whose input needs no gradient."""
    kinds = [float(add(s.bytes for op in rows for s in op.saved)) for _, rows in ops.kinds]
    if training.method == "lora":
        first = ops.kinds[0][1]
        masks = add(s.bytes for op in first[:3] for s in op.saved if s.name == "adapter_dropout_mask" and op.name != "attention.out")
        kinds.append(kinds[0] - float(add(s.bytes for s in first[0].saved) + masks))
    return kinds


@pytest.mark.parametrize("row", [r for r in _rows("saved") if r["id"] not in EXEMPT], ids=lambda r: f"{r['id']}-{r['model']}")
def test_saved_bytes_equal_the_trace(row: dict[str, Any]) -> None:
    training = _training(row)
    ops = model_ops(_architecture(row["model"]), training, _layout(row))
    traced = sorted(group["bytes"] for group in row["saved_bytes_per_layer"])
    ours = sorted(set(_layers(ops, training))) if len(traced) > 1 else sorted(set(_layers(ops, training)))[-1:]
    outside = float(add(s.bytes for op in ops.embedding + ops.head for s in op.saved))
    assert len(ours) == len(traced)
    assert ours == pytest.approx(traced, rel=WITHIN)
    assert outside == pytest.approx(row["saved_bytes_outside_total"], rel=WITHIN)


@pytest.mark.parametrize("row", [r for r in _rows("step") if r["id"] not in EXEMPT], ids=lambda r: f"{r['id']}-{r['model']}")
def test_step_peak_equals_the_trace(row: dict[str, Any]) -> None:
    optimizer, kernel = OPTIMIZERS[row["optimizer"]]
    training = _training(row)
    extra = training.extra | {"optimizer_kernel": kernel} | ({"outputs": "kept"} if row["logits_kept_by_caller"] else {})
    changes: dict[str, Any] = {"optimizer": optimizer, "extra": extra}
    if "fp32_master" in row["dtype"]:
        changes["regime"] = "fp32-master"
    training = training.model_copy(update=changes)
    architecture, layout = _architecture(row["model"]), _layout(row)
    cost = memory(
        architecture,
        training,
        layout,
        parse_cluster("1xH100-80G").pools[0],
        model_ops(architecture, training, layout),
        stages(architecture, layout, every=True),
    )
    workspace = next(term.value for term in cost.phases["optimizer"].terms if term.name == "buffers.workspace")
    ours = float(cost.peak_allocated_bytes) - float(np.max(num(workspace)))
    assert ours == pytest.approx(row["peak_bytes"], rel=WITHIN)


def _megatron_layer(row: dict[str, Any]) -> float:
    d = row["dims"]
    rms = d.get("rms", False)
    architecture = Architecture(
        id="layer",
        family="gpt2",
        layers=4,
        hidden=d["h"],
        ffn_hidden=d.get("ffn", 4 * d["h"]),
        heads=d["a"],
        kv_heads=d.get("kv", d["a"]),
        head_dim=d["h"] // d["a"],
        vocab=128,
        gated_mlp=d.get("swiglu", False),
        norm="rms" if rms else "layer",
        activation="silu" if d.get("swiglu") else "gelu",
        positional="learned",
    )
    training = Training(
        seq=row["seq"],
        global_batch=row["micro_batch"],
        framework="megatron",
        implementation="megatron-unfused",
        attention="flash" if d.get("attn") == "flash" else "eager",
        dropout=d.get("p", 0.1),
        extra={"softmax": "fp32"} if d.get("softmax") == "fp32" else {},
    )
    degrees = Degrees(tp=float(d.get("t", 1)), micro_batch=float(row["micro_batch"]))
    layout = Layout(degrees=degrees, choices=Choices(sequence_parallel=d.get("sp", False)))
    return float(add(s.bytes for op in model_ops(architecture, training, layout).kinds[0][1] for s in op.saved))


@pytest.mark.parametrize("row", _rows("megatron_layer"), ids=lambda r: f"{r['id']}-{r['label']}")
def test_megatron_layer_equals_the_trace(row: dict[str, Any]) -> None:
    assert _megatron_layer(row) == pytest.approx(row["saved_bytes_per_layer"], rel=WITHIN)


@pytest.mark.parametrize(
    ("label", "linear", "quadratic"),
    [
        ("korthikanti serial", 34.0, 5.0),
        ("tp2", 10.0 + 24.0 / 2, 5.0 / 2),
        ("tp4", 10.0 + 24.0 / 4, 5.0 / 4),
        ("tp8", 10.0 + 24.0 / 8, 5.0 / 8),
        ("tp2+sp", 34.0 / 2, 5.0 / 2),
        ("tp4+sp", 34.0 / 4, 5.0 / 4),
        ("tp8+sp", 34.0 / 8, 5.0 / 8),
        ("softmax fp32 kept", 34.0, 7.0),
        ("no dropout", 32.0, 2.0),
    ],
)
def test_korthikanti_forms_come_out(label: str, linear: float, quadratic: float) -> None:
    """arXiv 2205.05198, table 2: s b h (10 + 24/t + 5 a s / (h t)) and its relatives, from the sum of the tensors."""
    row = next(r for r in _rows("megatron_layer") if r["label"] == label)
    d = row["dims"]
    form = row["seq"] * row["micro_batch"] * d["h"] * (linear + quadratic * d["a"] * row["seq"] / d["h"])
    assert _megatron_layer(row) == pytest.approx(form, rel=1e-3)
