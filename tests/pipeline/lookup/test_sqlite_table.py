"""SQLite files as lookup tables; what all databases do is in test_table_contract."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.lookup import LookupTableError, SqliteTable, TableUnavailableError

from ...kit import databases, tries
from .fakes import LookupFunction, found, in_loop, opened

NODES = """
    CREATE TABLE nodes (node TEXT PRIMARY KEY, rack TEXT, memory INTEGER);
    INSERT INTO nodes VALUES ('a', 'r1', 1), ('b', NULL, 2);
"""
ALL_TYPES = """
    CREATE TABLE things (
        id INTEGER PRIMARY KEY, name VARCHAR(10), size BIGINT, share REAL, raw BLOB, ok BOOLEAN,
        born DATE, seen DATETIME, price DECIMAL(10,2)
    );
    INSERT INTO things VALUES (1, 'x', 9007199254740993, 1, x'00ff', 1, '2026-01-31', '2026-01-31 12:00:00.5', 2.345);
    INSERT INTO things (id) VALUES (2);
"""
Make = Callable[..., Path]


@pytest.mark.parametrize("cache", ["none", "full"])
def test_values_have_the_types_that_are_declared(sqlite_file: Make, cache: str) -> None:
    table = SqliteTable(sqlite_file(ALL_TYPES), "things")
    moment = datetime.datetime(2026, 1, 31, 12, 0, 0, 500_000)

    schema = table.read_schema(["id"])
    full, empty = found(table, "id", [1, 2], cache=cache)

    assert [column.type for column in schema.values] == [
        *("string", "bigint", "double", "binary", "boolean", "date", "timestamp_ntz", "decimal(10,2)")
    ]
    expected = ("x", 2**53 + 1, 1.0, b"\0\xff", True, datetime.date(2026, 1, 31), moment, Decimal("2.35"))
    assert (full, empty) == ([expected], [(None,) * 8])
    assert [type(value) for value in full[0]] == [type(value) for value in expected]


@pytest.mark.parametrize(("column", "key"), [("price", Decimal("2.50")), ("born", datetime.date(2026, 1, 31))])
@pytest.mark.parametrize("cache", ["none", "full"])
def test_decimals_and_dates_can_be_keys(sqlite_file: Make, column: str, key: Any, cache: str) -> None:
    path = sqlite_file(
        "CREATE TABLE t (price DECIMAL(10,2), born DATE, v INT); INSERT INTO t VALUES (2.5, '2026-01-31', 7);"
    )

    assert found(SqliteTable(path, "t", ["v"]), column, [key], cache=cache) == [[(7,)]]


def test_the_column_s_own_collation_compares(sqlite_file: Make) -> None:
    path = sqlite_file("CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v INT); INSERT INTO t VALUES ('Abc', 1);")

    assert found(SqliteTable(path, "t"), "k", ["aBC", "ABC"]) == [[(1,)], [(1,)]]


def test_a_view_may_need_explicit_types(sqlite_file: Make) -> None:
    path = sqlite_file(NODES + "CREATE VIEW v AS SELECT node, memory * 2 AS twice FROM nodes;")

    with pytest.raises(LookupTableError, match=r"'twice' is declared without a type.*types="):
        SqliteTable(path, "v").read_schema(["node"])
    assert found(SqliteTable(path, "v", types={"twice": "int"}), "node", ["b"]) == [[(4,)]]


@settings(max_examples=tries(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["x", "y", "\0", "ä"]) | st.none(), st.integers()),
        max_size=12,
    ),
    keys=st.lists(
        st.tuples(st.integers(0, 4) | st.none(), st.sampled_from(["x", "y", "z", "\0", "ä"]) | st.none()), max_size=8
    ),
    cache=st.sampled_from(["none", "partial", "full"]),
)
def test_it_is_a_join(tmp_path: Path, rows: list[Any], keys: list[Any], cache: str) -> None:
    path = tmp_path / "join.db"
    path.unlink(missing_ok=True)
    stored = [(a, b, str(v)) for a, b, v in rows]
    databases.sqlite_file(path, "CREATE TABLE t (a INT, b TEXT, v TEXT)", "INSERT INTO t VALUES (?, ?, ?)", stored)

    answers = found(SqliteTable(path, "t"), ["a", "b"], keys, cache=cache)

    expected = [sorted((str(v),) for a, b, v in rows if (a, b) == key and None not in key) for key in keys]
    assert [sorted(each) for each in answers] == expected


@pytest.mark.parametrize("cache", ["none", "partial", "full"])
def test_a_value_of_another_type_fails_its_key_alone(sqlite_file: Make, cache: str) -> None:
    """With a full cache, it failed all keys of the table."""
    table = SqliteTable(sqlite_file(NODES + "UPDATE nodes SET memory = 'much' WHERE node = 'b';"), "nodes")

    first, second = found(table, "node", ["a", "b"], cache=cache)

    assert first == [("r1", 1)]
    assert isinstance(second, LookupTableError)
    assert "'memory' is bigint, but the row with node = 'b' holds 'much'" in str(second)


@pytest.mark.parametrize("cache", ["none", "partial", "full"])
def test_a_text_that_is_not_utf8_fails_its_key_alone(sqlite_file: Make, cache: str) -> None:
    """SQLite's driver failed the whole query."""
    path = sqlite_file(NODES + "UPDATE nodes SET rack = CAST(x'e4' AS TEXT) WHERE node = 'b';")

    first, second = found(SqliteTable(path, "nodes"), "node", ["a", "b"], cache=cache)

    assert first == [("r1", 1)]
    assert isinstance(second, LookupTableError)
    assert r"'rack' is string, but the row with node = 'b' holds b'\xe4'" in str(second)


