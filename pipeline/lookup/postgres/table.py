"""PostgreSQL tables as lookup tables. Needs psycopg, which `pip install 'central-dispatcher[postgres]'` brings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.lookup.errors import LookupTableError, TableUnavailableError
from pipeline.lookup.postgres.types import column_of
from pipeline.lookup.schema import Column, LookupSchema, choose

if TYPE_CHECKING:
    import psycopg

    from pipeline.lookup.postgres.reader import PostgresReader

# What of a connection's settings is shown. All others may hold a password, or lead to one.
_SHOWN = ("host", "port", "dbname")
_CONNECT_TIMEOUT_S = 10

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


class PostgresTable:
    """A table or view of a PostgreSQL server, read in read-only sessions.

    `conninfo`: libpq's, `postgresql://user@host/db` or `host=... dbname=...`; or a function that returns one, which is
    called in each process, for a password that is not to travel with the job. What libpq takes from a process's
    environment (PGPASSWORD, PGPASSFILE) counts, too. `table`: `name` or `schema.name`; with `schema` given, a name as
    it is. `columns`: those to join, None for all; the key's need not be among them.
    `max_connections`: of one worker process; opened when needed, kept until its end. `query_timeout_s`: for the answer
    to one batch. `prepare_threshold`: psycopg's; None for poolers that cannot keep prepared statements.

    A numeric without precision is read as decimal(38,18), rounded. Types that Spark does not have come as text.
    Names, text and numbers are compared by the server, by the column's own collation.
    """

    can_scan = True

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
        if max_connections < 1:
            raise LookupTableError(f"max_connections is {max_connections}; a lookup needs at least 1.")
        if not query_timeout_s > 0:
            raise LookupTableError(f"query_timeout_s is {query_timeout_s}; it takes more than 0 seconds.")
        if isinstance(columns, str):
            raise LookupTableError(f"columns is {columns!r}; it is a list of names, or None for all.")
        _require_psycopg()
        self._conninfo = conninfo
        self.parts = (schema, table) if schema is not None else tuple(table.split(".", 1))
        self._columns = None if columns is None else tuple(columns)
        self._where = "a server" if callable(conninfo) else _place(_settings(conninfo))
        self.max_connections = max_connections
        self.query_timeout_s = query_timeout_s
        self.prepare_threshold = prepare_threshold

    @property
    def name(self) -> str:
        return f"PostgreSQL table {'.'.join(self.parts)!r} of {self._where}"

    def connection_settings(self) -> dict[str, Any]:
        """What to connect with: the password is among it. Calls a function that was given as `conninfo`.

        Raises:
            LookupTableError: libpq cannot read it.
        """
        settings = _settings(self._conninfo() if callable(self._conninfo) else self._conninfo)
        settings.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
        settings.setdefault("application_name", "central-dispatcher lookup")
        settings.setdefault("client_encoding", "utf8")
        return settings

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        import psycopg

        from pipeline.lookup.postgres.queries import lookup_query

        settings = self.connection_settings()
        with self.told(settings), psycopg.connect(**settings, autocommit=True) as connection:
            schema = choose(self.name, self._present(connection), key_columns, self._columns)
            # Without a key: to learn here, not in a worker, that the user may not read the table.
            connection.execute(lookup_query(self.parts, schema), [[] for _ in schema.key])
        return schema

    def _present(self, connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Column]:
        from pipeline.lookup.postgres.queries import identifier

        found = connection.execute(_RELATION, [identifier(self.parts).as_string(connection)]).fetchone()
        if found is None or found[0] is None:
            names = ", ".join(name for (name,) in connection.execute(_TABLES)) or "none that this user may see"
            raise LookupTableError(f"{self.name}: there is no such table. Tables there: {names}.")
        return {row[0]: column_of(*row) for row in connection.execute(_COLUMNS, [found[0]])}

    def reader(self, schema: LookupSchema) -> PostgresReader:
        from pipeline.lookup.postgres.reader import PostgresReader

        return PostgresReader(self, schema)

    @contextlib.contextmanager
    def told(self, settings: dict[str, Any]) -> Iterator[None]:
        """Tell psycopg's errors in our own words, in one line, without a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            kind = TableUnavailableError if passing else LookupTableError
            # Not chained: psycopg's own error is not known to be free of secrets.
            raise kind(f"{self.name}: {_safe(error, settings)}") from None

    def __repr__(self) -> str:
        return f"PostgresTable({self._where}, {'.'.join(self.parts)!r})"


def _require_psycopg() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise LookupTableError(
            f"a PostgresTable needs psycopg ({missing}). Run: pip install 'central-dispatcher[postgres]'"
        ) from missing


def _settings(conninfo: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(conninfo))
    except ProgrammingError:
        # libpq quotes what it cannot read, which may be the password.
        raise LookupTableError(
            'the conninfo of a PostgresTable cannot be read. Write it as "host=... port=... dbname=... user=..." or '
            '"postgresql://user@host:port/dbname", with special characters of a password percent-encoded in the latter.'
        ) from None


def _place(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={settings[key]}" for key in _SHOWN if settings.get(key)) or "the default server"


def _safe(error: psycopg.Error, settings: dict[str, Any]) -> str:
    """The error's message in one line; the values of settings that are not to be shown are blotted out."""
    text = " ".join(str(error.diag.message_primary or error).split()) or type(error).__name__
    for key, value in settings.items():
        if "password" in key and value:
            text = text.replace(str(value), "***")
    return text
