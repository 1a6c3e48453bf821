"""The state store in memory: as quick as it gets, and gone with the process."""

from __future__ import annotations

from statemachines.resourcemanager.events.services import RMStateStoreEvent
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.statestore.records import RecoveredApplication, RMState
from statemachines.resourcemanager.statestore.store import RMStateStore


class MemoryRMStateStore(RMStateStore):
    """Answers each write at once. Outlives a resource manager if its object is given to the next one.

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
            if application is not None:  # otherwise it has been removed, and its attempts with it
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
