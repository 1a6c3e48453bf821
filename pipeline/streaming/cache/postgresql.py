"""Results in a PostgreSQL table, shared by the workers of any number of machines.

An owner holds an advisory lock of its session, so the server knows that it has ended once its connection has. Each
statement is a transaction of its own; a step that fails half-way is harmless to repeat.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import InvalidTypeError
from pipeline import postgres
from pipeline.sql import POSTGRESQL
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.store import CREATE, FORMAT, ResultStore
from pipeline.streaming.errors import ResultCacheAwayError, ResultCacheError
from pipeline.streaming.number_checks import require_number

if TYPE_CHECKING:
    import psycopg

_WHAT: Final = "a PostgresResults"
_COMMENT: Final = "central-dispatcher results, format "
_ALIVE_CHECKS: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A machine that is gone is noticed within a minute, on both sides."""
_SESSION: Final = (
    "SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('statement_timeout', %s, false)"
)
_CREATION_LOCK: Final = 0x6364_7265_7375_6C74
_OWNERS: Final = """
    SELECT ((classid::bigint << 32) | objid::bigint)::text FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True)
class PostgresResults(ResultCache):
    """Keeps results in a table of PostgreSQL, for workers on any machines. Creates the table if necessary.

    `conninfo`: for libpq, `postgresql://user@host/db` or `host=... dbname=...`, or a function that returns one. The
        function is called in each process, so you don't pickle the password with the job. Connect directly, without a
        pooler: with another session for each transaction, you lose the locks that tell a killed worker from a working
        one.
    `table`: `name` or `schema.name`.
    `query_timeout_s`: timeout of one statement.

    Each Python worker has one connection. The other options are those of every cache: see ResultCache.
    """

    conninfo: postgres.Conninfo = field(repr=False)
    table: str = "async_results"
    query_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.conninfo, str) or callable(self.conninfo)):
            raise InvalidTypeError("conninfo is neither a string nor a function that returns one.")
        if not isinstance(self.table, str) or not all(self.table.split(".", 1)):
            raise InvalidTypeError(f'table is {self.table!r}; give "name" or "schema.name".')
        require_number("query_timeout_s", self.query_timeout_s, above=0)
        with _translated_settings():
            postgres.require_psycopg(_WHAT)
            postgres.server_of(self.conninfo, _WHAT)

    @property
    def where(self) -> str:
        return f"the cache {self.table} of {postgres.server_of(self.conninfo, _WHAT)}"

    def connect(self, function: str) -> ResultStore:
        return PostgresStore(self, function)


class PostgresStore(ResultStore):
    """A lost connection is replaced by the next step."""

    def __init__(self, cache: PostgresResults, function: str) -> None:
        self._lock_key = secrets.randbits(63)
        table = tuple(cache.table.split(".", 1))
        super().__init__(POSTGRESQL, table, function, cache.where, str(self._lock_key))
        self._cache = cache
        self._settings: dict[str, Any] = {}  # of the latest connection
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._connect()

    def alive(self, owners: Collection[str]) -> set[str]:
        if not owners:
            return set()
        rows, _ = self._execute(_OWNERS, ())
        return set(owners) & {owner for (owner,) in rows}

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _execute(self, text: str, parameters: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        with self._translated_errors():
            if self._connection is None or self._connection.closed:
                self._connect()
            assert self._connection is not None
            cursor = self._connection.cursor(binary=True).execute(text, parameters)
            return cursor.fetchall() if cursor.description else [], cursor.rowcount

    def _connect(self) -> None:
        import psycopg

        with _translated_settings():
            settings = postgres.connection_settings(self._cache.conninfo, _WHAT, "central-dispatcher results")
        self._settings = _ALIVE_CHECKS | settings
        with self._translated_errors():
            connection = psycopg.connect(**self._settings, autocommit=True)
            try:
                connection.execute(_SESSION, [str(round(self._cache.query_timeout_s * 1000))])
                # Before its table is looked at: an owner whose entries others can see has its lock.
                connection.execute("SELECT pg_advisory_lock(%s)", [self._lock_key])
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def _prepare(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Check the table, or make it."""
        if self._comment(connection) is None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
                if self._comment(connection) is None:  # no other worker has made it meanwhile
                    for statement in (CREATE, f"COMMENT ON TABLE {{table}} IS '{_COMMENT}{FORMAT}'"):
                        connection.execute(statement.format_map(self._words), ())
        comment = self._comment(connection) or ""
        if not comment.startswith(_COMMENT):
            raise ResultCacheError(f"{self._where}: another program has a table of that name. Give another name.")
        self._check_format("table", comment.removeprefix(_COMMENT), "Give another name, or drop the table")

    def _comment(self, connection: psycopg.Connection[tuple[Any, ...]]) -> str | None:
        """The comment of the table, "" if it has none; None if there is no table."""
        found = connection.execute(
            "SELECT oid, coalesce(obj_description(oid, 'pg_class'), '') FROM to_regclass(%s) AS found (oid) "
            "WHERE oid IS NOT NULL",
            [self._words["table"].replace("%%", "%")],
        ).fetchone()
        return None if found is None else str(found[1])

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        with POSTGRESQL.translated(self._where, ResultCacheAwayError, ResultCacheError, self._settings):
            try:
                yield
            finally:
                if self._connection is not None and self._connection.broken:
                    self.close()


@contextlib.contextmanager
def _translated_settings() -> Iterator[None]:
    try:
        yield
    except (postgres.ConninfoError, postgres.MissingDriverError) as error:
        raise ResultCacheError(str(error)) from None
