"""Keeps the applications that have ended, as long as there is room for them, and changes those that have not.

After YARN's RMAppManager. Handler thread only.
"""

from __future__ import annotations

import logging
from collections import deque

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import InvalidRequestError
from statemachines.resourcemanager.events.services import (
    RMAppManagerEvent,
    RMAppManagerEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.submission import ApplicationSubmission

log = logging.getLogger(__name__)

_MOVABLE = frozenset({RMAppState.SUBMITTED, RMAppState.ACCEPTED, RMAppState.RUNNING})


class RMAppManager:
    """Keeps the applications that have ended, up to the configured number; then the oldest is forgotten."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._completed: deque[str] = deque()

    def handle(self, event: RMAppManagerEvent) -> None:
        if event.type is RMAppManagerEventType.APP_COMPLETED:
            self._completed.append(event.entity)
            while len(self._completed) > self._context.config.max_completed_applications:
                self._forget(self._completed.popleft())
        else:
            self._move(event.entity, event.queue)

    def _forget(self, app_id: str) -> None:
        context = self._context
        app = context.apps.pop(app_id)
        context.recorder.forgotten(app.machine, app.state)
        for attempt in app.attempts:
            del context.attempts[attempt.entity]
            context.recorder.forgotten(attempt.machine, attempt.state)
            attempt.state_machine.release()
        attempt_ids = tuple(attempt.entity for attempt in app.attempts)
        # What refers to each other would be freed by the collector of cycles alone, some time.
        app.attempts.clear()
        app.state_machine.release()
        context.post(RMStateStoreEvent(RMStateStoreEventType.REMOVE_APP, app_id, attempt_ids, notify=False))

    def _move(self, app_id: str, queue: str) -> None:
        """As one of many that leave a queue; who wanted that does not wait for an answer."""
        app = self._context.apps.get(app_id)
        if app is None:
            return
        try:
            move_application(self._context, app, queue)
        except InvalidRequestError as error:
            log.warning("%s", error)


def move_application(context: RMContext, app: RMApp, queue: str) -> None:
    """Move an application with its containers and asks to another queue; nothing if it is there already.

    Raises:
        InvalidRequestError: there is no such queue, or it cannot take the application; or the scheduler does not have
            it, not yet or no longer.
    """
    scheduler = context.scheduler
    if app.state not in _MOVABLE:
        raise InvalidRequestError(
            f"{app.entity} cannot be moved to queue {queue}: it is {app.state.name}, and only one that is "
            "SUBMITTED, ACCEPTED or RUNNING can"
        )
    if queue in (app.submission.queue, scheduler.queue_of(app.entity)):
        return
    problem = scheduler.check_move(app.entity, queue)
    if problem is None:
        try:
            scheduler.move_application(app.entity, queue)
        except ValueError as error:  # the scheduler, on a thread of its own, has learned something since
            problem = str(error)
    if problem is not None:
        raise InvalidRequestError(f"{app.entity} cannot be moved to queue {queue}: {problem}")
    _replace(app, app.submission._replace(queue=queue))


def update_priority(context: RMContext, app: RMApp, priority: int) -> None:
    """Change the priority of an application that the scheduler has."""
    context.scheduler.update_priority(app.entity, priority)
    _replace(app, app.submission._replace(priority=priority))


def update_lifetime(context: RMContext, app: RMApp, lifetime_s: int | None) -> int | None:
    """Change how long after its submission an application is killed, as far as its queue allows.

    Returns its deadline, Unix ms; None: no end.

    Raises:
        InvalidRequestError: that time is over.
    """
    granted_s = context.scheduler.lifetime_s(app.submission._replace(lifetime_s=lifetime_s))
    deadline_ms = None if granted_s is None else app.submit_ms + granted_s * 1000
    if deadline_ms is not None and deadline_ms <= context.now_ms():
        raise InvalidRequestError(
            f"{app.entity} cannot have a lifetime of {granted_s} s: it was submitted longer ago than that. "
            "Give it more, or kill it"
        )
    _replace(app, app.submission._replace(lifetime_s=granted_s))
    if deadline_ms is None:
        context.app_lifetime_monitor.unregister(app.entity)
    else:
        context.app_lifetime_monitor.register(app.entity, deadline_ms)
    return deadline_ms


def _replace(app: RMApp, submission: ApplicationSubmission) -> None:
    """Keep and store what has changed. Nobody waits for the answer."""
    app.submission = submission
    app.store(RMStateStoreEventType.UPDATE_APP, notify=False)
