"""The state machines of a node manager, as tables against which its logs are checked; nothing runs them yet.

Like MapReduce's, they have no hooks except to choose the observed state.
"""

from statemachines.nodemanager.machines.localizedresource_table import ResourceEventType, ResourceState
from statemachines.nodemanager.machines.nmapplication_table import ApplicationEventType, ApplicationState
from statemachines.nodemanager.machines.nmcontainer_table import ContainerEventType, ContainerState

__all__ = [
    "ApplicationEventType",
    "ApplicationState",
    "ContainerEventType",
    "ContainerState",
    "ResourceEventType",
    "ResourceState",
]
