"""The journal as a data source: options, schemas, and what filters pass over."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from dispatcher import DispatcherError
from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.journal import Problem
from pipeline.spark import journal_failure, read_journal, register_journal
from pipeline.spark.source.journal_source_reading import conditions_of

from ....kit.segment_files import segment_path
from ..data_source import FORMAT, JournalSource, source, table_schema

try:
    from pyspark.sql.datasource import (
        CaseInsensitiveDict,
        DataSourceReader,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        InputPartition,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        Not,
        StringContains,
    )
except ImportError:
    pytest.skip("data sources are given filters from Spark 4.1 on", allow_module_level=True)

SECOND = 1_000_000_000


@pytest.fixture
def spread(journal: Any) -> Path:
    """Three segments, of seq and time 1, 11 and 21."""
    for seq in (1, 11, 21):
        journal.event(seq, "AType", {1: "A", 11: "A and B", 21: "B"}[seq], at=seq)
        journal.move(seq, "RMApp", "a", "NEW START RUNNING", at=seq)
    path: Path = journal.path
    return path


def numbers(partitions: list[InputPartition]) -> list[str]:
    return [Path(part[0]).name[-9:-8] for partition in partitions for part in partition.value]


# -- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "ranges", "values"),
    [
        ([GreaterThan(("seq",), 5), LessThanOrEqual(("seq",), 9)], {"seq": (6, 9)}, {}),
        ([GreaterThanOrEqual(("seq",), 5), GreaterThan(("seq",), 7)], {"seq": (8, None)}, {}),
        (
            [EqualTo(("started_at",), 5), LessThan(("finished_at",), 9)],
            {"started_at": (5, 5), "finished_at": (None, 8)},
            {},
        ),
        ([In(("enqueued_at",), (7, 3, None))], {"enqueued_at": (3, 7)}, {}),
        ([EqualTo(("event_type",), "A"), In(("event_type",), ("A", "B"))], {}, {"event_type": frozenset({"A"})}),
        ([EqualNullSafe(("outcome",), "failed")], {}, {"outcome": frozenset({"failed"})}),
        ([Not(EqualTo(("seq",), 1)), IsNotNull(("seq",)), StringContains(("outcome",), "x")], {}, {}),
        ([EqualTo(("entity",), "a"), EqualTo(("a", "seq"), 1)], {}, {}),
        ([EqualTo(("seq",), None), GreaterThan(("seq",), 1.5)], {}, {}),
        ([EqualTo(("at",), 1), EqualTo(("machine",), "RMApp")], {}, {}),
    ],
)  # fmt: skip
def test_filters_become_conditions_where_a_frame_can_tell(filters: list[Filter], ranges: Any, values: Any) -> None:
    found = conditions_of(filters, EVENTS)

    assert (found.ranges, found.values) == (ranges, values)


def test_transitions_have_columns_of_their_own() -> None:
    found = conditions_of([EqualTo(("valid",), False), GreaterThan(("at",), 4)], TRANSITIONS)

    assert (found.ranges, found.values) == ({"at": (5, None)}, {"valid": frozenset({False})})


def test_segments_are_pruned_and_all_filters_left_to_spark(spread: Path) -> None:
    asked = source(spread, pushFilters="true")
    reader = asked.reader(asked.schema())
    filters = [GreaterThan(("started_at",), 11 * SECOND), EqualTo(("entity",), "a")]

    left = reader.pushFilters(filters)

    assert [id(one) for one in left] == [id(one) for one in filters]
    assert numbers(list(reader.partitions())) == ["3"]
    again = pickle.loads(pickle.dumps(reader))
    assert numbers(again.partitions()) == ["3"]


def damage_third(journal: Path) -> None:
    """Its rows are looked for only where it is not passed over."""
    segment = segment_path(journal, 3)
    segment.write_bytes(segment.read_bytes().replace(b"AType", b"ATypf"))


def test_pushed_filters_give_the_rows_that_spark_alone_would(spread: Path, spark: SparkSession) -> None:
    damage_third(spread)
    register_journal(spark)

    def load(table: str) -> DataFrame:
        reader = spark.read.format(FORMAT).option("pushFilters", "true").option("mode", "FAILFAST")
        return reader.option("table", table).load(str(spread))

    found = load("events").where(f"started_at <= {11 * SECOND}").select("seq").orderBy("seq").collect()
    assert [row.seq for row in found] == [1, 11]
    assert load("events").where("seq between 2 and 12").count() == 1
    assert load("transitions").where(f"at < {11 * SECOND} and machine = 'RMApp'").count() == 1
    with pytest.raises(PySparkException):
        load("events").where("seq > 11").collect()


def test_a_filter_of_one_query_does_not_apply_to_the_next(spread: Path, spark: SparkSession) -> None:
    events = read_journal(spark, spread).events

    assert events.where("seq > 11").count() == 1
    assert events.count() == 3
    both = events.where("seq = 1").join(events.where("seq = 21").withColumnRenamed("seq", "other"), how="cross")
    assert both.count() == 1


def test_rows_are_asked_for_where_no_other_segment_is_read(spread: Path, spark: SparkSession) -> None:
    """A filter on the DataFrame read every segment, and no page said what skips them."""
    damage_third(spread)
    where = {"events": "seq = 11 and event_class = 'AType'", "transitions": "at between 2000000000 and 11000000000"}

    events, transitions = read_journal(spark, spread, columns={"events": ["entity"]}, mode="FAILFAST", where=where)

    assert (events.columns, events.count()) == (["entity"], 1)
    assert events.where("entity is null").union(events).count() == 2  # each scan has the same rows
    assert [row.seq for row in transitions.collect()] == [11]


@pytest.mark.parametrize(
    ("where", "segments", "seqs"),
    [
        ("seq = 11", "2", [11]),
        ("seq > 1 AND seq < 21 and seq <= 30", "2", [11]),
        ("seq in (1, 11)", "12", [1, 11]),
        ("SEQ BETWEEN 11 AND 40", "23", [11, 21]),
        (f"started_at >= {11 * SECOND} and event_type = 'B'", "23", [21]),
        ("event_type = 'B'", "123", [21]),
        ("Event_Type in ('A and B', 'C') and seq >= -1", "123", [11]),
        ("outcome in ('failed', 'handled') and outcome = 'failed'", "123", []),
        ("entity = 'x' and handling_ns > 5 and redelivered == TRUE", "123", [1, 11, 21]),
        ("event_type = 5 and seq = 'a' and outcome = true", "123", [1, 11, 21]),  # Spark would convert these
    ],
)
def test_only_segments_and_frames_that_can_hold_such_a_row_are_read(
    spread: Path, where: str, segments: str, seqs: list[int]
) -> None:
    asked = source(spread, where=where)
    reader = asked.reader(asked.schema())

    partitions = list(reader.partitions())

    assert "".join(numbers(partitions)) == segments
    read = [row["seq"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert read == seqs


def test_views_in_sql_take_the_option_too(spread: Path, spark: SparkSession) -> None:
    damage_third(spread)
    register_journal(spark)
    options = f"path '{spread}', table 'events', mode 'FAILFAST', where 'seq < 20'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW early USING {FORMAT} OPTIONS ({options})")

    assert spark.sql("SELECT seq FROM early WHERE seq = 11").count() == 1
    assert spark.sql("SELECT seq FROM early").count() == 2


@pytest.mark.skipif(hasattr(DataSourceReader, "pushLimit"), reason="this Spark keeps the filters of scans apart")
def test_spark_still_mixes_the_filters_of_queries_where_they_are_not_pushed_by_default(
    spread: Path, spark: SparkSession
) -> None:
    """Once this fails, filters can be pushed by default with this Spark."""
    register_journal(spark)
    events = spark.read.format(FORMAT).option("table", "events").option("pushFilters", "true").load(str(spread))

    assert events.where("seq = 11").count() == 1
    assert events.count() == 1


def test_since_and_until_are_exact_and_skip_segments(spread: Path, spark: SparkSession) -> None:
    damage_third(spread)
    columns = {"events": ["seq"], "transitions": ["entity", "seq"]}

    events, transitions = read_journal(
        spark, spread, columns=columns, mode="FAILFAST", since=2 * SECOND, until=11 * SECOND + 1
    )

    assert (events.columns, [row.seq for row in events.collect()]) == (["seq"], [11])
    assert [row.seq for row in transitions.collect()] == [11]
    assert read_journal(spark, spread, until=11 * SECOND).events.count() == 1


# -- schemas and options -----------------------------------------------------------------------------------------------


def test_a_journal_without_a_closed_segment_is_empty_with_each_release_of_spark(journal: Any) -> None:
    """For a plan without partitions, older ones call `read` with None."""
    reader = source(journal.path).reader(table_schema("events"))

    assert reader.partitions() == []
    for partition in (None, InputPartition(None)):
        assert list(reader.read(partition)) == []


def test_only_the_columns_of_the_users_schema_are_decoded(spread: Path, spark: SparkSession, assert_table: Any) -> None:
    register_journal(spark)

    def reader() -> DataFrameReader:
        return spark.read.format(FORMAT).option("table", "events")

    assert_table(
        reader().schema("event_type string, seq long not null").load(str(spread)),
        "event_type string, seq long",
        [("A", 1), ("A and B", 11), ("B", 21)],
    )
    assert_table(
        reader().option("columns", "seq, outcome").load(str(spread)).where("seq = 1"),
        "seq long, outcome string",
        [(1, "handled")],
    )


def test_an_unknown_column_fails_before_any_task(spread: Path, spark: SparkSession) -> None:
    register_journal(spark)

    with pytest.raises(PySparkException) as raised:
        spark.read.format(FORMAT).option("table", "events").schema("seq long, sate string").load(str(spread)).collect()

    failure = journal_failure(raised.value)
    assert failure.startswith("the journal's table events has no column sate; it has seq, dispatcher, ")


NO_COMPARISON = r"is not a comparison of a column with a value\. Join comparisons with"
NO_COMPARISONS = ["", "seq", "seq = 1 and", "seq = 1 or seq = 2", "not seq = 1", "(seq = 1)", "seq = 1.5", "1 = seq"]
NO_COMPARISONS += ["entity = 'it''s'"]


@pytest.mark.parametrize(
    ("options", "door", "column", "said"),
    [
        (
            {"table": "event"},
            "reader",
            "seq long",
            "option table is 'event'; give it one of: events, transitions, damage",
        ),
        ({"mode": "DROP"}, "streamReader", "seq long", "option mode is 'DROP'; give it one of: PERMISSIVE, FAILFAST"),
        ({"failOnDataLoss": "no"}, "streamReader", "seq long", "failOnDataLoss is 'no'; give it one of: true, false"),
        ({"maxSegmentsPerTrigger": "0"}, "streamReader", "seq long", "Trigger is '0'; give it a number from 1 on"),
        ({"since": "yesterday"}, "reader", "seq long", "the option since is 'yesterday'; give it a time in Unix ns"),
        ({"table": "damage"}, "streamReader", "problem string", "the table damage cannot be streamed"),
        ({"path": "s3://b/j"}, "reader", "seq long", "^s3://b/j: "),
        ({"path": None}, "reader", "seq long", "the path is missing"),
        *(({"where": text}, "reader", "seq long", NO_COMPARISON) for text in NO_COMPARISONS),
        ({}, "reader", "seq timestamp", r"events\.seq has the type bigint, not timestamp\. Read it with its own type"),
    ],
)
def test_an_option_or_a_column_that_cannot_be_is_refused(
    spread: Path, options: dict[str, str | None], door: str, column: str, said: str
) -> None:
    asked = {"path": str(spread), "table": "events", **options}
    given = JournalSource(CaseInsensitiveDict({name: value for name, value in asked.items() if value is not None}))

    with pytest.raises(DispatcherError, match=said):
        getattr(given, door)(StructType().add(*column.split()))


def test_registering_again_does_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    register_journal(spark)
    register_journal(spark)

    assert "previously registered" not in capfd.readouterr().err


def test_damage_is_a_table(spread: Path, spark: SparkSession, assert_table: Any) -> None:
    register_journal(spark)
    segment_path(spread, 2).write_bytes(b"nothing")

    found = spark.read.format(FORMAT).option("table", "damage").load(str(spread))

    name = "segment-00000002.journal"
    assert_table(
        found,
        "segment string, offset long, length long, problem string, events long, transitions long",
        [(name, 0, 7, f"{name}: 7 bytes from byte 0 on hold no intact frame", 19, None)],
    )


def test_a_segment_s_problems_come_in_batches(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all problems at once take several times the memory of the problems."""
    found = [Problem("segment-00000001.journal", at, 1, "is damaged") for at in range(5)]
    monkeypatch.setattr("pipeline.spark.source.journal_source_reading.segment_problems", lambda _: found)
    monkeypatch.setattr("pipeline.spark.source.journal_source_reading._PROBLEMS_IN_A_BATCH", 2)
    reader = source(spread, table="damage").reader(table_schema("damage"))

    batches = list(reader.read(reader.partitions()[1]))

    assert [batch.column("offset").to_pylist() for batch in batches] == [[0, 1], [2, 3], [4]]


# -- Spark Connect -----------------------------------------------------------------------------------------------------


def test_a_journal_is_read_over_connect(spread: Path, connect_mode: Any) -> None:
    events, transitions = read_journal(connect_mode, spread)

    assert sorted(row.seq for row in events.where("seq > 5").collect()) == [11, 21]
    assert transitions.count() == 3
    with pytest.raises(PySparkException) as raised:
        read_journal(connect_mode, spread / "nothing").events.collect()
    assert journal_failure(raised.value) == f"{spread}/nothing: no such journal folder"
