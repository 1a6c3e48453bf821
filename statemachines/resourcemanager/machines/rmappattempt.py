"""One attempt to run an application, after YARN's RMAppAttemptImpl: from the request for its master to its end.

As in RMApp, a final state is stored before the attempt enters it. Handler thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dispatcher.mailbox import ProcessingTimeService
from statemachines.resourcemanager.events.records import (
    EXIT_ABORTED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
    ContainerRequest,
    ContainerStatus,
    FinalApplicationStatus,
)
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType, RMAppFailedAttemptEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAttemptRemovedSchedulerEvent
from statemachines.resourcemanager.events.services import (
    AMLauncherEvent,
    AMLauncherEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.entity import Entity, Pending
from statemachines.resourcemanager.machines.liveliness import LivelinessMonitor
from statemachines.resourcemanager.machines.node_changes import NodeChange, NodeChangeLog
from statemachines.resourcemanager.machines.rmnode import NodeContext, RMNode
from statemachines.resourcemanager.machines.states import RMAppAttemptState, RMAppState
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.records.ids import attempt_id
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    MasterContainerData,
    PreemptedData,
    UsageData,
)
from statemachines.resourcemanager.records.submission import ApplicationSubmission

__all__ = ["RMAppAttempt", "RMAppAttemptState", "ResourceUsage"]

Then = Callable[["RMAppAttempt", RMAppAttemptState], None]
S = RMAppAttemptState
BEFORE_REGISTERING = -1
SAVED_EVERY_MS: Final = 10_000
"""A live attempt's usage and progress are stored with the heartbeat that comes so long after they were last stored."""
_BLACKLIST_SHARE = 0.8  # of the nodes that could hold the master; a blacklist of more has no effect
_NOT_THE_NODES_FAULT = frozenset(
    {EXIT_SUCCESS, EXIT_ABORTED, EXIT_PREEMPTED, EXIT_KILLED_BY_RESOURCEMANAGER, EXIT_KILLED_AFTER_APP_COMPLETION}
)
_FINAL_STATES = frozenset({S.FINISHED, S.FAILED, S.KILLED})
_APP_EVENT = {
    S.FINISHED: RMAppEventType.ATTEMPT_FINISHED,
    S.FAILED: RMAppEventType.ATTEMPT_FAILED,
    S.KILLED: RMAppEventType.ATTEMPT_KILLED,
}


_PULLED: Final = RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM
"""Bound once: to look a member up in its class takes as long as a call."""


@dataclass(slots=True)
class ResourceUsage:
    """What containers have used over time."""

    _memory_mb_ms: int = 0  # integers: a sum over millions of containers stays exact
    _vcores_milli_ms: int = 0
    _gpu_milli_ms: int = 0

    @classmethod
    def of(cls, data: UsageData) -> ResourceUsage:
        return cls(*data)

    def data(self) -> UsageData:
        """Return the record of it."""
        return UsageData(self._memory_mb_ms, self._vcores_milli_ms, self._gpu_milli_ms)

    def add(self, resource: Resource, ms: int) -> None:
        self._memory_mb_ms += resource.memory_mb * ms
        self._vcores_milli_ms += resource.vcores_milli * ms
        if resource.gpus:
            self._gpu_milli_ms += resource.gpus * resource.gpu_milli * ms

    def add_all(self, other: ResourceUsage) -> None:
        self._memory_mb_ms += other._memory_mb_ms
        self._vcores_milli_ms += other._vcores_milli_ms
        self._gpu_milli_ms += other._gpu_milli_ms

    @property
    def memory_mb_seconds(self) -> float:
        return self._memory_mb_ms / 1000

    @property
    def vcore_seconds(self) -> float:
        return self._vcores_milli_ms / 1_000_000

    @property
    def gpu_seconds(self) -> float:
        """In whole GPUs: half a GPU for two seconds is one."""
        return self._gpu_milli_ms / 1_000_000


