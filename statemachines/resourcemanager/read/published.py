"""A publication; and what has been published, as far as the next one needs it: live containers by attempt, and sums.

Containers come and go by the thousand, so they are reported one by one here, and published as copies of whole attempts:
the reader does no work for each of them. `Published` is the handler thread's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from statemachines.resourcemanager.events.records import EXIT_SUCCESS
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.read.operations import Operations, SchedulerRun
from statemachines.resourcemanager.reports import (
    ApplicationAttemptReport,
    ApplicationReport,
    ClusterMetrics,
    ContainerReport,
    NodeReport,
    container_report,
)
from statemachines.resourcemanager.reports.cluster import NodeSums
from statemachines.resourcemanager.reports.live_sums import LiveSums
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

_RUNNING: Final = RMContainerState.RUNNING.name
_NEW: Final = RMContainerState.NEW
_RESERVED: Final = RMContainerState.RESERVED


class Cost(NamedTuple):
    """What publications have taken of the handler thread."""

    mails: int = 0
    cpu_ns: int = 0
    """The handler thread's CPU time."""
    longest_ns: int = 0
    """CPU time of the longest mail."""

    def and_one(self, cpu_ns: int) -> Cost:
        """With one more mail."""
        return Cost(self.mails + 1, self.cpu_ns + cpu_ns, max(self.longest_ns, cpu_ns))


@dataclass(frozen=True, slots=True)
class Publication:
    """What has changed since the publication before; None for what is gone. Immutable: any thread may read it."""

    is_whole: bool
    """It replaces all that was published before."""
    at_ns: int
    """A moment since it was asked for, by `time.monotonic_ns`: all that was done before is in it."""
    is_news: bool
    """False: nothing has changed."""
    apps: Mapping[str, ApplicationReport | None]
    attempts: Mapping[str, tuple[ApplicationAttemptReport, ...] | None]
    """By application."""
    containers: Mapping[str, dict[str, ContainerReport] | None]
    """By attempt: all its live ones."""
    failures: Mapping[str, int]
    """The exit statuses other than 0 of containers that have ended."""
    gone_apps: Mapping[tuple[str, str], int]
    """By queue and state: applications that are no longer kept since, also those that were never published."""
    nodes: Mapping[str, NodeReport | None]
    queues: Sequence[QueueInfo]
    """All of them."""
    metrics: ClusterMetrics
    heartbeats_ms: Mapping[str, int]
    """When nodes were heard of last, Unix ms, for those heard of since. A heartbeat alone is no news."""
    cluster_timestamp: int
    """Unix ms; in the ids of applications."""
    run: SchedulerRun
    """What the scheduler has done."""
    cost: Cost
    """Of its mails."""


class AttemptContainers:
    """The live containers of one attempt, and their sums."""

    __slots__ = ("queue", "reports", "sums")

    def __init__(self, queue: str) -> None:
        self.reports: dict[str, ContainerReport] = {}
        self.sums: LiveSums = LiveSums()
        self.queue: str = queue
        """In which they are counted."""