@pytest.mark.parametrize("cache", ["none", "full"])
def test_a_row_whose_key_is_of_another_type_matches_nothing(sqlite_file: Make, cache: str) -> None:
    path = sqlite_file("CREATE TABLE t (k INT, v INT); INSERT INTO t VALUES (1, 2), ('one', 3), (NULL, 4);")

    assert found(SqliteTable(path, "t"), "k", [1, 2, None], cache=cache) == [[(2,)], [], []]


def test_a_query_that_fails_for_some_keys_is_asked_by_halves(sqlite_file: Make) -> None:
    path = sqlite_file(
        "CREATE TABLE t (k INT PRIMARY KEY, about TEXT); INSERT INTO t VALUES (1, '{}'), (2, 'no json'), (3, '[]');"
        "CREATE VIEW v AS SELECT k, json_type(about) AS kind FROM t;"
    )

    first, second, third = found(SqliteTable(path, "v", types={"kind": "string"}), "k", [1, 2, 3])

    assert (first, third) == ([("object",)], [("array",)])
    assert "malformed JSON" in str(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": {"cpu": "int"}}, "types names 'cpu'"),
        ({"types": {"rack": "text"}}, "'text' is not a column type"),
        ({"types": {"rack": "array<int>"}}, "'rack' cannot be array<int>: SQLite does not"),
        ({"types": {"node": "timestamp"}}, "can be written in several ways"),
        ({"pool_size": 0}, "pool_size is 0"),
    ],
)
def test_mistakes_in_types_and_numbers_are_reported_in_one_line(
    sqlite_file: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LookupTableError, match=message) as raised:
        LookupFunction(SqliteTable(sqlite_file(NODES), "nodes", **options), "node")

    assert "\n" not in str(raised.value)


def test_a_file_that_is_missing_or_not_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LookupTableError, match="the file does not exist"):
        SqliteTable(tmp_path / "missing.db", "t").read_schema(["k"])
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(LookupTableError, match="not a database"):
        SqliteTable(tmp_path / "text.db", "t").read_schema(["k"])


def test_a_relative_path_is_taken_from_where_the_table_was_made(
    sqlite_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sqlite_file(NODES)
    monkeypatch.chdir(path.parent)
    table = SqliteTable(path.name, "nodes")
    monkeypatch.chdir("/")

    assert found(table, "node", ["a"]) == [[("r1", 1)]]


def test_the_file_cannot_be_written_to(sqlite_file: Make) -> None:
    connection = SqliteTable(sqlite_file(NODES), "nodes").connect()

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM nodes")
    connection.close()


def test_a_key_without_an_index_logs_a_warning(sqlite_file: Make, caplog: pytest.LogCaptureFixture) -> None:
    table = SqliteTable(sqlite_file(NODES), "nodes")

    with caplog.at_level(logging.WARNING):
        table.read_schema(["node"])
        assert caplog.text == ""
        table.read_schema(["rack"])

    assert "has no index on rack" in caplog.text


@in_loop
async def test_closing_ends_an_endless_query(sqlite_file: Make) -> None:
    path = sqlite_file(
        "CREATE VIEW endless AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k FROM n;"
    )
    function = LookupFunction(SqliteTable(path, "endless", types={"k": "bigint"}), "k", input_columns=["k"])
    async with opened(function):
        asking = [asyncio.create_task(function.async_invoke((number,))) for number in range(8)]
        await asyncio.sleep(0)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)


def test_a_file_that_may_not_be_read_is_no_outage(sqlite_file: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    table = SqliteTable(sqlite_file(NODES), "nodes")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read any file

    with pytest.raises(LookupTableError, match="this user may not read the file") as raised:
        table.read_schema(["node"])

    assert not isinstance(raised.value, TableUnavailableError)


@in_loop
async def test_a_locked_file_is_worth_a_retry(sqlite_file: Make) -> None:
    path = sqlite_file(NODES)
    table = SqliteTable(path, "nodes", busy_timeout_s=0.01)
    function = LookupFunction(table, "node", input_columns=["node"], max_retries=0)
    async with opened(function):
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN EXCLUSIVE")
            with pytest.raises(TableUnavailableError, match="locked"):
                await function.async_invoke(("a",))
        assert await function.async_invoke(("a",)) == [("a", "r1", 1)]
