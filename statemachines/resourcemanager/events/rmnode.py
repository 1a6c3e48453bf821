"""Events for a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, Literal, TypeVar, overload

from statemachines.resourcemanager.events.records import ContainerStatus, NMContainerStatus, RMEvent
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import Resource

_About = TypeVar("_About")


class RMNodeEventType(Enum):
    """The events of nodes, as YARN's RMNodeEventType."""

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


_E = RMNodeEventType
_Ids = tuple[str, ...]
_Sized = tuple[str, Resource]
_Signal = tuple[str, str]


class RMNodeEvent(RMEvent, Generic[_About]):
    """The overloads say what `about` is for each type of event."""

    __slots__ = ("about", "payload")

    @overload  # an application or a container
    def __init__(
        self: RMNodeEvent[str], type: Literal[_E.CLEANUP_APP, _E.CLEANUP_CONTAINER], entity: str, about: str
    ) -> None: ...
    @overload  # the containers
    def __init__(
        self: RMNodeEvent[_Ids], type: Literal[_E.FINISHED_CONTAINERS_PULLED_BY_AM], entity: str, about: _Ids
    ) -> None: ...
    @overload  # a container and its new size
    def __init__(self: RMNodeEvent[_Sized], type: Literal[_E.UPDATE_CONTAINER], entity: str, about: _Sized) -> None: ...
    @overload  # a container and the name of the signal
    def __init__(
        self: RMNodeEvent[_Signal], type: Literal[_E.SIGNAL_CONTAINER], entity: str, about: _Signal
    ) -> None: ...
    @overload  # the new capacity
    def __init__(
        self: RMNodeEvent[Resource], type: Literal[_E.RESOURCE_UPDATE], entity: str, about: Resource
    ) -> None: ...
    @overload  # the timeout in seconds; None: no timeout
    def __init__(
        self: RMNodeEvent[int | None], type: Literal[_E.GRACEFUL_DECOMMISSION], entity: str, about: int | None
    ) -> None: ...
    @overload
    def __init__(
        self: RMNodeEvent[None], type: RMNodeEventType, entity: str, about: None = None, payload: Any = None
    ) -> None: ...
    def __init__(self, type: RMNodeEventType, entity: str, about: Any = None, payload: Any = None) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.about: Any = about
        self.payload = payload


class RMNodeStartedEvent(RMNodeEvent[None]):
    """STARTED, with the containers and applications that the node already runs."""

    __slots__ = ("containers", "health_report", "healthy", "running_apps")

    def __init__(
        self,
        entity: str,
        containers: tuple[NMContainerStatus, ...] = (),
        running_apps: tuple[str, ...] = (),
        healthy: bool = True,
        payload: Any = None,
        health_report: str = "",
    ) -> None:
        super().__init__(RMNodeEventType.STARTED, entity, payload=payload)
        self.health_report: str = health_report
        self.containers: tuple[NMContainerStatus, ...] = containers
        self.running_apps: tuple[str, ...] = running_apps
        self.healthy: bool = healthy


class RMNodeReconnectEvent(RMNodeEvent[None]):
    """RECONNECTED: an active node registers again, with its current containers and applications."""

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
        self.spec: NodeSpec = spec
        self.containers: tuple[NMContainerStatus, ...] = containers
        self.running_apps: tuple[str, ...] = running_apps


@dataclass(eq=False, repr=False, slots=True)
class RMNodeStatusEvent(RMEvent):
    """A node's heartbeat: the containers that started and ended since the last one, and its health.

    `running`: all its running containers; None: nothing but `launched` and `finished` has changed. `resized`:
    containers with the sizes that the node has changed on order. `health_report`: why it is unhealthy.
    """

    type: RMNodeEventType = field(default=RMNodeEventType.STATUS_UPDATE, init=False)
    launched: tuple[str, ...] = ()
    finished: tuple[ContainerStatus, ...] = ()
    healthy: bool = True
    running: frozenset[str] | None = None
    resized: tuple[tuple[str, Resource], ...] = ()
    health_report: str = ""
