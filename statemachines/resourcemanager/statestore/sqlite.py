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
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dispatcher import CompositeService, DispatcherConfig, EventDispatcher
from dispatcher.errors import RejectedExecutionError
from dispatcher.util.figures import plain_seconds
from dispatcher.util.files import Permissions, PermissionsName
from dispatcher.util.sqlite import or_update
from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent, RMStateStoreEventType
from statemachines.resourcemanager.records.ids import application_of
from statemachines.resourcemanager.records.stored_state import RMState, encode
from statemachines.resourcemanager.statestore.database import StateDatabase, Write
from statemachines.resourcemanager.statestore.store import RMStateStore, RMStateStoreState

log: logging.Logger = logging.getLogger(__name__)

_CHECK_EVERY_S: Final = 1.0
_REMEMBERED_S: Final = 10.0
"""How long a slow commit stays a warning."""
_PUT_APP: Final = f"""INSERT INTO applications (application_id, record) VALUES (:app, :record)
    {or_update(["application_id"], ["record"])}"""
_PUT_ATTEMPT: Final = f"""INSERT INTO attempts SELECT application_id, :entity, :record FROM applications
    WHERE application_id = :app {or_update(["application_id", "attempt_id"], ["record"])}"""
# A replaced record keeps its place in the order of submission; an attempt needs its application, and goes with it.
_STATEMENTS: Final[Mapping[str, str]] = {
    "STORE_APP": _PUT_APP,
    "UPDATE_APP": _PUT_APP,
    "REMOVE_APP": "DELETE FROM applications WHERE application_id = :app",
    "STORE_APP_ATTEMPT": _PUT_ATTEMPT,
    "UPDATE_APP_ATTEMPT": _PUT_ATTEMPT,
    "REMOVE_APP_ATTEMPT": "DELETE FROM attempts WHERE application_id = :app AND attempt_id = :entity",
    "STORE_NODE_LABEL": f"""INSERT INTO node_labels VALUES (:entity, :record, :origin)
        {or_update(["node_id"], ["label", "origin"])}""",
    "REMOVE_NODE_LABEL": "DELETE FROM node_labels WHERE node_id = :entity",
    "STORE_NODE_CAPACITY": f"""INSERT INTO node_capacities VALUES (:entity, :record, :origin)
        {or_update(["node_id"], ["record", "origin"])}""",
    "REMOVE_NODE_CAPACITY": "DELETE FROM node_capacities WHERE node_id = :entity",
    "STORE_HOST_LISTS": f"INSERT INTO host_lists VALUES (0, :record) {or_update(['number'], ['record'])}",
    "STORE_QUEUE_CHANGES": f"INSERT INTO queue_changes VALUES (0, :record) {or_update(['number'], ['record'])}",
}


