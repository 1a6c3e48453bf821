"""What every state store does, after YARN's RMStateStore: writes come as events, and are answered by events.

    ACTIVE --a write fails that nobody can do without--> FENCED, for ever

FENCED ignores every write: what the resource manager does by then has no record, so it is told to end (RMFatalEvent).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

from statemachines.resourcemanager.events.base import RMEvent
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
    """What a store needs of its resource manager."""

    post: Callable[[Any], bool]
    execute: Callable[[Callable[[], Any]], Any]


class RMStateStore(ABC):
    """Keeps the last record of each application and attempt, and the epoch.

    `attach` it, then `get_and_increment_epoch` and `load_state`, all before the first write; `handle` from then on.
    """

    def __init__(self) -> None:
        self._context: StoreContext | None = None  # set before the first write
        self._store_state = RMStateStoreState.ACTIVE  # never goes back

    @property
    def store_state(self) -> RMStateStoreState:
        """Any thread; a moment's truth."""
        return self._store_state

    def attach(self, context: StoreContext) -> None:
        """Answer to this resource manager from now on."""
        self._context = context

    @abstractmethod
    def handle(self, event: RMStateStoreEvent) -> None:
        """Write, remove or replace a record. Central dispatcher's handler thread; does not wait for the disk.

        Once it is durable, and not before, its answer is posted, unless the event says that nobody waits for one.
        """

    @abstractmethod
    def load_state(self) -> RMState:
        """All that is stored; what is written later does not change it.

        Raises:
            StateStoreError: it cannot be read.
        """

    @abstractmethod
    def get_and_increment_epoch(self) -> int:
        """How many resource managers this store has served before; 0 for the first one.

        Raises:
            StateStoreError: it cannot be written.
        """

    def _answer(self, event: RMStateStoreEvent) -> None:
        """The write is done: say so, if anybody waits for it."""
        if not event.notify:
            return
        answer = _ANSWERS.get(event.type._name_)
        if answer is not None:
            self._post(answer(event.entity))

    def _fail(self, event: RMStateStoreEvent, error: Exception) -> None:
        """The write cannot be done. A new application is refused; without any other write nothing can go on."""
        log.error("%r could not be stored: %s", event, error)
        if event.type._name_ == "STORE_APP":
            problem = f"{event.entity} could not be stored: {error}"
            self._post(RMAppEvent(RMAppEventType.APP_SAVE_FAILED, event.entity, problem))
            return
        if self._store_state is RMStateStoreState.ACTIVE:
            self._store_state = RMStateStoreState.FENCED
            self._post(RMFatalEvent(RMFatalEventType.STATE_STORE_OP_FAILED, type(self).__name__, error))

    def _post(self, event: RMEvent) -> None:
        """To the central dispatcher."""
        assert self._context is not None  # attached before the first write
        self._context.post(event)
