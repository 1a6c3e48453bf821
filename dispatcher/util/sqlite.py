"""SQLite files: connections, transactions, the WAL mode, and what an error says about the file.

A connection here is in autocommit mode, so that each transaction begins and ends where the code says. Threads may
share it, but only one at a time may use it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal


class Fault(Enum):
    """What an SQLite error says about the file. Each value has the prefixes of the errors' names."""

    LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT")  # a retry may succeed
    DAMAGED = ("SQLITE_CORRUPT",)
    NO_DATABASE = ("SQLITE_NOTADB",)
    NOT_OPENED = ("SQLITE_CANTOPEN",)
    NOT_ALLOWED = ("SQLITE_PERM", "SQLITE_READONLY", "SQLITE_AUTH")
    DISK_FULL = ("SQLITE_FULL",)
    DISK = ("SQLITE_IOERR",)
    STATEMENT = ("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_TOOBIG")  # or the values that it met
    OTHER = ("",)

    @classmethod
    def of(cls, error: sqlite3.Error) -> Fault:
        name = getattr(error, "sqlite_errorname", "")
        return next(fault for fault in cls if name.startswith(fault.value))


def connect(
    path: Path, *, busy_timeout_s: float, read_only: bool = False, cached_statements: int = 128
) -> sqlite3.Connection:
    """Open the file, and create it unless `read_only`. `busy_timeout_s`: how long to wait for its lock."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode=ro" if read_only else path,
        uri=read_only,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=cached_statements,
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all writes of the block together, or none of them. Takes the lock for writing at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors, such as a full disk, roll back by themselves
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def use_wal(connection: sqlite3.Connection, synchronous: Literal["NORMAL", "FULL"]) -> str:
    """Set the WAL mode, and return the file's mode: a different one if the file system does not support WAL.

    `synchronous`: with "FULL", a commit survives a power failure; with "NORMAL", the last ones may be lost.
    """
    mode = str(read_pragma(connection, "journal_mode = WAL"))
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    if synchronous == "FULL":
        connection.execute("PRAGMA fullfsync = ON")  # where a plain fsync does not reach the disk (macOS)
    return mode


def read_pragma(connection: sqlite3.Connection, pragma: str) -> Any:
    """The first value that a pragma returns."""
    return connection.execute(f"PRAGMA {pragma}").fetchall()[0][0]  # all rows: an unfinished statement keeps its lock


def or_update(key: Sequence[str], columns: Sequence[str]) -> str:
    """The end of an INSERT that updates these columns if the key has a row already. PostgreSQL takes it as well."""
    return f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in columns)}"
