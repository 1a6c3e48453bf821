"""Results in a PostgreSQL table, on a real server; what all stores do is in test_store_contract."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.streaming import PostgresResults, ResultCacheAwayError, ResultCacheError

from ....kit import TIMEOUT_S
from ...postgres_server import PASSWORD
from .stores import opened

if TYPE_CHECKING:
    from ...postgres_server import PostgresServer

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'central-dispatcher[postgres]'")

pytestmark = pytest.mark.long

Make = Callable[..., PostgresResults]


@pytest.fixture
def make(postgres_results: Make) -> Make:
    return postgres_results


def test_the_server_knows_that_an_owner_has_ended(postgres: PostgresServer, make: Make) -> None:
    cache = make()
    with closing(cache.connect("f")) as store, closing(make().connect("f")) as other:
        before = other.alive([store.owner])
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
            f"((classid::bigint << 32) | objid::bigint)::text = '{store.owner}'"
        )
        after = other.alive([store.owner])
        # The first use of the lost connection fails; the next is of another, with the owner's lock.
        with pytest.raises(ResultCacheAwayError):
            store.read([b"x"])
        store.read([b"x"])

        assert (before, after, other.alive([store.owner])) == ({store.owner}, set(), {store.owner})


def test_a_session_outlasts_a_restart_of_the_server(postgres: PostgresServer, make: Make) -> None:
    with ExitStack() as stack:
        asker = opened(stack, make())
        claim = asker("a", wants_call=True)
        postgres.stop()
        asker.session.finish(claim.key, b"[1]")
        request, answered = asker.send("a")
        was_answered = answered.wait(0.3)
        postgres.start()
        assert answered.wait(TIMEOUT_S)

        assert (was_answered, request.results) == (False, [1])


def test_a_server_that_is_away_is_reported_as_such(postgres: PostgresServer, make: Make) -> None:
    postgres.stop()
    try:
        with pytest.raises(ResultCacheAwayError, match=r"the cache results_.* of host=127\.0\.0\.1") as raised:
            make().connect("f")
        assert PASSWORD not in str(raised.value)
    finally:
        postgres.start()


@pytest.mark.parametrize(
    ("old", "new"),
    [(PASSWORD, "wrong/word"), ("dbname=postgres", "dbname=missing"), ("user=postgres", "user=missing")],
)
def test_a_mistake_in_the_dsn_is_not_tried_again(postgres: PostgresServer, make: Make, old: str, new: str) -> None:
    with pytest.raises(ResultCacheError) as raised:
        make(conninfo=postgres.conninfo.replace(old, new)).connect("f")

    assert not isinstance(raised.value, ResultCacheAwayError)
    assert "wrong/word" not in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_missing_right_is_not_tried_again(postgres: PostgresServer, make: Make) -> None:
    postgres.execute(
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'only reads'",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    conninfo = postgres.conninfo.replace("user=postgres", "user=reader").replace(
        f"password={PASSWORD}", "password='only reads'"
    )

    with pytest.raises(ResultCacheError, match="permission denied") as raised:
        make(conninfo=conninfo).connect("f")

    assert not isinstance(raised.value, ResultCacheAwayError)


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        (None, "another program has a table of that name"),
        ("central-dispatcher results, format 9", "has the format 9, and this version reads the format 1"),
    ],
)
def test_a_table_of_another_program_or_format_is_left_alone(
    postgres: PostgresServer, make: Make, comment: str | None, message: str
) -> None:
    table = make().table
    postgres.execute(f"CREATE TABLE {table} (id int)")
    if comment is not None:
        postgres.execute(f"COMMENT ON TABLE {table} IS '{comment}'")

    with pytest.raises(ResultCacheError, match=message):
        make().connect("f")


def test_a_table_may_have_a_schema_and_an_odd_name(postgres: PostgresServer, make: Make) -> None:
    postgres.execute('CREATE SCHEMA IF NOT EXISTS "odd %s"')

    with ExitStack() as stack:
        asker = opened(stack, make(table='odd %s.the "results"'))
        asker.call("a", 1)

        assert asker("a").results == [1]


def test_it_pickles_and_shows_no_password(postgres: PostgresServer, make: Make) -> None:
    cache = make(expires_after_s=60)

    assert pickle.loads(pickle.dumps(cache)) == cache
    assert PASSWORD not in repr(cache)
    assert PASSWORD not in cache.where


def test_a_function_gives_the_dsn_where_it_is_needed(postgres: PostgresServer, make: Make) -> None:
    asked = []

    def conninfo() -> str:
        asked.append(1)
        return postgres.conninfo

    cache = make(conninfo=conninfo)
    before = len(asked)
    cache.connect("f").close()

    assert (before, len(asked)) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conninfo": 7}, "conninfo is neither"),
        ({"conninfo": "no conninfo at all"}, "cannot be parsed"),
        ({"table": ""}, "table is ''"),
        ({"table": "a."}, r"table is 'a\.'"),
        ({"query_timeout_s": None}, "query_timeout_s is None"),
    ],
)
def test_an_option_that_is_not_possible_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, ResultCacheError), match=message):
        PostgresResults(**{"conninfo": "host=127.0.0.1", **options})
