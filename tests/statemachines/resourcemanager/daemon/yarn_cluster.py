"""A resource manager in virtual time that the test leads step by step, through its doors only.

Nothing is simulated but time: nodes, masters and clients do what the test says, when it says so. Threading: a Yarn is
the test's own; each of its methods does its work on the handler thread and returns when all that follows at this moment
has been handled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import (
    ApplicationSubmission,
    ContainerRequest,
    ContainerStatus,
    Resource,
    ResourceManager,
    RMContainer,
    RMNodeEventType,
)
from statemachines.simulation.workload import NodeSpec

from ...simulation.replays import TIMEOUT_S, config
from ..inner import (
    AllocateResponse,
    ApplicationReport,
    HeartbeatResponse,
    RMStateStore,
    SimulatedCluster,
    application_of,
    attempt_id,
    node_id,
)

T = TypeVar("T")


class _SteppedResourceManager(ResourceManager):
    """Virtual time goes on while `goes_on` only; whenever there is nothing left to do until then, it says so."""

    goes_on = False
    at_rest: threading.Event

    def _jump(self) -> bool:
        if self.goes_on:
            return super()._jump()
        self.at_rest.set()
        return False


class _NodeManagers(SimulatedCluster):
    """Keeps what nodes are told to start and stop; the test reports what came of it."""

    def __init__(self, manager: ResourceManager, yarn: Yarn) -> None:
        super().__init__(manager)
        self._yarn = yarn

    def start_container(self, container: RMContainer) -> None:
        self._yarn.started.append(container)

    def stop_container(self, container_id: str) -> None:
        self._yarn.stopped.append(container_id)

    def on_node_event(self, event: Any) -> None:
        if event.type is RMNodeEventType.CLEANUP_CONTAINER:
            self.stop_container(event.about)
        super().on_node_event(event)


class Yarn:
    """The cluster of a test: nodes of 10 MB and 10 thousandths of a core by default."""

    def __init__(
        self, *hosts: str | NodeSpec, expiry_ms: int | None = None, store: RMStateStore | None = None, **settings: Any
    ) -> None:
        """`expiry_ms`: nodes and masters that are silent for so long expire, when `advance` has come to its end."""
        self._clock = ManualClock()
        self.manager = manager = _SteppedResourceManager(
            config(**settings),
            node_managers=lambda manager: _NodeManagers(manager, self),
            clock=self._clock,
            store=store,
        )
        manager.at_rest = threading.Event()
        self.context, self.clients, self.admin = manager.context, manager.clients, manager.admin
        self._silent = [
            self.context.am_liveliness_monitor,
            self.context.am_finishing_monitor,
            self.context.nm_liveliness_monitor,
        ]
        for monitor in self._silent:
            monitor.interval_ms = expiry_ms
        self.started: list[RMContainer] = []  # masters' containers, in the order in which nodes were told to start them
        self.stopped: list[str] = []  # those that nodes were told to stop
        manager.init()
        manager.start()
        for host in hosts:
            self.register(host)

    def __enter__(self) -> Yarn:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.manager.stop()
        if error is None:
            self.check()

    def check(self) -> None:
        """Nothing has gone wrong until now."""
        dispatcher = self.manager.dispatcher
        invalid = {machine: stats.invalid for machine, stats in self.manager.recorder.machines.items() if stats.invalid}
        assert (dispatcher.failure_cause, dispatcher.stats().failed, invalid) == (None, 0, {})

    # -- time ---------------------------------------------------------------------------------------------------------

    def do(self, action: Callable[[], T]) -> T:
        """Do it on the handler thread, with all that follows from it now; returns its result."""
        at_rest = self.manager.at_rest

        def act() -> T:
            at_rest.clear()  # here, so that it is set again by what follows only
            return action()

        result: T = self.manager.dispatcher.mailbox_executor.submit(act, "a step of the test").result(TIMEOUT_S)
        assert at_rest.wait(TIMEOUT_S), self.manager.dispatcher.queue_contents()
        return result

    def advance(self, ms: int) -> None:
        """Advance the time, and process what is due."""

        def arrive(_: int) -> None:
            self.manager.goes_on = False
            for monitor in self._silent:
                monitor.expire_due()

        def set_out() -> None:
            self.context.timers.register_timer(self.context.now_ms() + ms, arrive)
            self.manager.goes_on = True

        self.do(set_out)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def register(self, node: str | NodeSpec, **more: Any) -> str:
        spec = NodeSpec(node, Resource(10, 10)) if isinstance(node, str) else node
        return self.do(lambda: self.manager.tracker.register_node(spec, **more))

    def heartbeat(
        self,
        host: str,
        launched: Iterable[RMContainer] = (),
        finished: Iterable[ContainerStatus] = (),
        **more: Any,
    ) -> HeartbeatResponse:
        started = tuple(container.entity for container in launched)
        return self.do(lambda: self.manager.tracker.heartbeat(node_id(host), started, tuple(finished), **more))

    def launch(self, *containers: RMContainer) -> None:
        """Their nodes have started them, and say so."""
        for container in containers:
            self.heartbeat(_host(container), [container])

    def end(self, container: RMContainer, exit_status: int = 0, diagnostics: str = "") -> None:
        """It has ended, and its node says so."""
        self.heartbeat(_host(container), (), [ContainerStatus(container.entity, exit_status, diagnostics)])

    # -- clients ------------------------------------------------------------------------------------------------------

    def submit(self, name: str = "app", am_mb: int = 1, **submission: Any) -> str:
        wanted = ApplicationSubmission(name, Resource(am_mb, 1), **submission)
        return self.do(lambda: self.clients.submit_application(wanted))

    def kill(self, app_id: str) -> None:
        self.do(lambda: self.clients.force_kill_application(app_id))

    def report(self, app_id: str) -> ApplicationReport:
        return self.clients.get_application_report(app_id)

    def states(self, app_id: str) -> tuple[str, list[str]]:
        """The state for clients, and the states of its attempts."""
        attempts = self.clients.get_application_attempts(app_id)
        return self.report(app_id).state, [attempt.state for attempt in attempts]

    def node_states(self) -> dict[str, str]:
        """By host."""
        return {node.host: node.state for node in self.clients.get_cluster_nodes()}

    # -- masters ------------------------------------------------------------------------------------------------------

    def run(self, app_id: str) -> Master:
        """The master that was started last for the application runs, and registers."""
        container = [container for container in self.started if container.application == app_id][-1]
        self.launch(container)
        master = Master(self, container.attempt, container)
        master.register()
        return master

    def submit_and_run(self, name: str = "app", am_mb: int = 1, **submission: Any) -> Master:
        return self.run(self.submit(name, am_mb, **submission))


class Master:
    """An application master, which does what the test says."""

    def __init__(self, yarn: Yarn, attempt: str, container: RMContainer | None) -> None:
        """`container`: None: the cluster does not run it."""
        self._yarn = yarn
        self._masters = yarn.manager.masters
        self.attempt = attempt
        self.app_id = application_of(attempt)
        self.container = container
        self.kept: list[str] = []  # containers of earlier attempts, from the response to its registration

    def register(self) -> None:
        answer = self._yarn.do(
            lambda: self._masters.register_application_master(self.attempt, "host", 1234, "http://host")
        )
        self.kept = [container.entity for container in answer.containers_from_previous_attempts]

    def allocate(self, *asks: ContainerRequest, **more: Any) -> AllocateResponse:
        return self._yarn.do(lambda: self._masters.allocate(self.attempt, asks, **more))

    def get(self, *asks: ContainerRequest, **more: Any) -> list[RMContainer]:
        """Ask, and fetch what there is for that, or for what was asked before."""
        return list(self.allocate(*asks, **more).allocated)

    def get_running(self, *asks: ContainerRequest) -> list[RMContainer]:
        """As `get`; their nodes have started them."""
        containers = self.get(*asks)
        self._yarn.launch(*containers)
        return containers

    def finish(self, **more: Any) -> bool:
        """Unregister; its container, if it has one, goes on."""
        return self._yarn.do(lambda: self._masters.finish_application_master(self.attempt, **more))

    def finish_and_exit(self, **more: Any) -> None:
        self.finish(**more)
        assert self.container is not None
        self._yarn.end(self.container)


def ask(memory_mb: int = 1, **more: Any) -> ContainerRequest:
    """For a task's container."""
    return ContainerRequest(more.pop("resource", Resource(memory_mb, 1)), kind="task", **more)


def first_attempt(app_id: str) -> str:
    return attempt_id(app_id, 1)


def hosts_of(containers: Iterable[RMContainer]) -> list[str]:
    return [_host(container) for container in containers]


def _host(container: RMContainer) -> str:
    return container.node.rpartition(":")[0]
