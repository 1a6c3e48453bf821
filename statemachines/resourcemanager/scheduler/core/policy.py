"""What schedulers differ in: the order of service, and the limits.

A policy decides which pending ask gets a container on which node. Its callers allocate the container, and charge the
policy with the usage; the policy never calls them.

Threading: under the scheduler's lock.
"""

# ruff: noqa: B027 - without limits and queues, a policy has nothing to do

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.records.resource import MaximumAllocation, Resource
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.core.amounts import Amounts
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.scheduler.wait_reasons import WaitReason

Assignment = tuple[AppPlacementAllocator, PendingAsk, SchedulerNode]
"""An ask, and the node for its container."""


Reserved = tuple[SchedulerApplicationAttempt, SchedulerNode]
"""A node that is reserved for an attempt."""
Candidate = tuple[SchedulerApplicationAttempt, RMContainer]
"""A container to preempt: a live one of the attempt, or one that is reserved for it."""


class PendingIndex(Protocol):
    """Finds the pending asks of all attempts."""

    def add(self, allocator: AppPlacementAllocator) -> None: ...

    def remove(self, allocator: AppPlacementAllocator) -> None: ...


class SchedulingPolicy(ABC):
    """The base has neither limits nor queues; a policy overrides what it needs."""

    application_type: ClassVar[type[SchedulerApplication]] = SchedulerApplication
    allocates_on_arrival: bool
    """Whether an ask may get a container on arrival, before the pending asks; otherwise it waits its turn."""
    pending: PendingIndex

    # -- order of service ---------------------------------------------------------------------------------------------

    @abstractmethod
    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """On a heartbeat: the ask that fits on the node and gets the next container there."""

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        """The asks to reserve this node for: the empty node could take one, but it has not enough room now."""
        return None

    @abstractmethod
    def assign_containers(self, freed: Sequence[SchedulerNode]) -> Iterator[Assignment]:
        """All assignments now possible, given that these nodes have more room. Not used on heartbeats.

        The caller must carry out each assignment before it takes the next one.
        """

    @property
    def has_work(self) -> bool:
        """Whether applications may be activated, or asks served, without new room on a node."""
        return False

    @abstractmethod
    def in_order(self, attempts: Iterable[SchedulerApplicationAttempt]) -> list[AppPlacementAllocator]:
        """The pending asks of these attempts, in order of service."""

    def arrange(
        self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]
    ) -> tuple[Iterable[ContainerRequest], bool]:
        """The new requests of one call in order of service, and whether they may be allocated on arrival."""
        return requests, self.allocates_on_arrival

    # -- limits -------------------------------------------------------------------------------------------------------

    def may_allocate(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        """Whether a new ask may be allocated on arrival."""
        return True

    def may_grow(self, attempt: SchedulerApplicationAttempt, partition: str, old: Resource, new: Resource) -> bool:
        """Whether limits allow a container to be resized from `old` to `new`."""
        return True

    @abstractmethod
    def maximum_allocation(self, queue: str) -> MaximumAllocation:
        """The configured maximum of a container in the queue or, if the queue is unknown, in the cluster."""

    @abstractmethod
    def headroom(self, attempt: SchedulerApplicationAttempt) -> Mapping[str, int]:
        """What the attempt may still get in the partitions that it asks for, in amounts by type."""

    def must_unreserve(self, allocator: AppPlacementAllocator) -> bool:
        """Whether an ask that `choose` has found is within the limits only without one of its reservations."""
        return False

    def why_held_up(
        self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, *, has_node: bool = False
    ) -> WaitReason | None:
        """Which limit holds up such an ask; `has_node`: some node has room for it. None: no limit does."""
        return None

    def place_of(self, attempt: SchedulerApplicationAttempt) -> Hashable:
        """Attempts with the same place are held up by the same limit, if their asks have the same requirements."""
        return None

    def preemption_candidates(
        self, attempts: Iterable[SchedulerApplicationAttempt], reserved: Iterable[Reserved]
    ) -> list[Candidate]:
        """The containers that are to make room for queues below their guarantees. Changes nothing."""
        return []

    # -- usage --------------------------------------------------------------------------------------------------------

    def pending_changed(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, delta: int) -> None:
        """`delta` more asks of the attempt with these requirements are pending."""

    def charge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        """The attempt got another container or reservation."""

    def discharge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        """The attempt lost a container or reservation."""

    def reservation_changed(
        self, allocator: AppPlacementAllocator, partition: str, resource: Resource, sign: int
    ) -> None:
        """What was charged (`sign` 1), or is about to be discharged (-1), is a reservation for these asks.

        The allocator counts its reservations as they are after the change.
        """

    def capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        """`capacity` was added to the partition (`sign` 1) or removed from it (-1).

        The capacity of a draining node is what its containers have.
        """

    # -- applications -------------------------------------------------------------------------------------------------

    def add_app(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        """Accept the application and return None, or return why it is refused."""
        return None

    def remove_app(self, app: SchedulerApplication) -> None:
        """The application has ended; it has neither containers nor asks."""

    def add_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt was added, with the containers inherited from the previous one."""

    def remove_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt has ended. The next one inherits the containers that it still has."""

    def activate_applications(self) -> bool:
        """Activate the pending applications that may run now; whether there were any."""
        return False

    def priority_changed(self, app: SchedulerApplication) -> None:
        """The application's priority changed; its pending asks have been sorted again."""

    def default_label(self, app: SchedulerApplication) -> str:
        """The partition of asks that do not name one."""
        return app.submission.node_label or ""

    # -- queues -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def queue_paths(self) -> list[str]:
        """Of all queues, parents before children; the root first."""

    def why_not_configured(self, config: SchedulerConfig) -> str | None:
        """Why the queues cannot be changed to those of this valid configuration while they run, or None."""
        return "this scheduler has a single queue, which cannot be changed"

    def configure(self, config: SchedulerConfig, applications: Iterable[SchedulerApplication]) -> None:
        """Change the queues, unless `why_not_configured`. `applications`: all that the scheduler has."""

    @abstractmethod
    def queue_info(self, path: str) -> QueueInfo | None:
        """The queue with exactly this path, or None; costs as much as it has users, not as the cluster is large."""

    @abstractmethod
    def check_move(self, application: str, app: SchedulerApplication | None, queue: str) -> str | None:
        """Why the application cannot be moved to the queue, or None if it can."""

    @abstractmethod
    def usage_shares(self, attempt: SchedulerApplicationAttempt, used: Amounts) -> tuple[float, float]:
        """Which share of its queue's guarantee and of the cluster `used` is, over all partitions."""

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        """Why the application must be rejected (unknown queue, full queue ...), for its diagnostics; or None."""
        return None

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        """The application's lifetime, capped at its queue's maximum, or the queue's default, or None."""
        return submission.lifetime_s

    def is_in_queue(self, app: SchedulerApplication, queue: str) -> bool:
        """Whether the application, which may be moved to this queue, is there already."""
        return True

    def move(self, app: SchedulerApplication, queue: str, *, has_attempt: bool) -> None:
        """Move the application with its containers. The caller has withdrawn its asks."""
