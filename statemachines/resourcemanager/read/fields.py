"""The fields of the entities that REST, the pages and the CSV show, each declared once, in the order of REST's objects.
Those of queues are in a module of their own.

A new field is one line here. The line says where the field appears: `rest` is its key in Hadoop's objects, `place` its
column in the CSV of all applications, `column` its column in lists, and `jmx` its key in a bean. Its unit says how each
of them writes it.

Any thread may call the getters: reports are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from statemachines.resourcemanager.read.past import share
from statemachines.resourcemanager.read.queue_tally import QueueTally
from statemachines.resourcemanager.records.acls import QueueACL
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.reports import (
    ENDED_STATES,
    WAITING_STATES,
    ApplicationAttemptReport,
    ApplicationReport,
    ContainerReport,
    NodeReport,
    WaitCause,
)
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

R = TypeVar("R")


class Unit(Enum):
    """What a value is. None stands for a missing value, and each output decides how to show that."""

    TEXT = auto()
    """From outside, of any length. Lists ignore its case when they sort."""
    NAME = auto()
    """From the program itself, or checked."""
    NAMES = auto()
    TAGS = auto()
    COUNT = auto()
    FLAG = auto()
    SHARE = auto()
    """0 to 1 or more."""
    TIME_MS = auto()
    """Unix ms."""
    DURATION_MS = auto()
    MEMORY_MB = auto()
    CORES_MILLI = auto()
    """Thousandths of virtual cores or of GPUs."""
    RESOURCE_S = auto()
    """Resources used over time, in seconds."""
    RESOURCES_S = auto()
    """The same of memory, virtual cores and GPUs together."""
    LIFETIME_MS = auto()
    """Unix ms when it is killed."""
    USE = auto()
    """What an application has and waits for."""
    REQUESTS = auto()
    RESOURCE = auto()
    LEFT = auto()
    """What the second of two resources leaves of the first."""
    LEFT_OF_EACH = auto()
    """The sum of this over several pairs. A type of which more is taken than there is counts as nothing left."""
    LEFT_CORES = auto()
    """The same of one pair, in whole virtual cores."""
    NUMBER = auto()
    """With a fraction."""
    WHOLE = auto()
    """The same, cut to a whole number."""
    LIMIT = auto()
    """A greatest number; 0: there is none."""
    MAXIMUM = auto()
    """The largest container."""
    RESOURCE_TEXT = auto()
    """A resource as Hadoop prints it."""
    OBJECT = auto()
    """JSON as it is."""
    PARTITIONS = auto()
    """A queue's shares of partitions."""
    PARTITION_USES = auto()
    """What a queue has of partitions."""
    USERS = auto()
    QUEUES = auto()


class Lists(Flag):
    """Which lists have a column."""

    ANY = auto()
    WAITING = auto()
    ENDED = auto()
    ALL = ANY | WAITING | ENDED


class ListColumn(NamedTuple):
    """A column of the list of all entities of a kind, on its page."""

    name: str
    title: str
    style: str = ""
    lists: Lists = Lists.ALL
    sort: Callable[[Any], Any] | None = None
    """What rows are sorted by, if that is not the value itself."""
    is_number: bool = False
    """The largest comes first."""
    is_sorted: bool = True
    """Whether rows can be sorted by it."""
    is_fixed: bool = False
    """Its cells are set in digits of one width."""


@dataclass(slots=True)
class Around:
    """What the fields of an entity are made of besides its report. Its maker may change it from one entity to the next.

    Threads: its maker's only.
    """

    now_ms: int = 0
    attempts: Sequence[ApplicationAttemptReport] = ()
    cluster_timestamp: int = 0
    address: str = ""
    """Of an application: this server's, such as `http://rm:8088`, where it has a page if it has none of its own. Of a
    container: its node's `host:port`; empty: not known."""
    wait: WaitCause | None = None
    """Why it waits to start."""
    user: str = ""
    """Of the application of an attempt or container."""
    number: int = 0
    """Of an attempt in its list, from 1."""
    heartbeat_ms: int = 0
    """When the node was heard of last."""
    hadoop_version: str = ""
    """Of nodes that do not report their own."""
    queues: Mapping[str, QueueInfo] = field(default_factory=dict)
    """By path."""
    is_for_all: Callable[[str, QueueACL], bool] = lambda *_: False
    """Whether everyone has this access to a queue for want of a list."""
    health: Mapping[str, Any] = field(default_factory=dict)
    """What the scheduler has done last."""
    tally: QueueTally = field(default_factory=QueueTally)
    """Of a queue: what is counted of it and of those below it."""


