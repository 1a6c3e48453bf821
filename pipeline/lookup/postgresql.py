"""PostgreSQL tables as lookup tables. Requires psycopg: `pip install 'central-dispatcher[postgres]'`.

A table pickles; psycopg is imported only when it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from dispatcher.util.functions import require_kind
from pipeline import postgres
from pipeline.lookup.answers import LookupAnswer, Scanned, columns_of, rows_of
from pipeline.lookup.errors import FailedQueryError, LookupTableError, TableUnavailableError
from pipeline.lookup.postgresql_values import (
    column_of,
    converter_of,
    is_read_as_text,
    key_type,
    parameter_of,
    plain_of,
    register_arrays,
    rows_of_cursor,
)
from pipeline.lookup.schema import Column, LookupKey, LookupReader, LookupRow, LookupSchema, choose
from pipeline.lookup.sql import SCAN_ROWS, AnswerReader, lookup_query, scan_query, shown_key, wanted
from pipeline.sql import NO_SECRETS, POSTGRESQL
from pipeline.streaming.number_checks import require_number

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
_Connection: TypeAlias = "psycopg.AsyncConnection[tuple[Any, ...]]"
_Work: TypeAlias = Callable[["_Connection"], Awaitable[T]]

_WHAT: Final = "a PostgresTable"
_SESSION: Final = "SET default_transaction_read_only TO on; SET TIME ZONE 'UTC'; SET random_page_cost TO 1.1"
"""With its default of 4 for that cost, the planner reads a whole index for 10,000 keys of a million."""
_CLOSE_TIMEOUT_S: Final = 5.0
_SHOWN_CHARACTERS: Final = 200
_GOODBYES: Final = ("08", "57P01", "57P02", "57P03")  # SQL states after which the server closes the connection
_RELATION = "SELECT to_regclass(%s)::oid"
_COLUMNS = """
    SELECT a.attname, coalesce(base.typname, t.typname),
           CASE WHEN base.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END
    FROM pg_attribute AS a
    JOIN pg_type AS t ON t.oid = a.atttypid
    LEFT JOIN pg_type AS base ON t.typtype = 'd' AND base.oid = t.typbasetype
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""
_TABLES = """
    SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables
    WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 20
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAccess:
    """How a reader reaches its table. Pickles if `conninfo`, which may be a function, does."""

    conninfo: str | Callable[[], str] = field(repr=False)
    where: str
    parts: tuple[str, ...]
    """(table,) or (schema, table)."""
    max_connections: int
    query_timeout_s: float
    prepare_threshold: int | None

    @property
    def name(self) -> str:
        return f"PostgreSQL table {'.'.join(self.parts)!r} of {self.where}"

    def connection_settings(self) -> dict[str, Any]:
        """The arguments of a connection, including the password. Calls `conninfo` if it is a function.

        Raises:
            LookupTableError: libpq cannot parse it.
        """
        try:
            return postgres.connection_settings(self.conninfo, _WHAT, "central-dispatcher lookup")
        except postgres.ConninfoError as error:
            raise LookupTableError(str(error)) from None

    def translated_errors(self, settings: Mapping[str, Any] = NO_SECRETS) -> contextlib.AbstractContextManager[None]:
        """Raise psycopg's errors as this package's, in one line without the passwords in `settings`."""
        return POSTGRESQL.translated(self.name, TableUnavailableError, LookupTableError, settings, FailedQueryError)


class PostgresTable:
    """A table or view of a PostgreSQL server, read in read-only sessions.

    `conninfo`: for libpq, `postgresql://user@host/db` or `host=... dbname=...`, or a function that returns one. The
        function is called in each process, so you don't need to pickle the password with the job. libpq also reads the
        process's environment (PGPASSWORD, PGPASSFILE).
    `table`: `name` or `schema.name`. If you pass `schema`, the name verbatim.
    `columns`: the columns to join, by default all. The key columns are read in any case.
    `max_connections`: per worker process, opened on demand and kept until the reader closes.
    `query_timeout_s`: for the answer to one batch.
    `prepare_threshold`: psycopg's. Use None for poolers without prepared statements.

    A numeric without precision is read as decimal(38,18), rounded. Types that Spark doesn't have are read as text. The
    server compares keys, text by the column's collation.
    """

    can_scan = True
    takes_many_keys = True

    def __init__(
        self,
        conninfo: str | Callable[[], str],
        table: str,
        columns: Sequence[str] | None = None,
        *,
        schema: str | None = None,
        max_connections: int = 4,
        query_timeout_s: float = 30.0,
        prepare_threshold: int | None = 5,
    ) -> None:
        if not callable(conninfo):
            require_kind(conninfo, "conninfo", str)
        require_number("max_connections", max_connections, least=1, whole=True, error=LookupTableError)
        require_number("query_timeout_s", query_timeout_s, above=0, error=LookupTableError)
        if prepare_threshold is not None:
            require_number("prepare_threshold", prepare_threshold, least=0, whole=True, error=LookupTableError)
        self._columns = wanted(columns)
        try:
            postgres.require_psycopg(_WHAT)
            where = postgres.server_of(conninfo, _WHAT)
        except (postgres.MissingDriverError, postgres.ConninfoError) as error:
            raise LookupTableError(str(error)) from None
        self._access = PostgresAccess(
            conninfo=conninfo,
            where=where,
            parts=(schema, table) if schema is not None else tuple(table.split(".", 1)),
            max_connections=max_connections,
            query_timeout_s=query_timeout_s,
            prepare_threshold=prepare_threshold,
        )
        self.name: str = self._access.name

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Return the table's columns, read from the server."""
        import psycopg

        settings = self._access.connection_settings()
        with self._access.translated_errors(settings), psycopg.connect(**settings, autocommit=True) as connection:
            schema = choose(self.name, self._present(connection), key_columns, self._columns)
            # A query without keys: missing read permission surfaces here, not in a worker.
            query = lookup_query(POSTGRESQL, self._access.parts, schema, 0, key_type, is_read_as_text)
            connection.execute(query, [[] for _ in schema.key])
        return schema

    def _present(self, connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Column]:
        name = POSTGRESQL.quoted(*self._access.parts).replace("%%", "%")
        found = connection.execute(_RELATION, [name]).fetchone()
        if found is None or found[0] is None:
            names = ", ".join(name for (name,) in connection.execute(_TABLES)) or "none that this user may see"
            raise LookupTableError(f"{self.name} does not exist. Existing tables: {names}.")
        return {row[0]: column_of(*row) for row in connection.execute(_COLUMNS, [found[0]])}

    def reader(self, schema: LookupSchema) -> LookupReader:
        """Return a reader with a separate connection."""
        return PostgresReader(self._access, schema)

    def __repr__(self) -> str:
        return f"PostgresTable({self._access.where}, {'.'.join(self._access.parts)!r})"


