"""How the scheduler handles applications and attempts that are added or removed.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    AppAttemptRemovedSchedulerEvent,
    SchedulerEvent,
)
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy
from statemachines.resourcemanager.scheduler.core.reservations import Reservations


class ApplicationEvents:
    # All fields are guarded by the scheduler's lock.
    def __init__(
        self, context: RMContext, books: SchedulerBooks, reservations: Reservations, policy: SchedulingPolicy
    ) -> None:
        self._context = context
        self._books = books
        self._reservations = reservations
        self._policy = policy
        self._numbers = 0  # of applications so far

    def add_app(self, event: SchedulerEvent) -> None:
        app_id = event.entity
        is_recovering = isinstance(event, AppAddedSchedulerEvent) and event.is_recovering
        rmapp = self._context.apps.get(app_id)
        if rmapp is None:
            return  # killed before this event arrived, and already forgotten
        app = self._policy.application_type(app_id, rmapp.submission, self._numbers)
        refusal = self._policy.add_app(app, is_recovering)
        if refusal is not None:
            # A recovered application may have an attempt by now: too late to reject it.
            type = RMAppEventType.KILL if is_recovering else RMAppEventType.APP_REJECTED
            self._context.post(RMAppEvent(type, app_id, refusal))
            return
        self._numbers += 1
        self._books.apps[app_id] = app
        if not is_recovering:
            self._context.post(RMAppEvent(RMAppEventType.APP_ACCEPTED, app_id))

    def remove_app(self, event: SchedulerEvent) -> None:
        books = self._books
        app = books.apps.get(event.entity)
        if app is None:
            return
        attempt = app.attempt
        if attempt is not None and attempt.is_stopped and attempt.id in books.attempts:
            self._kill_containers(attempt, "its application ended")
            del books.attempts[attempt.id]
        del books.apps[event.entity]
        self._policy.remove_app(app)
        app.attempt = None  # breaks the reference cycle

    def add_attempt(self, event: SchedulerEvent) -> None:
        is_recovering = transfer_state = False
        if isinstance(event, AppAttemptAddedSchedulerEvent):
            is_recovering, transfer_state = event.is_recovering, event.transfer_state
        books, attempt_id = self._books, event.entity
        app = books.apps.get(application_of(attempt_id))
        if app is None:
            return  # the recovered application was refused
        attempt = SchedulerApplicationAttempt(attempt_id, app, self._context.epoch, self._policy.default_label(app))
        before, app.attempt = app.attempt, attempt
        if before is not None and before.is_stopped and before.id in books.attempts:
            if not transfer_state:
                self._kill_containers(before, "its attempt ended")
            del books.attempts[before.id]
            for container in before.live.values():
                container.attempt = attempt_id
            attempt.live, before.live = before.live, {}
            attempt.blacklist = before.blacklist
        if is_recovering:
            attempt.master = self._context.attempts[attempt_id].master_container
        books.attempts[attempt_id] = attempt
        self._policy.add_attempt(attempt)
        if not is_recovering:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_ADDED, attempt_id))

    def remove_attempt(self, event: SchedulerEvent) -> None:
        attempt = self._books.attempts.get(event.entity)
        if attempt is None or attempt.is_stopped:
            return
        keeps = isinstance(event, AppAttemptRemovedSchedulerEvent) and event.keep_containers
        self._reservations.cancel_all(attempt)
        self._books.withdraw(attempt)
        self._kill_containers(attempt, "its attempt ended", but_running=keeps)
        if keeps:
            attempt.is_stopped = True
        else:
            del self._books.attempts[attempt.id]
        self._policy.remove_attempt(attempt)

    def _kill_containers(self, attempt: SchedulerApplicationAttempt, why: str, *, but_running: bool = False) -> None:
        """Kill the attempt's containers; `but_running`: except running ones other than the master's."""
        for container in list(attempt.live.values()):
            is_kept = but_running and container.entity != attempt.master
            if not (is_kept and container.entity in self._books.node_of(container).launched):
                self._books.end(attempt, container, RMContainerEventType.KILL, why)
