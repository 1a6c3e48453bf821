"""Constraints and preferences of asks: hosts, racks, partitions, blacklists, custom resource types."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import Resource, RMContainerEventType

from ..cluster import Cluster

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def with_fpgas(amount: int) -> Resource:
    return Resource(1, 1, others=(("fpga", amount),))


# -- hosts and racks --------------------------------------------------------------------------------------------------


def racks(cluster: Cluster) -> None:
    """Two nodes in rack a, two in rack b."""
    for host, rack in (("a1", "/a"), ("b1", "/b"), ("b2", "/b"), ("a2", "/a")):
        cluster.add_node(host, rack=rack)


def test_ask_takes_its_host_then_a_node_of_its_rack_then_any(cluster: Cluster) -> None:
    racks(cluster)

    containers = cluster.get(cluster.new_attempt(), *[cluster.request(ALL, host="b2") for _ in range(4)])

    assert cluster.where(containers) == ["b2", "b1", "a1", "a2"]


@pytest.mark.parametrize("elsewhere", [None, "elsewhere"])
def test_ask_takes_a_node_of_the_rack_that_it_names(cluster: Cluster, elsewhere: str | None) -> None:
    """Also if it names an unknown host."""
    racks(cluster)

    containers = cluster.get(
        cluster.new_attempt(), *[cluster.request(ALL, host=elsewhere, rack="/b") for _ in range(3)]
    )

    assert cluster.where(containers) == ["b1", "b2", "a1"]


def test_rack_of_a_known_host_is_the_one_that_counts(cluster: Cluster) -> None:
    racks(cluster)

    containers = cluster.get(cluster.new_attempt(), *[cluster.request(ALL, host="a2", rack="/b") for _ in range(2)])

    assert cluster.where(containers) == ["a2", "a1"]


@pytest.mark.parametrize(("where", "got"), [({"host": "b2"}, ["b2"]), ({"rack": "/b"}, ["b1", "b2"])])
def test_ask_that_insists_waits_for_its_host_or_rack(cluster: Cluster, where: dict[str, str], got: list[str]) -> None:
    racks(cluster)
    attempt = cluster.new_attempt()
    asks = [cluster.request(ALL, relax_locality=False, **where) for _ in range(3)]

    containers = cluster.get(attempt, *asks)
    cluster.check()
    cluster.finish(containers[-1])

    assert cluster.where(containers) == got
    assert cluster.where(cluster.pull(attempt)) == got[-1:]
    cluster.check()


def test_ask_with_strict_locality_does_not_block_later_asks(cluster: Cluster) -> None:
    racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(ALL, host="elsewhere", relax_locality=False))

    containers = cluster.get(attempt, ALL)

    assert cluster.where(containers) == ["a1"]


def test_ask_with_strict_locality_is_served_once_its_host_is_added(cluster: Cluster) -> None:
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(ALL, host="late", relax_locality=False))
    cluster.add_node("early")

    cluster.add_node("late")

    assert cluster.where(cluster.pull(attempt)) == ["late"]


def test_every_node_of_a_host_serves_asks_that_prefer_the_host(cluster: Cluster) -> None:
    for port in (1, 2):
        cluster.add_node("n1", port=port)
    cluster.add_node("n2")

    containers = cluster.get(cluster.new_attempt(), *[cluster.request(ALL, host="n1") for _ in range(3)])

    assert [container.node for container in containers] == ["n1:1", "n1:2", "n2:45454"]


def test_waiting_ask_takes_any_node_that_gets_room_and_one_that_prefers_it_comes_first(cluster: Cluster) -> None:
    for host in ("n1", "n2"):
        cluster.add_node(host)
    attempt = cluster.new_attempt()
    first, second = cluster.get(attempt, ALL, ALL)
    asks = [cluster.request(ALL), cluster.request(ALL, host="n1"), cluster.request(ALL, host="n2")]
    cluster.ask(attempt, *asks)

    cluster.finish(second)
    cluster.finish(first)

    assert [container.request.tag for container in cluster.pull(attempt)] == [asks[2].tag, asks[1].tag]
    assert cluster.waiting_tags() == [asks[0].tag]


# -- partitions -------------------------------------------------------------------------------------------------------


def test_asks_go_to_nodes_of_their_partition_only(cluster: Cluster) -> None:
    cluster.add_node("plain")
    cluster.add_node("labelled", partition="x")
    attempt = cluster.new_attempt()

    plain = cluster.get(attempt, ALL, ALL)
    labelled = cluster.get(attempt, *[cluster.request(ALL, node_label="x") for _ in range(2)])

    assert (cluster.where(plain), cluster.where(labelled)) == (["plain"], ["labelled"])
    assert len(cluster.scheduler.waiting()) == 2
    cluster.check()


@pytest.mark.parametrize(("label", "host"), [(None, "labelled"), ("", "plain")])
def test_ask_without_a_label_has_its_applications(cluster: Cluster, label: str | None, host: str) -> None:
    cluster.add_node("plain")
    cluster.add_node("labelled", partition="x")

    containers = cluster.get(cluster.new_attempt(node_label="x"), cluster.request(ALL, node_label=label))

    assert cluster.where(containers) == [host]


def test_preferred_host_of_another_partition_is_none(cluster: Cluster) -> None:
    cluster.add_node("n1", partition="x")
    cluster.add_node("n2")

    containers = cluster.get(cluster.new_attempt(), cluster.request(ALL, host="n1"))

    assert cluster.where(containers) == ["n2"]


def test_node_that_changes_its_partition_serves_the_asks_of_the_new_one(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    attempt = cluster.new_attempt()
    (running,) = cluster.get(attempt, HALF)
    cluster.ask(attempt, cluster.request(HALF, node_label="x"))

    cluster.change_label(node, "x")
    cluster.ask(attempt, SMALL)

    assert [container.request.node_label for container in cluster.pull(attempt)] == ["x"]
    assert [request.resource for _, request in cluster.scheduler.waiting()] == [SMALL]
    assert running.state.name == "RUNNING"
    cluster.check()


# -- blacklists -------------------------------------------------------------------------------------------------------


def test_nothing_is_placed_on_a_blacklisted_host(cluster: Cluster) -> None:
    for host in ("n1", "n2"):
        cluster.add_node(host)
    attempt, other = cluster.new_attempt(), cluster.new_attempt()
    cluster.blacklist(attempt, ("n1",))

    mine = cluster.get(attempt, cluster.request(ALL, host="n1"), cluster.request(ALL))
    theirs = cluster.get(other, ALL)

    assert (cluster.where(mine), cluster.where(theirs)) == (["n2"], ["n1"])
    cluster.check()


def test_waiting_ask_takes_no_room_on_a_host_that_is_blacklisted_meanwhile(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt, other = cluster.new_attempt(), cluster.new_attempt()
    (running,) = cluster.get(other, ALL)
    cluster.ask(attempt, ALL)
    cluster.blacklist(attempt, ("n1",))

    cluster.finish(running)

    assert cluster.pull(attempt) == []
    cluster.check()


def test_pending_asks_are_served_in_order_once_their_host_leaves_the_blacklist(cluster: Cluster) -> None:
    cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.blacklist(attempt, ("n1",))
    asks = [cluster.request(HALF) for _ in range(3)]
    cluster.ask(attempt, *asks)

    cluster.blacklist(attempt, removals=("n1",))

    assert [container.request.tag for container in cluster.pull(attempt)] == [asks[0].tag, asks[1].tag]
    assert cluster.waiting_tags() == [asks[2].tag]
    cluster.check()


# -- custom resource types ---------------------------------------------------------------------------------------------


def test_further_resource_types_are_counted(cluster: Cluster) -> None:
    cluster.add_node("n1")
    cluster.add_node("n2", others={"fpga": 3})
    attempt = cluster.new_attempt()

    first, second, *_ = containers = cluster.get(attempt, with_fpgas(2), with_fpgas(1), with_fpgas(1))
    cluster.check()
    cluster.finish(second)

    assert cluster.where(containers) == ["n2", "n2"]
    assert cluster.where(cluster.pull(attempt)) == ["n2"]
    assert first.state.name == "RUNNING"
    cluster.check()


# -- reasons for a wait ------------------------------------------------------------------------------------------------


def test_report_says_why_an_ask_waits(cluster: Cluster) -> None:
    node = cluster.add_node("n1")
    attempt = cluster.new_attempt()
    cluster.get(attempt, HALF)

    def why(resource: Resource, **more: object) -> str:
        sentence: str = cluster.scheduler.why_waiting(attempt, cluster.request(resource, **more)).sentence
        return sentence

    assert why(ALL) == "no node has 10 MB and 0.01 vcores free; the closest, n1:45454, has 5 MB and 0.005 vcores"
    assert why(Resource(11, 1)).startswith("no node could ever take it: it needs 11 MB, and the largest, n1:45454")
    assert why(SMALL, node_label="x") == "partition x has no nodes"
    assert "host n2, which has none" in why(SMALL, host="n2", relax_locality=False)
    cluster.decommission(node)
    assert why(SMALL) == "all nodes that could take it are being decommissioned, such as n1:45454"
    cluster.lose_node(node)
    assert why(SMALL) == "the cluster has no nodes in use: 1 lost"
    assert cluster.scheduler.why_waiting("appattempt_0_0099_000001", cluster.request(ALL)).sentence.endswith(
        "has ended"
    )


def test_events_of_one_container_come_in_order(cluster: Cluster) -> None:
    cluster.add_node("n1")

    (container,) = cluster.get(cluster.new_attempt(), SMALL)

    mine = [event.type for event in cluster.dispatcher.events if event.entity == container.entity]
    assert mine == [RMContainerEventType.START, RMContainerEventType.ACQUIRED, RMContainerEventType.LAUNCHED]
