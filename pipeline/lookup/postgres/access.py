"""How a PostgreSQL table is reached: the connection's settings, its limits, and errors without a password.

It travels with its table; psycopg is imported only when it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.lookup.errors import LookupTableError, TableUnavailableError

if TYPE_CHECKING:
    import psycopg

# What of a connection's settings is shown. All others may hold a password, or lead to one.
_SHOWN = ("host", "port", "dbname")
_CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAccess:
    """What a table's reader needs to know. Pickles if a function as `conninfo` does."""

    conninfo: str | Callable[[], str] = field(repr=False)
    parts: tuple[str, ...]
    """The table's name, perhaps behind its schema's."""
    max_connections: int
    query_timeout_s: float
    prepare_threshold: int | None

    @property
    def where(self) -> str:
        return "a server" if callable(self.conninfo) else _place(_settings(self.conninfo))

    @property
    def name(self) -> str:
        return f"PostgreSQL table {'.'.join(self.parts)!r} of {self.where}"

    def connection_settings(self) -> dict[str, Any]:
        """What to connect with: the password is among it. Calls a function that was given as `conninfo`.

        Raises:
            LookupTableError: libpq cannot read it.
        """
        settings = _settings(self.conninfo() if callable(self.conninfo) else self.conninfo)
        settings.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
        settings.setdefault("application_name", "central-dispatcher lookup")
        settings.setdefault("client_encoding", "utf8")
        return settings

    @contextlib.contextmanager
    def translated_errors(self, settings: dict[str, Any]) -> Iterator[None]:
        """Tell psycopg's errors in our own words, in one line, without a password."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            kind = TableUnavailableError if passing else LookupTableError
            # Not chained: psycopg's own error is not known to be free of secrets.
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
