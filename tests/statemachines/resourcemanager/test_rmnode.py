"""Every arc of RMNode: where it leads, and what it posts."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import Resource, RMNode
from statemachines.resourcemanager.events import ContainerStatus
from statemachines.resourcemanager.workload import NodeSpec

from .builders import NODE, TASK, Case, Workshop, case_id, declared, event_for, targets

REMOVED = ("Scheduler NODE_REMOVED",)
GIVEN: dict[str, dict[str, Any]] = {"": {}, "healthy": {"healthy": True}, "unhealthy": {"healthy": False}}
CASES = [
    Case("NEW", "STARTED", "RUNNING", ("Scheduler NODE_ADDED",)),
    Case("NEW", "DECOMMISSION", "DECOMMISSIONED"),
    Case("NEW", "EXPIRE", "LOST"),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", ("Scheduler NODE_UPDATE",), "healthy"),
    Case("RUNNING", "STATUS_UPDATE", "UNHEALTHY", REMOVED, "unhealthy"),
    Case("RUNNING", "DECOMMISSION", "DECOMMISSIONED", REMOVED),
    Case("RUNNING", "EXPIRE", "LOST", REMOVED),
    Case("RUNNING", "REBOOTING", "REBOOTED", REMOVED),
    Case("RUNNING", "SHUTDOWN", "SHUTDOWN", REMOVED),
    Case("RUNNING", "CLEANUP_APP", "RUNNING"),
    Case("RUNNING", "CLEANUP_CONTAINER", "RUNNING"),
    Case("RUNNING", "FINISHED_CONTAINERS_PULLED_BY_AM", "RUNNING"),
    Case("UNHEALTHY", "STATUS_UPDATE", "RUNNING", ("Scheduler NODE_ADDED",), "healthy"),
    Case("UNHEALTHY", "STATUS_UPDATE", "UNHEALTHY", (), "unhealthy"),
    Case("UNHEALTHY", "DECOMMISSION", "DECOMMISSIONED"),
    Case("UNHEALTHY", "EXPIRE", "LOST"),
    Case("UNHEALTHY", "REBOOTING", "REBOOTED"),
    Case("UNHEALTHY", "SHUTDOWN", "SHUTDOWN"),
    Case("UNHEALTHY", "CLEANUP_APP", "UNHEALTHY"),
    Case("UNHEALTHY", "CLEANUP_CONTAINER", "UNHEALTHY"),
    Case("UNHEALTHY", "FINISHED_CONTAINERS_PULLED_BY_AM", "UNHEALTHY"),
]
DONE = ContainerStatus(TASK, 0)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    node = workshop.node(case.state)

    node.handle(event_for(node, case.event, **GIVEN[case.given]))

    assert (node.state.name, workshop.recorder.machines["RMNode"].invalid) == (case.to, 0)
    assert workshop.posted.told() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case() -> None:
    assert targets(CASES) == declared("RMNode")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_node_is_inactive_when_and_only_when_it_has_left(workshop: Workshop, case: Case) -> None:
    node = workshop.node(case.state)

    node.handle(event_for(node, case.event, **GIVEN[case.given]))

    has_left = case.to in ("DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN")
    active, inactive = workshop.context.nodes, workshop.context.inactive_nodes
    assert (active, inactive) == (({}, {NODE: node}) if has_left else ({NODE: node}, {}))


def report(node: RMNode, **more: Any) -> None:
    node.handle(event_for(node, "STATUS_UPDATE", **more))


def test_reports_wait_for_the_scheduler_which_is_told_once(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")

    report(node, launched=(TASK,))
    report(node, finished=(DONE,))

    assert workshop.posted.told() == ["Scheduler NODE_UPDATE"]
    assert node.pull_updates() == [((TASK,), ()), ((), (DONE,))]
    assert node.pull_updates() == []


def test_scheduler_is_told_again_once_it_has_fetched_the_reports(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")
    report(node)
    node.pull_updates()

    report(node)

    assert workshop.posted.told() == ["Scheduler NODE_UPDATE"] * 2


def test_node_knows_the_containers_that_it_said_to_run(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")

    report(node, launched=(TASK, "container_0_0001_01_000003"))
    report(node, finished=(DONE,))

    assert node.containers == {"container_0_0001_01_000003"}


def test_news_of_a_container_to_be_cleaned_up_is_not_passed_on(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")
    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))

    report(node, launched=(TASK,))
    report(node, finished=(DONE,))

    assert node.pull_updates() == [((), ()), ((), ())]
    assert (node.to_clean, node.containers) == (set(), set())


@pytest.mark.parametrize("state", ["RUNNING", "UNHEALTHY"])
def test_lists_for_the_next_heartbeats_answer_are_kept(workshop: Workshop, state: str) -> None:
    node = workshop.node(state)

    node.handle(event_for(node, "CLEANUP_APP", about="application_0_0001"))
    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))

    assert (node.apps_to_clean, node.to_clean) == (["application_0_0001"], {TASK})


def test_container_to_be_cleaned_up_does_not_count_as_running(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")
    report(node, launched=(TASK,))

    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))

    assert node.containers == set()


def test_containers_that_the_master_has_heard_of_are_forgotten(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")
    report(node, launched=(TASK,))

    node.handle(event_for(node, "FINISHED_CONTAINERS_PULLED_BY_AM", about=(TASK,)))

    assert node.containers == set()


def test_node_that_falls_ill_drops_its_reports_and_its_containers(workshop: Workshop) -> None:
    node = workshop.node("RUNNING")
    report(node, launched=(TASK,))

    report(node, healthy=False)

    assert (node.pull_updates(), node.containers) == ([], set())


def test_payload_tells_the_journal_what_the_node_has(workshop: Workshop) -> None:
    plain = {"host": "node1", "rack": "/default-rack", "memory_mb": 8192, "vcores_milli": 8000, "gpus": 0}
    gpu_spec = NodeSpec("node1", Resource(8192, 8000, gpus=2), gpu_model="T4")

    assert workshop.node().payload() == plain
    assert RMNode(workshop.context, gpu_spec).payload() == plain | {"gpus": 2, "gpu_model": "T4"}
