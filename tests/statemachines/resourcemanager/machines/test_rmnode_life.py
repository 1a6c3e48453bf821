"""How a node's capacity changes, how it is emptied, and how it comes back."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource, RMNode
from statemachines.simulation.workload import NodeSpec

from ..builders import MASTER, NODE, SPEC, TASK, Workshop, event_for
from ..inner import EXIT_ABORTED

APP = "application_0_0001"
THIRD = "container_0_0001_01_000003"
LARGER = Resource(16384, 16000)


def report(node: RMNode, **more: Any) -> None:
    node.handle(event_for(node, "STATUS_UPDATE", **more))


@pytest.fixture
def node(workshop: Workshop) -> RMNode:
    """A running node; the application of the containers is known."""
    workshop.app("RUNNING")
    return workshop.node("RUNNING")


# -- capacity and emptying --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["RUNNING", "DECOMMISSIONING"])
def test_scheduler_is_notified_of_a_new_capacity(workshop: Workshop, state: str) -> None:
    node = workshop.node(state)

    node.handle(event_for(node, "RESOURCE_UPDATE", about=LARGER))

    (update,) = workshop.posted.events
    assert (node.capacity, update.entity, update.capacity) == (LARGER, NODE, LARGER)


@pytest.mark.parametrize("state", ["NEW", "UNHEALTHY", "LOST", "REBOOTED", "DECOMMISSIONED", "SHUTDOWN"])
def test_new_capacity_of_a_node_that_is_not_in_use_is_kept_with_a_warning(
    workshop: Workshop, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = workshop.node(state)

    with caplog.at_level(logging.WARNING, "statemachines.resourcemanager.machines.rmnode"):
        node.handle(event_for(node, "RESOURCE_UPDATE", about=LARGER))

    assert (node.capacity, workshop.posted.events) == (LARGER, [])
    assert f"{NODE} is {state}: its new capacity {LARGER} counts once" in caplog.text


def test_scheduler_is_told_that_a_node_drains_and_of_its_capacity_then(workshop: Workshop, node: RMNode) -> None:
    timeouts_s = []
    for name, about in ("GRACEFUL_DECOMMISSION", 60), ("RESOURCE_UPDATE", LARGER), ("RECOMMISSION", None):
        node.handle(event_for(node, name, about=about))
        timeouts_s.append(node.decommission_timeout_s)

    told = [event for event in workshop.posted.events if event.type.name == "NODE_RESOURCE_UPDATE"]
    assert [(event.capacity, event.is_draining) for event in told] == [
        (SPEC.capacity, True),
        (LARGER, True),
        (LARGER, False),
    ]
    assert timeouts_s == [60, 60, None]


def test_timeout_of_a_decommissioning_can_be_changed(node: RMNode) -> None:
    node.handle(event_for(node, "GRACEFUL_DECOMMISSION", about=60))

    node.handle(event_for(node, "GRACEFUL_DECOMMISSION", about=None))

    assert (node.state.name, node.decommission_timeout_s) == ("DECOMMISSIONING", None)


def test_node_is_decommissioned_when_its_last_application_has_ended(workshop: Workshop, node: RMNode) -> None:
    report(node, launched=(TASK,))
    node.handle(event_for(node, "GRACEFUL_DECOMMISSION"))
    report(node, finished=(ContainerStatus(TASK, 0),))
    assert node.state.name == "DECOMMISSIONING"

    node.handle(event_for(node, "CLEANUP_APP", about=APP))
    report(node)

    assert (node.state.name, workshop.context.inactive_nodes) == ("DECOMMISSIONED", {NODE: node})


def test_node_that_leaves_is_no_longer_expected_to_report(workshop: Workshop, node: RMNode) -> None:
    workshop.context.nm_liveliness_monitor.register(NODE)

    node.handle(event_for(node, "SHUTDOWN"))

    assert NODE not in workshop.context.nm_liveliness_monitor


# -- reconnection -----------------------------------------------------------------------------------------------------


def reconnect(node: RMNode, spec: NodeSpec = SPEC, **more: Any) -> None:
    node.handle(event_for(node, "RECONNECTED", spec=spec, **more))


def test_restarted_node_is_added_again_with_its_new_capacity(workshop: Workshop, node: RMNode) -> None:
    report(node, launched=(TASK,))

    reconnect(node, NodeSpec("node1", LARGER))

    assert (node.capacity, node.spec.capacity) == (LARGER, LARGER)
    assert (node.containers, node.running_apps, node.pull_updates()) == (set(), set(), [])


def test_other_node_manager_on_the_same_port_is_another_node(workshop: Workshop, node: RMNode) -> None:
    reconnect(node, NodeSpec("node1", LARGER, http_port=9042))

    other = workshop.context.nodes[NODE]
    started = workshop.posted.events[-1]
    assert (other is node, other.state.name, other.capacity) == (False, "NEW", LARGER)
    assert (started.entity, started.payload) == (NODE, other.payload())
    assert dict(workshop.recorder.machines["RMNode"].forgotten) == {"RUNNING": 1}


def test_reconnected_node_keeps_its_containers(workshop: Workshop, node: RMNode) -> None:
    size = Resource(1024, 1000)
    report(node, launched=(TASK, THIRD))
    node.pull_updates()
    done = ContainerStatus(THIRD, 7)

    reconnect(
        node,
        NodeSpec("node1", LARGER, http_port=9042),
        containers=(NMContainerStatus(MASTER, size), NMContainerStatus(THIRD, size, status=done)),
        running_apps=(APP, "application_0_0009"),
    )

    lost = ContainerStatus(TASK, EXIT_ABORTED, f"lost: {NODE} no longer reports it")
    assert node.pull_updates() == [((MASTER,), (done, lost))]
    assert (node.containers, node.running_apps, node.apps_to_clean) == ({MASTER}, {APP}, ["application_0_0009"])
    assert (workshop.context.nodes, node.capacity, node.spec.http_port) == ({NODE: node}, LARGER, 9042)
    assert workshop.posted.events[-1].capacity == LARGER


def test_node_that_reconnects_while_it_is_emptied_keeps_its_new_capacity(node: RMNode) -> None:
    node.handle(event_for(node, "GRACEFUL_DECOMMISSION"))
    reconnect(node, NodeSpec("node1", LARGER), running_apps=(APP,))

    node.handle(event_for(node, "RECOMMISSION"))

    assert node.capacity == LARGER
