"""One attempt to run an application, after YARN's RMAppAttemptImpl: from the request for its master to its end.

The table holds the rows for managed masters without recovery and without liveliness monitors. As in RMApp, a final
state is stored before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, Pending, RMContext, finish_saving
from statemachines.resourcemanager.events import (
    AMLauncherEvent,
    AMLauncherEventType,
    ContainerRequest,
    ContainerStatus,
    RMAppAttemptEvent,
    RMAppEvent,
    RMAppEventType,
    RMNodeEvent,
    RMNodeEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events import RMAppAttemptEventType as E

if TYPE_CHECKING:
    from statemachines.resourcemanager.rmapp import RMApp

_ALLOCATION_RETRY_MS = 500


class RMAppAttemptState(Enum):
    NEW = auto()
    SUBMITTED = auto()
    SCHEDULED = auto()
    ALLOCATED_SAVING = auto()
    ALLOCATED = auto()
    LAUNCHED = auto()
    RUNNING = auto()
    FINAL_SAVING = auto()
    FINISHING = auto()
    FINISHED = auto()
    FAILED = auto()
    KILLED = auto()


S = RMAppAttemptState
_APP_EVENT = {
    S.FINISHED: RMAppEventType.ATTEMPT_FINISHED,
    S.FAILED: RMAppEventType.ATTEMPT_FAILED,
    S.KILLED: RMAppEventType.ATTEMPT_KILLED,
}


class RMAppAttempt(Entity):
    """An attempt; `entity` is its id."""

    machine = "RMAppAttempt"

    __slots__ = (
        "app",
        "diagnostics",
        "exit_status",
        "finished_containers",
        "master_container",
        "pending",
        "progress",
    )

    def __init__(self, context: RMContext, app: RMApp, number: int) -> None:
        attempt_id = f"appattempt_{context.cluster_timestamp}_{app.number:04d}_{number:06d}"
        super().__init__(context, attempt_id, FACTORY.make(self, listener=context.recorder))
        self.app = app
        self.master_container: str | None = None
        self.finished_containers: list[tuple[str, ContainerStatus]] = []  # (node, status), until the master fetches
        self.progress = 0.0
        self.exit_status: int | None = None
        self.diagnostics: list[str] = []
        self.pending: Pending | None = None  # while FINAL_SAVING

    def tell_app(self, type: RMAppEventType, diagnostics: str = "") -> None:
        self.context.post(RMAppEvent(type, self.app.entity, diagnostics))

    def tell_launcher(self, type: AMLauncherEventType) -> None:
        self.context.post(AMLauncherEvent(type, self.entity))

    def save_final(self, target: RMAppAttemptState, then: Hook | None, event: RMAppAttemptEvent) -> None:
        """Store `target`; once it is stored, run `then` with this event, if it is given, and go there.

        For FINISHING, FINISHED is stored: the outcome is known, and only the end of the container is waited for.
        """
        self.pending = Pending(target, then, event)
        if event.diagnostics:
            self.diagnostics.append(event.diagnostics)
        stored = S.FINISHED if target is S.FINISHING else target
        self.context.post(RMStateStoreEvent(RMStateStoreEventType.UPDATE_APP_ATTEMPT, self.entity, stored))

    def is_masters(self, event: RMAppAttemptEvent) -> bool:
        """Whether a CONTAINER_FINISHED is about the master's container."""
        return event.status is not None and event.status.container == self.master_container


Hook = Callable[[RMAppAttempt, RMAppAttemptEvent], Any]


# -- steps that several hooks share -----------------------------------------------------------------------------------


def _leave(attempt: RMAppAttempt, state: RMAppAttemptState) -> None:
    attempt.context.master_service.unregister_attempt(attempt.entity)
    attempt.tell_app(_APP_EVENT[state], "; ".join(attempt.diagnostics))
    attempt.context.post(SchedulerEvent(SchedulerEventType.APP_ATTEMPT_REMOVED, attempt.entity))


def _leave_live(attempt: RMAppAttempt, state: RMAppAttemptState) -> None:
    attempt.progress = 1.0
    _leave(attempt, state)
    attempt.tell_launcher(AMLauncherEventType.CLEANUP)


def _leaving(state: RMAppAttemptState) -> Hook:
    return lambda attempt, event: _leave(attempt, state)


def _leaving_live(state: RMAppAttemptState) -> Hook:
    return lambda attempt, event: _leave_live(attempt, state)


