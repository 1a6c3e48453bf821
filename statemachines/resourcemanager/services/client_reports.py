"""The reports of the service for clients.

Any thread may call; they are made on the handler thread. ClientRMService says which errors all calls may raise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from statemachines.resourcemanager import reports
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.records.errors import (
    ApplicationAttemptNotFoundError,
    ApplicationNotFoundError,
    ContainerNotFoundError,
    InvalidRequestError,
    QueueNotFoundError,
)
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.services.handler_calls import HandlerThreadService, later, on_handler_thread

NODE_STATES = tuple(state.name for state in RMNodeState)


class ClientReports(HandlerThreadService):
    """Reports on applications, attempts, containers, nodes, queues and the cluster. Any thread may call."""

    def __init__(self, context: RMContext) -> None:
        super().__init__(context)
        self._context = context

    # -- applications -------------------------------------------------------------------------------------------------

    @on_handler_thread
    def get_application_report(
        self, app_id: str, *, timeout: float | None = None
    ) -> Callable[[], reports.ApplicationReport]:
        """Raises ApplicationNotFoundError."""
        return lambda: reports.application_report(self._context, self._app(app_id))

    get_application_report_later = later(get_application_report)

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

    get_applications_later = later(get_applications)

    @on_handler_thread
    def get_waiting(
        self, app_ids: Collection[str], *, timeout: float | None = None
    ) -> Callable[[], list[reports.WaitingReport]]:
        """What these applications wait for, in the order given; unknown ones are left out."""
        wanted = tuple(app_ids)
        return lambda: reports.waiting_reports(self._context, wanted)

    get_waiting_later = later(get_waiting)

    @on_handler_thread
    def get_application_attempts(
        self, app_id: str, *, timeout: float | None = None
    ) -> Callable[[], list[reports.ApplicationAttemptReport]]:
        """By number. Raises ApplicationNotFoundError."""
        return lambda: [reports.attempt_report(self._context, it) for it in self._app(app_id).attempts]

    get_application_attempts_later = later(get_application_attempts)

    @on_handler_thread
    def get_application_attempt_report(
        self, attempt_id: str, *, timeout: float | None = None
    ) -> Callable[[], reports.ApplicationAttemptReport]:
        """Raises ApplicationAttemptNotFoundError."""
        return lambda: reports.attempt_report(self._context, self._attempt(attempt_id))

    get_application_attempt_report_later = later(get_application_attempt_report)

    @on_handler_thread
    def get_containers(
        self, attempt_id: str, *, timeout: float | None = None
    ) -> Callable[[], list[reports.ContainerReport]]:
        """Live containers, including those taken over. Raises ApplicationAttemptNotFoundError."""

        def report() -> list[reports.ContainerReport]:
            live = self._context.scheduler.live_containers(self._attempt(attempt_id).entity)
            return [reports.container_report(container) for container in live]

        return report

    get_containers_later = later(get_containers)

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

    get_container_report_later = later(get_container_report)

    @on_handler_thread
    def get_cluster_nodes(
        self, states: Collection[str] | None = None, *, timeout: float | None = None
    ) -> Callable[[], list[reports.NodeReport]]:
        """The nodes in one of `states`; None: all nodes, including inactive ones.

        Raises:
            InvalidRequestError: a state is not one of NODE_STATES.
        """
        wanted = frozenset(NODE_STATES if states is None else states)
        check_names("node state", wanted, NODE_STATES)
        return lambda: reports.node_reports(self._context, wanted)

    get_cluster_nodes_later = later(get_cluster_nodes)

    @on_handler_thread
    def get_queue_info(self, path: str = "root", *, timeout: float | None = None) -> Callable[[], QueueInfo]:
        """The queue at `path`; its `children` are paths. Raises QueueNotFoundError."""

        def report() -> QueueInfo:
            info = self._context.scheduler.queue_info(path)
            if info is None:
                raise QueueNotFoundError(path)
            return info

        return report

    get_queue_info_later = later(get_queue_info)

    @on_handler_thread
    def get_cluster_metrics(self, *, timeout: float | None = None) -> Callable[[], reports.ClusterMetrics]:
        return lambda: reports.cluster_metrics(self._context)

    get_cluster_metrics_later = later(get_cluster_metrics)

    # -- entities -----------------------------------------------------------------------------------------------------

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
