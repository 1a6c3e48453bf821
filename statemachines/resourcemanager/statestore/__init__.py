"""The resource manager's state store: applications and attempts, stored before their state is acknowledged."""

from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    MasterContainerData,
    RecoveredApplication,
    RMState,
)
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
from statemachines.resourcemanager.statestore.store import (
    MemoryRMStateStore,
    RMStateStore,
    RMStateStoreState,
    StateStoreError,
    StateStoreVersionError,
)

__all__ = [
    "ApplicationAttemptStateData",
    "ApplicationStateData",
    "MasterContainerData",
    "MemoryRMStateStore",
    "RMState",
    "RMStateStore",
    "RMStateStoreState",
    "RecoveredApplication",
    "SqliteRMStateStore",
    "StateStoreError",
    "StateStoreVersionError",
]
