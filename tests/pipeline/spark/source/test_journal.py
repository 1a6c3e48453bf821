"""Reading a journal's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dispatcher import DispatcherError, JournalError
from pipeline.spark import journal_damage, journal_failure, read_journal

from ....kit.segment_files import Manifest, segment_path
from ...journal_builder import JournalBuilder

EVENT_SCHEMA = (
    "seq long, dispatcher string, event_class string, event_type string, entity string, enqueued_at long, "
    "started_at long, finished_at long, queue_ns long, handling_ns long, outcome string, error string, payload string, "
    "accepted_seq long, redelivered boolean"
)
TRANSITION_SCHEMA = (
    "seq long, machine string, entity string, from_state string, event_type string, to_state string, at long, "
    "valid boolean, data string"
)


def damage_one_byte(segment: Path) -> None:
    """In its second frame, the first one with rows."""
    data = bytearray(segment.read_bytes())
    data[data.index(b"\xffDJF", 1) + 100] ^= 1
    segment.write_bytes(data)


def test_rows_come_back_with_nulls_where_there_is_nothing(
    journal: JournalBuilder, spark: SparkSession, assert_table: Any
) -> None:
    journal.event(1, "AType", "A", queue_ns=5, handling_ns=7, outcome="failed", error="ValueError: x")
    journal.event(2, "AType", "B", "ünï", accepted_seq=9, redelivered=True, payload={"a": 1}, enqueued_at=-30)
    journal.move(1, "RMApp", "application_0_0001", "NEW START NEW_SAVING", at=2)
    journal.move(2, "Device", "d1", "NEW START NEW", data='{"version":1,"data":{"n":"ü"}}')

    events, transitions = read_journal(spark, journal.path)

    failed = (1, "rm", "AType", "A", None, 0, 0, 0, 5, 7, "failed", "ValueError: x", None, None, False)
    handled = (2, "rm", "AType", "B", "ünï", -30, 0, 0, 30, 0, "handled", None, '{"a": 1}', 9, True)
    assert_table(events, EVENT_SCHEMA, [failed, handled])
    assert_table(
        transitions,
        TRANSITION_SCHEMA,
        [
            (1, "RMApp", "application_0_0001", "NEW", "START", "NEW_SAVING", 2_000_000_000, True, None),
            (2, "Device", "d1", "NEW", "START", "NEW", 0, True, '{"version":1,"data":{"n":"ü"}}'),
        ],
    )


def test_a_table_without_rows_and_a_journal_without_a_closed_segment_are_empty(
    journal: JournalBuilder, spark: SparkSession, tmp_path: Path, assert_table: Any
) -> None:
    journal.event(1, "AType", "A")

    assert_table(read_journal(spark, journal.path).transitions, TRANSITION_SCHEMA, [])
    assert_table(read_journal(spark, JournalBuilder(tmp_path / "none").path).events, EVENT_SCHEMA, [])


def test_a_folder_without_a_journal_is_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"^{tmp_path}: not a journal") as raised:
        read_journal(spark, tmp_path)

    assert "\n" not in str(raised.value)


def test_a_relative_path_is_looked_up_in_the_current_folder_and_a_uri_of_a_file_is_a_path(
    journal: JournalBuilder, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are somewhere else."""
    journal.event(1, "AType", "A")
    monkeypatch.chdir(journal.path.parent)

    assert read_journal(spark, "journal").events.count() == 1
    assert read_journal(spark, journal.path.as_uri()).events.count() == 1


@pytest.mark.parametrize("uri", ["s3://bucket/journal", "hdfs://host:1/journal", "file://host/journal"])
def test_a_uri_of_another_file_system_is_refused(spark: SparkSession, uri: str) -> None:
    with pytest.raises(JournalError, match=f"^{uri}: .* given as /path or file:///path"):
        read_journal(spark, uri)


def test_an_unknown_column_is_refused_before_anything_runs(journal: JournalBuilder, spark: SparkSession) -> None:
    journal.event(1, "AType", "A")

    with pytest.raises(DispatcherError, match=r"table events has no column state; it has seq, dispatcher, "):
        read_journal(spark, journal.path, columns={"events": ["state"]})


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(journal: JournalBuilder) -> Path:
    """Three segments: one sound, one with a damaged frame and a whole one, one that is gone."""
    journal.event(1, "AType", "A")
    journal.event(11, "AType", "A")
    journal.event(12, "AType", "A", enqueued_at=-1)
    journal.event(21, "AType", "A")
    path: Path = journal.path
    damage_one_byte(segment_path(path, 2))
    segment_path(path, 3).unlink()
    return path


def test_damaged_frames_are_skipped_and_every_byte_is_checked_with_and_without_spark(
    damaged: Path, spark: SparkSession
) -> None:
    lines = journal_damage(damaged, spark=spark)

    assert sorted(row.seq for row in read_journal(spark, damaged).events.collect()) == [1, 12]
    assert lines == journal_damage(damaged)
    assert lines[0].startswith("segment-00000002.journal: ")
    assert lines[0].endswith(" hold no intact frame; 1 event and 0 transitions lost")
    assert lines[1:] == ["segment-00000003.journal: is missing; an unknown number of rows lost"]


def test_a_long_list_of_damage_is_cut_and_the_rest_counted(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.spark.source.journal._LINES", 1)

    assert journal_damage(damaged)[1:] == [f"1 more; see: dispatcher journal verify {damaged}"]


@pytest.mark.parametrize(
    ("segments", "said"),
    [(2, "damaged journal: segment-00000002.journal: "), (3, "damaged journal: segment-00000003.journal: is missing")],
    ids=["a damaged frame fails the job that meets it", "a missing segment fails before any task"],
)
def test_fail_fast_says_where_in_one_line(damaged: Path, spark: SparkSession, segments: int, said: str) -> None:
    Manifest(1, segments, True).write(damaged, sync=False)

    with pytest.raises(PySparkException) as raised:
        read_journal(spark, damaged, mode="FAILFAST").events.collect()

    failure = journal_failure(raised.value) or ""
    assert failure.startswith(f"{damaged}: {said}")
    assert failure.endswith(f"See: dispatcher journal verify {damaged}")
    assert "\n" not in failure
