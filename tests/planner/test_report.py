"""Reports: nothing wraps or exceeds the width, ledgers add up, hints can be pasted, colour is an extra."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from hardware.spec import Cluster
from planner.cli import planner as group
from planner.cli.options import layout_words
from planner.report.answers import front_lines
from planner.report.documents import bucket_bytes, stage_records
from planner.report.estimate import estimate_lines
from planner.report.look import Look, visible
from planner.report.plans import kind_of, ledgers, plan_table
from planner.report.search import search_lines
from planner.report.table import Column, table
from planner.report.understood import understood
from planner.report.words import gib, layout_name, offload, parameters, percent, plural, recompute
from tests.planner.handmade import GIB, make_memory, make_miss, make_plan, make_search

if TYPE_CHECKING:
    from planner.plan import Plan

WIDE, NARROW, COLOUR = Look(), Look(width=80), Look(colour=True)


def plans() -> list[Plan]:
    """Plans whose tables need all columns."""
    return [
        make_plan(tp=4, pp=4, vpp=2, dp=2, micro_batch=2, schedule="interleaved"),
        make_plan(tp=8, cp=2, dp=2, zero=1, offload="optimizer", recompute="full", recompute_layers=4, step_seconds=52.0, framework="fsdp"),
        make_plan(tp=1, dp=32, zero=3, shard_group=8, step_seconds=1042.4, sequence_parallel=False),
    ]


def text(lines: list[str]) -> str:
    return "\n".join(lines)


@pytest.mark.parametrize("look", [WIDE, NARROW])
def test_reports_stay_within_the_width(look: Look) -> None:
    made = plans()
    first = made[0]
    cluster = Cluster(name="x", pools=(first.pool,))
    opening = understood("30b", ["a/b"] * 9, first.architecture, cluster, first.training, ["server x"] * 9, ["y " * 90], look)
    for lines in (
        opening,
        search_lines(make_search(*made), 3, [], look),
        search_lines(make_search(), 3, [], look),
        estimate_lines(made[0], [make_miss(made[0])], ["note " * 40], look),
    ):
        assert [line for line in lines if len(line) > look.width] == []


def test_a_narrow_table_drops_its_least_useful_column_first() -> None:
    wide, narrow = plan_table(plans(), WIDE), plan_table(plans(), NARROW)
    assert len(narrow[0]) < len(wide[0])
    for head in ("TP", "ZeRO", "memory GiB", "step s"):
        assert head in narrow[0]
    columns = [Column(head="a"), Column(head="b" * 30, useful=2), Column(head="c" * 30, useful=1)]
    assert table(columns, [["1", "2", "3"]], Look(width=50))[0].split() == ["a", "b" * 30]


def test_a_front_of_one_framework_leaves_its_room_to_the_layouts() -> None:
    front = [make_plan(tp=8, dp=4, offload="optimizer", recompute="full", micro_batch=16, step_seconds=s) for s in (20.0, 30.0)]
    for look in (WIDE, NARROW):
        lines = front_lines(front, 2, look)
        assert "framework" not in lines[0]
        assert max(map(len, lines)) <= look.width
    assert "…" not in text(front_lines(front, 2, WIDE))
    assert "framework" in front_lines([front[0], make_plan(dp=32, framework="fsdp")], 2, WIDE)[0]


def test_very_narrow_tables_keep_layout_memory_and_step() -> None:
    lines = plan_table(plans()[:1], Look(width=52))
    assert max(map(len, lines[:3])) <= 52
    assert "memory GiB" in lines[0] and "step s" in lines[0] and "recompute" not in lines[0]


def test_numbers_are_to_the_right_with_three_digits() -> None:
    lines = plan_table(plans(), Look(width=200))
    assert "41.6" in lines[2]
    assert "1,042" in lines[4]
    assert "62.0 / 79.2" in lines[2]
    ends = {line.index(value) + len(value) for line, value in zip(lines[2:5], ("41.6", "52.0", "1,042"), strict=True)}
    assert len(ends) == 1


def test_plans_of_several_frameworks_say_which() -> None:
    assert "megatron 1, 3 · fsdp 2" in text(plan_table(plans(), WIDE))
    assert "Planned for" not in text(plan_table(plans()[:1], WIDE))


def test_buckets_of_a_stage_sum_to_its_device_bytes() -> None:
    memory = make_memory(4)
    for record in stage_records(memory):
        assert sum(record.buckets.model_dump().values()) == pytest.approx(record.device_bytes)
    assert bucket_bytes(memory, 0)["overhead"] == 4.0 * GIB
    assert [record.stage for record in stage_records(memory)] == [0, 1, 2, 3]


def test_ledgers_name_the_largest_first_and_what_they_sum_to() -> None:
    shown = text(ledgers(make_plan(tp=4, pp=4, dp=2), WIDE, "plan 1"))
    assert "Memory of plan 1, stage 0, backward (GiB)  activations 30.0 · optimizer 14.0 · " in shown
    assert "= 62.0 of 79.2 GiB" in shown
    assert "Time of plan 1 (s)  mlp 33.3 (80 %) · bubble 8.32 (20 %)" in shown.replace("80.0 %", "80 %").replace("20.0 %", "20 %")
    assert "reduce" not in shown


def test_time_terms_are_grouped_by_kernel_and_axis() -> None:
    assert kind_of("compute.gemm_forward") == kind_of("compute.gemm.backward") == "GEMMs"
    assert kind_of("tp.forward") == "TP traffic"
    assert kind_of("pp.send") == "PP traffic"
    assert kind_of("pp.bubble") == kind_of("bubble.pipeline") == "bubble"


def test_flags_of_a_plan_parse_to_its_layout() -> None:
    """What `Next` prints is a command of `planner estimate` whose flags say the same layout."""
    for plan in plans():
        words = layout_words(plan)
        context = group.commands["estimate"].make_context("estimate", list(words))
        for axis in ("tp", "pp", "dp"):
            assert context.params[axis] == int(getattr(plan.layout.degrees, axis))
        assert context.params["zero"] == plan.layout.choices.zero
        assert context.params["recompute"] == plan.layout.choices.recompute
        assert shlex.split(shlex.join(words)) == words


def test_colour_adds_nothing_but_colour() -> None:
    plain, coloured = (search_lines(make_search(*plans()), 3, ["planner models"], look) for look in (WIDE, COLOUR))
    assert any("\x1b" in line for line in coloured)
    assert [visible(line) for line in coloured] == plain


def test_what_was_assumed_is_said() -> None:
    plan = make_plan("opt-30b", tp=4, pp=4, dp=2)
    cluster = Cluster(name="x", pools=(plan.pool,))
    assumed = ["30b: took it", "batch 512"]
    said = text(understood("30b", ["huggyllama/llama-30b"], plan.architecture, cluster, plan.training, assumed, [], WIDE))
    assert "30b → facebook/opt-30b, 48 layers × 7168, 29.97 B parameters" in said
    assert "could also be huggyllama/llama-30b (planner models 30b)" in said.replace("\n         ", " ")
    assert "batch 512" in said
    assert "took it" not in said


def test_a_miss_names_stage_bucket_and_gib() -> None:
    said = text(search_lines(make_search(), 5, [], WIDE)).replace("\n         ", " ")
    assert "No plan fits 32 × 79.2 GiB." in said
    assert "113 GiB too many" in said
    assert "optimizer 98.1 GiB" in said
    assert "Would fit" in said


@pytest.mark.parametrize(
    ("value", "shown"),
    [(124_439_808, "124.4 M"), (29_974_540_288, "29.97 B"), (1_008e9, "1.008 T"), (999, "999")],
)
def test_parameters(value: float, shown: str) -> None:
    assert parameters(value) == shown


def test_small_words() -> None:
    assert gib(31.44 * GIB) == "31.4"
    assert gib(1000.0) == "0"
    assert percent(1.0) == "100 %"
    assert percent(0.162) == "16.2 %"
    assert plural(1, "layout") == "1 layout"
    assert plural(412608, "layout") == "412,608 layouts"
    plan = make_plan(tp=8, dp=4, recompute="full", recompute_layers=4, offload="optimizer", offload_fraction=0.5, offload_target="nvme")
    assert recompute(plan.layout) == "full 4"
    assert offload(plan.layout) == "optimizer 50.0 % (nvme)"
    assert layout_name(plan.layout) == "TP 8 · DP 4 · ZeRO-1 · full 4 recompute · optimizer 50.0 % (nvme) offloaded · micro-batch 1"
    assert layout_name(make_plan(zero=0).layout) == "1 GPU · ZeRO-0 · micro-batch 1"
