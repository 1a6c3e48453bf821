"""The SQLite file of a state store: schema, versions, lock, reads and writes.

A commit is durable when it returns (WAL with synchronous=FULL): it survives a killed process and a power failure. The
file is locked while it is open; the kernel releases the lock of a killed process.

Threads: one thread at a time may call, not always the same one.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from statemachines.resourcemanager.statestore.encoding import R, decode
from statemachines.resourcemanager.statestore.errors import StateStoreError, StateStoreVersionError
from statemachines.resourcemanager.statestore.records import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    RecoveredApplication,
    RMState,
)

log = logging.getLogger(__name__)

# Step n migrates a file from version n to n + 1; a new file has version 0.
_STEPS: Final = (
    (
        "CREATE TABLE meta (version INTEGER NOT NULL, epoch INTEGER NOT NULL)",
        "INSERT INTO meta VALUES (0, 0)",
        """CREATE TABLE applications (
            submit_order INTEGER PRIMARY KEY, application_id TEXT NOT NULL UNIQUE, record TEXT NOT NULL
        )""",
        """CREATE TABLE attempts (
            application_id TEXT NOT NULL REFERENCES applications (application_id) ON DELETE CASCADE,
            attempt_id TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (application_id, attempt_id)
        ) WITHOUT ROWID""",
    ),
)
VERSION: Final = len(_STEPS)


class Write(NamedTuple):
    """One statement and its parameters."""

    statement: str
    parameters: tuple[str, ...]


def put_application(app_id: str, record: str) -> Write:
    """Insert or replace; a replaced record keeps its place in the order of submission."""
    return Write(
        "INSERT INTO applications (application_id, record) VALUES (?, ?)"
        " ON CONFLICT (application_id) DO UPDATE SET record = excluded.record",
        (app_id, record),
    )


def put_attempt(app_id: str, attempt_id: str, record: str) -> Write:
    """Insert or replace, if the application is stored."""
    return Write(
        "INSERT INTO attempts SELECT application_id, ?, ? FROM applications WHERE application_id = ?"
        " ON CONFLICT (application_id, attempt_id) DO UPDATE SET record = excluded.record",
        (attempt_id, record, app_id),
    )


def remove_application(app_id: str) -> Write:
    """Remove an application and its attempts."""
    return Write("DELETE FROM applications WHERE application_id = ?", (app_id,))


def remove_attempt(app_id: str, attempt_id: str) -> Write:
    return Write("DELETE FROM attempts WHERE application_id = ? AND attempt_id = ?", (app_id, attempt_id))


class StateDatabase:
    """An open file, created if missing and migrated if older.

    Raises (from any method but `write`):
        StateStoreVersionError: a newer version wrote the file.
        StateStoreError: the file cannot be used; the message says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explaining():
            # No timeout: a process that holds the lock holds it until it ends.
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explaining():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def write(self, writes: Sequence[Write]) -> dict[int, Exception]:
        """Make all writes durable in one commit; returns the errors of those that failed, by index.

        If the commit fails, each write is committed separately, in order, so that bad ones do not affect good ones.
        """
        try:
            self._commit(writes)
            return {}
        except Exception as error:
            log.warning("%s: a commit of %d writes failed, trying one by one: %s", self.path, len(writes), error)
        errors: dict[int, Exception] = {}
        for index, write in enumerate(writes):
            try:
                self._commit((write,))
            except Exception as error:
                errors[index] = error
        return errors

    def load(self) -> RMState:
        state = RMState()
        with self._explaining():
            for app_id, text in self._connection.execute(
                "SELECT application_id, record FROM applications ORDER BY submit_order"
            ):
                state.applications[app_id] = RecoveredApplication(self._decode(app_id, text, ApplicationStateData))
            for app_id, attempt_id, text in self._connection.execute(
                "SELECT application_id, attempt_id, record FROM attempts ORDER BY application_id, attempt_id"
            ):
                attempt = self._decode(attempt_id, text, ApplicationAttemptStateData)
                state.applications[app_id].attempts[attempt_id] = attempt
        return state

    def get_and_increment_epoch(self) -> int:
        with self._explaining():
            self._commit((Write("UPDATE meta SET epoch = epoch + 1", ()),))
            (epoch,) = self._connection.execute("SELECT epoch FROM meta").fetchone()
        return int(epoch) - 1

    def _open(self) -> None:
        for pragma in (
            "locking_mode = EXCLUSIVE",  # before the first access: then WAL needs no shared memory
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",  # where a plain fsync does not reach the disk (macOS)
            "foreign_keys = ON",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._commit((), "EXCLUSIVE")  # takes the lock, which stays
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not tables >= {"meta", "applications", "attempts"}:
            raise StateStoreError(
                self.path, "not a state store but another SQLite database. Give state_store.path another file."
            )
        version = self._connection.execute("SELECT version FROM meta").fetchone()[0] if tables else 0
        if version > VERSION:
            raise StateStoreVersionError(self.path, version, VERSION)
        statements = [statement for step in _STEPS[version:] for statement in step]
        statements.append(f"UPDATE meta SET version = {VERSION}")
        self._commit([Write(statement, ()) for statement in statements])

    def _commit(self, writes: Sequence[Write], mode: str = "IMMEDIATE") -> None:
        """Make all writes durable, or none."""
        execute = self._connection.execute
        execute(f"BEGIN {mode}")
        try:
            for statement, parameters in writes:
                execute(statement, parameters)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # some errors, such as a full disk, roll back by themselves
                execute("ROLLBACK")
            raise

    def _decode(self, id: str, text: str, record: type[R]) -> R:
        try:
            return decode(text, record)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise StateStoreError(
                self.path, f"damaged: the record of {id} is not valid at {where or 'its start'}: {first['msg']}"
            ) from error

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn errors of SQLite into StateStoreErrors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise StateStoreError(self.path, self._explain(error)) from error

    def _explain(self, error: sqlite3.Error) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary result code
        if code == sqlite3.SQLITE_BUSY:
            return (
                "in use: another resource manager or tool has it open. "
                "Close that, or give state_store.path another file."
            )
        if code == sqlite3.SQLITE_NOTADB:
            return "not an SQLite database. Give state_store.path another file."
        if code == sqlite3.SQLITE_CORRUPT:
            return f"damaged: {error}. Restore it from a backup, or move it away to start empty."
        if code == sqlite3.SQLITE_CANTOPEN and self.path.is_dir():
            return "a folder, where a file is expected"
        if code == sqlite3.SQLITE_CANTOPEN and not self.path.parent.is_dir():
            return "cannot be created: its folder does not exist"
        return f"cannot be used: {error}"
