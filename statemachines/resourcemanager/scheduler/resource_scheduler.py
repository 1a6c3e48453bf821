"""The scheduler as the resource manager calls it, after YARN's ResourceScheduler.

    ResourceScheduler      takes the lock; passes each event and each direct call to one of these:
      EventHandlers        nodes, applications and attempts added, changed and removed
      SchedulerBooks       pending asks, reservations, and containers: allocated, resized, released
      ClusterNodeTracker   the nodes, and the search for one with room
      SchedulingPolicy     order of service, limits and queues: FIFO's or the capacity scheduler's

Each uses only those below it. Containers are assigned in one of two ways. Event-driven: an ask gets its container when
it arrives, or as soon as a node has room; no ask stays pending that fits on a node and that the limits allow. On
heartbeats: an ask waits for the heartbeat of a node with room, and for the locality delay before it accepts a node
that it does not prefer.

Threading: events may arrive on the scheduler's own thread, direct calls on the dispatcher's handler thread. Only this
module takes the one lock. Decisions are posted to the central dispatcher under that lock, so posts keep the order of
the decisions; posting does not block.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final, NamedTuple

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.rmcontainer import RMContainerEvent, RMContainerEventType
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.records.errors import InvalidRequestError
from statemachines.resourcemanager.records.resource import MaximumAllocation, Resource
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.capacity.queue_checks import check_scheduler_queues
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    SchedulerApplicationAttempt,
)
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks, SchedulerContext
from statemachines.resourcemanager.scheduler.core.event_handlers import EventHandlers
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.placement import KnownCauses, NodeLooks, why_reserved, why_unplaced
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy
from statemachines.resourcemanager.scheduler.queue_info import ApplicationUse, NodeUse, PendingRequests, QueueInfo
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk, WaitReason

# Bound once: to look a member up in its class takes as long as a call.
_ACQUIRED: Final = RMContainerEventType.ACQUIRED
_EDIT_SCHEDULE: Final = SchedulerEventType.EDIT_SCHEDULE


class HeartbeatAnswer(NamedTuple):
    """The scheduler's answer to a master's heartbeat."""

    allocated: list[RMContainer]
    """The containers allocated since the last answer, which made them ACQUIRED."""
    headroom: Resource
    """What the attempt could still be allocated in the partitions that it asks in, by limits and free room.

    It is the sum over all nodes: not each of them may have room for a large container.
    """
    preempted: list[RMContainer]
    """The attempt's live containers that are to be preempted, and that no earlier answer has named."""


