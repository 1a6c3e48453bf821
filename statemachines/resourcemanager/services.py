"""The resource manager's doors: for clients, application masters and nodes, and its launcher of masters.

Named after YARN's services; what they do on the entities, they do by events. Handler thread only: a client on another
thread goes through the dispatcher's `mailbox_executor`.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events import (
    AMLauncherEvent,
    ContainerRequest,
    ContainerStatus,
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppEventType,
    RMAppManagerEvent,
    RMNodeEvent,
    RMNodeEventType,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.rmapp import ApplicationSubmission, RMApp
from statemachines.resourcemanager.rmcontainer import RMContainer
from statemachines.resourcemanager.rmnode import RMNode, node_id
from statemachines.resourcemanager.statestore import MemoryRMStateStore
from statemachines.resourcemanager.workload.model import NodeSpec

log = logging.getLogger(__name__)


class UnknownAttemptError(DispatcherError):
    """A master called for an attempt that has ended or never was: the master should exit."""


class NodeManagers(Protocol):
    """What the resource manager needs of the nodes' daemons."""

    def start_container(self, container: RMContainer) -> None:
        """Start an acquired container on its node. Raises an Exception if the node cannot."""

    def stop_container(self, container_id: str) -> None:
        """Stop a container wherever it runs; nothing if it does not."""


class ClientRMService:
    """Submits and kills applications."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)

    def submit_application(self, submission: ApplicationSubmission) -> str:
        """Begin an application's life; returns its id."""
        context = self._context
        app = RMApp(context, next(self._numbers), submission)
        context.apps[app.entity] = app
        payload = {"name": submission.name, "user": submission.user, "queue": submission.queue}
        context.post(RMAppEvent(RMAppEventType.START, app.entity, payload=payload))
        return app.entity

    def force_kill_application(self, app_id: str, diagnostics: str = "killed by its user") -> None:
        """Kill an application; one that has ended stays as it is."""
        self._context.post(RMAppEvent(RMAppEventType.KILL, app_id, diagnostics))


class RMAppManager:
    """Keeps the applications that have ended, up to the configured number; then the oldest is forgotten."""

    def __init__(self, context: RMContext, store: MemoryRMStateStore) -> None:
        self._context = context
        self._store = store
        self._completed: deque[str] = deque()

    def handle(self, event: RMAppManagerEvent) -> None:
        self._completed.append(event.entity)
        while len(self._completed) > self._context.config.max_completed_applications:
            self._forget(self._completed.popleft())

    def _forget(self, app_id: str) -> None:
        context = self._context
        app = context.apps.pop(app_id)
        context.recorder.forgotten(app.machine, app.state)
        for attempt in app.attempts:
            del context.attempts[attempt.entity]
            context.recorder.forgotten(attempt.machine, attempt.state)
        self._store.forget(app_id, [attempt.entity for attempt in app.attempts])


class AllocateResponse(NamedTuple):
    """What a master gets with its heartbeat."""

    allocated: Sequence[RMContainer]
    finished: Sequence[ContainerStatus]


class ApplicationMasterService:
    """For application masters: register, allocate as their heartbeat, and finish."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._attempts: set[str] = set()

    def register_attempt(self, attempt_id: str) -> None:
        """From the attempt: its master may call from now on."""
        self._attempts.add(attempt_id)

    def unregister_attempt(self, attempt_id: str) -> None:
        """From the attempt: its master may not call any more."""
        self._attempts.discard(attempt_id)

    def register_application_master(self, attempt_id: str) -> None:
        """Raises UnknownAttemptError, as do the others."""
        self._check(attempt_id)
        self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.REGISTERED, attempt_id))

    def allocate(
        self,
        attempt_id: str,
        asks: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        progress: float = 0.0,
    ) -> AllocateResponse:
        """Ask for containers, give some back, and fetch what was allocated and what has ended since the last call."""
        self._check(attempt_id)
        context = self._context
        context.post(RMAppAttemptEvent(RMAppAttemptEventType.STATUS_UPDATE, attempt_id, progress=progress))
        context.scheduler.allocate(attempt_id, asks, releases)
        attempt = context.attempts[attempt_id]
        finished, attempt.finished_containers = attempt.finished_containers, []
        pulled: dict[str, list[str]] = {}
        for node, status in finished:
            pulled.setdefault(node, []).append(status.container)
        for node, containers in pulled.items():
            context.post(RMNodeEvent(RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM, node, tuple(containers)))
        return AllocateResponse(context.scheduler.pull_newly_allocated(attempt_id), [status for _, status in finished])

    def finish_application_master(self, attempt_id: str, diagnostics: str = "") -> None:
        """The master is done, and ends its own container next."""
        self._check(attempt_id)
        self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.UNREGISTERED, attempt_id, diagnostics))

    def _check(self, attempt_id: str) -> None:
        if attempt_id not in self._attempts:
            raise UnknownAttemptError(f"{attempt_id} is not registered: its master should exit")


class HeartbeatResponse(NamedTuple):
    """What a node is to do."""

    containers_to_clean: frozenset[str]
    apps_to_clean: Sequence[str]


class ResourceTrackerService:
    """For nodes: register and heartbeat."""

    def __init__(self, context: RMContext) -> None:
        self._context = context

    def register_node(self, spec: NodeSpec) -> str:
        """A node begins, or comes back as a new one; returns its id."""
        context = self._context
        id_ = node_id(spec.host)
        context.inactive_nodes.pop(id_, None)
        if id_ not in context.nodes:
            node = RMNode(context, spec)
            context.nodes[id_] = node
            context.post(RMNodeEvent(RMNodeEventType.STARTED, id_, payload=node.payload()))
        return id_

    def heartbeat(
        self,
        node: str,
        launched: tuple[str, ...] = (),
        finished: tuple[ContainerStatus, ...] = (),
        healthy: bool = True,
    ) -> HeartbeatResponse:
        """A node's report; the answer says what it is to clean up."""
        self._context.post(RMNodeStatusEvent(node, launched, finished, healthy))
        rmnode = self._context.nodes.get(node)
        if rmnode is None:
            return HeartbeatResponse(frozenset(), ())
        apps, rmnode.apps_to_clean = rmnode.apps_to_clean, []
        containers, rmnode.to_clean = rmnode.to_clean, set()
        return HeartbeatResponse(frozenset(containers), apps)


class ApplicationMasterLauncher:
    """Has the masters' containers started and stopped on their nodes."""

    def __init__(self, context: RMContext, node_managers: NodeManagers) -> None:
        self._context = context
        self._node_managers = node_managers

    def handle(self, event: AMLauncherEvent) -> None:
        attempt = self._context.attempts.get(event.entity)
        if attempt is None or attempt.master_container is None:
            return
        if event.type._name_ == "CLEANUP":
            self._node_managers.stop_container(attempt.master_container)
            return
        container = self._context.containers.get(attempt.master_container)
        if container is None:
            return  # it has ended meanwhile, and the attempt hears of that by its own event
        try:
            self._node_managers.start_container(container)
        except Exception as error:
            log.warning("%s: launch failed: %r", event.entity, error)
            failed = RMAppAttemptEvent(RMAppAttemptEventType.LAUNCH_FAILED, event.entity, f"launch failed: {error}")
            self._context.post(failed)
        else:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.LAUNCHED, event.entity))