@dataclass(slots=True)
class PreemptedContainers:
    """An attempt's preempted containers: how many, their sizes, and what they had used."""

    count: int = 0
    masters: int = 0  # among them
    memory_mb: int = 0
    vcores_milli: int = 0
    usage: ResourceUsage = field(default_factory=ResourceUsage)

    @classmethod
    def of(cls, data: PreemptedData) -> PreemptedContainers:
        return cls(*data[:-1], ResourceUsage.of(data.usage))

    def data(self) -> PreemptedData:
        """Return the record of it."""
        return PreemptedData(self.count, self.masters, self.memory_mb, self.vcores_milli, self.usage.data())

    def add(self, resource: Resource, ms: int, is_master: bool) -> None:
        self.count += 1
        self.masters += is_master
        self.memory_mb += resource.memory_mb
        self.vcores_milli += resource.vcores_milli
        self.usage.add(resource, ms)

    def add_all(self, other: PreemptedContainers) -> None:
        if other.count:
            self.count += other.count
            self.masters += other.masters
            self.memory_mb += other.memory_mb
            self.vcores_milli += other.vcores_milli
            self.usage.add_all(other.usage)


@dataclass(slots=True)
class MasterSession:
    """Whether an attempt's master has registered or finished, its last response, and what it has heard of nodes."""

    heard: NodeChange  # the last change of a node that the master has heard; at first the present one
    response_id: int = BEFORE_REGISTERING  # of the last response; 0 after registering
    last_response: Any = None  # sent again if it got lost
    has_finished: bool = False
    is_listened_to: bool = False  # == response_id >= 0 and not has_finished: one check per heartbeat


class Application(Protocol):
    """What an attempt needs of its application."""

    entity: str
    submission: ApplicationSubmission
    attempts: list[RMAppAttempt]
    recovered_state: RMAppState | None

    @property
    def state(self) -> Any: ...

    @property
    def current_attempt(self) -> RMAppAttempt | None: ...

    def can_retry(self) -> bool: ...


class AttemptContext(NodeContext, Protocol):
    """What attempts need of their resource manager."""

    config: ResourceManagerConfig
    timers: ProcessingTimeService
    master_sessions: dict[str, MasterSession]
    node_changes: NodeChangeLog
    am_liveliness_monitor: LivelinessMonitor
    am_finishing_monitor: LivelinessMonitor


