"""One node, after YARN's RMNodeImpl: it registers, reports, becomes unhealthy, is decommissioned and leaves.

A node's orders wait in lists until the response to its next heartbeat takes them. A node that has left is kept among
the inactive nodes; if it registers again, a new RMNode replaces it.

Threading: handler thread only (invariant 1), except `pull_updates`, which runs on the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final, Protocol

from statemachines.resourcemanager.events.records import EXIT_ABORTED, ContainerRequest, ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppRunningOnNodeEvent
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType, RMContainerResourceEvent
from statemachines.resourcemanager.events.rmnode import RMNodeStatusEvent
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.machines.entity import Entity
from statemachines.resourcemanager.machines.liveliness import LivelinessMonitor
from statemachines.resourcemanager.machines.rmcontainer import ContainerContext, RMContainer
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.records.ids import application_of, attempt_of
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.submission import ApplicationSubmission

log: logging.Logger = logging.getLogger(__name__)


class RMNodeState(Enum):
    """The states of nodes, as YARN's NodeState."""

    NEW = auto()
    RUNNING = auto()
    UNHEALTHY = auto()
    DECOMMISSIONING = auto()
    DECOMMISSIONED = auto()
    LOST = auto()
    REBOOTED = auto()
    SHUTDOWN = auto()


_NODE_UPDATE: Final = SchedulerEventType.NODE_UPDATE
"""Bound once: to look a member up in its class takes as long as a call."""
Launched = tuple[str, ...]
Finished = tuple[ContainerStatus, ...]
Report = tuple[Launched, Finished]
PORT = 45454
"""Default port in a node's id, as in YARN's examples."""
UNKNOWN_PORT = -1
"""Port of the placeholder for a host whose nodes have never registered."""


class Scheduler(Protocol):
    """What the state machines ask of the scheduler, on the dispatcher's handler thread; ResourceScheduler documents it.

    `handle` may run on the scheduler's own thread.
    """

    def handle(self, event: SchedulerEvent) -> None: ...

    def ask(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None: ...

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]: ...

    def queue_of(self, application: str) -> str | None: ...

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None: ...

    def has_master_container(self, node_id: str) -> bool: ...

    def live_containers(self, attempt_id: str) -> list[RMContainer]: ...


class NodeContext(ContainerContext, Protocol):
    """What nodes need of their resource manager."""

    nodes: dict[str, RMNode]
    inactive_nodes: dict[str, RMNode]
    node_labels: dict[str, str]
    node_capacities: dict[str, Resource]
    nm_liveliness_monitor: LivelinessMonitor

    @property
    def apps(self) -> Mapping[str, Entity[Any]]: ...

    @property
    def scheduler(self) -> Scheduler: ...


