"""Events for a node."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Generic, Literal, TypeVar, overload

from statemachines.resourcemanager.events.base import RMEvent
from statemachines.resourcemanager.events.records import ContainerStatus, NMContainerStatus
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource

About = TypeVar("About")


class RMNodeEventType(Enum):
    STARTED = auto()
    DECOMMISSION = auto()
    GRACEFUL_DECOMMISSION = auto()
    RECOMMISSION = auto()
    RESOURCE_UPDATE = auto()
    STATUS_UPDATE = auto()
    REBOOTING = auto()
    RECONNECTED = auto()
    SHUTDOWN = auto()
    CLEANUP_APP = auto()
    CLEANUP_CONTAINER = auto()
    UPDATE_CONTAINER = auto()
    CONTAINER_ALLOCATED = auto()
    SIGNAL_CONTAINER = auto()
    FINISHED_CONTAINERS_PULLED_BY_AM = auto()
    EXPIRE = auto()


class RMNodeEvent(RMEvent, Generic[About]):
    """`about`: what the event is about; the overloads say what that is for each type of event."""

    __slots__ = ("about", "payload")

    @overload
    def __init__(
        self: RMNodeEvent[str],
        type: Literal[RMNodeEventType.CLEANUP_APP, RMNodeEventType.CLEANUP_CONTAINER],
        entity: str,
        about: str,
    ) -> None: ...
    @overload  # the containers
    def __init__(
        self: RMNodeEvent[tuple[str, ...]],
        type: Literal[RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM],
        entity: str,
        about: tuple[str, ...],
    ) -> None: ...
    @overload  # a container and its new size
    def __init__(
        self: RMNodeEvent[tuple[str, Resource]],
        type: Literal[RMNodeEventType.UPDATE_CONTAINER],
        entity: str,
        about: tuple[str, Resource],
    ) -> None: ...
    @overload  # a container and the name of the signal
    def __init__(
        self: RMNodeEvent[tuple[str, str]],
        type: Literal[RMNodeEventType.SIGNAL_CONTAINER],
        entity: str,
        about: tuple[str, str],
    ) -> None: ...
    @overload  # the new capacity
    def __init__(
        self: RMNodeEvent[Resource], type: Literal[RMNodeEventType.RESOURCE_UPDATE], entity: str, about: Resource
    ) -> None: ...
    @overload  # the timeout in seconds; None: no timeout
    def __init__(
        self: RMNodeEvent[int | None],
        type: Literal[RMNodeEventType.GRACEFUL_DECOMMISSION],
        entity: str,
        about: int | None,
    ) -> None: ...
    @overload
    def __init__(
        self: RMNodeEvent[None], type: RMNodeEventType, entity: str, about: None = None, payload: Any = None
    ) -> None: ...
    def __init__(self, type: RMNodeEventType, entity: str, about: Any = None, payload: Any = None) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.about = about
        self.payload = payload


class RMNodeStartedEvent(RMNodeEvent[None]):
    """STARTED: what a node that registers already has."""

    __slots__ = ("containers", "healthy", "running_apps")

    def __init__(
        self,
        entity: str,
        containers: tuple[NMContainerStatus, ...] = (),
        running_apps: tuple[str, ...] = (),
        healthy: bool = True,
        payload: Any = None,
    ) -> None:
        super().__init__(RMNodeEventType.STARTED, entity, payload=payload)
        self.containers = containers
        self.running_apps = running_apps
        self.healthy = healthy


class RMNodeReconnectEvent(RMNodeEvent[None]):
    """RECONNECTED: a node that was there registers again, with what it is and has now."""

    __slots__ = ("containers", "running_apps", "spec")

    def __init__(
        self,
        entity: str,
        spec: NodeSpec,
        containers: tuple[NMContainerStatus, ...] = (),
        running_apps: tuple[str, ...] = (),
        payload: Any = None,
    ) -> None:
        super().__init__(RMNodeEventType.RECONNECTED, entity, payload=payload)
        self.spec = spec
        self.containers = containers
        self.running_apps = running_apps


class RMNodeStatusEvent(RMEvent):
    """A node's heartbeat: the containers that started and ended since its last one, and whether it is healthy.

    `running`: all the containers that it has now; None: as `launched` and `finished` say, nothing else has changed.
    `resized`: containers whose size it has changed, as it was told to.
    """

    __slots__ = ("finished", "healthy", "launched", "resized", "running")

    def __init__(
        self,
        entity: str,
        launched: tuple[str, ...] = (),
        finished: tuple[ContainerStatus, ...] = (),
        healthy: bool = True,
        running: frozenset[str] | None = None,
        resized: tuple[tuple[str, Resource], ...] = (),
    ) -> None:
        self.type = RMNodeEventType.STATUS_UPDATE
        self.timestamp = -1.0
        self.entity = entity
        self.launched = launched
        self.finished = finished
        self.healthy = healthy
        self.running = running
        self.resized = resized
