"""The resource manager's state store: applications and attempts, stored before their state is acknowledged."""

from statemachines.resourcemanager.statestore.errors import StateStoreError, StateStoreVersionError
from statemachines.resourcemanager.statestore.memory import MemoryRMStateStore
from statemachines.resourcemanager.statestore.records import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    MasterContainerData,
    RecoveredApplication,
    RMState,
)
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
from statemachines.resourcemanager.statestore.store import RMStateStore, RMStateStoreState

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