class RMAppAttempt(Entity[AttemptContext]):
    """An attempt. `entity` is its id."""

    machine = "RMAppAttempt"

    __slots__ = (
        "_saves_soon",
        "app",
        "blacklist",
        "diagnostics",
        "exit_status",
        "final_status",
        "finish_ms",
        "finished_containers",
        "host",
        "master_container",
        "master_http_address",
        "master_node",
        "master_resource",
        "number",
        "pending",
        "preempted",
        "progress",
        "rpc_port",
        "saved_ms",
        "start_ms",
        "tracking_url",
        "usage",
    )

    def __init__(self, context: AttemptContext, app: Application, number: int) -> None:
        super().__init__(context, attempt_id(app.entity, number))
        self.app: Application = app
        self.number: int = number
        self.master_container: str | None = None
        self.master_node: str = ""
        self.master_http_address: str = ""  # of that node
        self.master_resource: Resource = app.submission.am_resource
        self.blacklist: set[str] = set()  # hosts on which a master failed, perhaps because of the node
        self.finished_containers: list[tuple[str, ContainerStatus]] = []  # (node, status), until the master pulls them
        self.usage: ResourceUsage = ResourceUsage()  # of ended containers
        self.preempted: PreemptedContainers = PreemptedContainers()
        self.progress: float = 0.0
        self.host: str = ""
        self.rpc_port: int = -1
        self.tracking_url: str = ""
        self.final_status: FinalApplicationStatus = FinalApplicationStatus.UNDEFINED
        self.exit_status: int | None = None
        self.diagnostics: list[str] = []
        self.start_ms: int = context.now_ms()
        self.finish_ms: int | None = None
        self.saved_ms: int = self.start_ms  # when it was last sent to the store
        self.pending: Pending | None = None  # while FINAL_SAVING
        self._saves_soon = False

    def add_usage(self, resource: Resource, ms: int, preempted: bool, is_master: bool = False) -> None:
        """Add a container of the application that ended after `ms`."""
        self.usage.add(resource, ms)
        if preempted:
            self.preempted.add(resource, ms, is_master)
        if self.finish_ms is not None:
            self.save_soon()

    def save_soon(self) -> None:
        """Store the attempt again after its end; once for all that happens before the next turn of the timers.

        Its end is stored before its containers are stopped, and only their ends say what they used.
        """
        if not self._saves_soon:
            self._saves_soon = True
            self.context.timers.register_timer(self.context.now_ms(), lambda _: self._save_again())

    def _save_again(self) -> None:
        self._saves_soon = False
        if self.context.attempts.get(self.entity) is not self:
            return  # its application has been forgotten, by the store too
        self.store(RMStateStoreEventType.UPDATE_APP_ATTEMPT, notify=False)

    def record(self) -> ApplicationAttemptStateData:
        """Return the record to store. FINISHING is stored as FINISHED: only the end of the container is missing."""
        state: RMAppAttemptState = self.state if self.pending is None else self.pending.target
        if state is S.FINISHING:
            state = S.FINISHED
        is_unknown = self.final_status is FinalApplicationStatus.UNDEFINED
        master = None
        if self.master_container is not None:
            node, address = self.master_node, self.master_http_address
            master = MasterContainerData(self.master_container, node, self.master_resource, address)
        has_finished = state is S.FINISHED  # after another end, the master's address is of no use
        return ApplicationAttemptStateData(
            self.entity,
            master,
            self.start_ms,
            state.name if state in _FINAL_STATES else None,
            None if is_unknown else self.final_status.name,
            self.exit_status,
            "; ".join(self.diagnostics),
            self.tracking_url,
            self.finish_ms,
            self._usage(state in _FINAL_STATES),
            self.preempted.data(),
            self.progress,
            self.host if has_finished else "",
            self.rpc_port if has_finished else -1,
            tuple(sorted(self.blacklist)),
        )

    def _usage(self, has_ended: bool) -> UsageData:
        """What its containers have used until now. Kept ones of an attempt that has ended are the next attempt's."""
        if has_ended and self.app.submission.keep_containers_across_attempts:
            return self.usage.data()
        now_ms, used = self.context.now_ms(), ResourceUsage.of(self.usage.data())
        for container in self.context.scheduler.live_containers(self.entity):
            used.add(container.request.resource, now_ms - container.created_ms)
        return used.data()

    def master_request(self) -> ContainerRequest:
        """Return the request for the master's container. Without a node label, it's for the queue's partition."""
        submission = self.app.submission
        return ContainerRequest(
            submission.am_resource,
            host=submission.am_host,
            gpu_models=submission.gpu_models,
            node_label=submission.master_label,
        )

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def is_masters(self, event: RMAppAttemptEvent) -> bool:
        """Whether a CONTAINER_FINISHED is about the master's container."""
        assert event.status is not None  # every CONTAINER_FINISHED has one
        return event.status.container == self.master_container

    def take_exit_status(self, event: RMAppAttemptEvent) -> None:
        """Keep how the master's container ended."""
        status = event.status
        assert status is not None  # every CONTAINER_FINISHED has one
        self.exit_status = status.exit_status
        reason = f": {status.diagnostics}" if status.diagnostics else ""
        self.diagnostics.append(f"the master's container {status.container} exited with {status.exit_status}{reason}")

    def note_finished_container(self, event: RMAppAttemptEvent) -> None:
        """Keep a finished container for the master."""
        assert event.status is not None
        self.finished_containers.append((event.node, event.status))

    def masters_container_done(self, event: RMAppAttemptEvent) -> None:
        """Let the nodes forget the master's container and the finished containers left without a master."""
        status = event.status
        assert status is not None
        if status.exit_status not in _NOT_THE_NODES_FAULT:
            self.blacklist.add(event.node.rpartition(":")[0])
            if self.finish_ms is not None:
                self.save_soon()
        done = [(event.node, status)]
        if not self.app.submission.keep_containers_across_attempts:
            done += self.finished_containers
            self.finished_containers = []
        self.let_nodes_forget(done)

    def let_nodes_forget(self, finished: Iterable[tuple[str, ContainerStatus]]) -> None:
        """Let the nodes stop reporting these finished containers."""
        by_node: dict[str, list[str]] = {}
        for node, status in finished:
            if node in by_node:
                by_node[node].append(status.container)
            else:
                by_node[node] = [status.container]
        post = self.context.post
        for node, containers in by_node.items():
            post(RMNodeEvent(_PULLED, node, tuple(containers)))

    def is_blacklist_effective(self) -> bool:
        """Whether enough nodes are left. A master that fails on most of them is itself at fault."""
        if not self.blacklist:
            return True
        able = [node.spec.host for node in self.context.nodes.values() if _could_hold(node, self.app.submission)]
        return sum(host in self.blacklist for host in able) < _BLACKLIST_SHARE * len(able)

    def take_over(self, previous: RMAppAttempt) -> None:
        """Inherit the previous attempt's blacklist and the finished containers that its master hasn't pulled."""
        self.blacklist = set(previous.blacklist)
        self.finished_containers, previous.finished_containers = previous.finished_containers, []

    def take_usage(self, previous: RMAppAttempt) -> None:
        """Take over what a previous attempt has used, before the store forgets that one."""
        if previous.usage == ResourceUsage():
            return
        self.usage.add_all(previous.usage)
        self.preempted.add_all(previous.preempted)
        previous.usage, previous.preempted = ResourceUsage(), PreemptedContainers()
        self.save_soon()

    def restore(self, data: ApplicationAttemptStateData) -> None:
        """Restore all but the state from the store's record."""
        if data.master_container is not None:
            self.master_container, self.master_node, self.master_resource, self.master_http_address = (
                data.master_container
            )
        if data.final_status is not None:
            self.final_status = FinalApplicationStatus[data.final_status]
        if data.diagnostics:
            self.diagnostics.append(data.diagnostics)
        self.exit_status = data.exit_status
        self.tracking_url = data.tracking_url
        self.start_ms = data.start_ms
        self.finish_ms = data.finish_ms
        self.usage, self.preempted = ResourceUsage.of(data.usage), PreemptedContainers.of(data.preempted)
        self.progress = data.progress
        self.host, self.rpc_port = data.host, data.rpc_port
        self.blacklist = set(data.blacklist)

    def notify_app(self, type: RMAppEventType, diagnostics: str = "") -> None:
        """Post an event to the application."""
        self.context.post(RMAppEvent(type, self.app.entity, diagnostics))

    def notify_launcher(self, type: AMLauncherEventType) -> None:
        """Post an event to the launcher of masters."""
        self.context.post(AMLauncherEvent(type, self.entity))

    def store(self, type: RMStateStoreEventType, *, notify: bool = True) -> None:
        """Send the attempt to the state store."""
        self.saved_ms = self.context.now_ms()
        self.context.post(RMStateStoreEvent(type, self.entity, self.record(), notify))

    def save_final(
        self, target: RMAppAttemptState, then: Then, event: RMAppAttemptEvent, *, tracking_url: str = ""
    ) -> None:
        """Store `target` with everything known of the end, then call `then` with `target` and enter it.

        `tracking_url` replaces that of the master, which is about to exit. The progress of a launched master is
        complete.
        """
        self.pending = Pending(target, then)
        if target is S.FINISHING or then is RMAppAttempt.leave_live:
            self.progress = 1.0
        self.finish_ms = self.context.now_ms()
        self.tracking_url = tracking_url
        if event.diagnostics:
            self.diagnostics.append(event.diagnostics)
        self.store(RMStateStoreEventType.UPDATE_APP_ATTEMPT)

    def leave(self, state: RMAppAttemptState) -> None:
        """End in `state`: close the master's session, and notify the application and the scheduler."""
        context, app = self.context, self.app
        keep_containers = state is S.FAILED and app.submission.keep_containers_across_attempts and app.can_retry()
        context.master_sessions.pop(self.entity, None)
        diagnostics = "; ".join(self.diagnostics)
        if state is S.FINISHED:
            self.notify_app(RMAppEventType.ATTEMPT_FINISHED, diagnostics)
        else:
            context.post(RMAppFailedAttemptEvent(_APP_EVENT[state], app.entity, diagnostics, keep_containers))
            self.host, self.rpc_port = "", -1
        context.post(AppAttemptRemovedSchedulerEvent(self.entity, keep_containers))

    def leave_live(self, state: RMAppAttemptState) -> None:
        """Leave a launched master as `leave` does, stop monitoring it, and clean up its container."""
        self.leave(state)
        self.context.am_liveliness_monitor.unregister(self.entity)
        self.context.am_finishing_monitor.unregister(self.entity)
        if not self.app.submission.unmanaged_am:
            self.notify_launcher(AMLauncherEventType.CLEANUP)


def _could_hold(node: RMNode, submission: ApplicationSubmission) -> bool:
    capacity, resource = node.capacity, submission.am_resource
    return (
        resource.memory_mb <= capacity.memory_mb
        and resource.vcores_milli <= capacity.vcores_milli
        and resource.gpus <= capacity.gpus
        and (not submission.gpu_models or node.spec.gpu_model in submission.gpu_models)
    )
