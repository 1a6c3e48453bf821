"""The reader of a PostgresTable, a few asynchronous connections on the host's loop, and its queries.

psycopg quotes every name in them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pipeline.lookup.errors import LookupTableError, TableUnavailableError
from pipeline.lookup.keys import KeyForm
from pipeline.lookup.postgres.access import PostgresAccess
from pipeline.lookup.postgres.types import KEY_ARRAYS, decimal_type, read_as_text
from pipeline.lookup.schema import Key, LookupSchema, Row, ToDecimal

T = TypeVar("T")
_Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
_Work: TypeAlias = Callable[[_Connection], Awaitable[T]]

_SCAN_ROWS = 5_000
_SESSION = "SET default_transaction_read_only TO on; SET TIME ZONE 'UTC'"
_CLOSE_TIMEOUT_S = 5.0
_GOODBYES = ("08", "57P01", "57P02", "57P03")  # SQL states after which the server closes the connection


class PostgresReader:
    """Looks up in one table. Loop thread only.

    If a connection was lost while idle, as after a restart of the server, the reader replaces it and repeats the query.
    If a new connection fails, or is lost, the lookup fails with the cause. psycopg_pool is not used: it connects in
    the background, and with the server down its callers get only a timeout.
    """

    def __init__(self, access: PostgresAccess, schema: LookupSchema) -> None:
        self._access = access
        self._schema = schema
        self._key_form = KeyForm(schema.key)
        self._decimals = {
            at: ToDecimal(found)
            for at, column in enumerate(schema.values)
            if (found := decimal_type(column)) is not None
        }
        self._lookup_query = lookup_query(access.parts, schema)
        self._scan_query = scan_query(access.parts, schema)
        self.parallelism = access.max_connections
        self._turns = asyncio.Semaphore(access.max_connections)  # one permit per connection in use
        self._idle: list[_Connection] = []  # loop thread only; a stack: the last used is reused first
        self._all: set[_Connection] = set()  # loop thread only; the open ones
        self._closed = False  # loop thread only
        self.repeats = 0  # loop thread only; queries repeated because their connection was lost while it was idle

    async def open(self) -> None:
        """Does nothing: the first lookup connects."""

    async def lookup(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row] | Exception]:
        # PostgreSQL's text has no NUL, and UTF-8 no lone surrogates: such keys match nothing and would fail the query.
        keys = [key for key in keys if all(map(_can_be_sent, key))]
        if not keys:
            return {}
        columns = [list(values) for values in zip(*keys, strict=True)]

        async def ask(connection: _Connection) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(self._lookup_query, columns)
            return await cursor.fetchall()

        found: dict[Key, list[Row]] = {}
        failed: dict[Key, Exception] = {}
        with self._access.translated_errors({}):
            async with self._turns:
                connection, answer = await self._on_idle_or_new(ask)
                self._settle(connection)
        for number, *cells in answer:
            key = keys[number - 1]
            try:
                found.setdefault(key, []).append(self._row(cells))
            except LookupTableError as error:
                failed[key] = error
        return {**found, **failed}

    async def scan(self) -> AsyncIterator[Sequence[tuple[Key, Row]]]:
        async def begin(connection: _Connection) -> None:
            await connection.execute("BEGIN")
            await connection.execute(self._scan_query)

        width = len(self._schema.key)
        with self._access.translated_errors({}):
            async with self._turns:
                connection, _ = await self._on_idle_or_new(begin)
                try:
                    while rows := await self._answer(connection, _next_piece):
                        keys = [self._key_form.of(cells[:width]) for cells in rows]
                        found = zip(keys, rows, strict=True)
                        yield [(key, self._row(cells[width:])) for key, cells in found if key is not None]
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
        settings = self._access.connection_settings()
        with self._access.translated_errors(settings):
            connection = await psycopg.AsyncConnection.connect(
                **settings, autocommit=True, prepare_threshold=self._access.prepare_threshold
            )
        if self._closed:
            connection.pgconn.finish()
            raise TableUnavailableError(f"{self._access.name}: the lookup is closed.")
        self._all.add(connection)
        await self._answer(connection, lambda each: each.execute(_SESSION))
        return connection

    def _settle(self, connection: _Connection) -> None:
        """Return the connection to the idle ones if it is reusable, else discard it. Idempotent."""
        if connection not in self._all or connection in self._idle:
            return
        if connection.info.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: _Connection) -> None:
        self._all.discard(connection)
        connection.pgconn.finish()  # closes at once, without a message to the server, which may not read it

    def _row(self, cells: Sequence[Any]) -> Row:
        if not self._decimals:
            return tuple(cells)
        values = list(cells)
        for at, to_decimal in self._decimals.items():
            try:
                values[at] = _each(to_decimal, values[at])
            except ValueError:
                column = self._schema.values[at]
                raise LookupTableError(
                    f"{self._access.name}: the column {column.name!r} is read as {column.type}, but holds "
                    f"{values[at]}. Make a view that casts it."
                ) from None
        return tuple(values)


async def _next_piece(connection: _Connection) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(f"FETCH {_SCAN_ROWS} FROM lookup_scan")
    return await cursor.fetchall()


def _each(convert: Callable[[object], object], value: Any) -> Any:
    if value is None:
        return None
    return [_each(convert, one) for one in value] if isinstance(value, list) else convert(value)


def _can_be_sent(value: object) -> bool:
    if not isinstance(value, str) or value.isascii():
        return not isinstance(value, str) or "\0" not in value
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _escaped(*parts: str) -> sql.Identifier:
    """A name for a query with parameters, where psycopg reads every % as a placeholder."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


def lookup_query(table: Sequence[str], schema: LookupSchema) -> sql.Composed:
    """Selects rows, each preceded by the number of its key, from 1. The server compares by the column's own rules.

    The parameters are one list of values per key column.
    """
    arrays, names, same = [], [], []
    for at, column in enumerate(schema.key):
        array = KEY_ARRAYS.get(column.native, "text[]")
        name = sql.Identifier(f"k{at}")
        # uuids are sent as text, which the server can cast whatever the driver sends.
        arrays.append(sql.SQL("%s::text[]::uuid[]" if array == "uuid[]" else f"%s::{array}"))
        names.append(name)
        own = sql.SQL("t.{}" if column.native in KEY_ARRAYS else "t.{}::text").format(_escaped(column.name))
        same.append(sql.SQL("{} = k.{}").format(own, name))
    columns = [
        sql.SQL("t.{}::text" if read_as_text(each) else "t.{}").format(_escaped(each.name)) for each in schema.values
    ]
    return sql.SQL(
        "SELECT {columns} FROM unnest({arrays}) WITH ORDINALITY AS k({names}, number) JOIN {table} AS t ON {same}"
    ).format(
        columns=sql.SQL(", ").join([sql.SQL("k.number"), *columns]),
        arrays=sql.SQL(", ").join(arrays),
        names=sql.SQL(", ").join(names),
        table=_escaped(*table),
        same=sql.SQL(" AND ").join(same),
    )


def scan_query(table: Sequence[str], schema: LookupSchema) -> sql.Composed:
    """Declares the cursor `lookup_scan` over the key columns, then the others, of all rows."""
    columns = [
        sql.SQL("t.{}::text" if read_as_text(each) else "t.{}").format(sql.Identifier(each.name))
        for each in (*schema.key, *schema.values)
    ]
    return sql.SQL("DECLARE lookup_scan NO SCROLL CURSOR FOR SELECT {} FROM {} AS t").format(
        sql.SQL(", ").join(columns), sql.Identifier(*table)
    )
