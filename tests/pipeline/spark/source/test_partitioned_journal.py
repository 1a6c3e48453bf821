"""A partitioned journal as Spark tables, and its report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.spark import journal_damage, read_journal, stream_journal, write_report

from ....kit.commands import run_here
from ....partitioned_journals import write_partitioned

SEQS_PER_PARTITION = 10**12


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_partitioned(tmp_path / "journal", 2, 3)


def test_both_tables_have_the_rows_of_all_partitions(spark: SparkSession, journal: Path) -> None:
    events, transitions = read_journal(spark, journal)

    found = [(row["seq"], row["dispatcher"]) for row in events.orderBy("seq").collect()]
    assert found == [*((seq, "rm-0") for seq in (1, 2)), *((SEQS_PER_PARTITION + seq, "rm-1") for seq in (1, 2, 3))]
    assert events.join(transitions, ["seq", "entity"], "inner").count() == 5


def test_damage_of_every_byte_names_its_partition(spark: SparkSession, journal: Path) -> None:
    assert journal_damage(journal, spark=spark) == []
    segment = journal / "partition-1" / "segment-00000001.journal"
    segment.write_bytes(segment.read_bytes()[:-1])
    shutil.rmtree(journal / "partition-0")

    lines = journal_damage(journal, spark=spark)

    assert lines[0] == "partition-0: is missing; an unknown number of rows lost"
    assert lines[1:]
    assert all(line.startswith("partition-1/segment-00000001.journal") for line in lines[1:])


def test_a_report_counts_all_partitions(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    written = write_report(spark, journal, tmp_path / "report")

    assert (written.events, written.transitions, written.unknown_transitions) == (5, 5, 0)
    assert written.damage == ()
    assert written.span_s == 5.0


def test_a_stream_has_the_rows_of_all_partitions_and_goes_on_where_it_stopped(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    events = stream_journal(spark, journal).events

    def read_on() -> list[int]:
        """The seqs that a query finds which goes on where the one before it stopped."""
        writing = events.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return sorted(row["seq"] for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    first = [1, 2, *(SEQS_PER_PARTITION + seq for seq in (1, 2, 3))]
    assert read_on() == first
    write_partitioned(tmp_path / "other", 1, 1, 1)
    for name in ("partition-2", "partitions.json"):
        (tmp_path / "other" / name).rename(journal / name)

    assert read_on() == [*first, 2 * SEQS_PER_PARTITION + 1]


def test_a_followed_report_asks_for_one_partition(journal: Path) -> None:
    done = run_here("report", journal, "--follow")

    assert done.code == 2
    assert f"it is partitioned; follow one partition, such as {journal}/partition-0" in done.err
