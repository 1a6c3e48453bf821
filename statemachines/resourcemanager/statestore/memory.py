"""The state store in memory, which does not survive its process."""

from __future__ import annotations

from statemachines.resourcemanager.events.services import RMStateStoreEvent
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.statestore.records import RecoveredApplication, RMState
from statemachines.resourcemanager.statestore.store import RMStateStore


class MemoryRMStateStore(RMStateStore):
    """Answers each write at once. The object may be passed on to the next resource manager.

    Handler thread only, of one resource manager at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._applications: dict[str, RecoveredApplication] = {}
        self._epoch = 0

    def handle(self, event: RMStateStoreEvent) -> None:
        entity, kind, applications = event.entity, event.type._name_, self._applications
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
        else:
            application = applications.get(application_of(entity))
            if application is not None:
                application.attempts.pop(entity, None)
        self._answer(event)

    def load_state(self) -> RMState:
        return RMState(
            {
                app_id: RecoveredApplication(application.data, dict(sorted(application.attempts.items())))
                for app_id, application in self._applications.items()
            }
        )

    def get_and_increment_epoch(self) -> int:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return epoch
