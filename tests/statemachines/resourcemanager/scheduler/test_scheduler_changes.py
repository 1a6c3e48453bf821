"""Resized and expired containers, changed and decommissioned nodes, and successive attempts."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import Resource, RMContainerEventType, RMNodeEventType
from statemachines.resourcemanager.events.records import EXIT_ABORTED

from ..cluster import Cluster

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def posted(cluster: Cluster, *types: object) -> list[object]:
    return [event for event in cluster.dispatcher.events if event.type in types]


# -- resized containers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [Resource(8, 8), Resource(2, 2), Resource(2, 8), Resource(5, 5, others=(("fpga", 1),))]
)
def test_running_container_gets_another_size(cluster: Cluster, size: Resource) -> None:
    cluster.add_node("n1", others={"fpga": 1})
    (container,) = cluster.get(cluster.new_attempt(), HALF)

    assert cluster.resize(container, size)

    assert container.request.resource == size
    (acquired,) = posted(cluster, RMContainerEventType.ACQUIRE_UPDATED_CONTAINER)
    (news,) = posted(cluster, RMNodeEventType.UPDATE_CONTAINER)
    assert (acquired.entity, acquired.resource) == (container.entity, size)  # type: ignore[attr-defined]
    assert (news.entity, news.about) == (container.node, (container.entity, size))  # type: ignore[attr-defined]
    cluster.check()


@pytest.mark.parametrize(
    "size", [Resource(11, 1), Resource(1, 11), Resource(1, 1, 1), Resource(1, 1, others=(("fpga", 1),))]
)
def test_size_that_the_node_has_no_room_for_is_refused(cluster: Cluster, size: Resource) -> None:
    cluster.add_node("n1", gpus=1)
    (container,) = cluster.get(cluster.new_attempt(), HALF)

    assert not cluster.resize(container, size)

    assert container.request.resource == HALF
    assert posted(cluster, RMContainerEventType.ACQUIRE_UPDATED_CONTAINER, RMNodeEventType.UPDATE_CONTAINER) == []
    cluster.check()


def test_only_a_running_container_gets_another_size(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, HALF)
    (container,) = cluster.pull(attempt)

    before_launch = cluster.resize(container, SMALL)
    cluster.tracker.heartbeat(container.node, launched=(container.entity,))
    cluster.finish(container)
    after_end = cluster.resize(container, SMALL)

    assert (before_launch, after_end) == (False, False)
    cluster.check()


def test_room_freed_by_a_shrunk_container_goes_to_pending_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (container,) = cluster.get(attempt, ALL)
    cluster.ask(attempt, HALF)

    cluster.resize(container, Resource(4, 4))

    assert len(cluster.pull(attempt)) == 1
    cluster.check()


def test_resized_container_returns_its_current_size(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (container,) = cluster.get(attempt, HALF)
    cluster.resize(container, Resource(9, 9))

    cluster.finish(container)

    assert len(cluster.get(attempt, ALL)) == 1
    cluster.check()


# -- expired containers ------------------------------------------------------------------------------------------------


def test_container_that_was_not_started_in_time_is_taken_back(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, ALL)
    (container,) = cluster.pull(attempt)

    cluster.expire(container)

    assert container.state.name == "EXPIRED"
    assert container.status is not None
    assert container.status.exit_status == EXIT_ABORTED
    assert len(cluster.get(attempt, ALL)) == 1
    cluster.check()


def test_container_that_runs_does_not_expire(cluster: Cluster) -> None:
    """The expiry event was queued when the node reported the container."""
    cluster.add_node("n1")
    (container,) = cluster.get(cluster.new_attempt(), ALL)

    cluster.expire(container)

    assert container.state.name == "RUNNING"
    cluster.check()


def test_increase_that_is_not_confirmed_in_time_is_taken_back(cluster: Cluster) -> None:
    cluster.add_node("n1")
    (container,) = cluster.get(cluster.new_attempt(), Resource(4, 4))
    cluster.resize(container, Resource(8, 2))

    cluster.expire(container)

    assert (container.state.name, container.request.resource) == ("RUNNING", Resource(4, 2))
    cluster.check()


# -- changed nodes -----------------------------------------------------------------------------------------------------


def test_node_with_a_larger_capacity_serves_pending_asks(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.ask(attempt, Resource(20, 10), Resource(1, 1, gpus=1))

    cluster.change_capacity(node, 21, 11, 1)

    assert len(cluster.pull(attempt)) == 2
    cluster.check()


def test_node_that_has_less_than_is_used_keeps_its_containers_and_gets_nothing(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1", gpus=2, others={"fpga": 1}), cluster.new_attempt()
    first, second = cluster.get(attempt, Resource(4, 4, 1, others=(("fpga", 1),)), Resource(4, 4, 1))

    cluster.change_capacity(node, 5)
    cluster.ask(attempt, SMALL, Resource(0, 0, 1), Resource(0, 0))

    (scheduled,) = cluster.scheduler.nodes()
    assert (scheduled.free_memory_mb, scheduled.free_gpu_milli, scheduled.free_others) == (
        -3,
        [-1000, -1000],
        {"fpga": -1},
    )
    assert [container.state.name for container in (first, second)] == ["RUNNING", "RUNNING"]
    assert cluster.pull(attempt) == []
    cluster.finish(second)
    assert [container.request.resource for container in cluster.pull(attempt)] == [SMALL, Resource(0, 0)]
    cluster.check()


def test_decommissioning_node_gets_no_new_container(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    (container,) = cluster.get(attempt, HALF)

    cluster.decommission(node)
    cluster.ask(attempt, SMALL, cluster.request(SMALL, host="n1"))
    is_resized = cluster.resize(container, Resource(4, 4))

    assert (cluster.pull(attempt), is_resized) == ([], False)
    assert container.state.name == "RUNNING"
    cluster.check()


def test_recommissioned_node_serves_pending_asks(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.get(attempt, HALF)
    cluster.decommission(node)
    cluster.ask(attempt, HALF)

    cluster.recommission(node)

    assert len(cluster.pull(attempt)) == 1
    cluster.check()


def test_node_with_a_masters_container_is_known(cluster: Cluster) -> None:
    master_node, task_node = cluster.add_node("n1"), cluster.add_node("n2")
    attempt, unmanaged = cluster.new_attempt(), cluster.new_attempt(unmanaged_am=True)
    master, _ = cluster.get(attempt, ALL, HALF)
    cluster.get(unmanaged, HALF)

    assert [cluster.scheduler.has_master_container(node) for node in (master_node, task_node)] == [True, False]
    cluster.finish(master)
    assert not cluster.scheduler.has_master_container(master_node)
    assert not cluster.scheduler.has_master_container("elsewhere:1")


# -- successive attempts -----------------------------------------------------------------------------------------------


def test_next_attempt_takes_over_the_tasks_that_run(cluster: Cluster) -> None:
    cluster.add_node("n1")
    app = cluster.add_app()
    first = cluster.add_attempt(app, 1)
    master, task = cluster.get(first, SMALL, SMALL)
    cluster.ask(first, SMALL)
    cluster.ask(first, ALL)

    cluster.remove_attempt(first, keep_containers=True)
    waiting = cluster.scheduler.waiting()
    second = cluster.add_attempt(app, 2, transfer_state=True)

    assert waiting == []
    assert [container.entity for container in cluster.scheduler.live_containers(second)] == [task.entity]
    assert (task.state.name, task.attempt) == ("RUNNING", second)
    assert master.state.name == "KILLED"
    assert cluster.scheduler.live_containers(first) == []
    cluster.check()


def test_task_that_ends_between_two_attempts_leaves_the_books(cluster: Cluster) -> None:
    cluster.add_node("n1")
    app = cluster.add_app()
    first = cluster.add_attempt(app, 1)
    _, task = cluster.get(first, SMALL, SMALL)
    cluster.remove_attempt(first, keep_containers=True)

    cluster.finish(task)
    cluster.ask(first, SMALL)

    assert cluster.pull(first) == []
    assert task.state.name == "COMPLETED"
    assert cluster.scheduler.live_containers(cluster.add_attempt(app, 2, transfer_state=True)) == []
    cluster.check()


@pytest.mark.parametrize("way", ["application removed", "next attempt without them", "next attempt removed"])
def test_kept_containers_end_once_no_attempt_can_inherit_them(cluster: Cluster, way: str) -> None:
    cluster.add_node("n1")
    app = cluster.add_app()
    first = cluster.add_attempt(app, 1)
    _, task = cluster.get(first, SMALL, SMALL)
    cluster.remove_attempt(first, keep_containers=True)

    if way == "application removed":
        cluster.remove_app(app)
    else:
        second = cluster.add_attempt(app, 2, transfer_state=way == "next attempt removed")
        if way == "next attempt removed":
            cluster.remove_attempt(second)

    assert task.state.name == "KILLED"
    cluster.check()


def test_blacklist_goes_to_the_attempt_that_takes_over(cluster: Cluster) -> None:
    cluster.add_node("n1")
    app = cluster.add_app()
    first = cluster.add_attempt(app, 1)
    cluster.blacklist(first, ("n1",))
    cluster.remove_attempt(first, keep_containers=True)
    second = cluster.add_attempt(app, 2, transfer_state=True)

    cluster.ask(second, SMALL)

    assert cluster.pull(second) == []
