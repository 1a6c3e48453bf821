# ruff: noqa: F403, F405
"""The resource manager's events, under YARN's names."""

from statemachines.resourcemanager.events.records import *
from statemachines.resourcemanager.events.rmapp import *
from statemachines.resourcemanager.events.rmappattempt import *
from statemachines.resourcemanager.events.rmcontainer import *
from statemachines.resourcemanager.events.rmnode import *
from statemachines.resourcemanager.events.scheduler import *
from statemachines.resourcemanager.events.services import *

__all__ = [
    "EXIT_ABORTED",
    "EXIT_DISKS_FAILED",
    "EXIT_KILLED_AFTER_APP_COMPLETION",
    "EXIT_KILLED_BY_RESOURCEMANAGER",
    "EXIT_PREEMPTED",
    "EXIT_SUCCESS",
    "AMLauncherEvent",
    "AMLauncherEventType",
    "AppAddedSchedulerEvent",
    "AppAttemptAddedSchedulerEvent",
    "AppAttemptRemovedSchedulerEvent",
    "ContainerRequest",
    "ContainerStatus",
    "FinalApplicationStatus",
    "NMContainerStatus",
    "NodeAddedSchedulerEvent",
    "NodeLabelsUpdateSchedulerEvent",
    "NodeResourceUpdateSchedulerEvent",
    "NodesListManagerEvent",
    "NodesListManagerEventType",
    "RMAppAttemptEvent",
    "RMAppAttemptEventType",
    "RMAppAttemptRecoverEvent",
    "RMAppAttemptRegistrationEvent",
    "RMAppAttemptStatusUpdateEvent",
    "RMAppAttemptUnregistrationEvent",
    "RMAppEvent",
    "RMAppEventType",
    "RMAppFailedAttemptEvent",
    "RMAppManagerEvent",
    "RMAppManagerEventType",
    "RMAppRecoverEvent",
    "RMAppRunningOnNodeEvent",
    "RMAppStartAttemptEvent",
    "RMContainerEvent",
    "RMContainerEventType",
    "RMContainerRecoverEvent",
    "RMContainerReservedEvent",
    "RMContainerResourceEvent",
    "RMContainerStartEvent",
    "RMEvent",
    "RMFatalEvent",
    "RMFatalEventType",
    "RMNodeEvent",
    "RMNodeEventType",
    "RMNodeReconnectEvent",
    "RMNodeStartedEvent",
    "RMNodeStatusEvent",
    "RMStateStoreEvent",
    "RMStateStoreEventType",
    "SchedulerEvent",
    "SchedulerEventType",
]
