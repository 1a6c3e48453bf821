"""The state store in an SQLite file: acknowledged writes survive `kill -9` and a power failure.

    central dispatcher --RMStateStoreEvent--> queue --> the store's thread: collect --> one commit --> answers

Writes are collected until the queue is empty: many applications share one wait for the disk, a single one does not wait
for others. The answer to a write is posted after the commit that made it durable.

Threads: any thread may call `handle`. The file belongs to the thread that inits and loads, then to the store's own
thread, and once that has ended to the thread that stops the store.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from dispatcher import CompositeService, DispatcherConfig, EventDispatcher
from dispatcher.errors import RejectedExecutionError
from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.statestore.database import (
    StateDatabase,
    Write,
    put_application,
    put_attempt,
    remove_application,
    remove_attempt,
)
from statemachines.resourcemanager.statestore.encoding import encode
from statemachines.resourcemanager.statestore.records import RMState
from statemachines.resourcemanager.statestore.store import RMStateStore, RMStateStoreState


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
        self._batch: list[tuple[RMStateStoreEvent, Write]] = []  # collected, not committed; see Threads above
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


def _write_of(event: RMStateStoreEvent) -> Write:
    entity, kind = event.entity, event.type._name_
    if kind in ("STORE_APP", "UPDATE_APP"):
        return put_application(entity, encode(event.state))
    if kind in ("STORE_APP_ATTEMPT", "UPDATE_APP_ATTEMPT"):
        return put_attempt(application_of(entity), entity, encode(event.state))
    if kind == "REMOVE_APP":
        return remove_application(entity)
    return remove_attempt(application_of(entity), entity)