NOWHERE: Final = Around()
"""For fields of the report alone. Nobody changes it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A getter of what `Around` has by this name."""

    name: str

    def __call__(self, _: Any, around: Around) -> Any:
        return getattr(around, self.name)


@dataclass(frozen=True, slots=True)
class Item:
    """A getter: one of the values that another getter returns, which is called once for several of them."""

    of: Callable[[Any, Around], Sequence[Any]]
    index: int

    def __call__(self, report: Any, around: Around) -> Any:
        return self.of(report, around)[self.index]


class Field(NamedTuple, Generic[R]):
    """One field of an entity."""

    name: str
    """In the CSV; unique within its entity."""
    unit: Unit
    get: Callable[[R, Around], Any]
    rest: str | None = None
    place: int | None = None
    """Among the columns of the CSV, if there is one, and of lists."""
    column: ListColumn | None = None
    is_public: bool = False
    """Whether everyone sees it, and not only those who may view the application."""
    is_public_rest: bool = False
    """Everyone sees it in REST only, as in Hadoop."""
    masked: object = None
    """What REST shows instead to those who may not view the application; None: nothing."""
    is_live: bool = False
    """An application that has ended has none: -1 in REST, a dash in lists."""
    jmx: tuple[int, str] | None = None
    """Its place and key in the bean of node managers, or of the queue. A value of several types has a key for each."""
    is_growing: bool = False
    """It changes while the report stays the same, so each answer computes it."""


# -- applications ------------------------------------------------------------------------------------------------------

WAITING: Final = frozenset(WAITING_STATES)
ENDED: Final = frozenset(ENDED_STATES)
"""Of applications."""
NO_STATUS: Final = -(10**10)
"""Sorts before all exit statuses."""


def logs_url(address: str, container: str, user: str) -> str:
    """The page of a container's logs on its node, as Hadoop's node managers serve it."""
    return f"http://{address}/node/containerlogs/{container}/{quote(user, safe='', errors='replace')}"


def _tracking_ui(app: ApplicationReport, _: Around) -> str:
    if app.state in WAITING:
        return "UNASSIGNED"
    return "ApplicationMaster" if app.finish_ms is None else "History"


def _tracking_url(app: ApplicationReport, _: Around) -> str | None:
    return app.tracking_url or None if app.state not in WAITING else None


def _own_page(app: ApplicationReport, around: Around) -> str | None:
    """The address of its page here, if its master has given none."""
    has_page = app.state not in WAITING and not app.tracking_url
    return f"{around.address}/cluster/app/{app.application_id}" if has_page else None


def _master_address(app: ApplicationReport, around: Around) -> str | None:
    has_master = app.master_container is not None and around.attempts
    return around.attempts[-1].node_http_address or None if has_master else None


def _master_logs(app: ApplicationReport, around: Around) -> str | None:
    address, container = _master_address(app, around), app.master_container
    return logs_url(address, container, app.user) if address is not None and container is not None else None


def _elapsed_ms(app: ApplicationReport, around: Around) -> int:
    """Both times are of the resource manager's clock, which may have been set back."""
    return max(0, (around.now_ms if app.finish_ms is None else app.finish_ms) - app.start_ms)


def resources_s(app: ApplicationReport, around: Around) -> tuple[float, float, float]:
    """As reported, plus what it has used since."""
    usage, allocated = app.usage, app.allocated
    since_s = 0.0 if app.finish_ms is not None else max(0, around.now_ms - app.as_of_ms) / 1000
    return (
        usage.memory_mb_seconds + since_s * allocated.memory_mb,
        usage.vcore_seconds + since_s * allocated.vcores_milli / 1000,
        usage.gpu_seconds + since_s * allocated.gpu_milli_total / 1000,
    )


