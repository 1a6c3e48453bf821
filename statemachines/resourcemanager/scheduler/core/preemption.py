"""Preemption: gives masters notice of the containers that the policy wants back, and kills these after a grace period.

As in YARN, each round selects again. A container that is selected in every round is killed once its notice is
`max_wait_before_kill_ms` old; one that a round does not select loses its notice. A master may give up other containers
of the same sizes instead: the next rounds then select less. A reservation is cancelled without notice.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable

from statemachines.resourcemanager.events.records import EXIT_PREEMPTED
from statemachines.resourcemanager.records.config import PreemptionConfig
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy


class ContainerPreemption:
    # All fields are guarded by the scheduler's lock.
    def __init__(
        self, config: PreemptionConfig, steady_ms: Callable[[], int], books: SchedulerBooks, policy: SchedulingPolicy
    ) -> None:
        self._wait_ms = config.max_wait_before_kill_ms
        self._steady_ms = steady_ms
        self._books = books
        self._policy = policy
        self._noticed: dict[str, int] = {}  # by container: when its master was first given notice
        self.has_selected: bool = False  # the last round selected something

    def run_round(self) -> None:
        """Give notice of the selected containers, and kill those whose time is over."""
        books, now_ms = self._books, self._steady_ms()
        before, self._noticed = self._noticed, {}
        candidates = self._policy.preemption_candidates(books.attempts.values(), books.reserved())
        self.has_selected = bool(candidates)
        for attempt, container in candidates:
            container_id = container.entity
            if container_id not in attempt.live:
                books.cancel_reservation(books.node_of(container), "it was preempted")
                continue
            since_ms = before.get(container_id)
            if since_ms is None:
                attempt.preempted[container_id] = None
                since_ms = now_ms
            elif since_ms + self._wait_ms <= now_ms:
                ask = books.take_back(attempt, container, "preempted by the scheduler", EXIT_PREEMPTED)
                if ask is not None:
                    books.request_again(attempt, [ask])
                continue
            self._noticed[container_id] = since_ms
        for container_id in before.keys() - self._noticed.keys():
            live = books.live(container_id)
            if live is not None:
                live[0].preempted.pop(container_id, None)
