"""The door for administrators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMNode, RMNodeEventType

from ....kit.scenarios import play
from ..builders import NODE, SPEC, Workshop, send
from ..inner import AdminService, InvalidRequestError, NodesListManager
from .nodes import Nodes

SCENARIOS = {
    "graceful decommissioning has the given timeout": "busy RUNNING | refresh_gracefully 60 node1 | settle"
    " -> news GRACEFUL_DECOMMISSION_node1 ; stored STORE_HOST_LISTS ; timeout 60",
    "graceful decommissioning has the configured timeout": "busy RUNNING | refresh_gracefully configured node1 | settle"
    " -> timeout 3600",
    "included hosts stay as they were": "admit_only node1 | refresh node2 -> included node1 ; excluded node2",
    "a recommissioned host may have nodes again": "node DECOMMISSIONING | list node1 | recommission node1"
    " -> news RECOMMISSION_node1 ; stored STORE_HOST_LISTS ; excluded",
    "the capacity of a node is changed": "node RUNNING | resize 1 -> news RESOURCE_UPDATE_node1"
    " ; stored STORE_NODE_CAPACITY | settle -> capacity 1",
    "a node keeps its new partition": "node RUNNING | relabel gpu"
    " -> stored STORE_NODE_LABEL ; partition gpu ; capacity 8192",
    **{
        f"a node that has left cannot be changed ({change})": f"node LOST | refused {change}"
        " -> refusal active_node_node1 ; waiting"
        for change in ("resize 1", "relabel gpu")
    },
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_administrators(script: str) -> None:
    play(Nodes(), script)


@pytest.fixture
def admin(workshop: Workshop) -> AdminService:
    return AdminService(workshop.context, NodesListManager(workshop.context))


WRONG: list[tuple[str, Callable[[AdminService], Any]]] = [
    # A negative one made the cluster smaller than nothing; shares of a huge one cannot be computed.
    *[
        ("cannot have", lambda admin, size=size: admin.update_node_resource(NODE, size))
        for size in (Resource(-1, 1), Resource(1, 2**63), Resource(1, 1, others=(("fpga", -1),)))
    ],
    *[
        ("cannot be a label", lambda admin, label=label: admin.replace_labels_on_node(NODE, label))
        for label in ("a" * 256, "two\nlines", "\ud800")
    ],
]


@pytest.mark.parametrize(("problem", "change"), WRONG)
def test_size_or_label_that_no_node_can_have_is_refused(
    workshop: Workshop, admin: AdminService, problem: str, change: Callable[[AdminService], Any]
) -> None:
    workshop.node("RUNNING")

    with pytest.raises(InvalidRequestError, match=problem):
        change(admin)

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
