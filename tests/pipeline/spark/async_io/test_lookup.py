"""Lookup joins inside Spark, with SQLite, a real PostgreSQL server, and a user's function."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession

from pipeline.lookup import (
    FullCache,
    FunctionTable,
    LookupTableError,
    PartialCache,
    PostgresTable,
    SqliteTable,
    TableUnavailableError,
)
from pipeline.spark import call_metrics, lookup_join
from pipeline.streaming import AsyncFunction

from ....kit.databases import sqlite_file
from ....kit.spark import json_lines
from .jobs import EVERY_TYPE, collected

if TYPE_CHECKING:
    from ...postgres_server import PostgresServer

AssertTable = Callable[[DataFrame, str, list[tuple[Any, ...]]], None]

NODES = """
    CREATE TABLE nodes (node TEXT PRIMARY KEY, rack TEXT, memory INTEGER);
    INSERT INTO nodes VALUES ('a', 'r1', 1), ('b', NULL, 2);
"""


@pytest.fixture
def nodes(tmp_path: Path) -> SqliteTable:
    return SqliteTable(sqlite_file(tmp_path / "nodes.db", NODES), "nodes")


@pytest.fixture
def sizes(tmp_path: Path) -> SqliteTable:
    """Whose row of the key 8 does not fit."""
    script = "CREATE TABLE t (k INT, size INT); INSERT INTO t VALUES (7, 1), (8, 'big')"
    return SqliteTable(sqlite_file(tmp_path / "t.db", script), "t")


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    rows = [(1, "a"), (2, "b"), (3, "c"), (4, None), (5, "a")]
    return spark.createDataFrame(rows, "seq int not null, node string").repartition(2)


MATCHED = [(1, "a", "r1", 1), (2, "b", None, 2), (5, "a", "r1", 1)]
UNMATCHED = [(3, "c", None, None), (4, None, None, None)]
SCHEMA = "seq int, node string, rack string, memory bigint"


def test_a_left_join_keeps_every_row(events: DataFrame, nodes: SqliteTable) -> None:
    caches: list[Any] = ["none", PartialCache(max_rows=100), FullCache()]
    tables = {str(cache): lookup_join(events, nodes, "node", cache=cache) for cache in caches}

    for cache, rows in collected(tables).items():
        assert sorted((tuple(row)[:-1] for row in rows), key=repr) == sorted(MATCHED + UNMATCHED, key=repr), cache
        assert ", ".join(f"{name} {kind}" for name, kind in tables[cache].dtypes) == SCHEMA
        assert [field.nullable for field in tables[cache].schema] == [False, True, True, True]


def test_postgres(events: DataFrame, postgres: PostgresServer, assert_table: AssertTable) -> None:
    postgres.execute("DROP TABLE IF EXISTS nodes", *NODES.replace("INTEGER", "bigint").split(";")[:-1])

    joined = lookup_join(events, PostgresTable(postgres.conninfo, "nodes"), "node", cache="partial")

    assert_table(joined, SCHEMA, MATCHED + UNMATCHED)


def test_the_columns_of_the_dataframe_stay_as_they_are(spark: SparkSession, nodes: SqliteTable) -> None:
    """Of types that a table has no values of, and with nulls."""
    df = spark.sql(EVERY_TYPE).selectExpr("*", "element_at(array('a', 'b', 'c'), int(text) + 1) AS node")

    joined = lookup_join(df, nodes, "node", max_batch_size=2).orderBy("big")

    assert joined.drop("rack", "memory").schema == df.schema
    assert repr(joined.drop("rack", "memory").collect()) == repr(df.orderBy("big").collect())


def test_a_row_whose_lookup_has_failed_is_named(spark: SparkSession, sizes: SqliteTable) -> None:
    df = spark.range(20, numPartitions=1).withColumnRenamed("id", "k")

    with pytest.raises(Exception, match=r"the row Row\(k=8\) of partition 0 has failed: .*LookupTableError: .*'big'"):
        lookup_join(df, sizes, "k").collect()


class SlowTable(SqliteTable):
    """No answer comes."""

    def reader(self, schema: Any) -> Any:
        reader = super().reader(schema)
        reader.lookup_columns = partial(asyncio.sleep, 3600)  # type: ignore[assignment]
        return reader


@pytest.mark.usefixtures("nodes")
def test_a_late_lookup_names_its_rows_or_is_captured_in_each(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3, numPartitions=1).selectExpr("id", "'a' AS node")
    late = partial(lookup_join, df, SlowTable(tmp_path / "nodes.db", "nodes"), "node", timeout=0.05)

    message = r"the row Row\(id=0, node='a'\), or one of the 2 after it, of partition 0 has failed: .*Timeout"
    with pytest.raises(Exception, match=message):
        late().collect()
    rows = late(on_error="capture", ordered=True).collect()

    assert [tuple(row.error.input) for row in rows] == [(0, "a"), (1, "a"), (2, "a")]
    assert {row.error.error_class for row in rows} == {"pipeline.streaming.errors.AsyncTimeoutError"}
    assert {(row.id, row.rack) for row in rows} == {(None, None)}


def test_a_captured_row_has_its_columns_of_every_type(spark: SparkSession, tmp_path: Path, nodes: SqliteTable) -> None:
    """A variant that was null failed the task."""
    df = spark.sql(EVERY_TYPE).selectExpr("*", "'a' AS node", "array(variant) AS variants")

    late = lookup_join(df, SlowTable(tmp_path / "nodes.db", "nodes"), "node", timeout=0.05, on_error="capture")

    assert sorted(repr(row.error.input) for row in late.collect()) == sorted(map(repr, df.collect()))


def test_errors_of_a_database_are_captured_in_the_rows_of_their_keys(spark: SparkSession, sizes: SqliteTable) -> None:
    df = spark.range(6, 10, numPartitions=1).withColumnRenamed("id", "k")

    joined = lookup_join(df, sizes, "k", on_error="capture", error_column="failure", ordered=True)

    found = [(row.k, row.size, row.failure and row.failure.input.k) for row in joined.collect()]
    assert joined.columns == ["k", "size", "failure"]
    assert found == [(6, None, None), (7, 1, None), (None, None, 8), (9, None, None)]
    with pytest.raises(ValueError, match="choose another error_column"):
        lookup_join(df, sizes, "k", on_error="capture", error_column="size")


def test_an_inner_join_keeps_the_matches_also_without_columns(
    events: DataFrame, nodes: SqliteTable, tmp_path: Path, assert_table: AssertTable
) -> None:
    keys = SqliteTable(tmp_path / "nodes.db", "nodes", columns=[])

    assert_table(lookup_join(events, nodes, "node", "inner"), SCHEMA, MATCHED)
    assert_table(lookup_join(events, keys, "node", "inner"), "seq int, node string", [row[:2] for row in MATCHED])


def test_a_lookup_join_equals_sparks_own_join(spark: SparkSession, tmp_path: Path) -> None:
    table = [(number % 7, f"k{number % 5}", number) for number in range(50)]
    made = "CREATE TABLE t (a INT, b TEXT, v BIGINT)"
    ours = SqliteTable(sqlite_file(tmp_path / "t.db", made, "INSERT INTO t VALUES (?, ?, ?)", table), "t")
    df = spark.range(100).selectExpr("id", "int(id % 9) AS a", "nullif(concat('k', id % 6), 'k5') AS b")
    right = spark.createDataFrame(table, "a bigint, b string, v bigint")
    for how in ("left", "inner"):
        joined = lookup_join(df, ours, ["a", "b"], how)  # type: ignore[arg-type]

        expected = df.join(right, ["a", "b"], how).select("id", "a", "b", "v")

        assert sorted(joined.collect(), key=repr) == sorted(expected.collect(), key=repr)


def test_a_key_may_have_more_rows_than_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    many = [(number,) for number in range(12_000)]
    made = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (k INT, v INT)", "INSERT INTO t VALUES (1, ?)", many)
    df = spark.range(4, numPartitions=1).selectExpr("id", "id % 2 AS k")

    joined = lookup_join(df, SqliteTable(made, "t"), "k", ordered=True)

    first, second = ([(place, number) for number in range(12_000)] for place in (1, 3))
    assert [(row.id, row.v) for row in joined.collect()] == [(0, None), *first, (2, None), *second]


def test_types_are_kept(spark: SparkSession, postgres: PostgresServer, assert_table: AssertTable) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS things",
        "CREATE TABLE things (id bigint, price numeric(10,2), at timestamptz, seen timestamp, tags text[], raw bytea,"
        " ok boolean, born date, f real)",
        "INSERT INTO things VALUES (1, 2.5, '2026-01-31 12:00+00', '2026-01-31 12:00', '{a,NULL}', '\\x00ff', true,"
        " '2026-01-31', 0.5)",
    )
    df = spark.createDataFrame([(1, {"k": [1]})], "id int, m map<string,array<int>>")

    joined = lookup_join(df, PostgresTable(postgres.conninfo, "things"), "id")

    moment = datetime.datetime(2026, 1, 31, 12)
    (row,) = joined.collect()
    types = "decimal(10,2) timestamp timestamp_ntz array<string> binary boolean date float"
    assert [of for _, of in joined.dtypes][2:] == types.split()
    assert tuple(row)[:3] == (1, {"k": [1]}, Decimal("2.50"))
    assert tuple(row)[4:] == (moment, ["a", None], b"\0\xff", True, datetime.date(2026, 1, 31), 0.5)
    (text,) = joined.selectExpr("string(at)").collect()
    assert tuple(text) == ("2026-01-31 12:00:00",)


def test_timestamps_dates_and_decimals_are_keys(spark: SparkSession, postgres: PostgresServer) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS keyed",
        "CREATE TABLE keyed (at timestamptz, seen timestamp, born date, price numeric(10,2), v int)",
        "INSERT INTO keyed VALUES ('2026-01-31 12:00+00', '2026-01-31 12:00', '2026-01-31', 2.5, 7)",
    )
    df = spark.sql(
        "SELECT timestamp'2026-01-31 14:00:00+02:00' AS at, timestamp_ntz'2026-01-31 12:00:00' AS seen,"
        " date'2026-01-31' AS born, 2.5BD AS price"
    )

    for cache in ("none", "full"):
        joined = lookup_join(
            df, PostgresTable(postgres.conninfo, "keyed"), ["at", "seen", "born", "price"], "inner", cache=cache
        )

        assert [row.v for row in joined.collect()] == [7]


def test_a_function_is_a_table(events: DataFrame, assert_table: AssertTable) -> None:
    async def find(node: str) -> Any:
        return [{"rack": f"rack of {node}"}] if node != "c" else []

    table = FunctionTable(find, key="node string", columns="rack string, tags struct<Big: int>")

    joined = lookup_join(events, table, "node", "inner").select("seq", "rack", "tags")

    expected = [(1, "rack of a", None), (2, "rack of b", None), (5, "rack of a", None)]
    assert_table(joined, "seq int, rack string, tags struct<Big: int>", expected)


def test_a_stream_is_joined(spark: SparkSession, nodes: SqliteTable, tmp_path: Path) -> None:
    json_lines(tmp_path / "in" / "1.json", [{"seq": 1, "node": "a"}, {"seq": 2, "node": "c"}])
    stream = spark.readStream.schema("seq int, node string").json(str(tmp_path / "in"))
    joined = lookup_join(stream, nodes, "node", cache="full")

    writer = joined.writeStream.format("memory").queryName("lookup_joined")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)

    rows = spark.table("lookup_joined").collect()
    assert sorted(map(tuple, rows)) == [(1, "a", "r1", 1), (2, "c", None, None)]


def test_queries_are_repeated_while_a_table_is_away_and_counted_on_the_driver(spark: SparkSession) -> None:
    class Flapping(AsyncFunction[str, Any]):
        def __init__(self) -> None:
            self.asked = 0

        async def async_invoke_batch(self, values: list[str]) -> list[Any]:
            self.asked += 1
            if self.asked <= 3:
                raise TableUnavailableError("away")
            return [(f"rack of {value}",) for value in values]

    table = FunctionTable(Flapping(), key="node string", columns="rack string")
    events = spark.createDataFrame([("a",), ("b",)], "node string").coalesce(1)
    observation = Observation()

    rows = lookup_join(events, table, "node", retry_delay_s=0, metrics=observation).collect()

    metrics = call_metrics(observation)
    assert sorted(rows) == [("a", "rack of a"), ("b", "rack of b")]
    assert (metrics.calls, metrics.retried, metrics.completed, metrics.in_flight) == (5, 3, 2, 0)


def test_a_table_column_named_like_an_input_column_gets_the_suffix(spark: SparkSession, nodes: SqliteTable) -> None:
    df = spark.createDataFrame([("a", 10)], "Node string, Memory int")

    with pytest.raises(LookupTableError, match="suffix"):
        lookup_join(df, nodes, "node")
    joined = lookup_join(df, nodes, "node", suffix="_table")

    assert joined.columns == ["Node", "Memory", "rack", "memory_table"]
    assert joined.collect()[0].memory_table == 1


def test_mistakes_are_reported_in_one_line_on_the_driver(
    spark: SparkSession, events: DataFrame, nodes: SqliteTable, tmp_path: Path, postgres: PostgresServer
) -> None:
    twice = events.select("node", "node")
    for mistake, message in (
        (lambda: lookup_join(events, nodes, "host"), "has no column 'host'; it has seq, node"),
        (lambda: lookup_join(events, nodes, {"node": "host"}), "has no column 'host'; it has node, rack, memory"),
        (lambda: lookup_join(events, SqliteTable(tmp_path / "nodes.db", "n"), "node"), "does not exist"),
        (lambda: lookup_join(events, PostgresTable(postgres.conninfo, "no"), "node"), "does not exist"),
        (lambda: lookup_join(events, nodes, {"seq": "node"}), "'seq' of the input is int, but .* 'node' is string"),
        (lambda: lookup_join(twice, nodes, "node"), "has 2 columns 'node'"),
        (lambda: lookup_join(events, nodes, "node", cache="lru"), "cache is 'lru'"),
    ):
        with pytest.raises(LookupTableError, match=message) as raised:
            mistake()
        assert "\n" not in str(raised.value)
