"""Connections to PostgreSQL: their settings, and errors without the password, sorted by whether a retry may help.

psycopg is imported only when it is needed. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import psycopg

# The only settings that messages show: any other may hold a password or lead to one.
_SHOWN: Final = ("host", "port", "dbname")
_CONNECT_TIMEOUT_S: Final = 10
_LASTING_STATES: Final = ("0A", "0L", "0P", "22", "23", "28", "3D", "3F", "42")
"""Classes of SQL states that a retry does not change: rights, passwords, names, types."""
_STATES_OF_VALUES: Final = ("21", "22", "23", "2F", "38", "39", "54", "P0", "XX")
"""Classes of SQL states that a value in a row may cause, also one that a function of the user's has raised."""
_LASTING_TEXTS: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "does not exist",
    "permission denied",
    "is not permitted to log in",
    "is not currently accepting connections",
    "server does not support ssl",
    "certificate verify failed",
    "certificate does not match",
    "root certificate file",
)
"""In refusals of a connection, for which libpq passes on no SQL state."""

Conninfo = str | Callable[[], str]
"""libpq's connection string, or a function that returns one."""


class ConninfoError(ValueError):
    """libpq cannot parse the connection string. The message does not quote it: it may hold the password."""


class MissingDriverError(ImportError):
    """psycopg is not installed."""


def require_psycopg(what: str) -> None:
    """Raise MissingDriverError unless psycopg is installed; `what` needs it."""
    try:
        import psycopg  # noqa: F401
    except ImportError as missing:
        raise MissingDriverError(
            f"{what} needs psycopg ({missing}). Run: pip install 'central-dispatcher[postgres]'"
        ) from missing


def settings_of(conninfo: Conninfo, what: str) -> dict[str, Any]:
    """The settings in `conninfo`, which belongs to `what`. Calls it if it is a function.

    Raises:
        ConninfoError: libpq cannot parse it.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    text = conninfo() if callable(conninfo) else conninfo
    try:
        return dict(conninfo_to_dict(text))
    except ProgrammingError:
        # Not chained: libpq quotes the text that it cannot parse, which may be the password.
        raise ConninfoError(
            f'the conninfo of {what} cannot be parsed. Write it as "host=... port=... dbname=... user=..." or '
            '"postgresql://user@host:port/dbname", with special characters of a password percent-encoded in the latter.'
        ) from None


def connection_settings(conninfo: Conninfo, what: str, application: str) -> dict[str, Any]:
    """The arguments of a connection, including the password. Raises as `settings_of`."""
    settings = settings_of(conninfo, what)
    settings.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
    settings.setdefault("application_name", application)
    settings.setdefault("client_encoding", "utf8")
    return settings


def server_of(conninfo: Conninfo, what: str) -> str:
    """The server in messages. Raises as `settings_of`."""
    if callable(conninfo):
        return "a server"
    settings = settings_of(conninfo, what)
    return " ".join(f"{key}={settings[key]}" for key in _SHOWN if settings.get(key)) or "the default server"


def is_passing(error: psycopg.Error) -> bool:
    """Whether the same may succeed later: the server is away, starts, has no room, or has given up a query.

    A wrong password, an unknown database and a missing right are not passing, though psycopg raises an OperationalError
    for them as well. A refused connection has a text only; if that is in another language than English, it counts as
    passing.
    """
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    if error.sqlstate is not None:
        return not error.sqlstate.startswith(_LASTING_STATES)
    return not _is_refusal(str(error))


def is_of_values(error: psycopg.Error) -> bool:
    """Whether the values that a statement met may be at fault, so that it may succeed for others."""
    return (error.sqlstate or "").startswith(_STATES_OF_VALUES)


def _is_refusal(text: str) -> bool:
    """Whether the server, or libpq, has refused for good; with several addresses, whether all have."""
    attempts = [line.casefold() for line in text.splitlines() if line.strip()]
    failures = [line for line in attempts if "failed:" in line or "error:" in line or "fatal:" in line] or attempts
    return bool(failures) and all(any(part in line for part in _LASTING_TEXTS) for line in failures)


def safe_message(error: psycopg.Error, settings: Mapping[str, Any]) -> str:
    """The error's message in one line, with passwords masked."""
    text = " ".join(str(error.diag.message_primary or error).split()) or type(error).__name__
    for key, value in settings.items():
        if "password" in key and value:
            text = text.replace(str(value), "***")
    return text