_F = Field[ApplicationReport]
_C = ListColumn
_LIVE: Final = Lists.ANY
# fmt: off
APPLICATION_FIELDS: Final[tuple[Field[ApplicationReport], ...]] = (
    _F("id", Unit.TEXT, lambda app, _: app.application_id, "id", 1,
       _C("id", "ID", "id", sort=lambda app: 0, is_number=True), is_public=True),
    _F("user", Unit.TEXT, lambda app, _: app.user, "user", 3, _C("user", "User", "c2 cut"), is_public=True),
    _F("name", Unit.TEXT, lambda app, _: app.name, "name", 2, _C("name", "Name", "cut name"), is_public=True),
    _F("queue", Unit.NAME, lambda app, _: app.queue, "queue", 4, _C("queue", "Queue", "c2 cut"), is_public=True),
    _F("state", Unit.NAME, lambda app, _: app.state, "state", 8, _C("state", "State"), is_public=True),
    _F("final_status", Unit.NAME, lambda app, _: app.final_status, "finalStatus", 9, is_public=True),
    _F("progress", Unit.SHARE, lambda app, _: app.progress, "progress", 14,
       _C("progress", "Progress", "c3", _LIVE, is_number=True), is_public_rest=True),
    _F("tracking_ui", Unit.NAME, _tracking_ui, "trackingUI", is_public=True),
    _F("cluster_id", Unit.COUNT, Given("cluster_timestamp"), "clusterId", is_public=True),
    _F("type", Unit.TEXT, lambda app, _: app.application_type, "applicationType", 5,
       _C("type", "Type", "c4"), is_public=True),
    _F("tags", Unit.TAGS, lambda app, _: app.tags, "applicationTags", 6, is_public=True),
    _F("priority", Unit.COUNT, lambda app, _: app.priority, "priority", 7, is_public=True),
    _F("tracking_url", Unit.NAME, _tracking_url, "trackingUrl", is_public=True),
    _F("own_page", Unit.NAME, _own_page, "trackingUrl", is_public=True, is_growing=True),
    _F("diagnostics", Unit.TEXT, lambda app, _: app.diagnostics, "diagnostics", 23, masked="N/A"),
    _F("started", Unit.TIME_MS, lambda app, _: app.start_ms, "startedTime", 10,
       _C("started", "Started", "c4", Lists.ANY | Lists.WAITING, is_number=True, is_fixed=True)),
    _F("launched", Unit.TIME_MS, lambda app, _: app.launch_ms, "launchTime", 11),
    _F("finished", Unit.TIME_MS, lambda app, _: app.finish_ms, "finishedTime", 12,
       _C("finished", "Finished", "fixed", Lists.ENDED, lambda app: app.finish_ms or 0, is_number=True)),
    _F("master_logs", Unit.NAME, _master_logs, "amContainerLogs"),
    _F("master_address", Unit.NAME, _master_address, "amHostHttpAddress"),
    _F("master_node", Unit.NAME, lambda app, _: app.master_node if app.master_container else None, "masterNodeId"),
    _F("rpc_address", Unit.NAME, lambda app, _: f"{app.host}:{app.rpc_port}" if app.host else None, "amRPCAddress"),
    _F("memory_mb", Unit.MEMORY_MB, lambda app, _: app.allocated.memory_mb, "allocatedMB", 16,
       _C("memory", "Memory", "c2 number", _LIVE, is_number=True), is_live=True),
    _F("vcores", Unit.CORES_MILLI, lambda app, _: app.allocated.vcores_milli, "allocatedVCores", 17,
       _C("vcores", "vCores", "c4 number", _LIVE, is_number=True), is_live=True),
    _F("reserved_mb", Unit.MEMORY_MB, lambda app, _: app.reserved.memory_mb, "reservedMB", is_live=True),
    _F("reserved_vcores", Unit.CORES_MILLI, lambda app, _: app.reserved.vcores_milli, "reservedVCores", is_live=True),
    _F("containers", Unit.COUNT, lambda app, _: app.containers, "runningContainers", 15,
       _C("containers", "Containers", "c2 number", _LIVE, is_number=True), is_live=True),
    _F("gpus", Unit.CORES_MILLI, lambda app, _: app.allocated.gpu_milli_total, place=18),
    _F("pending_containers", Unit.COUNT, lambda app, _: app.pending_containers, place=19),
    _F("wait_cause", Unit.NAME, lambda _, around: around.wait.name if around.wait is not None else None, place=20),
    _F("exit_status", Unit.COUNT, lambda app, _: app.exit_status, place=21, column=_C(
        "exit", "Exit status", "number", Lists.ENDED,
        lambda app: NO_STATUS if app.exit_status is None else app.exit_status, is_number=True)),
    _F("failure", Unit.NAME, lambda app, _: app.failure.name if app.failure is not None else None, place=22),
    _F("why", Unit.TEXT, lambda app, _: app.diagnostics, column=_C(
        "why", "Why it waits or failed", "why", sort=lambda app: app.pending_containers, is_number=True)),
    _F("preempted_mb", Unit.MEMORY_MB, lambda app, _: app.usage.preempted.memory_mb, "preemptedResourceMB"),
    _F("preempted_vcores", Unit.CORES_MILLI, lambda app, _: app.usage.preempted.vcores_milli,
       "preemptedResourceVCores"),
    _F("preempted_others", Unit.COUNT, lambda app, _: app.usage.preempted_containers - app.usage.preempted_masters,
       "numNonAMContainerPreempted"),
    _F("preempted_masters", Unit.COUNT, lambda app, _: app.usage.preempted_masters, "numAMContainerPreempted"),
    _F("preempted_mb_s", Unit.RESOURCE_S, lambda app, _: app.usage.preempted_memory_mb_seconds,
       "preemptedMemorySeconds"),
    _F("preempted_vcore_s", Unit.RESOURCE_S, lambda app, _: app.usage.preempted_vcore_seconds,
       "preemptedVcoreSeconds"),
    _F("queue_share", Unit.SHARE, lambda app, _: app.queue_share, "queueUsagePercentage"),
    _F("cluster_share", Unit.SHARE, lambda app, _: app.cluster_share, "clusterUsagePercentage"),
    _F("log_aggregation", Unit.NAME, lambda *_: "DISABLED", "logAggregationStatus"),
    _F("unmanaged", Unit.FLAG, lambda app, _: app.unmanaged_am, "unmanagedApplication"),
    _F("elapsed_s", Unit.DURATION_MS, _elapsed_ms, "elapsedTime", 13,
       _C("elapsed", "Elapsed", "c2 number", is_sorted=False, is_number=True), is_growing=True),
    _F("memory_mb_s", Unit.RESOURCE_S, Item(resources_s, 0), "memorySeconds", is_growing=True),
    _F("vcore_s", Unit.RESOURCE_S, Item(resources_s, 1), "vcoreSeconds", is_growing=True),
    _F("resources_s", Unit.RESOURCES_S, resources_s, "resourceSecondsMap", is_growing=True),
    _F("node_label", Unit.NAME, lambda app, _: app.node_label or "", "appNodeLabelExpression"),
    _F("am_node_label", Unit.NAME, lambda app, _: (app.node_label or "") if app.am_node_label is None
       else app.am_node_label, "amNodeLabelExpression"),
    _F("use", Unit.USE, lambda app, _: None if app.state in ENDED else app, "resourceInfo"),
    _F("requests", Unit.REQUESTS, lambda app, _: None if app.state in ENDED else app.requests, "resourceRequests"),
    _F("lifetime", Unit.LIFETIME_MS, lambda app, _: app.deadline_ms, "timeouts", is_growing=True),
)
# fmt: on


