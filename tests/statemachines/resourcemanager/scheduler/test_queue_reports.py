"""What the schedulers report on queues, users, applications and nodes: at each step the same as counted one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import Resource

from ..cluster import Cluster
from ..inner import NOTHING, ApplicationUse, NodeUse, PendingRequests
from .queue_cluster import QueueCluster, queue_config

ONE = Resource(1, 1)
DAY = queue_config(
    "day",
    50,
    maximum_capacity=75,
    minimum_user_limit_percent=25,
    user_limit_factor=2,
    ordering_policy="fair",
    maximum_am_resource_percent=50,
    accessible_node_labels={"gpu": {"capacity": 70, "maximum_capacity": 90}},
    default_node_label="",
    acl_submit_applications="ann,bob etl",
)
NIGHT = queue_config("night", 50, state="STOPPED", accessible_node_labels={"gpu": {"capacity": 30}})
TREE = (
    queue_config("research", 60, DAY, NIGHT, maximum_capacity=80, accessible_node_labels={"gpu": {"capacity": 100}}),
    queue_config("batch", 40, maximum_applications=7),
)


@pytest.fixture
def cluster() -> QueueCluster:
    cluster = QueueCluster(*TREE, maximum_am_resource_percent=100, acl_administer_queue="cem")
    cluster.add_node("n1", 100, 100)
    cluster.add_node("g1", 50, 50, partition="gpu")
    return cluster


def user(cluster: Cluster, path: str, name: str) -> Any:
    return next(one for one in cluster.policy.queue_info(path).users if one.user == name)


@pytest.mark.parametrize("make", [lambda: QueueCluster({"name": "a"}), Cluster], ids=["capacity", "fifo"])
def test_shares_are_finite_while_containers_have_a_type_that_no_node_has_any_more(make: Callable[[], Cluster]) -> None:
    """They were infinite, which JSON cannot say."""
    cluster = make()
    node = cluster.add_node("n1", 10, 10, gpus=1)
    cluster.get(cluster.new_attempt(queue="a"), Resource(5, 1, gpus=1))

    cluster.change_capacity(node, 10)

    for info in cluster.scheduler.queues():
        (partition,) = info.partitions
        assert (info.used_capacity, partition.used_capacity, partition.absolute_used_capacity) == (0.5, 50, 50)


# -- the configured side ----------------------------------------------------------------------------------------------


def test_capacities_are_configured_ones_of_the_parent_and_absolute_ones_of_the_partition(cluster: QueueCluster) -> None:
    default, gpu = cluster.info("root.research.day").partitions

    assert (default.partition, default.capacity, default.maximum_capacity) == ("", 50, 75)
    assert (default.absolute_capacity, default.absolute_maximum_capacity) == pytest.approx((30, 60))
    assert (default.guaranteed, default.maximum) == (Resource(30, 30), Resource(60, 60))
    assert (gpu.partition, gpu.capacity, gpu.maximum_capacity) == ("gpu", 70, 90)
    assert (gpu.absolute_capacity, gpu.absolute_maximum_capacity) == pytest.approx((70, 90))
    assert gpu.maximum == Resource(45, 45)
    (whole, *_) = cluster.info("root").partitions
    assert (whole.capacity, whole.maximum_capacity, whole.maximum) == (100, 100, Resource(100, 100))


def test_limits_and_settings_of_a_leaf(cluster: QueueCluster) -> None:
    day, batch, research = (cluster.info(f"root.{name}") for name in ("research.day", "batch", "research"))

    assert (day.user_limit_percent, day.user_limit_factor, day.ordering_policy) == (25, 2, "fair")
    assert (day.is_leaf, day.default_node_label, day.preemption_disabled) == (True, "", True)
    assert (research.is_leaf, research.ordering_policy) == (False, "priority-utilization")
    assert (day.acl_submit_applications, day.acl_administer_queue) == ("ann,bob etl", None)
    assert cluster.info("root").acl_administer_queue == "cem"
    # Its largest capacity is 70 % of partition gpu; a user may have 25 % of that twice.
    assert (day.maximum_applications, day.maximum_applications_per_user) == (7_000, 3_500)
    assert (batch.maximum_applications, batch.maximum_applications_per_user) == (7, 7)
    assert (research.maximum_applications, research.maximum_applications_per_user) == (None, None)
    assert (day.partitions[0].am_limit, day.partitions[0].user_am_limit) == (Resource(30, 30), Resource(30, 30))
    assert [cluster.info(f"root.research.{name}").state for name in ("day", "night")] == ["RUNNING", "STOPPED"]


def test_preemption_is_disabled_where_the_queue_or_one_above_it_says_so() -> None:
    tree = ({**TREE[0], "disable_preemption": True}, TREE[1])
    cluster = QueueCluster(*tree, preemption={"enabled": True})

    disabled = {path: cluster.info(path).preemption_disabled for path in ("root", "root.research.day", "root.batch")}

    assert disabled == {"root": False, "root.research.day": True, "root.batch": False}


def test_limits_of_a_user_shrink_with_the_number_of_active_users(cluster: QueueCluster) -> None:
    limits = []
    for name in ("ann", "bob", "cem"):
        attempt = cluster.new_attempt(queue="day", user=name)
        cluster.ask(attempt, Resource(1000, 1))  # no node could ever take it
        ann = user(cluster, "root.research.day", "ann")
        limits.append((ann.user_limit, ann.am_limit, ann.is_active))

    assert limits == [
        (Resource(30, 30), Resource(30, 30), True),
        (Resource(15, 15), Resource(15, 15), True),
        (Resource(10, 10), Resource(10, 10), True),
    ]


# -- maximum of applications ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "capacity", "most"), [(10_000, 40, 4_000), (10, 40, 4), (10, 25, 2), (10, 0.5, 1), (10, 0, 1)]
)
def test_leaf_accepts_its_part_of_the_schedulers_applications(system: int, capacity: float, most: int) -> None:
    cluster = QueueCluster(
        {"name": "a", "capacity": capacity}, {"name": "b", "capacity": 100 - capacity}, maximum_applications=system
    )

    assert cluster.info("root.a").maximum_applications == most
    for _ in range(min(most, 5)):
        cluster.add_app(queue="a")
    refusal = cluster.policy.check_submission(cluster.context.apps[cluster.add_app(queue="b")].submission)
    assert refusal is None
    if most <= 5:
        app = cluster.add_app(queue="a")
        assert cluster.news_names()[-1] == f"APP_REJECTED {app}"
        assert cluster.news[-1].diagnostics == (
            f"queue root.a already has {most} application{'' if most == 1 else 's'}, its maximum"
        )


def test_user_has_a_maximum_of_applications_of_its_own() -> None:
    cluster = QueueCluster({"name": "a", "maximum_applications": 8, "minimum_user_limit_percent": 25})
    first, _ = cluster.add_app(queue="a", user="ann"), cluster.add_app(queue="a", user="ann")

    refused = cluster.add_app(queue="a", user="ann")
    accepted = cluster.add_app(queue="a", user="bob")
    cluster.remove_app(first)
    again = cluster.add_app(queue="a", user="ann")

    assert cluster.news_names()[2:] == [f"APP_REJECTED {refused}", f"APP_ACCEPTED {accepted}", f"APP_ACCEPTED {again}"]
    assert cluster.news[2].diagnostics == (
        "queue root.a already has 2 applications of user ann, its maximum for one user"
    )


# -- what is used -----------------------------------------------------------------------------------------------------


def test_users_have_their_own_books(cluster: QueueCluster) -> None:
    ann, bob = (cluster.new_attempt(queue="day", user=name, am_resource=ONE) for name in ("ann", "bob"))
    cluster.get(ann, ONE, Resource(10, 5))
    cluster.ask(bob, *[Resource(1000, 1)] * 3, Resource(999, 0))
    cluster.add_app(queue="day", user="bob")

    one, other = user(cluster, "root.research.day", "ann"), user(cluster, "root.research.day", "bob")

    assert (one.used, one.am_used, one.allocated_containers, one.pending) == (Resource(11, 6), ONE, 2, NOTHING)
    assert (one.active_applications, one.pending_applications, one.is_active) == (1, 0, False)
    assert (other.used, other.pending, other.pending_containers) == (NOTHING, Resource(3999, 3), 4)
    assert (other.active_applications, other.pending_applications, other.is_active) == (1, 1, True)
    info = cluster.info("root.research")
    assert (info.pending, info.pending_containers, info.allocated_containers) == (Resource(3999, 3), 4, 2)
    assert (info.partitions[0].used, info.partitions[0].absolute_used_capacity) == (Resource(11, 6), 11)


def test_reservations_are_counted_apart() -> None:
    cluster = QueueCluster({"name": "a"}, maximum_am_resource_percent=100, on_heartbeat=True)
    node = cluster.add_node("n1")
    cluster.add_node("n2", 6, 6)  # never reports
    attempt = cluster.new_attempt(queue="a", user="ann")
    cluster.ask(attempt, Resource(6, 6))
    cluster.tracker.heartbeat(node)
    (held,) = cluster.pull(attempt)
    cluster.ask(attempt, Resource(7, 7))
    cluster.tracker.heartbeat(node)

    info, use = cluster.info("root.a"), cluster.scheduler.application_use(attempt)
    assert (info.used, info.reserved, info.pending) == (Resource(13, 13), Resource(7, 7), Resource(7, 7))
    assert (info.allocated_containers, info.reserved_containers, info.pending_containers) == (1, 1, 1)
    assert (info.users[0].reserved, info.users[0].reserved_containers) == (Resource(7, 7), 1)
    pending = PendingRequests(Resource(7, 7), 1, 0, "", None, None)
    assert (use.live, use.reserved, use.pending) == ((held,), (Resource(7, 7),), (pending,))
    assert cluster.scheduler.node_use(node)[:3] == (Resource(6, 6), 1, Resource(7, 7))

    cluster.tracker.heartbeat(node, launched=(held.entity,))
    cluster.finish(held)

    info = cluster.info("root.a")
    assert (info.used, info.reserved, info.pending) == (Resource(7, 7), NOTHING, NOTHING)
    assert cluster.scheduler.node_use(node) == NodeUse(Resource(7, 7), 1)


def test_shares_of_queue_and_cluster(cluster: QueueCluster) -> None:
    attempt = cluster.new_attempt(queue="batch")
    cluster.get(attempt, Resource(10, 5), Resource(10, 5))

    use = cluster.scheduler.application_use(attempt)

    assert use.queue_share == pytest.approx(20 / 40)
    assert use.cluster_share == pytest.approx(20 / 150)


def test_nothing_is_left_when_all_has_ended(cluster: QueueCluster) -> None:
    app = cluster.add_app(queue="day")
    attempt = cluster.add_attempt(app)
    cluster.get(attempt, ONE)
    cluster.ask(attempt, Resource(1000, 1))

    cluster.remove_attempt(attempt)
    cluster.remove_app(app)

    for info in cluster.scheduler.queues():
        assert (info.used, info.pending, info.reserved, info.users) == (NOTHING, NOTHING, NOTHING, ())
    assert cluster.scheduler.application_use(attempt) == ApplicationUse()


# -- one at a time ----------------------------------------------------------------------------------------------------


def test_one_queue_is_reported_as_among_all(cluster: QueueCluster) -> None:
    assert [cluster.policy.queue_info(info.path) for info in cluster.scheduler.queues()] == cluster.scheduler.queues()
    assert [cluster.policy.queue_info(name) for name in ("day", "root.nowhere")] == [None, None]
    paths = [info.path for info in cluster.scheduler.queues()]
    assert paths == ["root", "root.research", "root.research.day", "root.research.night", "root.batch"]
    assert cluster.info("root").children == ("root.research", "root.batch")
    day, night = (cluster.info(f"root.research.{name}") for name in ("day", "night"))
    assert (day.capacity, day.state, night.state) == (0.3, "RUNNING", "STOPPED")


def test_fifo_reports_the_same_shape() -> None:
    cluster = Cluster()
    node = cluster.add_node("n1", 10, 10, gpus=1)
    attempt = cluster.new_attempt(user="ann", am_resource=ONE)
    cluster.get(attempt, Resource(5, 2, 1, 300))
    cluster.ask(attempt, Resource(1000, 1))
    cluster.add_app(user="bob")

    root, leaf = cluster.scheduler.queues()
    (partition,), (ann, bob) = leaf.partitions, leaf.users

    assert (partition.capacity, partition.absolute_used_capacity) == (100, 50)
    assert (partition.maximum, partition.am_limit) == (Resource(10, 10, 1), Resource(10, 10, 1))
    assert (ann.user, ann.used, ann.am_used, ann.pending) == ("ann", Resource(5, 2, 1, 300), ONE, Resource(1000, 1))
    assert (ann.active_applications, ann.allocated_containers, ann.pending_containers) == (1, 1, 1)
    assert (ann.reserved, ann.reserved_containers) == (NOTHING, 0)
    assert ann.user_limit == ann.am_limit == Resource(10, 10, 1)
    assert (ann.is_active, bob.is_active) == (True, False)
    assert (bob.active_applications, bob.pending_applications) == (1, 0), "FIFO makes no application wait for others"
    assert (root.users, root.pending_containers, root.used) == ((), 1, leaf.used)
    assert [cluster.policy.queue_info(path) for path in ("root", "root.default", "root.a")] == [root, leaf, None]
    assert cluster.scheduler.node_use(node) == NodeUse(Resource(5, 2, 1, 300), 1)
    assert cluster.scheduler.application_use(attempt).cluster_share == 0.5
