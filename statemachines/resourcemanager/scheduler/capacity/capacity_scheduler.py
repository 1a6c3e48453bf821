"""A tree of queues, each with its guarantee and its limits, after YARN's CapacityScheduler.

An application runs in a leaf. It is pending until the leaf's share of masters has room for its master; then its asks
are served as far as nodes have room and the limits of its queue, of the queues above and of its user allow.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.records.resource import MaximumAllocation, Resource
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.capacity.container_allocator import ContainerAllocator
from statemachines.resourcemanager.scheduler.capacity.headroom import headroom
from statemachines.resourcemanager.scheduler.capacity.hold_ups import why_held_up
from statemachines.resourcemanager.scheduler.capacity.limits import full_queue, is_user_full, why_closed
from statemachines.resourcemanager.scheduler.capacity.preemption_candidates import preemption_candidates
from statemachines.resourcemanager.scheduler.capacity.queue_applications import Activation, QueueApplication, app_of
from statemachines.resourcemanager.scheduler.capacity.queue_infos import guaranteed_amounts, queue_info
from statemachines.resourcemanager.scheduler.capacity.queues import (
    LeafQueue,
    QueueTree,
)
from statemachines.resourcemanager.scheduler.capacity.wait_sets import service_key
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, resource_of, share_of
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.books import SchedulerContext
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import Assignment, Candidate, Reserved, SchedulingPolicy
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler
from statemachines.resourcemanager.scheduler.wait_reasons import WaitReason


class CapacityScheduler(ResourceScheduler):
    """Accepts submissions to the leaves of its tree of queues.

    Raises:
        ConfigError: the configured queues don't form a valid tree. The message names the key.
    """

    def __init__(self, context: SchedulerContext, *, on_heartbeat: bool = False) -> None:
        nodes = ClusterNodeTracker(is_searched=not on_heartbeat)
        super().__init__(context, nodes, CapacityPolicy(context.config.scheduler, nodes), on_heartbeat=on_heartbeat)


class CapacityPolicy(SchedulingPolicy):
    """The limits of queues, of users and of masters; queues by priority and utilisation."""

    application_type: ClassVar[type[SchedulerApplication]] = QueueApplication

    # All fields are guarded by the scheduler's lock.
    def __init__(self, config: SchedulerConfig, nodes: ClusterNodeTracker) -> None:
        self._config = config
        self._nodes = nodes
        self.allocator: ContainerAllocator = ContainerAllocator(
            nodes, looks_on=config.reservations_continue_look_all_nodes
        )
        self.pending = self.allocator.asks
        self.allocates_on_arrival = False
        self.tree: QueueTree = QueueTree(config)
        self.activations: dict[LeafQueue, Activation] = {leaf: Activation(leaf) for leaf in self.tree.leaves.values()}
        self._fair_apps: dict[QueueApplication, None] = {}  # in queues with the fair ordering policy
        self._to_activate: dict[LeafQueue, None] = {}  # leaves whose share of masters may have new room

    # -- order of service ---------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._to_activate) or self.allocator.has_servable

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        return self.allocator.choose(node, opportunity)

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        return self.allocator.choose_to_reserve(node, opportunity)

    def assign_containers(self, freed: Sequence[SchedulerNode]) -> Iterator[Assignment]:
        return self.allocator.assign_containers(freed)

    def in_order(self, attempts: Iterable[SchedulerApplicationAttempt]) -> list[AppPlacementAllocator]:
        """Asks of pending applications come last."""
        active: list[AppPlacementAllocator] = []
        pending: list[AppPlacementAllocator] = []
        for attempt in attempts:
            (active if app_of(attempt).is_active else pending).extend(attempt.pending.values())
        return sorted(active, key=service_key) + pending

    def arrange(
        self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]
    ) -> tuple[Iterable[ContainerRequest], bool]:
        """Sorted by priority; allocated on arrival if later requests cannot change what earlier ones get."""
        if not self._nodes.is_searched or self._nodes.freed or not app_of(attempt).is_active:
            return requests, False
        requests = list(requests)
        on_arrival = len(requests) == 1 or _are_alike(requests)
        if len(requests) > 1:
            requests.sort(key=_priority)
        return requests, on_arrival

    # -- limits -------------------------------------------------------------------------------------------------------

    def may_allocate(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        return self.allocator.may_allocate(attempt, requirements)

    def must_unreserve(self, allocator: AppPlacementAllocator) -> bool:
        return self.allocator.must_unreserve(allocator)

    def may_grow(self, attempt: SchedulerApplicationAttempt, partition: str, old: Resource, new: Resource) -> bool:
        had = dict(amounts_of(old))
        grown = tuple((type_, n - had.get(type_, 0)) for type_, n in amounts_of(new) if n > had.get(type_, 0))
        if not grown:
            return True
        app = app_of(attempt)
        if full_queue(app.leaf, partition, grown, self.allocator.unreserved) is not None:
            return False
        return not is_user_full(app.leaf, app.user, partition, grown)

    def maximum_allocation(self, queue: str) -> MaximumAllocation:
        leaf = self.tree.leaf(queue)
        return self.tree.maximum_allocation if leaf is None else leaf.maximum_allocation

    def headroom(self, attempt: SchedulerApplicationAttempt) -> Mapping[str, int]:
        app = app_of(attempt)
        total: dict[str, int] = {}
        for partition in attempt.asked_partitions():
            asks = [r.resource for _, r in attempt.pending if r.partition == partition]
            required = amounts_of(asks[0]) if asks else ()
            add(total, headroom(app.leaf, app.user, partition, required))
        return total

    def why_held_up(
        self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, *, has_node: bool = False
    ) -> WaitReason | None:
        app = app_of(attempt)
        is_first = self.activations[app.leaf].is_first(app)
        return why_held_up(app, requirements, self.allocator.unreserved, is_first=is_first, has_node=has_node)

    def place_of(self, attempt: SchedulerApplicationAttempt) -> Hashable:
        app = app_of(attempt)
        return app.leaf.path, app.user, app.is_active, app.master_partition, app.master_amounts

    def preemption_candidates(
        self, attempts: Iterable[SchedulerApplicationAttempt], reserved: Iterable[Reserved]
    ) -> list[Candidate]:
        return preemption_candidates(self.tree, self._config.preemption, self._nodes, attempts, reserved)

    # -- usage --------------------------------------------------------------------------------------------------------

    def pending_changed(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, delta: int) -> None:
        app = app_of(attempt)
        app.leaf.users[app.user].add_pending(requirements, delta)
        if app.is_active and app.leaf.add_asks(app.user, delta):
            # One active user fewer raises the limits of the others, in every partition.
            if app.leaf.pending:
                self._to_activate[app.leaf] = None
            for partition in app.leaf.shares:
                self.allocator.user_limits_grew(app.leaf, partition)

    def charge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        app = app_of(attempt)
        app.charge(partition, amounts_of(resource))
        # Beyond the queue's guarantee, the user limit grows with the queue's usage.
        self.allocator.user_limits_grew(app.leaf, partition, beyond_guarantee=True)

    def discharge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        app = app_of(attempt)
        app.charge(partition, amounts_of(resource), -1)
        self.allocator.usage_shrank(app.leaf, partition, app.user)
        if app.leaf.is_fair:
            self._move_up(app)

    def reservation_changed(
        self, allocator: AppPlacementAllocator, partition: str, resource: Resource, sign: int
    ) -> None:
        app = app_of(allocator.attempt)
        app.leaf.charge_reservation(app.user, partition, amounts_of(resource), sign)
        self.allocator.note_holder(allocator)

    def capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        self.tree.grow(partition, amounts_of(capacity), sign)
        for app in self._fair_apps:
            app.note_share(partition)
            self._move_up(app)
        self.allocator.partition_resized(partition, self.tree.queues())
        self._to_activate.update({leaf: None for leaf in self.activations if leaf.pending})

    def _move_up(self, app: QueueApplication) -> None:
        """Sort again an active application's asks, or a pending application: its position may have improved."""
        if app.is_active and app.attempt is not None:
            self.allocator.asks.move_up(app.attempt)
        else:
            self.activations[app.leaf].reorder(app)

    # -- applications -------------------------------------------------------------------------------------------------

    def add_app(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        submission = app.submission
        leaf = self.tree.leaf(submission.queue)
        # A recovered application was accepted before: it is refused only if its queue no longer exists.
        if leaf is None or not is_recovering:
            refusal = self.check_submission(submission)
            if refusal is not None:
                return refusal
        assert leaf is not None  # otherwise refused
        self._enter(_queued(app), leaf)
        return None

    def remove_app(self, app: SchedulerApplication) -> None:
        self._leave(_queued(app))

    def _enter(self, app: QueueApplication, leaf: LeafQueue) -> None:
        app.enter(leaf)
        if leaf.is_fair:
            self._fair_apps[app] = None

    def _leave(self, app: QueueApplication) -> None:
        self._fair_apps.pop(app, None)
        app.leaf.leave(app.user)

    def add_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        app = app_of(attempt)
        self.activations[app.leaf].add(app)
        if attempt.master is not None:  # recovered or moved: its master runs already
            self._activate(app)
        self._to_activate[app.leaf] = None

    def remove_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        app = app_of(attempt)
        self.activations[app.leaf].remove(app)
        self._to_activate[app.leaf] = None

    def activate_applications(self) -> bool:
        is_any = False
        while self._to_activate:
            leaf, _ = self._to_activate.popitem()
            while (app := self.activations[leaf].next()) is not None:
                self._activate(app)
                is_any = True
        return is_any

    def _activate(self, app: QueueApplication) -> None:
        self.activations[app.leaf].activate(app)
        attempt = app.attempt
        assert attempt is not None  # a pending application has one
        app.leaf.add_asks(app.user, attempt.pending_count)
        for allocator in attempt.pending.values():
            self.pending.add(allocator)

    def priority_changed(self, app: SchedulerApplication) -> None:
        self.activations[_queued(app).leaf].reorder(_queued(app))

    def default_label(self, app: SchedulerApplication) -> str:
        return _queued(app).default_partition

    # -- queues -------------------------------------------------------------------------------------------------------

    def why_not_configured(self, config: SchedulerConfig) -> str | None:
        return self.tree.why_kept(config)

    def configure(self, config: SchedulerConfig, applications: Iterable[SchedulerApplication]) -> None:
        was_fair = {leaf: leaf.is_fair for leaf in self.activations}
        self.tree.configure(config)
        self._config = config
        kept = self.activations
        self.activations = {leaf: kept.get(leaf) or Activation(leaf) for leaf in self.tree.leaves.values()}
        resorted = {leaf for leaf, is_fair in was_fair.items() if leaf in self.activations and leaf.is_fair != is_fair}
        if resorted:
            self._sort_again([app for app in map(_queued, applications) if app.leaf in resorted])
        queues = list(self.tree.queues())
        for partition in dict.fromkeys(name for queue in queues for name in queue.shares):
            self.allocator.partition_resized(partition, queues)
        self._to_activate = {leaf: None for leaf in self.activations if leaf.pending}

    def _sort_again(self, applications: Sequence[QueueApplication]) -> None:
        """Sort the applications and their asks again: the ordering policy of their leaves has changed."""
        for app in applications:
            attempt = app.attempt
            allocators = list(attempt.pending.values()) if attempt is not None else []
            for allocator in allocators:
                self.allocator.asks.remove(allocator)
            app.recount(self._held(app, with_reserved=True))
            self._fair_apps.pop(app, None)
            if app.leaf.is_fair:
                self._fair_apps[app] = None
            self.activations[app.leaf].reorder(app)
        for app in applications:
            # Once all are out: the order of asks that wait together is fixed when the first of them comes.
            for allocator in app.attempt.pending.values() if app.attempt is not None else ():
                self.allocator.asks.add(allocator)

    def queue_paths(self) -> list[str]:
        return [queue.path for queue in self.tree.queues()]

    def queue_info(self, path: str) -> QueueInfo | None:
        queue = self.tree.find(path)
        return queue_info(queue) if queue is not None and queue.path == path else None

    def usage_shares(self, attempt: SchedulerApplicationAttempt, used: Amounts) -> tuple[float, float]:
        total: dict[str, int] = {}
        for of_partition in self.tree.totals.values():
            add(total, of_partition.items())
        return share_of(used, guaranteed_amounts(app_of(attempt).leaf)), share_of(used, total)

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        return why_closed(self.tree, submission.queue, submission.user, submission.labels)

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        leaf = self.tree.leaf(submission.queue)
        return leaf.lifetime_s(submission.lifetime_s) if leaf is not None else submission.lifetime_s

    def check_move(self, application: str, app: SchedulerApplication | None, queue: str) -> str | None:
        if app is None:
            return f"{application} is not in the scheduler: it has ended, or has not been accepted yet"
        app, leaf = _queued(app), self.tree.leaf(queue)
        if leaf is app.leaf:
            return None
        refusal = why_closed(self.tree, queue, app.user, app.submission.labels, app.leaf.lineage)
        if leaf is None or refusal is not None:
            return refusal
        by_partition: dict[str, dict[str, int]] = {}
        for partition, amounts in self._held(app):
            add(by_partition.setdefault(partition, {}), amounts)
        for partition, amounts_held in by_partition.items():
            for above in leaf.lineage:
                if above not in app.leaf.lineage and not above.share(partition).has_room(tuple(amounts_held.items())):
                    return (
                        f"the containers of {app.id} use {resource_of(amounts_held)}{_in(partition)}, which would "
                        f"bring queue {above.path} beyond its maximum capacity, "
                        f"{resource_of(above.share(partition).limit)}"
                    )
        return None

    def is_in_queue(self, app: SchedulerApplication, queue: str) -> bool:
        return self.tree.leaf(queue) is _queued(app).leaf

    def move(self, app: SchedulerApplication, queue: str, *, has_attempt: bool) -> None:
        app, leaf = _queued(app), self.tree.leaf(queue)
        assert leaf is not None  # see check_move
        old, held, attempt = app.leaf, self._held(app), app.attempt
        self.activations[old].remove(app)
        for partition, amounts in held:
            app.charge(partition, amounts, -1)
        self._leave(app)
        self._enter(app, leaf)
        for partition, amounts in held:
            app.charge(partition, amounts)
        for partition in dict(held):
            self.allocator.usage_shrank(old, partition, app.user)
            self.allocator.user_limits_grew(leaf, partition)
        self._to_activate |= {old: None, leaf: None}
        if has_attempt:
            assert attempt is not None
            attempt.default_label = app.default_partition
            self.add_attempt(attempt)

    def _held(self, app: SchedulerApplication, *, with_reserved: bool = False) -> list[tuple[str, Amounts]]:
        """Each container's partition and amounts."""
        held: list[tuple[str, Amounts]] = []
        attempt = app.attempt
        containers = list(attempt.live.values()) if attempt is not None else []
        if attempt is not None and with_reserved:
            containers += attempt.reservations.values()
        for container in containers:
            node = self._nodes.get(container.node)
            assert node is not None  # a node's containers leave the books before the node
            held.append((node.partition, amounts_of(container.request.resource)))
        return held


def _queued(app: SchedulerApplication) -> QueueApplication:
    """This scheduler's applications are all QueueApplications."""
    return cast(QueueApplication, app)


def _priority(request: ContainerRequest) -> int:
    return request.priority


def _are_alike(requests: list[ContainerRequest]) -> bool:
    """Whether the requests may be served one by one, without a look at the later ones.

    Not with preferred nodes: a later request may prefer the node that is found for the first. Nor in several
    partitions, which are served one after the other.
    """
    return all(
        request.host is None and request.rack is None and request.node_label == requests[0].node_label
        for request in requests
    )


def _in(partition: str) -> str:
    return f" of partition {partition}" if partition else ""
