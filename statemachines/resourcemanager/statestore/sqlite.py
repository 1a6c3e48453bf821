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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dispatcher import CompositeService, DispatcherConfig, EventDispatcher
from dispatcher.errors import RejectedExecutionError
from dispatcher.util.files import Permissions, PermissionsName
from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent, RMStateStoreEventType
from statemachines.resourcemanager.records.ids import application_of
from statemachines.resourcemanager.records.stored_state import RMState, encode
from statemachines.resourcemanager.statestore.database import StateDatabase, Write
from statemachines.resourcemanager.statestore.store import RMStateStore, RMStateStoreState

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
    "STORE_NODE_LABEL": "INSERT OR REPLACE INTO node_labels VALUES (:entity, :record)",
}


class SqliteRMStateStore(RMStateStore, CompositeService):
    """Stores the state in an SQLite file: `init` opens and locks it, `stop` commits what is queued and closes it.

    Start it before the dispatcher whose writes it takes, and stop it afterwards. If the file can't be used, `init`
    raises StateStoreError.

    `batch_size`: maximum writes per commit.
    `config`: of the store's dispatcher.
    `permissions`: who besides its owner can read the file, if it's created.
    """

    def __init__(
        self,
        path: Path,
        *,
        batch_size: int = 1000,
        name: str = "RMStateStore",
        config: DispatcherConfig | None = None,
        permissions: PermissionsName = "private",
    ) -> None:
        RMStateStore.__init__(self)
        CompositeService.__init__(self, name)
        self._path = path.absolute()  # a daemon may change its directory later
        self._batch_size = batch_size
        self._permissions = Permissions[permissions]
        self._database: StateDatabase | None = None
        self._batch: list[tuple[RMStateStoreEvent, Write]] = []  # collected, not committed; see Threads above
        # Unbounded: the central dispatcher posts here and must not block, and this thread posts back.
        config = (config or DispatcherConfig()).model_copy(update={"queue_capacity": None})
        self.dispatcher = EventDispatcher(self._collect, name, config=config, idle_action=self._commit)
        """The store's dispatcher, with separate metrics."""
        self.add_service(self.dispatcher)

    def handle(self, event: RMStateStoreEvent) -> None:
        if not self.dispatcher.handle(event):  # its thread has ended too early
            self._fail(event, RuntimeError(f"{self.name} has stopped"))

    def load_state(self) -> RMState:
        return self._opened().load()

    def get_and_increment_epoch(self) -> int:
        return self._opened().get_and_increment_epoch()

    def service_init(self, config: object) -> None:
        self._database = StateDatabase(self._path, self._permissions)
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
        # forever.
        self._execute(lambda: context.post(event))

    def _execute(self, function: Callable[[], object]) -> None:
        assert self._context is not None  # attached before the first write
        # Once the mailbox is closed, no application and no client waits any longer.
        with contextlib.suppress(RejectedExecutionError):
            self._context.execute(function)

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


def _write_of(event: RMStateStoreEvent) -> Write:
    entity, kind = event.entity, event.type._name_
    app = application_of(entity) if kind.endswith("_ATTEMPT") else entity
    return _STATEMENTS[kind], {"app": app, "entity": entity, "record": _record_of(event)}


def _record_of(event: RMStateStoreEvent) -> str | None:
    if event.type is RMStateStoreEventType.STORE_NODE_LABEL:
        return str(event.state)
    return None if event.type._name_.startswith("REMOVE") else encode(event.state)
