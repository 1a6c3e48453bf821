"""How room is divided among queues, users and applications; event-driven."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import ConfigError
from statemachines.resourcemanager import Resource
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause

from .queue_cluster import QueueCluster

ONE = Resource(1, 1)
TEN = Resource(10, 10)
PLENTY: dict[str, Any] = {"maximum_am_resource_percent": 100}


def halves(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> QueueCluster:
    """Ten nodes of 10, and queues a and b with half of them each; users and masters may use their whole queue."""
    free = {"capacity": 50, "user_limit_factor": 100, **PLENTY}
    cluster = QueueCluster({"name": "a", **free, **(a or {})}, {"name": "b", **free, **(b or {})})
    for number in range(10):
        cluster.add_node(f"n{number}")
    return cluster


def test_invalid_tree_is_refused_when_the_scheduler_is_made() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.queues: the capacities add up to 40"):
        QueueCluster({"name": "a", "capacity": 40})


# -- elasticity and maximum -------------------------------------------------------------------------------------------


def test_queue_uses_idle_room_of_its_sibling() -> None:
    cluster = halves()
    attempt = cluster.attempt_in("a")

    containers = cluster.get(attempt, *[ONE] * 120)

    assert len(containers) == 100
    assert cluster.info("root.a").used_capacity == 2.0
    assert cluster.scheduler.why_waiting(attempt, cluster.request(ONE)).cause is WaitCause.NO_ROOM
    cluster.check()


def test_queue_stops_at_its_maximum_though_there_is_room() -> None:
    cluster = halves(a={"maximum_capacity": 60})
    attempt = cluster.attempt_in("a")

    containers = cluster.get(attempt, *[ONE] * 70)

    assert len(containers) == 60
    why = cluster.scheduler.why_waiting(attempt, cluster.request(ONE)).sentence
    assert why == "queue root.a has used 60 MB of its 60 MB; the request needs 1 MB"
    cluster.check()


def test_queue_stops_at_its_maximum_of_what_is_left_while_nodes_drain() -> None:
    """It took everything left: what was free on draining nodes counted as if the other queue could have it."""
    cluster = halves(a={"maximum_capacity": 50})
    attempt = cluster.attempt_in("a")
    held = cluster.get(attempt, *[ONE] * 10)
    draining = sorted({container.node for container in held} | {f"n{number}:45454" for number in range(6)})[:6]
    allocated, maxima = [], []

    def look() -> None:
        allocated.append(len(cluster.scheduler.live_containers(attempt)))
        maxima.append(cluster.info("root.a").partitions[0].maximum.memory_mb)
        cluster.check()

    for node in draining:
        cluster.decommission(node)
    cluster.ask(attempt, *[ONE] * 100)
    look()  # 40 are left, and 10 in use on a draining node
    for container in held[:4]:
        cluster.finish(container)
    look()
    cluster.change_capacity(draining[-1], 20, 20)
    look()  # the node's own capacity counts once it is recommissioned
    for node in draining:
        cluster.recommission(node)
    look()

    assert (allocated, maxima) == ([25, 23, 23, 55], [25, 23, 23, 55])


def test_ask_that_waited_for_its_queue_is_served_on_any_node() -> None:
    cluster = halves(a={"capacity": 20, "maximum_capacity": 20}, b={"capacity": 80})
    attempt = cluster.attempt_in("a")
    first, *_ = cluster.get(attempt, *[TEN] * 3)  # the queue has two nodes; eight are empty

    cluster.finish(first)

    assert len(cluster.pull(attempt)) == 1
    cluster.check()


def test_parent_bounds_its_children_together() -> None:
    leaf = {"capacity": 50, "user_limit_factor": 100, **PLENTY}
    children = [{"name": name, **leaf} for name in "xy"]
    cluster = QueueCluster(
        {"name": "p", "capacity": 50, "maximum_capacity": 50, "queues": children}, {"name": "q", "capacity": 50}
    )
    cluster.add_node("n1")
    x, y = cluster.attempt_in("x"), cluster.attempt_in("y")

    counts = [len(cluster.get(attempt, *[ONE] * 4)) for attempt in (x, y)]

    assert counts == [4, 1]
    assert cluster.scheduler.why_waiting(y, cluster.request(ONE)).sentence.startswith("queue root.p has")
    cluster.check()


def test_queue_that_uses_least_of_its_guarantee_comes_first() -> None:
    cluster = QueueCluster(
        {"name": "a", "capacity": 75, "user_limit_factor": 9}, {"name": "b", "capacity": 25, "user_limit_factor": 9}
    )
    node = cluster.add_node("n1", 8, 8)
    a, b = cluster.attempt_in("a"), cluster.attempt_in("b")
    cluster.tracker.heartbeat(node, healthy=False)
    cluster.ask(b, *[ONE] * 8)
    cluster.ask(a, *[ONE] * 8)

    cluster.tracker.heartbeat(node)

    assert (len(cluster.pull(a)), len(cluster.pull(b))) == (6, 2)
    cluster.check()


def test_more_urgent_queue_comes_first_while_it_is_within_its_guarantee() -> None:
    cluster = halves(b={"priority": 1})
    for node in list(cluster.context.nodes)[1:]:
        cluster.lose_node(node)
    a, b = cluster.attempt_in("a"), cluster.attempt_in("b")
    (held,) = cluster.get(a, TEN)
    cluster.ask(a, *[ONE] * 8)
    cluster.ask(b, *[ONE] * 8)

    cluster.finish(held)

    served = {attempt: [c.entity for c in cluster.pull(attempt)] for attempt in (a, b)}
    assert {attempt: len(ids) for attempt, ids in served.items()} == {a: 5, b: 5}
    order = [id for id in cluster.context.containers if id in served[a] or id in served[b]]
    assert order[:5] == served[b]


# -- users ------------------------------------------------------------------------------------------------------------


def test_users_share_a_queue_and_the_first_does_not_keep_it() -> None:
    cluster = QueueCluster({"name": "a", "minimum_user_limit_percent": 50, **PLENTY})
    cluster.add_node("n1")
    ann, bob = cluster.attempt_in("a", "ann"), cluster.attempt_in("a", "bob")
    containers = cluster.get(ann, *[ONE] * 20)
    cluster.ask(bob, *[ONE] * 20)
    assert (len(containers), cluster.pull(bob)) == (10, [])

    for container in containers[:5]:
        cluster.finish(container)

    # Ann, at the limit, comes first and gets one more, as in YARN; then it is bob's turn.
    assert (len(cluster.pull(ann)), len(cluster.pull(bob))) == (1, 4)
    assert cluster.scheduler.why_waiting(ann, cluster.request(ONE)).cause is WaitCause.USER_LIMIT
    cluster.check()


def test_user_does_not_get_beyond_the_factor_though_there_is_room() -> None:
    cluster = halves(a={"user_limit_factor": 0.5})
    attempt = cluster.attempt_in("a")

    containers = cluster.get(attempt, *[ONE] * 50)

    assert len(containers) == 26
    assert cluster.scheduler.why_waiting(attempt, cluster.request(ONE)).sentence == (
        "user ann has used 26 MB in queue root.a, where the limit of a user is 25 MB with 1 active user"
    )
    cluster.check()


def test_user_that_no_longer_waits_leaves_its_part_to_the_others_at_once() -> None:
    cluster = QueueCluster({"name": "a", "minimum_user_limit_percent": 25, **PLENTY})
    for host in ("n1", "n2"):
        cluster.add_node(host)
    ann, bob = cluster.attempt_in("a", "ann"), cluster.attempt_in("a", "bob")
    cluster.ask(bob, Resource(11, 1))
    first = cluster.get(ann, *[ONE] * 20)

    cluster.remove_attempt(bob)

    assert (len(first), len(cluster.pull(ann))) == (11, 9)
    cluster.check()


def test_user_limit_grows_with_the_queue_beyond_its_guarantee() -> None:
    cluster = halves(a={"minimum_user_limit_percent": 10})
    ann, bob = cluster.attempt_in("a", "ann"), cluster.attempt_in("a", "bob")

    counts = [len(cluster.get(attempt, *[ONE] * 60)) for attempt in (ann, bob, ann)]

    assert counts == [60, 40, 0]
    cluster.check()


# -- masters ----------------------------------------------------------------------------------------------------------


def test_applications_beyond_the_share_of_masters_are_pending_and_come_in_their_order() -> None:
    cluster = QueueCluster({"name": "a", "maximum_am_resource_percent": 20, "user_limit_factor": 9})
    cluster.add_node("n1")
    attempts = [cluster.attempt_in("a", priority=priority) for priority in (0, 0, 0, 5)]
    masters = {attempt: cluster.get(attempt, ONE) for attempt in attempts}

    before = [len(masters[attempt]) for attempt in attempts]
    whys = [cluster.scheduler.why_waiting(attempt, cluster.request(ONE)).sentence for attempt in attempts[2:]]
    cluster.remove_attempt(attempts[0])

    assert before == [1, 1, 0, 0]
    assert whys == [
        "the masters of queue root.a have used 2 MB of the 2 MB that they may use, 20 % of its maximum; this "
        f"application's master needs 1 MB{behind}"
        for behind in (", and other applications come first", "")
    ]
    assert [len(cluster.pull(attempt)) for attempt in attempts[2:]] == [0, 1]
    assert (cluster.info("root.a").applications, cluster.info("root").pending_applications) == (4, 1)
    cluster.check()


def test_one_application_may_always_run() -> None:
    cluster = QueueCluster({"name": "a", "maximum_am_resource_percent": 0})
    cluster.add_node("n1")

    counts = [len(cluster.get(cluster.attempt_in("a"), ONE)) for _ in range(2)]

    assert counts == [1, 0]
    cluster.check()


def test_applications_that_came_before_the_nodes_run_when_these_come() -> None:
    cluster = QueueCluster({"name": "a", "maximum_am_resource_percent": 50})
    attempts = [cluster.attempt_in("a") for _ in range(6)]
    for attempt in attempts:
        cluster.ask(attempt, ONE)

    cluster.add_node("n1")

    assert [len(cluster.pull(attempt)) for attempt in attempts] == [1, 1, 1, 1, 1, 0]
    cluster.check()


def test_unmanaged_master_needs_no_share() -> None:
    cluster = QueueCluster({"name": "a", "maximum_am_resource_percent": 0})
    cluster.add_node("n1")
    first = cluster.attempt_in("a")

    second = cluster.attempt_in("a", unmanaged_am=True)

    assert [len(cluster.get(attempt, ONE)) for attempt in (first, second)] == [1, 1]
    cluster.check()


# -- applications -----------------------------------------------------------------------------------------------------


def one_node(**queue: Any) -> QueueCluster:
    cluster = QueueCluster({"name": "a", "user_limit_factor": 9, **PLENTY, **queue})
    cluster.add_node("n1")
    return cluster


def test_more_urgent_application_comes_first_then_the_older() -> None:
    cluster = one_node()
    old, new, urgent = (cluster.attempt_in("a", priority=priority) for priority in (0, 0, 1))
    (held,) = cluster.get(old, TEN)
    for attempt in (new, urgent, old):
        cluster.ask(attempt, Resource(4, 4))

    cluster.finish(held)

    assert [len(cluster.pull(attempt)) for attempt in (old, new, urgent)] == [1, 0, 1]
    cluster.check()


def test_priority_may_change_while_an_application_waits() -> None:
    cluster = one_node()
    old, new = (cluster.attempt_in("a") for _ in range(2))
    (held,) = cluster.get(old, TEN)
    for attempt in (old, new):
        cluster.ask(attempt, TEN)

    cluster.scheduler.update_priority(cluster.app_of(new).id, 3)
    order = [attempt for attempt, _ in cluster.scheduler.waiting()]
    cluster.finish(held)

    assert order == [new, old]
    assert [len(cluster.pull(attempt)) for attempt in (old, new)] == [0, 1]
    cluster.check()


def test_priority_may_change_while_an_application_is_pending() -> None:
    cluster = QueueCluster({"name": "a", "maximum_am_resource_percent": 0})
    cluster.add_node("n1")
    running, old, new = (cluster.attempt_in("a") for _ in range(3))

    cluster.scheduler.update_priority(cluster.app_of(new).id, 3)
    cluster.remove_attempt(running)

    assert [cluster.app_of(attempt).is_active for attempt in (old, new)] == [False, True]


def test_fair_queue_serves_the_application_that_has_least() -> None:
    cluster = one_node(ordering_policy="fair")
    first, second = cluster.attempt_in("a"), cluster.attempt_in("a")
    held = cluster.get(first, Resource(6, 6), *[Resource(2, 2)] * 2)
    cluster.ask(first, *[Resource(2, 2)] * 4)
    cluster.ask(second, *[Resource(2, 2)] * 4)

    cluster.finish(held[0])

    assert [len(cluster.pull(attempt)) for attempt in (first, second)] == [1, 2]
    cluster.check()


def test_fair_queue_notices_that_an_application_has_less_than_before() -> None:
    cluster = one_node(ordering_policy="fair")
    first, second = cluster.attempt_in("a"), cluster.attempt_in("a")
    mine, theirs = cluster.get(first, *[Resource(3, 3)] * 2), cluster.get(second, Resource(4, 4))
    for attempt in (first, second):
        cluster.ask(attempt, *[Resource(3, 3)] * 3)

    for container in mine:
        cluster.finish(container)

    assert len(theirs) == 1
    assert [len(cluster.pull(attempt)) for attempt in (first, second)] == [2, 0]
    cluster.check()


def test_fair_queue_notices_that_a_pending_application_has_less_than_before() -> None:
    """It kept its place behind users of less, after the containers of its first attempt had ended."""
    cluster = one_node(ordering_policy="fair", maximum_am_resource_percent=10)
    first = cluster.attempt_in("a", keep_containers_across_attempts=True)
    _, task = cluster.get(first, ONE, ONE)
    cluster.remove_attempt(first, keep_containers=True)
    running = cluster.attempt_in("a")
    old, new = cluster.add_attempt(cluster.app_of(first).id, 2, transfer_state=True), cluster.attempt_in("a")

    cluster.finish(task)
    cluster.remove_attempt(running)

    assert [cluster.app_of(attempt).is_active for attempt in (old, new)] == [True, False]
    cluster.check()


def test_asks_of_one_call_are_served_by_priority_where_there_is_room_for_some() -> None:
    cluster = one_node()
    attempt = cluster.attempt_in("a")
    asks = [cluster.request(Resource(3, 3), priority=priority) for priority in (20, 5, 20, 5)]

    containers = cluster.get(attempt, *asks)

    assert [container.request.tag for container in containers] == [asks[index].tag for index in (1, 3, 0)]


def test_priorities_within_an_application_then_the_order_of_arrival() -> None:
    cluster = one_node()
    attempt = cluster.attempt_in("a")
    (held,) = cluster.get(attempt, TEN)
    asks = [cluster.request(Resource(5, 5), priority=priority) for priority in (20, 5, 20, 5)]
    cluster.ask(attempt, *asks)

    order = cluster.waiting_tags()
    cluster.finish(held)

    assert order == [asks[index].tag for index in (1, 3, 0, 2)]
    assert [container.request.tag for container in cluster.pull(attempt)] == order[:2]


# -- resources --------------------------------------------------------------------------------------------------------


def test_maximum_holds_for_gpus() -> None:
    cluster = QueueCluster(
        {"name": "a", "capacity": 50, "maximum_capacity": 50, "user_limit_factor": 9}, {"name": "b", "capacity": 50}
    )
    for host in ("n1", "n2"):
        cluster.add_node(host, 100, 100, gpus=2)
    attempt = cluster.attempt_in("a")

    containers = cluster.get(attempt, *[Resource(1, 1, gpus=1, gpu_milli=500)] * 6)

    assert len(containers) == 4
    assert cluster.info("root.a").used == Resource(4, 4, gpus=1, gpu_milli=2000)
    assert "root.a" in cluster.scheduler.why_waiting(attempt, cluster.request(Resource(1, 1, gpus=1))).sentence
    cluster.check()


def test_maximum_holds_for_further_types() -> None:
    cluster = halves(a={"maximum_capacity": 50})
    cluster.add_node("special", others={"fpga": 4})
    attempt = cluster.attempt_in("a")

    containers = cluster.get(attempt, *[Resource(1, 1, others=(("fpga", 1),))] * 3)

    assert len(containers) == 2


def test_container_does_not_grow_beyond_the_limit_of_its_queue() -> None:
    cluster = halves(a={"maximum_capacity": 50})
    attempt = cluster.attempt_in("a")
    containers = cluster.get(attempt, *[Resource(7, 7)] * 7)

    results = [cluster.scheduler.request_resize(containers[0].entity, Resource(size, size)) for size in (9, 8, 2)]

    assert results == [False, True, True]
    assert cluster.info("root.a").used == Resource(44, 44)
    assert cluster.info("root").containers == 7
    cluster.check()


def test_container_that_shrinks_makes_room_below_the_limit() -> None:
    cluster = halves(a={"maximum_capacity": 50})
    attempt = cluster.attempt_in("a")
    containers = cluster.get(attempt, *[TEN] * 5)
    cluster.ask(attempt, Resource(5, 5))

    cluster.in_handler(lambda: cluster.scheduler.request_resize(containers[0].entity, Resource(5, 5)))

    assert len(cluster.pull(attempt)) == 1
    cluster.check()


# -- headroom ---------------------------------------------------------------------------------------------------------


def test_headroom_is_what_the_attempt_then_gets() -> None:
    cluster = halves(a={"user_limit_factor": 2, "maximum_capacity": 80})
    attempt = cluster.attempt_in("a")
    cluster.get(attempt, *[ONE] * 20)
    before = cluster.headroom(attempt)

    cluster.ask(attempt, *[ONE] * 60)

    assert (before, cluster.headroom(attempt)) == (Resource(30, 30), Resource(0, 0))
    assert len(cluster.pull(attempt)) == 60


def test_headroom_is_without_draining_nodes() -> None:
    """A master that counts on it would wait for room that no ask can have."""
    cluster = QueueCluster({"name": "a"})
    node = cluster.add_node("n1", 8, 8)
    attempt = cluster.attempt_in("a")
    cluster.get(attempt, Resource(3, 1))
    cluster.add_node("n2", 5, 5)

    cluster.decommission(node)
    while_draining = cluster.headroom(attempt)
    cluster.recommission(node)
    cluster.tracker.heartbeat(node)

    assert (while_draining, cluster.headroom(attempt)) == (Resource(5, 5), Resource(10, 12))


def test_headroom_is_finite_though_a_type_is_asked_for_that_no_node_has() -> None:
    cluster = halves()
    attempt = cluster.attempt_in("a")

    cluster.ask(attempt, Resource(1, 1, others=(("fpga", 1),)))

    assert cluster.headroom(attempt) == Resource(100, 100)
