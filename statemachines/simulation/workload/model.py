"""A workload, independent of its file format, and how a resource manager gets it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttemptState
from statemachines.resourcemanager.records.errors import ApplicationNotFoundError, InvalidResourceRequestError
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.simulation.agenda import ScheduledCall
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.specs import ApplicationSpec

_LOOK_MS = 1000
"""Between two looks whether all applications have ended."""


@dataclass(slots=True)
class RecordedWaits:
    """How many applications wait in the replay that did not wait in the recorded cluster, and why.

    The two clusters may differ in scheduling rules, users or unrecorded capacity. Written by the handler thread, and
    read when it has ended.
    """

    at_once: int = 0
    """Applications whose master was placed without a wait in the recorded cluster."""
    waiting: int = 0
    """How many of these wait in the replay."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The scheduler's reasons when the waits began."""
    refused: Counter[str] = field(default_factory=Counter)
    """Why submissions were refused, with their number: the resource manager does not know these applications."""

    @property
    def share(self) -> float:
        """`waiting` as a share of `at_once`, 0 to 1."""
        return self.waiting / self.at_once if self.at_once else 0.0

    def check(self, context: RMContext, app_id: str) -> None:
        """Count a submitted application that was placed at once in the recorded cluster."""
        self.at_once += 1
        app = context.apps.get(app_id)
        attempt = app.current_attempt if app is not None else None
        if attempt is None or attempt.state is not RMAppAttemptState.SCHEDULED:
            return
        self.waiting += 1
        self.reasons[context.scheduler.why_waiting(attempt.entity, attempt.master_request()).cause.value] += 1


class WorkloadRunner:
    """The clients of a simulated cluster: registers nodes at once, submits applications at their times.

    Each application is taken from the iterable after the previous one was submitted, so a workload need not fit into
    memory. In real time they run at the configured speed, and again after their end if so configured. Handler thread
    only.
    """

    def __init__(
        self, manager: ResourceManager, nodes: Iterable[NodeSpec], applications: Iterable[ApplicationSpec]
    ) -> None:
        self._manager = manager
        self._context = manager.context
        self._clients = manager.clients
        self._nodes = nodes
        self._applications = applications
        self._left = iter(applications)
        settings = self._context.config.simulation
        self._speed = 1.0 if manager.in_virtual_time else settings.speed
        self._repeats = settings.repeat and not manager.in_virtual_time
        self._submitted = 0  # in this pass over the applications
        self._cluster: SimulatedCluster  # set by `start`
        self.waits: RecordedWaits = RecordedWaits()

    def start(self) -> None:
        """Register the nodes, and schedule the first application. The workload's time 0 is now."""
        self._cluster = SimulatedCluster.of(self._manager)
        self._cluster.start_ms = self._context.now_ms()
        for node in self._nodes:
            self._cluster.start_node(node)
        self._schedule_next()

    def _schedule_next(self) -> None:
        spec = next(self._left, None)
        if spec is not None:
            if self._speed != 1:
                spec = spec.faster(self._speed)
            self._cluster.agenda.at(self._cluster.start_ms + spec.submit_ms, self._submit, ScheduledCall(spec))
        elif self._repeats and self._submitted:
            self._repeat_later()

    def _repeat_later(self) -> None:
        self._cluster.agenda.at(self._context.now_ms() + _LOOK_MS, self._repeat, ScheduledCall(None))

    def _repeat(self, _: ScheduledCall) -> None:
        """Start over if all applications have ended."""
        if self._cluster.specs:
            self._repeat_later()
            return
        self._left, self._submitted = iter(self._applications), 0
        self._cluster.start_ms = self._context.now_ms()
        self._schedule_next()

    def _submit(self, call: ScheduledCall) -> None:
        spec: ApplicationSpec = call.about
        submission = ApplicationSubmission(
            spec.name, spec.am_resource, spec.user, spec.queue, spec.am_host, spec.gpu_models, spec.max_attempts
        )
        try:
            app_id = self._clients.submit_application(submission)
        except InvalidResourceRequestError as error:
            self.waits.refused[str(error)] += 1
            self._schedule_next()
            return
        self._submitted += 1
        self._cluster.specs[app_id] = spec
        if spec.kill_ms is not None:
            self._cluster.agenda.at(self._cluster.start_ms + spec.kill_ms, self._kill, ScheduledCall(app_id))
        if spec.recorded_wait_ms == 0:
            # 1 ms later, once all consequences of the submission have been handled.
            self._cluster.agenda.at(self._context.now_ms() + 1, self._check_wait, ScheduledCall(app_id))
        self._schedule_next()

    def _check_wait(self, call: ScheduledCall) -> None:
        self.waits.check(self._context, call.about)

    def _kill(self, call: ScheduledCall) -> None:
        with contextlib.suppress(ApplicationNotFoundError):  # it has ended and was forgotten
            self._clients.force_kill_application(call.about)


class WorkloadError(DispatcherError):
    """Raised when a workload file is invalid. You can show its one-line message to users."""

    def __init__(self, path: Path, problem: str, *, row: int | None = None, column: str | int | None = None) -> None:
        self.path = path
        self.row = row
        self.column = column
        self.problem = problem
        place = str(path)
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {problem}")


@dataclass(frozen=True, slots=True)
class Workload:
    """Nodes, and applications in the order of submission, which can be a generator for a single iteration."""

    name: str
    nodes: tuple[NodeSpec, ...]
    applications: Collection[ApplicationSpec]
    bad_rows: tuple[WorkloadError, ...] = field(default=())
    """The rows skipped by --skip-bad-rows."""
    remarks: tuple[str, ...] = field(default=())
    """Lines for the user about data in the files ignored by a replay."""

    @property
    def container_count(self) -> int:
        """Number of all containers, including the masters'."""
        return sum(1 + len(application.containers) for application in self.applications)

    def join(self, manager: ResourceManager) -> RecordedWaits:
        """Have a resource manager's handler thread register the nodes, and submit each application at its time.

        Any thread can call this. The workload's time 0 is when the handler thread starts it. If a resource manager has
        no node managers, it's connected to simulated ones. Returns the comparison of waits, to read after the end.
        """
        runner = WorkloadRunner(manager, self.nodes, self.applications)
        manager.dispatcher.mailbox_executor.execute(runner.start, "start of workload %s", self.name)
        return runner.waits
