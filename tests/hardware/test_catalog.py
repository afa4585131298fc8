"""Names: ids, aliases, what people and drivers print, and the nearest names of what is unknown."""

from __future__ import annotations

import csv
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware
from hardware import catalog
from hardware.catalog import UnknownName, gpu_names, load_gpu, load_node, node_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(hardware.__file__).parent

TYPED = {
    "A100-80G": "a100-sxm-80g",
    "a100 80gb": "a100-sxm-80g",
    "A100_80GiB": "a100-sxm-80g",
    "A100-SXM4-80GB": "a100-sxm-80g",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40g",
    "A100": "a100-sxm-80g",
    "A100-40G": "a100-sxm-40g",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80g",
    "A100-PCIE-40GB": "a100-pcie-40g",
    "H100": "h100-sxm-80g",
    "H100-SXM": "h100-sxm-80g",
    "H100-80G": "h100-sxm-80g",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80g",
    "NVIDIA H100 PCIe": "h100-pcie-80g",
    "NVIDIA H100 NVL": "h100-nvl-94g",
    "h100-96g": "h100-96g",
    "H200-141G": "h200-sxm",
    "NVIDIA H200": "h200-sxm",
    "H800-80G": "h800-80g",
    "A800-80G": "a800-80g",
    "V100-16G": "v100-sxm2-16g",
    "V100-32G": "v100-sxm2-32g",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32g",
    "Tesla V100-PCIE-16GB": "v100-pcie-16g",
    "B200": "b200-sxm",
    "B200-192GB": "b200-sxm",
    "B300": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "MI300X-192G": "mi300x",
    "AMD Instinct MI300X": "mi300x",
    "A10G-24G": "a10g",
    "NVIDIA A10G": "a10g",
    "L40S-48G": "l40s",
    "L4-24G": "l4",
    "RTX4090-24G": "rtx4090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "RTX3090-24G": "rtx3090",
    "RTX 3090": "rtx3090",
    "3090": "rtx3090",
    "A6000-48G": "rtxa6000",
    "NVIDIA RTX A6000": "rtxa6000",
    "RTX6000Ada-48G": "rtx6000ada",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000ada",
    "A5000-24G": "rtxa5000",
    "910B": "ascend-910b",
    "TPU v5p": "tpu-v5p",
    "MI250X": "mi250x",
}
TYPED_NODES = {
    "p5.48xlarge": "aws-p5.48xlarge",
    "AWS p4d.24xlarge": "aws-p4d.24xlarge",
    "DGX H100": "dgx-h100",
    "HGX-H100": "dgx-h100",
    "dgx-a100": "dgx-a100-80g",
    "DGX A100 320GB": "dgx-a100-40g",
    "DGX-2": "dgx-2",
    "dgx1": "dgx-1-v100",
    "a3-megagpu-8g": "gcp-a3-megagpu-8g",
    "Standard_ND96isr_H100_v5": "azure-nd96isr-h100-v5",
    "GB200 NVL72": "gb200-nvl72-tray",
}


@pytest.mark.parametrize(("typed", "identity"), TYPED.items())
def test_gpu_names_that_people_type(typed: str, identity: str) -> None:
    assert load_gpu(typed).id == identity


@pytest.mark.parametrize(("typed", "identity"), TYPED_NODES.items())
def test_server_names_that_people_type(typed: str, identity: str) -> None:
    assert load_node(typed).id == identity


def test_every_gpu_of_the_run_table_is_known() -> None:
    with (Path(__file__).parents[1] / "published" / "runs.csv").open(encoding="utf-8", newline="") as file:
        names = {row["gpu"] for row in csv.DictReader(file)}
    assert len(names) >= 15
    for name in names:
        load_gpu(name)


