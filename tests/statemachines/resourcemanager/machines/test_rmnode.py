"""Every arc of RMNode: its target and what it posts. test_rmnode_lists.py tests what a node keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource, RMNode
from statemachines.simulation.workload import NodeSpec

from ..builders import NODE, SPEC, TASK, Case, Workshop, case_id, declared, event_for, targets

APP = "application_0_0001"
REMOVED = "Scheduler NODE_REMOVED"
ADDED = "Scheduler NODE_ADDED"
NEW_CAPACITY = "Scheduler NODE_RESOURCE_UPDATE"
USABLE = "NodesListManager NODE_USABLE"
UNUSABLE = "NodesListManager NODE_UNUSABLE"
EMPTYING = "NodesListManager NODE_DECOMMISSIONING"
ON_NODE = "RMApp APP_RUNNING_ON_NODE"
GONE = (REMOVED, UNUSABLE)
LARGER = NodeSpec("node1", Resource(16384, 16000))
OTHER = NodeSpec("node1", Resource(8192, 8000), http_port=9042)
RUNS = NMContainerStatus(TASK, Resource(1024, 1000))


def plain(workshop: Workshop, node: RMNode) -> None:
    """A node on which nothing has run."""


def with_app(workshop: Workshop, node: RMNode) -> None:
    workshop.app("RUNNING")
    node.running_apps.add(APP)
    workshop.posted.events.clear()


def with_container(workshop: Workshop, node: RMNode) -> None:
    """An application that the node has not reported yet."""
    workshop.container("ACQUIRED")


def with_master(workshop: Workshop, node: RMNode) -> None:
    workshop.scheduler.nodes_with_masters.add(NODE)


def back(workshop: Workshop, node: RMNode) -> None:
    workshop.context.inactive_nodes[NODE] = RMNode(workshop.context, SPEC)


def ill_before(workshop: Workshop, node: RMNode) -> None:
    node.in_scheduler = False


def not_fetched(workshop: Workshop, node: RMNode) -> None:
    """A node whose last report the scheduler has not pulled."""
    node.next_heartbeat = False


GIVEN: dict[str, tuple[Callable[[Workshop, RMNode], None], dict[str, Any]]] = {
    "": (plain, {}),
    "unhealthy": (plain, {"healthy": False}),
    "with an application": (with_app, {"running_apps": (APP,)}),
    "with an unknown application": (plain, {"running_apps": (APP,)}),
    "that was here before": (back, {"containers": (RUNS,)}),
    "with a new container": (with_app, {"launched": (TASK,)}),
    "of a new application": (with_container, {"launched": (TASK,)}),
    "while one waits": (not_fetched, {}),
    "with a new size": (plain, {"resized": ((TASK, Resource(1, 1)),)}),
    "still in use": (with_app, {}),
    "with a master to come": (with_master, {}),
    "still in use, unhealthy": (with_app, {"healthy": False}),
    "ill before": (ill_before, {}),
    "larger": (plain, {"spec": LARGER}),
    "other": (plain, {"spec": OTHER}),
    "in use": (with_app, {"running_apps": (APP,)}),
    "in use, larger": (with_app, {"spec": LARGER, "running_apps": (APP,)}),
}


def self_loops(state: str, *events: str) -> list[Case]:
    """Arcs that only keep something on the node."""
    return [Case(state, event, state) for event in events]


LEFT = {"DECOMMISSION": "DECOMMISSIONED", "EXPIRE": "LOST", "REBOOTING": "REBOOTED", "SHUTDOWN": "SHUTDOWN"}
TO_CLEAN = ("CLEANUP_APP", "CLEANUP_CONTAINER", "FINISHED_CONTAINERS_PULLED_BY_AM")
CASES = [
    Case("NEW", "STARTED", "RUNNING", (ADDED, USABLE)),
    Case("NEW", "STARTED", "RUNNING", (ON_NODE, ADDED, USABLE), "with an application"),
    Case("NEW", "STARTED", "RUNNING", (ADDED, USABLE), "with an unknown application"),
    Case("NEW", "STARTED", "RUNNING", (ADDED, USABLE), "that was here before"),
    Case("NEW", "STARTED", "UNHEALTHY", (UNUSABLE,), "unhealthy"),
    Case("NEW", "DECOMMISSION", "DECOMMISSIONED", (UNUSABLE,)),
    Case("NEW", "EXPIRE", "LOST", (UNUSABLE,)),
    *self_loops("NEW", "RESOURCE_UPDATE", "FINISHED_CONTAINERS_PULLED_BY_AM"),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", ("Scheduler NODE_UPDATE",)),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", ("Scheduler NODE_UPDATE",), "with a new container"),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", (ON_NODE, "Scheduler NODE_UPDATE"), "of a new application"),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", (), "while one waits"),
    Case(
        "RUNNING",
        "STATUS_UPDATE",
        "RUNNING",
        ("Scheduler NODE_UPDATE", "RMContainer NM_DONE_CHANGE_RESOURCE"),
        "with a new size",
    ),
    Case("RUNNING", "STATUS_UPDATE", "UNHEALTHY", GONE, "unhealthy"),
    *(Case("RUNNING", event, to, GONE) for event, to in LEFT.items()),
    Case("RUNNING", "GRACEFUL_DECOMMISSION", "DECOMMISSIONING", (NEW_CAPACITY, EMPTYING)),
    Case("RUNNING", "RECONNECTED", "RUNNING", (REMOVED, ADDED)),
    Case("RUNNING", "RECONNECTED", "RUNNING", (REMOVED, ADDED), "larger"),
    Case("RUNNING", "RECONNECTED", "RUNNING", (REMOVED, "RMNode STARTED"), "other"),
    Case("RUNNING", "RECONNECTED", "RUNNING", (ON_NODE,), "in use"),
    Case("RUNNING", "RECONNECTED", "RUNNING", (ON_NODE, NEW_CAPACITY), "in use, larger"),
    Case("RUNNING", "RESOURCE_UPDATE", "RUNNING", (NEW_CAPACITY,)),
    *self_loops("RUNNING", *TO_CLEAN, "UPDATE_CONTAINER", "SIGNAL_CONTAINER", "RECOMMISSION"),
    *self_loops("UNHEALTHY", "RECOMMISSION"),
    *(Case("DECOMMISSIONING", event, to, GONE) for event, to in LEFT.items()),
    Case("DECOMMISSIONING", "DECOMMISSION", "DECOMMISSIONED", (UNUSABLE,), "ill before"),
    Case("DECOMMISSIONING", "RECOMMISSION", "RUNNING", (NEW_CAPACITY, USABLE)),
    Case("DECOMMISSIONING", "RECOMMISSION", "RUNNING", (ADDED, USABLE), "ill before"),
    Case("DECOMMISSIONING", "STATUS_UPDATE", "DECOMMISSIONED", GONE),
    Case("DECOMMISSIONING", "STATUS_UPDATE", "DECOMMISSIONED", GONE, "unhealthy"),
    Case("DECOMMISSIONING", "STATUS_UPDATE", "DECOMMISSIONING", ("Scheduler NODE_UPDATE",), "still in use"),
    Case("DECOMMISSIONING", "STATUS_UPDATE", "DECOMMISSIONING", ("Scheduler NODE_UPDATE",), "with a master to come"),
    Case("DECOMMISSIONING", "STATUS_UPDATE", "DECOMMISSIONING", (), "still in use, unhealthy"),
    Case("DECOMMISSIONING", "RECONNECTED", "DECOMMISSIONED", GONE),
    Case("DECOMMISSIONING", "RECONNECTED", "DECOMMISSIONING", (ON_NODE,), "in use"),
    Case("DECOMMISSIONING", "RECONNECTED", "DECOMMISSIONING", (ON_NODE,), "in use, larger"),
    Case("DECOMMISSIONING", "RESOURCE_UPDATE", "DECOMMISSIONING", (NEW_CAPACITY,)),
    *self_loops("DECOMMISSIONING", *TO_CLEAN, "GRACEFUL_DECOMMISSION", "UPDATE_CONTAINER", "SIGNAL_CONTAINER"),
    Case("UNHEALTHY", "STATUS_UPDATE", "RUNNING", (ADDED, USABLE)),
    Case("UNHEALTHY", "STATUS_UPDATE", "UNHEALTHY", (), "unhealthy"),
    *(Case("UNHEALTHY", event, to, (UNUSABLE,)) for event, to in LEFT.items()),
    Case("UNHEALTHY", "GRACEFUL_DECOMMISSION", "DECOMMISSIONING", (EMPTYING,)),
    Case("UNHEALTHY", "RECONNECTED", "UNHEALTHY", (REMOVED,)),
    Case("UNHEALTHY", "RECONNECTED", "UNHEALTHY", (REMOVED, "RMNode STARTED"), "other"),
    Case("UNHEALTHY", "RECONNECTED", "UNHEALTHY", (ON_NODE,), "in use, larger"),
    *self_loops("UNHEALTHY", *TO_CLEAN, "UPDATE_CONTAINER", "SIGNAL_CONTAINER", "RESOURCE_UPDATE"),
    *self_loops("REBOOTED", "RESOURCE_UPDATE"),
    *(
        case
        for state in ("DECOMMISSIONED", "LOST", "SHUTDOWN")
        for case in self_loops(state, "RESOURCE_UPDATE", "FINISHED_CONTAINERS_PULLED_BY_AM")
    ),
]


def take(workshop: Workshop, case: Case) -> RMNode:
    """Have a node in the case's state take its event."""
    node = workshop.node(case.state)
    arrange, more = GIVEN[case.given]
    arrange(workshop, node)
    workshop.posted.events.clear()
    node.handle(event_for(node, case.event, **more))
    return node


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_posts_its_events_and_keeps_the_books_of_nodes(workshop: Workshop, case: Case) -> None:
    node = take(workshop, case)

    assert (node.state.name, workshop.recorder.machines["RMNode"].invalid) == (case.to, 0)
    assert workshop.posted.news() == list(case.posts)
    if case.given == "other":  # another node has taken its place
        return
    has_left = case.to in LEFT.values()
    active, inactive = workshop.context.nodes, workshop.context.inactive_nodes
    assert (active, inactive) == (({}, {NODE: node}) if has_left else ({NODE: node}, {}))
    last_word = [news for news in case.posts if news in (ADDED, REMOVED)][-1:]
    if last_word:  # otherwise the scheduler would remove the node twice, or add it twice
        assert node.in_scheduler is (last_word == [ADDED])