# -- attempts and containers -------------------------------------------------------------------------------------------

STILL_RUNNING: Final = -1000
"""The exit status of a container that has none yet (YARN's ContainerExitStatus.INVALID)."""


def _attempt_state(attempt: ApplicationAttemptReport, _: Around) -> str:
    """The state by YARN's names for clients, who do not see that something is being stored."""
    if attempt.state == "LAUNCHED_UNMANAGED_SAVING":
        return "ALLOCATED_SAVING"
    if attempt.state != "FINAL_SAVING":
        return attempt.state
    if attempt.host:  # its master has registered
        return "RUNNING"
    return "LAUNCHED" if attempt.master_container is not None else "SCHEDULED"


def _attempt_logs(attempt: ApplicationAttemptReport, around: Around) -> str:
    address, container = attempt.node_http_address, attempt.master_container
    return logs_url(address, container, around.user) if address and container is not None else ""


def _container_logs(container: ContainerReport, around: Around) -> str:
    return logs_url(around.address, container.container_id, around.user) if around.address else ""


def _container_node(_: ContainerReport, around: Around) -> str:
    return f"http://{around.address}" if around.address else ""


_A = Field[ApplicationAttemptReport]
_K = Field[ContainerReport]
# fmt: off
LISTED_ATTEMPT_FIELDS: Final[tuple[Field[ApplicationAttemptReport], ...]] = (
    _A("id", Unit.COUNT, Given("number"), "id"),
    _A("attempt_id", Unit.NAME, lambda attempt, _: attempt.attempt_id, "appAttemptId"),
    _A("started", Unit.TIME_MS, lambda attempt, _: attempt.start_ms, "startTime"),
    _A("finished", Unit.TIME_MS, lambda attempt, _: attempt.finish_ms, "finishedTime"),
    _A("master_container", Unit.NAME, lambda attempt, _: attempt.master_container or "", "containerId"),
    _A("node_address", Unit.NAME, lambda attempt, _: attempt.node_http_address, "nodeHttpAddress"),
    _A("node", Unit.NAME, lambda attempt, _: attempt.master_node or "", "nodeId"),
    _A("logs", Unit.NAME, _attempt_logs, "logsLink"),
    _A("blacklist", Unit.TAGS, lambda attempt, _: attempt.blacklist, "blacklistedNodes"),
    _A("system_blacklist", Unit.TAGS, lambda attempt, _: attempt.system_blacklist, "nodesBlacklistedBySystem"),
    _A("ports", Unit.NAME, lambda *_: "", "exportPorts"),
    _A("state", Unit.NAME, _attempt_state, "appAttemptState"),
)
ATTEMPT_FIELDS: Final[tuple[Field[ApplicationAttemptReport], ...]] = (
    _A("attempt_id", Unit.NAME, lambda attempt, _: attempt.attempt_id, "appAttemptId"),
    _A("host", Unit.NAME, lambda attempt, _: attempt.host or "N/A", "host"),
    _A("rpc_port", Unit.COUNT, lambda attempt, _: attempt.rpc_port, "rpcPort"),
    _A("tracking_url", Unit.NAME, lambda attempt, _: attempt.tracking_url, "trackingUrl"),
    _A("own_tracking_url", Unit.NAME, lambda attempt, _: attempt.tracking_url, "originalTrackingUrl"),
    _A("diagnostics", Unit.TEXT, lambda attempt, _: attempt.diagnostics, "diagnosticsInfo"),
    _A("state", Unit.NAME, _attempt_state, "appAttemptState"),
    _A("started", Unit.TIME_MS, lambda attempt, _: attempt.start_ms, "startedTime"),
    _A("finished", Unit.TIME_MS, lambda attempt, _: attempt.finish_ms, "finishedTime"),
    _A("master_container", Unit.NAME, lambda attempt, _: attempt.master_container, "amContainerId"),
)
"""One attempt has other keys than one of a list, as in Hadoop."""
CONTAINER_FIELDS: Final[tuple[Field[ContainerReport], ...]] = (
    _K("id", Unit.NAME, lambda container, _: container.container_id, "containerId"),
    _K("memory_mb", Unit.MEMORY_MB, lambda container, _: container.resource.memory_mb, "allocatedMB"),
    _K("vcores", Unit.CORES_MILLI, lambda container, _: container.resource.vcores_milli, "allocatedVCores"),
    _K("assigned_node", Unit.NAME, lambda container, _: container.node, "assignedNodeId"),
    _K("priority", Unit.COUNT, lambda container, _: container.priority, "priority"),
    _K("started", Unit.TIME_MS, lambda container, _: container.created_ms, "startedTime"),
    _K("finished", Unit.TIME_MS, lambda *_: None, "finishedTime"),
    _K("elapsed_s", Unit.DURATION_MS, lambda container, around: max(0, around.now_ms - container.created_ms),
       "elapsedTime"),
    _K("diagnostics", Unit.TEXT, lambda *_: "", "diagnosticsInfo"),
    _K("logs", Unit.NAME, _container_logs, "logUrl"),
    _K("exit_status", Unit.COUNT, lambda *_: STILL_RUNNING, "containerExitStatus"),
    _K("state", Unit.NAME, lambda container, _: container.state, "containerState"),
    _K("node_address", Unit.NAME, _container_node, "nodeHttpAddress"),
    _K("node", Unit.NAME, lambda container, _: container.node, "nodeId"),
)
# fmt: on


