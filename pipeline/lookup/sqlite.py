"""SQLite files as lookup tables: embedded, with nothing to install.

SQLite does not enforce a column's declared type, so each value is converted when it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dispatcher.util.functions import path_of
from dispatcher.util.sqlite import Fault, connect
from pipeline.lookup.answers import LookupAnswer, Scanned, joined, rows_of
from pipeline.lookup.errors import FailedQueryError, LookupTableError, TableUnavailableError
from pipeline.lookup.schema import (
    Column,
    LookupKey,
    LookupRow,
    LookupSchema,
    ToDecimal,
    base_of,
    canonical_type,
    choose,
    family_of,
)
from pipeline.lookup.sql import SCAN_ROWS, AnswerReader, Converter, lookup_query, scan_query, shown_key, wanted
from pipeline.sql import SQLITE
from pipeline.streaming.errors import quoted
from pipeline.streaming.number_checks import require_number

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_KEYS = 1024  # of one query; more keys only lengthen it
_STEPS_PER_CHECK = 100_000  # instructions of SQLite's virtual machine, about a millisecond
_KEY_TYPES = {"number", "float", "string", "binary", "boolean", "date"}
_NAMED = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), "boolean"),
    **dict.fromkeys(("TIMESTAMP", "DATETIME"), "timestamp_ntz"),
    "DATE": "date",
}
_MAX_PRECISION = 38

_READING = dataclasses.replace(
    SQLITE, is_passing=lambda error: Fault.of(error) in (Fault.LOCKED, Fault.DISK, Fault.NOT_OPENED)
)
"""A file that is replaced just now cannot be read, but will be."""


class SqliteTable:
    """A table or view of an SQLite file, opened read-only.

    `path`: a file that each worker can read. A relative path starts from the driver's working directory.
    `columns`: the columns to join, by default all. The key columns are read in any case.
    `types`: overrides declared types by column, for example {"at": "string"}. SQLite stores any value in any column. If
        a value isn't of the column's type, the keys that find it fail. A DATE is text such as 2026-01-31. A TIMESTAMP
        or DATETIME is text in UTC or without a time zone.
    `pool_size`: lookup threads per worker process, each with a separate connection.
    `busy_timeout_s`: how long to wait for a writer that locks the file.
    """

    can_scan = True
    takes_many_keys = True

    def __init__(
        self,
        path: str | Path,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        types: Mapping[str, str] | None = None,
        pool_size: int = 4,
        busy_timeout_s: float = 30.0,
    ) -> None:
        require_number("pool_size", pool_size, least=1, whole=True, error=LookupTableError)
        require_number("busy_timeout_s", busy_timeout_s, least=0, error=LookupTableError)
        self._columns = wanted(columns)
        self._path = path_of(path).absolute()
        self._table = table
        self.name: str = f"SQLite table {table!r} of {self._path}"
        self._types = {name: canonical_type(type_name) for name, type_name in (types or {}).items()}
        self._pool_size = pool_size
        self._busy_timeout_s = busy_timeout_s

    def connect(self) -> sqlite3.Connection:
        """Return a new read-only connection, for one thread at a time. Blocks.

        Raises:
            LookupTableError: the file doesn't exist, or you may not read it.
            TableUnavailableError: it can't be opened.
        """
        if not self._path.is_file():
            raise LookupTableError(f"{self.name}: the file does not exist.")
        if not os.access(self._path, os.R_OK):
            raise LookupTableError(f"{self.name}: this user may not read the file.")
        with self.translated_errors():
            return connect(self._path, busy_timeout_s=self._busy_timeout_s, read_only=True)

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Return the table's columns, read from the file."""
        with contextlib.closing(self.connect()) as connection, self.translated_errors():
            schema = choose(self.name, self._present(connection), key_columns, self._columns)
            for column in (*schema.key, *schema.values):
                self._check_type(column)
            for column in schema.key:
                if family_of(column.type) not in _KEY_TYPES:
                    raise LookupTableError(
                        f"{self.name}: the key {column.name!r} is {column.type}, which can be written in several ways. "
                        f'Give types={{{column.name!r}: "string"}} and a key in the stored form.'
                    )
            self._warn_without_index(connection, schema)
        return schema

    def _present(self, connection: sqlite3.Connection) -> dict[str, Column]:
        found = connection.execute(
            "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1", (self._table,)
        ).fetchall()
        if not found:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
            names = ", ".join(name for (name,) in tables) or "no tables"
            raise LookupTableError(f"{self.name} does not exist; the file has {names}.")
        for name in self._types:
            if name not in {column for column, _ in found}:
                raise LookupTableError(f"{self.name}: types names {name!r}, which is not one of its columns.")
        return {name: Column(name, self._types.get(name) or _type_of(native) or "", native) for name, native in found}

    def _check_type(self, column: Column) -> None:
        if not column.type:
            declared = f"declared as {column.native}" if column.native else "declared without a type"
            raise LookupTableError(
                f"{self.name}: the column {column.name!r} is {declared}, which fixes no type. "
                f'Name its type, as in types={{{column.name!r}: "string"}}.'
            )
        if _converter_of(column) is None:
            raise LookupTableError(
                f"{self.name}: the column {column.name!r} cannot be {column.type}: SQLite does not store it."
            )

    def _warn_without_index(self, connection: sqlite3.Connection, schema: LookupSchema) -> None:
        query = lookup_query(_READING, [self._table], schema, 1)
        plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", [None] * len(schema.key))
        if not any("SEARCH" in step and "AUTOMATIC" not in step for (*_, step) in plan):
            log.warning(
                "%s has no index on %s: each lookup reads the whole table. Create one, or use a FullCache.",
                self.name,
                ", ".join(column.name for column in schema.key),
            )

    def translated_errors(self) -> AbstractContextManager[None]:
        """Turn SQLite's errors into LookupTableErrors that name the table."""
        return _READING.translated(self.name, TableUnavailableError, LookupTableError, of_values=FailedQueryError)

    def reader(self, schema: LookupSchema) -> SqliteReader:
        """Return a reader with a separate connection."""
        return SqliteReader(self, self._table, schema, self._pool_size)

    def __repr__(self) -> str:
        return f"SqliteTable({str(self._path)!r}, {self._table!r})"


