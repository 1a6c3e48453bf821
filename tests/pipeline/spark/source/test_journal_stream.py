"""The journal as a stream: each closed segment once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from dispatcher import JournalError, JournalWriter
from pipeline.spark import journal_failure, read_journal, stream_journal

from ....journal_rows import begin, end
from ....kit.segment_files import LAST_NUMBER, Manifest, segment_path
from ....partitioned_journals import write_partitioned
from ..data_source import source

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="admission control needs Spark 4.2")

TIMEOUT_S = 120


class Growing:
    """A journal that gets segments of two events each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: JournalWriter | None = None

    def grow(self, segments: int = 1) -> None:
        self._writer = self._writer or JournalWriter(self.path)
        for _ in range(segments):
            for _ in range(2):
                begin(self._writer, self._writer.seq + 1)
                end(self._writer, "rm", "Job", "STARTED", "handled", entity="job_1")
            self._writer.flush()
            self._writer.roll()

    def retire(self, upto: int) -> None:
        """As retention does: the manifest first."""
        Manifest(upto + 1, max(upto, self._writer.log.segments_closed if self._writer else 0)).write(
            self.path, sync=False
        )
        for number in range(1, upto + 1):
            segment_path(self.path, number).unlink(missing_ok=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    journal = Growing(tmp_path / "journal")
    yield journal
    journal.close()


def stream_reader(path: Path, **options: str) -> Any:
    return source(path, **options).streamReader(StructType().add("seq", "long"))


def seqs(reader: Any, start: int, end: int) -> list[int]:
    partitions = reader.partitions({"segment": start}, {"segment": end})
    return sorted(row["seq"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist())


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_a_stream_waits_for_its_journal(growing: Growing, spark: SparkSession) -> None:
    assert stream_journal(spark, growing.path).events.isStreaming
    reader = stream_reader(growing.path)

    assert reader.initialOffset() == {"segment": 0}
    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"segment": 0}
    assert reader.partitions({"segment": 0}, {"segment": 0}) == []
    growing.grow(2)
    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"segment": 2}


def test_a_batch_has_the_segments_between_its_offsets_however_often_it_is_read(growing: Growing) -> None:
    growing.grow(3)
    reader = stream_reader(growing.path)

    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"segment": 3}
    assert reader.latestOffset() == {"segment": 3}
    assert seqs(reader, 1, 3) == [3, 4, 5, 6]
    assert seqs(reader, 1, 3) == [3, 4, 5, 6]


def test_a_batch_has_no_more_segments_than_the_limit(growing: Growing) -> None:
    growing.grow(5)
    reader = stream_reader(growing.path, maxSegmentsPerTrigger="2")
    limit = reader.getDefaultReadLimit()

    assert limit == limits.ReadMaxFiles(2)
    assert reader.latestOffset({"segment": 0}, limit) == {"segment": 2}
    assert reader.latestOffset({"segment": 4}, limit) == {"segment": 5}
    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"segment": 5}
    assert reader.reportLatestOffset() == {"segment": 5}


def test_available_now_ends_where_the_journal_ended_at_the_start(growing: Growing) -> None:
    growing.grow(2)
    reader = stream_reader(growing.path)
    reader.prepareForTriggerAvailableNow()
    growing.grow(1)

    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"segment": 2}
    assert reader.latestOffset({"segment": 2}, limits.ReadAllAvailable()) == {"segment": 2}


def test_a_stream_begins_at_the_oldest_segment_that_retention_left(growing: Growing) -> None:
    growing.grow(3)
    growing.retire(2)
    reader = stream_reader(growing.path, maxSegmentsPerTrigger="1")

    assert reader.initialOffset() == {"segment": 2}
    assert reader.latestOffset({"segment": 0}, reader.getDefaultReadLimit()) == {"segment": 3}


def test_an_offset_of_a_partitioned_journal_has_a_number_for_each_partition(tmp_path: Path) -> None:
    reader = stream_reader(write_partitioned(tmp_path, 2, 3))

    assert reader.initialOffset() == {"0": 0, "1": 0}
    assert reader.latestOffset({"0": 0, "1": 0}, limits.ReadAllAvailable()) == {"0": 1, "1": 1}
    assert reader.latestOffset({"segment": 0}, limits.ReadAllAvailable()) == {"0": 1, "1": 1}  # it began before
    half = reader.latestOffset({"0": 0, "1": 0}, limits.ReadMaxFiles(1))
    assert sorted(half.values()) == [0, 1]
    assert reader.latestOffset(half, limits.ReadMaxFiles(1)) == {"0": 1, "1": 1}


