"""The base of state stores, after YARN's RMStateStore: writes arrive as events and are answered by events.

    ACTIVE --an indispensable write fails--> FENCED, forever

A FENCED store ignores every write. The resource manager's work is then no longer recorded: an RMFatalEvent stops it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

from statemachines.resourcemanager.events.records import RMEvent
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.services import RMFatalEvent, RMFatalEventType, RMStateStoreEvent
from statemachines.resourcemanager.statestore.records import RMState

log = logging.getLogger(__name__)

# By name of the write; removals are not answered.
_ANSWERS: dict[str, Callable[[str], RMEvent]] = {
    "STORE_APP": partial(RMAppEvent, RMAppEventType.APP_NEW_SAVED),
    "UPDATE_APP": partial(RMAppEvent, RMAppEventType.APP_UPDATE_SAVED),
    "STORE_APP_ATTEMPT": partial(RMAppAttemptEvent, RMAppAttemptEventType.ATTEMPT_NEW_SAVED),
    "UPDATE_APP_ATTEMPT": partial(RMAppAttemptEvent, RMAppAttemptEventType.ATTEMPT_UPDATE_SAVED),
}


class RMStateStoreState(Enum):
    ACTIVE = auto()
    FENCED = auto()


class StoreContext(Protocol):
    """The part of a resource manager that a store uses."""

    post: Callable[[Any], bool]
    execute: Callable[[Callable[[], Any]], Any]


class RMStateStore(ABC):
    """Keeps the last record of each application and attempt, and the epoch.

    `attach` it, then `get_and_increment_epoch` and `load_state`, all before the first write; `handle` from then on.
    """

    def __init__(self) -> None:
        self._context: StoreContext | None = None  # set before the first write; then read only
        self._store_state = RMStateStoreState.ACTIVE  # never goes back

    @property
    def store_state(self) -> RMStateStoreState:
        """Any thread; a snapshot."""
        return self._store_state

    def attach(self, context: StoreContext) -> None:
        """Send answers to this resource manager from now on."""
        self._context = context

    @abstractmethod
    def handle(self, event: RMStateStoreEvent) -> None:
        """Write, remove or replace a record. Central dispatcher's handler thread; does not wait for the disk.

        Its answer is posted once it is durable, unless `notify` is False.
        """

    @abstractmethod
    def load_state(self) -> RMState:
        """A copy of all that is stored. Raises StateStoreError if it cannot be read."""

    @abstractmethod
    def get_and_increment_epoch(self) -> int:
        """How many resource managers this store has served before. Raises StateStoreError if it cannot be written."""

    def _answer(self, event: RMStateStoreEvent) -> None:
        """Acknowledge a durable write, if the event asks for it."""
        if not event.notify:
            return
        answer = _ANSWERS.get(event.type._name_)
        if answer is not None:
            self._post(answer(event.entity))

    def _fail(self, event: RMStateStoreEvent, error: Exception) -> None:
        """A write failed: refuse a new application; stop the resource manager for any other write."""
        log.error("%r could not be stored: %s", event, error)
        if event.type._name_ == "STORE_APP":
            problem = f"{event.entity} could not be stored: {error}"
            self._post(RMAppEvent(RMAppEventType.APP_SAVE_FAILED, event.entity, problem))
            return
        if self._store_state is RMStateStoreState.ACTIVE:
            self._store_state = RMStateStoreState.FENCED
            self._post(RMFatalEvent(RMFatalEventType.STATE_STORE_OP_FAILED, type(self).__name__, error))

    def _post(self, event: RMEvent) -> None:
        """Post to the central dispatcher."""
        assert self._context is not None  # attached before the first write
        self._context.post(event)