# -- nodes -------------------------------------------------------------------------------------------------------------

GONE: Final = frozenset({"LOST", "DECOMMISSIONED", "REBOOTED", "SHUTDOWN"})
IN_USE: Final = frozenset({"RUNNING", "DECOMMISSIONING"})
"""The scheduler knows these nodes only."""


def _left(node: NodeReport, _: Around) -> tuple[Resource, Resource]:
    """The capacity, and what is taken of it: a node that is not in use has nothing available."""
    return node.capacity, node.used if node.state in IN_USE else node.capacity


def _left_mb(node: NodeReport, around: Around) -> int:
    capacity, taken = _left(node, around)
    return capacity.memory_mb - taken.memory_mb


_N = Field[NodeReport]
# fmt: off
NODE_FIELDS: Final[tuple[Field[NodeReport], ...]] = (
    _N("rack", Unit.NAME, lambda node, _: node.rack, "rack", 2, _C("rack", "Rack", "c2"), jmx=(2, "Rack")),
    _N("state", Unit.NAME, lambda node, _: node.state, "state", 4, _C("state", "State"), jmx=(3, "State")),
    _N("id", Unit.NAME, lambda node, _: node.node_id, "id", 1, _C("id", "Node", "id", sort=lambda node: 0),
       jmx=(4, "NodeId")),
    _N("host", Unit.NAME, lambda node, _: node.host, "nodeHostName", jmx=(1, "HostName")),
    _N("http_address", Unit.NAME, lambda node, _: "" if node.state in GONE else node.http_address, "nodeHTTPAddress",
       jmx=(5, "NodeHTTPAddress")),
    _N("version", Unit.NAME, lambda node, around: node.version or around.hadoop_version, "version",
       jmx=(8, "NodeManagerVersion")),
    _N("health_report", Unit.TEXT, lambda node, _: node.health_report, "healthReport", jmx=(7, "HealthReport")),
    _N("containers", Unit.COUNT, lambda node, _: node.containers, "numContainers", 6,
       _C("containers", "Containers", "number", is_number=True), jmx=(9, "NumContainers")),
    _N("used_mb", Unit.MEMORY_MB, lambda node, _: node.used.memory_mb, "usedMemoryMB", 7, _C(
        "memory", "Memory used", sort=lambda node: share(node.used.memory_mb, node.capacity.memory_mb),
        is_number=True), jmx=(10, "UsedMemoryMB")),
    _N("left_mb", Unit.MEMORY_MB, _left_mb, "availMemoryMB"),
    _N("free_mb", Unit.MEMORY_MB, lambda node, _: node.capacity.memory_mb - node.used.memory_mb,
       jmx=(11, "AvailableMemoryMB")),
    _N("used_vcores", Unit.CORES_MILLI, lambda node, _: node.used.vcores_milli, "usedVirtualCores", 8, _C(
        "vcores", "vCores used", sort=lambda node: share(node.used.vcores_milli, node.capacity.vcores_milli),
        is_number=True)),
    _N("used_gpus", Unit.CORES_MILLI, lambda node, _: node.used.gpu_milli_total, None, 9, _C(
        "gpus", "GPUs used", "c2", sort=lambda node: share(node.used.gpu_milli_total, node.capacity.gpu_milli_total),
        is_number=True)),
    _N("left_vcores", Unit.LEFT_CORES, _left, "availableVirtualCores"),
    _N("opportunistic_running", Unit.COUNT, lambda *_: 0, "numRunningOpportContainers"),
    _N("opportunistic_gb", Unit.COUNT, lambda *_: 0, "usedMemoryOpportGB"),
    _N("opportunistic_vcores", Unit.COUNT, lambda *_: 0, "usedVirtualCoresOpport"),
    _N("opportunistic_queued", Unit.COUNT, lambda *_: 0, "numQueuedContainers"),
    _N("labels", Unit.NAMES, lambda node, _: [node.partition] if node.partition else None, "nodeLabels", 3,
       _C("partition", "Partition", "c3", sort=lambda node: node.partition)),
    _N("total", Unit.RESOURCE, lambda node, _: node.capacity, "totalResource"),
    _N("used", Unit.RESOURCE, lambda node, _: node.used, "usedResource"),
    _N("available", Unit.LEFT, _left, "availableResource"),
    _N("heartbeat", Unit.TIME_MS, Given("heartbeat_ms"), "lastHealthUpdate", 5,
       _C("heartbeat", "Heard of", "c2 number", is_sorted=False), jmx=(6, "LastHealthUpdate"), is_growing=True),
)
# fmt: on