class Published:
    """The state that the last publication has, or the next one will have."""

    def __init__(self) -> None:
        self.nodes: NodeSums = NodeSums()
        self.operations: Operations = Operations()
        self.forgotten_apps: Mapping[str, int] = {}
        """By state: applications that are no longer kept. Changed together with `forget_app`."""
        self._failures: dict[str, int] = {}
        # By id, queue and state; with those that have gone and are not among the forgotten ones yet.
        self._apps: dict[str, tuple[str, str]] = {}
        self._gone_apps: Counter[tuple[str, str]] = Counter()
        self._by_attempt: dict[str, AttemptContainers] = {}  # attempts that have containers
        self._nodes: dict[str, NodeReport] = {}

    def take_failures(self) -> dict[str, int]:
        """The exit statuses other than 0 of containers that have ended since the last call."""
        failures, self._failures = self._failures, {}
        return failures

    def take_app(self, id: str, queue: str, state: str) -> None:
        """Take an application as reported."""
        self._apps[id] = queue, state

    def forget_app(self, id: str) -> bool:
        """Count an application as gone; returns whether it was reported."""
        known = self._apps.pop(id, None)
        if known is not None:
            self._gone_apps[known] += 1
        return known is not None

    def take_unreported_app(self, queue: str, state: str) -> None:
        """Count an application that came and went between two publications."""
        self._gone_apps[queue, state] += 1

    def take_gone_apps(self) -> Mapping[tuple[str, str], int]:
        """By queue and state, those counted since the last call."""
        gone, self._gone_apps = self._gone_apps, Counter()
        return gone

    def app_counts(self) -> Counter[str]:
        """By state: the applications that are published, and those that are no longer kept."""
        return Counter(state for _, state in self._apps.values()) + Counter(self.forgotten_apps)

    def containers_of(self, attempt_id: str) -> dict[str, ContainerReport] | None:
        """A copy, in the order of first publication; None: it has none."""
        found = self._by_attempt.get(attempt_id)
        return found.reports.copy() if found is not None else None

    def sums_of(self, attempt_id: str) -> LiveSums | None:
        found = self._by_attempt.get(attempt_id)
        return found.sums if found is not None else None

    def take_container(
        self, container: RMContainer, is_live: bool, queue: str | None, *, was_moved: bool = False
    ) -> None:
        """Report on a container that has changed.

        `is_live`: it has not ended; `queue`: its application's; None: that is no longer kept; `was_moved`: another
        attempt had it until now.
        """
        id, attempt_id = container.entity, container.attempt
        attempt = self._by_attempt.get(attempt_id)
        before = attempt.reports.get(id) if attempt is not None else None
        self._move(attempt, queue)
        if queue is None:
            queue = attempt.queue if attempt is not None else ""
        if not is_live and container.status is not None and container.status.exit_status != EXIT_SUCCESS:
            self._failures[id] = container.status.exit_status
        state = container.state_machine.current_state if is_live else None
        is_shown = state is not None and state is not _NEW and state is not _RESERVED
        was_live = before is not None or was_moved
        self.operations.take(container, queue, was_live=was_live, is_live=is_shown, has_ended=not is_live)
        if before is None and not is_live:
            return  # it came and went between two publications
        report = container_report(container) if is_shown else None  # what raises does so before the first change
        if attempt is not None and before is not None:
            attempt.sums.remove(before.resource, before.created_ms, before.state == _RUNNING)
        if report is not None:
            if attempt is None:
                attempt = self._by_attempt[attempt_id] = AttemptContainers(queue)
            attempt.reports[id] = report
            attempt.sums.add(report.resource, report.created_ms, report.state == _RUNNING)
        elif attempt is not None and before is not None:
            del attempt.reports[id]
            if not attempt.reports:
                del self._by_attempt[attempt_id]

    def take_queue(self, attempts: Iterable[str], queue: str | None) -> None:
        """The queue of the application with these attempts, which may be another than before; None: not known."""
        for attempt_id in attempts:
            self._move(self._by_attempt.get(attempt_id), queue)

    def _move(self, attempt: AttemptContainers | None, queue: str | None) -> None:
        if attempt is not None and queue is not None and attempt.queue != queue:
            self.operations.move(len(attempt.reports), attempt.queue, queue)
            attempt.queue = queue

    def take_from(self, attempts: Iterable[str], container_id: str) -> list[str]:
        """Take a container from attempts that no longer have it; returns those that had it."""
        had = []
        for attempt_id in attempts:
            attempt = self._by_attempt.get(attempt_id)
            report = attempt.reports.pop(container_id, None) if attempt is not None else None
            if attempt is not None and report is not None:
                attempt.sums.remove(report.resource, report.created_ms, report.state == _RUNNING)
                if not attempt.reports:
                    del self._by_attempt[attempt_id]
                had.append(attempt_id)
        return had

    def forget_attempt(self, attempt_id: str) -> None:
        self._by_attempt.pop(attempt_id, None)

    def take_node(self, id: str, report: NodeReport | None) -> None:
        """Take a new report of a node; None: it is gone."""
        before = self._nodes.get(id)
        if report is None:
            self._nodes.pop(id, None)
        else:
            self._nodes[id] = report
            if before is not None and (before.state, before.capacity) == (report.state, report.capacity):
                return
            self.nodes.add(report.state, report.capacity)
        if before is not None:
            self.nodes.add(before.state, before.capacity, -1)
