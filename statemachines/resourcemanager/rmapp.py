"""One application, after YARN's RMAppImpl.

The table holds the rows for an application that succeeds, fails, is killed or waits for room; recovery and node updates
are not among them. A final state is stored before it is taken: `FINAL_SAVING` keeps what is to come after.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, Pending, RMContext, finish_saving
from statemachines.resourcemanager.events import (
    EXIT_ABORTED,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppManagerEvent,
    RMAppManagerEventType,
    RMNodeEvent,
    RMNodeEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events import RMAppEventType as E
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.rmappattempt import RMAppAttempt


class RMAppState(Enum):
    NEW = auto()
    NEW_SAVING = auto()
    SUBMITTED = auto()
    ACCEPTED = auto()
    RUNNING = auto()
    FINAL_SAVING = auto()
    FINISHING = auto()
    FINISHED = auto()
    FAILED = auto()
    KILLING = auto()
    KILLED = auto()


S = RMAppState
FINAL_STATES = frozenset({S.FINISHED, S.FAILED, S.KILLED})
_NOT_ITS_OWN_FAULT = frozenset({EXIT_ABORTED, EXIT_KILLED_BY_RESOURCEMANAGER})


class ApplicationSubmission(NamedTuple):
    """What a client submits, after YARN's ApplicationSubmissionContext."""

    name: str
    am_resource: Resource
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    gpu_models: frozenset[str] = frozenset()
    max_attempts: int | None = None


class RMApp(Entity):
    """An application; `entity` is its id."""

    machine = "RMApp"

    __slots__ = (
        "attempts",
        "diagnostics",
        "finish_ms",
        "launch_ms",
        "max_attempts",
        "nodes",
        "number",
        "pending",
        "start_ms",
        "submission",
    )

    def __init__(self, context: RMContext, number: int, submission: ApplicationSubmission) -> None:
        app_id = f"application_{context.cluster_timestamp}_{number:04d}"
        super().__init__(context, app_id, FACTORY.make(self, listener=context.recorder))
        self.number = number
        self.submission = submission
        self.max_attempts = submission.max_attempts or context.config.max_attempts
        self.attempts: list[RMAppAttempt] = []
        self.nodes: set[str] = set()  # those that it ran on
        self.diagnostics: list[str] = []
        self.start_ms = context.now_ms()
        self.launch_ms: int | None = None
        self.finish_ms: int | None = None
        self.pending: Pending | None = None  # while FINAL_SAVING

    @property
    def current_attempt(self) -> RMAppAttempt | None:
        return self.attempts[-1] if self.attempts else None

    def start_attempt(self) -> None:
        attempt = RMAppAttempt(self.context, self, len(self.attempts) + 1)
        self.attempts.append(attempt)
        self.context.attempts[attempt.entity] = attempt
        self.context.post(RMAppAttemptEvent(RMAppAttemptEventType.START, attempt.entity))

    def kill_attempt(self, event: RMAppEvent) -> None:
        attempt = self.current_attempt
        assert attempt is not None  # the states from which this is called have one
        self.context.post(RMAppAttemptEvent(RMAppAttemptEventType.KILL, attempt.entity, event.diagnostics))

    def save_final(self, target: RMAppState, then: Hook | None, event: RMAppEvent) -> None:
        """Store `target`; once it is stored, run `then` with this event, if it is given, and go there.

        For FINISHING, FINISHED is stored: the outcome is known, and only the end of the attempt is waited for.
        """
        self.pending = Pending(target, then, event)
        if self.finish_ms is None:
            self.finish_ms = self.context.now_ms()
        stored = S.FINISHED if target is S.FINISHING else target
        self.context.post(RMStateStoreEvent(RMStateStoreEventType.UPDATE_APP, self.entity, stored))

    def can_retry(self) -> bool:
        """Whether failures are left. One that is not its own fault does not count, unless only one is allowed."""
        if self.max_attempts == 1:
            return False
        return sum(attempt.exit_status not in _NOT_ITS_OWN_FAULT for attempt in self.attempts) < self.max_attempts


Hook = Callable[[RMApp, RMAppEvent], Any]


# -- steps that several hooks share -----------------------------------------------------------------------------------


def _finish(app: RMApp, event: RMAppEvent) -> None:
    if event.diagnostics:
        app.diagnostics.append(event.diagnostics)
    if app.finish_ms is None:
        app.finish_ms = app.context.now_ms()
    for node in sorted(app.nodes):
        app.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_APP, node, app.entity))
    app.context.post(SchedulerEvent(SchedulerEventType.APP_REMOVED, app.entity))
    app.context.post(RMAppManagerEvent(RMAppManagerEventType.APP_COMPLETED, app.entity))


def _save_then_finish(target: RMAppState) -> Hook:
    def hook(app: RMApp, event: RMAppEvent) -> None:
        app.save_final(target, _finish, event)

    return hook


def _note_node_used(app: RMApp, event: RMAppEvent) -> None:
    app.nodes.add(event.node)


def _clean_up_node(app: RMApp, event: RMAppEvent) -> None:
    app.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_APP, event.node, app.entity))


# -- hooks ------------------------------------------------------------------------------------------------------------


def _store(app: RMApp, event: RMAppEvent) -> None:
    app.context.post(RMStateStoreEvent(RMStateStoreEventType.STORE_APP, app.entity, app.submission))


def _add_to_scheduler(app: RMApp, event: RMAppEvent) -> None:
    app.context.post(SchedulerEvent(SchedulerEventType.APP_ADDED, app.entity))


def _start_first_attempt(app: RMApp, event: RMAppEvent) -> None:
    app.start_attempt()


