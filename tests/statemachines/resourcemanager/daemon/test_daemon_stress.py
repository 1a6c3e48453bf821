"""A resource manager in real time under all that clients, administrators and nodes can do to it at once.

What happens is drawn with a seed; when it happens is not, so a run never repeats another. Whatever happened, all
applications end, nothing is left in anybody's books, no handler has failed, and no thread is left. Events that a state
does not take are allowed only where YARN's own tables have the same race.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher import DispatcherGroup
from statemachines.resourcemanager import (
    ApplicationRejectedError,
    ApplicationSubmission,
    Resource,
    ResourceManager,
    RMNodeEventType,
    resource_manager,
)
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Outcome, Workload

from ....kit import in_threads, until
from ...simulation.replays import TIMEOUT_S, config
from ..inner import (
    FINAL_STATES,
    InvalidRequestError,
    NodeRefusedError,
    NotFoundError,
    RMNodeEvent,
    SimulatedCluster,
    node_id,
)

pytestmark = pytest.mark.long

CLIENTS = 3
APPLICATIONS = 15
"""Of each client."""
NODES = tuple(NodeSpec(f"n{number}", Resource(100, 100), rack=f"/r{number % 2}") for number in range(3))
MASTER = Resource(1, 1)
QUEUES = ({"name": "default", "capacity": 50}, {"name": "fair", "capacity": 50, "ordering_policy": "fair"})
REFUSAL = re.compile(r"(\w+) \S+: no transition from (\w+) on (\w+)")


class Storm:
    """A resource manager, and all threads that make trouble."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.manager = ResourceManager(
            config(
                **{
                    "nm_heartbeat_interval_ms": 5,
                    "nm_expiry_interval_s": 1,
                    "simulation": {"am_register_delay_ms": 0},
                    "metrics": {"enabled": True, "port": 0},
                    "max_attempts": 3,
                    **settings,
                }
            ),
            node_managers=SimulatedCluster,
        )
        self._seed = seed
        self._ids: list[str] = []  # appended to by all clients
        self._clients_left = threading.Semaphore(0)
        self._is_over = threading.Event()
        (self.group,) = [service for service in self.manager.services if isinstance(service, DispatcherGroup)]

    def blow(self) -> None:
        self.manager.bring(Workload("nodes", NODES, ()))
        clients = [
            lambda number=number: self._be_client(random.Random(self._seed + number)) for number in range(CLIENTS)
        ]
        in_threads(*clients, self._be_administrator, self._scrape, self._await_clients)
        self.manager.context.call(self._restore)
        until(self._have_all_ended, "the end of all applications")
        until(lambda: not self.what_is_left(), "the end of all that they had")

    def _have_all_ended(self) -> bool:
        def look() -> bool:
            self._add_nodes()
            return all(app.state in FINAL_STATES for app in self.manager.context.apps.values())

        return bool(self.manager.context.call(look))

    def _await_clients(self) -> None:
        for _ in range(CLIENTS):
            assert self._clients_left.acquire(timeout=TIMEOUT_S)
        self._is_over.set()

    def _scrape(self) -> None:
        server = self.manager.metrics_server
        assert server is not None
        while not self._is_over.wait(0.01):
            with urllib.request.urlopen(server.url, timeout=TIMEOUT_S) as response:
                response.read()

    # -- clients ------------------------------------------------------------------------------------------------------

    def _be_client(self, draw: random.Random) -> None:
        try:
            for _ in range(APPLICATIONS):
                self._submit(draw)
                for _ in range(draw.randrange(4)):
                    self._disturb(draw)
        finally:
            self._clients_left.release()

    def _submit(self, draw: random.Random) -> None:
        manager = self.manager
        app_id = manager.clients.get_new_application()
        tasks = tuple(
            ContainerSpec(Resource(draw.choice([1, 1, 2, 60]), 1), draw.randrange(10), host=draw.choice([None, "n1"]))
            for _ in range(draw.randrange(6))
        )
        outcome = draw.choice([Outcome.FINISHED, Outcome.FINISHED, Outcome.FINISHED, Outcome.FAILED])
        spec = ApplicationSpec("job", 0, MASTER, tasks, outcome=outcome)
        manager.context.call(lambda: manager.node_managers.specs.update({app_id: spec}))
        self._ids.append(app_id)
        queue = draw.choice(QUEUES)["name"]
        submission = ApplicationSubmission("job", MASTER, draw.choice("uv"), str(queue), application_id=app_id)
        with contextlib.suppress(ApplicationRejectedError):  # another client has killed it
            assert manager.clients.submit_application(submission, TIMEOUT_S) == app_id

    def _disturb(self, draw: random.Random) -> None:
        clients, app_id = self.manager.clients, draw.choice(self._ids[-6:])
        deeds: list[Callable[[], Any]] = [
            lambda: clients.force_kill_application(app_id),
            lambda: clients.move_application_across_queues(app_id, draw.choice(["default", "fair", "none"])),
            lambda: clients.update_application_priority(app_id, draw.randrange(5)),
            lambda: clients.update_application_timeouts(app_id, draw.choice([100, None])),
            lambda: clients.get_applications(states=["RUNNING", "ACCEPTED"]),
            lambda: (clients.get_cluster_metrics(), clients.get_cluster_nodes(), clients.get_queue_info()),
            lambda: clients.fail_application_attempt(str(clients.get_application_report(app_id).attempt_id)),
            lambda: self._touch_containers(app_id, draw),
        ]
        with contextlib.suppress(NotFoundError, InvalidRequestError):  # it is too early, or too late
            draw.choice(deeds)()

    def _touch_containers(self, app_id: str, draw: random.Random) -> None:
        clients, context = self.manager.clients, self.manager.context
        for report in clients.get_containers(str(clients.get_application_report(app_id).attempt_id)):
            size = Resource(draw.randrange(1, 4), 1)
            context.call(lambda id=report.container_id, size=size: context.scheduler.request_resize(id, size))
            clients.signal_to_container(report.container_id, "GRACEFUL_SHUTDOWN")

    # -- administrators, and nodes ------------------------------------------------------------------------------------

    def _be_administrator(self) -> None:
        draw = random.Random(self._seed)
        while not self._is_over.wait(draw.uniform(0, 0.02)):
            spec = draw.choice(NODES)
            with contextlib.suppress(NodeRefusedError, NotFoundError):  # it is excluded, or gone
                self.manager.context.call(lambda spec=spec: draw.choice(self._deeds(spec, draw))())
            if draw.random() < 0.3:
                self.manager.context.call(self._repair)

    def _deeds(self, spec: NodeSpec, draw: random.Random) -> list[Callable[[], Any]]:
        manager, id = self.manager, node_id(spec.host)
        post, admin, tracker = manager.context.post, manager.admin, manager.tracker
        end = draw.choice([RMNodeEventType.EXPIRE, RMNodeEventType.REBOOTING, RMNodeEventType.SHUTDOWN])
        return [
            lambda: id in manager.context.nodes and post(RMNodeEvent(end, id)),
            lambda: tracker.heartbeat(id, healthy=False),
            lambda: tracker.register_node(spec),
            lambda: tracker.register_node(replace(spec, http_port=draw.randrange(8042, 8044))),
            lambda: admin.refresh_nodes([spec.host]),
            lambda: admin.refresh_nodes([spec.host], graceful=True, timeout_s=1),
            lambda: admin.update_node_resource(id, Resource(draw.choice([50, 100]), 100)),
            lambda: admin.replace_labels_on_node(id, draw.choice(["", "other"])),
        ]

    def _repair(self) -> None:
        """All nodes may come back, and do."""
        self.manager.admin.recommission([spec.host for spec in NODES])
        self._add_nodes()

    def _add_nodes(self) -> None:
        for spec in NODES:
            if node_id(spec.host) not in self.manager.context.nodes:
                self.manager.node_managers.add_node(spec)

    def _restore(self) -> None:
        """As they were."""
        self._repair()
        for spec in NODES:
            self.manager.admin.update_node_resource(node_id(spec.host), spec.capacity)
            self.manager.admin.replace_labels_on_node(node_id(spec.host), spec.partition)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def what_is_left(self) -> dict[str, Any]:
        """In anybody's books, though all applications have ended."""
        left: dict[str, Any] = self.manager.context.call(self._find_left)
        return {what: found for what, found in left.items() if found}

    def _find_left(self) -> dict[str, Any]:
        manager, context = self.manager, self.manager.context
        scheduler: Any = context.scheduler
        cluster: Any = manager.node_managers
        free = [(node.free_memory_mb, node.free_vcores_milli) for node in scheduler.nodes()]
        full = [(node.capacity.memory_mb, node.capacity.vcores_milli) for node in scheduler.nodes()]
        return {
            "containers": dict(context.containers),
            "attempts": dict(scheduler._books.attempts),
            "applications": [queue for queue in scheduler.queues() if queue.applications or queue.used.memory_mb],
            "waiting": scheduler.waiting(),
            "room": free != full,
            "on nodes": [
                node for node in context.nodes.values() if node.containers or node.running_apps or node.updates
            ],
            "running": [container for node in cluster._nodes.values() for container in node.running],
            "simulated": [*cluster._nodes_of_masters, *cluster._masters],
            "masters": list(manager.masters._masters),
            "monitored": [monitor.name for monitor in context.monitors[:2] if len(monitor)],
            "to be launched": len(context.container_allocation_expirer),
            "lifetimes": len(context.app_lifetime_monitor),
            "waiting clients": list(manager.clients.calls._waiting),
        }


