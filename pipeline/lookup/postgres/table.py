"""PostgreSQL tables as lookup tables. Requires psycopg: `pip install 'central-dispatcher[postgres]'`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.postgres.access import PostgresAccess, require_psycopg
from pipeline.lookup.postgres.types import column_of
from pipeline.lookup.schema import Column, LookupReader, LookupSchema, choose
from pipeline.streaming.number_checks import require_number

if TYPE_CHECKING:
    import psycopg

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

    `conninfo`: libpq's, `postgresql://user@host/db` or `host=... dbname=...`; or a function that returns one. The
    function is called in each process, so the password need not be pickled with the job. libpq also reads the process's
    environment (PGPASSWORD, PGPASSFILE). `table`: `name` or `schema.name`; with `schema` given, the name verbatim.
    `columns`: the columns to join, None for all; the key columns are read in any case.
    `max_connections`: per worker process, opened on demand and kept until the reader closes. `query_timeout_s`: for the
    answer to one batch. `prepare_threshold`: psycopg's; None for poolers without prepared statements.

    A numeric without precision is read as decimal(38,18), rounded. Types that Spark does not have are read as text.
    The server compares keys, text by the column's collation.
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
        require_number("max_connections", max_connections, least=1, whole=True, error=LookupTableError)
        require_number("query_timeout_s", query_timeout_s, above=0, error=LookupTableError)
        if prepare_threshold is not None:
            require_number("prepare_threshold", prepare_threshold, least=0, whole=True, error=LookupTableError)
        if isinstance(columns, str):
            raise LookupTableError(f"columns is {columns!r}; give a list of names, or None for all.")
        require_psycopg()
        self._columns = None if columns is None else tuple(columns)
        self._access = PostgresAccess(
            conninfo=conninfo,
            parts=(schema, table) if schema is not None else tuple(table.split(".", 1)),
            max_connections=max_connections,
            query_timeout_s=query_timeout_s,
            prepare_threshold=prepare_threshold,
        )
        self.name = self._access.name

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        import psycopg

        from pipeline.lookup.postgres.reader import lookup_query

        settings = self._access.connection_settings()
        with self._access.translated_errors(settings), psycopg.connect(**settings, autocommit=True) as connection:
            schema = choose(self.name, self._present(connection), key_columns, self._columns)
            # A query without keys: missing read permission surfaces here, not in a worker.
            connection.execute(lookup_query(self._access.parts, schema), [[] for _ in schema.key])
        return schema

    def _present(self, connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Column]:
        from psycopg import sql

        found = connection.execute(_RELATION, [sql.Identifier(*self._access.parts).as_string(connection)]).fetchone()
        if found is None or found[0] is None:
            names = ", ".join(name for (name,) in connection.execute(_TABLES)) or "none that this user may see"
            raise LookupTableError(f"{self.name} does not exist. Existing tables: {names}.")
        return {row[0]: column_of(*row) for row in connection.execute(_COLUMNS, [found[0]])}

    def reader(self, schema: LookupSchema) -> LookupReader:
        from pipeline.lookup.postgres.reader import PostgresReader

        return PostgresReader(self._access, schema)

    def __repr__(self) -> str:
        return f"PostgresTable({self._access.where}, {'.'.join(self._access.parts)!r})"
