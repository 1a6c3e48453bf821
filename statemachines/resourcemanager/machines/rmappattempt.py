"""One attempt to run an application, after YARN's RMAppAttemptImpl: from the request for its master to its end.

As in RMApp, a final state is stored before it is taken. Handler thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dispatcher.mailbox import ProcessingTimeService
from statemachines.resourcemanager.config import ResourceManagerConfig
from statemachines.resourcemanager.entity import Entity, Pending
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus, FinalApplicationStatus
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType, RMAppFailedAttemptEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent
from statemachines.resourcemanager.events.scheduler import AppAttemptRemovedSchedulerEvent
from statemachines.resourcemanager.events.services import (
    AMLauncherEvent,
    AMLauncherEventType,
    NodesListManagerEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.ids import attempt_id
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import NodeContext
from statemachines.resourcemanager.machines.states import RMAppAttemptState, RMAppState
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.liveliness import LivelinessMonitor
from statemachines.resourcemanager.services.master_session import MasterSession
from statemachines.resourcemanager.statestore.records import ApplicationAttemptStateData, MasterContainerData
from statemachines.resourcemanager.submission import ApplicationSubmission

__all__ = ["RMAppAttempt", "RMAppAttemptState", "ResourceUsage"]

Hook = Callable[["RMAppAttempt", Any], Any]
S = RMAppAttemptState
_FINAL_STATES = frozenset({S.FINISHED, S.FAILED, S.KILLED})
_APP_EVENT = {
    S.FINISHED: RMAppEventType.ATTEMPT_FINISHED,
    S.FAILED: RMAppEventType.ATTEMPT_FAILED,
    S.KILLED: RMAppEventType.ATTEMPT_KILLED,
}


class ResourceUsage:
    """What the containers of an attempt have used, those that have ended; `preempted` counts those lost that way."""

    __slots__ = ("_gpu_milli_ms", "_memory_mb_ms", "_vcores_milli_ms", "preempted")

    def __init__(self) -> None:
        self._memory_mb_ms = 0  # whole numbers: a sum of millions is exact
        self._vcores_milli_ms = 0
        self._gpu_milli_ms = 0
        self.preempted = 0

    def add(self, resource: Resource, ms: int) -> None:
        self._memory_mb_ms += resource.memory_mb * ms
        self._vcores_milli_ms += resource.vcores_milli * ms
        if resource.gpus:
            self._gpu_milli_ms += resource.gpus * resource.gpu_milli * ms

    @property
    def memory_mb_seconds(self) -> float:
        return self._memory_mb_ms / 1000

    @property
    def vcore_seconds(self) -> float:
        return self._vcores_milli_ms / 1_000_000

    @property
    def gpu_seconds(self) -> float:
        """Of whole GPUs; half of one for two seconds is one."""
        return self._gpu_milli_ms / 1_000_000


class Application(Protocol):
    """What an attempt needs of its application."""

    entity: str
    submission: ApplicationSubmission
    attempts: list[RMAppAttempt]
    node_updates: list[tuple[str, NodesListManagerEventType]]
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
    am_liveliness_monitor: LivelinessMonitor
    am_finishing_monitor: LivelinessMonitor


class RMAppAttempt(Entity):
    """An attempt; `entity` is its id."""

    machine = "RMAppAttempt"
    context: AttemptContext

    __slots__ = (
        "_master_resource",
        "app",
        "blacklist",
        "diagnostics",
        "exit_status",
        "final_status",
        "finish_ms",
        "finished_containers",
        "host",
        "master_container",
        "master_node",
        "number",
        "pending",
        "progress",
        "rpc_port",
        "start_ms",
        "tracking_url",
        "usage",
    )

    def __init__(self, context: AttemptContext, app: Application, number: int) -> None:
        super().__init__(context, attempt_id(app.entity, number))
        self.app = app
        self.number = number
        self.master_container: str | None = None
        self.master_node = ""
        self._master_resource = app.submission.am_resource
        self.blacklist: set[str] = set()  # hosts on which a master failed by a fault that may be the node's
        self.finished_containers: list[tuple[str, ContainerStatus]] = []  # (node, status), until the master fetches
        self.usage = ResourceUsage()
        self.progress = 0.0
        self.host = ""
        self.rpc_port = -1
        self.tracking_url = ""
        self.final_status = FinalApplicationStatus.UNDEFINED
        self.exit_status: int | None = None
        self.diagnostics: list[str] = []
        self.start_ms = context.now_ms()
        self.finish_ms: int | None = None
        self.pending: Pending | None = None  # while FINAL_SAVING

    def add_usage(self, resource: Resource, ms: int, preempted: bool) -> None:
        """From a container of the application that has ended, after so long."""
        self.usage.add(resource, ms)
        if preempted:
            self.usage.preempted += 1

    def record(self) -> ApplicationAttemptStateData:
        """What is to be stored now. FINISHING is FINISHED there: what is waited for is the container's end only."""
        state: RMAppAttemptState = self.state if self.pending is None else self.pending.target
        if state is S.FINISHING:
            state = S.FINISHED
        is_unknown = self.final_status is FinalApplicationStatus.UNDEFINED
        master = None
        if self.master_container is not None:
            master = MasterContainerData(self.master_container, self.master_node, self._master_resource)
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
        )

    def master_request(self) -> ContainerRequest:
        """What the scheduler is asked for to run the master; the queue's partition where the client named none."""
        submission = self.app.submission
        return ContainerRequest(
            submission.am_resource,
            host=submission.am_host,
            gpu_models=submission.gpu_models,
            node_label=submission.node_label,
        )

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def is_masters(self, event: RMAppAttemptEvent) -> bool:
        """Whether a CONTAINER_FINISHED is about the master's container."""
        assert event.status is not None  # every CONTAINER_FINISHED has one
        return event.status.container == self.master_container

    def set_master(self, container: RMContainer) -> None:
        self.master_container = container.entity
        self.master_node = container.node
        self._master_resource = container.request.resource

    def take_over(self, previous: RMAppAttempt) -> None:
        """What the attempt before has learnt, and what its master has not fetched."""
        self.blacklist = previous.blacklist
        self.finished_containers, previous.finished_containers = previous.finished_containers, []

    def restore(self, data: ApplicationAttemptStateData) -> None:
        """Be again what the store says, but for the state."""
        if data.master_container is not None:
            self.master_container, self.master_node, self._master_resource = data.master_container
        if data.final_status is not None:
            self.final_status = FinalApplicationStatus[data.final_status]
        if data.diagnostics:
            self.diagnostics.append(data.diagnostics)
        self.exit_status = data.exit_status
        self.tracking_url = data.tracking_url
        self.start_ms = data.start_ms
        self.finish_ms = data.finish_ms

    def tell_app(self, type: RMAppEventType, diagnostics: str = "") -> None:
        self.context.post(RMAppEvent(type, self.app.entity, diagnostics))

    def tell_launcher(self, type: AMLauncherEventType) -> None:
        self.context.post(AMLauncherEvent(type, self.entity))

    def store(self, type: RMStateStoreEventType, *, notify: bool = True) -> None:
        self.context.post(RMStateStoreEvent(type, self.entity, self.record(), notify))

    def save_final(
        self, target: RMAppAttemptState, then: Hook, event: RMAppAttemptEvent, *, tracking_url: str = ""
    ) -> None:
        """Store `target`; once it is stored, run `then` with this event, and go there.

        What is known of the end is part of what is stored, so it is kept now. `tracking_url` is where to look from now
        on: the master itself is about to go.
        """
        self.pending = Pending(target, then, event)
        self.finish_ms = self.context.now_ms()
        self.tracking_url = tracking_url
        if event.diagnostics:
            self.diagnostics.append(event.diagnostics)
        self.store(RMStateStoreEventType.UPDATE_APP_ATTEMPT)

    def leave(self, state: RMAppAttemptState) -> None:
        """It has ended in `state`: its master may not call any more, the application and the scheduler hear of it."""
        context, app = self.context, self.app
        keep_containers = state is S.FAILED and app.submission.keep_containers_across_attempts and app.can_retry()
        context.master_sessions.pop(self.entity, None)
        diagnostics = "; ".join(self.diagnostics)
        if state is S.FINISHED:
            self.tell_app(RMAppEventType.ATTEMPT_FINISHED, diagnostics)
        else:
            context.post(RMAppFailedAttemptEvent(_APP_EVENT[state], app.entity, diagnostics, keep_containers))
            self.host, self.rpc_port = "", -1
        context.post(AppAttemptRemovedSchedulerEvent(self.entity, keep_containers))

    def leave_live(self, state: RMAppAttemptState) -> None:
        """As `leave`, for one whose master was launched: nobody waits for it any more, and its container goes."""
        self.progress = 1.0
        self.leave(state)
        self.context.am_liveliness_monitor.unregister(self.entity)
        self.context.am_finishing_monitor.unregister(self.entity)
        if not self.app.submission.unmanaged_am:
            self.tell_launcher(AMLauncherEventType.CLEANUP)