def test_all_arcs_of_the_table_have_a_case() -> None:
    assert targets(CASES) == declared("RMNode")


@pytest.mark.parametrize("to", ["RUNNING", "UNHEALTHY"])
def test_containers_of_a_node_that_begins(workshop: Workshop, to: str) -> None:
    """The scheduler never learns of a node that registers as unhealthy, so it cannot stop the containers there."""
    node = workshop.node("NEW")
    ended = NMContainerStatus("container_0_0001_01_000003", Resource(1, 1), status=ContainerStatus("c", 0))

    node.handle(event_for(node, "STARTED", containers=(RUNS, ended), healthy=to == "RUNNING"))

    brought = [event.containers for event in workshop.posted.events if event.type.name == "NODE_ADDED"]
    assert brought == ([(RUNS, ended)] if to == "RUNNING" else [])
    assert (node.containers, node.to_clean) == (({TASK}, set()) if to == "RUNNING" else (set(), {TASK}))
    assert node.health is (to == "RUNNING")


def test_containers_of_a_node_that_comes_back_have_ended_for_the_scheduler(workshop: Workshop) -> None:
    node = take(workshop, next(case for case in CASES if case.given == "that was here before"))

    (added,) = [event for event in workshop.posted.events if event.type.name == "NODE_ADDED"]
    assert (added.containers, node.containers, node.to_clean) == ((), set(), {TASK})


