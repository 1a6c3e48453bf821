"""Node managers and masters as a LiveCluster has them. They do as YARN's do, but for what a course makes them do.

Threading: on the handler thread of the resource manager that there is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from dispatcher import DispatcherError
from statemachines.resourcemanager import (
    ApplicationMasterNotRegisteredError,
    ContainerRequest,
    ContainerStatus,
    InvalidApplicationMasterRequestError,
    InvalidResourceRequestError,
    NMContainerStatus,
    Resource,
    ResourceManager,
    RMContainer,
    UnknownAttemptError,
)
from statemachines.simulation.workload import NodeSpec

from ..inner import (
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_SUCCESS,
    FINAL_STATES,
    NodeAction,
    NodeRefusedError,
    application_of,
    attempt_of,
    node_id,
)

HEARTBEAT_MS = 300
RESTART_MS = 700
EXIT_FAILURE = 1
SMALL = Resource(1, 1)


@dataclass(frozen=True)
class Task:
    resource: Resource
    duration_ms: int
    host: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a client submits, and what its master does."""

    queue: str = "a"
    tasks: tuple[Task, ...] = ()
    end: str = "finish"
    """How it ends once its tasks have: it may `finish`, `crash`, `linger` after unregistering, `stay` or fall
    `silent`."""
    register_ms: int | None = 100
    """So long after its start; 0: while it is started. None: never."""
    work_ms: int = 0
    """So long after its start it ends, at the earliest."""
    master: Resource = SMALL
    user: str = "ann"
    max_attempts: int = 2
    priority: int = 0
    lifetime_s: int | None = None
    keeps: bool = False
    """Its containers outlive an attempt."""
    unmanaged: bool = False
    forgets: bool = False
    """It does not start its first container."""


class Outside(Protocol):
    """What nodes and masters need of their cluster."""

    manager: ResourceManager
    lives: int
    """Resource managers before this one."""
    masters: dict[str, Master]
    """By attempt."""

    @property
    def nodes(self) -> dict[str, Node]: ...

    def now_ms(self) -> int: ...

    def later(self, delay_ms: int, action: Callable[[], None]) -> None: ...