def test_a_partition_that_is_missing_is_an_error_or_keeps_its_place(tmp_path: Path) -> None:
    journal = write_partitioned(tmp_path / "journal", 2, 3)
    (journal / "partition-1").rename(tmp_path / "elsewhere")

    with pytest.raises(JournalError, match=r"partition-1: is missing, and the stream has not read it"):
        stream_reader(journal).latestOffset({"0": 0, "1": 1}, limits.ReadAllAvailable())

    reader = stream_reader(journal, failOnDataLoss="false")
    assert reader.latestOffset({"0": 0, "1": 1}, limits.ReadAllAvailable()) == {"0": 1, "1": 1}


def test_a_segment_that_is_gone_before_it_was_read_is_an_error(growing: Growing) -> None:
    growing.grow(1)
    reader = stream_reader(growing.path)
    [partition] = reader.partitions({"segment": 0}, {"segment": 1})
    segment_path(growing.path, 1).unlink()

    with pytest.raises(
        JournalError,
        match=r"segment-00000001\.journal: is missing; an unknown number of rows lost, and the stream has not read it",
    ):
        list(reader.read(partition))


REMOVED = "segment-0000000{}.journal: was removed by retention before it was read; skipped"
MISSING = "segment-00000004.journal to segment-2147483647.journal: are missing; skipped"
MANY_REMOVED = (
    "segment-00000001.journal to segment-00005000.journal: were removed by retention before they were read; skipped"
)
MANY_MISSING = "segment-00005001.journal to segment-00006000.journal: are missing; skipped"


@pytest.mark.parametrize(
    ("removed", "last", "found", "said"),
    [
        (2, 3, [5, 6], [REMOVED.format(1), REMOVED.format(2)]),
        # The reader used to make a path for each of two billion segments.
        (1, LAST_NUMBER, [3, 4, 5, 6], [REMOVED.format(1), MISSING]),
        (5000, 6000, [], [MANY_REMOVED, MANY_MISSING]),
    ],
    ids=["segments that retention removed", "a manifest that ends at a huge number", "many of both"],
)
def test_lost_segments_are_an_error_or_without_fail_on_data_loss_logged_and_skipped(
    growing: Growing, caplog: pytest.LogCaptureFixture, removed: int, last: int, found: list[int], said: list[str]
) -> None:
    growing.grow(3)
    growing.retire(removed)
    Manifest(removed + 1, last).write(growing.path, sync=False)

    with pytest.raises(JournalError, match=rf"{said[0].partition(';')[0]}, and .* the option failOnDataLoss to false"):
        seqs(stream_reader(growing.path), 0, last)
    with caplog.at_level(logging.WARNING):
        assert seqs(stream_reader(growing.path, failOnDataLoss="false"), 0, last) == found

    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == said


@pytest.mark.parametrize(("error", "silent"), [(BrokenPipeError(), True), (ValueError("ours"), False)])
def test_a_reader_without_its_jvm_ends_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, silent: bool
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    reader = stream_reader(tmp_path)

    try:
        raise EOFError  # PySpark reads on a socket that the JVM has closed
    except EOFError:
        reader.stop()
    sys.excepthook(type(error), error, None)

    assert (capsys.readouterr().err == "") is silent


# -- queries -----------------------------------------------------------------------------------------------------------


def run(events: DataFrame, folder: Path) -> StreamingQuery:
    """Runs until all has been read that there is now, into folder/out."""
    writer = events.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination(TIMEOUT_S)
    return query


def rows_per_batch(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def written(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.seq for row in spark.read.schema("seq long").parquet(str(folder / "out")).collect())


def test_a_restarted_query_goes_on_where_it_stopped(growing: Growing, spark: SparkSession, tmp_path: Path) -> None:
    def stream(**options: Any) -> DataFrame:
        return stream_journal(spark, growing.path, columns={"events": ["seq", "entity"]}, **options).events

    growing.grow(3)
    first = run(stream(max_segments_per_trigger=2), tmp_path)

    assert rows_per_batch(first) == [4, 2]
    batch = read_journal(spark, growing.path).events.collect()
    assert written(spark, tmp_path) == sorted(row.seq for row in batch) == [1, 2, 3, 4, 5, 6]

    growing.grow(3)
    growing.retire(4)
    with pytest.raises(StreamingQueryException) as raised:
        run(stream(), tmp_path)
    assert (journal_failure(raised.value) or "").startswith(f"{growing.path}: segment-00000004.journal: was removed")

    run(stream(fail_on_data_loss=False), tmp_path)
    assert written(spark, tmp_path) == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12]
