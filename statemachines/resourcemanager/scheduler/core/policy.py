"""What differs from one scheduler to another: which ask is served next, and what limits allow.

A policy is asked and informed by the objects above it, and calls none of them. It decides which pending ask gets a
container on which node; they allocate it, and charge the policy with what it uses.

Threading: under the scheduler's lock.
"""

# ruff: noqa: B027 - where a policy has no limits and no queues, there is nothing to do

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.submission import ApplicationSubmission

Assignment = tuple[AppPlacementAllocator, PendingAsk, SchedulerNode]
"""An ask, and the node on which it gets its container."""


class PendingIndex(Protocol):
    """Finds the pending asks of all attempts."""

    def add(self, allocator: AppPlacementAllocator) -> None: ...

    def remove(self, allocator: AppPlacementAllocator) -> None: ...


class SchedulingPolicy(ABC):
    """Without limits and queues, unless a method is overridden."""

    application_type: type[SchedulerApplication] = SchedulerApplication
    allocates_on_arrival = False
    """Whether an ask may get a container as it arrives, before those that are pending; else it waits its turn."""
    pending: PendingIndex

    # -- order of service ---------------------------------------------------------------------------------------------

    @abstractmethod
    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """The ask that gets the next container on this node, where it fits, with a heartbeat."""

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        """The asks for which this node is to be reserved: it could take one, but has not enough room now."""
        return None

    @abstractmethod
    def assign_containers(self, freed: Sequence[SchedulerNode]) -> Iterator[Assignment]:
        """All that can be served now that these nodes have more room, one after the other.

        Each assignment must be carried out before the next one is taken. Not used with heartbeats.
        """

    @property
    def has_work(self) -> bool:
        """Whether applications may be activated, or asks served, although no node has more room."""
        return False

    @abstractmethod
    def in_order(self, attempts: Iterable[SchedulerApplicationAttempt]) -> list[AppPlacementAllocator]:
        """The pending asks of these attempts, in the order of service."""

    def arrange(
        self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]
    ) -> tuple[Iterable[ContainerRequest], bool]:
        """The new requests of one call in the order of service, and whether they may be allocated as they arrive."""
        return requests, self.allocates_on_arrival

    # -- limits -------------------------------------------------------------------------------------------------------

    def may_allocate(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        """Whether a new ask may be allocated as it arrives."""
        return True

    def may_grow(self, attempt: SchedulerApplicationAttempt, partition: str, old: Resource, new: Resource) -> bool:
        """Whether limits allow a container to have `new` in place of `old`."""
        return True

    def why_held_up(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> str | None:
        """Which limit holds such an ask up; None: no limit does."""
        return None

    # -- what is used -------------------------------------------------------------------------------------------------

    def pending_changed(self, attempt: SchedulerApplicationAttempt, delta: int) -> None:
        """`delta` more asks of the attempt are pending."""

    def charge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        """The attempt has another container, or the reservation of one."""

    def discharge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        """The attempt has one container fewer, or one reservation."""

    def capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        """The partition has so much more (`sign` 1) or less (-1)."""

    # -- applications -------------------------------------------------------------------------------------------------

    def add_app(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        """Take the application. Returns why it cannot be taken; then nothing of it is kept."""
        return None

    def remove_app(self, app: SchedulerApplication) -> None:
        """The application has ended, and has neither containers nor asks."""

    def add_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt has come, with the containers that it takes over from the one before."""

    def remove_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt has ended. The containers that it still has are for the next one to take over."""

    def activate_applications(self) -> None:
        """Let those applications run that have waited for it, and need not any longer."""

    def priority_changed(self, app: SchedulerApplication) -> None:
        """The application has another priority; its pending asks have been added again."""

    def default_label(self, app: SchedulerApplication) -> str:
        """The partition of asks that name none."""
        return app.submission.node_label or ""

    # -- queues -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def queues(self) -> Sequence[QueueInfo]:
        """See ResourceScheduler; so are the next three."""

    @abstractmethod
    def check_submission(self, submission: ApplicationSubmission) -> str | None: ...

    @abstractmethod
    def check_move(self, application: str, app: SchedulerApplication | None, queue: str) -> str | None: ...

    @abstractmethod
    def lifetime_s(self, submission: ApplicationSubmission) -> int | None: ...

    def is_in_queue(self, app: SchedulerApplication, queue: str) -> bool:
        """Whether the application is in this queue; it may be moved there."""
        return True

    def move(self, app: SchedulerApplication, queue: str, *, has_attempt: bool) -> None:
        """Move the application with its containers. None of its asks is pending while this is done."""