class Node:
    """One node manager, with the containers that run there."""

    def __init__(self, cluster: Outside, spec: NodeSpec) -> None:
        self._cluster = cluster
        self.spec = spec
        self.id = node_id(spec.host)
        self.running: dict[str, NMContainerStatus] = {}
        self.completed: dict[str, NMContainerStatus] = {}  # until it is told to forget them
        self.is_well = True
        self.is_registered = False
        self.silent_until_ms = 0  # its containers run
        self.refusals = 0  # so many launches fail
        self.loses_answer = False  # to its next heartbeat
        self._down_until_ms = 0
        self._response_id = 0
        self._launched: list[str] = []
        self._finished: list[ContainerStatus] = []
        self._resized: dict[str, Resource] = {}

    def start(self, container: RMContainer) -> None:
        """Raises ConnectionError."""
        if self._is_down() or self.refusals:
            self.refusals = max(0, self.refusals - 1)
            raise ConnectionError(f"{self.id} starts nothing")
        request = container.request
        self.running[container.entity] = NMContainerStatus(
            container.entity, request.resource, request.priority, kind=request.kind
        )
        self._launched.append(container.entity)

    def end(self, container_id: str, exit_status: int) -> None:
        report = self.running.pop(container_id, None)
        if report is None:
            return
        status = ContainerStatus(container_id, exit_status)
        self.completed[container_id] = report._replace(status=status)
        self._finished.append(status)
        master = self._cluster.masters.get(attempt_of(container_id))
        if master is not None and master.container == container_id:
            master.is_gone = True

    def fail_to_start(self, container_id: str) -> None:
        """It reports the end of a container of which it has not reported the start."""
        if container_id in self._launched:
            self._launched.remove(container_id)
            self.end(container_id, EXIT_FAILURE)

    def stop(self) -> None:
        """It has nothing any more, and is started again after a while."""
        for container_id in list(self.running):
            self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
        self.completed.clear()
        self._forget_news()
        self.is_registered = False
        self._down_until_ms = self._cluster.now_ms() + RESTART_MS

    def restart(self, **changes: object) -> None:
        """At once, as another one of its host."""
        self.stop()
        self.spec = replace(self.spec, **changes)  # type: ignore[arg-type]
        self._down_until_ms = 0

    def repair(self) -> None:
        self.is_well, self.refusals, self.silent_until_ms, self._down_until_ms = True, 0, 0, 0

    def beat(self) -> None:
        """Register or report, unless it is down or silent."""
        self._cluster.later(HEARTBEAT_MS, self.beat)
        if not self._is_down() and self.silent_until_ms <= self._cluster.now_ms():
            self.call()

    def call(self, *, out_of_turn: bool = False) -> None:
        try:
            if self.is_registered:
                self._report(self._response_id + (7 if out_of_turn else 0))
            else:
                self.register()
        except NodeRefusedError:
            self.stop()

    def register(self, running: Iterable[str] | None = None) -> None:
        """`running`: what it says to run; None: what does."""
        self._forget_news()
        containers = (*self.running.values(), *self.completed.values())
        apps = dict.fromkeys(map(_application_of, self.running if running is None else running))
        self._cluster.manager.tracker.register_node(self.spec, containers, tuple(apps), self.is_well)
        self._response_id, self.is_registered = 0, True

    def _is_down(self) -> bool:
        return self._cluster.now_ms() < self._down_until_ms

    def _forget_news(self) -> None:
        self._launched, self._finished, self._resized = [], [], {}

    def _report(self, response_id: int) -> None:
        launched, finished, resized = tuple(self._launched), tuple(self._finished), tuple(self._resized.items())
        answer = self._cluster.manager.tracker.heartbeat(
            self.id, launched, finished, self.is_well, frozenset(self.running), resized, response_id
        )
        if self.loses_answer:  # it reports the same again, and gets the same answer
            self.loses_answer = False
            return
        self._forget_news()
        if answer.action is NodeAction.SHUTDOWN:
            self.stop()
            return
        if answer.action is NodeAction.RESYNC:
            self.register()
            return
        self._response_id = answer.response_id
        for container_id, size in answer.containers_to_update.items():
            if container_id in self.running:
                self.running[container_id] = self.running[container_id]._replace(resource=size)
                self._resized[container_id] = size
        for container_id in [*answer.containers_to_clean, *[id for id, _ in answer.containers_to_signal]]:
            self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
        for container_id in answer.containers_to_forget:
            self.completed.pop(container_id, None)
        for app_id in answer.apps_to_clean:
            for container_id in [id for id in self.running if _application_of(id) == app_id]:
                self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
            for container_id in [id for id in self.completed if _application_of(id) == app_id]:
                del self.completed[container_id]


def _application_of(container_id: str) -> str:
    return application_of(attempt_of(container_id))