class PostgresReader:
    """Looks up in one table. Loop thread only.

    If a connection was lost while idle, as after a restart of the server, the reader replaces it and repeats the query.
    If a new connection fails, or is lost, the lookup fails with the cause. psycopg_pool is not used: it connects in
    the background, and with the server down its callers get only a timeout.
    """

    def __init__(self, access: PostgresAccess, schema: LookupSchema) -> None:
        from psycopg.pq import TransactionStatus

        self._no_transaction = TransactionStatus.IDLE
        self._access = access
        self._key = schema.key
        self._parameters = [parameter_of(column) for column in schema.key]
        self._answers = AnswerReader(schema, converter_of, self._complaint, plain_of)
        self._lookup_query = lookup_query(POSTGRESQL, access.parts, schema, 1, key_type, is_read_as_text)
        scan = scan_query(POSTGRESQL, access.parts, schema, is_read_as_text)
        self._scan_query = f"DECLARE lookup_scan NO SCROLL CURSOR FOR {scan}"
        self.parallelism: int = access.max_connections
        self._turns = asyncio.Semaphore(access.max_connections)  # one permit per connection in use
        self._idle: list[_Connection] = []  # loop thread only; a stack: the last used is reused first
        self._all: set[_Connection] = set()  # loop thread only; the open ones
        self._closed = False  # loop thread only
        self.repeats: int = 0  # loop thread only; queries repeated because their connection was lost while it was idle

    async def open(self) -> None:
        """Does nothing: the first lookup connects."""

    async def lookup(self, keys: Sequence[LookupKey]) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        answer = await self.lookup_columns(keys)
        return dict(zip(keys, answer.by_place(len(keys)), strict=True))

    async def lookup_columns(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        values = columns_of(keys, len(self._key))
        columns = [parameter(column) for parameter, column in zip(self._parameters, values, strict=True)]

        async def ask(connection: _Connection) -> list[tuple[Any, ...]]:
            return await rows_of_cursor(await connection.execute(self._lookup_query, columns, binary=True))

        with self._access.translated_errors():
            async with self._turns:
                connection, rows = await self._on_idle_or_new(ask)
                self._settle(connection)
        return self._answers.found(keys, rows)

    async def scan(self) -> AsyncIterator[Sequence[tuple[LookupKey, LookupRow]]]:
        async for piece in self.scan_columns():
            yield list(zip(piece.keys, rows_of(piece.columns, len(piece.keys)), strict=True))

    async def scan_columns(self) -> AsyncIterator[Scanned]:
        async def begin(connection: _Connection) -> None:
            await connection.execute("BEGIN")
            await connection.execute(self._scan_query, ())

        with self._access.translated_errors():
            async with self._turns:
                connection, _ = await self._on_idle_or_new(begin)
                try:
                    while rows := await self._answer(connection, _next_piece):
                        yield self._answers.scanned(rows)
                    await self._answer(connection, lambda each: each.execute("COMMIT"))
                finally:
                    self._settle(connection)

    async def close(self) -> None:
        self._closed = True
        connections, self._all = list(self._all), set()
        self._idle.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.gather(*(each.close() for each in connections), return_exceptions=True)

    async def _on_idle_or_new(self, work: _Work[T]) -> tuple[_Connection, T]:
        """Do the work on one connection, which the caller must settle. The caller holds a permit of `_turns`."""
        import psycopg

        while self._idle:
            connection = self._idle.pop()
            try:
                return connection, await self._answer(connection, work)
            except psycopg.Error:
                if connection in self._all:
                    raise
                self.repeats += 1  # the connection was lost: try the next idle one, or a new one
        connection = await self._connect()
        return connection, await self._answer(connection, work)

    async def _answer(self, connection: _Connection, work: _Work[T]) -> T:
        """Do the work within `query_timeout_s`. After any error the connection is settled or discarded."""
        import psycopg

        timeout_s = self._access.query_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await work(connection)
        except psycopg.Error as error:
            if (error.sqlstate or "").startswith(_GOODBYES):
                self._discard(connection)
            self._settle(connection)
            raise
        except TimeoutError:
            self._discard(connection)
            raise TableUnavailableError(
                f"{self._access.name}: no answer within {timeout_s:g} s (query_timeout_s). Is there an index on the "
                "key?"
            ) from None
        except BaseException:
            # Cancelled, perhaps in the middle of an answer: the rest of it must not reach the next query.
            self._discard(connection)
            raise

    async def _connect(self) -> _Connection:
        import psycopg

        settings = self._access.connection_settings()
        with self._access.translated_errors(settings):
            connection = await psycopg.AsyncConnection.connect(
                **settings, autocommit=True, prepare_threshold=self._access.prepare_threshold
            )
        if self._closed:
            connection.pgconn.finish()
            raise TableUnavailableError(f"{self._access.name}: the lookup is closed.")
        register_arrays(connection)
        self._all.add(connection)
        await self._answer(connection, lambda each: each.execute(_SESSION))
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            # The server would check each text, and fail the query for one. Now psycopg gives bytes.
            await self._answer(connection, lambda each: each.execute("SET client_encoding TO SQL_ASCII"))
        return connection

    def _settle(self, connection: _Connection) -> None:
        """Return the connection to the idle ones if it is reusable, else discard it. Idempotent."""
        if connection not in self._all or connection in self._idle:
            return
        if connection.info.transaction_status == self._no_transaction:
            self._idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: _Connection) -> None:
        self._all.discard(connection)
        connection.pgconn.finish()  # closes at once, without a message to the server, which may not read it

    def _complaint(self, column: Column, value: object, key: LookupKey) -> str:
        return (
            f"{self._access.name}: the column {column.name!r} is read as {column.type}, but the row with "
            f"{shown_key(self._key, key)} holds {str(value)[:_SHOWN_CHARACTERS]} there. Make a view that casts it."
        )


async def _next_piece(connection: _Connection) -> list[tuple[Any, ...]]:
    return await rows_of_cursor(await connection.execute(f"FETCH {SCAN_ROWS} FROM lookup_scan", binary=True))
