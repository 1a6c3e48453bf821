"""Nodes: which hosts may have them, how they register, report and are given up, and what masters learn of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource

from ....kit.scenarios import play
from ..builders import MASTER, NODE, SPEC, TASK, event_for
from ..inner import HeartbeatResponse, NodeAction, RMNodeReconnectEvent, RMNodeStartedEvent, RMNodeStatusEvent
from .nodes import APP, Nodes

SIZE = Resource(1024, 1000)
MINUTE_MS = 60_000
RUNS = NMContainerStatus(TASK, SIZE)
NOTHING = HeartbeatResponse()
DRAINED = "busy RUNNING | drain 60 node1 | settle"
THREE_BEATS = "node RUNNING | beat 0 | beat 1 | clean | beat 2 | forget"

CHANGES = {
    "each change of a node is noted for the masters, by direct call": "hear NODE_UNUSABLE node1"
    " | hear NODE_USABLE node1 | hear NODE_DECOMMISSIONING node1"
    " -> changes NODE_UNUSABLE_node1 NODE_USABLE_node1 NODE_DECOMMISSIONING_node1 ; waiting",
    # 200 nodes that joined held up 10,000 applications for seconds.
    "a change is no event for each application": "app | hear NODE_UNUSABLE node1 -> transitions 0 ; waiting",
    "a node is unusable until it is usable again": "hear NODE_UNUSABLE node1 | hear NODE_UNUSABLE node2"
    " | hear NODE_USABLE node1 -> unusable node2",
}
LISTS = {
    "any host may have nodes while both lists are empty": "include -> may node1 node2 ; untracked",
    "an excluded host may have no node": "exclude node1 -> may node2 ; untracked",
    "only included hosts may have nodes": "include node1 -> may node1 ; untracked node2",
    "an exclusion overrides an inclusion": "include node1 | exclude node1 -> may ; untracked node2",
    "an excluded host is not untracked": "include node2 | exclude node1 -> may node2 ; untracked",
    "a decommissioning node can be decommissioned at once": "node RUNNING | drain 60 node1 | settle | forget"
    " | exclude node1 | settle -> news DECOMMISSION_node1 ; deadline None",
    "an untracked node is forgotten after a while": "node RUNNING | +5 | include node2 | settle -> since 5"
    f" | +{MINUTE_MS - 1} -> inactive node1_SHUTDOWN | +1 -> inactive ; forgotten SHUTDOWN ; unusable",
    "a node that left before its host went off the lists is forgotten too": "node LOST | include node2"
    f" | +{MINUTE_MS} -> inactive",
    "a node whose host is included again is not forgotten": "node LOST | include node2 | include node1"
    f" | +{MINUTE_MS} -> inactive node1_LOST ; since None",
    "a node whose host is excluded later is not forgotten": "node LOST | include node2 | exclude node1"
    f" | +{MINUTE_MS} -> inactive node1_LOST ; since None",
}
PLACEHOLDERS = {
    "an excluded host without a node counts as decommissioned, once": "exclude node1 | exclude node1"
    " -> inactive node1:-1_DECOMMISSIONED ; waiting ; made 1",
    "a readmitted host without a node is no longer counted": "exclude node1 node2 | readmit node1"
    " -> inactive node2:-1_DECOMMISSIONED ; forgotten DECOMMISSIONED",
    "an included host without a node in time counts as lost": "node RUNNING | include node1 node2 node3"
    " | node RUNNING node3 | +599999 -> inactive | +1 -> inactive node2:-1_LOST ; waiting",
    "a host is awaited from its first inclusion on": "include node1 | +599999 | include node1 node2 | +1"
    " -> inactive node1:-1_LOST",
    "a host that is no longer included is not awaited": "include node1 | include | +600000 -> inactive",
    "a node takes the place of its placeholder": "exclude node1 | list | node NEW | send STARTED -> inactive",
}
EMPTYING = {
    "a node that is still busy at its timeout is decommissioned": f"{DRAINED}"
    " -> news GRACEFUL_DECOMMISSION_node1 ; state DECOMMISSIONING ; timeout 60 | +59999 -> waiting"
    " | +1 | settle -> news DECOMMISSION_node1 ; inactive node1_DECOMMISSIONED",
    "a node without a timeout may take as long as it needs": "busy RUNNING | drain - node1 | settle"
    " -> deadlines None None None",
    "a changed timeout counts from the beginning": f"{DRAINED} | forget | +20000 | drain 30 node1 | settle"
    " -> news GRACEFUL_DECOMMISSION_node1 ; timeout 30 ; deadline 30000",
    # It was in use while its host was excluded, so its heartbeats were answered with SHUTDOWN.
    **{
        f"a node is emptied that is excluded, readmitted after {handled} events, and excluded again": "busy RUNNING"
        f" | drain 60 node1 | settle {handled} | readmit node1 | drain 60 node1 | settle"
        " -> state DECOMMISSIONING ; may_go_on True"
        for handled in range(4)
    },
    "decommissioning that was begun elsewhere is watched too": "busy RUNNING | post GRACEFUL_DECOMMISSION 60 | settle"
    " -> deadline 60000",
    "a node that was empty in time is watched no more": "node RUNNING | drain 60 node1 | settle | send STATUS_UPDATE"
    " | settle -> inactive node1_DECOMMISSIONED ; watched False ; deadline None",
    "a readmitted decommissioning node stays": f"{DRAINED} | forget | readmit node1 | +60000 | settle"
    " -> news RECOMMISSION_node1 ; state RUNNING ; may node1 node2",
    # It was decommissioned although its host was readmitted: its state did not show the order yet.
    "a node that is readmitted before it was told stays": "busy RUNNING | drain 60 node1 | readmit node1 | settle"
    " -> news GRACEFUL_DECOMMISSION_node1 RECOMMISSION_node1 ; state RUNNING ; watched False",
    "the timeout of a node that has changed its state unnoticed does no harm": "busy RUNNING | watch 60 | +60000"
    " -> state RUNNING ; waiting",
}
REGISTRATION = {
    "two nodes of a host differ by their ports": "register node1 | register node1:1234 -> active node1 node1:1234",
    "a node that was lost comes back as a new one": "node LOST | register node1 | settle -> state RUNNING ; inactive",
    "a node that is being emptied may reconnect": f"node RUNNING | drain - node1 | register node1 {APP}"
    " -> news GRACEFUL_DECOMMISSION_node1 RECONNECTED_node1",
    **{
        f"emptying goes on in the rest of its time if a restart took {passed} s": f"restore | +{passed}000"
        f" | register node1 {APP} -> news STARTED_node1 GRACEFUL_DECOMMISSION_node1"
        f" | node DECOMMISSIONING | +{60 - passed}000 -> news DECOMMISSION_node1"
        for passed in (0, 59)
    },
    "a node that comes back from a restart with nothing to wait for is refused": "restore | refused register node1"
    " -> refusal node1_may_have_no_node ; inactive node1:-1_DECOMMISSIONED",
    "a node whose time was over during a restart is refused": f"restore | +60000 | refused register node1 {APP}"
    " -> refusal node1_may_have_no_node ; inactive node1:-1_DECOMMISSIONED",
    "a node that was given up while it was emptied is refused": "node LOST | drain - node1"
    f" | refused register node1 {APP}"
    " -> refusal node1_may_have_no_node",
    "a node that unregisters is shut down": "register node1 | unregister node1"
    " -> news STARTED_node1 SHUTDOWN_node1 ; heard",
    "an unknown node shuts down unheard": "unregister nowhere -> waiting",
}
HEARTBEATS = {
    **{
        f"a {state} node is told {action}, and not heard": f"node {state} | beat -> action {action} ; waiting"
        for action, states in (("RESYNC", ("LOST", "REBOOTED", "SHUTDOWN")), ("SHUTDOWN", ("DECOMMISSIONED",)))
        for state in states
    },
    **{
        f"a {state} node of an excluded host is told to shut down": f"node {state} | exclude node1 | forget | beat"
        " -> action SHUTDOWN ; waiting"
        for state in ("RUNNING", "UNHEALTHY", "LOST")
    },
    # Its host is excluded at once: a heartbeat before the event would have shut it down with its containers.
    "a node that is to be emptied is heard before it has been told": "node RUNNING | drain - node1 | beat"
    " -> action NORMAL | settle 1 | beat -> action NORMAL ; state DECOMMISSIONING",
    "a node that is silent for too long expires": "register node1 | +600000 -> news STARTED_node1 EXPIRE_node1",
    "a node that reports does not expire": "register node1 | +599999 | beat | +599999 -> news STARTED_node1",
    "a node that registers again does not expire": "register node1 | +599999 | register node1 | +599999"
    " -> news STARTED_node1 RECONNECTED_node1",
    "a heartbeat whose answer got lost is answered again and not heard": f"{THREE_BEATS} | beat 2"
    f" -> id 3 ; to_clean {TASK} ; waiting",
    **{
        f"a node that begins again at id {id} without registering is rebooted": f"{THREE_BEATS} | beat {id}"
        " -> action RESYNC ; news REBOOTING_node1 ; heard"
        for id in (0, 1, 4)
    },
    "a rebooted node that registers counts from the beginning": f"{THREE_BEATS} | beat 0 | settle"
    " -> inactive node1_REBOOTED | register node1 | beat 0 -> id 1",
    "a node that registers while it is known counts from the beginning": f"{THREE_BEATS} | register node1 | beat 0"
    " -> id 1",
}
EVENTS = {
    # An event for its predecessor took a node that had just registered out of service, though it was well; if it
    # registered once more, it was started twice. YARN has no rows for clean-ups on a node that has left.
    **{
        f"a {state} node {'takes' if takes else 'does not get'} {event}": f"node {state} | tell {event}"
        f" -> handled {takes:d} 0"
        for state, event, takes in (
            ("RUNNING", "CLEANUP_CONTAINER", True),
            ("UNHEALTHY", "STATUS_UPDATE", True),
            ("NEW", "STARTED", True),
            ("NEW", "CLEANUP_CONTAINER", False),
            ("NEW", "EXPIRE", False),
            ("NEW", "DECOMMISSION", False),
            ("NEW", "RESOURCE_UPDATE", False),
            ("LOST", "RESOURCE_UPDATE", True),
            ("LOST", "FINISHED_CONTAINERS_PULLED_BY_AM", True),
            ("LOST", "CLEANUP_CONTAINER", False),
            ("REBOOTED", "FINISHED_CONTAINERS_PULLED_BY_AM", False),
            ("DECOMMISSIONED", "CLEANUP_APP", False),
            ("SHUTDOWN", "STATUS_UPDATE", False),
        )
    },
    "an event that the state of an active node does not take is counted": "node DECOMMISSIONING | tell STARTED"
    " -> handled 0 1",
    "an event for an unknown node is dropped": "expire_unknown -> waiting",
}
SCENARIOS = EVENTS | CHANGES | LISTS | PLACEHOLDERS | EMPTYING | REGISTRATION | HEARTBEATS


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_nodes(script: str) -> None:
    play(Nodes(), script)


# -- what events and answers have in them ------------------------------------------------------------------------------


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_registered_node_starts_with_its_containers(nodes: Nodes) -> None:
    node_id = nodes.tracker.register_node(SPEC, [RUNS], [APP], healthy=False)

    (started,) = nodes.workshop.posted.events
    node = nodes.context.nodes[node_id]
    assert (node_id, node.state.name) == (NODE, "NEW")
    assert isinstance(started, RMNodeStartedEvent)
    assert (started.entity, started.payload) == (NODE, node.payload())
    assert (started.containers, started.running_apps, started.healthy) == ((RUNS,), (APP,), False)


def test_active_node_that_registers_again_reconnects(nodes: Nodes) -> None:
    node = nodes.workshop.node("RUNNING")
    larger = replace(SPEC, capacity=Resource(16384, 16000))

    nodes.tracker.register_node(larger, [RUNS], [APP])

    (reconnected,) = nodes.workshop.posted.events
    assert isinstance(reconnected, RMNodeReconnectEvent)
    assert nodes.context.nodes == {NODE: node}
    assert (reconnected.spec, reconnected.containers, reconnected.running_apps) == (larger, (RUNS,), (APP,))


def test_heartbeat_is_a_status_update(nodes: Nodes) -> None:
    nodes.workshop.node("RUNNING")
    done, all_, sizes = (ContainerStatus(MASTER, 0),), frozenset({TASK}), ((TASK, SIZE),)

    answer = nodes.tracker.heartbeat(NODE, (TASK,), done, healthy=False, running=all_, resized=sizes)

    (update,) = nodes.workshop.posted.events
    assert isinstance(update, RMNodeStatusEvent)
    assert (update.launched, update.finished, update.healthy) == ((TASK,), done, False)
    assert (update.running, update.resized, answer) == (all_, sizes, NOTHING)


ORDERS = {
    "CLEANUP_CONTAINER": TASK,
    "CLEANUP_APP": APP,
    "SIGNAL_CONTAINER": (TASK, "FORCEFUL_SHUTDOWN"),
    "UPDATE_CONTAINER": (TASK, SIZE),
    "FINISHED_CONTAINERS_PULLED_BY_AM": (MASTER,),
}


def test_answer_to_a_heartbeat_says_once_what_is_to_be_done(nodes: Nodes) -> None:
    """Each response repeated the containers, forever if the node had never started them."""
    node = nodes.workshop.node("RUNNING")
    for event, about in ORDERS.items():
        node.handle(event_for(node, event, about=about))

    first, second = nodes.tracker.heartbeat(NODE), nodes.tracker.heartbeat(NODE)

    assert first == HeartbeatResponse(
        frozenset({TASK}), [APP], NodeAction.NORMAL, [(TASK, "FORCEFUL_SHUTDOWN")], {TASK: SIZE}, [MASTER]
    )
    assert second == NOTHING


@pytest.mark.parametrize("event", ORDERS)
def test_each_order_alone_reaches_the_node(nodes: Nodes, event: str) -> None:
    node = nodes.workshop.node("RUNNING")
    node.handle(event_for(node, event, about=ORDERS[event]))

    assert nodes.tracker.heartbeat(NODE) != NOTHING
