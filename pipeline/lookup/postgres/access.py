"""Access to a PostgreSQL table: connection settings, limits, and errors without the password.

Pickles with its table; psycopg is imported only when it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.lookup.errors import LookupTableError, TableUnavailableError

if TYPE_CHECKING:
    import psycopg

# The only settings that messages show: any other may hold a password or lead to one.
_SHOWN = ("host", "port", "dbname")
_CONNECT_TIMEOUT_S = 10


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
        if callable(self.conninfo):
            return "a server"
        settings = _settings(self.conninfo)
        return " ".join(f"{key}={settings[key]}" for key in _SHOWN if settings.get(key)) or "the default server"

    @property
    def name(self) -> str:
        return f"PostgreSQL table {'.'.join(self.parts)!r} of {self.where}"

    def connection_settings(self) -> dict[str, Any]:
        """The arguments of a connection, including the password. Calls `conninfo` if it is a function.

        Raises:
            LookupTableError: libpq cannot parse it.
        """
        settings = _settings(self.conninfo() if callable(self.conninfo) else self.conninfo)
        settings.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
        settings.setdefault("application_name", "central-dispatcher lookup")
        settings.setdefault("client_encoding", "utf8")
        return settings

    @contextlib.contextmanager
    def translated_errors(self, settings: dict[str, Any]) -> Iterator[None]:
        """Raise psycopg's errors as this package's, in one line without a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            kind = TableUnavailableError if passing else LookupTableError
            # Not chained: psycopg's own error may contain secrets.
            raise kind(f"{self.name}: {_safe(error, settings)}") from None


def require_psycopg() -> None:
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
        # Not chained: libpq quotes the text that it cannot parse, which may be the password.
        raise LookupTableError(
            'the conninfo of a PostgresTable cannot be parsed. Write it as "host=... port=... dbname=... user=..." or '
            '"postgresql://user@host:port/dbname", with special characters of a password percent-encoded in the latter.'
        ) from None


def _safe(error: psycopg.Error, settings: dict[str, Any]) -> str:
    """The error's message in one line, with passwords masked."""
    text = " ".join(str(error.diag.message_primary or error).split()) or type(error).__name__
    for key, value in settings.items():
        if "password" in key and value:
            text = text.replace(str(value), "***")
    return text
