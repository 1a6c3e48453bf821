"""Scheduling on heartbeats: locality delays, containers per heartbeat, and reservations."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.resourcemanager.events.scheduler import NodeAddedSchedulerEvent
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler

from ..cluster import Cluster
from .reserving import Reserving

ALL = Resource(10, 10)  # of a node of the usual size
HALF = Resource(5, 5)
SMALL = Resource(1, 1)


def on_heartbeats(kind: type[FifoScheduler] | type[Reserving] = FifoScheduler, **scheduler: Any) -> Cluster:
    return Cluster(lambda context: kind(context, on_heartbeat=True), scheduler=scheduler)


def beat(cluster: Cluster, *nodes: str, times: int = 1) -> None:
    for node in nodes * times:
        cluster.tracker.heartbeat(node)


def test_ask_waits_until_a_node_with_room_reports() -> None:
    cluster = on_heartbeats()
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.ask(attempt, HALF)
    before = cluster.pull(attempt)

    beat(cluster, node)

    assert (before, cluster.where(cluster.pull(attempt))) == ([], ["n1"])
    cluster.check()


def test_room_of_a_released_container_goes_with_the_next_heartbeat() -> None:
    cluster = on_heartbeats()
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.ask(attempt, ALL)
    beat(cluster, node)
    (held,) = cluster.pull(attempt)

    cluster.ask(attempt, ALL, releases=(held.entity,))
    before = cluster.pull(attempt)
    beat(cluster, node)

    assert (before, len(cluster.pull(attempt))) == ([], 1)
    cluster.check()


@pytest.mark.parametrize(("most", "got"), [(2, [2, 2, 1]), (None, [5, 0, 0])])
def test_heartbeat_allocates_at_most_the_configured_number_of_containers(most: int | None, got: list[int]) -> None:
    cluster = on_heartbeats(containers_per_heartbeat=most)
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    cluster.ask(attempt, *[SMALL] * 5)

    counts = []
    for _ in got:
        beat(cluster, node)
        counts.append(len(cluster.pull(attempt)))

    assert counts == got


# -- preferences ------------------------------------------------------------------------------------------------------


def racks(cluster: Cluster) -> tuple[str, str, str]:
    """The preferred node, which never reports; a node in its rack, and a node in another."""
    preferred = cluster.add_node("preferred", rack="/a")
    return preferred, cluster.add_node("near", rack="/a"), cluster.add_node("far", rack="/b")


def test_preferred_host_is_taken_at_once() -> None:
    cluster = on_heartbeats()
    preferred, _, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, host="preferred"))

    beat(cluster, far, preferred)

    assert cluster.where(cluster.pull(attempt)) == ["preferred"]


def test_ask_lets_opportunities_pass_before_it_takes_another_node_of_its_rack() -> None:
    cluster = on_heartbeats(node_locality_delay=2)
    _, near, _ = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, host="preferred"))

    beat(cluster, near, times=2)
    before = cluster.pull(attempt)
    beat(cluster, near)

    assert (before, cluster.where(cluster.pull(attempt))) == ([], ["near"])


@pytest.mark.parametrize(("additional", "passed"), [(0, 2), (1, 3), (None, 3), (99, 3)])
def test_ask_lets_more_pass_before_it_takes_any_node_but_not_more_than_there_are_nodes(
    additional: int | None, passed: int
) -> None:
    cluster = on_heartbeats(node_locality_delay=2, rack_locality_additional_delay=additional)
    _, _, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, host="preferred"))

    beat(cluster, far, times=passed)
    before = cluster.pull(attempt)
    beat(cluster, far)

    assert (before, cluster.where(cluster.pull(attempt))) == ([], ["far"])


def test_without_a_delay_any_node_is_taken_at_once() -> None:
    cluster = on_heartbeats(node_locality_delay=None)
    _, _, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, host="preferred"))

    beat(cluster, far)

    assert cluster.where(cluster.pull(attempt)) == ["far"]


def test_preferred_rack_is_taken_at_once_and_another_after_the_delay() -> None:
    cluster = on_heartbeats(node_locality_delay=1, rack_locality_additional_delay=1)
    _, near, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, rack="/a"), cluster.request(SMALL, rack="/a"))

    beat(cluster, far, near)
    first = cluster.pull(attempt)
    beat(cluster, far, far, far)

    assert (len(first), len(cluster.pull(attempt))) == (2, 0)


def test_ask_that_insists_never_takes_another_node() -> None:
    cluster = on_heartbeats(node_locality_delay=None)
    preferred, near, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, cluster.request(SMALL, host="preferred", relax_locality=False))

    beat(cluster, near, far, times=9)
    before = cluster.pull(attempt)
    beat(cluster, preferred)

    assert (before, cluster.where(cluster.pull(attempt))) == ([], ["preferred"])


def test_heartbeat_counts_as_one_opportunity_however_many_containers_it_allocates() -> None:
    cluster = on_heartbeats(node_locality_delay=2)
    _, near, _ = racks(cluster)
    picky, other = cluster.new_attempt(), cluster.new_attempt()
    cluster.ask(picky, cluster.request(SMALL, host="preferred"))
    cluster.ask(other, *[SMALL] * 5)

    beat(cluster, near)

    assert (cluster.pull(picky), len(cluster.pull(other))) == ([], 5)


def test_ask_waiting_for_its_host_does_not_block_later_asks() -> None:
    cluster = on_heartbeats()
    _, _, far = racks(cluster)
    attempt = cluster.new_attempt()
    picky, easy = cluster.request(SMALL, host="preferred"), cluster.request(SMALL)
    cluster.ask(attempt, picky, easy)

    beat(cluster, far)

    assert [container.request.tag for container in cluster.pull(attempt)] == [easy.tag]


def test_locality_delay_restarts_once_an_ask_gets_its_preferred_node() -> None:
    cluster = on_heartbeats(node_locality_delay=1, rack_locality_additional_delay=0)
    preferred, _, far = racks(cluster)
    attempt = cluster.new_attempt()
    cluster.ask(attempt, *[cluster.request(Resource(6, 6), host="preferred") for _ in range(2)])

    beat(cluster, far, preferred)
    first = cluster.pull(attempt)
    beat(cluster, far)
    second = cluster.pull(attempt)
    beat(cluster, far)

    assert (cluster.where(first), second, cluster.where(cluster.pull(attempt))) == (["preferred"], [], ["far"])


# -- reservations -----------------------------------------------------------------------------------------------------


def crowded(kind: type[FifoScheduler] | type[Reserving] = Reserving) -> tuple[Cluster, str, str, str]:
    """One node, filled by two containers of `small`; `big` asks for all of it."""
    cluster = on_heartbeats(kind)
    node, small, big = cluster.add_node("n1"), cluster.new_attempt(), cluster.new_attempt()
    cluster.ask(small, HALF, HALF)
    beat(cluster, node)
    cluster.get(small)
    cluster.ask(big, ALL)
    return cluster, node, small, big


def reserved_on(cluster: Cluster) -> list[str]:
    """Hosts that are reserved, each for a container that names it."""
    nodes = [node for node in cluster.scheduler.nodes() if node.reserved_container is not None]
    for node in nodes:
        container = node.reserved_container
        assert container is not None
        assert cluster.context.containers[container.entity] is container
        assert (container.state.name, container.node) == ("RESERVED", node.node_id)
    count = sum(container.state.name == "RESERVED" for container in cluster.context.containers.values())
    assert count == len(nodes)
    return [node.host for node in nodes]


@pytest.mark.parametrize(("kind", "got"), [(FifoScheduler, 0), (Reserving, 1)])
def test_reserved_node_is_kept_until_there_is_room_enough(
    kind: type[FifoScheduler] | type[Reserving], got: int
) -> None:
    """Small asks of an earlier application took each bit of room as it was freed."""
    cluster, node, small, big = crowded(kind)
    beat(cluster, node)

    for container in cluster.scheduler.live_containers(small):
        cluster.finish(container)
        cluster.ask(small, HALF)
        beat(cluster, node)
        cluster.get(small)

    assert len(cluster.pull(big)) == got
    cluster.check()


def test_reservation_becomes_the_container() -> None:
    cluster, node, small, big = crowded()
    beat(cluster, node)
    assert reserved_on(cluster) == ["n1"]
    (reserved,) = (c for c in cluster.context.containers.values() if c.state.name == "RESERVED")
    cluster.check()

    for container in cluster.scheduler.live_containers(small):
        cluster.finish(container)

    assert [container.entity for container in cluster.pull(big)] == [reserved.entity]
    assert reserved.state.name == "ACQUIRED"
    cluster.check()


def test_reserved_container_gets_its_gpus_with_its_room() -> None:
    cluster = on_heartbeats(Reserving)
    node, small, big = cluster.add_node("n1", gpus=2), cluster.new_attempt(), cluster.new_attempt()
    cluster.ask(small, Resource(1, 1, 1))
    beat(cluster, node)
    (first,) = cluster.get(small)
    cluster.ask(big, Resource(1, 1, 2))
    beat(cluster, node)

    cluster.finish(first)

    assert [container.gpu_devices for container in cluster.pull(big)] == [(0, 1)]
    cluster.check()


def test_node_that_could_never_take_the_ask_is_not_reserved() -> None:
    cluster, node, _, big = crowded()
    cluster.remove_attempt(big)
    cluster.ask(cluster.new_attempt(), Resource(11, 1))

    beat(cluster, node)

    assert reserved_on(cluster) == []


def test_ask_reserves_one_node_only() -> None:
    cluster, node, small, _ = crowded()
    other = cluster.add_node("n2")
    cluster.ask(small, SMALL)

    beat(cluster, other, node, times=2)

    assert reserved_on(cluster) == ["n2"]


@pytest.mark.parametrize(
    "way",
    [
        "served elsewhere",
        "attempt removed",
        "node lost",
        "node resized",
        "node decommissioned",
        "node relabelled",
        "blacklisted",
    ],
)
def test_reservation_ends_when_it_is_not_needed_or_its_node_goes(way: str) -> None:
    cluster, node, _, big = crowded()
    beat(cluster, node)
    assert reserved_on(cluster) == ["n1"]

    match way:
        case "served elsewhere":
            beat(cluster, cluster.add_node("n2"), node)
        case "attempt removed":
            cluster.remove_attempt(big)
        case "node lost":
            cluster.lose_node(node)
        case "node resized":
            cluster.change_capacity(node, 12)
        case "node decommissioned":
            cluster.decommission(node)
        case "blacklisted":
            cluster.blacklist(big, ("n1",))
        case _:
            cluster.change_label(node, "x")

    assert reserved_on(cluster) == []
    assert len(cluster.pull(big)) == (way == "served elsewhere")
    cluster.check()


def test_node_that_is_announced_again_keeps_its_reservation() -> None:
    cluster, node, _, _ = crowded()
    beat(cluster, node)

    cluster.post(NodeAddedSchedulerEvent(node))

    assert reserved_on(cluster) == ["n1"]
