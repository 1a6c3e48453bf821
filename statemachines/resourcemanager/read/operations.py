"""What the scheduler has done with containers since the web address began to follow it: last operations, and counts.

They are counted from what a publication reports anyway, so the scheduler does nothing for them. `Operations` is the
handler thread's; the runs that it gives out are immutable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from statemachines.resourcemanager.events.records import EXIT_PREEMPTED
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.records.resource import NOTHING, Resource
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of


class Operation(NamedTuple):
    """A container that was allocated, released, preempted or reserved."""

    container: str
    node: str
    queue: str
    """As its application names it."""


class Done(NamedTuple):
    """Operations of one kind."""

    containers: int = 0
    resources: Resource = NOTHING


class SchedulerRun(NamedTuple):
    """What the scheduler had done by a publication. The counts are of the last one before which it did anything."""

    at_ms: int = 0
    """Of that publication, Unix ms; 0: the scheduler has not done anything yet."""
    allocations: Done = Done()
    releases: Done = Done()
    reservations: Done = Done()
    last_allocation: Operation | None = None
    last_release: Operation | None = None
    last_preemption: Operation | None = None
    last_reservation: Operation | None = None
    by_queue: Mapping[str, tuple[int, int]] = {}
    """Containers allocated and released in all, by queue as applications name it."""


class _OfKind:
    """Operations of one kind."""

    __slots__ = ("_at", "last", "sizes")

    def __init__(self) -> None:
        self.sizes: Counter[Resource] = Counter()  # since the last run
        self.last: Operation | None = None
        self._at = (-1, "")  # when that was, and its container: changes come in any order

    def note(self, container: RMContainer, at_ms: int, queue: str) -> None:
        self.sizes[container.request.resource] += 1
        at = at_ms, container.entity
        if at >= self._at:
            self._at, self.last = at, Operation(container.entity, container.node, queue)

    def take(self) -> Done:
        total: dict[str, int] = {}
        for resource, count in self.sizes.items():
            add(total, amounts_of(resource), count)
        done = Done(self.sizes.total(), resource_of(total))
        self.sizes.clear()
        return done


class Operations:
    """Counts operations. Handler thread."""

    def __init__(self) -> None:
        self._run = SchedulerRun()
        self._allocated: Counter[str] = Counter()  # by queue; only grows
        self._released: Counter[str] = Counter()  # by queue; only grows
        self._allocations, self._releases, self._preemptions, self._reservations = (_OfKind() for _ in range(4))
        self._has_moved = False  # containers went to another queue since the last run
        self._reserved: set[str] = set()  # containers that are reserved now

    def take(self, container: RMContainer, queue: str, *, was_live: bool, is_live: bool, has_ended: bool) -> None:
        """A container has changed. `was_live`, `is_live`: it had, or has, its room on a node; False for a reserved one.

        One that was never seen live and has ended was allocated in between, unless it was only reserved.
        """
        came_and_went = has_ended and not was_live and container.reserved_resource is None
        if (is_live and not was_live) or came_and_went:
            self._allocated[queue] += 1
            self._allocations.note(container, container.created_ms, queue)
        if (was_live and not is_live) or came_and_went:
            self._released[queue] += 1
            finish_ms = container.finish_ms or 0
            self._releases.note(container, finish_ms, queue)
            if container.status is not None and container.status.exit_status == EXIT_PREEMPTED:
                self._preemptions.note(container, finish_ms, queue)
        is_reserved = not has_ended and container.state is RMContainerState.RESERVED
        if is_reserved and container.entity not in self._reserved:
            self._reserved.add(container.entity)
            self._reservations.note(container, container.created_ms, queue)
        elif not is_reserved:
            self._reserved.discard(container.entity)

    def move(self, containers: int, queue: str, to: str) -> None:
        """So many live containers are now of another queue: to the counts, as in Hadoop, released and allocated."""
        self._released[queue] += containers
        self._allocated[to] += containers
        self._has_moved = True

    def run(self, now_ms: int) -> SchedulerRun:
        """What was done since the last call; the run before if nothing was."""
        allocations, releases, reservations = self._allocations, self._releases, self._reservations
        if allocations.sizes or releases.sizes or reservations.sizes:
            self._run = SchedulerRun(
                now_ms,
                allocations.take(),
                releases.take(),
                reservations.take(),
                allocations.last,
                releases.last,
                self._preemptions.last,
                reservations.last,
                self._by_queue(),
            )
        elif self._has_moved:
            self._run = self._run._replace(by_queue=self._by_queue())
        self._has_moved = False
        return self._run

    def _by_queue(self) -> dict[str, tuple[int, int]]:
        """The operations of each queue. A release counts only where the container was counted before."""
        return {queue: (count, self._released[queue]) for queue, count in self._allocated.items()}
