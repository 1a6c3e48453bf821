"""Simulated node managers and application masters: a container's end is an entry in an agenda.

They call the resource manager as real ones do (register, heartbeat, allocate, finish). In virtual time they send a
heartbeat only when something has changed: one for all changes of a moment, or, with `heartbeat_interval_ms`, for all
changes since the last one. So a replay costs nothing while nothing happens. In real time they also report regularly,
with all running containers, as real daemons do. Like these, they wait for a resource manager that is slow: while its
queue is long, they do not call. Their calls are made in mails, which precede events, so they would queue ever more
events and leave no time for one.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.errors import InvalidTypeError
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import (
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
    ContainerRequest,
    ContainerStatus,
    NMContainerStatus,
)
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEventType
from statemachines.resourcemanager.events.services import RMAppManagerEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.records.errors import (
    ApplicationMasterNotRegisteredError,
    InvalidApplicationMasterRequestError,
    InvalidResourceRequestError,
    NodeRefusedError,
    UnknownAttemptError,
)
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.resourcemanager.services.resource_tracker_service import HeartbeatResponse, NodeAction
from statemachines.simulation.agenda import Agenda, ScheduledCall
from statemachines.simulation.specs import ApplicationSpec, Outcome

if TYPE_CHECKING:
    from statemachines.resourcemanager.services.application_master_service import ApplicationMasterService

EXIT_FAILURE = 1
_PHASES = 10
"""The number of different times in an interval at which heartbeats are sent in virtual time."""
_REGULAR_PHASES = 50
"""The same in real time: the heartbeats of one phase keep the handler thread for a few ms, even of 10,000 nodes."""
_RESTART_MS = 1000
"""After a shutdown, and between two attempts to register again."""
_STOPPED = "stopped by the resource manager"
MOST_QUEUED = 2000
"""Events that the central dispatcher has queued when the daemons begin to wait: it handles them in some 50 ms."""
_MAY_LEAVE = frozenset({"GRACEFUL_DECOMMISSION", "CLEANUP_APP"})
_NODES_EVENTS = _MAY_LEAVE | {"CLEANUP_CONTAINER"}
_MASTERS_EVENTS = frozenset({"REGISTERED", "CONTAINER_ALLOCATED", "CONTAINER_FINISHED"})
"""Names, because a string caches its hash, while an Enum member computes it in Python each time."""


class SimulatedNode:
    """One node manager: its running containers, and the changes that it has not reported yet.

    It ends due tasks only when it reports: before that, the difference cannot be observed.
    """

    # Two dozen containers run on each of 20,000 nodes, so none has an object of its own here.
    __slots__ = ("ends", "finished", "id", "launched", "phase", "report", "report_ms", "running", "spare", "spec")

    def __init__(self, node_id: str, spec: NodeSpec, interval_ms: int, phases: int) -> None:
        self.id: str = node_id
        self.spec: NodeSpec = spec
        self.running: dict[str, RMContainer] = {}  # by id
        # A heap of (end, order of the starts, container); the container may have ended before.
        self.ends: list[tuple[int, int, str]] = []
        self.launched: list[str] = []
        self.finished: list[ContainerStatus] = []
        self.report: ScheduledCall | None = None  # the next heartbeat in the agenda
        self.report_ms: int = 0  # when that is
        self.spare: ScheduledCall | None = None  # the last heartbeat, which the next one may use again
        # A few phases: not all nodes report at once, and the reports of one phase are handled in one batch.
        self.phase: int = zlib.crc32(node_id.encode()) % phases * interval_ms // phases

    def end_due(self, now_ms: int) -> None:
        """End the tasks whose time has come."""
        ends, running = self.ends, self.running
        while ends and ends[0][0] <= now_ms:
            _, _, container_id = heapq.heappop(ends)
            if running.pop(container_id, None) is not None:
                self.finished.append(ContainerStatus(container_id, EXIT_SUCCESS))

    def next_end_ms(self) -> int | None:
        """When the next task ends; None: none runs that ends by itself."""
        ends, running = self.ends, self.running
        while ends:
            end_ms, _, container_id = ends[0]
            if container_id in running:
                return end_ms
            heapq.heappop(ends)
        return None


class SimulatedCluster:
    """The NodeManagers of all nodes, and the masters on them."""

    def __init__(self, manager: ResourceManager) -> None:
        self._context = context = manager.context
        self._tracker = manager.tracker
        self.masters: ApplicationMasterService = manager.masters
        self.is_regular: bool = not manager.in_virtual_time  # heartbeats are sent even without changes
        config = context.config
        self._interval_ms = (
            config.nm_heartbeat_interval_ms if self.is_regular else config.simulation.heartbeat_interval_ms
        )
        self._phases = _REGULAR_PHASES if self.is_regular else _PHASES
        self.agenda: Agenda = Agenda(context.now_ms)
        self._due = self._report  # one bound method for all nodes: each heartbeat would make its own
        self.specs: dict[str, ApplicationSpec] = {}  # by id of the live application
        self.start_ms = 0  # when the workload's time began
        self._nodes: dict[str, SimulatedNode] = {}
        self._silent_from_ms: dict[str, int] = {}  # by node: those whose node managers fall silent
        self._starts = itertools.count()  # of tasks so far
        self._masters: dict[str, SimulatedMaster] = {}  # by attempt
        self._nodes_of_masters: dict[str, SimulatedNode] = {}  # by the running container of the master
        self._queue_size = manager.dispatcher.queue_size
        if self.is_regular:
            self.agenda.must_wait = self._must_wait
        # Registered after the entities: real daemons learn of these events by the response to a heartbeat.
        register = manager.dispatcher.register
        register(RMAppAttemptEventType, self.on_attempt_event)
        register(RMNodeEventType, self.on_node_event)
        register(RMAppManagerEventType, self.on_app_completed)

    @classmethod
    def of(cls, manager: ResourceManager) -> SimulatedCluster:
        """The manager's simulated cluster, connected if it has no node managers; TypeError if it has others."""
        if manager.node_managers is None:
            manager.connect(cls(manager))
        cluster = manager.node_managers
        if not isinstance(cluster, cls):
            raise InvalidTypeError(
                f"{manager.name} has {cluster!r}; simulated nodes need a SimulatedCluster, or none yet"
            )
        return cluster

    @property
    def deadlines(self) -> Agenda:
        return self.agenda

    def _must_wait(self) -> bool:
        return self._queue_size() >= MOST_QUEUED

    # -- node managers ----------------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        """Start a node manager, which registers its node; a known node registers again."""
        node_id = self._tracker.register_node(spec)
        if node_id in self._nodes:
            return
        node = self._nodes[node_id] = SimulatedNode(node_id, spec, self._interval_ms, self._phases)
        silent_s = self._context.config.simulation.silent_after_s.get(spec.host)
        if silent_s is not None:
            self._silent_from_ms[node_id] = self._context.now_ms() + round(silent_s * 1000)
        if self.is_regular:
            self._report_at(node, self.next_heartbeat_ms(node.phase))

    def start_node(self, spec: NodeSpec) -> None:
        """Start a node manager. While its host may have no nodes, start it again and again, as a supervisor does.

        In virtual time, such a node stays away.
        """
        try:
            self.add_node(spec)
        except NodeRefusedError:
            if self.is_regular:
                self._start_again_later(spec)

    def start_container(self, container: RMContainer) -> None:
        """Start a master's container; the master registers after a delay."""
        self._nodes_of_masters[container.entity] = self._run(container, self._context.now_ms())
        master = SimulatedMaster(self, self._context, container, self.specs.get(container.application))
        self._masters[container.attempt] = master
        master.register_later()

    def start_task(self, container: RMContainer, duration_ms: int) -> None:
        """Start a master's task container, which ends after `duration_ms`."""
        now_ms = self._context.now_ms()
        node, end_ms = self._run(container, now_ms), now_ms + duration_ms
        heapq.heappush(node.ends, (end_ms, next(self._starts), container.entity))
        # Its node reports that it has started, which may be later than its end.
        if not self.is_regular and (node.report is None or node.report_ms > end_ms):
            self._report_at(node, self._heartbeat_from(end_ms, node.phase))

    def end_master(self, container_id: str, exit_status: int, diagnostics: str = "") -> None:
        """End a master's container, if it runs, and have its node report that."""
        if (node := self._nodes_of_masters.get(container_id)) is not None:
            self._end_on(node, container_id, exit_status, diagnostics)

    def stop_container(self, container_id: str) -> None:
        """Stop a master's container on the resource manager's order, if it runs."""
        self.end_master(container_id, EXIT_KILLED_BY_RESOURCEMANAGER, _STOPPED)

    def _run(self, container: RMContainer, now_ms: int) -> SimulatedNode:
        container_id = container.entity
        node = self._nodes.get(container.node)
        if node is None:
            raise ConnectionError(f"no node manager at {container.node}")
        node.running[container_id] = container
        node.launched.append(container_id)
        # As `next_heartbeat_ms`.
        self._report_at(node, self._heartbeat_from(now_ms + 1 if self.is_regular else now_ms, node.phase))
        return node

    def _end_on(self, node: SimulatedNode, container_id: str, exit_status: int, diagnostics: str = "") -> None:
        """End a container of the node, if it runs, and have the node report that."""
        if container_id in node.running:
            self._end(node, container_id, exit_status, diagnostics)
            self._report_at(node, self.next_heartbeat_ms(node.phase))

    def _end(self, node: SimulatedNode, container_id: str, exit_status: int, diagnostics: str = "") -> None:
        del node.running[container_id]
        self._nodes_of_masters.pop(container_id, None)
        node.finished.append(ContainerStatus(container_id, exit_status, diagnostics))

    def _report_at(self, node: SimulatedNode, time_ms: int) -> None:
        """Schedule the node's heartbeat for that time, unless it has an earlier one."""
        if node.report is not None:
            if node.report_ms <= time_ms:
                return
            node.report.stopped = True
        node.report, node.report_ms = node.spare or ScheduledCall(node), time_ms
        node.spare = None
        self.agenda.at(time_ms, self._due, node.report)

    def next_heartbeat_ms(self, phase: int) -> int:
        """When a daemon with this phase can next report."""
        now_ms = self._context.now_ms()
        # A regular daemon has just reported; any other may report at once.
        return self._heartbeat_from(now_ms + 1 if self.is_regular else now_ms, phase)

    def _heartbeat_from(self, time_ms: int, phase: int) -> int:
        return time_ms + (phase - time_ms) % self._interval_ms if self._interval_ms else time_ms

    def phase_of(self, time_ms: int) -> int:
        """The phase of a daemon that starts at that time."""
        phases, interval_ms = self._phases, self._interval_ms
        return time_ms * phases // interval_ms * interval_ms // phases if interval_ms else 0

    def _report(self, call: ScheduledCall) -> None:
        node: SimulatedNode = call.about
        now_ms = self._context.now_ms()
        if self._silent_from_ms and self._silent_from_ms.get(node.id, now_ms) < now_ms:
            return  # neither this heartbeat nor a later one
        node.report, node.spare = None, call
        node.end_due(now_ms)
        launched, finished = tuple(node.launched), tuple(node.finished)
        node.launched.clear()
        node.finished.clear()
        running = frozenset(node.running) if self.is_regular else None
        answer = self._tracker.heartbeat(node.id, launched, finished, running=running)
        if self.is_regular:
            self._obey(node, answer)
        elif (end_ms := node.next_end_ms()) is not None:
            self._report_at(node, self._heartbeat_from(end_ms, node.phase))

    def _obey(self, node: SimulatedNode, answer: HeartbeatResponse) -> None:
        """Follow the orders of a response, and schedule the next heartbeat."""
        if answer.action is NodeAction.SHUTDOWN:
            del self._nodes[node.id]
            node.spare = None  # which refers to the node
            for container_id in list(node.running):
                self._end(node, container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
            self._start_again_later(node.spec)
            return
        if answer.action is NodeAction.RESYNC:
            containers = list(node.running.values())
            apps = dict.fromkeys(container.application for container in containers)
            self._tracker.register_node(node.spec, map(_as_reported, containers), apps)
        for container_id in answer.containers_to_clean:
            self._end_on(node, container_id, EXIT_KILLED_BY_RESOURCEMANAGER, _STOPPED)
        self._report_at(node, self.next_heartbeat_ms(node.phase))

    def _start_again_later(self, spec: NodeSpec) -> None:
        self.agenda.at(self._context.now_ms() + _RESTART_MS, self._start_again, ScheduledCall(spec))

    def _start_again(self, call: ScheduledCall) -> None:
        self.start_node(call.about)

    # -- events that would otherwise reach the daemons by a response ---------------------------------------------------

    def on_node_event(self, event: Any) -> None:
        if event.type._name_ not in _NODES_EVENTS or self.is_regular:
            return
        node = self._nodes.get(event.entity)
        if node is None:
            return
        if event.type is RMNodeEventType.CLEANUP_CONTAINER:
            self._end_on(node, event.about, EXIT_KILLED_BY_RESOURCEMANAGER, _STOPPED)
        else:
            # A DECOMMISSIONING node leaves with its first heartbeat without applications.
            rmnode = self._context.nodes.get(event.entity)
            if rmnode is not None and rmnode.state is RMNodeState.DECOMMISSIONING:
                self._report_at(node, self.next_heartbeat_ms(node.phase))

    def on_attempt_event(self, event: Any) -> None:
        if event.type._name_ not in _MASTERS_EVENTS:
            return
        master = self._masters.get(event.entity)
        if master is None:
            return
        if event.type is RMAppAttemptEventType.REGISTERED:
            master.start()
        elif event.status is not None and event.status.container == master.container:
            del self._masters[event.entity]
            master.stopped = True
        elif not master.reports:
            master.report_later()

    def on_app_completed(self, event: Any) -> None:
        self.specs.pop(event.entity, None)


def _as_reported(container: RMContainer) -> NMContainerStatus:
    request = container.request
    return NMContainerStatus(
        container.entity,
        request.resource,
        request.priority,
        kind=request.kind,
        gpu_devices=container.gpu_devices,
        node_label=request.node_label or "",
    )


class SimulatedMaster:
    """One application master: requests its containers at their times, and ends after the last of them."""

    def __init__(
        self, cluster: SimulatedCluster, context: RMContext, container: RMContainer, spec: ApplicationSpec | None
    ) -> None:
        self._cluster = cluster
        self._agenda = cluster.agenda
        self._context = context
        self.container: str = container.entity
        self._attempt = container.attempt
        self._spec = spec
        # In the order of the requests; a container's `tag` is its index here.
        self._containers = sorted(spec.containers, key=lambda c: (c.start_ms, c.priority)) if spec is not None else []
        self._asked = 0
        self._asks: list[ContainerRequest] = []  # for the next heartbeat
        self._left = len(self._containers)
        self._tags: dict[str, int] = {}  # by container that it started and of whose end it has not heard
        self._registered = False
        self.stopped = False  # its container has ended; read by the agenda
        self.reports: bool = False  # a heartbeat is scheduled; read by the cluster
        self._phase = cluster.phase_of(context.now_ms())

    def register_later(self) -> None:
        delay_ms = self._context.config.simulation.am_register_delay_ms
        self._agenda.at(self._context.now_ms() + delay_ms, self._register, self)

    def start(self) -> None:
        """The resource manager has registered the master."""
        if self._registered:  # again, after the resource manager was restarted: it has lost the requests
            self.report_later()
            return
        self._registered = True
        if self._left:
            self._ask(self)
        else:
            self._end_later()
        if self._cluster.is_regular and not self.reports:
            self._schedule_heartbeat()

    def report_later(self) -> None:
        """Schedule a heartbeat, as there is something to pull."""
        if self._registered and not self.reports:
            self._schedule_heartbeat()

    def _schedule_heartbeat(self) -> None:
        self.reports = True
        self._agenda.at(self._cluster.next_heartbeat_ms(self._phase), self._heartbeat, self)

    def _heartbeat(self, _: SimulatedMaster) -> None:
        """Send requests, start allocated containers, and count finished ones."""
        self.reports = False
        asks, self._asks = self._asks, []
        progress = 1.0 - self._left / len(self._containers) if self._containers else 0.0
        try:
            response = self._cluster.masters.allocate(self._attempt, asks, progress=progress)
        except UnknownAttemptError:
            return  # the attempt has ended; this container is about to be stopped
        except ApplicationMasterNotRegisteredError:
            self._asks = [*asks, *self._asks]
            self._register(self)
            return
        except InvalidResourceRequestError as error:  # it can never do its work
            self._cluster.end_master(self.container, EXIT_FAILURE, str(error))
            return
        for container in response.allocated:
            tag = self._tags[container.entity] = container.request.tag
            try:
                self._cluster.start_task(container, self._containers[tag].duration_ms)
            except ConnectionError:  # its node was just shut down: CONTAINER_FINISHED follows
                continue
        if response.finished:
            self._count_finished(response.finished)
        if self._cluster.is_regular:
            self._schedule_heartbeat()

    def _count_finished(self, finished: Sequence[ContainerStatus]) -> None:
        """Count finished containers; request preempted ones again, as their work is not done.

        Others are not its work: an earlier attempt's, or those that ended before it pulled them, which the scheduler
        replaces.
        """
        for status in finished:
            tag = self._tags.pop(status.container, None)
            if tag is None:
                continue
            if status.exit_status == EXIT_PREEMPTED:
                self._asks.append(self._request(tag))
            else:
                self._left -= 1
        if not self._left:
            self._end_later()
        elif self._asks and not self._cluster.is_regular:
            self.report_later()

    def _register(self, _: SimulatedMaster) -> None:
        try:
            self._cluster.masters.register_application_master(self._attempt)
        except (UnknownAttemptError, InvalidApplicationMasterRequestError):
            return  # the attempt has ended, or another master has registered for it

    def _ask(self, _: SimulatedMaster) -> None:
        """Request all containers that are due, and schedule the next request."""
        assert self._spec is not None
        start_ms = self._cluster.start_ms
        now_ms = self._context.now_ms() - start_ms
        while self._asked < len(self._containers) and self._containers[self._asked].start_ms <= now_ms:
            self._asks.append(self._request(self._asked))
            self._asked += 1
        if self._asked < len(self._containers):
            self._agenda.at(start_ms + self._containers[self._asked].start_ms, self._ask, self)
        self.report_later()

    def _request(self, tag: int) -> ContainerRequest:
        assert self._spec is not None
        wanted = self._containers[tag]
        return ContainerRequest(wanted.resource, wanted.priority, wanted.host, self._spec.gpu_models, wanted.kind, tag)

    def _end_later(self) -> None:
        duration_ms = self._spec.am_duration_ms if self._spec is not None else 0
        if duration_ms is not None:
            self._agenda.at(self._context.now_ms() + duration_ms, self._end, self)

    def _end(self, _: SimulatedMaster) -> None:
        if self._spec is not None and self._spec.outcome is Outcome.FAILED:
            self._cluster.end_master(self.container, EXIT_FAILURE, "the application failed")
            return
        try:
            self._cluster.masters.finish_application_master(self._attempt)
        except UnknownAttemptError:
            return
        except ApplicationMasterNotRegisteredError:
            self._register(self)
            self._end_later()
            return
        self._cluster.end_master(self.container, EXIT_SUCCESS)
