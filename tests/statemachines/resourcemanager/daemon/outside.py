"""What lives on while resource managers die and come back: nodes, masters and clients, in the same virtual time.

They do as YARN's do: a node registers again with all that it has, a master that is told to registers again and asks
anew for what it has not got, a client repeats a submission that was not acknowledged.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from statemachines.resourcemanager import (
    ApplicationMasterNotRegisteredError,
    ApplicationSubmission,
    ContainerRequest,
    ContainerStatus,
    FinalApplicationStatus,
    InvalidApplicationMasterRequestError,
    NMContainerStatus,
    Resource,
    ResourceManager,
    RMAppState,
    RMContainer,
    UnknownAttemptError,
)
from statemachines.simulation.workload import NodeSpec

from ..inner import EXIT_KILLED_BY_RESOURCEMANAGER, EXIT_SUCCESS, FINAL_STATES, NodeAction, NodeManagers

HEARTBEAT_MS = 400
NOT_STORED = {RMAppState.NEW, RMAppState.NEW_SAVING}


@dataclass(frozen=True)
class Job:
    """What a client submits, and what its master does."""

    name: str
    submit_ms: int = 0
    tasks: tuple[int, ...] = ()
    """How long each of its containers runs, ms."""
    fails: bool = False
    """Its master ends without having unregistered."""
    kill_ms: int | None = None
    """When its client wants it killed."""
    submission: dict[str, Any] = field(default_factory=dict)


class NodeManager:
    """One node: its containers run, whoever manages resources."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        self._world = world
        self.spec = spec
        self.id = ""  # given when it registers
        self.running: dict[str, NMContainerStatus] = {}
        self.completed: dict[str, NMContainerStatus] = {}  # until it is told to forget them
        self._launched: list[str] = []
        self._finished: list[ContainerStatus] = []

    def start(self, container: RMContainer) -> None:
        request = container.request
        self.running[container.entity] = NMContainerStatus(
            container.entity, request.resource, request.priority, None, request.kind, container.gpu_devices
        )
        self._launched.append(container.entity)
        self._world.container_ids.append(container.entity)

    def end(self, container_id: str, exit_status: int) -> None:
        report = self.running.pop(container_id, None)
        if report is not None:
            status = ContainerStatus(container_id, exit_status)
            self.completed[container_id] = report._replace(status=status)
            self._finished.append(status)
            self._world.stopped(container_id, exit_status)

    def register(self) -> None:
        self._launched, self._finished = [], []
        containers = (*self.running.values(), *self.completed.values())
        apps = dict.fromkeys(_application_of(container_id) for container_id in self.running)
        self.id = self._world.manager.tracker.register_node(self.spec, containers, tuple(apps))

    def heartbeat(self) -> None:
        launched, finished = tuple(self._launched), tuple(self._finished)
        self._launched, self._finished = [], []
        answer = self._world.manager.tracker.heartbeat(self.id, launched, finished, running=frozenset(self.running))
        if answer.action is NodeAction.RESYNC:
            self.register()
        for container_id in answer.containers_to_clean:
            self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
        for container_id in answer.containers_to_forget:
            self.completed.pop(container_id, None)
        for app_id in answer.apps_to_clean:
            for container_id in [id for id in self.running if _application_of(id) == app_id]:
                self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)
            for container_id in [id for id in self.completed if _application_of(id) == app_id]:
                del self.completed[container_id]


class Master:
    """One application master: asks for a container for each task, and finishes when all have ended."""

    def __init__(self, world: World, container: RMContainer, job: Job) -> None:
        self._world = world
        self._job = job
        self.container = container.entity
        self.attempt = container.attempt
        self._is_registered = False
        self._to_ask = set(range(len(job.tasks)))  # numbers of tasks
        self._asked: set[int] = set()
        self._running: dict[str, int] = {}  # task by container
        self._left = set(range(len(job.tasks)))
        self._has_finished = False

    def tick(self) -> None:
        """Its next step, as long as its container runs."""
        masters = self._world.manager.masters
        try:
            if not self._is_registered:
                self._register()
            elif self._left:
                self._allocate()
            elif self._job.fails:
                self._world.end(self.container, 1)
            elif masters.finish_application_master(self.attempt, final_status=FinalApplicationStatus.SUCCEEDED):
                self._world.end(self.container, EXIT_SUCCESS)
        except ApplicationMasterNotRegisteredError:
            self._is_registered = False
            self._to_ask |= self._asked  # whoever was asked is gone
            self._asked = set()
        except UnknownAttemptError:
            self._world.end(self.container, 1)

    def _register(self) -> None:
        with contextlib.suppress(InvalidApplicationMasterRequestError):  # it has registered, and lost the answer
            self._world.manager.masters.register_application_master(self.attempt, "host", 1, "http://host")
        self._is_registered = True

    def _allocate(self) -> None:
        asks = [ContainerRequest(Resource(1, 1), kind="task", tag=task) for task in sorted(self._to_ask)]
        self._asked |= self._to_ask
        self._to_ask = set()
        response = self._world.manager.masters.allocate(self.attempt, asks)
        for container in response.allocated:
            task = container.request.tag
            self._asked.discard(task)
            self._running[container.entity] = task
            self._world.start_task(container, self.attempt, task, self._job.tasks[task])
        for status in response.finished:
            task_ended = self._running.pop(status.container, None)
            if task_ended is not None and status.exit_status == EXIT_SUCCESS:
                self._left.discard(task_ended)
            elif task_ended is not None:
                self._to_ask.add(task_ended)


