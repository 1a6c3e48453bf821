"""The door for administrators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMNode, RMNodeEventType
from statemachines.resourcemanager.records.errors import InvalidRequestError, NodeNotFoundError
from statemachines.resourcemanager.services.admin_service import AdminService
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager

from ..builders import NODE, SPEC, Workshop, send

STORES_LISTS = "RMStateStore STORE_HOST_LISTS"


@pytest.fixture
def lists(workshop: Workshop) -> NodesListManager:
    return NodesListManager(workshop.context)


@pytest.fixture
def admin(workshop: Workshop, lists: NodesListManager) -> AdminService:
    return AdminService(workshop.context, lists)


def test_nodes_are_decommissioned(workshop: Workshop, admin: AdminService, lists: NodesListManager) -> None:
    workshop.node("RUNNING")

    admin.refresh_nodes(["node1"])

    assert (workshop.posted.news(), lists.excluded) == (["RMNode DECOMMISSION", STORES_LISTS], {"node1"})


@pytest.mark.parametrize(("given_s", "timeout_s"), [(60, 60), (None, 3600)])
def test_graceful_decommissioning_has_the_given_or_the_configured_timeout(
    workshop: Workshop, admin: AdminService, given_s: int | None, timeout_s: int
) -> None:
    workshop.node("RUNNING")

    admin.refresh_nodes(["node1"], graceful=True, timeout_s=given_s)

    emptied, _ = workshop.posted.events
    assert (workshop.posted.news(), emptied.about) == (["RMNode GRACEFUL_DECOMMISSION", STORES_LISTS], timeout_s)


def test_only_included_hosts_have_nodes(workshop: Workshop, admin: AdminService, lists: NodesListManager) -> None:
    workshop.node("RUNNING")

    admin.refresh_nodes(include=["node2"])

    assert (workshop.posted.news(), lists.included) == (["RMNode SHUTDOWN", STORES_LISTS], {"node2"})


def test_included_hosts_stay_as_they_were(admin: AdminService, lists: NodesListManager) -> None:
    admin.refresh_nodes(include=["node1"])

    admin.refresh_nodes(["node2"])

    assert lists.included == {"node1"}


def test_recommissioned_host_may_have_nodes_again(
    workshop: Workshop, admin: AdminService, lists: NodesListManager
) -> None:
    workshop.node("DECOMMISSIONING")
    lists.excluded = {"node1"}

    admin.recommission(["node1"])

    assert (workshop.posted.news(), lists.excluded) == (["RMNode RECOMMISSION", STORES_LISTS], set())


def test_capacity_of_a_node_is_changed(workshop: Workshop, admin: AdminService) -> None:
    workshop.node("RUNNING")

    admin.update_node_resource(NODE, Resource(1, 2))

    update, write = workshop.posted.events
    assert workshop.posted.news() == ["RMNode RESOURCE_UPDATE", "RMStateStore STORE_NODE_CAPACITY"]
    assert (update.entity, update.about, write.state.capacity) == (NODE, Resource(1, 2), Resource(1, 2))


@pytest.mark.parametrize("capacity", [Resource(-1, 1), Resource(1, 2**63), Resource(1, 1, others=(("fpga", -1),))])
def test_impossible_capacity_is_refused(workshop: Workshop, admin: AdminService, capacity: Resource) -> None:
    """A negative one made the cluster smaller than nothing; shares of a huge one cannot be computed."""
    workshop.node("RUNNING")

    with pytest.raises(InvalidRequestError, match="cannot have"):
        admin.update_node_resource(NODE, capacity)

    assert workshop.posted.events == []


def test_node_keeps_its_new_partition(workshop: Workshop, admin: AdminService) -> None:
    node = workshop.node("RUNNING")

    admin.replace_labels_on_node(NODE, "gpu")

    update, write = workshop.posted.events
    assert workshop.posted.news() == ["Scheduler NODE_LABELS_UPDATE", "RMStateStore STORE_NODE_LABEL"]
    assert (update.entity, update.partition, write.entity, write.state.label) == (NODE, "gpu", NODE, "gpu")
    assert (node.spec.partition, node.spec.capacity) == ("gpu", SPEC.capacity)


@pytest.mark.parametrize("label", ["a" * 256, "two\nlines", "\ud800"])
def test_label_that_no_store_or_page_can_have_is_refused(workshop: Workshop, admin: AdminService, label: str) -> None:
    workshop.node("RUNNING")

    with pytest.raises(InvalidRequestError, match="cannot be a label"):
        admin.replace_labels_on_node(NODE, label)

    assert (workshop.context.node_labels, workshop.posted.events) == ({}, [])


@pytest.mark.parametrize("partition", ["", "gpu"])
def test_label_given_by_an_administrator_outlasts_the_node(
    workshop: Workshop, admin: AdminService, partition: str
) -> None:
    """A node that came back once took its own label with it."""
    own = replace(SPEC, partition="own")
    node = workshop.node("RUNNING", own)
    admin.replace_labels_on_node(NODE, partition)

    send(node, "EXPIRE")
    back = RMNode(workshop.context, own)

    assert back.spec == replace(SPEC, partition=partition)


def test_capacity_given_by_an_administrator_outlasts_the_node_and_its_decommissioning(
    workshop: Workshop, admin: AdminService
) -> None:
    node = workshop.node("RUNNING")
    send(node, "GRACEFUL_DECOMMISSION")
    admin.update_node_resource(NODE, Resource(1, 2))
    node.handle(next(event for event in workshop.posted.events if event.type is RMNodeEventType.RESOURCE_UPDATE))

    send(node, "RECOMMISSION")
    recommissioned = node.capacity
    send(node, "EXPIRE")
    back = RMNode(workshop.context, SPEC)

    assert (recommissioned, back.capacity) == (Resource(1, 2), Resource(1, 2))


@pytest.mark.parametrize(
    ("running_apps", "http_port"),
    [(("application_0_0001",), 8042), ((), 8042), ((), 9042)],
    ids=["reconnects", "restarts", "restarts elsewhere"],
)
def test_settings_by_an_administrator_hold_when_the_node_registers_again(
    workshop: Workshop, admin: AdminService, running_apps: tuple[str, ...], http_port: int
) -> None:
    node = workshop.node("RUNNING")
    admin.replace_labels_on_node(NODE, "gpu")
    admin.update_node_resource(NODE, Resource(1, 2))

    send(node, "RECONNECTED", spec=replace(SPEC, http_port=http_port), running_apps=running_apps)

    node = workshop.context.nodes[NODE]
    assert node.spec == replace(SPEC, partition="gpu", http_port=http_port)
    assert node.capacity == Resource(1, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.update_node_resource(NODE, Resource(1, 1)),
        lambda admin: admin.replace_labels_on_node(NODE, "gpu"),
    ],
    ids=["update_node_resource", "replace_labels_on_node"],
)
def test_node_that_has_left_cannot_be_changed(
    workshop: Workshop, admin: AdminService, call: Callable[[AdminService], Any]
) -> None:
    workshop.node("LOST")

    with pytest.raises(NodeNotFoundError, match=f"active node {NODE} does not exist"):
        call(admin)

    assert workshop.posted.events == []


def test_calls_are_made_on_the_handler_thread(workshop: Workshop, admin: AdminService) -> None:
    workshop.node("RUNNING")
    put_off: list[Callable[[], Any]] = []
    workshop.context.on_handler_thread, workshop.context.execute = lambda: False, put_off.append

    admin.refresh_nodes_later(["node1"], include=["node1"])
    admin.recommission_later(["node1"])
    admin.update_node_resource_later(NODE, Resource(1, 1))
    admin.replace_labels_on_node_later(NODE, "gpu")

    assert (len(put_off), workshop.posted.events) == (4, [])
