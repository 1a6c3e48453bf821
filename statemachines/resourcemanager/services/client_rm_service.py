"""The service for clients, after YARN's ClientRMService.

Any thread may call; the work is done on the handler thread before a call returns. What ends an application is posted,
and takes effect after the call. Each method `m` has a form `m_later` that returns a Future at once.

A `caller` is the user on whose behalf a method changes something; None is this process, which may do everything.

Every method may raise RejectedExecutionError (the resource manager has stopped) and TimeoutError (the handler thread
has not answered within `timeout` seconds; None waits for as long as the resource manager runs); with a caller, also
AccessDeniedError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from statemachines.resourcemanager import reports
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import FAILED_BY_USER, RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.states import END_IS_STORED, RMAppState
from statemachines.resourcemanager.records.acls import ApplicationAccess, Caller
from statemachines.resourcemanager.records.errors import (
    AccessDeniedError,
    ApplicationAttemptNotFoundError,
    ApplicationNotFoundError,
    ContainerNotFoundError,
    InvalidRequestError,
    QueueNotFoundError,
)
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.services.application_submitter import (
    ApplicationSubmitter,
    check_lifetime,
    check_priority,
)
from statemachines.resourcemanager.services.handler_calls import (
    HandlerThreadService,
    Stored,
    later,
    on_handler_thread,
    once_stored,
)
from statemachines.resourcemanager.services.rm_app_manager import move_application, update_lifetime, update_priority

if TYPE_CHECKING:
    from statemachines.resourcemanager.records.acls import QueueACLs

SIGNALS = ("OUTPUT_THREAD_DUMP", "GRACEFUL_SHUTDOWN", "FORCEFUL_SHUTDOWN")
"""The signals for containers."""
_ACTIVE = frozenset({RMAppState.ACCEPTED, RMAppState.RUNNING})


class ClientRMService(HandlerThreadService):
    """Submits, changes, kills and reports on applications. Any thread may call."""

    def __init__(self, context: RMContext) -> None:
        super().__init__(context)
        self._context = context
        self.acls: QueueACLs = context.acls  # any thread
        self._submitter = ApplicationSubmitter(context)

    # -- submitting ---------------------------------------------------------------------------------------------------

    @on_handler_thread
    def get_new_application(self, *, timeout: float | None = None) -> Callable[[], str]:
        """A new application id. It is used up even if it is never submitted."""
        return self._submitter.new_id

    get_new_application_later: Final = later(get_new_application)

    def submit_application(
        self, submission: ApplicationSubmission, timeout: float | None = None, *, caller: Caller | None = None
    ) -> str:
        """Submit an application; returns its id.

        Returns once the application is stored, and so survives the resource manager; on the handler thread it returns
        at once. A known id is answered like a new one and has no further effect: a client that got no answer repeats
        its submission. Tags become lower case, and the type is cut to 20 characters, as in YARN.

        An application with a `caller` is the caller's, whatever `submission.user` says, and is refused at once where
        its queue cannot take it; without one it is accepted, and then fails with that as its diagnostics.

        Raises:
            InvalidRequestError: the id, the master's size, the lifetime or a tag is not valid, or with a caller the
                queue cannot take it. Nothing was done.
            InvalidResourceRequestError: its master is larger than its queue's maximum allocation. Nothing was done.
            AccessDeniedError: the caller may not submit to the queue. Nothing was done.
            ApplicationRejectedError: the application was refused or killed before it was stored.
            TimeoutError: not stored within `timeout` seconds; the message says whether it may be stored later.
        """
        try:
            return self._submit_application(submission, caller=caller, timeout=timeout)
        except TimeoutError as late:
            advice = "submit it again with the same id to find out"
            if submission.application_id is None:
                advice = "look for it among the applications; an id from get_new_application allows a retry"
            raise TimeoutError(f"{late}: {advice}") from None

    @once_stored
    def _submit_application(
        self, submission: ApplicationSubmission, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[str]]:
        return self._submitter.submission(submission, caller)

    submit_application_later: Final = later(_submit_application)

    # -- changing -----------------------------------------------------------------------------------------------------

    @on_handler_thread
    def force_kill_application(
        self,
        app_id: str,
        diagnostics: str = "",
        *,
        caller: Caller | None = None,
        timeout: float | None = None,
    ) -> Callable[[], bool]:
        """Kill an application that has not ended. Raises ApplicationNotFoundError.

        Returns whether its end is stored. A client that must be sure repeats the call until it is. The application's
        diagnostics say that its user or the caller killed it, and with which `diagnostics`, if any.
        """
        by_caller = f"killed by user {caller.user}" if caller is not None else ""
        killed = ": ".join(filter(None, (by_caller, diagnostics))) or "killed by its user"

        def kill() -> bool:
            app = self._to_change(app_id, caller)
            if app.state in END_IS_STORED:
                return True
            self._context.post(RMAppEvent(RMAppEventType.KILL, app_id, killed))
            return False

        return kill

    force_kill_application_later: Final = later(force_kill_application)

    @on_handler_thread
    def fail_application_attempt(
        self, attempt_id: str, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], None]:
        """Fail an attempt that has not ended; its application may start another one.

        Raises ApplicationAttemptNotFoundError.
        """

        def fail() -> None:
            app = self._attempt(attempt_id).app
            self._check_modify(app.entity, app.submission, caller)
            if app.state not in END_IS_STORED:
                event = RMAppAttemptEvent(RMAppAttemptEventType.FAIL, attempt_id, FAILED_BY_USER)
                self._context.post(event)

        return fail

    fail_application_attempt_later: Final = later(fail_application_attempt)

    @once_stored
    def move_application_across_queues(
        self, app_id: str, queue: str, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Move an application with its containers and requests to another queue. Returns once that is stored.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: its state or the queue does not allow it; the message says why.
        """

        def move() -> Stored[None]:
            app = self._to_change(app_id, caller)
            if caller is not None and not self.acls.may_submit(queue, caller):
                raise AccessDeniedError(
                    caller.user,
                    f"User {caller.user} cannot submit applications to target queue or the target queue doesn't exist: "
                    f"{queue} while moving {app_id}",
                )
            stored = Stored(None)
            move_application(self._context, app, queue, stored.confirm)
            return stored

        return move

    move_application_across_queues_later: Final = later(move_application_across_queues)

    @once_stored
    def update_application_priority(
        self, app_id: str, priority: int, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[int]]:
        """Change an application's priority, unless it has ended; returns its current priority, once that is stored.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: the priority is not a number of 32 bits, or the application neither ACCEPTED nor
                RUNNING.
        """
        check_priority(priority)

        def update() -> Stored[int]:
            app = self._to_change(app_id, caller)
            stored = Stored(app.submission.priority)
            if app.state in END_IS_STORED:
                stored.confirm()
                return stored
            self._check_active(app, "priority")
            update_priority(self._context, app, priority, stored.confirm)
            stored.value = app.submission.priority
            return stored

        return update

    update_application_priority_later: Final = later(update_application_priority)

    @once_stored
    def update_application_timeouts(
        self, app_id: str, lifetime_s: int | None, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[int | None]]:
        """Change when an application is killed: `lifetime_s` after its submission; None: its queue's default.

        The queue's maximum lifetime is the limit. Returns the new deadline, Unix ms, once it is stored; None: no
        deadline, or the application has ended.

        Raises:
            ApplicationNotFoundError: the application does not exist.
            InvalidRequestError: the new deadline is past or too far off, or the application is neither ACCEPTED nor
                RUNNING.
        """
        check_lifetime(lifetime_s)

        def update() -> Stored[int | None]:
            app = self._to_change(app_id, caller)
            stored: Stored[int | None] = Stored(None)
            if app.state in END_IS_STORED:
                stored.confirm()
                return stored
            self._check_active(app, "lifetime")
            stored.value = update_lifetime(self._context, app, lifetime_s, stored.confirm)
            return stored

        return update

    update_application_timeouts_later: Final = later(update_application_timeouts)

    @on_handler_thread
    def signal_to_container(
        self, container_id: str, signal: str, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], None]:
        """Have a container's node signal it, by the response to its next heartbeat.

        Raises:
            InvalidRequestError: `signal` is not one of SIGNALS.
            ContainerNotFoundError: the container does not exist, or has ended.
        """
        check_names("signal", [signal], SIGNALS)

        def post() -> None:
            container = self._context.containers.get(container_id)
            if container is None:
                raise ContainerNotFoundError(container_id)
            app = self._attempt(container.attempt).app
            self._check_modify(app.entity, app.submission, caller)
            about = (container_id, signal)
            self._context.post(RMNodeEvent(RMNodeEventType.SIGNAL_CONTAINER, container.node, about))

        return post

    signal_to_container_later: Final = later(signal_to_container)

    # -- reports ------------------------------------------------------------------------------------------------------

    @on_handler_thread
    def get_application_report(
        self, app_id: str, *, timeout: float | None = None
    ) -> Callable[[], reports.ApplicationReport]:
        """Raises ApplicationNotFoundError."""
        return lambda: reports.application_report(self._context, self._app(app_id))

    get_application_report_later: Final = later(get_application_report)

    @on_handler_thread
    def get_applications(
        self,
        *,
        states: Collection[str] | None = None,
        users: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        application_types: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Callable[[], list[reports.ApplicationReport]]:
        """The first `limit` applications, by submission, that pass all filters.

        None lets all pass, an empty filter none; one tag in common is enough.

        Raises:
            InvalidRequestError: a state is not one of APPLICATION_STATES, or `limit` is less than 1.
        """
        check_names("application state", states or (), reports.APPLICATION_STATES)
        if limit is not None and limit < 1:
            raise InvalidRequestError(f"limit is {limit}: it must be at least 1, or None")

        # Copies: the handler thread reads them while the caller may change its own.
        in_states, of_users, in_queues, of_types, tagged = (
            None if names is None else frozenset(names)
            for names in (states, users, queues, application_types, None if tags is None else map(str.lower, tags))
        )

        def passes(app: RMApp) -> bool:
            submission = app.submission
            return (
                (in_states is None or reports.client_state(app) in in_states)
                and (of_users is None or submission.user in of_users)
                and (in_queues is None or submission.queue in in_queues)
                and (of_types is None or submission.application_type in of_types)
                and (tagged is None or not tagged.isdisjoint(submission.tags))
            )

        def report() -> list[reports.ApplicationReport]:
            apps = [app for app in self._context.apps.values() if passes(app)]
            return [reports.application_report(self._context, app) for app in apps[:limit]]

        return report

    get_applications_later: Final = later(get_applications)

    @on_handler_thread
    def get_waiting(
        self, app_ids: Collection[str], *, timeout: float | None = None
    ) -> Callable[[], list[reports.WaitingReport]]:
        """What these applications wait for, in the order given; unknown ones are left out."""
        wanted = tuple(app_ids)
        return lambda: reports.waiting_reports(self._context, wanted)

    get_waiting_later: Final = later(get_waiting)

    @on_handler_thread
    def get_waits(
        self, app_ids: Collection[str], *, timeout: float | None = None
    ) -> Callable[[], list[reports.AppWait]]:
        """Only the causes of `get_waiting`, for thousands of applications. Each costs a fraction of a report.

        Applications that wait for nothing are left out.
        """
        wanted = tuple(app_ids)
        return lambda: reports.app_waits(self._context, wanted)

    get_waits_later: Final = later(get_waits)

    @on_handler_thread
    def get_application_attempts(
        self, app_id: str, *, timeout: float | None = None
    ) -> Callable[[], list[reports.ApplicationAttemptReport]]:
        """By number. Raises ApplicationNotFoundError."""
        return lambda: [reports.attempt_report(self._context, it) for it in self._app(app_id).attempts]

    get_application_attempts_later: Final = later(get_application_attempts)

    @on_handler_thread
    def get_application_attempt_report(
        self, attempt_id: str, *, timeout: float | None = None
    ) -> Callable[[], reports.ApplicationAttemptReport]:
        """Raises ApplicationAttemptNotFoundError."""
        return lambda: reports.attempt_report(self._context, self._attempt(attempt_id))

    get_application_attempt_report_later: Final = later(get_application_attempt_report)

    @on_handler_thread
    def get_containers(
        self, attempt_id: str, *, timeout: float | None = None
    ) -> Callable[[], list[reports.ContainerReport]]:
        """Live containers, including those taken over. Raises ApplicationAttemptNotFoundError."""

        def report() -> list[reports.ContainerReport]:
            live = self._context.scheduler.live_containers(self._attempt(attempt_id).entity)
            return [reports.container_report(container) for container in live]

        return report

    get_containers_later: Final = later(get_containers)

    @on_handler_thread
    def get_container_report(
        self, container_id: str, *, timeout: float | None = None
    ) -> Callable[[], reports.ContainerReport]:
        """Raises ContainerNotFoundError, also for an ended container."""

        def report() -> reports.ContainerReport:
            container = self._context.containers.get(container_id)
            if container is None:
                raise ContainerNotFoundError(container_id)
            return reports.container_report(container)

        return report

    get_container_report_later: Final = later(get_container_report)

    @on_handler_thread
    def get_cluster_nodes(
        self, states: Collection[str] | None = None, *, timeout: float | None = None
    ) -> Callable[[], list[reports.NodeReport]]:
        """The nodes in one of `states`; None: all nodes, including inactive ones.

        Raises:
            InvalidRequestError: a state is not one of reports.NODE_STATES.
        """
        wanted = frozenset(reports.NODE_STATES if states is None else states)
        check_names("node state", wanted, reports.NODE_STATES)
        return lambda: reports.node_reports(self._context, wanted)

    get_cluster_nodes_later: Final = later(get_cluster_nodes)

    @on_handler_thread
    def get_queue_info(self, path: str = "root", *, timeout: float | None = None) -> Callable[[], QueueInfo]:
        """The queue at `path`; its `children` are paths. Raises QueueNotFoundError."""

        def report() -> QueueInfo:
            with self._context.scheduler.locked() as policy:
                info = policy.queue_info(path)
            if info is None:
                raise QueueNotFoundError(path)
            return info

        return report

    get_queue_info_later: Final = later(get_queue_info)

    @on_handler_thread
    def get_cluster_metrics(self, *, timeout: float | None = None) -> Callable[[], reports.ClusterMetrics]:
        return lambda: reports.cluster_metrics(self._context)

    get_cluster_metrics_later: Final = later(get_cluster_metrics)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _to_change(self, app_id: str, caller: Caller | None) -> RMApp:
        """Raises ApplicationNotFoundError and AccessDeniedError."""
        app = self._app(app_id)
        self._check_modify(app_id, app.submission, caller)
        return app

    def _check_modify(self, app_id: str, submission: ApplicationSubmission, caller: Caller | None) -> None:
        if caller is not None and not self.acls.may_modify(submission, caller):
            access = ApplicationAccess.MODIFY_APP.value
            raise AccessDeniedError(caller.user, f"User {caller.user} cannot perform operation {access} on {app_id}")

    @staticmethod
    def _check_active(app: RMApp, what: str) -> None:
        if app.state not in _ACTIVE:
            raise InvalidRequestError(
                f"the {what} of {app.entity} cannot be changed: it is {app.state.name}, and must be ACCEPTED or RUNNING"
            )

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


def check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    """Raises InvalidRequestError unless all names are known ones."""
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"{name!r} is not a valid {what}; expected one of {', '.join(known)}")
