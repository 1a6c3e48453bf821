"""The door for clients, after YARN's ClientRMService: submits, changes, kills and reports on applications.

Any thread may call: the work is done on the handler thread, and all but `submit_application` wait for that only. What
ends an application is posted, so its effect comes after the call. Each may raise, besides what it says,
RejectedExecutionError: the resource manager has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import CancelledError
from typing import TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import (
    ApplicationAttemptNotFoundError,
    ApplicationNotFoundError,
    ContainerNotFoundError,
    InvalidRequestError,
    QueueNotFoundError,
)
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.machines.states import END_IS_STORED, RMAppState
from statemachines.resourcemanager.reports import (
    APPLICATION_STATES,
    ApplicationAttemptReport,
    ApplicationReport,
    ClusterMetrics,
    ContainerReport,
    NodeReport,
)
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.services import reporting
from statemachines.resourcemanager.services.application_submitter import ApplicationSubmitter
from statemachines.resourcemanager.services.rm_app_manager import move_application, update_lifetime, update_priority
from statemachines.resourcemanager.submission import ApplicationSubmission

SIGNALS = ("OUTPUT_THREAD_DUMP", "GRACEFUL_SHUTDOWN", "FORCEFUL_SHUTDOWN")
"""What a container can be told by a signal."""
NODE_STATES = tuple(state.name for state in RMNodeState)
_ACTIVE = frozenset({RMAppState.ACCEPTED, RMAppState.RUNNING})

T = TypeVar("T")


class ClientRMService(Service):
    """Submits, changes, kills and reports on applications. Any thread."""

    def __init__(self, context: RMContext) -> None:
        super().__init__()
        self._context = context
        self._submitter = ApplicationSubmitter(context)

    def service_stop(self) -> None:
        """Whoever still waits for an answer hears that there will be none: stop the dispatcher before."""
        self._submitter.close()

    # -- submitting ---------------------------------------------------------------------------------------------------

    def get_new_application(self) -> str:
        """An id to submit an application with. It is used up by this, even if nothing is ever submitted."""
        return self._call(self._submitter.new_id)

    def submit_application(self, submission: ApplicationSubmission, timeout: float | None = None) -> str:
        """Begin an application's life; returns its id.

        On the handler thread it returns at once. On any other it returns when the application is stored, so that it
        survives the resource manager. An id that is known already is answered as if it came for the first time, and
        nothing else is done: a client that got no answer repeats its submission.

        Raises:
            InvalidRequestError: the id is not an application's, no container can have the master's size, or the
                lifetime is none. Nothing was done.
            ApplicationRejectedError: it was refused, or killed, before it was stored.
            TimeoutError: not stored within `timeout` seconds. It may still be.
        """
        return self._submitter.submit(submission, timeout)

    # -- changing -----------------------------------------------------------------------------------------------------

    def force_kill_application(self, app_id: str, diagnostics: str = "killed by its user") -> bool:
        """Kill an application; one that has ended stays as it is.

        Returns whether its end is stored. If not, a client that wants to be sure calls again, after a while.

        Raises:
            ApplicationNotFoundError: there is no such application.
        """

        def kill() -> bool:
            app = self._app(app_id)
            if app.state in END_IS_STORED:
                return True
            self._context.post(RMAppEvent(RMAppEventType.KILL, app_id, diagnostics))
            return False

        return self._call(kill)

    def fail_application_attempt(self, attempt_id: str) -> None:
        """Have an attempt fail; whether another one follows is the application's business. One that has ended stays.

        Raises:
            ApplicationAttemptNotFoundError: there is no such attempt.
        """

        def fail() -> None:
            if self._attempt(attempt_id).app.state not in END_IS_STORED:
                event = RMAppAttemptEvent(RMAppAttemptEventType.FAIL, attempt_id, "failed by its user")
                self._context.post(event)

        self._call(fail)

    def move_application_across_queues(self, app_id: str, queue: str) -> None:
        """Move an application with all that it has to another queue.

        Raises:
            ApplicationNotFoundError: there is no such application.
            InvalidRequestError: its state, or the queue, does not allow it; the message says why.
        """
        self._call(lambda: move_application(self._context, self._app(app_id), queue))

    def update_application_priority(self, app_id: str, priority: int) -> int:
        """Change an application's priority; of one that has ended it stays. Returns the one that it has now.

        Raises:
            ApplicationNotFoundError: there is no such application.
            InvalidRequestError: the scheduler does not have it, not yet or no longer.
        """

        def update() -> int:
            app = self._app(app_id)
            if app.state not in END_IS_STORED:
                self._check_active(app, "priority")
                update_priority(self._context, app, priority)
            return app.submission.priority

        return self._call(update)

    def update_application_timeouts(self, app_id: str, lifetime_s: int | None) -> int | None:
        """Have an application killed if it has not ended `lifetime_s` after its submission; None: as its queue says.

        A queue's longest lifetime is not exceeded. Of an application that has ended it stays as it is. Returns the
        deadline that it has now, Unix ms; None: none.

        Raises:
            ApplicationNotFoundError: there is no such application.
            InvalidRequestError: that time is over; or the scheduler does not have it, not yet or no longer.
        """

        def update() -> int | None:
            app = self._app(app_id)
            if app.state in END_IS_STORED:
                return None
            self._check_active(app, "lifetime")
            return update_lifetime(self._context, app, lifetime_s)

        return self._call(update)

    def signal_to_container(self, container_id: str, signal: str) -> None:
        """Have a container's node signal it, with the answer to its next heartbeat.

        Raises:
            InvalidRequestError: `signal` is not one of SIGNALS.
            ContainerNotFoundError: there is no such container, or no longer.
        """
        _check_names("signal", [signal], SIGNALS)

        def post() -> None:
            container = self._context.containers.get(container_id)
            if container is None:
                raise ContainerNotFoundError(container_id)
            about = (container_id, signal)
            self._context.post(RMNodeEvent(RMNodeEventType.SIGNAL_CONTAINER, container.node, about))

        self._call(post)

    # -- reports ------------------------------------------------------------------------------------------------------

    def get_application_report(self, app_id: str) -> ApplicationReport:
        """Raises ApplicationNotFoundError."""
        return self._call(lambda: reporting.application_report(self._context, self._app(app_id)))

    def get_applications(
        self,
        *,
        states: Collection[str] | None = None,
        users: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        application_types: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        limit: int | None = None,
    ) -> list[ApplicationReport]:
        """Those that pass all filters, in the order of their submission; the first `limit` of them.

        None lets all pass, an empty filter none; of `tags`, one that it has is enough.

        Raises:
            InvalidRequestError: one of `states` is not one of APPLICATION_STATES, or `limit` is less than 1.
        """
        _check_names("application state", states or (), APPLICATION_STATES)
        if limit is not None and limit < 1:
            raise InvalidRequestError(f"limit is {limit}: at least 1 is needed, or none at all")

        def passes(app: RMApp) -> bool:
            submission = app.submission
            return (
                (states is None or reporting.client_state(app) in states)
                and (users is None or submission.user in users)
                and (queues is None or submission.queue in queues)
                and (application_types is None or submission.application_type in application_types)
                and (tags is None or not set(tags).isdisjoint(submission.tags))
            )

        def report() -> list[ApplicationReport]:
            apps = [app for app in self._context.apps.values() if passes(app)]
            return [reporting.application_report(self._context, app) for app in apps[:limit]]

        return self._call(report)

    def get_application_attempts(self, app_id: str) -> list[ApplicationAttemptReport]:
        """In the order of their numbers. Raises ApplicationNotFoundError."""
        return self._call(lambda: [reporting.attempt_report(attempt) for attempt in self._app(app_id).attempts])

    def get_application_attempt_report(self, attempt_id: str) -> ApplicationAttemptReport:
        """Raises ApplicationAttemptNotFoundError."""
        return self._call(lambda: reporting.attempt_report(self._attempt(attempt_id)))

    def get_containers(self, attempt_id: str) -> list[ContainerReport]:
        """Those that have not ended, those taken over included. Raises ApplicationAttemptNotFoundError."""

        def report() -> list[ContainerReport]:
            live = self._context.scheduler.live_containers(self._attempt(attempt_id).entity)
            return [reporting.container_report(container) for container in live]

        return self._call(report)

    def get_container_report(self, container_id: str) -> ContainerReport:
        """Raises ContainerNotFoundError, also for one that has ended."""

        def report() -> ContainerReport:
            container = self._context.containers.get(container_id)
            if container is None:
                raise ContainerNotFoundError(container_id)
            return reporting.container_report(container)

        return self._call(report)

    def get_cluster_nodes(self, states: Collection[str] | None = None) -> list[NodeReport]:
        """The nodes in one of `states` (RMNode's, by name); None: all nodes, also those that have left.

        Raises:
            InvalidRequestError: there is no such state.
        """
        wanted = NODE_STATES if states is None else states
        _check_names("node state", wanted, NODE_STATES)
        return self._call(lambda: reporting.node_reports(self._context, frozenset(wanted)))

    def get_queue_info(self, path: str = "root") -> QueueInfo:
        """The queue of that path; its `children` are the paths of those below. Raises QueueNotFoundError."""

        def report() -> QueueInfo:
            for queue in self._context.scheduler.queues():
                if queue.path == path:
                    return queue
            raise QueueNotFoundError(path)

        return self._call(report)

    def get_cluster_metrics(self) -> ClusterMetrics:
        """The cluster at this moment."""
        return self._call(lambda: reporting.cluster_metrics(self._context))

    # -- steps --------------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], T]) -> T:
        try:
            result: T = self._context.call(function)
        except CancelledError:  # it was among the mails that nobody takes any more
            raise RejectedExecutionError("the resource manager has stopped: nothing was done") from None
        return result

    def _app(self, app_id: str) -> RMApp:
        app = self._context.apps.get(app_id)
        if app is None:
            raise ApplicationNotFoundError(app_id)
        return app

    def _attempt(self, attempt_id: str) -> RMAppAttempt:
        attempt = self._context.attempts.get(attempt_id)
        if attempt is None:
            raise ApplicationAttemptNotFoundError(attempt_id)
        return attempt

    @staticmethod
    def _check_active(app: RMApp, what: str) -> None:
        if app.state not in _ACTIVE:
            raise InvalidRequestError(
                f"the {what} of {app.entity} cannot be changed: it is {app.state.name}, and only that of one that is "
                "ACCEPTED or RUNNING can"
            )


def _check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"{name!r} is no {what}; there are {', '.join(known)}")
