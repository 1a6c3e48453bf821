"""Events for the scheduler."""

from __future__ import annotations

from enum import Enum, auto

from statemachines.resourcemanager.events.base import RMEvent
from statemachines.resourcemanager.events.records import NMContainerStatus
from statemachines.resourcemanager.resource import Resource


class SchedulerEventType(Enum):
    NODE_ADDED = auto()
    NODE_REMOVED = auto()
    NODE_UPDATE = auto()
    NODE_RESOURCE_UPDATE = auto()
    NODE_LABELS_UPDATE = auto()
    APP_ADDED = auto()
    APP_REMOVED = auto()
    APP_ATTEMPT_ADDED = auto()
    APP_ATTEMPT_REMOVED = auto()
    CONTAINER_EXPIRED = auto()


class SchedulerEvent(RMEvent):
    """`entity` is a node, an application, an attempt or a container, depending on the type."""

    __slots__ = ()


class NodeAddedSchedulerEvent(SchedulerEvent):
    """NODE_ADDED, with the containers that the node already runs."""

    __slots__ = ("containers",)

    def __init__(self, entity: str, containers: tuple[NMContainerStatus, ...] = ()) -> None:
        super().__init__(SchedulerEventType.NODE_ADDED, entity)
        self.containers = containers


class NodeResourceUpdateSchedulerEvent(SchedulerEvent):
    """NODE_RESOURCE_UPDATE, with the node's new capacity."""

    __slots__ = ("capacity",)

    def __init__(self, entity: str, capacity: Resource) -> None:
        super().__init__(SchedulerEventType.NODE_RESOURCE_UPDATE, entity)
        self.capacity = capacity


class NodeLabelsUpdateSchedulerEvent(SchedulerEvent):
    """NODE_LABELS_UPDATE, with the node's new partition."""

    __slots__ = ("partition",)

    def __init__(self, entity: str, partition: str) -> None:
        super().__init__(SchedulerEventType.NODE_LABELS_UPDATE, entity)
        self.partition = partition


class AppAddedSchedulerEvent(SchedulerEvent):
    """APP_ADDED; not answered if the application is recovering."""

    __slots__ = ("is_recovering",)

    def __init__(self, entity: str, is_recovering: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ADDED, entity)
        self.is_recovering = is_recovering


class AppAttemptAddedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_ADDED; not answered if recovering. `transfer_state`: the attempt takes over live containers."""

    __slots__ = ("is_recovering", "transfer_state")

    def __init__(self, entity: str, transfer_state: bool = False, is_recovering: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ATTEMPT_ADDED, entity)
        self.transfer_state = transfer_state
        self.is_recovering = is_recovering


class AppAttemptRemovedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_REMOVED. `keep_containers`: the next attempt takes over the containers."""

    __slots__ = ("keep_containers",)

    def __init__(self, entity: str, keep_containers: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ATTEMPT_REMOVED, entity)
        self.keep_containers = keep_containers
