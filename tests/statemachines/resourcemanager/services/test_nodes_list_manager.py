"""Which hosts may have nodes, and what is noted of their changes."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import RMNode, RMNodeEventType
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.events.services import NodesListManagerEvent, NodesListManagerEventType
from statemachines.resourcemanager.services.nodes_list_manager import (
    UNTRACKED_KEPT_MS,
    NodeEventDispatcher,
    NodesListManager,
)
from statemachines.simulation.workload import NodeSpec

from ..builders import NODE, SPEC, Workshop, event_for

PLACEHOLDER = "node1:-1"


@pytest.fixture
def lists(workshop: Workshop) -> NodesListManager:
    return NodesListManager(workshop.context)


def add_node(workshop: Workshop, host: str) -> RMNode:
    """A node of another host, in service."""
    node = RMNode(workshop.context, NodeSpec(host, SPEC.capacity))
    workshop.context.nodes[node.entity] = node
    node.handle(event_for(node, "STARTED"))
    workshop.posted.events.clear()
    return node


def settle(workshop: Workshop, lists: NodesListManager, at_most: int = 1_000) -> list[str]:
    """Have nodes and lists handle all posted events, or the first of them; returns the events for the nodes."""
    nodes, news, events = NodeEventDispatcher(workshop.context), [], workshop.posted.events
    while events and at_most:
        at_most -= 1
        event: Any = events.pop(0)
        if isinstance(event, RMNodeEvent):
            news.append(f"{event.type.name} {event.entity}")
            nodes.handle(event)
        elif isinstance(event, NodesListManagerEvent):
            lists.handle(event)
    return news


def pass_time(workshop: Workshop, lists: NodesListManager, ms: int) -> None:
    workshop.clock.advance(ms)
    for monitor in lists.monitors:
        monitor.expire_due()


def inactive(workshop: Workshop) -> dict[str, str]:
    return {id_: node.state.name for id_, node in workshop.context.inactive_nodes.items()}


# -- node changes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", NodesListManagerEventType)
def test_change_of_a_node_is_noted_for_the_masters(
    workshop: Workshop, lists: NodesListManager, type: NodesListManagerEventType
) -> None:
    before = workshop.context.node_changes.latest

    lists.handle(NodesListManagerEvent(type, NODE))

    assert workshop.context.node_changes.since(before) == [(NODE, type)]
    assert workshop.posted.events == []  # by direct call


def test_change_of_a_node_costs_the_same_with_any_number_of_applications(
    workshop: Workshop, lists: NodesListManager
) -> None:
    """Each application was once sent an event: 200 nodes that joined held up 10,000 applications for seconds."""
    workshop.app("RUNNING")

    lists.handle(NodesListManagerEvent(NodesListManagerEventType.NODE_UNUSABLE, NODE))

    assert sum(workshop.recorder.machines["RMApp"].transitions.values()) == 0


def test_node_is_unusable_until_it_is_usable_again(lists: NodesListManager) -> None:
    for node in ("a:1", "b:1"):
        lists.handle(NodesListManagerEvent(NodesListManagerEventType.NODE_UNUSABLE, node))

    lists.handle(NodesListManagerEvent(NodesListManagerEventType.NODE_USABLE, "a:1"))

    assert lists.unusable == {"b:1"}


# -- the lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("included", "excluded", "valid", "untracked"),
    [
        ((), (), True, False),
        ((), ("node1",), False, False),
        (("node1",), (), True, False),
        (("node1",), ("node1",), False, False),
        (("node2",), (), False, True),
        (("node2",), ("node1",), False, False),
    ],
)
def test_lists_decide_which_hosts_may_have_nodes(
    lists: NodesListManager, included: tuple[str, ...], excluded: tuple[str, ...], valid: bool, untracked: bool
) -> None:
    lists.include(included)
    lists.exclude(excluded)

    assert (lists.is_valid_node("node1"), lists.is_untracked("node1")) == (valid, untracked)


def test_nodes_of_excluded_hosts_are_decommissioned(workshop: Workshop, lists: NodesListManager) -> None:
    workshop.node("RUNNING")
    add_node(workshop, "node2")

    lists.exclude(["node1"])

    assert settle(workshop, lists) == [f"DECOMMISSION {NODE}"]
    assert inactive(workshop) == {NODE: "DECOMMISSIONED"}


def test_decommissioning_node_can_be_decommissioned_at_once(workshop: Workshop, lists: NodesListManager) -> None:
    workshop.node("RUNNING")
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists)

    lists.exclude(["node1"])

    assert settle(workshop, lists) == [f"DECOMMISSION {NODE}"]
    assert lists.decommissioning_watcher.monitor.next_deadline_ms() is None


def test_nodes_of_hosts_that_are_not_included_are_shut_down(workshop: Workshop, lists: NodesListManager) -> None:
    workshop.node("RUNNING")
    add_node(workshop, "node2")

    lists.include(["node2"])

    assert settle(workshop, lists) == [f"SHUTDOWN {NODE}"]


def test_untracked_node_is_forgotten_after_a_while(workshop: Workshop, lists: NodesListManager) -> None:
    node = workshop.node("RUNNING")
    workshop.clock.advance(5)
    lists.include(["node2"])
    settle(workshop, lists)
    assert node.untracked_since_ms == 5

    pass_time(workshop, lists, UNTRACKED_KEPT_MS - 1)
    assert inactive(workshop) == {NODE: "SHUTDOWN"}
    pass_time(workshop, lists, 1)

    assert inactive(workshop) == {}
    assert dict(workshop.recorder.machines["RMNode"].forgotten) == {"SHUTDOWN": 1}
    assert lists.unusable == set()


def test_node_that_left_before_its_host_went_off_the_lists_is_forgotten_too(
    workshop: Workshop, lists: NodesListManager
) -> None:
    workshop.node("LOST")
    lists.include(["node2"])

    pass_time(workshop, lists, UNTRACKED_KEPT_MS)

    assert inactive(workshop) == {}


@pytest.mark.parametrize("change", ["include", "exclude"])
def test_node_whose_host_is_on_a_list_again_is_not_forgotten(
    workshop: Workshop, lists: NodesListManager, change: str
) -> None:
    node = workshop.node("LOST")
    lists.include(["node2"])

    getattr(lists, change)(["node1"])
    pass_time(workshop, lists, UNTRACKED_KEPT_MS)

    assert (inactive(workshop), node.untracked_since_ms) == ({NODE: "LOST"}, None)


# -- placeholders -----------------------------------------------------------------------------------------------------


def test_excluded_host_without_a_node_counts_as_decommissioned(workshop: Workshop, lists: NodesListManager) -> None:
    lists.exclude(["node1"])
    lists.exclude(["node1"])

    assert inactive(workshop) == {PLACEHOLDER: "DECOMMISSIONED"}
    assert workshop.posted.events == []
    assert workshop.recorder.machines["RMNode"].created == 1


def test_readmitted_host_without_a_node_is_no_longer_counted(workshop: Workshop, lists: NodesListManager) -> None:
    lists.exclude(["node1", "node2"])

    lists.readmit(["node1"])

    assert inactive(workshop) == {"node2:-1": "DECOMMISSIONED"}
    assert dict(workshop.recorder.machines["RMNode"].forgotten) == {"DECOMMISSIONED": 1}


def test_included_host_without_a_node_in_time_counts_as_lost(workshop: Workshop, lists: NodesListManager) -> None:
    workshop.node("RUNNING")
    lists.include(["node1", "node2", "node3"])
    add_node(workshop, "node3")

    pass_time(workshop, lists, 599_999)
    assert inactive(workshop) == {}
    pass_time(workshop, lists, 1)

    assert inactive(workshop) == {"node2:-1": "LOST"}
    assert workshop.posted.events == []


def test_host_is_awaited_from_its_first_inclusion_on(workshop: Workshop, lists: NodesListManager) -> None:
    lists.include(["node1"])
    workshop.clock.advance(599_999)

    lists.include(["node1", "node2"])
    pass_time(workshop, lists, 1)

    assert inactive(workshop) == {PLACEHOLDER: "LOST"}


def test_host_that_is_no_longer_included_is_not_awaited(workshop: Workshop, lists: NodesListManager) -> None:
    lists.include(["node1"])
    lists.include([])

    pass_time(workshop, lists, 600_000)

    assert inactive(workshop) == {}


def test_node_takes_the_place_of_its_placeholder(workshop: Workshop, lists: NodesListManager) -> None:
    lists.exclude(["node1"])
    lists.excluded.clear()
    node = workshop.node("NEW")

    node.handle(event_for(node, "STARTED"))

    assert inactive(workshop) == {}


# -- emptying ---------------------------------------------------------------------------------------------------------


def in_use(workshop: Workshop) -> RMNode:
    node = workshop.node("RUNNING")
    node.running_apps.add("application_0_0001")
    return node


def test_node_that_is_still_busy_at_its_timeout_is_decommissioned(workshop: Workshop, lists: NodesListManager) -> None:
    node = in_use(workshop)
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    assert settle(workshop, lists) == [f"GRACEFUL_DECOMMISSION {NODE}"]
    assert (node.state.name, node.decommission_timeout_s) == ("DECOMMISSIONING", 60)

    pass_time(workshop, lists, 59_999)
    assert workshop.posted.events == []
    pass_time(workshop, lists, 1)

    assert settle(workshop, lists) == [f"DECOMMISSION {NODE}"]
    assert inactive(workshop) == {NODE: "DECOMMISSIONED"}


def test_node_without_a_timeout_may_take_as_long_as_it_needs(workshop: Workshop, lists: NodesListManager) -> None:
    in_use(workshop)

    lists.exclude(["node1"], graceful=True)
    settle(workshop, lists)

    assert [monitor.next_deadline_ms() for monitor in lists.monitors] == [None, None, None]


def test_changed_time_counts_from_the_beginning(workshop: Workshop, lists: NodesListManager) -> None:
    node = in_use(workshop)
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists)
    workshop.clock.advance(20_000)

    lists.exclude(["node1"], graceful=True, timeout_s=30)

    assert settle(workshop, lists) == [f"GRACEFUL_DECOMMISSION {NODE}"]
    assert node.decommission_timeout_s == 30
    assert lists.decommissioning_watcher.monitor.next_deadline_ms() == 30_000


@pytest.mark.parametrize("handled", range(4))
def test_node_that_is_excluded_recommissioned_and_excluded_again_is_emptied(
    workshop: Workshop, lists: NodesListManager, handled: int
) -> None:
    """It was in use while its host was excluded, so its heartbeats were answered with SHUTDOWN."""
    node = in_use(workshop)
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists, at_most=handled)
    lists.readmit(["node1"])

    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists)

    assert (node.state.name, lists.may_go_on(node)) == ("DECOMMISSIONING", True)


def test_decommissioning_begun_elsewhere_is_watched_too(workshop: Workshop, lists: NodesListManager) -> None:
    in_use(workshop)
    workshop.posted.events.append(RMNodeEvent(RMNodeEventType.GRACEFUL_DECOMMISSION, NODE, 60))

    settle(workshop, lists)

    assert lists.decommissioning_watcher.monitor.deadline_ms(NODE) == 60_000


def test_node_that_was_empty_in_time_is_watched_no_more(workshop: Workshop, lists: NodesListManager) -> None:
    node = workshop.node("RUNNING")
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists)

    node.handle(event_for(node, "STATUS_UPDATE"))
    settle(workshop, lists)

    assert inactive(workshop) == {NODE: "DECOMMISSIONED"}
    assert NODE not in lists.decommissioning_watcher
    assert lists.decommissioning_watcher.monitor.next_deadline_ms() is None


def test_readmitted_decommissioning_node_stays(workshop: Workshop, lists: NodesListManager) -> None:
    node = in_use(workshop)
    lists.exclude(["node1"], graceful=True, timeout_s=60)
    settle(workshop, lists)

    lists.readmit(["node1"])
    pass_time(workshop, lists, 60_000)

    assert settle(workshop, lists) == [f"RECOMMISSION {NODE}"]
    assert (node.state.name, lists.is_valid_node("node1")) == ("RUNNING", True)


def test_node_that_is_readmitted_before_it_was_told_stays(workshop: Workshop, lists: NodesListManager) -> None:
    """The node was decommissioned although its host was readmitted: its state did not show the order yet."""
    node = in_use(workshop)
    lists.exclude(["node1"], graceful=True, timeout_s=60)

    lists.readmit(["node1"])

    assert settle(workshop, lists) == [f"GRACEFUL_DECOMMISSION {NODE}", f"RECOMMISSION {NODE}"]
    assert (node.state.name, NODE in lists.decommissioning_watcher) == ("RUNNING", False)


def test_time_of_a_node_that_has_changed_its_state_unnoticed_passes_without_harm(
    workshop: Workshop, lists: NodesListManager
) -> None:
    node = in_use(workshop)
    lists.decommissioning_watcher.watch(NODE, 60)

    pass_time(workshop, lists, 60_000)

    assert (node.state.name, workshop.posted.events) == ("RUNNING", [])
