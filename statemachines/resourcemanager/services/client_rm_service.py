"""The service for clients, after YARN's ClientRMService.

Any thread may call; the work is done on the handler thread before a call returns. What ends an application is posted,
and takes effect after the call. Every method may raise RejectedExecutionError: the resource manager has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import CancelledError
from typing import TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.service import Service
from statemachines.resourcemanager import reports
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
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.services.application_submitter import ApplicationSubmitter
from statemachines.resourcemanager.services.rm_app_manager import move_application, update_lifetime, update_priority
from statemachines.resourcemanager.submission import ApplicationSubmission

SIGNALS = ("OUTPUT_THREAD_DUMP", "GRACEFUL_SHUTDOWN", "FORCEFUL_SHUTDOWN")
"""The signals for containers."""
NODE_STATES = tuple(state.name for state in RMNodeState)
_ACTIVE = frozenset({RMAppState.ACCEPTED, RMAppState.RUNNING})

T = TypeVar("T")


class ClientRMService(Service):
    """Submits, changes, kills and reports on applications. Any thread may call."""

    def __init__(self, context: RMContext) -> None:
        super().__init__()
        self._context = context
        self._submitter = ApplicationSubmitter(context)

    def service_stop(self) -> None:
        """Fail the submissions that still wait; stop the dispatcher first."""
        self._submitter.close()

    # -- submitting ---------------------------------------------------------------------------------------------------

    def get_new_application(self) -> str:
        """A new application id. It is used up even if it is never submitted."""
        return self._call(self._submitter.new_id)

    def submit_application(self, submission: ApplicationSubmission, timeout: float | None = None) -> str:
        """Submit an application; returns its id.

        Returns once the application is stored, and so survives the resource manager; on the handler thread it returns
        at once. A known id is answered like a new one and has no further effect: a client that got no answer repeats
        its submission.

        Raises:
            InvalidRequestError: the id, the master's size or the lifetime is not valid. Nothing was done.
            InvalidResourceRequestError: its master is larger than its queue's maximum allocation. Nothing was done.
            ApplicationRejectedError: the application was refused or killed before it was stored.
            TimeoutError: not stored within `timeout` seconds; it may be stored later.
        """
        return self._submitter.submit(submission, timeout)

    # -- changing -----------------------------------------------------------------------------------------------------

    def force_kill_application(self, app_id: str, diagnostics: str = "killed by its user") -> bool:
        """Kill an application that has not ended. Raises ApplicationNotFoundError.

        Returns whether its end is stored. A client that must be sure repeats the call until it is.
        """

        def kill() -> bool:
            app = self._app(app_id)
            if app.state in END_IS_STORED:
                return True
            self._context.post(RMAppEvent(RMAppEventType.KILL, app_id, diagnostics))
            return False

        return self._call(kill)

    def fail_application_attempt(self, attempt_id: str) -> None:
        """Fail an attempt that has not ended; its application may start another one.

        Raises ApplicationAttemptNotFoundError.
        """

        def fail() -> None:
            if self._attempt(attempt_id).app.state not in END_IS_STORED:
                event = RMAppAttemptEvent(RMAppAttemptEventType.FAIL, attempt_id, "failed by its user")
                self._context.post(event)

        self._call(fail)

    def move_application_across_queues(self, app_id: str, queue: str) -> None:
        """Move an application with its containers and requests to another queue.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: its state or the queue does not allow it; the message says why.
        """
        self._call(lambda: move_application(self._context, self._app(app_id), queue))

    def update_application_priority(self, app_id: str, priority: int) -> int:
        """Change an application's priority, unless it has ended; returns its current priority.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: it is neither ACCEPTED nor RUNNING.
        """

        def update() -> int:
            app = self._app(app_id)
            if app.state not in END_IS_STORED:
                self._check_active(app, "priority")
                update_priority(self._context, app, priority)
            return app.submission.priority

        return self._call(update)

    def update_application_timeouts(self, app_id: str, lifetime_s: int | None) -> int | None:
        """Change when an application is killed: `lifetime_s` after its submission; None: its queue's default.

        The queue's maximum lifetime is the limit. Returns the new deadline, Unix ms; None: no deadline, or the
        application has ended.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: the new deadline is past, or the application is neither ACCEPTED nor RUNNING.
        """

        def update() -> int | None:
            app = self._app(app_id)
            if app.state in END_IS_STORED:
                return None
            self._check_active(app, "lifetime")
            return update_lifetime(self._context, app, lifetime_s)

        return self._call(update)

    def signal_to_container(self, container_id: str, signal: str) -> None:
        """Have a container's node signal it, by the response to its next heartbeat.

        Raises:
            InvalidRequestError: `signal` is not one of SIGNALS.
            ContainerNotFoundError: the container does not exist, or has ended.
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

    def get_application_report(self, app_id: str) -> reports.ApplicationReport:
        """Raises ApplicationNotFoundError."""
        return self._call(lambda: reports.application_report(self._context, self._app(app_id)))

    def get_applications(
        self,
        *,
        states: Collection[str] | None = None,
        users: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        application_types: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        limit: int | None = None,
    ) -> list[reports.ApplicationReport]:
        """The first `limit` applications, by submission, that pass all filters.

        None lets all pass, an empty filter none; one tag in common is enough.

        Raises:
            InvalidRequestError: a state is not one of APPLICATION_STATES, or `limit` is less than 1.
        """
        _check_names("application state", states or (), reports.APPLICATION_STATES)
        if limit is not None and limit < 1:
            raise InvalidRequestError(f"limit is {limit}: it must be at least 1, or None")

        def passes(app: RMApp) -> bool:
            submission = app.submission
            return (
                (states is None or reports.client_state(app) in states)
                and (users is None or submission.user in users)
                and (queues is None or submission.queue in queues)
                and (application_types is None or submission.application_type in application_types)
                and (tags is None or not set(tags).isdisjoint(submission.tags))
            )

        def report() -> list[reports.ApplicationReport]:
            apps = [app for app in self._context.apps.values() if passes(app)]
            return [reports.application_report(self._context, app) for app in apps[:limit]]

        return self._call(report)

    def get_application_attempts(self, app_id: str) -> list[reports.ApplicationAttemptReport]:
        """By number. Raises ApplicationNotFoundError."""
        return self._call(lambda: [reports.attempt_report(attempt) for attempt in self._app(app_id).attempts])

    def get_application_attempt_report(self, attempt_id: str) -> reports.ApplicationAttemptReport:
        """Raises ApplicationAttemptNotFoundError."""
        return self._call(lambda: reports.attempt_report(self._attempt(attempt_id)))

    def get_containers(self, attempt_id: str) -> list[reports.ContainerReport]:
        """Live containers, including those taken over. Raises ApplicationAttemptNotFoundError."""

        def report() -> list[reports.ContainerReport]:
            live = self._context.scheduler.live_containers(self._attempt(attempt_id).entity)
            return [reports.container_report(container) for container in live]

        return self._call(report)

    def get_container_report(self, container_id: str) -> reports.ContainerReport:
        """Raises ContainerNotFoundError, also for an ended container."""

        def report() -> reports.ContainerReport:
            container = self._context.containers.get(container_id)
            if container is None:
                raise ContainerNotFoundError(container_id)
            return reports.container_report(container)

        return self._call(report)

    def get_cluster_nodes(self, states: Collection[str] | None = None) -> list[reports.NodeReport]:
        """The nodes in one of `states`; None: all nodes, including inactive ones.

        Raises:
            InvalidRequestError: a state is not one of NODE_STATES.
        """
        wanted = NODE_STATES if states is None else states
        _check_names("node state", wanted, NODE_STATES)
        return self._call(lambda: reports.node_reports(self._context, frozenset(wanted)))

    def get_queue_info(self, path: str = "root") -> QueueInfo:
        """The queue at `path`; its `children` are paths. Raises QueueNotFoundError."""

        def report() -> QueueInfo:
            for queue in self._context.scheduler.queues():
                if queue.path == path:
                    return queue
            raise QueueNotFoundError(path)

        return self._call(report)

    def get_cluster_metrics(self) -> reports.ClusterMetrics:
        return self._call(lambda: reports.cluster_metrics(self._context))

    # -- steps --------------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], T]) -> T:
        try:
            result: T = self._context.call(function)
        except CancelledError:  # its mail was left over when the mailbox closed
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
                f"the {what} of {app.entity} cannot be changed: it is {app.state.name}, and must be ACCEPTED or RUNNING"
            )


def _check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"{name!r} is not a valid {what}; expected one of {', '.join(known)}")