def refused(manager: ResourceManager, caplog: pytest.LogCaptureFixture) -> set[tuple[str, ...]]:
    """Machine, state and event of all events that a state did not take."""
    found = [REFUSAL.match(record.getMessage()) for record in caplog.records]
    events = [match.groups() for match in found if match is not None]
    assert len(events) == sum(stats.invalid for stats in manager.recorder.machines.values())
    return set(events)


@pytest.mark.parametrize(
    ("seed", "scheduler", "capacity", "is_stored", "kept"),
    [
        (1, "fifo", None, False, 10_000),
        (2, "capacity", None, False, 0),
        (3, "fifo", 50, True, 2),
        (4, "capacity", 50, True, 10_000),
    ],
)
def test_whatever_happens_all_applications_end_and_leave_nothing(
    seed: int,
    scheduler: str,
    capacity: int | None,
    is_stored: bool,
    kept: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resource_manager, "_EXPIRE_EVERY_MS", 2)
    caplog.set_level(logging.ERROR)
    storm = Storm(
        seed,
        scheduler={"kind": scheduler, "queues": QUEUES, "maximum_am_resource_percent": 100, "node_locality_delay": 2},
        dispatcher={"queue_capacity": capacity},
        max_completed_applications=kept,
        state_store={"kind": "sqlite", "path": tmp_path / "state.db"} if is_stored else {},
    )
    threads = set(threading.enumerate())

    with storm.manager:
        storm.blow()

    for partition in storm.group.partitions:
        stats = partition.stats()
        assert (partition.failure_cause, stats.failed, stats.discarded) == (None, 0, 0), partition.name
    assert refused(storm.manager, caplog) == set()
    # The one that looks after all dispatchers of the process stays.
    assert {thread.name for thread in set(threading.enumerate()) - threads} <= {"dispatcher-monitor"}
