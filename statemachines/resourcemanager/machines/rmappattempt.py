"""One attempt to run an application, after YARN's RMAppAttemptImpl: from the request for its master to its end.

As in RMApp, a final state is stored before it is taken. Handler thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, Pending, RMContext, finish_saving
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus, FinalApplicationStatus
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType, RMAppFailedAttemptEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType as E
from statemachines.resourcemanager.events.scheduler import AppAttemptRemovedSchedulerEvent
from statemachines.resourcemanager.events.services import (
    AMLauncherEvent,
    AMLauncherEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.ids import attempt_id
from statemachines.resourcemanager.machines import rmappattempt_hooks as hooks
from statemachines.resourcemanager.machines.states import RMAppAttemptState
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.statestore.records import ApplicationAttemptStateData, MasterContainerData

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmapp import RMApp
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer

__all__ = ["FACTORY", "RMAppAttempt", "RMAppAttemptState", "ResourceUsage"]

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


class RMAppAttempt(Entity):
    """An attempt; `entity` is its id."""

    machine = "RMAppAttempt"

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

    def __init__(self, context: RMContext, app: RMApp, number: int) -> None:
        super().__init__(context, attempt_id(app.entity, number), FACTORY.make(self, listener=context.recorder))
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
        self, target: RMAppAttemptState, then: hooks.Hook, event: RMAppAttemptEvent, *, tracking_url: str = ""
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
        context.master_service.unregister_attempt(self.entity)
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


def _build() -> StateMachineFactory[RMAppAttemptState, RMAppAttempt]:
    factory: StateMachineFactory[RMAppAttemptState, RMAppAttempt] = StateMachineFactory(S.NEW, "RMAppAttempt")
    return (
        factory.add_transition(S.NEW, S.SUBMITTED, E.START, hooks.start)
        .add_transition(S.NEW, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.NEW, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.NEW, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.NEW, {S.FINISHED, S.KILLED, S.FAILED, S.LAUNCHED}, E.RECOVER, hooks.recover)
        .add_transition(S.SUBMITTED, {S.LAUNCHED_UNMANAGED_SAVING, S.SCHEDULED}, E.ATTEMPT_ADDED, hooks.ask_for_master)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.SCHEDULED, {S.ALLOCATED_SAVING, S.SCHEDULED}, E.CONTAINER_ALLOCATED, hooks.fetch_master)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.ALLOCATED, E.ATTEMPT_NEW_SAVED, hooks.launch)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.LAUNCHED, E.ATTEMPT_NEW_SAVED, hooks.launched)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.LAUNCHED, E.LAUNCHED, hooks.launched)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.LAUNCH_FAILED, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.KILL, hooks.save_killed_allocated)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.RUNNING, E.REGISTERED, hooks.launched_and_registered)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.LAUNCHED, S.RUNNING, E.REGISTERED, hooks.registered)
        .add_transition(
            S.LAUNCHED, {S.LAUNCHED, S.FINAL_SAVING}, E.CONTAINER_FINISHED, hooks.container_finished_launched
        )
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.EXPIRE, hooks.save_failed_live)
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.KILL, hooks.save_killed_live)
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.FAIL, hooks.save_failed_live)
        .add_transition(S.RUNNING, S.RUNNING, (E.LAUNCHED, E.REGISTERED))
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.UNREGISTERED, hooks.save_unregistered)
        .add_transition(S.RUNNING, S.RUNNING, E.STATUS_UPDATE, hooks.update_status)
        .add_transition(S.RUNNING, S.RUNNING, E.CONTAINER_ALLOCATED)
        .add_transition(S.RUNNING, {S.RUNNING, S.FINAL_SAVING}, E.CONTAINER_FINISHED, hooks.container_finished_running)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.EXPIRE, hooks.save_failed_live)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.KILL, hooks.save_killed_live)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.FAIL, hooks.save_failed_live)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.ATTEMPT_UPDATE_SAVED, finish_saving
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.container_finished_saving)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.EXPIRE, hooks.finish_instead_of_finishing)
        .add_transition(
            S.FINAL_SAVING,
            S.FINAL_SAVING,
            (
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.CONTAINER_ALLOCATED,
                E.ATTEMPT_NEW_SAVED,
                E.KILL,
                E.FAIL,
                E.ATTEMPT_ADDED,
            ),
        )
        .add_transition(S.FAILED, S.FAILED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .add_transition(
            S.FAILED,
            S.FAILED,
            (
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.EXPIRE,
                E.KILL,
                E.FAIL,
                E.REGISTERED,
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.CONTAINER_ALLOCATED,
            ),
        )
        .add_transition(
            S.FINISHING, {S.FINISHING, S.FINISHED}, E.CONTAINER_FINISHED, hooks.container_finished_finishing
        )
        .add_transition(S.FINISHING, S.FINISHED, E.EXPIRE, hooks.finish)
        .add_transition(
            S.FINISHING,
            S.FINISHING,
            (E.LAUNCHED, E.UNREGISTERED, E.STATUS_UPDATE, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL),
        )
        .add_transition(
            S.FINISHED,
            S.FINISHED,
            (E.LAUNCHED, E.EXPIRE, E.UNREGISTERED, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL),
        )
        .add_transition(S.FINISHED, S.FINISHED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .add_transition(
            S.KILLED,
            S.KILLED,
            (
                E.ATTEMPT_ADDED,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.EXPIRE,
                E.REGISTERED,
                E.CONTAINER_ALLOCATED,
                E.UNREGISTERED,
                E.KILL,
                E.FAIL,
                E.STATUS_UPDATE,
            ),
        )
        .add_transition(S.KILLED, S.KILLED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .install_topology()
    )


FACTORY = _build()
