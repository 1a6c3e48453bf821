"""All tables of the report from one journal, written to a folder, their columns, and two runs next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ...journal_builder import JournalBuilder
from . import at_hand
from .at_hand import (
    COMPARISON,
    TABLES,
    PartWriter,
    ReportColumn,
    Rows,
    in_order,
    of_journal,
    of_relations,
    rounded,
    rows_of_entities,
)

pytestmark = pytest.mark.long

APP_1, APP_2 = "application_0_0001", "application_0_0002"
C1, C2 = "container_0_0001_01_000001", "container_0_0001_01_000002"
DECLARED = [
    tuple(kind.split())
    for kind in (
        "RMApp NEW START NEW_SAVING",
        "RMApp NEW_SAVING APP_SAVE_FAILED FAILED",
        "RMApp NEW_SAVING KILL FAILED",
        "RMContainer NEW START ALLOCATED",
        "RMContainer RUNNING FINISHED COMPLETED",
        "RMContainer ALLOCATED LAUNCHED RUNNING",
        "RMNode NEW STARTED RUNNING",
        "RMNode RUNNING EXPIRE LOST",
    )
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> JournalBuilder:
    """Two applications, a node that comes back, a container that runs on, and one of each that went wrong."""
    journal = JournalBuilder(tmp_path_factory.mktemp("run") / "journal")
    journal.node(1, "h1:1", memory_mb=2048, gpus=2)
    journal.submit(2, APP_1, 1)
    journal.submit(3, APP_2, 2, queue="other")
    journal.allocate(4, C1, "h1:1", 4, gpus=1, gpu_milli=500, gpu_devices=[1])
    journal.allocate(5, C2, "h1:1", 6)
    journal.move(6, "RMContainer", C1, "ALLOCATED LAUNCHED RUNNING", at=7)
    journal.complete(7, C1, 8)
    journal.event(8, "RMAppEventType", "APP_SAVE_FAILED", APP_1, 9, outcome="failed", error="ValueError: x")
    journal.move(8, "RMApp", APP_1, "NEW_SAVING APP_SAVE_FAILED FAILED", at=9)
    journal.move(9, "RMNode", "h1:1", "RUNNING EXPIRE LOST", at=10)
    journal.move(10, "RMNode", "h1:1", "NEW STARTED RUNNING", at=12)
    journal.move(11, "RMApp", APP_1, "FAILED START FAILED", at=13, valid=False)
    journal.event(12, "XType", "X", None, 20, outcome="unregistered")
    return journal


def write_parts(journal: JournalBuilder, folder: Path, *, at_once: int = 12) -> list[Path]:
    return at_hand.write_parts(journal, folder, DECLARED, at_once=at_once)


def written(parts: list[Path], folder: Path) -> dict[str, Rows]:
    return at_hand.written(parts, folder, DECLARED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tables."""
    return tmp_path_factory.mktemp("whole") / "tables"


@pytest.fixture(scope="module")
def whole(journal: JournalBuilder, folder: Path) -> dict[str, Rows]:
    """The tables of the journal as one part, which are in the folder."""
    return written(write_parts(journal, folder.parent), folder)


def test_each_table_has_a_folder_and_rows_and_nothing_else_is_left(
    journal: JournalBuilder, whole: dict[str, Rows]
) -> None:
    assert whole.keys() == {table.name for table in TABLES}
    assert {name for name, rows in whole.items() if not rows} == {"damage"}
    expected = of_journal(journal, DECLARED)
    assert {name: rows for name, rows in whole.items() if rows != rounded(expected[name])} == {}


@pytest.mark.usefixtures("whole")
def test_columns_that_are_declared_without_nulls_have_none(folder: Path) -> None:
    for table in TABLES:
        found = pq.read_table(folder / table.name)
        assert found.column_names == [column.name for column in table.columns]
        nulls = {column.name for column in table.columns if found.column(column.name).null_count}
        assert nulls <= {column.name for column in table.columns if column.nullable}, table.name


