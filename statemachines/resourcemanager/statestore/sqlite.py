"""The state store in an SQLite file: acknowledged writes survive `kill -9` and a power failure.

    central dispatcher --RMStateStoreEvent--> queue --> the store's thread: collect --> one commit --> answers

Writes are collected until the queue is empty: many applications share one wait for the disk, a single one does not wait
for others. The answer to a write is posted after the commit that made it durable (WAL with synchronous=FULL). The file
is locked while it is open; the kernel releases the lock of a killed process.

Threads: any thread may call `SqliteRMStateStore.handle`. The file belongs to the thread that inits and loads, then to
the store's own thread, and once that has ended to the thread that stops the store.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from dispatcher import CompositeService, DispatcherConfig, EventDispatcher
from dispatcher.errors import RejectedExecutionError
from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.statestore.records import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    R,
    RecoveredApplication,
    RMState,
    decode,
    encode,
)
from statemachines.resourcemanager.statestore.store import (
    RMStateStore,
    RMStateStoreState,
    StateStoreError,
    StateStoreVersionError,
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


_PUT_APP: Final = """INSERT INTO applications (application_id, record) VALUES (:app, :record)
    ON CONFLICT (application_id) DO UPDATE SET record = excluded.record"""
_PUT_ATTEMPT: Final = """INSERT INTO attempts SELECT application_id, :entity, :record FROM applications
    WHERE application_id = :app ON CONFLICT (application_id, attempt_id) DO UPDATE SET record = excluded.record"""
# A replaced record keeps its place in the order of submission; an attempt needs its application, and goes with it.
_STATEMENTS: Final[Mapping[str, str]] = {
    "STORE_APP": _PUT_APP,
    "UPDATE_APP": _PUT_APP,
    "REMOVE_APP": "DELETE FROM applications WHERE application_id = :app",
    "STORE_APP_ATTEMPT": _PUT_ATTEMPT,
    "UPDATE_APP_ATTEMPT": _PUT_ATTEMPT,
    "REMOVE_APP_ATTEMPT": "DELETE FROM attempts WHERE application_id = :app AND attempt_id = :entity",
}

_Write = tuple[str, Mapping[str, str | None]]
"""One statement and its parameters."""


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

    def write(self, writes: Sequence[_Write]) -> dict[int, Exception]:
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
            self._commit((("UPDATE meta SET epoch = epoch + 1", {}),))
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
        self._commit([(statement, {}) for statement in statements])

    def _commit(self, writes: Sequence[_Write], mode: str = "IMMEDIATE") -> None:
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


class SqliteRMStateStore(RMStateStore, CompositeService):
    """`init` opens and locks the file; `stop` commits what is queued and closes it.

    Start it before the dispatcher whose writes it takes, and stop it after that one. `init` raises StateStoreError if
    the file cannot be used.
    """

    def __init__(
        self, path: Path, *, batch_size: int = 1000, name: str = "RMStateStore", config: DispatcherConfig | None = None
    ) -> None:
        """`batch_size`: maximum writes per commit. `config`: of the store's own dispatcher."""
        RMStateStore.__init__(self)
        CompositeService.__init__(self, name)
        self._path = path
        self._batch_size = batch_size
        self._database: StateDatabase | None = None
        self._batch: list[tuple[RMStateStoreEvent, _Write]] = []  # collected, not committed; see Threads above
        # Unbounded: the central dispatcher posts here and must not block, and this thread posts back.
        config = (config or DispatcherConfig()).model_copy(update={"queue_capacity": None})
        self.dispatcher = EventDispatcher(self._collect, name, config, idle_action=self._commit)
        """The store's own dispatcher, with its own metrics."""
        self.add_service(self.dispatcher)

    def handle(self, event: RMStateStoreEvent) -> None:
        if not self.dispatcher.handle(event):  # its thread has ended too early
            self._fail(event, RuntimeError(f"{self.name} has stopped"))

    def load_state(self) -> RMState:
        return self._opened().load()

    def get_and_increment_epoch(self) -> int:
        return self._opened().get_and_increment_epoch()

    def service_init(self, config: object) -> None:
        self._database = StateDatabase(self._path)
        super().service_init(config)

    def service_stop(self) -> None:
        try:
            super().service_stop()
        finally:
            # A thread that hangs in a commit keeps the file open.
            if self._database is not None and self.dispatcher.is_stopped():
                self._commit()
                self._database.close()

    def _post(self, event: RMEvent) -> None:
        context = self._context
        assert context is not None  # attached before the first write
        # As mail: a full or draining queue may refuse an event from another thread, and the application would wait
        # forever. Once the mailbox is closed, no application waits any longer.
        with contextlib.suppress(RejectedExecutionError):
            context.execute(lambda: context.post(event))

    def _opened(self) -> StateDatabase:
        assert self._database is not None  # inited
        return self._database

    def _collect(self, event: RMStateStoreEvent) -> None:
        """Store's thread: add a write to the next commit."""
        if self._store_state is RMStateStoreState.FENCED:
            return
        try:
            write = _write_of(event)
        except Exception as error:  # the record cannot be encoded
            self._fail(event, error)
            return
        self._batch.append((event, write))
        if len(self._batch) >= self._batch_size:
            self._commit()

    def _commit(self) -> bool:
        """Idle action of the store's thread: commit the collected writes, then answer them."""
        batch, self._batch = self._batch, []
        if batch:
            errors = self._opened().write([write for _, write in batch])
            for index, (event, _) in enumerate(batch):
                if index in errors:
                    self._fail(event, errors[index])
                else:
                    self._answer(event)
        return False


def _write_of(event: RMStateStoreEvent) -> _Write:
    entity, kind = event.entity, event.type._name_
    app = application_of(entity) if kind.endswith("_ATTEMPT") else entity
    record = None if kind.startswith("REMOVE") else encode(event.state)
    return _STATEMENTS[kind], {"app": app, "entity": entity, "record": record}
