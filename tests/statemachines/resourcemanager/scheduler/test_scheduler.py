"""First come, first served: which ask gets which node, and when."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.resourcemanager.records.errors import InvalidRequestError
from statemachines.resourcemanager.records.ids import application_of

from ..cluster import Cluster

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def test_application_and_attempt_hear_that_they_are_accepted(cluster: Cluster) -> None:
    app = cluster.add_app()

    attempt = cluster.add_attempt(app)

    assert cluster.news_names() == [f"APP_ACCEPTED {app}", f"ATTEMPT_ADDED {attempt}"]


def test_container_is_allocated_at_once_where_there_is_room(cluster: Cluster) -> None:
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()

    cluster.ask(attempt, HALF)

    (container,) = cluster.context.containers.values()
    assert (container.entity, container.node, container.state.name) == ("container_0_0001_01_000001", node, "ALLOCATED")
    assert (container.attempt, container.application) == (attempt, "application_0_0001")
    assert cluster.news_names()[-1] == f"CONTAINER_ALLOCATED {attempt}"
    cluster.check()


def test_allocated_containers_are_fetched_once_and_acquired_by_that(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, SMALL, HALF)

    fetched, again = cluster.pull(attempt), cluster.pull(attempt)

    assert [container.request.resource for container in fetched] == [SMALL, HALF]
    assert [container.state.name for container in fetched] == ["ACQUIRED", "ACQUIRED"]
    assert again == []


def test_containers_are_numbered_per_attempt(cluster: Cluster) -> None:
    cluster.add_node("n1")
    app = cluster.add_app()

    ids = [
        [container.entity for container in cluster.get(cluster.add_attempt(app, number), SMALL, SMALL)]
        for number in (1, 2)
    ]

    assert ids == [[f"container_0_0001_{attempt:02d}_{number:06d}" for number in (1, 2)] for attempt in (1, 2)]


# -- which node -------------------------------------------------------------------------------------------------------


def test_node_found_last_is_filled_before_the_next(cluster: Cluster) -> None:
    for host in ("n1", "n2", "n3"):
        cluster.add_node(host)

    containers = cluster.get(cluster.new_attempt(), *[HALF] * 6)

    assert cluster.where(containers) == ["n1", "n1", "n2", "n2", "n3", "n3"]


def test_search_continues_at_the_node_found_last_even_if_an_earlier_one_has_room_again(cluster: Cluster) -> None:
    for host in ("n1", "n2"):
        cluster.add_node(host)
    attempt = cluster.new_attempt()
    first, *_ = cluster.get(attempt, *[HALF] * 3)
    cluster.finish(first)

    containers = cluster.get(attempt, HALF, HALF)

    assert cluster.where(containers) == ["n2", "n1"]


def test_preferred_node_is_taken_while_it_has_room(cluster: Cluster) -> None:
    for host in ("n1", "n2"):
        cluster.add_node(host)

    containers = cluster.get(cluster.new_attempt(), *[cluster.request(HALF, host="n2") for _ in range(3)])

    assert cluster.where(containers) == ["n2", "n2", "n1"]


def test_ask_does_not_wait_for_a_preferred_node_that_does_not_exist(cluster: Cluster) -> None:
    cluster.add_node("n1")

    containers = cluster.get(cluster.new_attempt(), cluster.request(HALF, host="elsewhere"))

    assert cluster.where(containers) == ["n1"]


def test_gpu_nodes_are_kept_for_asks_that_need_gpus(cluster: Cluster) -> None:
    cluster.add_node("gpu", gpus=1)
    cluster.add_node("plain")

    containers = cluster.get(cluster.new_attempt(), ALL, HALF)

    assert cluster.where(containers) == ["plain", "gpu"]


def test_gpus_are_found_on_nodes_that_have_them(cluster: Cluster) -> None:
    cluster.add_node("plain")
    cluster.add_node("gpu", gpus=2)

    containers = cluster.get(cluster.new_attempt(), *[Resource(1, 1, gpus=1)] * 3)

    assert cluster.where(containers) == ["gpu", "gpu"]
    assert [container.gpu_devices for container in containers] == [(0,), (1,)]
    assert len(cluster.scheduler.waiting()) == 1


def test_only_nodes_of_the_named_models_will_do(cluster: Cluster) -> None:
    for host, model in (("n1", "T4"), ("n2", "V100"), ("n3", "")):
        cluster.add_node(host, gpus=1, model=model)
    request = cluster.request(Resource(1, 1, gpus=1), gpu_models=frozenset({"V100", "P100"}))

    containers = cluster.get(cluster.new_attempt(), request, request)

    assert cluster.where(containers) == ["n2"]
    assert len(cluster.scheduler.waiting()) == 1


# -- pending asks and their order --------------------------------------------------------------------------------------


def test_ask_without_room_waits_and_is_listed(cluster: Cluster) -> None:
    cluster.add_node("n1")
    first, second = cluster.new_attempt(), cluster.new_attempt()

    cluster.ask(first, ALL)
    cluster.ask(second, SMALL)

    assert [(attempt, request.resource) for attempt, request in cluster.scheduler.waiting()] == [(second, SMALL)]
    assert cluster.pull(second) == []


def test_earlier_application_comes_first_even_if_it_asks_later(cluster: Cluster) -> None:
    cluster.add_node("n1")
    early, late = cluster.new_attempt(), cluster.new_attempt()
    (blocker,) = cluster.get(early, ALL)
    cluster.ask(late, ALL)
    cluster.ask(early, ALL)

    cluster.finish(blocker)

    assert len(cluster.pull(early)) == 1
    assert [attempt for attempt, _ in cluster.scheduler.waiting()] == [late]


def test_second_attempt_keeps_its_applications_place(cluster: Cluster) -> None:
    cluster.add_node("n1")
    early, late = cluster.add_app(), cluster.new_attempt()
    (blocker,) = cluster.get(late, ALL)
    cluster.ask(late, ALL)
    cluster.remove_attempt(cluster.add_attempt(early, 1))
    again = cluster.add_attempt(early, 2)
    cluster.ask(again, ALL)

    cluster.finish(blocker)

    assert len(cluster.pull(again)) == 1


def test_more_urgent_asks_of_an_application_come_first_then_the_older(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (blocker,) = cluster.get(attempt, ALL)
    asks = [cluster.request(HALF, priority=priority) for priority in (20, 5, 20, 5)]
    cluster.ask(attempt, *asks)

    order = cluster.waiting_tags()
    cluster.finish(blocker)

    assert order == [asks[index].tag for index in (1, 3, 0, 2)]
    assert [container.request.tag for container in cluster.pull(attempt)] == order[:2]


def test_ask_that_no_node_can_take_does_not_block_later_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    giant, small = cluster.new_attempt(), cluster.new_attempt()
    cluster.ask(giant, Resource(11, 1))

    cluster.ask(small, SMALL)

    assert len(cluster.pull(small)) == 1
    cluster.check()


def test_freed_node_serves_several_shapes_in_order_as_far_as_it_goes(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempts = [cluster.new_attempt() for _ in range(5)]
    (blocker,) = cluster.get(attempts[0], ALL)
    for attempt, memory_mb in zip(attempts[1:], (6, 5, 3, 1), strict=True):
        cluster.ask(attempt, Resource(memory_mb, 1))

    cluster.finish(blocker)

    assert [len(cluster.pull(attempt)) for attempt in attempts[1:]] == [1, 0, 1, 1]
    cluster.check()


def test_earlier_application_comes_first_among_shapes_whichever_was_asked_for_first(cluster: Cluster) -> None:
    cluster.add_node("n1")
    early, late = cluster.new_attempt(), cluster.new_attempt()
    (blocker,) = cluster.get(early, ALL)
    cluster.ask(late, Resource(9, 9))
    cluster.ask(early, Resource(8, 8))

    cluster.finish(blocker)

    assert (len(cluster.pull(early)), len(cluster.pull(late))) == (1, 0)


def test_order_survives_the_withdrawal_of_pending_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempts = [cluster.new_attempt() for _ in range(16)]
    (running,) = cluster.get(attempts[0], ALL)
    for index in (1, 3, 2, 9, 12, 4, 5, 14, 10, 15, 13, 6, 8, 7, 11):
        cluster.ask(attempts[index], ALL)
    gone = {1, 3, 4, 9}
    for index in gone:
        cluster.remove_attempt(attempts[index])
    served = []

    while cluster.scheduler.waiting():
        cluster.finish(running)
        index, running = next((i, c) for i, attempt in enumerate(attempts) for c in cluster.get(attempt))
        served.append(index)

    assert served == [index for index in range(1, 16) if index not in gone]


def test_more_urgent_application_comes_first_then_the_earlier(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempts = [cluster.new_attempt(priority=priority) for priority in (0, 0, 5)]
    (blocker,) = cluster.get(attempts[0], ALL)
    for attempt in attempts[1], attempts[0], attempts[2]:
        cluster.ask(attempt, HALF)

    cluster.finish(blocker)

    assert [len(cluster.pull(attempt)) for attempt in attempts] == [1, 0, 1]


def test_changed_priority_reorders_pending_asks(cluster: Cluster) -> None:
    cluster.add_node("n1")
    first, second = cluster.new_attempt(), cluster.new_attempt()
    (blocker,) = cluster.get(first, ALL)
    cluster.ask(first, ALL, SMALL)
    cluster.ask(second, ALL)

    cluster.in_handler(lambda: cluster.scheduler.update_priority(application_of(second), 1))
    cluster.in_handler(lambda: cluster.scheduler.update_priority("application_0_0099", 1))
    order = [attempt for attempt, _ in cluster.scheduler.waiting()]
    cluster.finish(blocker)

    assert order == [second, first, first]
    assert len(cluster.pull(second)) == 1


# -- where room comes from --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["finished", "released", "attempt removed", "node added", "node healthy again"])
def test_freed_room_goes_to_pending_asks(cluster: Cluster, way: str) -> None:
    node = cluster.add_node("n1")
    holder, waiter = cluster.new_attempt(), cluster.new_attempt()
    (held,) = cluster.get(holder, ALL)
    if way == "node healthy again":
        cluster.tracker.heartbeat(node, healthy=False)
    cluster.ask(waiter, ALL)
    assert cluster.pull(waiter) == []

    match way:
        case "finished":
            cluster.finish(held)
        case "released":
            cluster.ask(holder, releases=(held.entity,))
        case "attempt removed":
            cluster.remove_attempt(holder)
        case "node added":
            cluster.add_node("n2")
        case _:
            cluster.tracker.heartbeat(node)

    assert len(cluster.pull(waiter)) == 1
    assert cluster.scheduler.waiting() == []
    cluster.check()


def test_released_room_serves_the_asks_of_the_same_call(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (held,) = cluster.get(attempt, ALL)

    cluster.ask(attempt, ALL, releases=(held.entity,))

    assert held.state.name == "RELEASED"
    assert len(cluster.pull(attempt)) == 1
    cluster.check()


@pytest.mark.parametrize("foreign", ["another's", "unknown", "ended"])
def test_release_of_a_container_that_the_attempt_does_not_have_changes_nothing(cluster: Cluster, foreign: str) -> None:
    cluster.add_node("n1")
    attempt, other = cluster.new_attempt(), cluster.new_attempt()
    mine, theirs = cluster.get(attempt, SMALL)[0], cluster.get(other, SMALL)[0]
    cluster.finish(mine)

    cluster.ask(attempt, releases=({"another's": theirs.entity, "ended": mine.entity}.get(foreign, "unknown"),))

    assert theirs.state.name == "RUNNING"
    cluster.check()


def test_container_that_was_not_fetched_cannot_be_released(cluster: Cluster) -> None:
    """The books dropped the container while its state refused RELEASED: it never ended."""
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.ask(attempt, SMALL)
    (container,) = cluster.context.containers.values()

    cluster.ask(attempt, releases=(container.entity,))

    assert cluster.pull(attempt) == [container]
    cluster.check()


# -- the queue --------------------------------------------------------------------------------------------------------


def test_there_is_one_queue_and_it_takes_all(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=1)
    app = cluster.add_app(queue="research", lifetime_s=7)
    submission = cluster.context.apps[app].submission
    cluster.get(cluster.add_attempt(app), Resource(5, 2, 1, 300))

    root, default = cluster.scheduler.queues()

    assert (root.path, root.children, default.path, default.children) == ("root", ("root.default",), "root.default", ())
    assert default[1:9] == ("RUNNING", 1.0, 1.0, 0.5, Resource(5, 2, 1, 300), 1, 0, 1)
    assert cluster.policy.check_submission(submission) is None
    assert cluster.scheduler.lifetime_s(submission) == 7
    assert [cluster.scheduler.queue_of(one) for one in (app, "application_0_0099")] == ["root.default", None]


def test_applications_can_be_moved_to_where_they_are_only(cluster: Cluster) -> None:
    app = cluster.add_app()

    cluster.scheduler.move_application(app, "default")

    assert cluster.scheduler.check_move(app, "root.default") is None
    with pytest.raises(InvalidRequestError, match="queue 'research' does not exist"):
        cluster.scheduler.move_application(app, "research")


def test_headroom_is_without_draining_nodes(cluster: Cluster) -> None:
    nodes = [cluster.add_node(host, 10, 10, gpus=1) for host in ("n1", "n2")]
    attempt = cluster.new_attempt()
    cluster.get(attempt, cluster.request(Resource(4, 3, gpus=1), host="n1"))

    cluster.decommission(nodes[0])
    while_draining = cluster.headroom(attempt)
    cluster.lose_node(nodes[0])

    whole = Resource(10, 10, gpus=1)
    assert (while_draining, cluster.headroom(attempt)) == (whole, whole)


def test_headroom_is_what_the_asked_partitions_have_free(cluster: Cluster) -> None:
    for host, partition in ("n1", ""), ("n2", ""), ("n3", "gpu"):
        cluster.add_node(host, partition=partition)
    attempt = cluster.new_attempt()
    cluster.get(attempt, Resource(4, 3))
    default = cluster.headroom(attempt)

    cluster.ask(attempt, ContainerRequest(Resource(11, 1), node_label="gpu"))
    in_gpu = cluster.headroom(attempt)
    cluster.ask(attempt, Resource(11, 1))
    in_both = cluster.headroom(attempt)

    assert (default, in_gpu, in_both) == (Resource(16, 17), Resource(10, 10), Resource(26, 27))
