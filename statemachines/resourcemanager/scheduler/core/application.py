"""The scheduler's view of applications and their attempts, after YARN's classes of these names.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statemachines.resourcemanager.ids import container_prefix
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.submission import ApplicationSubmission

if TYPE_CHECKING:
    from statemachines.resourcemanager.scheduler.core.node import Reservation
    from statemachines.resourcemanager.scheduler.core.pending_asks import AppPlacementAllocator
    from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class SchedulerApplication:
    """An application that has not ended."""

    __slots__ = ("attempt", "id", "number", "priority", "queue", "submission", "user")

    def __init__(self, id: str, submission: ApplicationSubmission, number: int) -> None:
        self.id = id
        self.submission = submission  # as it was submitted
        self.number = number  # in the order of submission
        self.priority = submission.priority  # greater is more urgent; changes
        self.queue = submission.queue  # changes when it is moved
        self.user = submission.user
        self.attempt: SchedulerApplicationAttempt | None = None  # the last one


class SchedulerApplicationAttempt:
    """An attempt: what it has, and what it waits for."""

    __slots__ = (
        "app",
        "blacklist",
        "default_label",
        "groups",
        "id",
        "is_stopped",
        "live",
        "master",
        "new",
        "next_number",
        "prefix",
        "rank",
        "reserved",
        "waiting",
    )

    def __init__(self, id: str, app: SchedulerApplication, epoch: int, default_label: str) -> None:
        self.id = id
        self.app = app
        self.default_label = default_label  # partition of asks that name none
        self.prefix = container_prefix(id, epoch)
        self.next_number = 1  # of the next container
        self.live: dict[str, RMContainer] = {}  # those that have not ended
        self.new: list[RMContainer] = []  # those of them that the master has not fetched
        self.master: str | None = None  # its master's container, once there is one
        self.blacklist: frozenset[str] = frozenset()  # hosts
        self.is_stopped = False  # it has ended, and its containers wait for the next one
        self.rank: tuple[Any, ...] = ()  # among those of one backlog the least is served first; set by the backlog
        self.groups: dict[
            tuple[int, NodeRequirements], AppPlacementAllocator
        ] = {}  # what waits, by priority and requirements
        self.waiting = 0  # asks in `groups`
        self.reserved: dict[str, Reservation] = {}  # by node

    def next_container_id(self) -> str:
        number = self.next_number
        self.next_number = number + 1
        return f"{self.prefix}{number:06d}"

    @property
    def expects_master(self) -> bool:
        """Whether its next container is its master's."""
        return self.master is None and not self.app.submission.unmanaged_am
