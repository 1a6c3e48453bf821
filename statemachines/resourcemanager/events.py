"""The events of a resource manager, under YARN's names.

An event's `entity` is the id of what it is for: the application of an RMAppEvent, the container of an RMContainerEvent.
Times are the journal's business (it notes when each event was handled), so these events carry none of their own.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

from dispatcher.event import Event
from statemachines.resourcemanager.resource import Resource


class RMAppEventType(Enum):
    START = auto()
    RECOVER = auto()
    KILL = auto()
    APP_REJECTED = auto()
    APP_ACCEPTED = auto()
    ATTEMPT_REGISTERED = auto()
    ATTEMPT_UNREGISTERED = auto()
    ATTEMPT_FINISHED = auto()
    ATTEMPT_FAILED = auto()
    ATTEMPT_KILLED = auto()
    ATTEMPT_LAUNCHED = auto()
    NODE_UPDATE = auto()
    APP_RUNNING_ON_NODE = auto()
    APP_NEW_SAVED = auto()
    APP_UPDATE_SAVED = auto()
    APP_SAVE_FAILED = auto()


class RMAppAttemptEventType(Enum):
    START = auto()
    KILL = auto()
    FAIL = auto()
    LAUNCHED = auto()
    LAUNCH_FAILED = auto()
    EXPIRE = auto()
    REGISTERED = auto()
    STATUS_UPDATE = auto()
    UNREGISTERED = auto()
    CONTAINER_ALLOCATED = auto()
    CONTAINER_FINISHED = auto()
    ATTEMPT_NEW_SAVED = auto()
    ATTEMPT_UPDATE_SAVED = auto()
    ATTEMPT_ADDED = auto()
    RECOVER = auto()


class RMContainerEventType(Enum):
    START = auto()
    ACQUIRED = auto()
    KILL = auto()
    RESERVED = auto()
    LAUNCHED = auto()
    FINISHED = auto()
    RELEASED = auto()
    EXPIRE = auto()
    RECOVER = auto()
    ACQUIRE_UPDATED_CONTAINER = auto()
    CHANGE_RESOURCE = auto()
    NM_DONE_CHANGE_RESOURCE = auto()


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


class SchedulerEventType(Enum):
    NODE_ADDED = auto()
    NODE_REMOVED = auto()
    NODE_UPDATE = auto()
    APP_ADDED = auto()
    APP_REMOVED = auto()
    APP_ATTEMPT_ADDED = auto()
    APP_ATTEMPT_REMOVED = auto()


class AMLauncherEventType(Enum):
    LAUNCH = auto()
    CLEANUP = auto()


class RMStateStoreEventType(Enum):
    STORE_APP = auto()
    UPDATE_APP = auto()
    STORE_APP_ATTEMPT = auto()
    UPDATE_APP_ATTEMPT = auto()


class RMAppManagerEventType(Enum):
    APP_COMPLETED = auto()


class ContainerStatus(NamedTuple):
    """What a node says of a container that ended. Exit status 0 is success, a negative one is YARN's own."""

    container: str
    exit_status: int
    diagnostics: str = ""


EXIT_SUCCESS = 0
EXIT_ABORTED = -100
"""YARN's status of a container that the resource manager ended before its time."""
EXIT_KILLED_BY_RESOURCEMANAGER = -106
"""YARN's status of a container that was stopped on its node because the resource manager said so."""


class RMEvent(Event[Any]):
    """An event for one entity."""

    __slots__ = ("entity",)

    entity: str

    def __init__(self, type: Enum, entity: str) -> None:
        self.type = type
        self.timestamp = -1.0  # not noted, as in YARN's AbstractEvent
        self.entity = entity


class RMAppEvent(RMEvent):
    """`node` for APP_RUNNING_ON_NODE; `diagnostics` for what ends an application."""

    __slots__ = ("diagnostics", "node", "payload")

    def __init__(
        self, type: RMAppEventType, entity: str, diagnostics: str = "", node: str = "", payload: Any = None
    ) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.diagnostics = diagnostics
        self.node = node
        self.payload = payload


class RMAppAttemptEvent(RMEvent):
    """`status` and `node` for CONTAINER_FINISHED; `progress` for STATUS_UPDATE; `diagnostics` for what ends one."""

    __slots__ = ("diagnostics", "node", "progress", "status")

    def __init__(
        self,
        type: RMAppAttemptEventType,
        entity: str,
        diagnostics: str = "",
        status: ContainerStatus | None = None,
        node: str = "",
        progress: float = 0.0,
    ) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.diagnostics = diagnostics
        self.status = status
        self.node = node
        self.progress = progress


class RMContainerEvent(RMEvent):
    """`status` for what ends a container."""

    __slots__ = ("payload", "status")

    def __init__(
        self, type: RMContainerEventType, entity: str, status: ContainerStatus | None = None, payload: Any = None
    ) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.status = status
        self.payload = payload


class RMNodeEvent(RMEvent):
    """`about`: the application of CLEANUP_APP, the container of CLEANUP_CONTAINER, the containers that an AM pulled."""

    __slots__ = ("about", "payload")

    def __init__(self, type: RMNodeEventType, entity: str, about: Any = None, payload: Any = None) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.about = about
        self.payload = payload


class RMNodeStatusEvent(RMEvent):
    """A node's heartbeat: the containers that started and ended since its last one, and whether it is healthy."""

    __slots__ = ("finished", "healthy", "launched")

    def __init__(
        self,
        entity: str,
        launched: tuple[str, ...] = (),
        finished: tuple[ContainerStatus, ...] = (),
        healthy: bool = True,
    ) -> None:
        self.type = RMNodeEventType.STATUS_UPDATE
        self.timestamp = -1.0
        self.entity = entity
        self.launched = launched
        self.finished = finished
        self.healthy = healthy


class SchedulerEvent(RMEvent):
    """`entity` is a node, an application or an attempt, as the type says."""

    __slots__ = ()


class AMLauncherEvent(RMEvent):
    """`entity` is an attempt."""

    __slots__ = ()


class RMStateStoreEvent(RMEvent):
    """`entity` is an application or an attempt; `state` is what is to be stored of it."""

    __slots__ = ("state",)

    def __init__(self, type: RMStateStoreEventType, entity: str, state: Any) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.state = state


class RMAppManagerEvent(RMEvent):
    """`entity` is an application."""

    __slots__ = ()


class ContainerRequest(NamedTuple):
    """What an application master asks for: one container."""

    resource: Resource
    priority: int = 0
    host: str | None = None
    """Preferred node; any other will do."""
    gpu_models: frozenset[str] = frozenset()
    """Node models that will do; empty: any."""
    kind: str = "AM"
    tag: int = 0
    """The asker's own mark; comes back with the container."""
