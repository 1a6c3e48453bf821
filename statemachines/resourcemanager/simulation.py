"""Simulated node managers and application masters: a container's end is a timer.

They talk to the resource manager as real ones do (register, heartbeat, allocate, finish), but when there is news
instead of every second, so that a replay costs nothing while nothing happens. Threading: handler thread only.
"""

from __future__ import annotations

import contextlib
from typing import Any

from dispatcher.mailbox.timers import TimerFuture
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events import (
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_SUCCESS,
    ContainerRequest,
    ContainerStatus,
)
from statemachines.resourcemanager.rmapp import ApplicationSubmission
from statemachines.resourcemanager.rmcontainer import RMContainer
from statemachines.resourcemanager.services import ClientRMService, ResourceTrackerService, UnknownAttemptError
from statemachines.resourcemanager.workload.model import ApplicationSpec, Outcome, Workload

EXIT_FAILURE = 1


class SimulatedCluster:
    """The node managers of all nodes, and the masters that run on them."""

    def __init__(self, context: RMContext, tracker: ResourceTrackerService) -> None:
        self._context = context
        self._tracker = tracker
        self.specs: dict[str, ApplicationSpec] = {}  # by id, of the applications that have not ended: what masters do
        self.start_ms = 0  # when the workload's time began
        self._running: dict[str, tuple[str, TimerFuture | None]] = {}  # by container: node, and the timer of its end
        self._masters: dict[str, SimulatedMaster] = {}  # by attempt

    # -- node managers ----------------------------------------------------------------------------------------------

    def start_container(self, container: RMContainer) -> None:
        """A master's container: it registers after a while."""
        self._run(container, None)
        master = SimulatedMaster(self, self._context, container, self.specs.get(container.application))
        self._masters[container.attempt] = master
        master.register_later()

    def start_task(self, container: RMContainer, duration_ms: int) -> None:
        """A container that a master started: it ends by itself."""
        end_ms = self._context.now_ms() + duration_ms
        container_id = container.entity
        timer = self._context.timers.register_timer(end_ms, lambda _: self.end_container(container_id, EXIT_SUCCESS))
        self._run(container, timer)

    def end_container(self, container_id: str, exit_status: int, diagnostics: str = "") -> None:
        """A container ends, and its node says so; nothing if it does not run."""
        running = self._running.pop(container_id, None)
        if running is not None:
            status = ContainerStatus(container_id, exit_status, diagnostics)
            self._tracker.heartbeat(running[0], finished=(status,))

    def stop_container(self, container_id: str) -> None:
        running = self._running.get(container_id)
        if running is not None:
            if running[1] is not None:
                running[1].cancel()
            self.end_container(container_id, EXIT_KILLED_BY_RESOURCEMANAGER, "stopped by the resource manager")

    def _run(self, container: RMContainer, timer: TimerFuture | None) -> None:
        self._running[container.entity] = (container.node, timer)
        self._tracker.heartbeat(container.node, launched=(container.entity,))

    # -- what the resource manager's answers would tell them -----------------------------------------------------------

    def on_node_event(self, event: Any) -> None:
        kind = event.type._name_
        if kind == "CLEANUP_CONTAINER":
            self.stop_container(event.about)

    def on_attempt_event(self, event: Any) -> None:
        kind = event.type._name_
        if kind in ("REGISTERED", "CONTAINER_ALLOCATED", "CONTAINER_FINISHED"):
            master = self._masters.get(event.entity)
            if master is None:
                return
            if kind == "CONTAINER_FINISHED" and event.status.container == master.container:
                del self._masters[event.entity]
                master.stop()
            elif kind == "REGISTERED":
                master.start()
            else:
                master.heartbeat()

    def on_app_completed(self, event: Any) -> None:
        self.specs.pop(event.entity, None)