def test_every_id_alias_and_name_means_its_own_entry() -> None:
    for gpu in map(load_gpu, gpu_names()):
        assert {load_gpu(name).id for name in (gpu.id, gpu.name, *gpu.aliases)} == {gpu.id}
        for alias in gpu.aliases:
            assert load_gpu(alias.lower().replace("-", " ")).id == gpu.id
    for node in map(load_node, node_names()):
        assert {load_node(name).id for name in (node.id, node.name, *node.aliases)} == {node.id}


def test_no_two_entries_claim_one_spelling() -> None:
    for names, load in ((gpu_names(), load_gpu), (node_names(), load_node)):
        owners: dict[str, str] = {}
        for record in map(load, names):
            for name in (record.id, *record.aliases):
                spelling = re.sub(r"[-_ ]", "", name.lower())
                assert owners.setdefault(spelling, record.id) == record.id


def test_references_between_entries_hold() -> None:
    for gpu in map(load_gpu, gpu_names()):
        if gpu.default_node is not None:
            assert gpu.default_node in node_names()
    for node in map(load_node, node_names()):
        assert node.gpu in gpu_names()


@pytest.mark.parametrize("folder", ["gpus", "nodes"])
def test_files_are_named_by_id_and_begin_with_the_head_that_the_index_reads(folder: str) -> None:
    paths = sorted((ROOT / folder).iterdir())
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        whole, head = tomllib.loads(text), tomllib.loads(text[:1024].partition("\n\n")[0])
        assert path.name == f"{whole['id']}.toml"
        assert whole["source"]
        for key in ("id", "name", "aliases", "nominal_memory"):
            assert head.get(key) == whole.get(key)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("A100-60G", "A100-80G"), ("H1OO", "H100-80G"), ("RTX4O90", "RTX4090-24G"), ("MI300", "MI300X"), ("rtx6000", "RTX6000Ada-48G")],
)
def test_unknown_gpu_gives_the_nearest_names(typed: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match="unknown GPU") as caught:
        load_gpu(typed)
    assert nearest in caught.value.nearest
    assert nearest in str(caught.value)
    assert repr(typed) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_unknown_server_gives_the_nearest_names() -> None:
    with pytest.raises(UnknownName, match=r"p4d\.24xlarge") as caught:
        load_node("p4d")
    assert caught.value.nearest == ("p4d.24xlarge", "p4de.24xlarge")


@pytest.mark.parametrize(("typed", "both"), [("A100-SXM", ("A100-40G", "A100-80G")), ("v100 pcie", ("v100-pcie-16g", "v100-pcie-32g"))])
def test_ambiguous_name_lists_what_it_could_be(typed: str, both: tuple[str, ...]) -> None:
    with pytest.raises(UnknownName, match="ambiguous") as caught:
        load_gpu(typed)
    assert caught.value.nearest == both
    for name in both:
        load_gpu(name)


@given(st.text(max_size=300))
def test_any_text_is_an_entry_or_one_line(text: str) -> None:
    for load in (load_gpu, load_node):
        try:
            load(text)
        except UnknownName as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 300


@given(st.sampled_from(sorted(TYPED)), st.integers(min_value=0, max_value=2**12))
def test_case_and_separators_do_not_matter(typed: str, seed: int) -> None:
    separators = ["-", "_", " ", ""]
    changed = "".join(
        separators[(seed >> index) % 4] if char in "-_ " else char.swapcase() if seed >> index & 1 else char
        for index, char in enumerate(typed)
    )
    assert load_gpu(changed).id == TYPED[typed]


def test_paths_are_not_names() -> None:
    for text in ("../gpus/h100-sxm-80g", "..", "h100-sxm-80g.toml", "/etc/passwd"):
        with pytest.raises(UnknownName):
            load_gpu(text)


@pytest.mark.bench
def test_one_gpu_and_its_server_load_in_milliseconds() -> None:
    for cached in (catalog._index, catalog._gpu, catalog._node):  # noqa: SLF001
        cached.cache_clear()
    start = time.perf_counter()
    load_node(load_gpu("A100-80G").default_node or "")
    assert time.perf_counter() - start < 0.02
