"""State stores of both kinds, records to write to them, and a receiver of their answers."""

from __future__ import annotations

import queue
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statemachines.resourcemanager import ApplicationSubmission, Resource

from .inner import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    MasterContainerData,
    MemoryRMStateStore,
    RMStateStore,
    RMStateStoreEvent,
    RMStateStoreEventType,
    SqliteRMStateStore,
)

TIMEOUT_S = 60.0


def app_id(number: int) -> str:
    return f"application_7_{number:04d}"


def attempt_id(number: int, attempt: int = 1) -> str:
    return f"appattempt_7_{number:04d}_{attempt:06d}"


def app_record(number: int, **more: Any) -> ApplicationStateData:
    submission = ApplicationSubmission(f"app {number}", Resource(1024, 1000))
    return ApplicationStateData(app_id(number), submission, submit_ms=1000 + number, start_ms=1001 + number)._replace(
        **more
    )


def attempt_record(number: int, attempt: int = 1, **more: Any) -> ApplicationAttemptStateData:
    master = MasterContainerData(f"container_7_{number:04d}_{attempt:02d}_000001", "n1:45454", Resource(1024, 1000))
    return ApplicationAttemptStateData(attempt_id(number, attempt), master, start_ms=2000)._replace(**more)


def store_app(number: int, **more: Any) -> RMStateStoreEvent:
    return RMStateStoreEvent(RMStateStoreEventType.STORE_APP, app_id(number), app_record(number, **more))


def update_app(number: int, notify: bool = True, **more: Any) -> RMStateStoreEvent:
    return RMStateStoreEvent(RMStateStoreEventType.UPDATE_APP, app_id(number), app_record(number, **more), notify)


def store_attempt(number: int, attempt: int = 1, **more: Any) -> RMStateStoreEvent:
    record = attempt_record(number, attempt, **more)
    return RMStateStoreEvent(RMStateStoreEventType.STORE_APP_ATTEMPT, record.attempt_id, record)


def update_attempt(number: int, attempt: int = 1, **more: Any) -> RMStateStoreEvent:
    record = attempt_record(number, attempt, **more)
    return RMStateStoreEvent(RMStateStoreEventType.UPDATE_APP_ATTEMPT, record.attempt_id, record)


def remove_app(number: int, attempts: int = 1) -> RMStateStoreEvent:
    ids = tuple(attempt_id(number, attempt + 1) for attempt in range(attempts))
    return RMStateStoreEvent(RMStateStoreEventType.REMOVE_APP, app_id(number), ids, notify=False)


def remove_attempt(number: int, attempt: int = 1) -> RMStateStoreEvent:
    return RMStateStoreEvent(RMStateStoreEventType.REMOVE_APP_ATTEMPT, attempt_id(number, attempt), notify=False)


class Owner:
    """Stands in for a resource manager's context: hears the answers, and does `on_answer` with each before it returns.

    Events come on the store's thread.
    """

    def __init__(self, on_answer: Callable[[Any], None] = lambda event: None) -> None:
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._on_answer = on_answer

    def post(self, event: Any) -> bool:
        self._on_answer(event)
        self._events.put(event)
        return True

    def execute(self, function: Callable[[], Any]) -> None:
        function()

    def next(self) -> Any:
        return self._events.get(timeout=TIMEOUT_S)

    def next_answers(self, count: int) -> list[str]:
        """As `RMApp APP_NEW_SAVED application_7_0001`."""
        return [described(self.next()) for _ in range(count)]

    def rest(self) -> list[str]:
        """What has come and was not looked at."""
        events = []
        while not self._events.empty():
            events.append(described(self._events.get()))
        return events


def described(event: Any) -> str:
    return f"{type(event.type).__name__.removesuffix('EventType')} {event.type.name} {event.entity}"


class Stores:
    """Opens and closes one store again and again: a file, or an object."""

    def __init__(self, kind: str, path: Path) -> None:
        self._kind = kind
        self._path = path
        self._memory = MemoryRMStateStore()

    def open(self, owner: Owner, **options: Any) -> RMStateStore:
        store: RMStateStore = self._memory
        if self._kind == "sqlite":
            store = sqlite_store(self._path, owner, **options)
            store.start()
        store.attach(owner)  # type: ignore[arg-type]
        return store

    def close(self, store: RMStateStore) -> None:
        """All that was written is done when this returns."""
        if isinstance(store, SqliteRMStateStore):
            store.stop()


def sqlite_store(path: Path, owner: Owner | None = None, **options: Any) -> SqliteRMStateStore:
    """Inited, not started."""
    store = SqliteRMStateStore(path, **options)
    store.attach(owner or Owner())  # type: ignore[arg-type]
    store.init()
    return store


def copy_of(path: Path, folder: Path) -> Path:
    """What a power cut would leave of the store at this moment, if the disk has all that it was given.

    Only while nothing writes, so from `on_answer`. (Reading the file frees its lock, which POSIX ties to the process.)
    """
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, folder / source.name)
    return folder / path.name


def applications_in(path: Path) -> list[str]:
    """The applications of a store that is not open."""
    store = sqlite_store(path)
    try:
        return list(store.load_state().applications)
    finally:
        store.stop()


def refuse(path: Path, entity: str, table: str = "applications", how: str = "ROLLBACK") -> None:
    """Have SQLite fail each write of this record as a full disk does: the transaction is gone as well."""
    sqlite_store(path).stop()
    column = "application_id" if table == "applications" else "attempt_id"
    change(
        path,
        f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.{column} = '{entity}'"
        f" BEGIN SELECT RAISE({how}, 'database or disk is full'); END",
    )


def refuse_changes_of_nodes(path: Path, table: str) -> None:
    sqlite_store(path).stop()
    change(
        path,
        f"CREATE TRIGGER refuse BEFORE INSERT ON {table} BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END",
    )


def change(path: Path, statement: str, *parameters: object) -> None:
    """By another program, while no store has the file open."""
    connection = sqlite3.connect(path)
    connection.execute(statement, parameters)
    connection.commit()
    connection.close()
