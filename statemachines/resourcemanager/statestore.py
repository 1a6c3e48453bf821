"""The resource manager's store, in memory: each write is answered by an event, as YARN's is. After RMStateStore."""

from __future__ import annotations

from typing import Any

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events import (
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppEventType,
    RMStateStoreEvent,
)


class MemoryRMStateStore:
    """Keeps the last state stored of each application and attempt. Handler thread only."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self.apps: dict[str, Any] = {}
        self.attempts: dict[str, Any] = {}

    def handle(self, event: RMStateStoreEvent) -> None:
        post, entity, kind = self._context.post, event.entity, event.type._name_
        if kind == "STORE_APP":
            self.apps[entity] = event.state
            post(RMAppEvent(RMAppEventType.APP_NEW_SAVED, entity))
        elif kind == "UPDATE_APP":
            self.apps[entity] = event.state
            post(RMAppEvent(RMAppEventType.APP_UPDATE_SAVED, entity))
        elif kind == "STORE_APP_ATTEMPT":
            self.attempts[entity] = event.state
            post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_NEW_SAVED, entity))
        else:
            self.attempts[entity] = event.state
            post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_UPDATE_SAVED, entity))

    def forget(self, app_id: str, attempt_ids: list[str]) -> None:
        """Remove an application that is no longer kept, and its attempts."""
        self.apps.pop(app_id, None)
        for attempt_id in attempt_ids:
            self.attempts.pop(attempt_id, None)