class SimulatedMaster:
    """One application master: asks for its containers when their time comes, and ends when they have ended."""

    def __init__(
        self, cluster: SimulatedCluster, context: RMContext, container: RMContainer, spec: ApplicationSpec | None
    ) -> None:
        self._cluster = cluster
        self._context = context
        self.container = container.entity
        self._attempt = container.attempt
        self._spec = spec
        # In the order in which they are asked for; `tag` says which one came.
        self._containers = sorted(spec.containers, key=lambda c: (c.start_ms, c.priority)) if spec is not None else []
        self._asked = 0
        self._left = len(self._containers)
        self._registered = False
        self._stopped = False
        self._timer: TimerFuture | None = None  # of the next ask, or of the end: one at a time

    def register_later(self) -> None:
        delay_ms = self._context.config.simulation.am_register_delay_ms
        self._at(self._context.now_ms() + delay_ms, self._register)

    def start(self) -> None:
        """The resource manager has taken note of the master."""
        self._registered = True
        if self._left:
            self._ask()
        else:
            self._end_later()

    def heartbeat(self, asks: tuple[ContainerRequest, ...] = ()) -> None:
        """Fetch what was allocated, and start it; and what has ended, and count it."""
        if not self._registered or self._stopped:
            return
        progress = 1.0 - self._left / len(self._containers) if self._containers else 0.0
        try:
            response = self._context.master_service.allocate(self._attempt, asks, progress=progress)
        except UnknownAttemptError:
            return  # it has been ended from outside; its container is about to be stopped
        for container in response.allocated:
            self._cluster.start_task(container, self._containers[container.request.tag].duration_ms)
        if response.finished:
            self._left -= len(response.finished)
            if not self._left:
                self._end_later()

    def stop(self) -> None:
        """Its container has ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _register(self) -> None:
        with contextlib.suppress(UnknownAttemptError):
            self._context.master_service.register_application_master(self._attempt)

    def _ask(self) -> None:
        """Ask for all containers whose time has come, and come back when the next one's does."""
        assert self._spec is not None
        start_ms = self._cluster.start_ms
        now_ms, asks = self._context.now_ms() - start_ms, []
        while self._asked < len(self._containers) and self._containers[self._asked].start_ms <= now_ms:
            wanted = self._containers[self._asked]
            asks.append(
                ContainerRequest(
                    wanted.resource,
                    wanted.priority,
                    wanted.host,
                    self._spec.gpu_models,
                    wanted.kind,
                    tag=self._asked,
                )
            )
            self._asked += 1
        if self._asked < len(self._containers):
            self._at(start_ms + self._containers[self._asked].start_ms, self._ask)
        self.heartbeat(tuple(asks))

    def _end_later(self) -> None:
        duration_ms = self._spec.am_duration_ms if self._spec is not None else 0
        if duration_ms is not None:
            self._at(self._context.now_ms() + duration_ms, self._end)

    def _end(self) -> None:
        if self._spec is not None and self._spec.outcome is Outcome.FAILED:
            self._cluster.end_container(self.container, EXIT_FAILURE, "the application failed")
            return
        try:
            self._context.master_service.finish_application_master(self._attempt)
        except UnknownAttemptError:
            return
        self._cluster.end_container(self.container, EXIT_SUCCESS)

    def _at(self, time_ms: int, action: Any) -> None:
        def fire(_: int) -> None:
            if not self._stopped:
                action()

        self._timer = self._context.timers.register_timer(time_ms, fire)


class WorkloadRunner:
    """Brings a workload to a resource manager: its nodes at once, its applications when their time comes."""

    def __init__(
        self,
        context: RMContext,
        clients: ClientRMService,
        tracker: ResourceTrackerService,
        cluster: SimulatedCluster,
        workload: Workload,
    ) -> None:
        self._context = context
        self._clients = clients
        self._tracker = tracker
        self._cluster = cluster
        self._workload = workload

    def start(self) -> None:
        """Register the nodes and the timers. The workload's time 0 is now."""
        self._cluster.start_ms = self._context.now_ms()
        for node in self._workload.nodes:
            self._tracker.register_node(node)
        for spec in self._workload.applications:
            self._at(spec.submit_ms, lambda _, spec=spec: self._submit(spec))

    def _submit(self, spec: ApplicationSpec) -> None:
        app_id = self._clients.submit_application(
            ApplicationSubmission(
                spec.name, spec.am_resource, spec.user, spec.queue, spec.am_host, spec.gpu_models, spec.max_attempts
            )
        )
        self._cluster.specs[app_id] = spec
        if spec.kill_ms is not None:
            self._at(spec.kill_ms, lambda _: self._clients.force_kill_application(app_id))

    def _at(self, workload_ms: int, callback: Any) -> None:
        self._context.timers.register_timer(self._cluster.start_ms + workload_ms, callback)
