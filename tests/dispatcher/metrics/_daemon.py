"""A daemon that shows every metric of a dispatcher and of a resource manager, in trouble as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    MetricsConfig,
    MetricsServer,
    register_metrics,
)
from statemachines import StateMachineFactory, TransitionRecorder
from statemachines.resourcemanager import ApplicationSubmission, Resource, ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.read.series import ClusterSeries
from statemachines.resourcemanager.statestore.store import MemoryRMStateStore
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.workload import ApplicationSpec, NodeSpec, Outcome

from ...kit import TIMEOUT_S


class Job(Enum):
    STARTED = 1
    BROKEN = 2
    HUNG = 3
    SLOW = 4


class JobState(Enum):
    NEW = 1
    RUNNING = 2


@dataclass
class JobEvent:
    type: Job
    entity: str = "job_1"


FACTORY = (
    StateMachineFactory(JobState.NEW, name="Job")
    .add_transition(JobState.NEW, JobState.RUNNING, Job.STARTED)
    .add_transition(JobState.RUNNING, JobState.RUNNING, Job.STARTED)
    .install_topology()
)


SIZE = Resource(10, 1000)
CLUSTER = {
    "name": "cluster",
    "metrics": {"enabled": False},
    "nm_heartbeat_interval_ms": 100,
    "nm_expiry_interval_s": 2,
    "simulation": {"am_register_delay_ms": 1},
}


class Entity:
    machine = "Job"
    entity = "job_1"


class Store(MemoryRMStateStore):
    fails = False

    def is_failing(self) -> bool:
        return self.fails

    def slow_s(self) -> float | None:
        return 2.0 if self.fails else None


def _refuse(_: object) -> None:
    raise LookupError("lost")


class Daemon:
    """A journaled dispatcher in write-ahead mode with a state machine, and two with bounded queues.

    `STARTED` makes a transition, `BROKEN` one that its machine refuses, `HUNG` waits until the test opens `opened`,
    `SLOW` takes 5 ms. And a resource manager with one node.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.opened = threading.Event()
        self._never = threading.Event()
        self.journal = JournalWriter(folder, JournalConfig(write_ahead=True, failure_policy="continue"))
        recorder = TransitionRecorder(self.journal)
        self.store = Store()
        self._machine = FACTORY.make(Entity(), listener=recorder)  # of the central handler thread
        self.central = AsyncDispatcher(self._config(), name="central", journal=self.journal)
        self.central.register(Job, self._handle, events=JobEvent)
        self.bounded = AsyncDispatcher(self._config(queue_capacity=2000, queue_full_policy="reject"), name="bounded")
        self.bounded.register(Job, self._wait)
        self.newest = AsyncDispatcher(self._config(queue_capacity=1, queue_full_policy="drop_oldest"), name="newest")
        self.newest.register(Job, self._wait)
        self.losing = AsyncDispatcher(self._config(), name="losing", dead_letters=_refuse)
        self.losing.register(Job, _refuse)
        registry = CollectorRegistry()
        register_metrics(self.central, registry, [recorder, self.store])
        register_metrics(self.bounded, registry)
        register_metrics(self.newest, registry)
        register_metrics(self.losing, registry)
        self.manager = manager = ResourceManager(
            ResourceManagerConfig.model_validate(CLUSTER), node_managers=SimulatedCluster
        )
        series = ClusterSeries(manager)
        register_metrics(manager.dispatcher, registry, [manager.recorder, manager.store, series])
        server = MetricsServer(MetricsConfig(port=port), registry)
        self._services = (server, self.central, self.bounded, self.newest, self.losing, series, manager)

    def __enter__(self) -> Daemon:
        for service in self._services:
            service.start()
        self._in_cluster(lambda cluster: cluster.add_node(NodeSpec("n1", SIZE)))
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()
        for service in reversed(self._services):
            service.stop()

    def trouble_the_cluster(self) -> None:
        """A node that falls silent, and an application that finds no room."""
        self.manager.context.call(lambda: self.manager.tracker.register_node(NodeSpec("n2", Resource(1, 1000))))
        for name in ("first", "waits"):
            submission = ApplicationSubmission(name, SIZE)
            self._submit(submission, ApplicationSpec(name, 0, SIZE, am_duration_ms=None))

    def fail_application(self) -> None:
        """An application ends as FAILED, unless the cluster is in trouble."""
        submission = ApplicationSubmission("fails", Resource(1, 1), max_attempts=1)
        self._submit(submission, ApplicationSpec("fails", 0, Resource(1, 1), outcome=Outcome.FAILED))

    def _submit(self, submission: ApplicationSubmission, spec: ApplicationSpec) -> None:
        def submit(cluster: SimulatedCluster) -> None:
            cluster.specs[self.manager.clients.submit_application(submission)] = spec

        self._in_cluster(submit)

    def _in_cluster(self, action: Callable[[SimulatedCluster], object]) -> None:
        cluster = self.manager.node_managers
        assert isinstance(cluster, SimulatedCluster)
        self.manager.context.call(lambda: action(cluster))

    @staticmethod
    def _config(**options: Any) -> DispatcherConfig:
        return DispatcherConfig(handler_warn_after_s=0.004, drain_timeout_s=10.0, **options)

    @staticmethod
    def post(dispatcher: AsyncDispatcher, *types: Job) -> None:
        for each in types:
            dispatcher.post(JobEvent(each))

    def _handle(self, event: JobEvent) -> None:
        self._wait(event)
        if event.type in (Job.STARTED, Job.BROKEN):
            self._machine.do_transition(event.type, event)

    def _wait(self, event: JobEvent) -> None:
        if event.type is Job.HUNG:
            assert self.opened.wait(10 * TIMEOUT_S)
        elif event.type is Job.SLOW:
            self._never.wait(0.005)
