"""The applications of a leaf queue: which of them may have their masters, and which comes first.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from typing import Any

from dispatcher.util.heap import LazyHeap
from statemachines.resourcemanager.scheduler.capacity.limits import has_room_for_master
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, dominant_share
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt
from statemachines.resourcemanager.submission import ApplicationSubmission


class QueueApplication(SchedulerApplication):
    """An application in its leaf.

    While it has an attempt it is pending (its attempt waits until masters may have as much as its own needs) or active.
    """

    __slots__ = ("_shares", "_used", "is_active", "leaf", "master_amounts", "master_partition")

    leaf: LeafQueue
    master_partition: str

    def __init__(self, id: str, submission: ApplicationSubmission, number: int) -> None:
        super().__init__(id, submission, number)
        self._used: dict[str, dict[str, int]] = {}  # by partition; only in a fair queue
        self._shares: dict[str, float] = {}  # the dominant ones of these
        self.master_amounts: Amounts = () if submission.unmanaged_am else amounts_of(submission.am_resource)
        self.is_active = False

    def enter(self, leaf: LeafQueue) -> None:
        """Be one of the leaf's."""
        self.leaf = leaf
        self.queue = leaf.path
        self._used.clear()
        self._shares.clear()
        label = self.submission.node_label
        self.master_partition = leaf.default_label if label is None else label
        leaf.enter(self.user)

    def leave(self) -> None:
        """No longer be one of its leaf's; it has nothing there, and is neither pending nor active."""
        self.leaf.leave(self.user)

    def key(self, partition: str) -> tuple[float, int, int]:
        """The least comes first, by the ordering policy of its queue."""
        return self._shares.get(partition, 0.0), -self.priority, self.number

    def share_of(self, partition: str) -> float:
        """The dominant share of what it has, if its queue is fair; else 0."""
        return self._shares.get(partition, 0.0)

    def charge(self, partition: str, amounts: Amounts, sign: int = 1) -> None:
        """Add a container (`sign` 1) or remove one (-1)."""
        leaf = self.leaf
        leaf.charge(self.user, partition, amounts, sign)
        if leaf.is_fair:
            used = self._used.get(partition)
            if used is None:
                used = self._used[partition] = {}
            add(used, amounts, sign)
            self.note_share(partition)

    def note_share(self, partition: str) -> None:
        """What it has is another share of the partition than before: it, or the partition, has changed."""
        used = self._used.get(partition)
        if used:
            self._shares[partition] = dominant_share(used.items(), self.leaf.share(partition).total)
        else:
            self._shares.pop(partition, None)


def app_of(attempt: SchedulerApplicationAttempt) -> QueueApplication:
    """All applications of the capacity scheduler are of its own type."""
    return attempt.app  # type: ignore[return-value]  # this is asked very often, and `cast` costs more


class Activation:
    """The attempts of one leaf that wait for the share of masters, and those that count towards it.

    Those whose masters need the same are sorted by the ordering policy: a large one does not hold up the small.
    """

    def __init__(self, leaf: LeafQueue) -> None:
        self.leaf = leaf
        self._pending: dict[tuple[str, Amounts], LazyHeap[QueueApplication]] = {}  # none of them empty

    def __contains__(self, app: QueueApplication) -> bool:
        return app in self._pending.get((app.master_partition, app.master_amounts), ())

    def add(self, app: QueueApplication) -> None:
        """The application has an attempt that has not been let run."""
        same_need = self._pending.get((app.master_partition, app.master_amounts))
        if same_need is None:
            same_need = self._pending[app.master_partition, app.master_amounts] = LazyHeap(_order)
        same_need.add(app)
        self.leaf.add_pending(1)

    def remove(self, app: QueueApplication) -> None:
        """It has none any longer, or is let run: if it was pending, it is so no more; if it was active, neither."""
        if app.is_active:
            app.is_active = False
            self.leaf.active -= 1
            add(self.leaf.masters_used[app.master_partition], app.master_amounts, -1)
            return
        key = app.master_partition, app.master_amounts
        same_need = self._pending.get(key)
        if same_need is None or app not in same_need:
            return
        same_need.discard(app)
        if not same_need:
            del self._pending[key]
        self.leaf.add_pending(-1)

    def activate(self, app: QueueApplication) -> None:
        """Let it run, whether there is room for its master in the share of masters or not."""
        self.remove(app)
        app.is_active = True
        self.leaf.active += 1
        add(self.leaf.masters_used.setdefault(app.master_partition, {}), app.master_amounts)

    def next(self) -> QueueApplication | None:
        """The first pending application that may run now."""
        best: QueueApplication | None = None
        for (partition, amounts), same_need in self._pending.items():
            first = same_need.first()
            assert first is not None  # none is empty
            if (best is None or _order(first) < _order(best)) and has_room_for_master(self.leaf, partition, amounts):
                best = first
        return best

    def is_first(self, app: QueueApplication) -> bool:
        """Whether no other one of those whose masters need as much comes before it."""
        return self._pending[app.master_partition, app.master_amounts].first() is app

    def reorder(self, app: QueueApplication) -> None:
        """Its priority has changed."""
        same_need = self._pending.get((app.master_partition, app.master_amounts))
        if same_need is not None and app in same_need:
            same_need.lessened(app)


def _order(app: QueueApplication) -> Any:
    return app.key(app.master_partition)