class RMNode(Entity[NodeContext]):
    """A node. `entity` is its id, `host:port`."""

    machine = "RMNode"

    __slots__ = (
        "apps_to_clean",
        "capacity",
        "containers",
        "decommission_timeout_s",
        "health",
        "health_report",
        "in_scheduler",
        "last_heartbeat_ms",
        "last_response",
        "next_heartbeat",
        "registered",
        "response_id",
        "running_apps",
        "spec",
        "to_clean",
        "to_forget",
        "to_signal",
        "to_update",
        "untracked_since_ms",
        "updates",
    )

    def __init__(self, context: NodeContext, spec: NodeSpec) -> None:
        super().__init__(context, node_id(spec.host, spec.port))
        self.take_spec(spec)
        self.capacity: Resource = self.capacity_by(spec)  # its own, also while it is DECOMMISSIONING
        self.decommission_timeout_s: int | None = None  # of a graceful decommissioning; None: no timeout
        self.health: bool = True  # as last reported
        self.health_report: str = ""  # why it is unhealthy, in its own words
        self.last_heartbeat_ms: int = context.now_ms()  # or when it registered
        self.in_scheduler: bool = False  # it was added to the scheduler
        self.containers: set[str] = set()  # reported as running
        self.running_apps: set[str] = set()  # applications with containers here that have not ended
        self.untracked_since_ms: int | None = None  # since when it is inactive and its host on neither list
        # Of its last heartbeat, if its heartbeats have ids:
        self.response_id: int = 0
        self.last_response: Any = None  # sent again if it got lost
        # Until the answer to the next heartbeat:
        self.to_clean: set[str] = set()  # containers to stop
        self.apps_to_clean: list[str] = []  # applications that have ended
        self.to_signal: list[tuple[str, str]] = []  # (container, name of the signal)
        self.to_update: dict[str, Resource] = {}  # containers to give another size
        self.to_forget: list[str] = []  # finished containers that need not be reported again
        # For the scheduler: (launched, finished) of each report. The handler thread appends and clears, the scheduler's
        # thread pops, each with one call.
        self.updates: deque[Report] = deque()
        self.next_heartbeat: bool = True  # no NODE_UPDATE is queued; set by the scheduler, cleared by the handler

    def take_spec(self, spec: NodeSpec) -> None:
        """Take the specification of a registering node. A label set by an administrator outlasts the node's."""
        self.registered: NodeSpec = spec  # as the node says
        label = self.context.node_labels.get(self.entity, spec.partition)
        self.spec: NodeSpec = spec if label == spec.partition else replace(spec, partition=label)

    def capacity_by(self, spec: NodeSpec) -> Resource:
        """Return its capacity if it registers so. One set by an administrator outlasts the node's."""
        return self.context.node_capacities.get(self.entity, spec.capacity)

    def pull_updates(self) -> list[Report]:
        """Return the node's reports since the last call. Called on the scheduler's thread."""
        # The flag first: a report that is appended after the loop below then posts a NODE_UPDATE of its own.
        self.next_heartbeat = True
        taken, updates = [], self.updates
        try:
            while updates:
                taken.append(updates.popleft())
        except IndexError:  # the handler thread has cleared the rest
            pass
        return taken

    @property
    def http_address(self) -> str:
        """`host:port`."""
        return f"{self.spec.host}:{self.spec.http_port}"

    def payload(self) -> dict[str, Any]:
        """Return its payload in the journal."""
        capacity = self.capacity
        payload: dict[str, Any] = {
            "host": self.spec.host,
            "rack": self.spec.rack,
            "memory_mb": capacity.memory_mb,
            "vcores_milli": capacity.vcores_milli,
            "gpus": capacity.gpus,
        }
        if self.spec.gpu_model is not None:
            payload["gpu_model"] = self.spec.gpu_model
        return payload

    # -- reports ------------------------------------------------------------------------------------------------------

    def take_health(self, event: RMNodeStatusEvent) -> None:
        """Take the health that a node reports. It can change although the state stays."""
        if self.health is not event.healthy or self.health_report != event.health_report:
            self.health, self.health_report = event.healthy, event.health_report
            self.context.recorder.changed(self)

    def take_report(self, event: RMNodeStatusEvent) -> None:
        """Take a healthy node's report. One NODE_UPDATE covers all reports not yet pulled by the scheduler."""
        launched, finished = event.launched, event.finished
        if event.running is not None:
            launched, finished = self.all_changes(launched, finished, event.running)
        self.take_containers(launched, finished)
        post = self.context.post
        if self.next_heartbeat:
            self.next_heartbeat = False
            post(SchedulerEvent(_NODE_UPDATE, self.entity))
        for container_id, size in event.resized:
            post(RMContainerResourceEvent(RMContainerEventType.NM_DONE_CHANGE_RESOURCE, container_id, size))

    def take_containers(self, launched: Launched, finished: Finished) -> None:
        """Keep which containers started and ended, and queue the news for the scheduler."""
        known = self.containers
        if self.to_clean or self.apps_to_clean or not known.isdisjoint(launched):
            launched, finished = self._news(launched, finished)
        if not (launched or finished):
            return
        unregister = self.context.container_allocation_expirer.unregister
        containers, apps = self.context.containers, self.running_apps
        for container_id in launched:
            known.add(container_id)
            container = containers.get(container_id)
            if container is None or container.application not in apps:
                self._note_app(container_id)
            unregister(container_id)
        for status in finished:
            container_id = status.container
            if container_id in known:
                known.remove(container_id)
            else:
                self._note_app(container_id)
            unregister(container_id)
        self.updates.append((launched, finished))

    def all_changes(self, launched: Launched, finished: Finished, running: frozenset[str]) -> Report:
        """Return the changes by a report of all running containers. Containers it no longer lists are lost.

        A container never reported by the node isn't lost, since it could have been launched after the report.
        """
        known = self.containers
        if new := running - known:
            launched = tuple(dict.fromkeys((*launched, *sorted(new))))
        if gone := known - running:
            gone -= {status.container for status in finished}
            why = f"lost: {self.entity} no longer reports it"
            finished += tuple(ContainerStatus(container_id, EXIT_ABORTED, why) for container_id in sorted(gone))
        return launched, finished

    def app_on_node(self, app_id: str) -> None:
        """Note an application on this node, or clean up an unknown or ended one."""
        app = self.context.apps.get(app_id)
        # An ended application may be forgotten before APP_RUNNING_ON_NODE reaches it: it could not clean up here.
        if app is not None and app.state not in FINAL_STATES:
            self.running_apps.add(app_id)
            self.context.post(RMAppRunningOnNodeEvent(app_id, self.entity))
        else:
            self.apps_to_clean.append(app_id)

    def _note_app(self, container_id: str) -> None:
        container = self.context.containers.get(container_id)
        if container is None:
            app_id = self._app_of(container_id)
            if app_id is not None and app_id not in self.running_apps:
                self.app_on_node(app_id)
        elif container.application not in self.running_apps:
            # The application may have ended: the scheduler, on its own thread, is about to end the containers.
            self.app_on_node(container.application)

    def _app_of(self, container_id: str) -> str | None:
        """The application of a container; None if the id is not valid."""
        try:
            return application_of(attempt_of(container_id))
        except ValueError as error:
            log.warning("%s reports an invalid container: %s", self.entity, error)
            return None

    def _news(self, launched: Launched, finished: Finished) -> Report:
        """The part of a report that the scheduler has not seen, without containers that are being cleaned up."""
        for status in finished:
            if not self._is_wanted(status.container):
                self.containers.discard(status.container)
        news = (
            tuple(c for c in launched if c not in self.containers and self._is_wanted(c)),
            tuple(status for status in finished if self._is_wanted(status.container)),
        )
        self.to_clean.difference_update(status.container for status in finished)  # already stopped
        return news

    def _is_wanted(self, container_id: str) -> bool:
        if container_id in self.to_clean:
            return False
        return not self.apps_to_clean or self._app_of(container_id) not in self.apps_to_clean


def node_id(host: str, port: int = PORT) -> str:
    return f"{host}:{port}"
