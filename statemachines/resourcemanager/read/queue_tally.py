"""What is counted of a queue and of all queues below it, for the queue's fields. Its maker's thread."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Final, NamedTuple, Self

from statemachines.resourcemanager.reports import ApplicationReport, ClusterMetrics, waiting_apps

RUNNING_MINUTES: Final = (60, 300, 1440)
"""Where the running times are cut, as by default in Hadoop."""


class AppCounts(NamedTuple):
    """Applications since the start of the resource manager."""

    submitted: int = 0
    running: int = 0
    pending: int = 0
    completed: int = 0
    killed: int = 0
    failed: int = 0

    @classmethod
    def of_states(cls, states: Counter[str]) -> Self:
        ended = states["FINISHED"], states["KILLED"], states["FAILED"]
        return cls(states.total(), states["RUNNING"], waiting_apps(states), *ended)

    @classmethod
    def of_cluster(cls, metrics: ClusterMetrics) -> Self:
        """All of the cluster's, also those that came and went before their queues were followed."""
        ended = metrics.apps_completed, metrics.apps_killed, metrics.apps_failed
        return cls(metrics.apps_submitted, metrics.apps_running, metrics.apps_pending, *ended)


class QueueTally:
    """The counts; the maker adds to them."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        """Of applications."""
        self.apps = AppCounts()
        """By their states, once all are counted."""
        self.running: Counter[int] = Counter()
        """Running applications, by their place among RUNNING_MINUTES."""
        self.active_users: set[str] = set()
        self.allocated = 0
        """Containers in all, and released ones."""
        self.released = 0

    def count(self, app: ApplicationReport, now_ms: int) -> None:
        self.states[app.state] += 1
        if app.state == "RUNNING":
            minutes = (now_ms - (app.launch_ms or app.start_ms)) / 60_000
            self.running[bisect_right(RUNNING_MINUTES, minutes)] += 1
