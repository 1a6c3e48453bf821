"""Results in a PostgreSQL table, shared by the workers of any number of machines.

An owner holds an advisory lock of its session, so the server knows that it has ended once its connection has. Each
statement is a transaction of its own; a step that fails half-way is harmless to repeat.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pipeline import postgres
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.store import (
    CUT_OFF,
    DONE,
    FORMAT,
    STEP_KEYS,
    UNDER_WAY,
    Claim,
    Entry,
    ResultStore,
    UnknownCall,
)
from pipeline.streaming.errors import ResultCacheAwayError, ResultCacheError
from pipeline.streaming.number_checks import require_number

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

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
_CREATE: Final = """
    CREATE TABLE IF NOT EXISTS {table} (
        digest bytea PRIMARY KEY,
        function text NOT NULL,
        state smallint NOT NULL,
        owner text NOT NULL,
        at double precision NOT NULL,
        key text,
        value bytea
    )
"""
_CREATION_LOCK: Final = 0x6364_7265_7375_6C74
_OWNERS: Final = """
    SELECT ((classid::bigint << 32) | objid::bigint)::text FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_STATEMENTS: Final = {
    "read": "SELECT digest, state, owner, at, value FROM {table} WHERE digest = ANY(%s)",
    "claim_new": """
        INSERT INTO {table} SELECT digest, %s, %s, %s, %s, key, NULL
        FROM unnest(%s::bytea[], %s::text[]) AS wanted (digest, key) ORDER BY digest
        ON CONFLICT (digest) DO NOTHING RETURNING digest
    """,
    "claim_seen": """
        UPDATE {table} AS kept
        SET function = %s, state = %s, owner = %s, at = %s, key = wanted.key, value = NULL
        FROM unnest(%s::bytea[], %s::text[], %s::smallint[], %s::text[], %s::float8[])
             AS wanted (digest, key, state, owner, at)
        WHERE kept.digest = wanted.digest AND kept.state = wanted.state AND kept.owner = wanted.owner
          AND kept.at = wanted.at
        RETURNING kept.digest
    """,
    "finish": """
        INSERT INTO {table} SELECT digest, %s, %s, %s, %s, NULL, value
        FROM unnest(%s::bytea[], %s::bytea[]) AS made (digest, value) ORDER BY digest
        ON CONFLICT (digest) DO UPDATE SET
            state = excluded.state, owner = excluded.owner, at = excluded.at, key = NULL, value = excluded.value
    """,
    "release": "DELETE FROM {table} WHERE digest = ANY(%s) AND state = %s AND owner = %s",
    "cut_off": "UPDATE {table} SET state = %s WHERE digest = ANY(%s) AND state = %s AND owner = %s",
    "unfinished": "SELECT digest, function, key, at, state, owner FROM {table} WHERE state <> %s ORDER BY at",
    "forget": "DELETE FROM {table} WHERE digest = ANY(%s) AND state <> %s",
    "remove": "DELETE FROM {table} WHERE state = %s AND at <= %s",
}


@dataclass(frozen=True)
class PostgresResults(ResultCache):
    """Keeps results in a table of PostgreSQL, made if there is none. For workers on any machines.

    `dsn`: libpq's, `postgresql://user@host/db` or `host=... dbname=...`; or a function that returns one, called in each
        process, so that the password is not pickled with the job. A direct connection: a pooler that gives each
        transaction another session loses the locks by which a killed worker is told from one that works.
    `table`: `name` or `schema.name`. `query_timeout_s`: for one statement.

    Each Python worker has one connection. The other options are those of every cache: see ResultCache.
    """

    dsn: postgres.Conninfo = field(repr=False)
    table: str = "async_results"
    query_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.dsn, str) or callable(self.dsn)):
            raise TypeError("dsn is neither a string nor a function that returns one.")
        if not isinstance(self.table, str) or not all(self.table.split(".", 1)):
            raise TypeError(f'table is {self.table!r}; give "name" or "schema.name".')
        require_number("query_timeout_s", self.query_timeout_s, above=0)
        with _translated_settings():
            postgres.require_psycopg(_WHAT)
            postgres.server_of(self.dsn, _WHAT)

    @property
    def where(self) -> str:
        return f"the cache {self.table} of {postgres.server_of(self.dsn, _WHAT)}"

    def connect(self, function: str) -> ResultStore:
        return PostgresStore(self, function)


