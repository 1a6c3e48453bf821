"""State stores, after YARN's RMStateStore, and the one in memory: writes arrive and are answered as events.

    ACTIVE --an indispensable write fails--> FENCED, forever

A FENCED store ignores every write. The resource manager's work is then no longer recorded: an RMFatalEvent stops it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.services import RMFatalEvent, RMFatalEventType, RMStateStoreEvent
from statemachines.resourcemanager.records.ids import application_of
from statemachines.resourcemanager.records.stored_state import (
    RecoveredApplication,
    RMState,
)

log: logging.Logger = logging.getLogger(__name__)

# By name of the write; others are not answered by an event.
_ANSWERS: dict[str, Callable[[str], RMEvent]] = {
    "STORE_APP": partial(RMAppEvent, RMAppEventType.APP_NEW_SAVED),
    "UPDATE_APP": partial(RMAppEvent, RMAppEventType.APP_UPDATE_SAVED),
    "STORE_APP_ATTEMPT": partial(RMAppAttemptEvent, RMAppAttemptEventType.ATTEMPT_NEW_SAVED),
    "UPDATE_APP_ATTEMPT": partial(RMAppAttemptEvent, RMAppAttemptEventType.ATTEMPT_UPDATE_SAVED),
}


class StateStoreError(DispatcherError):
    """Raised when the file of a state store can't be used."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class StateStoreVersionError(StateStoreError):
    """Raised when the file was written by a newer version of this program."""

    def __init__(self, path: Path, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            path,
            f"a state store of version {found}; this program supports versions up to {supported}. "
            "Run the version that wrote it, or give state_store.path another file.",
        )


class RMStateStoreState(Enum):
    ACTIVE = auto()
    FENCED = auto()


class StoreContext(Protocol):
    """The part of a resource manager that a store uses."""

    post: Callable[[Any], bool]
    execute: Callable[[Callable[[], Any]], Any]


class RMStateStore(ABC):
    """Keeps the last record of each application and attempt, what administrators changed, and the epoch.

    Call `attach`, then `get_and_increment_epoch` and `load_state`, all before the first write, and `handle` from then
    on.
    """

    def __init__(self) -> None:
        self._context: StoreContext | None = None  # set before the first write; then read only
        self._store_state = RMStateStoreState.ACTIVE  # never goes back
        self._failures = 0  # written by the thread that writes

    @property
    def store_state(self) -> RMStateStoreState:
        """The store's state, as a snapshot. Thread-safe."""
        return self._store_state

    @property
    def failures(self) -> int:
        """How many writes have failed. Thread-safe."""
        return self._failures

    def is_failing(self) -> bool:
        """Whether writes fail at present, for example because the disk is full. Thread-safe."""
        return False

    def slow_s(self) -> float | None:
        """How long a commit takes, or has just taken, if that is too long. Thread-safe."""
        return None

    def collect(self, dispatcher: str) -> Iterable[Metric]:
        """Return the store's metrics, with the label `dispatcher`. Thread-safe."""
        counter = CounterMetricFamily(
            "resourcemanager_store_failures", "Writes that the state store could not keep.", labels=["dispatcher"]
        )
        counter.add_metric([dispatcher], self._failures)
        gauge = GaugeMetricFamily(
            "resourcemanager_store_failing", "1 while the state store can't be written.", labels=["dispatcher"]
        )
        gauge.add_metric([dispatcher], self.is_failing())
        slow = GaugeMetricFamily(
            "resourcemanager_store_slow",
            "1 while a commit of the state store takes, or has just taken, longer than state_store.slow_after_s.",
            labels=["dispatcher"],
        )
        slow.add_metric([dispatcher], self.slow_s() is not None)
        return counter, gauge, slow

    def attach(self, context: StoreContext) -> None:
        """Send answers to this resource manager from now on."""
        self._context = context

    @abstractmethod
    def handle(self, event: RMStateStoreEvent) -> None:
        """Write, remove or replace a record, on the central dispatcher's handler thread, without waiting for the disk.

        The answer is posted once it's durable, unless `notify` is False.
        """

    @abstractmethod
    def load_state(self) -> RMState:
        """Return a copy of everything stored. Raises StateStoreError if it can't be read."""

    @abstractmethod
    def get_and_increment_epoch(self) -> int:
        """Return how many resource managers this store has served. Raises StateStoreError if it can't be written."""

    def _answer(self, event: RMStateStoreEvent) -> None:
        """Acknowledge a durable write, if the event asks for it."""
        if event.on_stored is not None:
            self._execute(event.on_stored)
        if not event.notify:
            return
        answer = _ANSWERS.get(event.type._name_)
        if answer is not None:
            self._post(answer(event.entity))

    def _fail(self, event: RMStateStoreEvent, error: Exception) -> None:
        """A write failed: refuse a new application, tell who waits, or stop the resource manager."""
        self._failures += 1
        log.error("%r could not be stored: %s", event, error)
        if event.on_failed is not None:
            self._execute(partial(event.on_failed, error))
            return
        if event.type._name_ == "STORE_APP":
            problem = f"{event.entity} could not be stored: {error}"
            self._post(RMAppEvent(RMAppEventType.APP_SAVE_FAILED, event.entity, problem))
            return
        if self._store_state is RMStateStoreState.ACTIVE:
            self._store_state = RMStateStoreState.FENCED
            self._post(RMFatalEvent(RMFatalEventType.STATE_STORE_OP_FAILED, type(self).__name__, error))

    def _post(self, event: RMEvent) -> None:
        assert self._context is not None  # attached before the first write
        self._context.post(event)

    def _execute(self, function: Callable[[], None]) -> None:
        """Call a function on the handler thread, from the thread on which this store answers."""
        function()


