"""The applications of a leaf queue: their order, and which of them may start their masters.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statemachines.heap import LazyHeap
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.capacity.limits import has_room_for_master, has_room_for_users_master
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, dominant_share
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt


class QueueApplication(SchedulerApplication):
    """An application in its leaf.

    With an attempt it is pending (its master waits for room in the leaf's share of masters) or active.
    """

    __slots__ = ("_shares", "_used", "default_partition", "is_active", "leaf", "master_amounts", "master_partition")

    leaf: LeafQueue
    default_partition: str
    """Of asks that name none."""
    master_partition: str

    def __init__(self, id: str, submission: ApplicationSubmission, number: int) -> None:
        super().__init__(id, submission, number)
        self._used: dict[str, dict[str, int]] = {}  # by partition; only in a fair queue
        self._shares: dict[str, float] = {}  # the dominant share of each
        self.master_amounts: Amounts = () if submission.unmanaged_am else amounts_of(submission.am_resource)
        self.is_active: bool = False

    def enter(self, leaf: LeafQueue) -> None:
        self.leaf = leaf
        self.queue: str = leaf.path
        self._used.clear()
        self._shares.clear()
        label, master_label = self.submission.node_label, self.submission.master_label
        self.default_partition = leaf.default_label if label is None else label
        self.master_partition = leaf.default_label if master_label is None else master_label
        leaf.enter(self.user)

    def key(self, partition: str) -> tuple[float, int, int]:
        """The sort key by its queue's ordering policy; the lowest comes first."""
        return self._shares.get(partition, 0.0), -self.priority, self.number

    def share_of(self, partition: str) -> float:
        """The dominant share of its usage in a fair queue; 0 in others."""
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

    def recount(self, held: Iterable[tuple[str, Amounts]]) -> None:
        """Count the usage again, since its queue has become fair or no longer is.

        `held`: each container's partition and amounts.
        """
        self._used.clear()
        self._shares.clear()
        for partition, amounts in held if self.leaf.is_fair else ():
            add(self._used.setdefault(partition, {}), amounts)
        for partition in self._used:
            self.note_share(partition)

    def note_share(self, partition: str) -> None:
        """Recompute the share: the usage or the partition's size has changed."""
        used = self._used.get(partition)
        if used:
            self._shares[partition] = dominant_share(used.items(), self.leaf.share(partition).total)
        else:
            self._shares.pop(partition, None)


def app_of(attempt: SchedulerApplicationAttempt) -> QueueApplication:
    """The capacity scheduler's applications are all QueueApplications."""
    return attempt.app  # type: ignore[return-value]  # a hot path: `cast` costs a call


_Need = tuple[str, str, Amounts]
"""A user, and the partition and the amounts that its master needs."""


class Activation:
    """The pending applications of one leaf, by what their masters need.

    Each group of one user and equal needs is sorted by the ordering policy: a large master does not hold up small ones,
    nor a user at its limit other users.
    """

    def __init__(self, leaf: LeafQueue) -> None:
        self.leaf = leaf
        self._pending: dict[_Need, LazyHeap[QueueApplication]] = {}  # never empty ones

    def add(self, app: QueueApplication) -> None:
        """Make the application pending. An active one stops being active: `next` would return it again and again."""
        self.remove(app)
        need = _need(app)
        same_need = self._pending.get(need)
        if same_need is None:
            same_need = self._pending[need] = LazyHeap(_order)
        same_need.add(app)
        self.leaf.add_pending(1)

    def remove(self, app: QueueApplication) -> None:
        """Make the application neither pending nor active."""
        if app.is_active:
            app.is_active = False
            self.leaf.active -= 1
            add(self.leaf.masters_used[app.master_partition], app.master_amounts, -1)
            self.leaf.users[app.user].charge_master(app.master_partition, app.master_amounts, -1)
            return
        need = _need(app)
        same_need = self._pending.get(need)
        if same_need is None or app not in same_need:
            return
        same_need.discard(app)
        if not same_need:
            del self._pending[need]
        self.leaf.add_pending(-1)

    def activate(self, app: QueueApplication) -> None:
        """Make the application active, even without room in the share of masters."""
        self.remove(app)
        app.is_active = True
        self.leaf.active += 1
        add(self.leaf.masters_used.setdefault(app.master_partition, {}), app.master_amounts)
        self.leaf.users[app.user].charge_master(app.master_partition, app.master_amounts, 1)

    def next(self) -> QueueApplication | None:
        """The first pending application that may run now."""
        best: QueueApplication | None = None
        leaf = self.leaf
        has_room: dict[tuple[str, Amounts], bool] = {}
        for (user, partition, amounts), same_need in self._pending.items():
            if (partition, amounts) not in has_room:
                has_room[partition, amounts] = has_room_for_master(leaf, partition, amounts)
            if not has_room[partition, amounts]:
                continue
            first = same_need.first()
            assert first is not None  # heaps here are never empty
            if best is not None and not _order(first) < _order(best):
                continue
            if has_room_for_users_master(leaf, user, partition, amounts):
                best = first
        return best

    def is_first(self, app: QueueApplication) -> bool:
        """Whether the application is pending, and the first of those whose masters need the same."""
        if app not in self._pending.get(_need(app), ()):
            return False
        same = [heap.first() for need, heap in self._pending.items() if need[1:] == _need(app)[1:]]
        return all(first is app or first is None or _order(app) < _order(first) for first in same)

    def reorder(self, app: QueueApplication) -> None:
        """The application's position may have improved."""
        same_need = self._pending.get(_need(app))
        if same_need is not None and app in same_need:
            same_need.lessened(app)


def _need(app: QueueApplication) -> _Need:
    return app.user, app.master_partition, app.master_amounts


def _order(app: QueueApplication) -> Any:
    return app.key(app.master_partition)
