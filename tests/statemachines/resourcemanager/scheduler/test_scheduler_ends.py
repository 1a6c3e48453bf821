"""Attempts, nodes and containers that end: the scheduler releases and forgets what belongs to them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sized

import pytest

from statemachines.resourcemanager import ContainerRequest, ContainerStatus, Resource, RMContainer, RMNodeEventType
from statemachines.resourcemanager.events.records import EXIT_ABORTED
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.events.scheduler import NodeAddedSchedulerEvent, SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler

from ..cluster import Cluster

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def test_removed_attempt_loses_its_containers_and_its_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt, other = cluster.new_attempt(), cluster.new_attempt()
    containers = cluster.get(attempt, HALF, SMALL)
    cluster.ask(attempt, ALL, HALF, Resource(99, 1))
    cluster.ask(other, HALF)
    cluster.news.clear()

    cluster.remove_attempt(attempt)

    assert [container.state.name for container in containers] == ["KILLED", "KILLED"]
    ends = [event.status for event in cluster.news if event.type.name == "CONTAINER_FINISHED"]
    assert ends == [ContainerStatus(container.entity, EXIT_ABORTED, "its attempt ended") for container in containers]
    assert cluster.scheduler.waiting() == []
    assert len(cluster.pull(other)) == 1
    cluster.check()


def test_ask_whose_container_is_lost_before_its_master_pulls_it_gets_another_one(cluster: Cluster) -> None:
    """It was forgotten: a master counts what it has pulled, and waited forever."""
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    (master,) = cluster.get(attempt, SMALL)
    cluster.ask(attempt, HALF)

    cluster.lose_node(node)
    cluster.add_node("n2")

    assert master.state.name == "KILLED"
    assert [container.request.resource for container in cluster.pull(attempt)] == [HALF]
    assert cluster.scheduler.waiting() == []
    cluster.check()


def test_attempt_fails_whose_master_is_lost_before_it_is_launched_and_asks_for_no_other_one(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.ask(attempt, SMALL)

    cluster.lose_node(node)

    assert cluster.scheduler.waiting() == []
    assert "CONTAINER_FINISHED" in [event.type.name for event in cluster.news]


@pytest.mark.parametrize("way", ["lost", "unhealthy"])
def test_node_that_goes_takes_its_containers_with_it(cluster: Cluster, way: str) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    containers = cluster.get(attempt, HALF)
    cluster.ask(attempt, SMALL)
    cluster.news.clear()

    if way == "lost":
        cluster.lose_node(node)
    else:
        cluster.tracker.heartbeat(node, healthy=False)

    assert containers[0].state.name == "KILLED"
    assert [event.status.exit_status for event in cluster.news] == [EXIT_ABORTED, EXIT_ABORTED]
    assert list(cluster.scheduler.nodes()) == []
    assert cluster.pull(attempt) == []
    cluster.check()


def test_node_added_again_has_all_its_room(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.get(attempt, ALL)
    cluster.lose_node(node)

    cluster.add_node("n1")

    assert len(cluster.get(attempt, ALL)) == 1
    cluster.check()


def test_late_news_of_a_container_that_has_ended_changes_nothing(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (container,) = cluster.get(attempt, HALF)
    cluster.remove_attempt(attempt)

    cluster.finish(container)

    assert container.state.name == "KILLED"
    cluster.check()


def test_node_that_is_announced_twice_keeps_its_books(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    cluster.get(cluster.new_attempt(), HALF)

    cluster.dispatcher.event_handler.handle(NodeAddedSchedulerEvent(node))

    assert [node.free_memory_mb for node in cluster.scheduler.nodes()] == [5]
    cluster.check()


def test_attempt_that_was_removed_gets_nothing(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.remove_attempt(attempt)
    cluster.remove_attempt(attempt)

    cluster.ask(attempt, SMALL)

    assert cluster.pull(attempt) == []
    assert (cluster.scheduler.waiting(), cluster.context.containers) == ([], {})


def test_events_of_removed_nodes_have_no_effect(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    cluster.lose_node(node)

    cluster.lose_node(node)
    cluster.tracker.heartbeat(node)
    cluster.dispatcher.event_handler.handle(RMNodeEvent(RMNodeEventType.STARTED, node))

    assert list(cluster.scheduler.nodes()) == []
    cluster.check()


@pytest.mark.long
def test_container_that_has_ended_is_not_kept_while_its_attempt_lives_on(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    before = count_containers()

    cluster.finish(cluster.get(attempt, SMALL)[0])
    cluster.ask(attempt, releases=(cluster.get(attempt, SMALL)[0].entity,))
    cluster.news.clear()
    cluster.dispatcher.events.clear()

    assert count_containers() == before


def count_containers() -> int:
    gc.collect()
    return sum(type(thing) is RMContainer for thing in gc.get_objects())


def test_nothing_is_kept_of_applications_and_nodes_that_are_gone(cluster: Cluster) -> None:
    def sizes() -> dict[str, int]:
        return {name: len(value) for name, value in vars(cluster.scheduler).items() if isinstance(value, Sized)}

    before = sizes()
    node, app = cluster.add_node("n1", gpus=1), cluster.add_app()
    attempt = cluster.add_attempt(app)
    cluster.get(attempt, HALF, Resource(1, 1, 1))
    cluster.ask(attempt, ALL, HALF)

    cluster.remove_attempt(attempt)
    cluster.remove_app(app)
    cluster.lose_node(node)

    assert sizes() == before


class CountedLock:
    """Stands in for the scheduler's lock."""

    def __init__(self) -> None:
        self.taken = 0
        self.held = 0

    def __enter__(self) -> None:
        self.taken += 1
        self.held += 1

    def __exit__(self, *error: object) -> None:
        self.held -= 1


CALLS: dict[str, Callable[[ResourceScheduler, str], object]] = {
    "handle": lambda scheduler, attempt: scheduler.handle(SchedulerEvent(SchedulerEventType.NODE_UPDATE, "n1:45454")),
    "allocate": lambda scheduler, attempt: scheduler.ask(attempt, [ContainerRequest(SMALL)]),
    "pull_newly_allocated": lambda scheduler, attempt: scheduler.pull_newly_allocated(attempt),
    "request_resize": lambda scheduler, attempt: scheduler.request_resize("container", SMALL),
    "queue_of": lambda scheduler, attempt: scheduler.queue_of("application"),
    "update_priority": lambda scheduler, attempt: scheduler.update_priority("application", 1),
    "live_containers": lambda scheduler, attempt: scheduler.live_containers(attempt),
    "has_master_container": lambda scheduler, attempt: scheduler.has_master_container("n1:45454"),
    "nodes": lambda scheduler, attempt: scheduler.nodes(),
    "waiting": lambda scheduler, attempt: scheduler.waiting(),
    "why_waiting": lambda scheduler, attempt: scheduler.why_waiting(attempt, ContainerRequest(SMALL)),
    "queues": lambda scheduler, attempt: scheduler.queues(),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_acquires_and_releases_the_lock(cluster: Cluster, call: str) -> None:
    """Events arrive on a different thread than direct calls."""
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    lock = CountedLock()
    cluster.scheduler._lock = lock  # type: ignore[assignment]

    cluster.in_handler(lambda: CALLS[call](cluster.scheduler, attempt))

    assert lock.taken >= 1
    assert lock.held == 0


def test_nodes_may_be_added_during_an_iteration_over_them(cluster: Cluster) -> None:
    cluster.add_node("n1")
    nodes = cluster.scheduler.nodes()

    cluster.add_node("n2")

    assert [node.host for node in nodes] == ["n1"]
