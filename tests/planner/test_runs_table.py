"""Reading run tables: any subset of columns in any order; bad cells and bad files in one line."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.runs import Skip, Spec, TableError, all_specs, read
from planner.runs.row import FIELD_OF_COLUMN, MAX_COUNT, CellError, read_cell
from planner.runs.table import MAX_BYTES

TABLE = Path(__file__).resolve().parent.parent / "published" / "runs.csv"
HEAD = "id,layers,hidden,heads,seq_len,gpu,num_gpus,tp,pp,micro_batch"
ROW = "mine,32,4096,32,4096,A100-80G,8,2,1,1"


def table(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_column_of_the_published_table_is_known() -> None:
    """The published table is read without a complaint, whole."""
    found = read(TABLE)
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert found.problems == ()
    assert set(rows[0]) == set(FIELD_OF_COLUMN)
    assert [run.id for run in found.runs] == [row["id"] for row in rows]


def test_cells_keep_their_values() -> None:
    """Every number of the published table is the number that was printed."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for run, row in zip(read(TABLE).runs, rows, strict=True):
        for column in ("layers", "num_gpus", "dp", "micro_batch", "step_time_s", "peak_memory_gib"):
            value = getattr(run, FIELD_OF_COLUMN[column])
            assert (value is None) == (row[column] == "")
            assert value is None or value == float(row[column])


def test_subset_of_columns_in_any_order(tmp_path: Path) -> None:
    """Ten columns are enough, in any order and any case of the header."""
    columns, cells = HEAD.split(","), ROW.split(",")
    order = list(range(len(columns)))
    random.Random(7).shuffle(order)
    text = ",".join(columns[i].upper() for i in order) + "\n" + ",".join(cells[i] for i in order) + "\n"
    (made,) = all_specs(read(table(tmp_path, text)).runs)
    assert isinstance(made, Spec)
    assert made.run.num_gpus == 8 and made.layout.degrees.dp == 4.0


@pytest.mark.parametrize("text", [HEAD.replace(",", ";") + "\n" + ROW.replace(",", ";"), "\ufeff" + HEAD + "\r\n" + ROW + "\r\n\r\n"])
def test_other_separators_marks_and_line_ends(tmp_path: Path, text: str) -> None:
    """Semicolons, a byte-order mark, CRLF and empty lines are read."""
    (run,) = read(table(tmp_path, text)).runs
    assert (run.id, run.layers) == ("mine", 32)


BAD_CELLS = [
    ("layers", "thirty"),
    ("layers", "-2"),
    ("layers", "1.5"),
    ("num_gpus", "1e30"),
    ("num_gpus", "inf"),
    ("tp", "0"),
    ("heads", "0x20"),
    ("seq_len", "9" * 400),
]


@pytest.mark.parametrize(("column", "cell"), BAD_CELLS)
def test_bad_cell_is_reported_by_line_and_column(tmp_path: Path, column: str, cell: str) -> None:
    """The message names line, column and cell on one line; the row is skipped, the next one read."""
    columns, cells = HEAD.split(","), ROW.split(",")
    cells[columns.index(column)] = cell
    found = read(table(tmp_path, f"{HEAD}\n{','.join(cells)}\n{ROW.replace('mine', 'next')}\n"))
    first, second = all_specs(found.runs)
    assert isinstance(first, Skip) and first.kind == "unreadable cell"
    assert first.reason.startswith(f"line 2, column {column}: ") and "\n" not in first.reason and len(first.reason) < 300
    assert first.reason in found.problems
    assert isinstance(second, Spec)


def test_bad_informative_cell_does_not_stop_the_row(tmp_path: Path) -> None:
    """No prediction reads mfu_pct: the cell is reported and the row predicted."""
    found = read(table(tmp_path, f"{HEAD},mfu_pct\n{ROW},lots\n"))
    assert len(found.problems) == 1 and "mfu_pct" in found.problems[0]
    assert isinstance(all_specs(found.runs)[0], Spec)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("precision", "int3"),
        ("sharding", "zero9"),
        ("recompute", "sometimes"),
        ("offload", "activations:2"),
        ("oom", "perhaps"),
        ("method", "rl"),
    ],
)
def test_unknown_words(tmp_path: Path, column: str, cell: str) -> None:
    """A word that no column holds is refused with what it must be."""
    found = read(table(tmp_path, f"{HEAD},{column}\n{ROW},{cell}\n"))
    assert len(found.problems) == 1 and f"column {column}" in found.problems[0] and "must be" in found.problems[0]


