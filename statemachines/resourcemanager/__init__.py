"""A resource manager as YARN's: RMApp, RMAppAttempt, RMContainer and RMNode on one dispatcher."""

from collections.abc import Mapping
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager import rmapp, rmappattempt, rmcontainer, rmnode
from statemachines.resourcemanager.config import ResourceManagerConfig
from statemachines.resourcemanager.errors import (
    ApplicationMasterNotRegisteredError,
    ApplicationNotFoundError,
    ApplicationRejectedError,
    InvalidApplicationMasterRequestError,
    UnknownAttemptError,
)
from statemachines.resourcemanager.events import (
    AMLauncherEventType,
    ContainerRequest,
    ContainerStatus,
    FinalApplicationStatus,
    NMContainerStatus,
    NodesListManagerEventType,
    RMAppAttemptEventType,
    RMAppEventType,
    RMAppManagerEventType,
    RMContainerEventType,
    RMNodeEventType,
    RMStateStoreEventType,
    SchedulerEventType,
)
from statemachines.resourcemanager.replay import Replay, ReplayProgress
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.resourcemanager.rmapp import RMApp, RMAppState
from statemachines.resourcemanager.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.scheduler import CapacityScheduler, FifoScheduler, QueueInfo, ResourceScheduler
from statemachines.resourcemanager.statestore import (
    MemoryRMStateStore,
    RMStateStore,
    SqliteRMStateStore,
    StateStoreError,
    StateStoreVersionError,
)
from statemachines.resourcemanager.submission import ApplicationSubmission

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {
    "RMApp": rmapp.FACTORY,
    "RMAppAttempt": rmappattempt.FACTORY,
    "RMContainer": rmcontainer.FACTORY,
    "RMNode": rmnode.FACTORY,
}
"""The declared tables, by the machine's name in the journal."""

__all__ = [
    "FACTORIES",
    "AMLauncherEventType",
    "ApplicationMasterNotRegisteredError",
    "ApplicationNotFoundError",
    "ApplicationRejectedError",
    "ApplicationSubmission",
    "CapacityScheduler",
    "ContainerRequest",
    "ContainerStatus",
    "FifoScheduler",
    "FinalApplicationStatus",
    "InvalidApplicationMasterRequestError",
    "MemoryRMStateStore",
    "NMContainerStatus",
    "NodesListManagerEventType",
    "QueueInfo",
    "RMApp",
    "RMAppAttempt",
    "RMAppAttemptEventType",
    "RMAppAttemptState",
    "RMAppEventType",
    "RMAppManagerEventType",
    "RMAppState",
    "RMContainer",
    "RMContainerEventType",
    "RMContainerState",
    "RMNode",
    "RMNodeEventType",
    "RMNodeState",
    "RMStateStore",
    "RMStateStoreEventType",
    "Replay",
    "ReplayProgress",
    "Resource",
    "ResourceManager",
    "ResourceManagerConfig",
    "ResourceScheduler",
    "SchedulerEventType",
    "SqliteRMStateStore",
    "StateStoreError",
    "StateStoreVersionError",
    "UnknownAttemptError",
]
