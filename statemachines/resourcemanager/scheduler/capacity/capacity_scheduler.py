"""A tree of queues, each with its guarantee and its limits, after YARN's CapacityScheduler.

An application runs in a leaf. Its attempt is pending until masters may have as much as its own needs; then its asks
are served as far as the limits of its queue, of the queues above and of its user allow, and as nodes have room.

Threading: events may come on a thread of the scheduler's own, direct calls on the handler thread; each takes the lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.scheduler import SchedulerEvent
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.capacity.container_allocator import ContainerAllocator
from statemachines.resourcemanager.scheduler.capacity.limits import full_queue, is_user_full
from statemachines.resourcemanager.scheduler.capacity.queue_applications import Activation, QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queue_reports import (
    hold_up,
    queue_infos,
    why_not_movable,
    why_refused,
)
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, QueueTree
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.base import AbstractScheduler
from statemachines.resourcemanager.scheduler.core.node import Free, SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import (
    AppPlacementAllocator,
    PendingAsk,
    PendingAsks,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements
from statemachines.resourcemanager.scheduler.interface import QueueInfo
from statemachines.resourcemanager.submission import ApplicationSubmission


class CapacityScheduler(AbstractScheduler):
    """Takes SchedulerEvents, and the direct calls of a ResourceScheduler."""

    _application_type = QueueApplication

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        """
        Raises:
            ConfigError: the configured queues make no tree; names the key.
        """
        super().__init__(context, on_heartbeat=on_heartbeat)
        self._tree = QueueTree(self._config)
        self._activations = {leaf: Activation(leaf) for leaf in self._tree.leaves.values()}
        self._has_fair_queues = any(leaf.is_fair for leaf in self._activations)
        self._allocator = ContainerAllocator(self._find, self._give)
        self._to_activate: dict[LeafQueue, None] = {}  # leaves whose share of masters may have room again
        self._unsearched: dict[SchedulerNode, Free | None] = {}  # got room that the search for nodes does not know of
        self._at_once = False  # asks come in their order: each may be placed before the next one comes

    def handle(self, event: SchedulerEvent) -> None:
        with self._lock:
            super().handle(event)
            self._serve_freed()  # limits may have been relieved where no node got room

    # -- direct calls -------------------------------------------------------------------------------------------------

    def allocate(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None:
        """As in AbstractScheduler; the asks of one call are served in the order of their priorities."""
        with self._lock:
            super().allocate(attempt_id, requests, releases, blacklist_additions, blacklist_removals)
            self._serve_freed()

    def _ask_for(self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]) -> None:
        app, queue_asks = _app_of(attempt), self._allocator.queue_asks
        queue_asks.is_settled = not (self._on_heartbeat or self._freed or self._unsearched)
        if queue_asks.is_settled and app.is_active:
            requests = list(requests)
            self._at_once = len(requests) == 1 or _are_alike(requests)
            if len(requests) > 1:
                requests.sort(key=_priority)
        super()._ask_for(attempt, requests)
        queue_asks.is_settled = self._at_once = False

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        with self._lock:
            return why_refused(self._tree, submission)

    def queue_of(self, application: str) -> str | None:
        with self._lock:
            app = self._apps.get(application)
            return app.queue if app is not None else None

    def check_move(self, application: str, queue: str) -> str | None:
        with self._lock:
            app = self._apps.get(application)
            if app is None:
                return f"{application} is not in the scheduler: it has ended, or has not been accepted yet"
            return why_not_movable(self._tree, _queued(app), queue, self._held(app))

    def move_application(self, application: str, queue: str) -> None:
        with self._lock:
            refusal = self.check_move(application, queue)
            if refusal is not None:
                raise ValueError(refusal)
            leaf = self._tree.leaf(queue)
            assert leaf is not None  # checked
            app = _queued(self._apps[application])
            if leaf is not app.leaf:
                self._move(app, leaf)
                self._serve_freed()

    def update_priority(self, application: str, priority: int) -> None:
        with self._lock:
            super().update_priority(application, priority)
            app = self._apps.get(application)
            if app is not None:
                self._activations[_queued(app).leaf].reorder(_queued(app))
                self._serve_freed()

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        with self._lock:
            leaf = self._tree.leaf(submission.queue)
            return leaf.lifetime_s(submission.lifetime_s) if leaf is not None else submission.lifetime_s

    def waiting(self) -> list[tuple[str, ContainerRequest]]:
        with self._lock:
            groups = self._allocator.queue_asks.groups()
            for attempt in self._attempts.values():
                if attempt.waiting and not _app_of(attempt).is_active:
                    groups += attempt.groups.values()
            return [(group.attempt.id, ask.request) for group in groups for ask in group]

    def queues(self) -> Sequence[QueueInfo]:
        with self._lock:
            return queue_infos(self._tree)

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> str:
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is not None:
                app = _app_of(attempt)
                reason = hold_up(app, self._requirements_of(attempt, request), self._activations[app.leaf])
                if reason is not None:
                    return reason
            return super().why_waiting(attempt_id, request)

    # -- applications and attempts ------------------------------------------------------------------------------------

    def _app_added(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        submission = app.submission
        leaf = self._tree.leaf(submission.queue)
        # One that is recovered has been taken before: only a queue that is gone keeps it out.
        if leaf is None or not is_recovering:
            refusal = why_refused(self._tree, submission)
            if refusal is not None:
                return refusal
        assert leaf is not None  # or it would have been refused
        _queued(app).enter(leaf)
        return None

    def _app_removed(self, app: SchedulerApplication) -> None:
        _queued(app).leave()

    def _default_label(self, app: SchedulerApplication) -> str:
        return _queued(app).master_partition

    def _attempt_added(self, attempt: SchedulerApplicationAttempt) -> None:
        app = _app_of(attempt)
        self._activations[app.leaf].add(app)
        if attempt.master is not None:  # it is recovered, and its master runs
            self._activate(app)
        self._to_activate[app.leaf] = None

    def _attempt_removed(self, attempt: SchedulerApplicationAttempt) -> None:
        app = _app_of(attempt)
        self._activations[app.leaf].remove(app)
        self._to_activate[app.leaf] = None

    def _activate(self, app: QueueApplication) -> None:
        self._activations[app.leaf].activate(app)
        attempt = app.attempt
        assert attempt is not None  # without one it is not pending
        app.leaf.note_asks(app.user, attempt.waiting)
        self._allocator.queue_asks.enter(attempt)

    def _advance(self, app: QueueApplication) -> None:
        """It may come earlier than before, among those who wait for room or for the share of masters."""
        if app.is_active and app.attempt is not None:
            self._allocator.queue_asks.advance(app.attempt)
        else:
            self._activations[app.leaf].reorder(app)

    def _held(self, app: SchedulerApplication) -> list[tuple[str, Amounts]]:
        """What its containers have: partition and amounts."""
        held: list[tuple[str, Amounts]] = []
        for container in app.attempt.live.values() if app.attempt is not None else ():
            node = self._nodes.get(container.node)
            assert node is not None  # a node's containers leave the books before it does
            held.append((node.partition, amounts_of(container.request.resource)))
        return held

    def _move(self, app: QueueApplication, leaf: LeafQueue) -> None:
        attempt, old, held = app.attempt, app.leaf, self._held(app)
        # Between two attempts, the application has the old one still, which has been taken out of the books.
        has_attempt = attempt is not None and attempt.id in self._attempts and not attempt.is_stopped
        asks = self._withdraw(attempt) if attempt is not None else []
        self._activations[old].remove(app)
        for partition, amounts in held:
            app.charge(partition, amounts, -1)
        app.leave()
        app.enter(leaf)
        for partition, amounts in held:
            app.charge(partition, amounts)
        for partition in dict(held):
            self._allocator.relieve(old, partition, app.user)
            self._allocator.relieve_users(leaf, partition)
        self._to_activate |= {old: None, leaf: None}
        if attempt is None or not has_attempt:
            return
        attempt.default_label = app.master_partition
        self._activations[leaf].add(app)
        if attempt.master is not None:  # it goes on where it is, whatever share of masters the new queue has left
            self._activate(app)
        for ask in asks:
            self._ask(attempt, ask.request, ask.arrival)

    # -- asks ---------------------------------------------------------------------------------------------------------

    def _backlog_of(self, attempt: SchedulerApplicationAttempt) -> PendingAsks:
        return self._allocator.queue_asks

    def _rank_of(self, attempt: SchedulerApplicationAttempt) -> tuple[Any, ...]:
        """Each queue ranks its applications itself; this only tells that a rank has changed."""
        return -attempt.app.priority, attempt.app.number

    def _may_place(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        """All others wait for the end of what is being handled, and are served in their order then."""
        app = _app_of(attempt)
        return self._at_once and self._allocator.may_place(app.leaf, app.user, requirements)

    def _waiting_changed(self, attempt: SchedulerApplicationAttempt, count: int) -> None:
        app = _app_of(attempt)
        if app.is_active and app.leaf.note_asks(app.user, count):
            # An active user less: the others may have more, of each partition.
            for partition in app.leaf.shares:
                self._allocator.relieve_users(app.leaf, partition)

    def _choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        return self._allocator.choose(node, opportunity)

    def _choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        return self._allocator.choose_to_reserve(node, opportunity)

    def _serve_freed(self) -> None:
        """Let applications run for whose masters there is room now, and serve what can be served."""
        while self._to_activate:
            leaf, _ = self._to_activate.popitem()
            while (app := self._activations[leaf].next()) is not None:
                self._activate(app)
        if self._on_heartbeat or not (self._freed or self._allocator.has_work):
            return
        freed, self._freed = self._freed, {}
        for node_id, before in freed.items():
            node = self._nodes.get(node_id)
            if node is not None and not node.is_draining:
                self._unsearched[node] = before
        if self._waiting:
            self._allocator.serve(list(self._unsearched))
        unsearched, self._unsearched = self._unsearched, {}
        for node, before in unsearched.items():
            # A container that takes the place of one like it leaves nothing to look for.
            if before is None or node.has_more_than(before):
                self._nodes.grown(node)

    def _find(self, requirements: NodeRequirements, host: str | None, rack: str | None) -> SchedulerNode | None:
        for node in self._unsearched:
            self._nodes.grown(node)
        self._unsearched.clear()
        return self._nodes.find(requirements, host, rack)

    def _give(self, group: AppPlacementAllocator, ask: PendingAsk, node: SchedulerNode) -> None:
        attempt = group.attempt
        self._allocator.queue_asks.take(group, ask, node)
        self._note_waiting(attempt, -1)
        self._place(attempt, ask.request, node)

    # -- what is used -------------------------------------------------------------------------------------------------

    def _allocated(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        self._charge(attempt, node.partition, amounts_of(container.request.resource))

    def _released(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        self._discharge(attempt, node.partition, amounts_of(container.request.resource))

    def _reserved(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        self._charge(attempt, node.partition, amounts_of(container.request.resource))

    def _unreserved(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        self._discharge(attempt, node.partition, amounts_of(container.request.resource))

    def _charge(self, attempt: SchedulerApplicationAttempt, partition: str, amounts: Amounts) -> None:
        app = _app_of(attempt)
        app.charge(partition, amounts)
        # Beyond the queue's guarantee, what there is for its users grows with what is used.
        self._allocator.relieve_users(app.leaf, partition, beyond_guarantee=True)

    def _discharge(self, attempt: SchedulerApplicationAttempt, partition: str, amounts: Amounts) -> None:
        app = _app_of(attempt)
        app.charge(partition, amounts, -1)
        self._allocator.relieve(app.leaf, partition, app.user)
        if app.leaf.is_fair:
            self._advance(app)

    def _may_resize(self, attempt: SchedulerApplicationAttempt, container: RMContainer, resource: Resource) -> bool:
        old = dict(amounts_of(container.request.resource))
        grown = tuple((type_, n - old.get(type_, 0)) for type_, n in amounts_of(resource) if n > old.get(type_, 0))
        if not grown:
            return True
        app = _app_of(attempt)
        node = self._nodes.get(container.node)
        assert node is not None  # a node's containers leave the books before it does
        if full_queue(app.leaf, node.partition, grown) is not None:
            return False
        return not is_user_full(app.leaf, app.user, node.partition, grown)

    def _resized(
        self, attempt: SchedulerApplicationAttempt, container: RMContainer, before: Resource, node: SchedulerNode
    ) -> None:
        self._discharge(attempt, node.partition, amounts_of(before))
        self._charge(attempt, node.partition, amounts_of(container.request.resource))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        self._tree.grow(partition, amounts_of(capacity), sign)
        for app in self._apps.values() if self._has_fair_queues else ():
            if _queued(app).leaf.is_fair:
                _queued(app).note_share(partition)
                self._advance(_queued(app))
        if self._waiting:
            self._allocator.relieve_partition(partition, self._tree.queues())
        self._to_activate.update({leaf: None for leaf in self._activations if leaf.pending})

    def _partition_changed(self, node: SchedulerNode, before: str) -> None:
        for container_id in node.containers:
            live = self._live(container_id)
            assert live is not None  # what is in a node's books is in an attempt's
            attempt, container = live
            amounts = amounts_of(container.request.resource)
            self._discharge(attempt, before, amounts)
            self._charge(attempt, node.partition, amounts)


def _queued(app: SchedulerApplication) -> QueueApplication:
    """All applications of this scheduler are of its own kind."""
    return cast(QueueApplication, app)


def _app_of(attempt: SchedulerApplicationAttempt) -> QueueApplication:
    return attempt.app  # type: ignore[return-value]  # as above; this is asked very often, and `cast` costs more


def _priority(request: ContainerRequest) -> int:
    return request.priority


def _are_alike(requests: list[ContainerRequest]) -> bool:
    """Whether they are served one by one in any case.

    Of those that prefer some nodes, another one may be for the node that is found for the first, and partitions are
    served one after the other.
    """
    return all(
        request.host is None and request.rack is None and request.node_label == requests[0].node_label
        for request in requests
    )
