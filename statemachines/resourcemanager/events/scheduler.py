"""Events for the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from statemachines.resourcemanager.events.records import NMContainerStatus, RMEvent
from statemachines.resourcemanager.records.resource import Resource


class SchedulerEventType(Enum):
    """The scheduler's events, as YARN's SchedulerEventType."""

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
    EDIT_SCHEDULE = auto()


class SchedulerEvent(RMEvent):
    """`entity` is a node, an application, an attempt or a container, depending on the type.

    EDIT_SCHEDULE has the root queue: a round of preemption, which YARN's SchedulingEditPolicy runs on its own thread.
    """

    __slots__ = ()


@dataclass(eq=False, repr=False, slots=True)
class NodeAddedSchedulerEvent(SchedulerEvent):
    """NODE_ADDED, with the containers that the node already runs."""

    type: SchedulerEventType = field(default=SchedulerEventType.NODE_ADDED, init=False)
    containers: tuple[NMContainerStatus, ...] = ()


@dataclass(eq=False, repr=False, slots=True)
class NodeResourceUpdateSchedulerEvent(SchedulerEvent):
    """NODE_RESOURCE_UPDATE, with the node's own capacity, and whether it is being decommissioned gracefully.

    YARN's scheduler learns of a decommissioning from the node's next heartbeat.
    """

    type: SchedulerEventType = field(default=SchedulerEventType.NODE_RESOURCE_UPDATE, init=False)
    capacity: Resource
    is_draining: bool


@dataclass(eq=False, repr=False, slots=True)
class NodeLabelsUpdateSchedulerEvent(SchedulerEvent):
    """NODE_LABELS_UPDATE, with the node's new partition."""

    type: SchedulerEventType = field(default=SchedulerEventType.NODE_LABELS_UPDATE, init=False)
    partition: str


@dataclass(eq=False, repr=False, slots=True)
class AppAddedSchedulerEvent(SchedulerEvent):
    """APP_ADDED; not answered if the application is recovering."""

    type: SchedulerEventType = field(default=SchedulerEventType.APP_ADDED, init=False)
    is_recovering: bool = False


@dataclass(eq=False, repr=False, slots=True)
class AppAttemptAddedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_ADDED; not answered if recovering. `transfer_state`: the attempt takes over live containers."""

    type: SchedulerEventType = field(default=SchedulerEventType.APP_ATTEMPT_ADDED, init=False)
    transfer_state: bool = False
    is_recovering: bool = False


@dataclass(eq=False, repr=False, slots=True)
class AppAttemptRemovedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_REMOVED. `keep_containers`: the next attempt takes over the containers."""

    type: SchedulerEventType = field(default=SchedulerEventType.APP_ATTEMPT_REMOVED, init=False)
    keep_containers: bool = False
