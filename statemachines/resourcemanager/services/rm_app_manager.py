"""Forgets old ended applications, changes live ones and recovers stored ones, after YARN's RMAppManager.

Threading: handler thread only. Applications are recovered before any node, master or client is served.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from dispatcher.util.figures import counted
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import EXIT_KILLED_BY_RESOURCEMANAGER, ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppRecoverEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.services import (
    RMAppManagerEvent,
    RMAppManagerEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.records.errors import InvalidRequestError
from statemachines.resourcemanager.records.ids import cluster_timestamp_of
from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    RecoveredApplication,
    RMState,
)
from statemachines.resourcemanager.records.submission import ApplicationSubmission

log: logging.Logger = logging.getLogger(__name__)

_MOVABLE = frozenset({RMAppState.SUBMITTED, RMAppState.ACCEPTED, RMAppState.RUNNING})


OnStored = Callable[[], None]


def _nothing() -> None:
    """The confirmation of a change that no client waits for."""


class RMAppManager:
    """Keeps up to `max_completed_applications` ended applications; beyond that the oldest is forgotten."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._completed: deque[str] = deque()

    def handle(self, event: RMAppManagerEvent) -> None:
        if event.type is RMAppManagerEventType.APP_COMPLETED:
            if self._context.apps[event.entity].is_refused_by_store:
                self._forget(event.entity, is_stored=False)  # its client may submit it again
                return
            self._completed.append(event.entity)
            while len(self._completed) > self._context.config.max_completed_applications:
                self._forget(self._completed.popleft())
        else:
            self._move(event.entity, event.queue)

    def _forget(self, app_id: str, *, is_stored: bool = True) -> None:
        context = self._context
        app = context.apps.pop(app_id)
        context.recorder.forgotten(app.machine, app.state, app.entity)
        for attempt in app.attempts:
            del context.attempts[attempt.entity]
            context.recorder.forgotten(attempt.machine, attempt.state, attempt.entity)
            attempt.state_machine.release()
        attempt_ids = tuple(attempt.entity for attempt in app.attempts)
        # Break the reference cycles: otherwise only the garbage collector frees these objects.
        app.attempts.clear()
        app.state_machine.release()
        if is_stored:
            context.post(RMStateStoreEvent(RMStateStoreEventType.REMOVE_APP, app_id, attempt_ids, notify=False))

    def _move(self, app_id: str, queue: str) -> None:
        """Move one of the applications of a queue; no client waits for the outcome."""
        app = self._context.apps.get(app_id)
        if app is None:
            return
        try:
            move_application(self._context, app, queue)
        except InvalidRequestError as error:
            log.warning("%s", error)


def move_application(context: RMContext, app: RMApp, queue: str, on_stored: OnStored = _nothing) -> None:
    """Move an application with its containers and requests to another queue, unless it is there already.

    `on_stored`, here and below, is called on the handler thread once the store has the change.

    Raises:
        InvalidRequestError: the queue does not exist or cannot take the application, or the application is not
            SUBMITTED, ACCEPTED or RUNNING.
    """
    scheduler = context.scheduler
    if app.state not in _MOVABLE:
        raise InvalidRequestError(
            f"{app.entity} cannot be moved to queue {queue}: it is {app.state.name}, and must be SUBMITTED, "
            "ACCEPTED or RUNNING"
        )
    if queue in (app.submission.queue, scheduler.queue_of(app.entity)):
        on_stored()
        return
    problem = scheduler.check_move(app.entity, queue)
    if problem is None:
        try:
            scheduler.move_application(app.entity, queue)
        except InvalidRequestError as error:  # the scheduler's state has changed since the check, on its own thread
            problem = str(error)
    if problem is not None:
        raise InvalidRequestError(f"{app.entity} cannot be moved to queue {queue}: {problem}")
    _replace(app, app.submission._replace(queue=queue), on_stored)


def update_priority(context: RMContext, app: RMApp, priority: int, on_stored: OnStored) -> None:
    """Change the priority of an application that the scheduler has."""
    context.scheduler.update_priority(app.entity, priority)
    _replace(app, app.submission._replace(priority=priority), on_stored)


def update_lifetime(context: RMContext, app: RMApp, lifetime_s: int | None, on_stored: OnStored) -> int | None:
    """Change how long after its submission an application is killed, as far as its queue allows.

    Returns the deadline, Unix ms; None: no deadline.

    Raises:
        InvalidRequestError: the deadline is past.
    """
    granted_s = context.scheduler.lifetime_s(app.submission._replace(lifetime_s=lifetime_s))
    deadline_ms = None if granted_s is None else app.submit_ms + granted_s * 1000
    if deadline_ms is not None and deadline_ms <= context.now_ms():
        raise InvalidRequestError(
            f"{app.entity} cannot have a lifetime of {granted_s} s: it was submitted longer ago. "
            "Set a longer lifetime, or kill it"
        )
    _replace(app, app.submission._replace(lifetime_s=granted_s), on_stored)
    if deadline_ms is None:
        context.app_lifetime_monitor.unregister(app.entity)
    else:
        context.app_lifetime_monitor.register(app.entity, deadline_ms)
    return deadline_ms


def _replace(app: RMApp, submission: ApplicationSubmission, on_stored: OnStored) -> None:
    """Keep and store a changed submission, without an answer from the store to the application."""
    app.submission = submission
    app.context.recorder.changed(app)
    app.store(RMStateStoreEventType.UPDATE_APP, notify=False, on_stored=on_stored)


def recover(context: RMContext, state: RMState) -> None:
    """Recreate every stored application in its stored state, in the order of submission.

    On return the scheduler has those that have not ended, so nodes and masters may register.

    The cluster has kept running. With work-preserving recovery, nodes register again with their containers, and
    masters resume once they have registered again. Without it, live attempts fail without being counted, their
    applications start new ones, and containers that still run are cleaned up as unknown.
    """
    for app_id, recovered in state.applications.items():
        # The clock may have been set back: with the same timestamp, two resource managers would allocate the same ids.
        context.cluster_timestamp = max(context.cluster_timestamp, cluster_timestamp_of(app_id) + 1)
        app = context.apps[app_id] = RMApp(
            context, app_id, recovered.data.submission, submit_ms=recovered.data.submit_ms
        )
        app.handle(RMAppRecoverEvent(app_id, recovered))
        if not context.config.work_preserving_recovery:
            _give_up_live_attempt(context, recovered)
    if state.applications:
        live = sum(recovered.data.state is None for recovered in state.applications.values())
        log.info("recovered %s, %d live", counted(len(state.applications), "application"), live)


def _give_up_live_attempt(context: RMContext, recovered: RecoveredApplication) -> None:
    """End the attempt as if its master's node had stopped it for the resource manager, which counts as no failure.

    An unmanaged master cannot be stopped, and is left to its monitor.
    """
    if recovered.data.state is not None or not recovered.attempts:
        return
    last: ApplicationAttemptStateData = list(recovered.attempts.values())[-1]
    if last.state is not None or last.master_container is None:
        return
    master = last.master_container
    status = ContainerStatus(
        master.container_id, EXIT_KILLED_BY_RESOURCEMANAGER, "the resource manager restarted without it"
    )
    context.post(
        RMAppAttemptEvent(
            RMAppAttemptEventType.CONTAINER_FINISHED, last.attempt_id, status.diagnostics, status, master.node
        )
    )
