"""The events of a resource manager, under YARN's names.

An event's `entity` is the id of what it is for: the application of an RMAppEvent, the container of an RMContainerEvent.
Times are the journal's business (it notes when each event was handled), so these events carry none of their own.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.event import Event
from statemachines.resourcemanager.resource import Resource

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer
    from statemachines.resourcemanager.node_spec import NodeSpec
    from statemachines.resourcemanager.statestore.records import ApplicationAttemptStateData, RecoveredApplication


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
    NODE_RESOURCE_UPDATE = auto()
    NODE_LABELS_UPDATE = auto()
    APP_ADDED = auto()
    APP_REMOVED = auto()
    APP_ATTEMPT_ADDED = auto()
    APP_ATTEMPT_REMOVED = auto()
    CONTAINER_EXPIRED = auto()


class AMLauncherEventType(Enum):
    LAUNCH = auto()
    CLEANUP = auto()


class RMStateStoreEventType(Enum):
    STORE_APP = auto()
    UPDATE_APP = auto()
    REMOVE_APP = auto()
    STORE_APP_ATTEMPT = auto()
    UPDATE_APP_ATTEMPT = auto()
    REMOVE_APP_ATTEMPT = auto()


class RMAppManagerEventType(Enum):
    APP_COMPLETED = auto()
    APP_MOVE = auto()


class NodesListManagerEventType(Enum):
    NODE_USABLE = auto()
    NODE_UNUSABLE = auto()
    NODE_DECOMMISSIONING = auto()


class RMFatalEventType(Enum):
    STATE_STORE_OP_FAILED = auto()
    STATE_STORE_FENCED = auto()
    CRITICAL_THREAD_CRASH = auto()


class FinalApplicationStatus(Enum):
    """What a master says of its application when it unregisters."""

    UNDEFINED = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    KILLED = auto()


class ContainerStatus(NamedTuple):
    """What a node says of a container that ended. Exit status 0 is success, a negative one is YARN's own."""

    container: str
    exit_status: int
    diagnostics: str = ""


class NMContainerStatus(NamedTuple):
    """What a node that registers says of a container it has: enough to take it back into the books."""

    container: str
    resource: Resource
    priority: int = 0
    status: ContainerStatus | None = None
    """How it ended; None: it runs."""
    kind: str = "AM"
    gpu_devices: tuple[int, ...] = ()
    node_label: str = ""
    """The partition it was asked for."""


EXIT_SUCCESS = 0
EXIT_ABORTED = -100
"""YARN's status of a container that the resource manager ended before its time."""
EXIT_DISKS_FAILED = -101
"""YARN's status of a container whose node has lost its disks."""
EXIT_PREEMPTED = -102
"""YARN's status of a container whose room another queue was entitled to."""
EXIT_KILLED_BY_RESOURCEMANAGER = -106
"""YARN's status of a container that was stopped on its node because the resource manager said so."""
EXIT_KILLED_AFTER_APP_COMPLETION = -107
"""YARN's status of a container that was stopped because its application had ended."""


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


class RMAppRecoverEvent(RMAppEvent):
    """`state`: what the store holds of the application."""

    __slots__ = ("state",)

    def __init__(self, entity: str, state: RecoveredApplication) -> None:
        super().__init__(RMAppEventType.RECOVER, entity)
        self.state = state


class RMAppNodeUpdateEvent(RMAppEvent):
    """What happened to a node, for the master's next heartbeat."""

    __slots__ = ("update",)

    def __init__(self, entity: str, node: str, update: NodesListManagerEventType) -> None:
        super().__init__(RMAppEventType.NODE_UPDATE, entity, node=node)
        self.update = update


class RMAppFailedAttemptEvent(RMAppEvent):
    """ATTEMPT_FAILED and ATTEMPT_KILLED: `keep_containers`: they go on, for the next attempt to take over."""

    __slots__ = ("keep_containers",)

    def __init__(self, type: RMAppEventType, entity: str, diagnostics: str, keep_containers: bool) -> None:
        super().__init__(type, entity, diagnostics)
        self.keep_containers = keep_containers


class RMAppAttemptEvent(RMEvent):
    """`status` and `node` for CONTAINER_FINISHED; `diagnostics` for what ends one."""

    __slots__ = ("diagnostics", "node", "status")

    def __init__(
        self,
        type: RMAppAttemptEventType,
        entity: str,
        diagnostics: str = "",
        status: ContainerStatus | None = None,
        node: str = "",
    ) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.diagnostics = diagnostics
        self.status = status
        self.node = node


