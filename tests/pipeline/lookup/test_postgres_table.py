"""PostgreSQL tables as lookup tables, on a real server; what all databases do is in test_table_contract."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import math
import pickle
import traceback
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from pipeline.lookup import LookupTableError, PostgresTable, TableUnavailableError
from pipeline.streaming import ordered_wait

from ...kit import until
from ..postgres_server import PASSWORD
from .fakes import TIMEOUT_S, HandClock, LookupFunction, found, in_loop, opened, settle

if TYPE_CHECKING:
    from ..postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'central-dispatcher[postgres]'")

pytestmark = pytest.mark.long

NODES = (
    "DROP TABLE IF EXISTS nodes",
    "CREATE TABLE nodes (node text PRIMARY KEY, rack text, memory int)",
    "INSERT INTO nodes VALUES ('a', 'r1', 1), ('b', NULL, 2)",
)

Nodes = Callable[..., PostgresTable]


@pytest.fixture
def nodes(postgres: PostgresServer) -> Callable[..., PostgresTable]:
    postgres.execute(*NODES)
    return lambda **options: PostgresTable(postgres.conninfo, "nodes", **options)


def test_values_have_types_that_spark_knows(postgres: PostgresServer) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS things",
        "DROP DOMAIN IF EXISTS cents",
        "CREATE DOMAIN cents AS numeric(6,2)",
        "CREATE TABLE things (id bigint PRIMARY KEY, small smallint, f real, d double precision, price numeric(10,2),"
        " free numeric, owed cents, ok boolean, raw bytea, born date, seen timestamp, at timestamptz, tags text[],"
        " grid int[], about jsonb, took interval)",
        "INSERT INTO things VALUES (1, 2, 0.5, 0.25, 2.5, 1.0/3, 9.99, true, '\\x00ff', '2026-01-31',"
        " '2026-01-31 12:00', '2026-01-31 12:00+02', '{a,NULL}', '{1,2}', '{\"x\": 1}', '1 hour')",
        "INSERT INTO things (id) VALUES (2)",
    )
    table = PostgresTable(postgres.conninfo, "public.things")

    schema = table.read_schema(["id"])
    (full,), (empty,) = found(table, "id", [1, 2])

    assert {column.name: column.type for column in schema.values} == {
        "small": "smallint",
        "f": "float",
        "d": "double",
        "price": "decimal(10,2)",
        "free": "decimal(38,18)",
        "owed": "decimal(6,2)",
        "ok": "boolean",
        "raw": "binary",
        "born": "date",
        "seen": "timestamp_ntz",
        "at": "timestamp",
        "tags": "array<string>",
        "grid": "array<int>",
        "about": "string",
        "took": "string",
    }
    assert full == (
        *(2, 0.5, 0.25, Decimal("2.50"), Decimal("0.333333333333333333"), Decimal("9.99"), True, b"\0\xff"),
        datetime.date(2026, 1, 31),
        datetime.datetime(2026, 1, 31, 12),
        datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC),
        *(["a", None], [1, 2], '{"x": 1}', "01:00:00"),
    )
    assert empty == (None,) * 15


@pytest.mark.parametrize(
    ("native", "stored", "key", "other"),
    [
        ("smallint", "7", 7, 2**40),
        ("numeric(10,2)", "2.5", Decimal("2.50"), Decimal("2.51")),
        ("numeric", "5.0", Decimal("5E0"), Decimal("5.01")),
        ("real", "0.5", 0.5, 0.1),
        ("float8", "NaN", -math.nan, 0.0),
        ("float8", "0", -0.0, math.nan),
        ("boolean", "true", True, False),
        ("varchar(5)", "ab", "ab", "a" * 9),
        ("char(5)", "ab", "ab", "ab   x"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "no uuid"),
        ("mood", "fine", "fine", "unheard of"),
        ("bytea", "\\x00ff", b"\0\xff", b""),
        ("date", "2026-01-31", datetime.date(2026, 1, 31), datetime.date(1, 1, 1)),
        ("timestamp", "2026-01-31 12:00", datetime.datetime(2026, 1, 31, 12), datetime.datetime(2026, 1, 31, 13)),
        (
            "timestamptz",
            "2026-01-31 12:00+00",
            datetime.datetime(2026, 1, 31, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        ),
    ],
)
@pytest.mark.parametrize("cache", ["none", "full"])
def test_keys_of_many_types(
    postgres: PostgresServer, native: str, stored: str, key: Any, other: Any, cache: str
) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS keyed",
        "DROP TYPE IF EXISTS mood",
        "CREATE TYPE mood AS ENUM ('fine', 'sad')",
        f"CREATE TABLE keyed (k {native}, v int)",
        f"INSERT INTO keyed VALUES ('{stored}', 1), (NULL, 2)",
    )
    table = PostgresTable(postgres.conninfo, "keyed")

    assert found(table, "k", [key, other, None], cache=cache) == [[(1,)], [], []]


@in_loop
async def test_the_sessions_are_read_only(postgres: PostgresServer) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS log CASCADE",
        "CREATE TABLE log (k int)",
        "CREATE OR REPLACE FUNCTION written() RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES (1) RETURNING k'",
        "CREATE OR REPLACE VIEW writing AS SELECT 1 AS k, written() AS v",
    )
    function = LookupFunction(PostgresTable(postgres.conninfo, "writing"), "k", input_columns=["k"])
    async with opened(function):
        with pytest.raises(LookupTableError, match="read-only"):
            await function.async_invoke((1,))


def test_many_batches_share_a_few_connections(postgres: PostgresServer, nodes: Nodes) -> None:
    function = LookupFunction(nodes(max_connections=2), "node", input_columns=["n", "node"])
    values = [(number, "abc"[number % 3]) for number in range(3000)]

    results = list(ordered_wait(values, function, timeout=TIMEOUT_S, max_batch_size=20))

    racks = {"a": ("r1", 1), "b": (None, 2), "c": (None, None)}
    assert results == [(number, node, *racks[node]) for number, node in values]


@in_loop
async def test_a_connection_lost_while_idle_is_replaced_unnoticed(postgres: PostgresServer, nodes: Nodes) -> None:
    function = LookupFunction(nodes(), "node", input_columns=["node"])
    async with opened(function):
        await asyncio.gather(*(function.async_invoke(("a",)) for _ in range(8)))
        postgres.stop()
        postgres.start()
        answers = await asyncio.gather(*(function.async_invoke(("a",)) for _ in range(8)))
    assert answers == [[("a", "r1", 1)]] * 8
    assert function.own_retries() == function.metrics.retries >= 1


@in_loop
async def test_a_stopped_server_is_reported_as_unavailable_until_it_restarts(
    postgres: PostgresServer, nodes: Nodes
) -> None:
    function = LookupFunction(nodes(), "node", input_columns=["node"], max_retries=0)
    async with opened(function):
        await function.async_invoke(("a",))
        postgres.stop()
        try:
            # Refused, or cut while the server ends.
            with pytest.raises(TableUnavailableError, match="connection to server at"):
                await function.async_invoke(("a",))
        finally:
            postgres.start()
        assert await function.async_invoke(("a",)) == [("a", "r1", 1)]


@in_loop
async def test_a_password_that_was_changed_is_not_tried_again(postgres: PostgresServer, nodes: Nodes) -> None:
    nodes()
    postgres.execute(
        "DROP ROLE IF EXISTS looker",  # whose right has gone with the table
        "CREATE ROLE looker LOGIN PASSWORD 'first word'",
        "GRANT SELECT ON nodes TO looker",
    )
    conninfo = postgres.conninfo.replace("user=postgres", "user=looker").replace(PASSWORD, "'first word'")
    function = LookupFunction(PostgresTable(conninfo, "nodes"), "node", input_columns=["node"], max_retries=3)
    postgres.execute("ALTER ROLE looker PASSWORD 'second word'")

    async with opened(function):
        with pytest.raises(LookupTableError, match="password authentication failed") as raised:
            await function.async_invoke(("a",))

    assert not isinstance(raised.value, TableUnavailableError)
    assert (function.metrics.retries, function.metrics.load_failures) == (0, 1)


def test_retries_outlast_a_restart_of_the_server(postgres: PostgresServer, nodes: Nodes) -> None:
    class StartingClock(HandClock):
        """Restarts the server during the first pause."""

        async def sleep(self, delay_s: float) -> None:
            await asyncio.to_thread(postgres.start)

    function = LookupFunction(nodes(), "node", input_columns=["node"], max_retries=1, clock=StartingClock())
    one_batch = {"max_batch_size": 2, "linger_ms": 60_000}
    postgres.stop()
    try:
        results = list(ordered_wait([("a",), ("b",)], function, timeout=TIMEOUT_S, **one_batch))
    finally:
        postgres.start()

    assert results == [("a", "r1", 1), ("b", None, 2)]
    assert (function.metrics.retries, function.metrics.load_failures) == (1, 0)


class Locked:
    """Within `with`, readers of the table wait."""

    def __init__(self, postgres: PostgresServer, table: str) -> None:
        import psycopg

        self._connection = psycopg.connect(postgres.conninfo)
        self._connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())

    def await_reader(self) -> None:
        until(lambda: self._connection.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall(), "a waiting reader")

    def __enter__(self) -> Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@in_loop
async def test_a_cancelled_lookup_releases_its_turn(postgres: PostgresServer, nodes: Nodes) -> None:
    function = LookupFunction(nodes(max_connections=1), "node", input_columns=["node"])
    async with opened(function):
        with Locked(postgres, "nodes") as locked:
            cancelled = asyncio.create_task(function.async_invoke(("a",)))
            await asyncio.to_thread(locked.await_reader)
            waiting = asyncio.create_task(function.async_invoke(("b",)))
            await settle()
            cancelled.cancel()
            await asyncio.wait([cancelled])

        assert await waiting == [("b", None, 2)]
        assert cancelled.cancelled()


@in_loop
async def test_an_answer_that_takes_too_long_times_out(postgres: PostgresServer, nodes: Nodes) -> None:
    table = nodes(max_connections=1, query_timeout_s=0.5)
    function = LookupFunction(table, "node", input_columns=["node"], max_retries=0)
    async with opened(function):
        no_answer = r"no answer within 0.5 s \(query_timeout_s\)"
        with Locked(postgres, "nodes"), pytest.raises(TableUnavailableError, match=no_answer):
            await function.async_invoke(("a",))

        for _ in range(100):  # a busy server may take as long for any answer
            with contextlib.suppress(TableUnavailableError):
                assert await function.async_invoke(("a",)) == [("a", "r1", 1)]
                return
        pytest.fail("the table does not answer after the lock is released")


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("private.nodes", {}, "'private.nodes' .* does not exist"),
        ("nodes", {"schema": "private"}, "'private.nodes' .* does not exist"),
        ("nodes", {"max_connections": 0}, "max_connections is 0"),
        ("nodes", {"query_timeout_s": 0}, "query_timeout_s is 0"),
    ],
)
def test_mistakes_in_schemas_and_numbers_are_reported_in_one_line(
    postgres: PostgresServer, nodes: Nodes, table: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LookupTableError, match=message) as raised:
        LookupFunction(PostgresTable(postgres.conninfo, table, **options), "node")

    assert "\n" not in str(raised.value)


def test_a_missing_read_permission_is_reported_on_the_driver(postgres: PostgresServer) -> None:
    postgres.execute(
        *NODES,
        "DROP ROLE IF EXISTS guest",
        "CREATE ROLE guest LOGIN PASSWORD 'gu3st'",
    )
    conninfo = f"host=127.0.0.1 port={postgres.port} dbname=postgres user=guest password=gu3st"

    with pytest.raises(LookupTableError, match="permission denied for table nodes"):
        LookupFunction(PostgresTable(conninfo, "nodes"), "node")


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=127.0.0.1 port={port} dbname=postgres user=postgres password=wr0ng-one",
        "host=127.0.0.1 port=1 user=postgres password=wr0ng-one",
        "host=127.0.0.1 port={port} dbname=postgres user=missing password=wr0ng-one",
        "postgresql://postgres:wr0ng-one@127.0.0.1:{port}/nowhere",
        "postgresql://postgres:wr0ng-one%zz@127.0.0.1:{port}/postgres",
        "host=127.0.0.1 passwort=wr0ng-one",
        "host=127.0.0.1 password wr0ng-one",
    ],
)
def test_no_password_is_ever_shown_and_a_mistake_is_no_outage(postgres: PostgresServer, conninfo: str) -> None:
    with pytest.raises(LookupTableError) as raised:
        LookupFunction(PostgresTable(conninfo.format(port=postgres.port), "nodes"), "node")

    assert isinstance(raised.value, TableUnavailableError) == ("port=1 " in conninfo)
    assert "wr0ng" not in "".join(traceback.format_exception(raised.value, chain=True)).replace(conninfo, "")
    assert "wr0ng" not in repr(raised.value)
    assert "\n" not in str(raised.value)


def test_a_table_shows_where_it_is_but_no_password(postgres: PostgresServer, nodes: Nodes) -> None:
    table = nodes()
    function = LookupFunction(table, "node")

    for text in (repr(table), table.name, repr(function), function.name):
        assert PASSWORD not in text
        assert f"port={postgres.port}" in text


def test_a_conninfo_may_be_a_function(postgres: PostgresServer, nodes: Nodes) -> None:
    nodes()
    table = PostgresTable(postgres_conninfo, "nodes")
    postgres_conninfos.append(postgres.conninfo)

    assert PASSWORD.encode() not in pickle.dumps(table)
    assert found(pickle.loads(pickle.dumps(table)), "node", ["a"]) == [[("r1", 1)]]


postgres_conninfos: list[str] = []


def postgres_conninfo() -> str:
    return postgres_conninfos[-1]


UNREADABLE = [  # type, literal, the type it is read as, what the error shows
    ("timestamptz", "'infinity'", "timestamp", "infinity"),
    ("timestamptz", "'-infinity'", "timestamp", "-infinity"),
    ("timestamp", "'infinity'", "timestamp_ntz", "infinity"),
    ("date", "'-infinity'", "date", "-infinity"),
    ("date", "'0044-03-15 BC'", "date", "a value that Python does not have"),
    ("timestamp", "'10000-01-01'", "timestamp_ntz", "a value that Python does not have"),
    ("timestamptz", "'20000-01-01'", "timestamp", "a value that Python does not have"),
    ("timestamptz[]", "'{2026-01-01,infinity}'", "array<timestamp>", "a value that Python does not have"),
    ("late", "'infinity'", "timestamp", "infinity"),
    ("numeric(6,2)", "'NaN'", "decimal(6,2)", "NaN"),
    ("numeric", "'Infinity'", "decimal(38,18)", "Infinity"),
    ("numeric", "1e30", "decimal(38,18)", "1000000000000000000000000000000"),
    ("numeric(6,2)[]", "'{1.5,NaN}'", "array<decimal(6,2)>", "NaN"),
]


def test_a_value_that_python_does_not_have_fails_its_key_alone(postgres: PostgresServer) -> None:
    """psycopg refused the whole answer: all keys of its query failed, and with a full cache all keys of the table."""
    postgres.execute(
        f"DROP TABLE IF EXISTS {', '.join(f'odd{number}' for number in range(len(UNREADABLE)))}",
        "DROP DOMAIN IF EXISTS late",
        "CREATE DOMAIN late AS timestamptz",
        *(f"CREATE TABLE odd{number} (k int, v {native})" for number, (native, *_) in enumerate(UNREADABLE)),
        *(
            f"INSERT INTO odd{number} VALUES (1, NULL), (2, {literal}), (100, NULL), (2, NULL)"
            for number, (_, literal, *_) in enumerate(UNREADABLE)
        ),
    )
    caches = itertools.cycle(["none", "partial", "full"])
    for number, (native, literal, read_as, shown) in enumerate(UNREADABLE):
        table = PostgresTable(postgres.conninfo, f"odd{number}")

        first, second, third = found(table, "k", [1, 2, 100], cache=next(caches))

        assert (first, third) == ([(None,)], [(None,)]), (native, literal)
        assert isinstance(second, LookupTableError)
        assert f"'v' is read as {read_as}, but the row with k = 2 holds" in str(second)
        assert shown in str(second), (native, literal)


def test_a_key_that_no_text_of_the_database_can_have_matches_nothing(nodes: Nodes) -> None:
    assert found(nodes(), "node", ["a\0", "\ud800", "a"]) == [[], [], [("r1", 1)]]


@pytest.mark.parametrize("cache", ["none", "partial", "full"])
def test_values_that_are_read_as_text_may_be_any(postgres: PostgresServer, cache: str) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS odd",
        "CREATE TABLE odd (k int, during tstzrange, at time, took interval, about json, span int4range)",
        "INSERT INTO odd VALUES (1, '[-infinity,infinity]', '24:00', '1 mon -1 sec', '\"\\ud800\"', 'empty')",
    )

    assert found(PostgresTable(postgres.conninfo, "odd"), "k", [1], cache=cache) == [
        [("[-infinity,infinity]", "24:00:00", "1 mon -00:00:01", '"\\ud800"', "empty")]
    ]


@pytest.mark.parametrize("cache", ["none", "partial", "full"])
def test_a_text_that_is_not_utf8_fails_its_key_alone(postgres: PostgresServer, cache: str) -> None:
    """In a database without an encoding, the UnicodeDecodeError reached the user, for all keys."""
    postgres.execute(
        "DROP DATABASE IF EXISTS ascii",
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'",
    )
    conninfo = postgres.conninfo.replace("dbname=postgres", "dbname=ascii")
    import psycopg

    with psycopg.connect(conninfo, autocommit=True, client_encoding="SQL_ASCII") as connection:
        connection.execute("CREATE TABLE odd (k int, v text)")
        connection.execute(rb"INSERT INTO odd VALUES (1, 'plain'), (2, E'\xe4'), (3, E'\xc3\xa4')")

    first, second, third = found(PostgresTable(conninfo, "odd"), "k", [1, 2, 3], cache=cache)

    assert (first, third) == ([("plain",)], [("ä",)])
    assert isinstance(second, LookupTableError)
    assert r"'v' is read as string, but the row with k = 2 holds b'\xe4' there" in str(second)


@pytest.mark.parametrize("cache", ["none", "partial"])
def test_a_query_that_fails_for_some_keys_is_asked_by_halves(postgres: PostgresServer, cache: str) -> None:
    """All keys of a query failed if the server refused to compute one of its rows."""
    postgres.execute("CREATE OR REPLACE VIEW shares AS SELECT k, 1000 / (k % 100) AS v FROM generate_series(1, 400) k")
    table = PostgresTable(postgres.conninfo, "shares")

    answers = found(table, "k", range(1, 401), cache=cache)

    failed = {key for key, answer in enumerate(answers, 1) if isinstance(answer, Exception)}
    assert failed == {100, 200, 300, 400}
    assert "division by zero" in str(answers[99])
    assert answers[150] == [(1000 // 51,)]


@in_loop
async def test_a_query_that_fails_for_all_keys_is_asked_a_bounded_number_of_times(postgres: PostgresServer) -> None:
    postgres.execute("CREATE OR REPLACE VIEW broken AS SELECT k, 1 / (k - k) AS v FROM generate_series(1, 2000) k")
    function = LookupFunction(PostgresTable(postgres.conninfo, "broken"), "k", input_columns=["k"])
    async with opened(function):
        answers = await function.async_invoke_batch([(key,) for key in range(1, 2001)])

    assert {str(each).rpartition(": ")[2] for each in answers} == {"division by zero"}
    assert function.metrics.load_failures <= 256


@in_loop
async def test_a_missing_right_is_found_by_one_query(postgres: PostgresServer, nodes: Nodes) -> None:
    function = LookupFunction(nodes(), "node", input_columns=["node"])
    postgres.execute("ALTER TABLE nodes RENAME COLUMN rack TO shelf")
    async with opened(function):
        with pytest.raises(LookupTableError, match="rack does not exist"):
            await function.async_invoke_batch([("a",), ("b",)])

    assert function.metrics.load_failures == 1


@pytest.mark.parametrize("cache", ["none", "full"])
def test_keys_are_instants(postgres: PostgresServer, cache: str) -> None:
    """The two instants that a zone shows as one time of the day are two keys."""
    postgres.execute(
        "DROP TABLE IF EXISTS keyed",
        "CREATE TABLE keyed (k timestamptz, v int)",
        "INSERT INTO keyed VALUES ('2026-10-25 02:30+02', 1), ('2026-10-25 02:30+01', 2)",
    )
    berlin = ZoneInfo("Europe/Berlin")
    moments = [datetime.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    far = datetime.datetime(1, 1, 1, tzinfo=berlin)

    *near, none = found(PostgresTable(postgres.conninfo, "keyed"), "k", [*moments, far], cache=cache)
    assert near == [[(1,)], [(2,)]]
    assert "is not of the years 1 to 9999 in UTC" in str(none)
