"""Replays a workload in virtual time: months of trace in seconds, with the same journal each time."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dispatcher import JournalWriter
from dispatcher.journal import write_run_config
from dispatcher.mailbox import ManualClock
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.config import ResourceManagerConfig
from statemachines.resourcemanager.machines.states import FINAL_STATES, RMAppState
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.queues import Queues, for_workload
from statemachines.simulation.workload import Workload

_FINAL = frozenset(state.name for state in FINAL_STATES)


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """A snapshot of a replay."""

    virtual_ms: int
    wall_s: float
    events: int
    applications_by_state: dict[str, int]
    containers: int

    @property
    def ended(self) -> int:
        """Applications in a final state."""
        return sum(count for state, count in self.applications_by_state.items() if state in _FINAL)

    @property
    def events_per_s(self) -> float:
        return self.events / self.wall_s if self.wall_s > 0 else 0.0


class Replay:
    """One run of a workload: `start`, `wait`, `stop`; or `run`, which does all three.

    Any thread may call `progress`. `on_done` is called once, on the handler thread, when no event and no deadline is
    left.
    """

    def __init__(
        self,
        workload: Workload,
        config: ResourceManagerConfig | None = None,
        *,
        journal_path: Path | None = None,
        on_done: Callable[[], None] = lambda: None,
        clock: ManualClock | None = None,
        recorder: TransitionRecorder | None = None,
    ) -> None:
        """`clock`: advanced by the replay only; `recorder`: as for a ResourceManager.

        The capacity scheduler without configured queues gets the workload's, as in a sweep.

        Raises:
            ConfigError: the configuration is invalid, or the workload's queues do not form a tree.
            JournalError: the journal cannot be written.
        """
        self.workload = workload
        configured = config or ResourceManagerConfig()
        self._config = for_workload(configured, workload)
        self.derived_queues: Queues = () if self._config is configured else self._config.scheduler.queues
        """The queues that come from the workload; none if they were configured, or the scheduler has none."""
        self._clock = clock or ManualClock()
        self._done = threading.Event()
        self._on_done = on_done
        journal = None
        if journal_path is not None:
            journal = JournalWriter(journal_path, self._config.journal)
            write_run_config(journal.path, self._config, f"A replay of the workload {workload.name} in virtual time.")
        self.manager = ResourceManager(
            self._config,
            node_managers=SimulatedCluster,
            clock=self._clock,
            journal=journal,
            recorder=recorder,
            on_idle=self._idle,
        )
        # Before the start, so that the handler thread is not idle before the workload has joined.
        self.waits = self.manager.bring(workload)
        self._started_s = 0.0  # the thread that starts and stops the replay writes; any thread reads
        self._stopped_s: float | None = None  # written and read as _started_s

    def start(self) -> None:
        self.manager.init()
        self._started_s = time.perf_counter()
        self.manager.start()

    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until done; also True if the handler thread has ended."""
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        # In slices: a handler thread that failed never sets the event.
        while not self._done.wait(max(0.0, min(0.2, deadline_s - time.monotonic()))):
            if self.manager.dispatcher.is_stopped():
                return True
            if time.monotonic() >= deadline_s:
                return False
        return True

    def stop(self) -> None:
        """Drain and stop the resource manager, and close the journal, at any time. Virtual time stops."""
        self.manager.stop()
        self._stopped_s = self._stopped_s or time.perf_counter()

    def run(self) -> ReplayProgress:
        """Start, wait until done, stop. Raises what made the handler thread fail."""
        self.start()
        try:
            self.wait()
        finally:
            self.stop()
        self.raise_failure()
        return self.progress()

    def raise_failure(self) -> None:
        """Raise what made the handler thread fail, if it did."""
        failure = self.manager.dispatcher.failure_cause
        if failure is not None:
            raise failure

    def progress(self) -> ReplayProgress:
        """Any thread; a snapshot while it runs."""
        machines = self.manager.recorder.machines
        apps, containers = machines.get("RMApp"), machines.get("RMContainer")
        end_s = self._stopped_s if self._stopped_s is not None else time.perf_counter()
        return ReplayProgress(
            virtual_ms=self._clock.current_processing_time(),
            wall_s=end_s - self._started_s,
            events=self.manager.dispatcher.stats().handled,
            applications_by_state={s: n for s, n in apps.entities().items() if n} if apps is not None else {},
            containers=containers.created if containers is not None else 0,
        )

    def waiting(self) -> list[str]:
        """After the end: the pending requests and their reasons, in the order of service."""
        scheduler = self.manager.context.scheduler
        return [
            f"{attempt_id} waits for {request.resource}: {scheduler.why_waiting(attempt_id, request)}"
            for attempt_id, request in scheduler.waiting()
        ]

    def refusals(self) -> Counter[str]:
        """After the end: why applications were refused, with their number, of those that are still known."""
        apps = self.manager.context.apps.values()
        return self.waits.refused + Counter(
            "; ".join(app.diagnostics) for app in apps if app.state is RMAppState.FAILED and not app.attempts
        )

    def _idle(self) -> None:
        if not self._done.is_set():  # the handler thread may wake again, without an event, until it is stopped
            self._done.set()
            self._on_done()
