"""A resource manager after YARN's: RMApp, RMAppAttempt, RMContainer and RMNode on one dispatcher."""

from importlib import import_module
from typing import TYPE_CHECKING

from statemachines.resourcemanager.context import FACTORIES
from statemachines.resourcemanager.events.records import (
    ContainerRequest,
    ContainerStatus,
    FinalApplicationStatus,
    NMContainerStatus,
)
from statemachines.resourcemanager.events.rmapp import RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.events.scheduler import SchedulerEventType
from statemachines.resourcemanager.events.services import (
    AMLauncherEventType,
    NodesListManagerEventType,
    RMAppManagerEventType,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.rmapp import RMApp, RMAppState
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.records.errors import (
    ApplicationMasterNotRegisteredError,
    ApplicationNotFoundError,
    ApplicationRejectedError,
    InvalidApplicationMasterRequestError,
    UnknownAttemptError,
)
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.submission import (
    ApplicationSubmission,
    Credentials,
    LaunchContext,
    LocalResource,
    LogAggregationContext,
)
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.resourcemanager.scheduler import CapacityScheduler, FifoScheduler, QueueInfo, ResourceScheduler
from statemachines.resourcemanager.statestore import (
    MemoryRMStateStore,
    RMStateStore,
    SqliteRMStateStore,
    StateStoreError,
    StateStoreVersionError,
)

if TYPE_CHECKING:
    from statemachines.simulation.replay import Replay, ReplayProgress

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
    "Credentials",
    "FifoScheduler",
    "FinalApplicationStatus",
    "InvalidApplicationMasterRequestError",
    "LaunchContext",
    "LocalResource",
    "LogAggregationContext",
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


def __getattr__(name: str) -> object:
    # The simulation is a layer above: it is imported on demand.
    if name not in ("Replay", "ReplayProgress"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("statemachines.simulation.replay"), name)
