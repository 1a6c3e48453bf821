"""Where a policy may have its say: what schedulers do not need, but can, override.

Threading: all hooks are called under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import AppPlacementAllocator, SchedulingOpportunity
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class SchedulerHooks:
    """No limits, and nothing to note."""

    def _may_place(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        """Whether limits allow the attempt a new container of this requirements now. Event-driven only."""
        return True

    def _may_resize(self, attempt: SchedulerApplicationAttempt, container: RMContainer, resource: Resource) -> bool:
        """Whether limits allow a container this size."""
        return True

    def _waiting_changed(self, attempt: SchedulerApplicationAttempt, count: int) -> None:
        """So many asks of the attempt wait more (or less) than before."""

    def _allocated(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        """The attempt has a container more: a new one, or one that a node brought back."""

    def _released(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        """The attempt has a container less."""

    def _resized(
        self, attempt: SchedulerApplicationAttempt, container: RMContainer, before: Resource, node: SchedulerNode
    ) -> None:
        """A container has changed its size, from `before`."""

    def _capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        """A partition has so much more (`sign` 1) or less (-1)."""

    def _partition_changed(self, node: SchedulerNode, before: str) -> None:
        """The node, with its containers and its capacity, has moved from `before` to `node.partition`.

        `_capacity_changed` has been, or will be called for both.
        """

    def _app_added(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        """Take the application; returns why not, if it cannot be: then nothing is kept of it."""
        return None

    def _app_removed(self, app: SchedulerApplication) -> None:
        """The application has ended; nothing of it is in the books any more."""

    def _attempt_added(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt has come; what it takes over from the one before is in its books already."""

    def _attempt_removed(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt has ended. What it still has are the containers that the next one takes over."""

    def _default_label(self, app: SchedulerApplication) -> str:
        """The partition of asks that name none."""
        return app.submission.node_label or ""

    # -- reservations, on heartbeats ----------------------------------------------------------------------------------

    def _choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        """For whom the node is to be kept, on which it does not fit now: see `PendingAsks.choose_to_reserve`.

        None, always: the policy makes no reservations.
        """
        return None

    def _reserved(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        """The node is kept for the attempt; what for is the container's request."""

    def _unreserved(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        """The node is not kept any more. If the container gets its room, `_allocated` follows."""