def test_unknown_application_of_a_node_that_begins_is_cleaned_up(workshop: Workshop) -> None:
    node = take(workshop, next(case for case in CASES if case.given == "with an unknown application"))

    assert (node.running_apps, node.apps_to_clean) == (set(), [APP])


@pytest.mark.parametrize("port", [45454, -1])
def test_old_entry_or_placeholder_is_no_longer_counted(workshop: Workshop, port: int) -> None:
    context = workshop.context
    lost = workshop.node("RUNNING")
    lost.handle(event_for(lost, "EXPIRE"))
    context.inactive_nodes = {f"node1:{port}": lost}
    node = workshop.node("NEW")

    node.handle(event_for(node, "STARTED"))

    assert context.inactive_nodes == {}
    assert dict(workshop.recorder.machines["RMNode"].forgotten) == {"LOST": 1}


def test_payload_describes_the_node_for_the_journal(workshop: Workshop) -> None:
    plain = {"host": "node1", "rack": "/default-rack", "memory_mb": 8192, "vcores_milli": 8000, "gpus": 0}
    gpu_spec = NodeSpec("node1", Resource(8192, 8000, gpus=2), gpu_model="T4")

    assert workshop.node().payload() == plain
    assert RMNode(workshop.context, gpu_spec).payload() == plain | {"gpus": 2, "gpu_model": "T4"}


def test_id_has_the_port_of_the_node_manager(workshop: Workshop) -> None:
    assert RMNode(workshop.context, NodeSpec("node7", Resource(1, 1), port=1234)).entity == "node7:1234"