class ResourceScheduler:
    """Handles SchedulerEvents and direct calls, and posts to the central dispatcher."""

    def __init__(
        self, context: SchedulerContext, nodes: ClusterNodeTracker, policy: SchedulingPolicy, *, on_heartbeat: bool
    ) -> None:
        self._lock = threading.RLock()  # guards this scheduler and its collaborators
        self._context = context  # any thread may call its `post`
        self._on_heartbeat = on_heartbeat  # never changes
        self._nodes = nodes  # guarded by _lock
        self._policy = policy  # guarded by _lock
        self._books = SchedulerBooks(context, nodes, policy)  # guarded by _lock
        handlers = EventHandlers(context, nodes, self._books, policy, on_heartbeat=on_heartbeat)
        self._handlers = handlers.by_type  # never changes; called under _lock
        self._preemption = handlers.preemption  # guarded by _lock
        self.is_settled: bool = True
        """Whether a preemption round would do nothing, since the last one did nothing and nothing has happened since.

        Written under _lock, read without.
        """
        self._opportunity = handlers.opportunity  # never changes; called under _lock

    def handle(self, event: SchedulerEvent) -> None:
        """Handle one of the scheduler's events."""
        with self._lock:
            self._handlers[event.type._name_](event)
            is_round = event.type is _EDIT_SCHEDULE
            self.is_settled = is_round and not self._preemption.has_selected
            self._assign_containers()

    @contextmanager
    def locked(self) -> Iterator[SchedulingPolicy]:
        """Return the policy, to ask while nothing changes, for example `policy.queue_info("root.a")`."""
        with self._lock:
            yield self._policy

    # -- for masters and attempts -------------------------------------------------------------------------------------

    def ask(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None:
        """Release containers, then request new ones. Once allocated, `pull_newly_allocated` returns them.

        Blacklists name hosts, not node ids. The call does nothing for an unknown or ended attempt. You can only release
        pulled containers.
        """
        with self._lock:
            books = self._books
            attempt = books.attempts.get(attempt_id)
            if attempt is None or attempt.is_stopped:
                return
            self.is_settled = False
            for container_id in releases:
                container = attempt.live.get(container_id)
                # A container that was not pulled rejects RELEASED: it would lose its room and never end.
                if container is not None and container not in attempt.new:
                    books.end(attempt, container, RMContainerEventType.RELEASED, "released by its master")
            if self._nodes.freed:
                self._assign_containers()
            if blacklist_additions or blacklist_removals:
                blacklist = attempt.blacklist.union(blacklist_additions).difference(blacklist_removals)
                if blacklist != attempt.blacklist:
                    attempt.blacklist = blacklist
                    books.cancel_reservations(attempt)
                    books.request_again(attempt, books.withdraw(attempt))
            books.request(attempt, requests)
            if self._policy.has_work:
                self._assign_containers()

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        """Return the containers allocated since the last call, and make them ACQUIRED."""
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None or not attempt.new:
                return []
            new, attempt.new, post = attempt.new, [], self._context.post
            for container in new:
                post(RMContainerEvent(_ACQUIRED, container.entity))
            return new

    def heartbeat_answer(self, attempt_id: str) -> HeartbeatAnswer:
        """Return the scheduler's answer to a master, which is empty for an unknown or ended attempt."""
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None:
                return HeartbeatAnswer([], resource_of({}), [])
            allocated = self.pull_newly_allocated(attempt_id) if attempt.new else []
            preempted: list[RMContainer] = []
            if attempt.preempted:
                selected, attempt.preempted = attempt.preempted, {}
                preempted = [attempt.live[container_id] for container_id in selected if container_id in attempt.live]
            return HeartbeatAnswer(allocated, resource_of(self._policy.headroom(attempt)), preempted)

    def request_resize(self, container_id: str, resource: Resource) -> bool:
        """Resize a running container, or return False if its node or a limit doesn't allow it.

        Growing needs room on the node. A decommissioning node allows no resize. GPUs can't change.
        """
        with self._lock:
            live = self._books.live(container_id)
            if live is None:
                return False
            attempt, container = live
            node = self._books.node_of(container)
            if container_id not in node.launched or not self._policy.may_grow(
                attempt, node.partition, container.request.resource, resource
            ):
                return False
            is_done = self._books.resize(attempt, container, resource)
            self.is_settled = False
            self._assign_containers()
            return is_done

    def live_containers(self, attempt_id: str) -> list[RMContainer]:
        """Return the attempt's containers that haven't ended, including those inherited from the previous attempt."""
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            return list(attempt.live.values()) if attempt is not None else []

    # -- for applications ---------------------------------------------------------------------------------------------

    def maximum_allocation(self, queue: str) -> MaximumAllocation:
        """Return the largest container accepted by the queue or, if it's unknown, by the cluster.

        It's the configured one. Once nodes have had the time to register, it's also no larger than the largest of them,
        as in YARN's ClusterNodeTracker.
        """
        context = self._context
        with self._lock:
            maximum = self._policy.maximum_allocation(queue)
            if context.now_ms() - context.cluster_timestamp <= context.config.scheduler.maximum_allocation_wait_ms:
                return maximum
            return maximum.within(self._nodes.largest())

    def queue_of(self, application: str) -> str | None:
        """Return the path of the application's queue, or None if the scheduler doesn't have the application."""
        with self._lock:
            app = self._books.apps.get(application)
            return app.queue if app is not None else None

    def check_move(self, application: str, queue: str) -> str | None:
        """Return why you can't move the application to `queue`, or None if you can."""
        with self._lock:
            return self._policy.check_move(application, self._books.apps.get(application), queue)

    def move_application(self, application: str, queue: str) -> None:
        """Move the application with its containers and asks.

        Raises:
            InvalidRequestError: the application can't be moved. The message is that of `check_move`.
        """
        with self._lock:
            refusal = self.check_move(application, queue)
            if refusal is not None:
                raise InvalidRequestError(refusal)
            books, app = self._books, self._books.apps.get(application)
            if app is None or self._policy.is_in_queue(app, queue):
                return
            attempt = app.attempt
            # Between two attempts the application still refers to the old one, which the books no longer have.
            if attempt is None or attempt.id not in books.attempts or attempt.is_stopped:
                self._policy.move(app, queue, has_attempt=False)
            else:
                books.cancel_reservations(attempt)
                asks = books.withdraw(attempt)
                self._policy.move(app, queue, has_attempt=True)
                books.request_again(attempt, asks)
            self.is_settled = False
            self._assign_containers()

    def change_queues(self, config: SchedulerConfig) -> None:
        """Take the queues of another configuration, with the applications in them.

        Nothing is preempted for it: a queue beyond a lower limit gets no more containers until it is within it.

        Raises:
            ConfigError: the queues don't form a valid tree. The message names the key.
            InvalidRequestError: a queue with applications would be gone or get children, or there are no queues.
        """
        check_scheduler_queues(config)
        with self._lock:
            refusal = self._policy.why_not_configured(config)
            if refusal is not None:
                raise InvalidRequestError(refusal)
            self._policy.configure(config, self._books.apps.values())
            self._nodes.version += 1  # applications have other shares of their queues
            self.is_settled = False
            self._assign_containers()

    def update_priority(self, application: str, priority: int) -> None:
        """Change the priority of an application in the scheduler."""
        with self._lock:
            app = self._books.apps.get(application)
            if app is None:
                return
            app.priority = priority
            if app.attempt is not None:
                self._books.rank_again(app.attempt)
            self._policy.priority_changed(app)
            self.is_settled = False
            self._assign_containers()

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        """Return the application's lifetime, capped at the queue's maximum, or the queue's default, or None."""
        with self._lock:
            return self._policy.lifetime_s(submission)

    # -- for nodes, reports and checks --------------------------------------------------------------------------------

    def has_master_container(self, node_id: str) -> bool:
        """Whether a master runs on the node."""
        with self._lock:
            node = self._nodes.get(node_id)
            live = [self._books.live(container_id) for container_id in node.containers] if node is not None else []
            return any(one is not None and one[0].master == one[1].entity for one in live)

    def nodes(self) -> Iterator[SchedulerNode]:
        """Return the usable nodes."""
        with self._lock:
            return iter(list(self._nodes))

    def waiting(self) -> list[tuple[str, ContainerRequest]]:
        """Return the pending asks in order of service: (attempt id, request)."""
        with self._lock:
            allocators = self._policy.in_order(self._books.attempts.values())
            return [(allocator.attempt.id, ask.request) for allocator in allocators for ask in allocator]

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> WaitReason:
        """Return why a pending ask has no container yet, for reports. This checks each node."""
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None:
                return WaitReason(WaitCause.ENDED, f"{attempt_id} has ended")
            requirements = self._books.requirements_of(attempt, request)
            return self._why_waiting(attempt, requirements, attempt.pending.get((request.priority, requirements)))

    def waiting_asks(self, attempt_id: str, looks: NodeLooks | None = None) -> list[WaitingAsk]:
        """Return the attempt's pending asks, equal ones together, in order of service.

        `looks`: shared by the attempts of one report, to bound the report's cost.
        """
        looks = looks or NodeLooks()
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None:
                return []
            allocators = sorted(attempt.pending.values(), key=_in_service)
            return [self._waiting_ask(attempt, allocator, looks) for allocator in allocators]

    def wait_cause(self, attempt_id: str, known: KnownCauses) -> WaitCause | None:
        """Return why the first of the attempt's pending asks in order of service waits, or None if none is pending.

        `known`: shared by the attempts of one answer, so a cause that many of them have is looked for once.
        """
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None or not attempt.pending:
                return None
            allocator = min(attempt.pending.values(), key=_in_service)
            if allocator.reservations:
                return self._why_waiting(attempt, allocator.requirements, allocator, known.looks).cause
            place = self._policy.place_of(attempt)
            cause = known.get(place, allocator.requirements)
            if cause is None:
                cause = self._why_waiting(attempt, allocator.requirements, allocator, known.looks).cause
                known.put(place, allocator.requirements, cause)
            return cause

    def queues(self) -> list[QueueInfo]:
        """Return all queues, parents before children, and so the root first."""
        with self._lock:
            infos = [self._policy.queue_info(path) for path in self._policy.queue_paths()]
            return [info for info in infos if info is not None]

    def capacity_version(self) -> int:
        """Return a number that grows with each change of the queues' capacities: nodes that come, go, or change."""
        with self._lock:
            return self._nodes.version

    def application_use(self, attempt_id: str, used: Amounts | None = None) -> ApplicationUse:
        """Return the attempt's resources and pending requests, or nothing if the attempt is unknown or has ended.

        `used`: the resources of its containers, if you keep their sum. The result is then without them, and its cost
            doesn't grow with them.
        """
        with self._lock:
            attempt = self._books.attempts.get(attempt_id)
            if attempt is None:
                return ApplicationUse()
            live: tuple[RMContainer, ...] = ()
            if used is None:
                live = tuple(attempt.live.values())
                total: dict[str, int] = {}
                for resource, count in Counter([container.request.resource for container in live]).items():
                    add(total, amounts_of(resource), count)
                used = tuple(total.items())
            return ApplicationUse(
                live,
                tuple(container.request.resource for container in attempt.reservations.values()),
                tuple(map(_pending, attempt.pending.values())),
                *self._policy.usage_shares(attempt, used),
                attempt.blacklist,
            )

    def node_use(self, node_id: str) -> NodeUse:
        """Return the resources of the node's containers, or nothing if the scheduler doesn't use the node."""
        with self._lock:
            node = self._nodes.get(node_id)
            return node.use() if node is not None else NodeUse()

    # -- reasons ------------------------------------------------------------------------------------------------------

    def _why_waiting(
        self,
        attempt: SchedulerApplicationAttempt,
        requirements: NodeRequirements,
        allocator: AppPlacementAllocator | None,
        looks: NodeLooks | None = None,
    ) -> WaitReason:
        if allocator is not None and allocator.reservations:
            node = self._books.reserved_for(allocator)
            if node is not None:
                return why_reserved(node, requirements)
        held_up = self._policy.why_held_up(attempt, requirements)
        if held_up is not None:
            return held_up
        opportunity = self._opportunity() if self._on_heartbeat else None
        context = self._context
        known = (
            (node.state.name, node.spec.partition)
            for node in chain(context.nodes.values(), context.inactive_nodes.values())
        )
        if looks is None or allocator is None:
            reason = why_unplaced(self._nodes, known, requirements, allocator, opportunity)
        else:
            reason = looks.why_unplaced(self._nodes, known, requirements, allocator, opportunity)
        if reason.cause is WaitCause.HEARTBEAT:
            return self._policy.why_held_up(attempt, requirements, has_node=True) or reason
        return reason

    def _waiting_ask(
        self, attempt: SchedulerApplicationAttempt, allocator: AppPlacementAllocator, looks: NodeLooks
    ) -> WaitingAsk:
        requirements = allocator.requirements
        return WaitingAsk(
            requirements.resource,
            len(allocator),
            allocator.priority,
            requirements.partition,
            tuple(allocator.hosts()),
            allocator.first.since_ms,
            self._why_waiting(attempt, requirements, allocator, looks),
        )

    # -- assignment ---------------------------------------------------------------------------------------------------

    def _assign_containers(self) -> None:
        """At the end of each event and call: serve the pending asks that freed nodes or raised limits now allow."""
        nodes, policy = self._nodes, self._policy
        if not (nodes.freed or policy.has_work):
            return
        policy.activate_applications()
        if self._on_heartbeat:
            return
        satisfy = self._books.satisfy
        while True:
            if self._books.pending_count:
                for allocator, ask, node in policy.assign_containers(list(nodes.freed)):
                    satisfy(allocator, ask, node)
            nodes.settle_freed()
            # A user whose last ask was served is no longer active, and masters of the others may start.
            if not policy.activate_applications():
                return


def _in_service(allocator: AppPlacementAllocator) -> tuple[int, int]:
    return allocator.priority, allocator.first.arrival


def _pending(asks: AppPlacementAllocator) -> PendingRequests:
    need = asks.requirements
    return PendingRequests(need.resource, len(asks), asks.priority, need.partition, need.host, need.rack)
