"""Access to a PostgreSQL table: connection settings, limits, and errors without the password.

Pickles with its table; psycopg is imported only when it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline import postgres
from pipeline.lookup.errors import LookupTableError, TableUnavailableError

_WHAT: Final = "a PostgresTable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAccess:
    """How a reader reaches its table. Pickles if `conninfo`, which may be a function, does."""

    conninfo: str | Callable[[], str] = field(repr=False)
    parts: tuple[str, ...]
    """(table,) or (schema, table)."""
    max_connections: int
    query_timeout_s: float
    prepare_threshold: int | None

    @property
    def where(self) -> str:
        try:
            return postgres.server_of(self.conninfo, _WHAT)
        except postgres.ConninfoError as error:
            raise LookupTableError(str(error)) from None

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

    @contextlib.contextmanager
    def translated_errors(self, settings: dict[str, Any]) -> Iterator[None]:
        """Raise psycopg's errors as this package's, in one line without a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            kind = TableUnavailableError if postgres.is_passing(error) else LookupTableError
            # Not chained: psycopg's own error may contain secrets.
            raise kind(f"{self.name}: {postgres.safe_message(error, settings)}") from None


def require_psycopg() -> None:
    try:
        postgres.require_psycopg(_WHAT)
    except postgres.MissingDriverError as missing:
        raise LookupTableError(str(missing)) from missing