def test_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    """A misspelt column is reported with the nearest known one."""
    found = read(table(tmp_path, f"{HEAD},micro_batches\n{ROW},4\n"))
    assert len(found.problems) == 1 and found.problems[0].endswith("is unknown and not read; nearest: micro_batch")


def test_too_many_cells(tmp_path: Path) -> None:
    """A row with more cells than columns is not guessed at."""
    found = read(table(tmp_path, f"{HEAD}\n{ROW},1,2\n"))
    assert "12 cells under 10 columns" in found.problems[0]
    assert isinstance(all_specs(found.runs)[0], Skip)


def test_few_cells_are_blank(tmp_path: Path) -> None:
    """A row that ends early does not state the rest."""
    (made,) = all_specs(read(table(tmp_path, f"{HEAD}\nmine,32,4096,32\n")).runs)
    assert isinstance(made, Skip)
    assert made.reason == "does not state seq_len, gpu, num_gpus, tp, pp, micro_batch"


BAD_FILES = [
    (b"", "is empty"),
    (b"  \n \n", "is empty"),
    (b"\x00\x01\x02" * 50, "binary"),
    (b"\xff\xfe" + "id,layers\n".encode("utf-16-le"), "binary"),
    (b"id,layers\na,\xe9\n", "UTF-8"),
    (b"one,two\n1,2\n", "none of its columns is known"),
    (b"layers,tp,layers\n1,2,3\n", "occurs twice"),
    (HEAD.encode() + b"\n", "no rows"),
    (b'id,notes\na,"' + b"x" * 200_000 + b'"\n', "no readable CSV"),
]


@pytest.mark.parametrize(("content", "words"), BAD_FILES)
def test_files_that_are_no_table(tmp_path: Path, content: bytes, words: str) -> None:
    """Empty, binary, non-UTF-8 and foreign files are refused in one line."""
    with pytest.raises(TableError) as refused:
        read(table(tmp_path, content))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_missing_file_folder_and_odd_names(tmp_path: Path) -> None:
    """A path that is no readable file is refused in one line."""
    for path in (tmp_path / "none.csv", tmp_path, "a" * 5000, "nul\0byte.csv"):
        with pytest.raises(TableError) as refused:
            read(path)
        assert "\n" not in str(refused.value)


def test_huge_file(tmp_path: Path) -> None:
    """A file beyond the limit is refused before it is read."""
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TableError, match="at most 64 MiB"):
        read(path)


def test_repeated_ids_are_told(tmp_path: Path) -> None:
    """Two rows of one id are both read, and told."""
    found = read(table(tmp_path, f"{HEAD}\n{ROW}\n{ROW}\n"))
    assert len(found.runs) == 2 and "occurs 2 times" in found.problems[0]


def test_rows_without_ids_are_named_by_line(tmp_path: Path) -> None:
    """A table without ids names its rows by their lines."""
    found = read(table(tmp_path, f"{HEAD.removeprefix('id,')}\n{ROW.removeprefix('mine,')}\n"))
    assert [run.id for run in found.runs] == ["line 2"]


def test_thousands_separators_and_blanks() -> None:
    """4,096 is a number; a dash, `n/a` and `unknown` are blanks."""
    assert read_cell("seq_len", " 4,096 ") == 4096
    assert read_cell("step_time_s", "1.5e-3") == 0.0015
    assert [read_cell("layers", blank) for blank in ("", " - ", "n/a", "NaN", "unknown")] == [None] * 5
    assert read_cell("precision", "BF16-Mixed") == "bf16-mixed"
    assert read_cell("logged_stage", "First,Last") == "first,last"


@settings(max_examples=200, deadline=None)
@given(column=st.sampled_from(sorted(FIELD_OF_COLUMN)), text=st.text(max_size=30))
def test_any_cell_is_read_or_refused(column: str, text: str) -> None:
    """Whatever a cell holds, it is a value, a blank, or a CellError; sizes stay within their limits."""
    try:
        value = read_cell(column, text)
    except CellError as error:
        assert "\n" not in str(error)
        return
    if column in ("layers", "tp", "num_gpus"):
        assert value is None or (isinstance(value, int) and 1 <= value <= MAX_COUNT)