def _note_launch(app: RMApp, event: RMAppEvent) -> None:
    if app.launch_ms is None:
        app.launch_ms = app.context.now_ms()


def _save_unregistered(app: RMApp, event: RMAppEvent) -> None:
    app.save_final(S.FINISHING, None, event)


def _kill_attempt(app: RMApp, event: RMAppEvent) -> None:
    app.kill_attempt(event)


def _retry_or_fail(app: RMApp, event: RMAppEvent) -> RMAppState:
    if app.can_retry():
        app.start_attempt()
        return S.ACCEPTED
    return _fail(app, event)


def _fail(app: RMApp, event: RMAppEvent) -> RMAppState:
    app.diagnostics.append(f"{app.entity} failed {len(app.attempts)} times, of {app.max_attempts} allowed")
    app.save_final(S.FAILED, _finish, event)
    return S.FINAL_SAVING


def _killed_or_fail(app: RMApp, event: RMAppEvent) -> RMAppState:
    """An attempt that fails while being killed: where there would be another one, the kill wins."""
    if not app.can_retry():
        return _fail(app, event)
    app.save_final(S.KILLED, _finish, event)
    return S.FINAL_SAVING


def _finished_before_stored(app: RMApp, event: RMAppEvent) -> None:
    """The attempt ended before the store answered: FINISHING would wait for an end that has been."""
    pending = app.pending
    assert pending is not None
    if pending.target is S.FINISHING:
        app.pending = Pending(S.FINISHED, _finish, event)


def _build() -> StateMachineFactory[RMAppState, RMApp]:
    factory: StateMachineFactory[RMAppState, RMApp] = StateMachineFactory(S.NEW, "RMApp")
    return (
        factory.add_transition(S.NEW, S.NEW_SAVING, E.START, _store)
        .add_transition(S.NEW, S.KILLED, E.KILL, _finish)
        .add_transition(S.NEW, S.FINAL_SAVING, E.APP_REJECTED, _save_then_finish(S.FAILED))
        .add_transition(S.NEW_SAVING, S.SUBMITTED, E.APP_NEW_SAVED, _add_to_scheduler)
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.KILL, _save_then_finish(S.KILLED))
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.APP_REJECTED, _save_then_finish(S.FAILED))
        .add_transition(S.NEW_SAVING, S.FAILED, E.APP_SAVE_FAILED, _finish)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.APP_REJECTED, _save_then_finish(S.FAILED))
        .add_transition(S.SUBMITTED, S.ACCEPTED, E.APP_ACCEPTED, _start_first_attempt)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, _save_then_finish(S.KILLED))
        .add_transition(S.ACCEPTED, S.RUNNING, E.ATTEMPT_REGISTERED)
        .add_transition(S.ACCEPTED, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, _retry_or_fail)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_FINISHED, _save_then_finish(S.FINISHED))
        .add_transition(S.ACCEPTED, S.KILLING, E.KILL, _kill_attempt)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_KILLED, _save_then_finish(S.KILLED))
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.APP_RUNNING_ON_NODE, _note_node_used)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.ATTEMPT_LAUNCHED, _note_launch)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, _save_unregistered)
        .add_transition(S.RUNNING, S.FINISHED, E.ATTEMPT_FINISHED, _finish)
        .add_transition(S.RUNNING, S.RUNNING, E.APP_RUNNING_ON_NODE, _note_node_used)
        .add_transition(S.RUNNING, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, _retry_or_fail)
        .add_transition(S.RUNNING, S.KILLING, E.KILL, _kill_attempt)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.APP_UPDATE_SAVED, finish_saving
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.ATTEMPT_FINISHED, _finished_before_stored)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.APP_RUNNING_ON_NODE, _note_node_used)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, {E.KILL, E.APP_NEW_SAVED})
        .add_transition(S.FINISHING, S.FINISHED, E.ATTEMPT_FINISHED, _finish)
        .add_transition(S.FINISHING, S.FINISHING, E.APP_RUNNING_ON_NODE, _note_node_used)
        .add_transition(S.FINISHING, S.FINISHING, E.KILL)
        .add_transition(S.KILLING, S.KILLING, E.APP_RUNNING_ON_NODE, _note_node_used)
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_KILLED, _save_then_finish(S.KILLED))
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, _save_unregistered)
        .add_transition(S.KILLING, S.FINISHED, E.ATTEMPT_FINISHED, _finish)
        .add_transition(S.KILLING, {S.FINAL_SAVING}, E.ATTEMPT_FAILED, _killed_or_fail)
        .add_transition(S.KILLING, S.KILLING, {E.ATTEMPT_REGISTERED, E.APP_UPDATE_SAVED, E.KILL})
        .add_transition(S.FINISHED, S.FINISHED, E.APP_RUNNING_ON_NODE, _clean_up_node)
        .add_transition(S.FINISHED, S.FINISHED, {E.ATTEMPT_UNREGISTERED, E.ATTEMPT_FINISHED, E.KILL})
        .add_transition(S.FAILED, S.FAILED, E.APP_RUNNING_ON_NODE, _clean_up_node)
        .add_transition(S.FAILED, S.FAILED, E.KILL)
        .add_transition(S.KILLED, S.KILLED, E.APP_RUNNING_ON_NODE, _clean_up_node)
        .add_transition(
            S.KILLED,
            S.KILLED,
            {E.APP_ACCEPTED, E.APP_REJECTED, E.KILL, E.ATTEMPT_FINISHED, E.ATTEMPT_FAILED, E.START},
        )
        .install_topology()
    )


FACTORY = _build()
