"""Lookup joins of Arrow batches give what joins of single rows give. Needs no Spark session."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pipeline.lookup import PostgresTable, SqliteTable
from pipeline.spark.async_io.lookup_batches import BatchLookup, RowBatch, distinct_rows

from ....kit.databases import sqlite_file
from ...lookup.fakes import LookupFunction, invoke, opened, run
from .task_rows import OutputColumns, values_of

if TYPE_CHECKING:
    from ...postgres_server import PostgresServer

CACHES = ["none", "partial", "full"]
TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}


def type_of(name: str) -> T.DataType:
    if name.startswith("array<"):
        return T.ArrayType(type_of(name.removeprefix("array<").removesuffix(">")))
    if name.startswith("decimal"):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return T.DecimalType(int(precision), int(scale))
    return TYPES[name]


def batch_lookup(function: LookupFunction, schema: T.StructType, on_error: Any) -> BatchLookup:
    added = T.StructType([T.StructField(each.name, type_of(each.type)) for each in function.output_columns])
    columns = OutputColumns(
        T.StructType([*schema.fields, *added.fields]), schema, error_name="error" if on_error == "capture" else None
    )
    return BatchLookup(function, columns, added, "UTC", on_error)


def joined(
    table: Any, schema: T.StructType, rows: Sequence[Any], on_error: str = "fail", **options: Any
) -> list[tuple[Any, ...]]:
    """The rows that come out of one batch."""
    function = LookupFunction(table, schema.names, input_columns=schema.names, **options)
    lookup = batch_lookup(function, schema, on_error)
    arrays = [
        pa.array(values, values_of(field.dataType).arrow)
        for field, values in zip(schema.fields, zip(*rows, strict=True), strict=True)
    ]

    batches = joined_batches(lookup, pa.RecordBatch.from_arrays(arrays, schema.names), schema)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def joined_batches(lookup: BatchLookup, batch: pa.RecordBatch, schema: T.StructType) -> list[pa.RecordBatch]:
    async def scenario() -> list[pa.RecordBatch]:
        async with opened(lookup):  # type: ignore[arg-type]
            return await lookup.async_invoke(RowBatch(batch, schema))

    return run(scenario())


def one_by_one(table: Any, schema: T.StructType, rows: Sequence[Any], **options: Any) -> list[tuple[Any, ...]]:
    function = LookupFunction(table, schema.names, input_columns=schema.names, **options)
    return [row for results in invoke(function, rows) for row in _rows(results)]


def _rows(results: list[Any] | Exception) -> Iterable[tuple[Any, ...]]:
    assert not isinstance(results, Exception), results
    return results


def same(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """In a form in which NaN equals NaN, and a moment itself in another zone."""

    def form(value: Any) -> Any:
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC).isoformat()
        return [form(each) for each in value] if isinstance(value, list) else value

    return [repr([form(value) for value in row]) for row in rows]


KEY = T.StructType().add("k", "long")
ALL_TYPES = (
    "small smallint, number int, big bigint, f real, d double precision, price numeric(10,2), free numeric, ok boolean,"
    " raw bytea, born date, seen timestamp, at timestamptz, tags text[], grid int[], sums numeric(6,2)[],"
    " moments timestamptz[], about jsonb, took interval, id uuid, name varchar(9), padded char(4)"
)


@pytest.mark.long
@pytest.mark.parametrize("cache", CACHES)
def test_all_types_of_postgresql_come_out_as_they_do_row_by_row(postgres: PostgresServer, cache: str) -> None:
    pytest.importorskip("psycopg")
    postgres.execute(
        "DROP TABLE IF EXISTS every",
        f"CREATE TABLE every (k bigint, {ALL_TYPES})",
        "INSERT INTO every VALUES (1, -32768, 2147483647, -9223372036854775808, 'NaN', '-Infinity', 99999999.99, 1e-18,"
        " true, '\\x00ff', '0001-01-01', '9999-12-31 23:59:59.999999', '2026-10-25 02:30+02', '{a,NULL,ä}', '{1,NULL}'"
        ", '{1.50,NULL}', '{2026-01-01,NULL}', '{\"x\": 1}', '1 hour', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',"
        " 'ü', 'x')",
        "INSERT INTO every VALUES (1, 0, 0, 0, -0.0, 1e308, 0, 123456.789, false, '', '2026-01-31', '0001-01-01',"
        " '2026-10-25 02:30+01', '{}', '{}', '{}', '{}', 'null', '-1 day', NULL, '', '')",
        "INSERT INTO every (k) VALUES (2)",
    )
    table = PostgresTable(postgres.conninfo, "every")
    rows = [(key,) for key in (1, 2, 3, None, 1)]

    expected = one_by_one(table, KEY, rows, cache=cache)

    assert same(joined(table, KEY, rows, cache=cache)) == same(expected)
    assert len(expected) == 7


@pytest.mark.parametrize("cache", CACHES)
def test_all_types_of_sqlite_come_out_as_they_do_row_by_row(tmp_path: Path, cache: str) -> None:
    script = """
        CREATE TABLE t (k INTEGER, name VARCHAR(10), size BIGINT, share REAL, raw BLOB, ok BOOLEAN,
            born DATE, seen DATETIME, price DECIMAL(10,2));
        INSERT INTO t VALUES
            (1, 'ä', 9007199254740993, 1, x'00ff', 1, '2026-01-31', '2026-01-31 12:00:00.5', 2.345);
        INSERT INTO t (k) VALUES (1), (2);
    """
    table = SqliteTable(sqlite_file(tmp_path / "t.db", script), "t")
    rows = [(key,) for key in (2, 1, None, 3, 1)]

    expected = one_by_one(table, KEY, rows, cache=cache)

    assert same(joined(table, KEY, rows, cache=cache)) == same(expected)
    assert len(expected) == 7


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored=st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["x", "y", ""]), st.integers(0, 9))),
    rows=st.lists(
        st.tuples(st.integers(0, 4) | st.none(), st.sampled_from(["x", "y", "z", ""]) | st.none()), min_size=1
    ),
    cache=st.sampled_from(CACHES),
    how=st.sampled_from(["left", "inner"]),
)
def test_a_batch_is_joined_as_its_rows_are(tmp_path: Path, stored: Any, rows: Any, cache: str, how: Any) -> None:
    path = tmp_path / "join.db"
    path.unlink(missing_ok=True)
    sqlite_file(path, "CREATE TABLE t (a INT, b TEXT, v INT)", "INSERT INTO t VALUES (?, ?, ?)", stored)
    table = SqliteTable(path, "t")
    schema = T.StructType().add("a", "long").add("b", "string")

    assert joined(table, schema, rows, cache=cache, how=how) == one_by_one(table, schema, rows, cache=cache, how=how)


@pytest.fixture
def half_bad(tmp_path: Path) -> SqliteTable:
    """Of the keys 0 to 9, the rows of 3 and 7 cannot be read."""
    rows = [(k, "bad" if k in (3, 7) else k) for k in range(10)]
    made = "CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER)"
    sqlite_file(tmp_path / "bad.db", made, "INSERT INTO t VALUES (?, ?)", rows)
    return SqliteTable(tmp_path / "bad.db", "t")


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("how", ["left", "inner"])
def test_only_the_rows_of_a_failed_key_are_captured(half_bad: SqliteTable, cache: str, how: Any) -> None:
    """With on_error="capture", each row was looked up by itself; with a full cache, all of them failed."""
    rows = joined(half_bad, KEY, [(3,), (1,), (7,), (3,), (99,), (None,)], "capture", cache=cache, how=how)

    unmatched = [(99, None, None), (None, None, None)] if how == "left" else []
    assert [row for row in rows if row[2] is None] == [(1, 1, None), *unmatched]
    failed = [(place, *row[:2], row[2]["input"]) for place, row in enumerate(rows) if row[2] is not None]
    assert failed == [(place, None, None, {"k": key}) for place, key in ((0, 3), (2, 7), (3, 3))]
    error = rows[0][2]
    assert error["error_class"] == "pipeline.lookup.errors.LookupTableError"
    assert "'n' is bigint, but the row with k = 3 holds 'bad'" in error["message"]
    assert error["attempts"] == 1
    assert error["time_spent_ms"] >= 0


@pytest.mark.parametrize("cache", CACHES)
def test_the_rows_of_a_failed_key_are_dropped(half_bad: SqliteTable, cache: str) -> None:
    assert joined(half_bad, KEY, [(3,), (1,), (7,), (99,)], "drop", cache=cache) == [(1, 1), (99, None)]


@pytest.mark.parametrize("cache", CACHES)
def test_a_value_that_the_column_does_not_take_fails_its_key_alone(tmp_path: Path, cache: str) -> None:
    sqlite_file(
        tmp_path / "t.db", "CREATE TABLE t (k INT, n INT, f REAL); INSERT INTO t VALUES (1, 1, 1), (2, 1e20, 2)"
    )
    table = SqliteTable(tmp_path / "t.db", "t")

    first, second = joined(table, KEY, [(1,), (2,)], "capture", cache=cache)

    assert first == (1, 1, 1.0, None)
    assert "column n" in second[3]["message"]


@pytest.mark.long
def test_a_key_that_python_does_not_have_fails_its_row_alone(postgres: PostgresServer) -> None:
    """A timestamp that a zone moves out of the years 1 to 9999 failed the task with an OverflowError."""
    pytest.importorskip("psycopg")
    postgres.execute(
        "DROP TABLE IF EXISTS moments",
        "CREATE TABLE moments (k timestamptz, v int)",
        "INSERT INTO moments VALUES ('1970-01-01 00:00+00', 7)",
    )
    schema = T.StructType().add("k", "timestamp")
    far_us = 253_402_300_800_000_000  # the begin of the year 10000

    lookup = batch_lookup(
        LookupFunction(PostgresTable(postgres.conninfo, "moments"), "k", input_columns=["k"]), schema, "capture"
    )
    keys = pa.array([0, far_us, 0], pa.timestamp("us", "America/New_York"))

    (batch,) = joined_batches(lookup, pa.RecordBatch.from_arrays([keys], ["k"]), schema)

    assert batch.column("v").to_pylist() == [7, None, 7]
    assert (
        "'k' is timestamp, and a value of it is not of the years 1 to 9999"
        in batch.column("error").field("message")[1].as_py()
    )


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([pa.array([5, 3, 5, 9])], ([1, 0, 1, 2], [[3, 5, 9]])),
        ([pa.array([5, None, 5])], ([0, -1, 0], [[5]])),
        ([pa.array(["b", "a", None, "b"])], ([0, 1, -1, 0], [["b", "a"]])),
        ([pa.array([1, 1, 2, None]), pa.array(["x", "x", None, "x"])], ([0, 0, -1, -1], [[1], ["x"]])),
        ([pa.array([1, 2, 1]), pa.array(["x", "x", "y"])], ([0, 2, 1], [[1, 1, 2], ["x", "y", "x"]])),
        ([pa.array([None, None], pa.int64())], ([-1, -1], [[]])),
        ([pa.array([], pa.int64())], ([], [[]])),
        ([pa.array([], pa.int64()), pa.array([], pa.string())], ([], [[], []])),
    ],
)
def test_rows_are_numbered_by_their_distinct_keys(columns: list[Any], expected: tuple[list[int], list[Any]]) -> None:
    codes, values = distinct_rows(columns)

    assert (codes.tolist(), [each.to_pylist() for each in values]) == expected


def test_equal_keys_in_several_forms_are_one_key(tmp_path: Path) -> None:
    sqlite_file(tmp_path / "t.db", "CREATE TABLE t (k REAL, v INT); INSERT INTO t VALUES (0, 1)")
    schema = T.StructType().add("k", "double")

    rows = joined(SqliteTable(tmp_path / "t.db", "t"), schema, [(0.0,), (-0.0,), (math.nan,), (math.nan,)])

    assert [row[1] for row in rows] == [1, 1, None, None]


def test_large_rows_come_out_in_several_batches(tmp_path: Path) -> None:
    sqlite_file(tmp_path / "t.db", "CREATE TABLE t (k INT, v BLOB); INSERT INTO t VALUES (1, zeroblob(20000000))")
    function = LookupFunction(SqliteTable(tmp_path / "t.db", "t"), "k", input_columns=["k"])
    lookup = batch_lookup(function, KEY, "fail")

    found = joined_batches(lookup, pa.record_batch({"k": [1] * 8}), KEY)

    assert [batch.num_rows for batch in found] == [3, 3, 2]
