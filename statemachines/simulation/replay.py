"""Replays a workload in virtual time: months of trace in seconds, with the same journal each time."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher import JournalWriter
from dispatcher.journal.run_config import write_run_config
from dispatcher.mailbox import ManualClock
from dispatcher.util.figures import counted
from dispatcher.util.functions import require_kind
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.states import FINAL_STATES, RMAppState
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of
from statemachines.resourcemanager.scheduler.core.placement import NodeLooks
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk, quantities
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.queues import Queues, for_workload
from statemachines.simulation.workload import Workload

if TYPE_CHECKING:
    from statemachines.simulation.workload.model import RecordedWaits

_FINAL = frozenset(state.name for state in FINAL_STATES)
_MOST_LOOKS = 1_000
"""Of one report at the end: a second or two on 10,000 nodes."""
_FOR_CONTAINERS = frozenset({WaitCause.NO_ROOM, WaitCause.QUEUE_LIMIT, WaitCause.USER_LIMIT})
"""What the end of containers would change."""


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
        """Number of applications in a final state."""
        return sum(count for state, count in self.applications_by_state.items() if state in _FINAL)

    @property
    def events_per_s(self) -> float:
        """Events handled per second of real time."""
        return self.events / self.wall_s if self.wall_s > 0 else 0.0


class Replay:
    """One run of a workload: `start`, `wait`, `stop`, or `run`, which does all three.

    If you configure no queues, the capacity scheduler gets those of the workload, as in a sweep.

    `on_done`: called once, on the handler thread, when no event and no deadline is left.
    `clock`: advanced by the replay only.
    `recorder`: as for a ResourceManager.

    Any thread can call `progress`.

    Raises:
        ConfigError: the configuration is invalid, or the workload's queues don't form a tree.
        JournalError: the journal can't be written.
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
        require_kind(workload, "workload", Workload)
        self.workload = workload
        configured = config or ResourceManagerConfig()
        self._config = for_workload(configured, workload)
        self.derived_queues: Queues = () if self._config is configured else self._config.scheduler.queues
        """The queues that come from the workload, or none if they were configured or the scheduler has none."""
        self._clock = clock or ManualClock()
        self._done = threading.Event()
        self._on_done = on_done
        journal = None
        if journal_path is not None:
            journal = JournalWriter(journal_path, self._config.journal)
            write_run_config(journal.path, self._config, f"A replay of the workload {workload.name} in virtual time.")
        self.manager: ResourceManager = ResourceManager(
            self._config,
            node_managers=SimulatedCluster,
            clock=self._clock,
            journal=journal,
            recorder=recorder,
            on_idle=self._idle,
        )
        # Before the start, so that the handler thread is not idle before the workload has joined.
        self.waits: RecordedWaits = self.manager.bring(workload)
        self._started_s = 0.0  # the thread that starts and stops the replay writes; any thread reads
        self._stopped_s: float | None = None  # written and read as _started_s

    def start(self) -> None:
        """Start the resource manager and the simulated cluster."""
        self.manager.init()
        self._started_s = time.perf_counter()
        self.manager.start()

    def is_done(self) -> bool:
        """Whether all applications have ended."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until done, or the handler thread has ended, and return whether that's so."""
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
        """Start, wait until done, and stop. Raises the error that made the handler thread fail."""
        self.start()
        try:
            self.wait()
        finally:
            self.stop()
        self.raise_failure()
        return self.progress()

    def raise_failure(self) -> None:
        """Raise the error that made the handler thread fail, if it did."""
        failure = self.manager.dispatcher.failure_cause
        if failure is not None:
            raise failure

    def progress(self) -> ReplayProgress:
        """Return a snapshot while it runs. Thread-safe."""
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
        """After the end, return the pending requests and their reasons, equal ones together, in the order of service.

        It leaves out requests explained by `deadlock`.
        """
        explained = _FOR_CONTAINERS if self.deadlock() else frozenset()
        return [
            f"{attempt} waits for {_times(ask)}: {ask.sentence}"
            for attempt, asks in self._waiting_asks().items()
            for ask in asks
            if ask.reason.cause not in explained
        ]

    def deadlock(self) -> list[str]:
        """After the end, return a line that reports a deadlock, and one per application with containers in it.

        In a deadlock, all applications with containers wait for something that only their containers could give back.
        The list is empty without a deadlock, and if you stopped the replay before it was done, since something could
        still have ended.
        """
        if not self._done.is_set():
            return []
        context, asks_of = self.manager.context, self._waiting_asks()
        live = {attempt: context.scheduler.live_containers(attempt) for attempt in context.attempts}
        holders = {attempt: held for attempt, held in live.items() if held}
        causes = [{ask.reason.cause for ask in asks_of.get(attempt, ())} for attempt in holders]
        if not holders or not all(each and each <= _FOR_CONTAINERS for each in causes):
            return []
        everything = _holding(list(chain.from_iterable(holders.values())))
        head = f"Deadlock: every application with containers ({len(holders):,}) waits for more. They hold {everything}"
        others = len(asks_of) - len(holders)
        if others:
            head += f", and {others:,} more have no container"
        if self._config.scheduler.kind == "fifo":
            head += ". In queues of the capacity scheduler, maximum_am_resource_percent keeps room free of masters"
        return [head, *(_held_up(attempt, held, asks_of[attempt]) for attempt, held in holders.items())]

    def _waiting_asks(self) -> dict[str, list[WaitingAsk]]:
        """By attempt, in the order of service."""
        scheduler, looks = self.manager.context.scheduler, NodeLooks(_MOST_LOOKS)
        attempts = dict.fromkeys(attempt for attempt, _ in scheduler.waiting())
        return {attempt: scheduler.waiting_asks(attempt, looks) for attempt in attempts}

    def refusals(self) -> Counter[str]:
        """After the end, return why applications were rejected, with their number, for those still known."""
        apps = self.manager.context.apps.values()
        return self.waits.refused + Counter(
            "; ".join(app.diagnostics) for app in apps if app.state is RMAppState.FAILED and not app.attempts
        )

    def _idle(self) -> None:
        if not self._done.is_set():  # the handler thread may wake again, without an event, until it is stopped
            self._done.set()
            self._on_done()


def _times(ask: WaitingAsk) -> str:
    return str(ask.resource) if ask.count == 1 else f"{ask.count:,} x {ask.resource}"


def _holding(containers: Sequence[RMContainer]) -> str:
    amounts: dict[str, int] = {}
    for container in containers:
        add(amounts, amounts_of(container.request.resource))
    count = len(containers)
    return f"{quantities(amounts.items())} in {counted(count, 'container')}"


def _held_up(attempt: str, held: Sequence[RMContainer], asks: Sequence[WaitingAsk]) -> str:
    wanted = " and ".join(map(_times, asks))
    limits = dict.fromkeys(ask.sentence for ask in asks if ask.reason.cause is not WaitCause.NO_ROOM)
    return "; ".join([f"{attempt} holds {_holding(held)}, and waits for {wanted}", *limits])