@pytest.mark.parametrize("at_once", [1, 5])
def test_a_journal_in_parts_has_the_same_tables_merged_or_not(
    journal: JournalBuilder, whole: dict[str, Rows], tmp_path: Path, at_once: int
) -> None:
    parts = write_parts(journal, tmp_path, at_once=at_once)

    first, second = tmp_path / "first", tmp_path / "second"
    at_hand.merge_parts(parts[:2], first, DECLARED)
    at_hand.merge_parts([first, *parts[2:]], second, DECLARED)

    assert written(parts, tmp_path / "of parts") == whole
    assert written([first, *parts[2:]], tmp_path / "of some") == whole
    assert written([second], tmp_path / "of one") == whole


def test_a_folder_s_name_is_no_pattern(journal: JournalBuilder, whole: dict[str, Rows], tmp_path: Path) -> None:
    odd = tmp_path / "run[1]"
    (tmp_path / "run1").mkdir()

    assert written(write_parts(journal, odd), odd / "tables") == whole


def test_a_merged_digest_forgets_the_lives_that_have_ended(journal: JournalBuilder, tmp_path: Path) -> None:
    parts = write_parts(journal, tmp_path, at_once=1)

    at_hand.merge_parts(parts, tmp_path / "merged", DECLARED)

    stretches = pq.read_table(tmp_path / "merged" / "stretch").to_pylist()
    assert sorted((row["entity"], row["to_state"]) for row in stretches) == [
        (APP_2, "NEW_SAVING"),
        (C2, "ALLOCATED"),
        ("h1:1", "RUNNING"),
    ]
    assert rows_of_entities([tmp_path / "merged"]) < rows_of_entities(parts)


def test_key_figures_are_those_of_the_tables(whole: dict[str, Rows]) -> None:
    figures = {(subject, metric): value for subject, metric, _, value in whole["key_figures"]}

    expected = {
        ("run", "events"): 8.0,
        ("run", "span"): 20.0,
        ("run", "applications"): 2.0,
        ("run", "failed"): 1.0,
        ("run", "wait_max"): 3.0,
        ("queue other", "never_placed"): 1.0,
        ("events XType.X", "count"): 1.0,
        ("stay RMNode.RUNNING", "max"): 10.0,
    }
    assert {key: figures[key] for key in expected} == expected


def test_a_journal_without_a_row_has_all_tables(tmp_path: Path) -> None:
    tables = written([], tmp_path / "tables")

    assert {name for name, rows in tables.items() if rows} == {"run_totals", "key_figures"}


def test_a_part_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="foreign"), PartWriter(tmp_path, 1) as writer:
        writer.write(_failing())

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def _failing() -> Any:
    yield "kept_event", pa.RecordBatch.from_pylist([{"seq": 1}])
    raise ValueError("foreign")


def figures(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(("subject", "metric", "unit", "value"), row, strict=True)) for row in rows]


def test_the_figures_of_both_runs_stand_side_by_side() -> None:
    before = [
        ("run", "span", "s", 8.0),
        ("run", "failed", "", 0.0),
        ("queue a", "p50", "s", None),
        ("gone", "x", "", 1.0),
    ]
    after = [("run", "span", "s", 6.0), ("run", "failed", "", 2.0), ("queue a", "p50", "s", 1.0), ("new", "x", "", 3.0)]

    found = of_relations(before_key_figures=figures(before), key_figures=figures(after))["comparison"]

    rows = [
        ("run", "span", "s", 8.0, 6.0, -0.25),
        ("run", "failed", "", 0.0, 2.0, None),
        ("queue a", "p50", "s", None, 1.0, None),
        ("gone", "x", "", 1.0, None, None),
        ("new", "x", "", None, 3.0, None),
    ]
    assert found == in_order(rows)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("at", "Unix ns"),
        ("starts_at", "Unix ns"),
        ("starts", ""),
        ("status", ""),
        ("wait_s", "s"),
        ("handling_total_ms", "ms"),
        ("memory_mb", "MiB"),
        ("gpu_milli_total", "thousandths"),
    ],
)
def test_the_unit_of_a_column_is_the_end_of_its_name(name: str, unit: str) -> None:
    """A column `at` had no unit."""
    assert ReportColumn(name, "long", nullable=False).unit == unit


def test_every_fractional_column_has_a_unit_except_the_figures_of_a_comparison() -> None:
    found = {
        column.name
        for table in (*TABLES, COMPARISON)
        for column in table.columns
        if column.type == "double" and not column.unit
    }

    assert found == {"value", "before", "after"}  # their unit is in the column `unit`