class SqliteReader:
    """Looks up on a few threads, each with its own connection. Its methods are called on the host's loop."""

    def __init__(self, table: SqliteTable, sql_name: str, schema: LookupSchema, pool_size: int) -> None:
        self._table = table  # never changes
        self._sql_name = sql_name  # never changes
        self._schema = schema  # never changes
        self._answers = AnswerReader(schema, _converter_of, self._complaint, _plain_of)  # never changes
        self._queries: dict[int, str] = {}  # lookups by their number of keys; any thread adds one, which are equal
        self.parallelism = pool_size  # never changes
        self._pool = ThreadPoolExecutor(pool_size, "lookup-sqlite")  # never changes
        self._own = threading.local()  # .connection: the thread's own
        self._lock = threading.Lock()  # leaf lock
        self._connections: list[sqlite3.Connection] = []  # guarded by _lock
        self._closed = False  # written once, under _lock; running queries read it without, and end

    async def open(self) -> None:
        """Does nothing: each thread connects on its first lookup."""

    async def lookup(self, keys: Sequence[LookupKey]) -> Mapping[LookupKey, Sequence[LookupRow] | Exception]:
        answer = await self.lookup_columns(keys)
        return dict(zip(keys, answer.by_place(len(keys)), strict=True))

    async def lookup_columns(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        return await self._run(self._lookup, keys)

    async def scan(self) -> AsyncIterator[Sequence[tuple[LookupKey, LookupRow]]]:
        async for piece in self.scan_columns():
            yield list(zip(piece.keys, rows_of(piece.columns, len(piece.keys)), strict=True))

    async def scan_columns(self) -> AsyncIterator[Scanned]:
        # One cursor is one statement: it reads a snapshot of the table as of its start.
        # It is not closed here, because a thread may still read when this is cancelled; its last reference closes it.
        cursor = await self._run(self._begin_scan)
        while piece := await self._run(self._next_piece, cursor):
            yield piece

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        ending = partial(self._pool.shutdown, cancel_futures=True)
        with ThreadPoolExecutor(1, "lookup-sqlite-close") as waiter:
            await asyncio.get_running_loop().run_in_executor(waiter, ending)
        for connection in connections:
            connection.close()

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._table.connect()
            with self._lock:
                if self._closed:
                    connection.close()
                    raise TableUnavailableError(f"{self._table.name}: the lookup is closed.")
                self._connections.append(connection)
            # Interrupts a running query once the reader is closed.
            connection.set_progress_handler(lambda: self._closed, _STEPS_PER_CHECK)
            connection.text_factory = _text
            self._own.connection = connection
        return connection

    def _lookup(self, keys: Sequence[LookupKey]) -> LookupAnswer:
        connection = self._connection()
        width = len(self._schema.key)
        most = min(_MOST_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
        answers = []
        for start in range(0, len(keys), most):
            some = keys[start : start + most]
            # Few distinct sizes, so that prepared statements are reused; the nulls of the padding match nothing.
            size = min(1 << (len(some) - 1).bit_length(), most)
            query = self._queries.get(size)
            if query is None:
                query = self._queries[size] = lookup_query(_READING, [self._sql_name], self._schema, size)
            values = [_bound(value) for key in some for value in key] + [None] * (width * (size - len(some)))
            with self._table.translated_errors():
                rows = connection.execute(query, values).fetchall()
            answers.append((start, self._answers.found(some, rows)))
        return joined(answers)

    def _begin_scan(self) -> sqlite3.Cursor:
        with self._table.translated_errors():
            return self._connection().execute(scan_query(_READING, [self._sql_name], self._schema))

    def _next_piece(self, cursor: sqlite3.Cursor) -> Scanned | None:
        with self._table.translated_errors():
            rows = cursor.fetchmany(SCAN_ROWS)
        return self._answers.scanned(rows) if rows else None

    def _complaint(self, column: Column, cell: object, key: LookupKey) -> str:
        return (
            f"{self._table.name}: the column {column.name!r} is {column.type}, but the row with "
            f"{shown_key(self._schema.key, key)} holds {quoted(cell)} there. SQLite takes any value; correct it, or "
            f'set types={{{column.name!r}: "string"}} and cast the result.'
        )


def _text(raw: bytes) -> str | bytes:
    """A text; as bytes if it is not UTF-8, so that it fails its own row and not the query."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _type_of(declared: str) -> str | None:
    """The type of a declaration, by SQLite's rules of affinity; None if it determines none."""
    text = declared.strip().upper()
    decimal = re.fullmatch(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", text)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return f"decimal({precision},{scale})" if scale <= precision <= _MAX_PRECISION else "double"
    named = _NAMED.get(re.sub(r"\(.*\)", "", text).strip())
    if named is not None:
        return named
    for parts, type_name in (
        (("INT",), "bigint"),
        (("CHAR", "CLOB", "TEXT"), "string"),
        (("BLOB",), "binary"),
        (("REAL", "FLOA", "DOUB"), "double"),
        (("NUMERIC", "DECIMAL"), "double"),
    ):
        if any(part in text for part in parts):
            return type_name
    return None


def _integer(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _only(int, value)


def _only(kinds: type | tuple[type, ...], value: Any) -> Any:
    if isinstance(value, kinds):
        return value
    raise TypeError


def _binary(value: object) -> object:
    return value.encode() if isinstance(value, str) else _only(bytes, value)


def _boolean(value: object) -> object:
    if value in (0, 1):
        return bool(value)
    raise ValueError


def _timestamp(value: Any) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(value)  # raises a TypeError if it is not a str
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _timestamp_ntz(value: Any) -> datetime.datetime:
    return _timestamp(value).astimezone(datetime.UTC).replace(tzinfo=None)


_CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), lambda value: float(_only((int, float), value))),
    "string": partial(_only, str),
    "binary": _binary,
    "boolean": _boolean,
    "date": datetime.date.fromisoformat,
    "timestamp_ntz": _timestamp_ntz,
    "timestamp": _timestamp,
}


_PLAIN: dict[str, type] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    "string": str,
    "binary": bytes,
}


def _converter_of(column: Column) -> Converter | None:
    """The converter of a column's values; None if SQLite's values cannot have its type."""
    base = base_of(column.type)
    return ToDecimal(column.type) if base == "decimal" else _CONVERTERS.get(base)


def _plain_of(column: Column) -> type | None:
    """The type of SQLite's values that are the column's as they are."""
    return _PLAIN.get(base_of(column.type))


def _bound(value: object) -> object:
    """A key's value as SQLite stores it."""
    if isinstance(value, Decimal | datetime.date):  # a column of numeric affinity converts the text to a number
        return str(value)
    return value