class RMAppStartAttemptEvent(RMAppAttemptEvent):
    """START: whether the attempt takes over the containers of the one before."""

    __slots__ = ("transfer_state",)

    def __init__(self, entity: str, transfer_state: bool) -> None:
        super().__init__(RMAppAttemptEventType.START, entity)
        self.transfer_state = transfer_state


class RMAppAttemptRecoverEvent(RMAppAttemptEvent):
    """RECOVER: what the store holds of the attempt."""

    __slots__ = ("state",)

    def __init__(self, entity: str, state: ApplicationAttemptStateData) -> None:
        super().__init__(RMAppAttemptEventType.RECOVER, entity)
        self.state = state


class RMAppAttemptRegistrationEvent(RMAppAttemptEvent):
    """REGISTERED: where the master is."""

    __slots__ = ("host", "rpc_port", "tracking_url")

    def __init__(self, entity: str, host: str = "", rpc_port: int = -1, tracking_url: str = "") -> None:
        super().__init__(RMAppAttemptEventType.REGISTERED, entity)
        self.host = host
        self.rpc_port = rpc_port
        self.tracking_url = tracking_url


class RMAppAttemptStatusUpdateEvent(RMAppAttemptEvent):
    """STATUS_UPDATE: progress, 0 to 1; None as the tracking URL: as before."""

    __slots__ = ("progress", "tracking_url")

    def __init__(self, entity: str, progress: float = 0.0, tracking_url: str | None = None) -> None:
        self.type = RMAppAttemptEventType.STATUS_UPDATE
        self.timestamp = -1.0
        self.entity = entity
        self.progress = progress
        self.tracking_url = tracking_url


class RMAppAttemptUnregistrationEvent(RMAppAttemptEvent):
    """UNREGISTERED: what the master says of its application."""

    __slots__ = ("final_status", "tracking_url")

    def __init__(
        self,
        entity: str,
        final_status: FinalApplicationStatus = FinalApplicationStatus.SUCCEEDED,
        diagnostics: str = "",
        tracking_url: str = "",
    ) -> None:
        super().__init__(RMAppAttemptEventType.UNREGISTERED, entity, diagnostics)
        self.final_status = final_status
        self.tracking_url = tracking_url


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


class RMContainerStartEvent(RMContainerEvent):
    """START: the journal has it say what the container is."""

    __slots__ = ("container",)

    def __init__(self, container: RMContainer) -> None:
        self.type = RMContainerEventType.START
        self.timestamp = -1.0
        self.entity = container.entity
        self.status = None
        self.container = container

    @property
    def payload(self) -> Any:
        """Made when somebody asks for it: most runs have no journal."""
        return self.container.payload()


class RMContainerRecoverEvent(RMContainerEvent):
    """RECOVER: what its node says of it."""

    __slots__ = ("report",)

    def __init__(self, entity: str, report: NMContainerStatus, payload: Any = None) -> None:
        super().__init__(RMContainerEventType.RECOVER, entity, report.status, payload)
        self.report = report


class RMContainerReservedEvent(RMContainerEvent):
    """RESERVED: what is kept free for it, and where."""

    __slots__ = ("node", "resource")

    def __init__(self, entity: str, node: str, resource: Resource, payload: Any = None) -> None:
        super().__init__(RMContainerEventType.RESERVED, entity, payload=payload)
        self.node = node
        self.resource = resource


class RMContainerResourceEvent(RMContainerEvent):
    """ACQUIRE_UPDATED_CONTAINER (the size to be) and NM_DONE_CHANGE_RESOURCE (the size it has on its node)."""

    __slots__ = ("resource",)

    def __init__(self, type: RMContainerEventType, entity: str, resource: Resource) -> None:
        super().__init__(type, entity)
        self.resource = resource


class RMNodeEvent(RMEvent):
    """`about`: what it is about, as follows.

    CLEANUP_APP an application; CLEANUP_CONTAINER a container; FINISHED_CONTAINERS_PULLED_BY_AM containers (a tuple);
    UPDATE_CONTAINER (container, Resource); SIGNAL_CONTAINER (container, name of the signal); RESOURCE_UPDATE a
    Resource; GRACEFUL_DECOMMISSION the seconds to wait, or None: as long as it takes.
    """

    __slots__ = ("about", "payload")

    def __init__(self, type: RMNodeEventType, entity: str, about: Any = None, payload: Any = None) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.about = about
        self.payload = payload


