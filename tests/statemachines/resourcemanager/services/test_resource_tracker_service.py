"""The door for nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource, RMNode
from statemachines.resourcemanager.events.rmnode import RMNodeReconnectEvent, RMNodeStartedEvent, RMNodeStatusEvent
from statemachines.resourcemanager.records.errors import NodeRefusedError
from statemachines.resourcemanager.records.stored_state import HostDrain, HostLists
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager
from statemachines.resourcemanager.services.resource_tracker_service import (
    HeartbeatResponse,
    NodeAction,
    ResourceTrackerService,
)

from ..builders import MASTER, NODE, SPEC, TASK, Workshop, event_for

APP = "application_0_0001"
SIZE = Resource(1024, 1000)
RUNS = NMContainerStatus(TASK, SIZE)
NOTHING = HeartbeatResponse()


@pytest.fixture
def lists(workshop: Workshop) -> NodesListManager:
    return NodesListManager(workshop.context)


@pytest.fixture
def tracker(workshop: Workshop, lists: NodesListManager) -> ResourceTrackerService:
    return ResourceTrackerService(workshop.context, lists)


# -- registration -----------------------------------------------------------------------------------------------------


def test_registered_node_starts_with_its_containers(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    node_id = tracker.register_node(SPEC, [RUNS], [APP], healthy=False)

    (started,) = workshop.posted.events
    node = workshop.context.nodes[node_id]
    assert (node_id, node.state.name, workshop.posted.news()) == (NODE, "NEW", ["RMNode STARTED"])
    assert isinstance(started, RMNodeStartedEvent)
    assert (started.entity, started.payload) == (NODE, node.payload())
    assert (started.containers, started.running_apps, started.healthy) == ((RUNS,), (APP,), False)


def test_two_nodes_of_a_host_differ_by_their_ports(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    tracker.register_node(SPEC)
    tracker.register_node(replace(SPEC, port=1234))

    assert list(workshop.context.nodes) == [NODE, "node1:1234"]


def test_active_node_that_registers_again_reconnects(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    node = workshop.node("RUNNING")
    larger = replace(SPEC, capacity=Resource(16384, 16000))

    tracker.register_node(larger, [RUNS], [APP])

    (reconnected,) = workshop.posted.events
    assert isinstance(reconnected, RMNodeReconnectEvent)
    assert workshop.context.nodes == {NODE: node}
    assert (reconnected.spec, reconnected.containers, reconnected.running_apps) == (larger, (RUNS,), (APP,))


def test_node_that_was_lost_comes_back_as_a_new_one(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    lost = workshop.node("LOST")

    tracker.register_node(SPEC)

    node = workshop.context.nodes[NODE]
    node.handle(workshop.posted.events[0])
    assert (node is lost, node.state.name, workshop.context.inactive_nodes) == (False, "RUNNING", {})


def test_node_of_an_excluded_host_is_refused(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager
) -> None:
    lists.exclude(["node1"])

    with pytest.raises(NodeRefusedError, match="node1 may have no node") as refusal:
        tracker.register_node(SPEC)

    assert refusal.value.host == "node1"
    assert (workshop.context.nodes, workshop.posted.events) == ({}, [])
    assert NODE not in workshop.context.nm_liveliness_monitor


def test_node_that_is_being_emptied_may_reconnect(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager
) -> None:
    workshop.node("RUNNING")
    lists.exclude(["node1"], graceful=True)

    tracker.register_node(SPEC, running_apps=[APP])

    assert workshop.posted.news() == ["RMNode GRACEFUL_DECOMMISSION", "RMNode RECONNECTED"]


@pytest.mark.parametrize("passed_s", [0, 59])
def test_node_that_was_being_emptied_before_a_restart_is_emptied_in_the_rest_of_its_time(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager, passed_s: int
) -> None:
    lists.restore(excluded_gracefully(workshop))
    workshop.clock.advance(passed_s * 1000)

    tracker.register_node(SPEC, [RUNS], [APP])
    goes_on = workshop.posted.news()
    workshop.node("DECOMMISSIONING")
    workshop.clock.advance((60 - passed_s) * 1000)
    for monitor in lists.monitors:
        monitor.expire_due()

    assert goes_on == ["RMNode STARTED", "RMNode GRACEFUL_DECOMMISSION"]
    assert workshop.posted.news() == ["RMNode DECOMMISSION"]


@pytest.mark.parametrize(("passed_s", "apps"), [(0, []), (60, [APP])], ids=["nothing to wait for", "time is over"])
def test_node_whose_emptying_ended_during_a_restart_is_refused(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager, passed_s: int, apps: list[str]
) -> None:
    lists.restore(excluded_gracefully(workshop))
    workshop.clock.advance(passed_s * 1000)

    with pytest.raises(NodeRefusedError):
        tracker.register_node(SPEC, running_apps=apps)

    assert [*workshop.context.inactive_nodes] == ["node1:-1"]


def test_node_that_was_given_up_while_it_was_emptied_is_refused(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager
) -> None:
    workshop.node("LOST")
    lists.exclude(["node1"], graceful=True)

    with pytest.raises(NodeRefusedError):
        tracker.register_node(SPEC, [RUNS], [APP])


def excluded_gracefully(workshop: Workshop) -> HostLists:
    """node1, for 60 seconds, which begin now."""
    return HostLists(excluded=("node1",), drains={"node1": HostDrain(workshop.context.now_ms(), 60)})


def test_unregistering_node_is_shut_down(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    tracker.register_node(SPEC)

    tracker.unregister_node(NODE)

    assert workshop.posted.news() == ["RMNode STARTED", "RMNode SHUTDOWN"]
    assert NODE not in workshop.context.nm_liveliness_monitor


def test_unknown_node_shuts_down_unheard(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    tracker.unregister_node("nowhere:1")

    assert workshop.posted.events == []


# -- heartbeats -------------------------------------------------------------------------------------------------------


def test_heartbeat_is_a_status_update(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    workshop.node("RUNNING")
    done, all_, sizes = (ContainerStatus(MASTER, 0),), frozenset({TASK}), ((TASK, SIZE),)

    answer = tracker.heartbeat(NODE, (TASK,), done, healthy=False, running=all_, resized=sizes)

    (update,) = workshop.posted.events
    assert isinstance(update, RMNodeStatusEvent)
    assert (update.launched, update.finished, update.healthy) == ((TASK,), done, False)
    assert (update.running, update.resized, answer) == (all_, sizes, NOTHING)


def test_answer_to_a_heartbeat_says_once_what_is_to_be_done(
    workshop: Workshop, tracker: ResourceTrackerService
) -> None:
    """Each response repeated the containers, forever if the node had never started them."""
    node = workshop.node("RUNNING")
    for event in (
        event_for(node, "CLEANUP_CONTAINER", about=TASK),
        event_for(node, "CLEANUP_APP", about=APP),
        event_for(node, "SIGNAL_CONTAINER", about=(TASK, "FORCEFUL_SHUTDOWN")),
        event_for(node, "UPDATE_CONTAINER", about=(TASK, SIZE)),
        event_for(node, "FINISHED_CONTAINERS_PULLED_BY_AM", about=(MASTER,)),
    ):
        node.handle(event)

    first, second = tracker.heartbeat(NODE), tracker.heartbeat(NODE)

    assert first == HeartbeatResponse(
        frozenset({TASK}), [APP], NodeAction.NORMAL, [(TASK, "FORCEFUL_SHUTDOWN")], {TASK: SIZE}, [MASTER]
    )
    assert second == NOTHING


@pytest.mark.parametrize(
    ("event", "about"),
    [
        ("CLEANUP_CONTAINER", TASK),
        ("CLEANUP_APP", APP),
        ("SIGNAL_CONTAINER", (TASK, "FORCEFUL_SHUTDOWN")),
        ("UPDATE_CONTAINER", (TASK, SIZE)),
        ("FINISHED_CONTAINERS_PULLED_BY_AM", (MASTER,)),
    ],
)
def test_each_order_alone_reaches_the_node(
    workshop: Workshop, tracker: ResourceTrackerService, event: str, about: object
) -> None:
    node = workshop.node("RUNNING")
    node.handle(event_for(node, event, about=about))

    assert tracker.heartbeat(NODE) != NOTHING


@pytest.mark.parametrize(
    ("state", "action"),
    [("LOST", "RESYNC"), ("REBOOTED", "RESYNC"), ("SHUTDOWN", "RESYNC"), ("DECOMMISSIONED", "SHUTDOWN")],
)
def test_inactive_node_gets_an_action_and_its_report_is_ignored(
    workshop: Workshop, tracker: ResourceTrackerService, state: str, action: str
) -> None:
    workshop.node(state)

    answer = tracker.heartbeat(NODE, launched=(TASK,))

    assert (answer.action.name, workshop.posted.events) == (action, [])


def test_unknown_node_is_told_to_register(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    assert tracker.heartbeat("nowhere:1") == HeartbeatResponse(action=NodeAction.RESYNC)
    assert workshop.posted.events == []


@pytest.mark.parametrize("state", ["RUNNING", "UNHEALTHY", "LOST"])
def test_node_of_an_excluded_host_is_told_to_shut_down(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager, state: str
) -> None:
    workshop.node(state)
    lists.exclude(["node1"])
    workshop.posted.events.clear()

    answer = tracker.heartbeat(NODE)

    assert (answer.action, workshop.posted.events) == (NodeAction.SHUTDOWN, [])


def test_node_that_is_to_be_emptied_is_heard_before_it_has_been_told(
    workshop: Workshop, tracker: ResourceTrackerService, lists: NodesListManager
) -> None:
    """Its host is excluded at once: a heartbeat before the event would have shut it down with its containers."""
    node = workshop.node("RUNNING")
    lists.exclude(["node1"], graceful=True)

    before = tracker.heartbeat(NODE)
    node.handle(workshop.posted.events[0])
    after = tracker.heartbeat(NODE)

    assert (node.state.name, before.action, after.action) == ("DECOMMISSIONING", NodeAction.NORMAL, NodeAction.NORMAL)


# -- silence ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(workshop: Workshop, tracker: ResourceTrackerService) -> RMNode:
    """A node that has registered at time 0."""
    tracker.register_node(SPEC)
    workshop.posted.events.clear()
    return workshop.context.nodes[NODE]


def test_node_that_is_silent_for_too_long_expires(workshop: Workshop, node: RMNode) -> None:
    workshop.clock.advance(600_000)
    workshop.context.nm_liveliness_monitor.expire_due()

    (expired,) = workshop.posted.events
    assert (workshop.posted.news(), expired.entity) == (["RMNode EXPIRE"], node.entity)


@pytest.mark.parametrize("sign_of_life", ["heartbeat", "registration"])
def test_node_that_is_heard_of_does_not_expire(
    workshop: Workshop, tracker: ResourceTrackerService, node: RMNode, sign_of_life: str
) -> None:
    workshop.clock.advance(599_999)
    if sign_of_life == "heartbeat":
        tracker.heartbeat(node.entity)
    else:
        tracker.register_node(SPEC)

    workshop.clock.advance(599_999)
    workshop.context.nm_liveliness_monitor.expire_due()

    assert "RMNode EXPIRE" not in workshop.posted.news()


def test_any_host_may_have_nodes_while_both_lists_are_empty(tracker: ResourceTrackerService) -> None:
    assert tracker.register_node(SPEC) == NODE


# -- heartbeats with ids ----------------------------------------------------------------------------------------------


@pytest.fixture
def node_with_ids(workshop: Workshop, tracker: ResourceTrackerService) -> RMNode:
    """A node whose third heartbeat has just been answered, with a container to stop."""
    node = workshop.node("RUNNING")
    for response_id in range(2):
        tracker.heartbeat(NODE, response_id=response_id)
    node.to_clean.add(TASK)
    tracker.heartbeat(NODE, response_id=2)
    workshop.posted.events.clear()
    return node


def test_ids_go_up_by_one(workshop: Workshop, tracker: ResourceTrackerService) -> None:
    workshop.node("RUNNING")

    answers = [tracker.heartbeat(NODE, response_id=number).response_id for number in range(3)]

    assert answers == [1, 2, 3]


def test_heartbeat_whose_answer_got_lost_is_answered_again_and_not_heard(
    workshop: Workshop, tracker: ResourceTrackerService, node_with_ids: RMNode
) -> None:
    answer = tracker.heartbeat(NODE, launched=(MASTER,), response_id=2)

    assert (answer.response_id, answer.containers_to_clean) == (3, frozenset({TASK}))
    assert workshop.posted.events == []


@pytest.mark.parametrize("response_id", [0, 1, 4])
def test_node_that_has_begun_anew_without_registering_is_rebooted(
    workshop: Workshop, tracker: ResourceTrackerService, node_with_ids: RMNode, response_id: int
) -> None:
    answer = tracker.heartbeat(NODE, response_id=response_id)

    assert answer.action is NodeAction.RESYNC
    assert workshop.posted.news() == ["RMNode REBOOTING"]
    assert NODE not in workshop.context.nm_liveliness_monitor


def test_rebooted_node_that_registers_counts_from_the_beginning(
    workshop: Workshop, tracker: ResourceTrackerService, node_with_ids: RMNode
) -> None:
    tracker.heartbeat(NODE, response_id=0)
    node_with_ids.handle(workshop.posted.events[-1])

    tracker.register_node(SPEC)

    assert node_with_ids.state.name == "REBOOTED"
    assert tracker.heartbeat(NODE, response_id=0).response_id == 1


def test_node_that_registers_while_it_is_known_counts_from_the_beginning(
    tracker: ResourceTrackerService, node_with_ids: RMNode
) -> None:
    tracker.register_node(SPEC)

    assert tracker.heartbeat(NODE, response_id=0).response_id == 1
