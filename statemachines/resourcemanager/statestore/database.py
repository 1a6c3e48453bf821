"""The SQLite file of a state store: opened, checked, migrated, read and written.

One thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from dispatcher.util.files import Permissions, check_file, explain, open_file
from dispatcher.util.sqlite import Fault, connect, read_pragma, transaction, use_wal
from dispatcher.util.terminal import printable
from statemachines.resourcemanager.records.ids import application_of
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    HostLists,
    NodeCapacity,
    NodeLabel,
    Origin,
    QueueChangeList,
    R,
    RecoveredApplication,
    RMState,
    decode,
)
from statemachines.resourcemanager.statestore.store import StateStoreError, StateStoreVersionError

log: logging.Logger = logging.getLogger(__name__)

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
    # Since version 2, submissions have a launch context. Programs before would call such a record damaged.
    ("CREATE TABLE node_labels (node_id TEXT PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID",),
    (
        "CREATE TABLE node_capacities (node_id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE host_lists (number INTEGER PRIMARY KEY CHECK (number = 0), record TEXT NOT NULL)",
    ),
    (
        "ALTER TABLE node_labels ADD COLUMN origin TEXT",
        "ALTER TABLE node_capacities ADD COLUMN origin TEXT",
        "CREATE TABLE queue_changes (number INTEGER PRIMARY KEY CHECK (number = 0), record TEXT NOT NULL)",
    ),
)
VERSION: Final = len(_STEPS)
_TABLES: Final = frozenset(("meta", "applications", "attempts"))  # of every version
_SINCE_LABELS: Final = 2
_SINCE_CAPACITIES: Final = 3
_SINCE_QUEUES: Final = 4
_LATER_TABLES: Final = (  # the version that brought each
    (_SINCE_LABELS, "node_labels"),
    (_SINCE_CAPACITIES, "node_capacities"),
    (_SINCE_CAPACITIES, "host_lists"),
    (_SINCE_QUEUES, "queue_changes"),
)
_MOST_RESTARTS: Final = 2**31
_SMALLEST: Final = 512
"""Bytes of the smallest SQLite database but an empty file, which is a new one."""
_RESTORE: Final = "Restore it from a backup, or move it away to start empty."
_NO_CHECKPOINT_ON_CLOSE: Final = 1006  # sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, since Python 3.12
_LONGEST: Final = 300
"""Characters of a text from the file in an error's line."""

Write = tuple[str, Mapping[str, str | None]]
"""One statement and its parameters."""


