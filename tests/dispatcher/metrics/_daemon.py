"""A daemon that shows every metric of a dispatcher, in trouble as the test says."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, MetricsServer, register_metrics
from dispatcher.config import MetricsConfig
from statemachines import StateMachineFactory, TransitionRecorder

from ..conftest import TIMEOUT_S


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


class Entity:
    machine = "Job"
    entity = "job_1"


class Daemon:
    """A journaled dispatcher in write-ahead mode with a state machine, and two with bounded queues.

    `STARTED` makes a transition, `BROKEN` one that its machine refuses, `HUNG` waits until the test opens `opened`,
    `SLOW` takes 5 ms.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.opened = threading.Event()
        self._never = threading.Event()
        self.journal = JournalWriter(folder, JournalConfig(write_ahead=True, failure_policy="continue"))
        recorder = TransitionRecorder(self.journal)
        self._machine = FACTORY.make(Entity(), listener=recorder)  # of the central handler thread
        self.central = AsyncDispatcher(self._config(), name="central", journal=self.journal)
        self.central.register(Job, self._handle, events=JobEvent)
        self.bounded = AsyncDispatcher(self._config(queue_capacity=2000, queue_full_policy="reject"), name="bounded")
        self.bounded.register(Job, self._wait)
        self.newest = AsyncDispatcher(self._config(queue_capacity=1, queue_full_policy="drop_oldest"), name="newest")
        self.newest.register(Job, self._wait)
        registry = CollectorRegistry()
        register_metrics(self.central, registry, [recorder])
        register_metrics(self.bounded, registry)
        register_metrics(self.newest, registry)
        server = MetricsServer(MetricsConfig(port=port), registry)
        self._services = (server, self.central, self.bounded, self.newest)

    def __enter__(self) -> Daemon:
        for service in self._services:
            service.init()
            service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()
        for service in self._services:
            service.stop()

    @staticmethod
    def _config(**options: Any) -> DispatcherConfig:
        return DispatcherConfig(handler_warn_after_s=0.004, drain_timeout_s=10.0, **options)

    @staticmethod
    def post(dispatcher: AsyncDispatcher, *types: Job) -> None:
        for each in types:
            dispatcher.event_handler.handle(JobEvent(each))

    def _handle(self, event: JobEvent) -> None:
        self._wait(event)
        if event.type in (Job.STARTED, Job.BROKEN):
            self._machine.do_transition(event.type, event)

    def _wait(self, event: JobEvent) -> None:
        if event.type is Job.HUNG:
            assert self.opened.wait(10 * TIMEOUT_S)
        elif event.type is Job.SLOW:
            self._never.wait(0.005)