def _take_status(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    status = event.status
    assert status is not None  # every CONTAINER_FINISHED has one
    attempt.exit_status = status.exit_status
    reason = f": {status.diagnostics}" if status.diagnostics else ""
    attempt.diagnostics.append(f"the master's container {status.container} exited with {status.exit_status}{reason}")


def _crash_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    _take_status(attempt, event)
    _leave(attempt, S.FAILED)


def _crash_live(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    _take_status(attempt, event)
    _leave_live(attempt, S.FAILED)


def _masters_container_done(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    assert event.status is not None
    pulled = (event.status.container,)
    attempt.context.post(RMNodeEvent(RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM, event.node, pulled))


def _note_finished_container(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    assert event.status is not None
    attempt.finished_containers.append((event.node, event.status))


def _register(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.tell_app(RMAppEventType.ATTEMPT_REGISTERED)


def _launched(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.tell_app(RMAppEventType.ATTEMPT_LAUNCHED)


def _saving(target: RMAppAttemptState, then: Hook) -> Hook:
    return lambda attempt, event: attempt.save_final(target, then, event)


_kill_before_launch = _saving(S.KILLED, _leaving(S.KILLED))
_kill_live = _saving(S.KILLED, _leaving_live(S.KILLED))
_fail = _saving(S.FAILED, _leaving(S.FAILED))
_save_crash_early = _saving(S.FAILED, _crash_early)


# -- hooks ------------------------------------------------------------------------------------------------------------


def _start(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.context.master_service.register_attempt(attempt.entity)
    attempt.context.post(SchedulerEvent(SchedulerEventType.APP_ATTEMPT_ADDED, attempt.entity))


def _registered_too_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.diagnostics.append("the master registered before it was launched")
    attempt.save_final(S.FAILED, _leaving(S.FAILED), event)


def _ask_for_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> RMAppAttemptState:
    submission = attempt.app.submission
    request = ContainerRequest(
        submission.am_resource, priority=0, host=submission.am_host, gpu_models=submission.gpu_models
    )
    attempt.context.scheduler.allocate(attempt.entity, (request,))
    return S.SCHEDULED


def _fetch_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> RMAppAttemptState:
    context = attempt.context
    allocated = context.scheduler.pull_newly_allocated(attempt.entity)
    if not allocated:
        retry = RMAppAttemptEvent(E.CONTAINER_ALLOCATED, attempt.entity)
        context.timers.register_timer(context.now_ms() + _ALLOCATION_RETRY_MS, lambda _: context.post(retry))
        return S.SCHEDULED
    attempt.master_container = allocated[0].entity
    context.post(RMStateStoreEvent(RMStateStoreEventType.STORE_APP_ATTEMPT, attempt.entity, S.ALLOCATED))
    return S.ALLOCATED_SAVING


def _launch(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.tell_launcher(AMLauncherEventType.LAUNCH)


def _launched_and_registered(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    _launched(attempt, event)
    _register(attempt, event)


def _kill_allocated(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    def leave_and_clean_up(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
        _leave(attempt, S.KILLED)
        attempt.tell_launcher(AMLauncherEventType.CLEANUP)

    attempt.save_final(S.KILLED, leave_and_clean_up, event)


def _container_finished_while(here: RMAppAttemptState, then: Hook) -> Hook:
    def hook(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> RMAppAttemptState:
        if not attempt.is_masters(event):
            _note_finished_container(attempt, event)
            return here
        _masters_container_done(attempt, event)
        attempt.save_final(S.FAILED, then, event)
        return S.FINAL_SAVING

    return hook


def _unregister(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """The attempt waits in FINISHING for the end of its master's container."""
    attempt.save_final(S.FINISHING, None, event)
    attempt.tell_app(RMAppEventType.ATTEMPT_UNREGISTERED, event.diagnostics)


def _update_status(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.progress = event.progress


def _container_finished_while_saving(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    if not attempt.is_masters(event):
        _note_finished_container(attempt, event)
        return
    _masters_container_done(attempt, event)
    pending = attempt.pending
    assert pending is not None
    if pending.target is S.FINISHING:
        # It unregistered and ended before the store answered: FINISHING would wait for an end that has been.
        attempt.pending = Pending(S.FINISHED, _leaving_live(S.FINISHED), event)


def _container_finished_while_finishing(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> RMAppAttemptState:
    if not attempt.is_masters(event):
        _note_finished_container(attempt, event)
        return S.FINISHING
    _leave_live(attempt, S.FINISHED)
    _masters_container_done(attempt, event)
    return S.FINISHED


def _build() -> StateMachineFactory[RMAppAttemptState, RMAppAttempt]:
    factory: StateMachineFactory[RMAppAttemptState, RMAppAttempt] = StateMachineFactory(S.NEW, "RMAppAttempt")
    return (
        factory.add_transition(S.NEW, S.SUBMITTED, E.START, _start)
        .add_transition(S.NEW, S.FINAL_SAVING, E.KILL, _kill_before_launch)
        .add_transition(S.NEW, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.NEW, S.FINAL_SAVING, E.REGISTERED, _registered_too_early)
        .add_transition(S.SUBMITTED, {S.SCHEDULED}, E.ATTEMPT_ADDED, _ask_for_master)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, _kill_before_launch)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.REGISTERED, _registered_too_early)
        .add_transition(S.SCHEDULED, {S.ALLOCATED_SAVING, S.SCHEDULED}, E.CONTAINER_ALLOCATED, _fetch_master)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.KILL, _kill_before_launch)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.CONTAINER_FINISHED, _save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.ALLOCATED, E.ATTEMPT_NEW_SAVED, _launch)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.KILL, _kill_before_launch)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, _save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.ALLOCATED, S.LAUNCHED, E.LAUNCHED, _launched)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.LAUNCH_FAILED, _fail)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.KILL, _kill_allocated)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.ALLOCATED, S.RUNNING, E.REGISTERED, _launched_and_registered)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.CONTAINER_FINISHED, _save_crash_early)
        .add_transition(S.LAUNCHED, S.RUNNING, E.REGISTERED, _register)
        .add_transition(
            S.LAUNCHED,
            {S.LAUNCHED, S.FINAL_SAVING},
            E.CONTAINER_FINISHED,
            _container_finished_while(S.LAUNCHED, _crash_early),
        )
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.KILL, _kill_live)
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(S.RUNNING, S.RUNNING, {E.LAUNCHED, E.REGISTERED, E.CONTAINER_ALLOCATED})
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.UNREGISTERED, _unregister)
        .add_transition(S.RUNNING, S.RUNNING, E.STATUS_UPDATE, _update_status)
        .add_transition(
            S.RUNNING,
            {S.RUNNING, S.FINAL_SAVING},
            E.CONTAINER_FINISHED,
            _container_finished_while(S.RUNNING, _crash_live),
        )
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.KILL, _kill_live)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.FAIL, _fail)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.ATTEMPT_UPDATE_SAVED, finish_saving
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, _container_finished_while_saving)
        .add_transition(
            S.FINAL_SAVING,
            S.FINAL_SAVING,
            {
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.CONTAINER_ALLOCATED,
                E.ATTEMPT_NEW_SAVED,
                E.KILL,
                E.FAIL,
                E.ATTEMPT_ADDED,
            },
        )
        .add_transition(S.FAILED, S.FAILED, E.CONTAINER_FINISHED, _note_finished_container)
        .add_transition(
            S.FAILED,
            S.FAILED,
            {
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.KILL,
                E.FAIL,
                E.REGISTERED,
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.CONTAINER_ALLOCATED,
            },
        )
        .add_transition(
            S.FINISHING, {S.FINISHING, S.FINISHED}, E.CONTAINER_FINISHED, _container_finished_while_finishing
        )
        .add_transition(
            S.FINISHING,
            S.FINISHING,
            {E.LAUNCHED, E.UNREGISTERED, E.STATUS_UPDATE, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL},
        )
        .add_transition(S.FINISHED, S.FINISHED, E.CONTAINER_FINISHED, _note_finished_container)
        .add_transition(S.FINISHED, S.FINISHED, {E.LAUNCHED, E.UNREGISTERED, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL})
        .add_transition(S.KILLED, S.KILLED, E.CONTAINER_FINISHED, _note_finished_container)
        .add_transition(
            S.KILLED,
            S.KILLED,
            {
                E.ATTEMPT_ADDED,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.REGISTERED,
                E.CONTAINER_ALLOCATED,
                E.UNREGISTERED,
                E.KILL,
                E.FAIL,
                E.STATUS_UPDATE,
            },
        )
        .install_topology()
    )


FACTORY = _build()