class StateDatabase:
    """An open file, created if missing and migrated if older.

    Everything in it is checked before anything is written: a damaged file stays as it is.

    Raises (from any method but `write`):
        StateStoreVersionError: a newer version wrote the file.
        StateStoreError: the file cannot be used; the message says why.
    """

    def __init__(self, path: Path, permissions: Permissions = Permissions.private) -> None:
        """`permissions`: of a new file; SQLite gives the files next to it the same."""
        self.path = path
        self._loaded: RMState | None = None  # what was read while it was opened, until the first write
        has_log = self._prepare(permissions)
        with self._explaining():
            # No timeout: a process that holds the lock holds it until it ends.
            # No cached statements: without a GIL, the thread that made one may drop it after `close`, and SQLite keeps
            # the lock until then.
            self._connection = connect(path, busy_timeout_s=0, cached_statements=0)
        try:
            with self._explaining():
                self._open()
        except BaseException:
            if has_log and hasattr(self._connection, "setconfig"):  # Python 3.12: leave the log of a crash to a repair
                self._connection.setconfig(_NO_CHECKPOINT_ON_CLOSE)
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def write(self, writes: Sequence[Write]) -> dict[int, Exception]:
        """Make all writes durable in one commit; returns the errors of those that failed, by index.

        If the commit fails, each write is committed separately, in order, so that bad ones do not affect good ones.
        """
        self._loaded = None
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

    def check(self, size: int) -> None:
        """Raise OSError or sqlite3.Error unless there is room for `size` more bytes and a commit succeeds."""
        with tempfile.TemporaryFile(dir=self.path.parent) as file:
            file.write(os.urandom(size))  # random: a file system may keep zeros in no room
            file.flush()
            os.fsync(file.fileno())
        self._commit((("UPDATE meta SET epoch = epoch", {}),))

    def load(self) -> RMState:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            with self._explaining():
                loaded = self._read()
        return loaded

    def get_and_increment_epoch(self) -> int:
        with self._explaining():
            self._commit((("UPDATE meta SET epoch = epoch + 1", {}),))
            (epoch,) = self._connection.execute("SELECT epoch FROM meta").fetchone()
        return int(epoch) - 1

    def _prepare(self, permissions: Permissions) -> bool:
        """Refuse what SQLite would wait for, or repair by removing it; make a missing file with its permissions.

        Returns whether a write-ahead log lies next to the file, as after a crash.
        """
        try:
            others = [self.path.with_name(self.path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
            for file in (self.path, *others):
                check_file(file)
            if not self.path.exists():
                with contextlib.suppress(OSError):  # SQLite says why
                    os.close(open_file(self.path, os.O_CREAT | os.O_RDWR, permissions.file_mode))
            elif self.path.is_file() and self.path.stat().st_size < _SMALLEST:
                # SQLite takes it for a new database, and removes the log next to it.
                left = next((file.name for file in others if file.exists() and _has_data(file)), None)
                if left is not None:
                    raise self._damaged(f"it is empty, but {left} next to it is not")
                if size := self.path.stat().st_size:
                    raise self._damaged(f"it is cut off: {size} bytes")
            return others[0].exists()
        except OSError as error:
            raise StateStoreError(self.path, f"cannot be used: {explain(error, self.path.parent)}") from error

    def _open(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first access: then WAL needs no shared memory
        execute("BEGIN EXCLUSIVE")  # takes the lock, which stays
        try:
            version = self._checked_version()
        finally:
            if self._connection.in_transaction:
                execute("ROLLBACK")  # a commit without writes would mend the header of a damaged file
        use_wal(self._connection, "FULL")
        execute("PRAGMA foreign_keys = ON")
        if version < VERSION:
            statements = [statement for step in _STEPS[version:] for statement in step]
            statements.append(f"UPDATE meta SET version = {VERSION}")
            self._commit([(statement, {}) for statement in statements])

    def _checked_version(self) -> int:
        """The file's version, after a look at all that is in it; 0: it is empty. Writes nothing."""
        execute = self._connection.execute
        tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return 0
        if not tables >= _TABLES:
            raise StateStoreError(
                self.path, "not a state store but another SQLite database. Give state_store.path another file."
            )
        rows = execute("SELECT version, epoch FROM meta").fetchall()
        if len(rows) != 1:
            raise self._damaged(f"its table meta has {len(rows)} rows instead of 1")
        [(version, epoch)] = rows
        if type(version) is not int or version < 1:
            raise self._damaged(f"its version is {_shown(version)}")
        if version > VERSION:
            raise StateStoreVersionError(self.path, version, VERSION)
        for since, table in _LATER_TABLES:
            if version >= since and table not in tables:
                raise self._damaged(f"its table {table} is missing")
        if type(epoch) is not int or not 0 <= epoch < _MOST_RESTARTS:
            raise self._damaged(f"its epoch, the number of starts, is {_shown(epoch)}")
        # Without this, a damaged page may hide rows, and later writes go to the wrong ones.
        found = read_pragma(self._connection, "integrity_check(1)")
        if found != "ok":
            raise self._damaged(_line(found))
        self._loaded = self._read(version)
        return version

    def _read(self, version: int = VERSION) -> RMState:
        state = RMState()
        applications = state.applications
        for app_id, text in self._connection.execute(
            "SELECT application_id, record FROM applications ORDER BY submit_order"
        ):
            data = self._decode(app_id, text, ApplicationStateData)
            self._check_id(app_id, data.application_id)
            applications[app_id] = RecoveredApplication(data)
        for app_id, attempt_id, text in self._connection.execute(
            "SELECT application_id, attempt_id, record FROM attempts ORDER BY application_id, attempt_id"
        ):
            attempt = self._decode(attempt_id, text, ApplicationAttemptStateData)
            self._check_id(attempt_id, attempt.attempt_id)
            if app_id not in applications or application_of(attempt_id) != app_id:
                problem = "is of another" if app_id in applications else "is not stored"
                raise self._damaged(f"{_shown(attempt_id)} has the application {_shown(app_id)}, which {problem}")
            applications[app_id].attempts[attempt_id] = attempt
        self._read_changes(state, version)
        return state

    def _read_changes(self, state: RMState, version: int) -> None:
        """What administrators changed."""
        execute, origin = self._connection.execute, "origin" if version >= _SINCE_QUEUES else "NULL"
        if version >= _SINCE_LABELS:
            for node_id, label, by in execute(f"SELECT node_id, label, {origin} FROM node_labels"):
                if type(node_id) is not str or type(label) is not str:
                    raise self._damaged(f"the label of node {_shown(node_id)} is {_shown(label)}, not a text")
                state.node_labels[node_id] = NodeLabel(label, self._origin(node_id, by))
        if version >= _SINCE_CAPACITIES:
            for node_id, text, by in execute(f"SELECT node_id, record, {origin} FROM node_capacities"):
                capacity = self._decode(node_id, text, Resource)
                if not capacity.is_possible():
                    raise self._damaged(f"no node can have the capacity of {_shown(node_id)}, {_line(str(capacity))}")
                state.node_capacities[node_id] = NodeCapacity(capacity, self._origin(node_id, by))
            for (text,) in execute("SELECT record FROM host_lists"):
                state.host_lists = self._decode("host_lists", text, HostLists)
        if version >= _SINCE_QUEUES:
            for (text,) in execute("SELECT record FROM queue_changes"):
                state.queue_changes = self._decode("queue_changes", text, QueueChangeList)

    def _origin(self, node_id: str, text: str | None) -> Origin | None:
        return None if text is None else self._decode(node_id, text, Origin)

    def _commit(self, writes: Sequence[Write]) -> None:
        """Make all writes durable, or none."""
        with transaction(self._connection):
            for statement, parameters in writes:
                self._connection.execute(statement, parameters)

    def _decode(self, id: str, text: str, record: type[R]) -> R:
        if type(id) is not str or type(text) is not str:
            what = "the id" if type(id) is not str else "the record"
            value = id if type(id) is not str else text
            raise self._damaged(f"{what} of {_shown(id)} is {_shown(value)}, not a text")
        try:
            return decode(text, record)
        except ValidationError as error:
            first = error.errors()[0]
            where = _line(".".join(map(str, first["loc"])))
            problem = _line(first["msg"])
            raise self._damaged(
                f"the record of {_line(id)} is not valid at {where or 'its start'}: {problem}"
            ) from error

    def _check_id(self, id: str, recorded: str) -> None:
        if recorded != id:
            raise self._damaged(f"the record of {_line(id)} is of {_line(recorded)}")

    def _damaged(self, problem: str) -> StateStoreError:
        return StateStoreError(self.path, f"damaged: {problem}. {_RESTORE}")

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn errors of SQLite into StateStoreErrors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise StateStoreError(self.path, self._explain(error)) from error
        except UnicodeDecodeError as error:
            raise self._damaged(f"a text in it is not UTF-8, at its byte {error.start}") from error

    def _explain(self, error: sqlite3.Error) -> str:
        match Fault.of(error):
            case Fault.LOCKED:
                return (
                    "in use: another resource manager or tool has it open. "
                    "Close that, or give state_store.path another file."
                )
            case Fault.NO_DATABASE:
                return "not an SQLite database. Give state_store.path another file."
            case Fault.DAMAGED:
                return f"damaged: {_line(str(error))}. {_RESTORE}"
            case Fault.NOT_OPENED if self.path.is_dir():
                return "a folder, where a file is expected"
            case Fault.NOT_OPENED if not self.path.parent.is_dir():
                return "cannot be created: its folder does not exist"
        if "Could not decode to UTF-8" in str(error):
            return f"damaged: a text in it is not UTF-8. {_RESTORE}"
        return f"cannot be used: {_line(str(error))}"


def _line(text: str) -> str:
    """A text from the file, which may hold anything, as a part of one line."""
    return printable("; ".join(text[:_LONGEST].splitlines()))


def _has_data(file: Path) -> bool:
    """Whether a file next to an empty database may hold some of its data.

    A process that is killed while it creates the database leaves a rollback journal: it says that the database had 0
    pages before, in the 4 bytes from 16 on, or nothing yet.
    """
    if not file.name.endswith("-journal"):
        return file.stat().st_size > 0
    with file.open("rb") as journal:
        return any(journal.read(20)[16:])


def _shown(value: object) -> str:
    """A value from the file in an error's line."""
    return repr(value[:_LONGEST] if isinstance(value, (str, bytes)) else value)