class Client:
    """Submits one application, and looks after it until it has ended."""

    def __init__(self, world: World, job: Job) -> None:
        self._world = world
        self.job = job
        self.id: str | None = None
        self.is_acknowledged = False
        self.has_killed = False

    def tick(self) -> None:
        context, clients = self._world.manager.context, self._world.manager.clients
        app = context.apps.get(self.id) if self.id is not None else None
        if app is None:
            assert not self.is_acknowledged, f"{self.id} was acknowledged, and is lost"
            self.id = self.id or clients.get_new_application()
            self._world.jobs[self.id] = self.job
            resource = Resource(1, 1)
            clients.submit_application(
                ApplicationSubmission(self.job.name, resource, application_id=self.id, **self.job.submission)
            )
            return
        self.is_acknowledged |= app.state not in NOT_STORED
        kill_ms = self.job.kill_ms
        if kill_ms is not None and context.now_ms() >= kill_ms and app.state not in FINAL_STATES:
            self.has_killed = True
            clients.force_kill_application(app.entity)

    def has_ended(self) -> bool:
        """The cluster says so, now."""
        app = self._world.manager.context.apps.get(self.id) if self.id is not None else None
        return app is not None and app.state in FINAL_STATES


class World(NodeManagers):
    """Everything outside of the resource manager. Its parts run on the handler thread of the one there is now."""

    def __init__(self, nodes: int, *jobs: Job) -> None:
        self.now_ms = 0
        self.manager: ResourceManager
        self._order = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.jobs: dict[str, Job] = {}  # by application
        self.nodes = [NodeManager(self, NodeSpec(f"n{number}", Resource(10, 10))) for number in range(nodes)]
        self.masters: dict[str, Master] = {}  # by container
        self.clients = [Client(self, job) for job in jobs]
        self.task_starts: Counter[tuple[str, int]] = Counter()  # by attempt and task
        self.launches: Counter[str] = Counter()  # of masters, by attempt
        self.container_ids: list[str] = []  # of all that were started
        self.exits: dict[str, int] = {}  # by container
        for client in self.clients:
            self._at(client.job.submit_ms, lambda client=client: self._tick_client(client))

    # -- as node managers are reached

    def start_container(self, container: RMContainer) -> None:
        self._node(container.node).start(container)
        self.launches[container.attempt] += 1
        master = self.masters[container.entity] = Master(self, container, self.jobs[container.application])
        self._later(100, lambda: self._tick_master(master))

    def stop_container(self, container_id: str) -> None:
        self.end(container_id, EXIT_KILLED_BY_RESOURCEMANAGER)

    def start_task(self, container: RMContainer, attempt: str, task: int, duration_ms: int) -> None:
        self._node(container.node).start(container)
        self.task_starts[attempt, task] += 1
        self._later(duration_ms, lambda: self.end(container.entity, EXIT_SUCCESS))

    def end(self, container_id: str, exit_status: int) -> None:
        for node in self.nodes:
            node.end(container_id, exit_status)

    def stopped(self, container_id: str, exit_status: int) -> None:
        self.masters.pop(container_id, None)
        self.exits[container_id] = exit_status

    def completed_as(self, exit_status: int) -> set[str]:
        """The containers that ended so."""
        return {container_id for container_id, status in self.exits.items() if status == exit_status}

    def lose_all(self) -> None:
        """All nodes are gone, and others come in their place, which have nothing."""
        for node in self.nodes:
            node.running.clear()
            node.completed.clear()
        self.masters.clear()

    def running(self) -> set[str]:
        """All containers of all nodes."""
        return {container_id for node in self.nodes for container_id in node.running}

    def _node(self, id: str) -> NodeManager:
        return next(node for node in self.nodes if node.id == id)

    # -- time

    def pass_time(self) -> None:
        """Do all that is due."""
        while self._agenda and self._agenda[0][0] <= self.manager.context.now_ms():
            heapq.heappop(self._agenda)[2]()

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._at(self.manager.context.now_ms() + delay_ms, action)

    def _at(self, time_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time_ms, next(self._order), action))

    def _tick_master(self, master: Master) -> None:
        if self.masters.get(master.container) is master:
            master.tick()
            self._later(HEARTBEAT_MS, lambda: self._tick_master(master))

    def _tick_client(self, client: Client) -> None:
        client.tick()
        if not client.has_ended():
            self._later(HEARTBEAT_MS, lambda: self._tick_client(client))

    def is_at_rest(self) -> bool:
        return not self.running() and all(client.has_ended() for client in self.clients)


def _application_of(container_id: str) -> str:
    parts = container_id.split("_")[-4:]
    return f"application_{parts[0]}_{parts[1]}"
