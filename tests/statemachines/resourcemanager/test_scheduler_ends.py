"""The scheduler when attempts end, nodes go and containers are gone: what is given up, and what is not kept."""

from __future__ import annotations

import gc
from collections.abc import Sized

import pytest

from statemachines.resourcemanager import Resource, RMContainer
from statemachines.resourcemanager.events import (
    EXIT_ABORTED,
    ContainerStatus,
    RMNodeEvent,
    RMNodeEventType,
    SchedulerEvent,
    SchedulerEventType,
)

from .cluster import Cluster

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def test_removed_attempt_loses_its_containers_and_its_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt, other = cluster.new_attempt(), cluster.new_attempt()
    containers = cluster.get(attempt, HALF, SMALL)
    cluster.ask(attempt, ALL, HALF, Resource(99, 1))
    cluster.ask(other, HALF)
    cluster.told.clear()

    cluster.remove_attempt(attempt)

    assert [container.state.name for container in containers] == ["KILLED", "KILLED"]
    ends = [event.status for event in cluster.told if event.type.name == "CONTAINER_FINISHED"]
    assert ends == [ContainerStatus(container.entity, EXIT_ABORTED, "its attempt ended") for container in containers]
    assert cluster.scheduler.waiting() == []
    assert len(cluster.pull(other)) == 1
    cluster.check()


@pytest.mark.parametrize("way", ["lost", "unhealthy"])
def test_node_that_goes_takes_its_containers_with_it(cluster: Cluster, way: str) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    containers = cluster.get(attempt, HALF)
    cluster.ask(attempt, SMALL)
    cluster.told.clear()

    if way == "lost":
        cluster.lose_node(node)
    else:
        cluster.tracker.heartbeat(node, healthy=False)

    assert containers[0].state.name == "KILLED"
    assert [event.status.exit_status for event in cluster.told] == [EXIT_ABORTED, EXIT_ABORTED]
    assert list(cluster.scheduler.nodes()) == []
    assert cluster.pull(attempt) == []
    cluster.check()


def test_node_that_comes_back_has_all_its_room(cluster: Cluster) -> None:
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


def test_node_that_registers_or_is_announced_twice_keeps_its_books(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    cluster.get(cluster.new_attempt(), HALF)

    cluster.add_node("n1")
    cluster.dispatcher.event_handler.handle(SchedulerEvent(SchedulerEventType.NODE_ADDED, node))

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


def test_events_of_nodes_that_are_gone_are_for_nobody(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    cluster.lose_node(node)

    cluster.lose_node(node)
    cluster.tracker.heartbeat(node)
    cluster.dispatcher.event_handler.handle(RMNodeEvent(RMNodeEventType.STARTED, node))

    assert list(cluster.scheduler.nodes()) == []
    cluster.check()


def test_container_that_has_ended_is_not_kept_while_its_attempt_lives_on(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    before = count_containers()

    cluster.finish(cluster.get(attempt, SMALL)[0])
    cluster.ask(attempt, releases=(cluster.get(attempt, SMALL)[0].entity,))
    cluster.told.clear()
    cluster.dispatcher.events.clear()

    assert count_containers() == before


def count_containers() -> int:
    gc.collect()
    return sum(isinstance(thing, RMContainer) for thing in gc.get_objects())


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
