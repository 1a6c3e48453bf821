"""What every table of a database does, whichever database it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.lookup import LookupTable, LookupTableError, PostgresTable, SqliteTable

from ...kit.databases import sqlite_file
from .fakes import LookupFunction, found

Database = Callable[..., LookupTable]
"""Makes a table by statements: a database, if there are any, and a table of that name in it."""

NODES = (
    "CREATE TABLE nodes (node text PRIMARY KEY, rack text, memory int)",
    "INSERT INTO nodes VALUES ('a', 'r1', 1), ('b', NULL, 2)",
)
MANY = (
    "CREATE TABLE many (k int, v int)",
    "INSERT INTO many WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
    " SELECT NULL, i FROM n UNION ALL SELECT i, i * 2 FROM n",
)
ODD_NAME = '"Odd ""name"" %s -- ;"'
CACHES = pytest.mark.parametrize("cache", ["none", "partial", "full"])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")

        def in_postgres(statements: tuple[str, ...], name: str, **options: Any) -> LookupTable:
            server.execute(f"DROP TABLE IF EXISTS nodes, many, {ODD_NAME}", *statements)
            return PostgresTable(server.conninfo, name, **options)

        return in_postgres

    def in_sqlite(statements: tuple[str, ...], name: str, **options: Any) -> LookupTable:
        path = tmp_path / "data.db"
        path.unlink(missing_ok=True)
        return SqliteTable(sqlite_file(path, ";".join(statements)), name, **options)

    return in_sqlite


@CACHES
def test_rows_are_found_by_their_key(database: Database, cache: str) -> None:
    table = database(NODES, "nodes")

    assert found(table, "node", ["a", "b", "c", None], cache=cache) == [[("r1", 1)], [(None, 2)], [], []]


@CACHES
def test_without_other_columns_it_says_which_keys_there_are(database: Database, cache: str) -> None:
    assert found(database(NODES, "nodes", columns=[]), "node", ["a", "c", "b"], cache=cache) == [[()], [], [()]]


def test_only_the_columns_wanted_are_read(database: Database) -> None:
    for columns in (["memory"], ["memory", "node"]):
        assert found(database(NODES, "nodes", columns=columns), "node", ["a"]) == [[(1,)]]


@CACHES
def test_keys_of_several_columns_have_several_rows_and_names_may_be_any(database: Database, cache: str) -> None:
    table = database(
        (
            'CREATE TABLE "Odd ""name"" %s -- ;" ("a b" int, b text, "sel;%" int)',
            'INSERT INTO "Odd ""name"" %s -- ;"'
            " VALUES (1,'x',10), (1,'x',11), (1,'y',12), (2,'x',13), (NULL,'x',14)",
        ),
        'Odd "name" %s -- ;',
    )

    rows = found(table, ["a b", "b"], [(1, "x"), (1, "y"), (2, "y"), (2**40, "x"), (None, "x")], cache=cache)

    assert [sorted(each) for each in rows] == [[(10,), (11,)], [(12,)], [], [], []]


@pytest.mark.parametrize("cache", ["none", "full"])
def test_more_rows_and_keys_than_one_query_takes_or_gives(database: Database, cache: str) -> None:
    """A full load reads on after a chunk whose keys are null."""
    answers = found(database(MANY, "many"), "k", range(5002), cache=cache)

    assert answers == [[], *([(number * 2,)] for number in range(1, 5001)), []]


@pytest.mark.parametrize(
    ("name", "options", "on", "message"),
    [
        ("nods", {}, "node", r"nods' .*does not exist.*[ .]nodes"),
        ("nodes", {}, "host", "no column 'host'; it has node, rack, memory"),
        ("nodes", {"columns": ["cpu"]}, "node", "no column 'cpu'; it has node, rack, memory"),
        ("nodes", {"columns": "rack"}, "node", "columns is 'rack'"),
        ("nodes", {"columns": ["rack", "rack"]}, "node", "'rack' is repeated"),
    ],
)
def test_mistakes_are_reported_in_one_line_on_the_driver(
    database: Database, name: str, options: dict[str, Any], on: str, message: str
) -> None:
    with pytest.raises(LookupTableError, match=message) as raised:
        LookupFunction(database(NODES, name, **options), on)

    assert "\n" not in str(raised.value)