class SqliteRMStateStore(RMStateStore, CompositeService):
    """Stores the state in an SQLite file: `init` opens and locks it, `stop` commits what is queued and closes it.

    Start it before the dispatcher whose writes it takes, and stop it afterwards. If the file can't be used, `init`
    raises StateStoreError.

    `batch_size`: maximum writes per commit.
    `slow_after_s`: the store's health has a warning while a commit takes longer.
    `config`: of the store's dispatcher.
    `permissions`: who besides its owner can read the file, if it's created.
    """

    def __init__(
        self,
        path: Path,
        *,
        batch_size: int = 1000,
        slow_after_s: float = 1.0,
        name: str = "RMStateStore",
        config: DispatcherConfig | None = None,
        permissions: PermissionsName = "private",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        RMStateStore.__init__(self)
        CompositeService.__init__(self, name)
        self._path = path.absolute()  # a daemon may change its directory later
        self._batch_size = batch_size
        self._slow_after_s = slow_after_s
        self._clock_s = clock_s
        self._permissions = Permissions[permissions]
        self._database: StateDatabase | None = None
        self._batch: list[tuple[RMStateStoreEvent, Write]] = []  # collected, not committed; see Threads above
        # Written by the store's thread, read by any: bytes of the largest record that failed; None: writes succeed.
        self._failed_bytes: int | None = None
        # When the present commit began; end and duration of the last slow one. The committing thread writes, any reads.
        self._commit_since_s: float | None = None
        self._slow_commit: tuple[float, float] | None = None
        self._check_at_s = 0.0  # any thread, monotonic; two threads may begin one check each
        # Unbounded: the central dispatcher posts here and must not block, and this thread posts back.
        config = (config or DispatcherConfig()).model_copy(update={"queue_capacity": None})
        self.dispatcher: EventDispatcher = EventDispatcher(self._collect, name, config=config, idle_action=self._commit)
        """The store's dispatcher, with separate metrics."""
        self.add_service(self.dispatcher)

    def handle(self, event: RMStateStoreEvent) -> None:
        if not self.dispatcher.handle(event):  # its thread has ended too early
            self._fail(event, RuntimeError(f"{self.name} has stopped"))

    def is_failing(self) -> bool:
        """Whether writes fail at present. If so, have the store's thread try again, once a second. Thread-safe.

        So a resource manager that gets no more submissions because it isn't ready becomes ready again.
        """
        if self._failed_bytes is None:
            return False
        if (now_s := self._clock_s()) >= self._check_at_s:
            self._check_at_s = now_s + _CHECK_EVERY_S
            with contextlib.suppress(RejectedExecutionError):  # it has stopped
                self.dispatcher.mailbox_executor.execute(self._check, "check of the state store")
        return True

    def slow_s(self) -> float | None:
        since_s, last, now_s = self._commit_since_s, self._slow_commit, self._clock_s()
        if since_s is not None and now_s - since_s > self._slow_after_s:
            return now_s - since_s
        return last[1] if last is not None and now_s - last[0] < _REMEMBERED_S else None

    def warning(self) -> tuple[str, str] | None:
        slow_s = self.slow_s()
        return None if slow_s is None else ("store_slow", f"a commit takes {plain_seconds(slow_s)}")

    def unready_reason(self) -> str | None:
        return "store" if self.is_failing() else None

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
            writes = [write for _, write in batch]
            errors = self._timed_write(writes)
            self._note_failures([writes[index] for index in errors])
            for index, (event, _) in enumerate(batch):
                if index in errors:
                    self._fail(event, errors[index])
                else:
                    self._answer(event)
        return False

    def _timed_write(self, writes: list[Write]) -> Mapping[int, Exception]:
        self._commit_since_s = begun_s = self._clock_s()
        try:
            return self._opened().write(writes)
        finally:
            ended_s = self._clock_s()
            if ended_s - begun_s > self._slow_after_s:
                self._slow_commit = ended_s, ended_s - begun_s
            self._commit_since_s = None

    def _note_failures(self, failed: list[Write]) -> None:
        sizes = [len(parameters["record"] or "") for _, parameters in failed]
        if sizes:
            self._failed_bytes = max(*sizes, self._failed_bytes or 0)

    def _check(self) -> None:
        """Store's thread: whether a record as large as the largest that failed could be kept now."""
        size = self._failed_bytes
        if size is None:
            return
        try:
            self._opened().check(size)
        except Exception as error:
            log.warning("%s still cannot be written: %s", self._path, error)
        else:
            self._failed_bytes = None
            log.warning("%s can be written again", self._path)


def _write_of(event: RMStateStoreEvent) -> Write:
    entity, kind = event.entity, event.type._name_
    app = application_of(entity) if kind.endswith("_ATTEMPT") else entity
    record, origin = _record_of(event), getattr(event.state, "origin", None)
    named = {"app": app, "entity": entity, "record": record, "origin": None if origin is None else encode(origin)}
    return _STATEMENTS[kind], named


def _record_of(event: RMStateStoreEvent) -> str | None:
    if event.type is RMStateStoreEventType.STORE_NODE_LABEL:
        return str(event.state.label)
    if event.type is RMStateStoreEventType.STORE_NODE_CAPACITY:
        return encode(event.state.capacity)
    return None if event.type._name_.startswith("REMOVE") else encode(event.state)