class Master:
    """One application master: asks for a container for each task until one has ended well."""

    def __init__(self, cluster: Outside, attempt: str, plan: Plan, container: str | None) -> None:
        self._cluster = cluster
        self.attempt = attempt
        self.container = container
        """None: it is unmanaged."""
        self.is_gone = False
        self.running: dict[str, int] = {}  # task by container
        self._plan = plan
        self._is_registered = False
        self._to_ask = set(range(len(plan.tasks)))  # numbers of tasks
        self._asked: set[int] = set()
        self._left = set(range(len(plan.tasks)))
        self._forgets = plan.forgets
        self._unstarted: set[str] = set()  # containers
        self._end_ms = cluster.now_ms() + plan.work_ms

    def begin(self) -> None:
        if self._plan.register_ms is not None:
            if self._plan.register_ms == 0:
                self._step()
            self._cluster.later(self._plan.register_ms or HEARTBEAT_MS, self.tick)

    def tick(self) -> None:
        if self.is_gone:
            return
        self.call(self._step)
        if self._is_registered and not self._left and self._plan.end == "silent":
            return
        self._cluster.later(HEARTBEAT_MS, self.tick)

    def call(self, function: Callable[[], None]) -> None:
        """Do what its resource manager answers with an error to if it does not know it."""
        try:
            function()
        except ApplicationMasterNotRegisteredError:
            self._is_registered = False
        except InvalidResourceRequestError:  # nodes have become smaller: it can never do its work
            self.exit(EXIT_FAILURE)
        except UnknownAttemptError:
            app = self._cluster.manager.context.apps.get(application_of(self.attempt))
            if self.container is not None or app is None or app.state in FINAL_STATES:
                self.exit(EXIT_FAILURE)  # an unmanaged one may be too early

    def exit(self, exit_status: int) -> None:
        self.is_gone = True
        if self.container is not None:
            for node in self._cluster.nodes.values():
                node.end(self.container, exit_status)

    def register(self) -> None:
        self._cluster.manager.masters.register_application_master(self.attempt, "host", 1, "http://host")
        # Whoever was asked is gone, and so is whoever would say of a container that it was not started.
        self._to_ask |= self._asked | {self.running.pop(each) for each in self._unstarted & self.running.keys()}
        self._asked, self._unstarted = set(), set()

    def finish(self) -> None:
        if self._cluster.manager.masters.finish_application_master(self.attempt) and self._plan.end != "linger":
            self.exit(EXIT_SUCCESS)

    def allocate(self, releases: Iterable[str] = (), resizes: Iterable[tuple[str, Resource]] = ()) -> None:
        if self._cluster.lives:
            self._look_after_tasks()
        asks = [self._request(task) for task in sorted(self._to_ask)]
        response = self._cluster.manager.masters.allocate(
            self.attempt, asks, releases, 0.5, resizes=resizes, tracking_url="http://master"
        )
        self._asked |= self._to_ask
        self._to_ask = set()
        for container in response.allocated:
            self._asked.discard(container.request.tag)
            self._start(container)
        for status in response.finished:
            task = self.running.pop(status.container, None)
            if task is not None and status.exit_status == EXIT_SUCCESS:
                self._left.discard(task)
            elif task is not None:
                self._to_ask.add(task)

    def _look_after_tasks(self) -> None:
        """Of what ended while there was no resource manager, nobody tells it but the task itself."""
        context = self._cluster.manager.context
        heard_of = {status.container for _, status in context.attempts[self.attempt].finished_containers}
        alive = {container_id for node in self._cluster.nodes.values() for container_id in node.running}
        for container_id in self.running.keys() - heard_of - alive - context.containers.keys():
            self._to_ask.add(self.running.pop(container_id))

    def _step(self) -> None:
        if not self._is_registered:
            with contextlib.suppress(InvalidApplicationMasterRequestError):  # it has registered, and lost the answer
                self.register()
            self._is_registered = True
        elif self._left or self._cluster.now_ms() < self._end_ms or self._plan.end in ("stay", "silent"):
            self.allocate()
        elif self._plan.end == "crash":
            self.exit(EXIT_FAILURE)
        else:
            self.finish()

    def _request(self, task: int) -> ContainerRequest:
        wanted = self._plan.tasks[task]
        return ContainerRequest(wanted.resource, host=wanted.host, kind="task", tag=task)

    def _start(self, container: RMContainer) -> None:
        container_id = container.entity
        self.running[container_id] = task = container.request.tag
        node = self._cluster.nodes[container.node]
        try:
            if self._forgets:
                self._forgets = False
                raise ConnectionError
            node.start(container)
        except ConnectionError:  # it expires, or its node is lost
            self._unstarted.add(container_id)
        else:
            self._cluster.later(self._plan.tasks[task].duration_ms, lambda: node.end(container_id, EXIT_SUCCESS))


def suppressed(action: Callable[[], object]) -> None:
    """Do it; what a service refuses is refused."""
    with contextlib.suppress(DispatcherError):
        action()