class RMNodeStartedEvent(RMNodeEvent):
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


class RMNodeReconnectEvent(RMNodeEvent):
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


class SchedulerEvent(RMEvent):
    """`entity` is a node, an application, an attempt or a container, as the type says."""

    __slots__ = ()


class NodeAddedSchedulerEvent(SchedulerEvent):
    """NODE_ADDED: with the containers that the node already has."""

    __slots__ = ("containers",)

    def __init__(self, entity: str, containers: tuple[NMContainerStatus, ...] = ()) -> None:
        super().__init__(SchedulerEventType.NODE_ADDED, entity)
        self.containers = containers


class NodeResourceUpdateSchedulerEvent(SchedulerEvent):
    """NODE_RESOURCE_UPDATE: the node's new capacity."""

    __slots__ = ("capacity",)

    def __init__(self, entity: str, capacity: Resource) -> None:
        super().__init__(SchedulerEventType.NODE_RESOURCE_UPDATE, entity)
        self.capacity = capacity


class NodeLabelsUpdateSchedulerEvent(SchedulerEvent):
    """NODE_LABELS_UPDATE: the node's new partition."""

    __slots__ = ("partition",)

    def __init__(self, entity: str, partition: str) -> None:
        super().__init__(SchedulerEventType.NODE_LABELS_UPDATE, entity)
        self.partition = partition


class AppAddedSchedulerEvent(SchedulerEvent):
    """APP_ADDED; one that is recovered is not answered."""

    __slots__ = ("is_recovering",)

    def __init__(self, entity: str, is_recovering: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ADDED, entity)
        self.is_recovering = is_recovering


class AppAttemptAddedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_ADDED; one that is recovered is not answered. `transfer_state`: it takes over live containers."""

    __slots__ = ("is_recovering", "transfer_state")

    def __init__(self, entity: str, transfer_state: bool = False, is_recovering: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ATTEMPT_ADDED, entity)
        self.transfer_state = transfer_state
        self.is_recovering = is_recovering


class AppAttemptRemovedSchedulerEvent(SchedulerEvent):
    """APP_ATTEMPT_REMOVED; `keep_containers`: they go on, for the next attempt to take over."""

    __slots__ = ("keep_containers",)

    def __init__(self, entity: str, keep_containers: bool = False) -> None:
        super().__init__(SchedulerEventType.APP_ATTEMPT_REMOVED, entity)
        self.keep_containers = keep_containers


class AMLauncherEvent(RMEvent):
    """`entity` is an attempt."""

    __slots__ = ()


class RMStateStoreEvent(RMEvent):
    """`entity` is an application or an attempt; `state` is its record (None to remove it).

    Without `notify` the write is not answered.
    """

    __slots__ = ("notify", "state")

    def __init__(self, type: RMStateStoreEventType, entity: str, state: Any = None, notify: bool = True) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.state = state
        self.notify = notify


class RMAppManagerEvent(RMEvent):
    """`entity` is an application; `queue` is where an APP_MOVE goes to."""

    __slots__ = ("queue",)

    def __init__(self, type: RMAppManagerEventType, entity: str, queue: str = "") -> None:
        super().__init__(type, entity)
        self.queue = queue


class NodesListManagerEvent(RMEvent):
    """`entity` is a node."""

    __slots__ = ()


class RMFatalEvent(RMEvent):
    """The resource manager cannot go on; `entity` names the part that failed."""

    __slots__ = ("cause",)

    def __init__(self, type: RMFatalEventType, entity: str, cause: BaseException | None = None) -> None:
        super().__init__(type, entity)
        self.cause = cause


class ContainerRequest(NamedTuple):
    """What an application master asks for: one container."""

    resource: Resource
    priority: int = 0
    host: str | None = None
    """Preferred node."""
    gpu_models: frozenset[str] = frozenset()
    """Node models that will do; empty: any."""
    kind: str = "AM"
    tag: int = 0
    """The asker's own mark; comes back with the container."""
    rack: str | None = None
    """Preferred rack, where no host is; with a host, that of the host."""
    relax_locality: bool = True
    """Whether another node will do, after a delay; False: only the host, or only the rack."""
    node_label: str | None = None
    """Partition; None: that of the application, or the queue's default."""
