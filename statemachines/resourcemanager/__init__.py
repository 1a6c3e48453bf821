"""A resource manager after YARN's: RMApp, RMAppAttempt, RMContainer and RMNode on one dispatcher."""

from importlib import import_module
from typing import TYPE_CHECKING

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
from statemachines.resourcemanager.machines.rmapp import RMApp, RMAppState
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.records.errors import (
    AccessDeniedError,
    ApplicationMasterNotRegisteredError,
    ApplicationNotFoundError,
    ApplicationNotStoredError,
    ApplicationRejectedError,
    ChangeNotStoredError,
    InvalidApplicationMasterRequestError,
    InvalidResourceRequestError,
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
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.statestore.store import StateStoreError

if TYPE_CHECKING:
    from statemachines.simulation.replay import Replay

__all__ = [
    "AccessDeniedError",
    "ApplicationMasterNotRegisteredError",
    "ApplicationNotFoundError",
    "ApplicationNotStoredError",
    "ApplicationRejectedError",
    "ApplicationSubmission",
    "Caller",
    "ChangeNotStoredError",
    "ContainerRequest",
    "ContainerStatus",
    "Credentials",
    "FinalApplicationStatus",
    "InvalidApplicationMasterRequestError",
    "InvalidResourceRequestError",
    "LaunchContext",
    "LocalResource",
    "LogAggregationContext",
    "NMContainerStatus",
    "QueueInfo",
    "RMApp",
    "RMAppAttempt",
    "RMAppAttemptEventType",
    "RMAppAttemptState",
    "RMAppEventType",
    "RMAppState",
    "RMContainer",
    "RMContainerEventType",
    "RMContainerState",
    "RMNode",
    "RMNodeEventType",
    "RMNodeState",
    "Replay",
    "Resource",
    "ResourceManager",
    "ResourceManagerConfig",
    "StateStoreError",
    "UnknownAttemptError",
]


def __getattr__(name: str) -> object:
    # The simulation is a layer above: it is imported on demand.
    if name != "Replay":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("statemachines.simulation.replay"), name)