class MemoryRMStateStore(RMStateStore):
    """Answers each write at once. You can pass the object on to the next resource manager.

    Use it on the handler thread only, of one resource manager at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stored = RMState()
        self._epoch = 0

    def handle(self, event: RMStateStoreEvent) -> None:
        entity, kind, stored = event.entity, event.type._name_, self._stored
        applications = stored.applications
        if kind == "UPDATE_APP_ATTEMPT" or kind == "STORE_APP_ATTEMPT":
            application = applications.get(application_of(entity))
            if application is not None:  # otherwise it was removed with its attempts
                application.attempts[entity] = event.state
        elif kind == "UPDATE_APP" or kind == "STORE_APP":
            application = applications.get(entity)
            if application is None:
                applications[entity] = RecoveredApplication(event.state)
            else:
                application.data = event.state
        elif kind == "REMOVE_APP":
            applications.pop(entity, None)
        elif kind == "STORE_NODE_LABEL":
            stored.node_labels[entity] = event.state
        elif kind == "REMOVE_NODE_LABEL":
            stored.node_labels.pop(entity, None)
        elif kind == "STORE_NODE_CAPACITY":
            stored.node_capacities[entity] = event.state
        elif kind == "REMOVE_NODE_CAPACITY":
            stored.node_capacities.pop(entity, None)
        elif kind == "STORE_HOST_LISTS":
            stored.host_lists = event.state
        elif kind == "STORE_QUEUE_CHANGES":
            stored.queue_changes = event.state
        else:
            application = applications.get(application_of(entity))
            if application is not None:
                application.attempts.pop(entity, None)
        self._answer(event)

    def load_state(self) -> RMState:
        stored = self._stored
        return replace(
            stored,
            applications={
                app_id: RecoveredApplication(application.data, dict(sorted(application.attempts.items())))
                for app_id, application in stored.applications.items()
            },
            node_labels=stored.node_labels.copy(),
            node_capacities=stored.node_capacities.copy(),
        )

    def get_and_increment_epoch(self) -> int:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return epoch
