"""The scheduler's collaborators on their own: books and a policy without a scheduler."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ApplicationSubmission, ContainerRequest, Resource
from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    SchedulerApplication,
    SchedulerApplicationAttempt,
)
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.fifo import FifoPolicy
from statemachines.simulation.workload import NodeSpec

from ..builders import Workshop

ALL = ContainerRequest(Resource(10, 10))
HALF = ContainerRequest(Resource(5, 5))


class ChargedPolicy(FifoPolicy):
    """Records what it is charged with."""

    def __init__(self, nodes: ClusterNodeTracker) -> None:
        super().__init__(SchedulerConfig(), nodes)
        self.charged: list[Resource] = []

    def charge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        self.charged.append(resource)

    def discharge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        self.charged.remove(resource)


class Collaborators:
    """The books of one node of 10, with two attempts."""

    def __init__(self, workshop: Workshop, *, on_heartbeat: bool = False) -> None:
        self.posted = workshop.posted
        self.nodes = ClusterNodeTracker(is_searched=not on_heartbeat)
        self.policy = ChargedPolicy(self.nodes)
        self.books = SchedulerBooks(workshop.context, self.nodes, self.policy)
        self.node = SchedulerNode("n1:1", NodeSpec("n1", Resource(10, 10)))
        self.nodes.add(self.node)
        self.first, self.second = self._attempt(1), self._attempt(2)

    def _attempt(self, number: int) -> SchedulerApplicationAttempt:
        app = SchedulerApplication(f"application_0_{number:04d}", ApplicationSubmission("job", HALF.resource), number)
        attempt = SchedulerApplicationAttempt(f"appattempt_0_{number:04d}_000001", app, 0, "")
        self.books.apps[app.id], self.books.attempts[attempt.id] = app, attempt
        self.policy.add_app(app, False)
        return attempt

    def reserve(self) -> AppPlacementAllocator:
        """Reserve the node for an ask of the second attempt."""
        self.books.request(self.second, [ALL])
        (allocator,) = self.second.pending.values()
        self.books.reserve(self.node, allocator)
        self.posted.events.clear()
        return allocator


@pytest.fixture
def event_driven(workshop: Workshop) -> Collaborators:
    return Collaborators(workshop)


@pytest.fixture
def on_heartbeats(workshop: Workshop) -> Collaborators:
    return Collaborators(workshop, on_heartbeat=True)


# -- books ------------------------------------------------------------------------------------------------------------


def test_books_allocate_a_request_that_fits(event_driven: Collaborators) -> None:
    event_driven.books.request(event_driven.first, [HALF])

    (container,) = event_driven.first.new
    assert container.node == event_driven.node.node_id
    assert event_driven.posted.news() == ["RMContainer START"]


def test_books_keep_a_request_without_room_pending(event_driven: Collaborators) -> None:
    event_driven.books.request(event_driven.first, [ALL, HALF])

    assert (len(event_driven.first.new), event_driven.first.pending_count, event_driven.books.pending_count) == (
        1,
        1,
        1,
    )


def test_books_charge_the_policy_until_the_release(event_driven: Collaborators) -> None:
    event_driven.books.request(event_driven.first, [ALL])
    charged = list(event_driven.policy.charged)

    event_driven.books.release(event_driven.first, event_driven.first.new[0])

    assert (charged, event_driven.policy.charged, event_driven.node.free_memory_mb) == ([ALL.resource], [], 10)


def test_withdrawn_asks_come_in_order_of_arrival(on_heartbeats: Collaborators) -> None:
    urgent = HALF._replace(priority=-1)
    on_heartbeats.books.request(on_heartbeats.first, [ALL, urgent, HALF])

    asks = on_heartbeats.books.withdraw(on_heartbeats.first)

    assert [ask.request for ask in asks] == [ALL, urgent, HALF]
    assert on_heartbeats.books.pending_count == 0


# -- reservations -----------------------------------------------------------------------------------------------------


def test_reservation_holds_the_node_and_is_charged(on_heartbeats: Collaborators) -> None:
    allocator = on_heartbeats.reserve()

    assert on_heartbeats.node.reserved_container is not None
    assert (allocator.reservations, on_heartbeats.policy.charged) == (1, [ALL.resource])


def test_cancelled_reservation_kills_its_container(on_heartbeats: Collaborators) -> None:
    on_heartbeats.reserve()

    on_heartbeats.books.cancel_reservations(on_heartbeats.second)

    assert (on_heartbeats.node.reserved_container, on_heartbeats.policy.charged) == (None, [])
    assert on_heartbeats.posted.news() == ["RMContainer KILL"]


def test_reserved_container_is_allocated_once_there_is_room(on_heartbeats: Collaborators) -> None:
    on_heartbeats.node.take("other", HALF.resource)
    on_heartbeats.reserve()
    reserved = on_heartbeats.node.reserved_container
    assert reserved is not None
    before = on_heartbeats.books.grant_reserved(on_heartbeats.node, reserved)

    on_heartbeats.node.give_back("other")
    after = on_heartbeats.books.grant_reserved(on_heartbeats.node, reserved)

    assert (before, after, on_heartbeats.second.new) == (False, True, [reserved])


# -- a policy ---------------------------------------------------------------------------------------------------------


def test_fifo_policy_assigns_the_older_application_first(on_heartbeats: Collaborators) -> None:
    for attempt in (on_heartbeats.second, on_heartbeats.first):
        on_heartbeats.books.request(attempt, [ALL])

    allocator, _, node = next(on_heartbeats.policy.assign_containers([on_heartbeats.node]))

    assert (allocator.attempt, node) == (on_heartbeats.first, on_heartbeats.node)


def test_fifo_policy_passes_over_an_ask_that_does_not_fit(on_heartbeats: Collaborators) -> None:
    on_heartbeats.node.take("other", HALF.resource)
    on_heartbeats.books.request(on_heartbeats.first, [ALL])
    on_heartbeats.books.request(on_heartbeats.second, [HALF])

    allocator, _, _ = next(on_heartbeats.policy.assign_containers([on_heartbeats.node]))

    assert allocator.attempt is on_heartbeats.second


def test_fifo_policy_knows_its_one_queue_only(on_heartbeats: Collaborators) -> None:
    answers = [on_heartbeats.policy.check_move("application_0_0001", None, queue) for queue in ("default", "other")]

    assert answers == [None, "queue 'other' does not exist: the FIFO scheduler has only root.default"]
