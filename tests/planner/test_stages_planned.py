"""Models whose layers no number of stages divides, and the 126 layers of Llama 3.1 405B, get stages that are as good as any."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.numeric import num
from planner.asked import make_request
from planner.evaluate import evaluate
from planner.request import resolve
from planner.search import search

PRIME = [(layers, pp) for layers in (43, 61, 127) for pp in (4, 8, 16)]


def found(**request: Any) -> Any:
    return search(resolve(make_request(request)), remedies=False, top=3)


@pytest.mark.parametrize(("layers", "pp"), PRIME)
def test_prime_numbers_of_layers(layers: int, pp: int) -> None:
    """Proved, every layer held, and no slower than the perfect balance by more than the odd layers are worth."""
    result = found(
        dimensions={"layers": layers, "hidden": 4096, "heads": 32, "vocab": 128_256},
        cluster=f"{2 * pp}xH100-80G",
        framework="megatron",
        pp=pp,
        tp=2,
        seq=4096,
        global_batch=128,
        cp=1,
    )
    best, certificate = result.plans[0], result.searched.certificate
    assert certificate.proved
    held = best.layout.stage_layers
    stages = num(best.cost.time.stage_forward_seconds) + best.cost.time.stage_backward_seconds
    if held is not None:
        assert sum(held) == layers
        assert any("layers" in note for note in result.notes)
    slowest, mean = float(stages.max()), float(stages.mean())
    layer = mean * pp / layers
    assert slowest - mean <= 2.0 * layer


def test_405b_on_sixteen_stages() -> None:
    """Its makers gave the first and the last of 16 stages one layer less (arXiv 2407.21783, section 3.3.2): so does the plan, or it is
    better by the model than they are, and the reason is said."""
    request = {
        "model": "llama-3.1-405b",
        "cluster": "16384xH100-80G",
        "seq": 8192,
        "global_batch": 2048,
        "framework": "megatron",
        "pp": 16,
        "tp": 8,
    }
    result = found(**request)
    best = result.plans[0]
    assert result.searched.certificate.proved
    makers = (7, *(8,) * 14, 7)
    held = best.layout.stage_layers or makers
    case = resolve(make_request(request)).case(framework="megatron")
    listed = evaluate(case, best.layout.__class__(degrees=best.layout.degrees, choices=best.layout.choices, stage_layers=makers))
    fits = float(num(listed.memory.peak_device_bytes)) <= case.limit_bytes
    assert held == makers or not fits or float(num(best.cost.time.step_seconds)) <= float(num(listed.time.step_seconds))
    assert any("7, 14 × 8, 7" in note and "embedding" in note for note in result.notes) or held != makers
    assert any("hold" in note and "layers" in note for note in result.notes)


@pytest.mark.parametrize(("top", "named"), [(1, False), (10, True)])
def test_the_first_plan_that_flags_can_state_is_named(top: int, named: bool) -> None:
    """Unequal recompute counts have no flag: whoever reads plan 1 learns which shown plan does without, and what that takes."""
    request = {"model": "Qwen/Qwen2.5-32B", "cluster": "48xL40S", "seq": 4096, "framework": "megatron", "tp": 1}
    result = search(resolve(make_request(request)), remedies=False, top=top)
    assert len(set(result.plans[0].layout.stage_recompute or ())) > 1
    alike = [rank for rank, plan in enumerate(result.plans, 1) if len(set(plan.layout.stage_recompute or ())) < 2]
    assert bool(alike) == named
    (note,) = [note for note in result.notes if "no flag of megatron" in note]
    assert (f"plan {alike[0]} does without" if alike else "no plan shown does without") in note