class PostgresStore:
    """A ResultStore. One thread at a time. A lost connection is replaced by the next step."""

    def __init__(self, cache: PostgresResults, function: str) -> None:
        from psycopg import sql

        self._cache = cache
        self._where = cache.where
        self._function = function
        self._lock_key = secrets.randbits(63)
        self.owner = str(self._lock_key)
        parts = cache.table.split(".", 1)
        self._table = sql.Identifier(*parts)
        # In a statement with parameters psycopg reads every % as a placeholder.
        escaped = sql.Identifier(*(part.replace("%", "%%") for part in parts))
        self._statements: dict[str, sql.Composed] = {
            name: sql.SQL(text).format(table=escaped) for name, text in _STATEMENTS.items()
        }
        self._settings: dict[str, Any] = {}  # of the latest connection
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._connect()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        yield

    def read(self, digests: Sequence[bytes]) -> Mapping[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        for start in range(0, len(digests), STEP_KEYS):
            rows = self._rows("read", list(digests[start : start + STEP_KEYS]))
            found.update((digest, Entry(*entry)) for digest, *entry in rows)
        return found

    def claim(self, claims: Sequence[Claim], now_s: float) -> set[bytes]:
        mine = (self._function, UNDER_WAY, self.owner, now_s)
        won: set[bytes] = set()
        new = [claim.key for claim in claims if claim.seen is None]
        if new:
            rows = self._rows("claim_new", *mine, [key.digest for key in new], [key.text for key in new])
            won.update(digest for (digest,) in rows)
        seen = sorted(
            (claim.key.digest, claim.key.text, entry.state, entry.owner, entry.at)
            for claim in claims
            if (entry := claim.seen) is not None
        )
        if seen:
            rows = self._rows("claim_seen", *mine, *map(list, zip(*seen, strict=True)))
            won.update(digest for (digest,) in rows)
        return won

    def finish(self, results: Sequence[tuple[bytes, bytes]], now_s: float) -> None:
        if made := dict(results):
            self._count("finish", self._function, DONE, self.owner, now_s, list(made), list(made.values()))

    def release(self, digests: Sequence[bytes]) -> None:
        if digests:
            self._count("release", list(digests), UNDER_WAY, self.owner)

    def cut_off(self, digests: Sequence[bytes]) -> None:
        if digests:
            self._count("cut_off", CUT_OFF, list(digests), UNDER_WAY, self.owner)

    def alive(self, owners: Collection[str]) -> set[str]:
        if not owners:
            return set()
        with self._translated_errors():
            return set(owners) & {owner for (owner,) in self._open().execute(_OWNERS)}

    def unknown(self) -> list[UnknownCall]:
        return [UnknownCall(function, key or "", at) for _, function, key, at in self._unknown()]

    def forget_unknown(self) -> int:
        return self._count("forget", [digest for digest, *_ in self._unknown()], DONE)

    def remove_older(self, stored_before_s: float) -> int:
        return self._count("remove", DONE, stored_before_s)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _unknown(self) -> list[tuple[bytes, str, str | None, float]]:
        rows = self._rows("unfinished", DONE)
        alive = self.alive({owner for *_, owner in rows})
        return [tuple(entry) for *entry, state, owner in rows if state == CUT_OFF or owner not in alive]

    def _rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._translated_errors(), self._open().cursor(binary=True) as cursor:
            return cursor.execute(self._statements[statement], parameters).fetchall()

    def _count(self, statement: str, *parameters: Any) -> int:
        with self._translated_errors():
            return self._open().execute(self._statements[statement], parameters).rowcount

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connect()
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        import psycopg

        with _translated_settings():
            settings = postgres.connection_settings(self._cache.dsn, _WHAT, "central-dispatcher results")
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
        from psycopg import sql

        if self._comment(connection) is None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
                if self._comment(connection) is None:  # no other worker has made it meanwhile
                    connection.execute(sql.SQL(_CREATE).format(table=self._table))
                    ours = sql.Literal(f"{_COMMENT}{FORMAT}")
                    connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(self._table, ours))
        comment = self._comment(connection) or ""
        if not comment.startswith(_COMMENT):
            raise ResultCacheError(f"{self._where}: another program has a table of that name. Give another name.")
        if comment != f"{_COMMENT}{FORMAT}":
            raise ResultCacheError(
                f"{self._where}: the table has the format {comment.removeprefix(_COMMENT)}, and this version reads the "
                f"format {FORMAT}. Give another name, or drop the table; then its calls are made again."
            )

    def _comment(self, connection: psycopg.Connection[tuple[Any, ...]]) -> str | None:
        """The comment of the table, "" if it has none; None if there is no table."""
        found = connection.execute(
            "SELECT oid, coalesce(obj_description(oid, 'pg_class'), '') FROM to_regclass(%s) AS found (oid) "
            "WHERE oid IS NOT NULL",
            [self._table.as_string(connection)],
        ).fetchone()
        return None if found is None else str(found[1])

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise psycopg's errors as this package's, in one line without a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            if self._connection is not None and self._connection.broken:
                self.close()
            kind = ResultCacheAwayError if postgres.is_passing(error) else ResultCacheError
            # Not chained: psycopg's own error may contain secrets.
            raise kind(f"{self._where}: {postgres.safe_message(error, self._settings)}") from None


@contextlib.contextmanager
def _translated_settings() -> Iterator[None]:
    try:
        yield
    except (postgres.ConninfoError, postgres.MissingDriverError) as error:
        raise ResultCacheError(str(error)) from None
