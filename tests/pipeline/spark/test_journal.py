"""Reading the journal's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dispatcher.errors import JournalError
from dispatcher.journal.schema import EVENTS, TRANSITIONS
from pipeline.spark import read_journal
from pipeline.spark.journal import check_lines, read_lines, table_schema

EVENT_SCHEMA = (
    "seq long, dispatcher string, event_class string, event_type string, entity string, enqueued_at long, "
    "started_at long, finished_at long, queue_ns long, handling_ns long, outcome string, error string, payload string"
)
TRANSITION_SCHEMA = (
    "seq long, machine string, entity string, from_state string, event_type string, to_state string, at long, "
    "valid boolean"
)


def test_rows_come_back_with_left_out_keys_as_null(journal: Any, assert_table: Any) -> None:
    journal.event(1, "AType", "A", queue_ns=5, handling_ns=7, outcome="failed", error="ValueError: x")
    journal.move(1, "RMApp", "application_0_0001", "NEW START NEW_SAVING", at=2)

    events, transitions = journal.tables()

    assert_table(events, EVENT_SCHEMA, [(1, "rm", "AType", "A", None, 0, 0, 0, 5, 7, "failed", "ValueError: x", None)])
    assert_table(
        transitions,
        TRANSITION_SCHEMA,
        [(1, "RMApp", "application_0_0001", "NEW", "START", "NEW_SAVING", 2_000_000_000, True)],
    )


def test_all_closed_segments_are_read_and_nothing_else(journal: Any) -> None:
    journal.event(1, "AType", "A")
    line = (journal.path / "events" / "events-00000001.jsonl").read_text().strip()
    journal.line("events", line, segment="00000002")
    journal.line("events", "half a li", segment="00000003", prefix=".")
    (journal.path / "events" / "notes.txt").write_text("not a segment")

    assert journal.tables().events.count() == 2


def test_a_table_without_segments_is_empty(journal: Any, assert_table: Any) -> None:
    journal.event(1, "AType", "A")

    assert_table(journal.tables().transitions, TRANSITION_SCHEMA, [])


def test_a_table_without_a_folder_is_empty(journal: Any, assert_table: Any) -> None:
    journal.move(1, "RMApp", "application_0_0001", "NEW START NEW_SAVING")
    (journal.path / "events").rmdir()

    assert_table(journal.tables().events, EVENT_SCHEMA, [])


def test_a_folder_without_a_journal_is_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"^{tmp_path}: no journal here") as raised:
        read_journal(spark, tmp_path)

    assert "\n" not in str(raised.value)


def test_a_journal_with_open_segments_only_is_refused(journal: Any) -> None:
    journal.line("events", "{}", prefix=".")

    with pytest.raises(JournalError, match="after its first segment was closed"):
        journal.tables()


DAMAGE = [
    ("transitions", "{'seq", "has a line that is no row: {'seq"),
    ("transitions", '{"seq": "one"}', 'has a line that is no row: {"seq": "one"}'),
    (
        "transitions",
        '{"seq": 1, "machine": "RMApp", "entity": "a"}',
        "has a row without from_state, event_type, to_state, at, valid",
    ),
    ("events", "{}", "has a row without seq, dispatcher, event_class"),
]


@pytest.mark.parametrize(("table", "line", "problem"), DAMAGE)
def test_a_damaged_line_is_told_in_one_line(
    journal: Any, spark: SparkSession, table: str, line: str, problem: str
) -> None:
    """Spark on its own reads such lines as nulls, and the figures are quietly wrong."""
    journal.line(table, line)

    with pytest.raises(JournalError) as raised:
        check_lines(read_lines(spark, journal.path))

    assert str(raised.value).startswith(f"damaged journal: {table}-00000001.jsonl {problem}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("payload", [["h1"], {"host": "h1", "memory_mb": "much"}, "h1"])
def test_a_payload_of_another_shape_is_damage(journal: Any, spark: SparkSession, payload: Any) -> None:
    journal.event(1, "RMNodeEventType", "STARTED", "h1:1", payload=payload)

    with pytest.raises(JournalError, match=r"has a RMNodeEventType STARTED whose payload is not \{host string"):
        check_lines(read_lines(spark, journal.path))


def test_sound_lines_are_no_damage(journal: Any, spark: SparkSession) -> None:
    journal.submit(1, "application_0_0001")
    journal.event(2, "RMAppEventType", "START", "application_0_0002")
    journal.event(3, "RMAppEventType", "KILL", "application_0_0002", payload=["of no interest"])

    check_lines(read_lines(spark, journal.path))


def test_a_job_that_meets_a_damaged_line_fails(journal: Any) -> None:
    journal.line("transitions", '{"seq": 1}')

    with pytest.raises(PySparkException, match=r"transitions-00000001\.jsonl has a row without machine"):
        journal.tables().transitions.groupBy("event_type").count().collect()


def test_a_relative_path_is_looked_up_in_the_current_folder(
    journal: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark alone looks in the folder where its JVM was started, which a later chdir does not move."""
    journal.event(1, "AType", "A")
    monkeypatch.chdir(journal.path.parent)

    assert read_journal(spark, "journal").events.count() == 1


@pytest.mark.parametrize("table", [EVENTS, TRANSITIONS])
def test_the_schema_has_the_declared_columns_in_order(table: Any) -> None:
    declared = [(column.name, "bigint" if column.type == "long" else column.type) for column in table.columns]

    assert [(field.name, field.dataType.simpleString()) for field in table_schema(table)] == declared
