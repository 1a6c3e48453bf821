"""The capacity scheduler's nodes: partitions by label, added and removed nodes, and scheduling on heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMNodeEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent

from .queue_cluster import QueueCluster

ONE = Resource(1, 1)
FREE: dict[str, Any] = {"user_limit_factor": 100, "maximum_am_resource_percent": 100}
LABELLED: tuple[dict[str, Any], ...] = (
    {
        "name": "a",
        "capacity": 50,
        **FREE,
        "accessible_node_labels": {"gpu": {"capacity": 75, "maximum_capacity": 80}},
        "default_node_label": "gpu",
    },
    {"name": "b", "capacity": 50, **FREE, "accessible_node_labels": {"gpu": {"capacity": 25}}},
    {"name": "c", "capacity": 0, **FREE},
)


@pytest.fixture
def labelled() -> QueueCluster:
    """One node without a label, and one of partition gpu."""
    cluster = QueueCluster(*LABELLED)
    cluster.add_node("plain")
    cluster.add_node("labelled", partition="gpu")
    return cluster


# -- partitions -------------------------------------------------------------------------------------------------------


def test_asks_go_to_the_partition_that_they_name_else_the_applications_else_the_queues(labelled: QueueCluster) -> None:
    of_queue = labelled.attempt_in("a")
    of_app = labelled.attempt_in("a", node_label="")
    none = labelled.attempt_in("b")

    wheres = [
        labelled.where(labelled.get(attempt, labelled.request(ONE, node_label=label)))
        for attempt, label in ((of_queue, None), (of_queue, ""), (of_app, None), (of_app, "gpu"), (none, None))
    ]

    assert wheres == [["labelled"], ["plain"], ["plain"], ["labelled"], ["plain"]]
    labelled.check()


def test_each_partition_has_its_own_limits(labelled: QueueCluster) -> None:
    attempt = labelled.attempt_in("a")

    of_gpu = labelled.get(attempt, *[ONE] * 10)
    of_default = labelled.get(attempt, *[labelled.request(ONE, node_label="") for _ in range(12)])

    assert (len(of_gpu), len(of_default)) == (8, 10)
    assert labelled.scheduler.why_waiting(attempt, labelled.request(ONE)).sentence == (
        "queue root.a has used 8 MB of its 8 MB in partition gpu; the request needs 1 MB"
    )
    labelled.check()


def test_queue_gets_nothing_of_a_partition_that_it_may_not_use(labelled: QueueCluster) -> None:
    attempt = labelled.attempt_in("c")
    request = labelled.request(ONE, node_label="gpu")

    labelled.ask(attempt, request)

    assert labelled.pull(attempt) == []
    assert labelled.scheduler.why_waiting(attempt, request).sentence == "queue root.c may not use partition gpu"
    labelled.check()


def test_relabelled_node_brings_its_room_and_its_containers_to_the_other_partition(labelled: QueueCluster) -> None:
    attempt = labelled.attempt_in("a")
    labelled.get(attempt, *[ONE] * 8)
    labelled.ask(attempt, *[ONE] * 4)

    labelled.post(NodeLabelsUpdateSchedulerEvent("plain:45454", "gpu"))
    of_gpu = len(labelled.pull(attempt))
    labelled.post(NodeLabelsUpdateSchedulerEvent("labelled:45454", ""))

    assert of_gpu == 4
    shares = {partition: share.used for partition, share in labelled.tree.leaves["a"].shares.items()}
    assert sum(used["memory_mb"] for used in shares.values()) == 12
    labelled.check()


# -- added and removed nodes -------------------------------------------------------------------------------------------


def test_limits_grow_when_a_node_comes_and_shrink_when_it_goes() -> None:
    cluster = QueueCluster(
        {"name": "a", "capacity": 50, "maximum_capacity": 50, **FREE}, {"name": "b", "capacity": 50, **FREE}
    )
    cluster.add_node("n1")
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, *[ONE] * 20)
    counts = [len(cluster.pull(attempt))]

    node = cluster.add_node("n2")
    counts.append(len(cluster.pull(attempt)))
    cluster.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, node, Resource(20, 20)))
    counts.append(len(cluster.pull(attempt)))
    cluster.check()
    cluster.lose_node(node)

    assert counts == [5, 5, 5]
    assert cluster.tree.leaves["a"].share("").limit == {"memory_mb": 5, "vcores_milli": 5}
    cluster.check()


def test_containers_of_a_lost_node_no_longer_count() -> None:
    cluster = QueueCluster({"name": "a", **FREE})
    cluster.add_node("n1")
    attempt = cluster.attempt_in("a")
    cluster.get(attempt, ONE)
    node = cluster.add_node("n2")
    cluster.get(attempt, *[Resource(9, 9), Resource(10, 10)])

    cluster.lose_node(node)

    assert cluster.info("root.a").containers == 2
    cluster.check()


# -- on heartbeats ----------------------------------------------------------------------------------------------------


def reporting(**config: Any) -> QueueCluster:
    leaf = {"capacity": 50, **FREE}
    queues = ({"name": "a", **leaf, "maximum_capacity": 60}, {"name": "b", **leaf})
    cluster = QueueCluster(*queues, on_heartbeat=True, **config)
    for host, rack in (("n1", "/r1"), ("n2", "/r1"), ("n3", "/r2")):
        cluster.add_node(host, rack=rack)
    return cluster


def report(cluster: QueueCluster, host: str) -> None:
    cluster.tracker.heartbeat(f"{host}:45454")


def test_asks_wait_for_a_nodes_heartbeat() -> None:
    cluster = reporting()
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, ONE)
    before = cluster.pull(attempt)

    report(cluster, "n2")

    assert (before, cluster.where(cluster.pull(attempt))) == ([], ["n2"])
    cluster.check()


def test_heartbeat_allocates_the_configured_number_of_containers_over_all_queues() -> None:
    cluster = reporting(containers_per_heartbeat=3)
    a, b = cluster.attempt_in("a"), cluster.attempt_in("b")
    for attempt in (a, b):
        cluster.ask(attempt, *[ONE] * 5)

    report(cluster, "n1")

    assert [len(cluster.pull(attempt)) for attempt in (a, b)] == [2, 1]
    cluster.check()


def test_limits_hold_on_heartbeats_and_delayed_asks_are_served_by_a_later_one() -> None:
    cluster = reporting()
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, *[ONE] * 20)
    for host in ("n1", "n2", "n3"):
        report(cluster, host)
    held = cluster.get(attempt)
    why = cluster.scheduler.why_waiting(attempt, cluster.request(ONE)).sentence

    cluster.finish(held[0])  # its node reports that with a heartbeat, and then has room
    report(cluster, "n3")

    assert (len(held), len(cluster.pull(attempt))) == (18, 1)
    assert why.startswith("queue root.a has used 18 MB of its 18 MB")
    cluster.check()


def test_ask_lets_heartbeats_pass_before_it_takes_a_node_that_it_does_not_prefer() -> None:
    cluster = reporting(node_locality_delay=2)
    picky, other = cluster.attempt_in("a"), cluster.attempt_in("a")
    cluster.ask(picky, cluster.request(ONE, host="n1"))
    cluster.ask(other, ONE)

    taken = []
    for _ in range(4):
        report(cluster, "n2")
        taken.append((len(cluster.pull(picky)), len(cluster.pull(other))))

    assert taken[0] == (0, 1)
    assert [count for count, _ in taken].index(1) == 2
    cluster.check()


def test_preferred_node_is_taken_at_once() -> None:
    cluster = reporting(node_locality_delay=2)
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, cluster.request(ONE, host="n1"))

    report(cluster, "n1")

    assert cluster.where(cluster.pull(attempt)) == ["n1"]


# -- reservations -----------------------------------------------------------------------------------------------------


def test_reserved_room_counts_in_its_queue_and_is_kept() -> None:
    cluster = QueueCluster({"name": "a", **FREE}, on_heartbeat=True)
    for host in ("n1", "n2"):
        cluster.add_node(host)
    attempt = cluster.attempt_in("a")
    cluster.ask(attempt, Resource(6, 6), Resource(6, 6))
    for host in ("n1", "n2"):
        report(cluster, host)
    first, _ = cluster.get(attempt)
    cluster.ask(attempt, Resource(8, 8))

    report(cluster, "n1")
    used = cluster.info("root.a").used
    cluster.check()
    cluster.finish(first)

    assert used == Resource(20, 20)
    assert [container.node for container in cluster.pull(attempt)] == ["n1:45454"]
    assert cluster.info("root.a").used == Resource(14, 14)
    cluster.check()


def test_nothing_is_reserved_beyond_the_maximum_of_a_queue() -> None:
    cluster = reporting()
    attempt = cluster.attempt_in("a")
    for host in ("n1", "n2", "n3"):
        cluster.ask(attempt, Resource(6, 6))
        report(cluster, host)
    assert len(cluster.get(attempt)) == 3
    cluster.ask(attempt, Resource(8, 8))

    report(cluster, "n1")

    assert [node.reserved_container for node in cluster.scheduler.nodes()] == [None, None, None]
    cluster.check()


def test_reservation_ends_with_the_attempt_and_no_longer_counts() -> None:
    cluster = QueueCluster({"name": "a", **FREE}, on_heartbeat=True)
    for host in ("n1", "n2"):
        cluster.add_node(host)
    holder, waiter = cluster.attempt_in("a"), cluster.attempt_in("a")
    cluster.ask(holder, Resource(6, 6))
    report(cluster, "n1")
    cluster.get(holder)
    cluster.ask(waiter, Resource(8, 8))
    report(cluster, "n1")
    reserved = cluster.info("root.a").used

    cluster.remove_attempt(waiter)

    assert (reserved, cluster.info("root.a").used) == (Resource(14, 14), Resource(6, 6))
    cluster.check()
