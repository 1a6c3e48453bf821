"""What a node keeps: its containers and applications, news for the scheduler, orders for its next heartbeat."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, Resource, RMNode
from statemachines.resourcemanager.events.records import EXIT_ABORTED

from ..builders import MASTER, NODE, TASK, Workshop, event_for

APP = "application_0_0001"
THIRD = "container_0_0001_01_000003"
DONE = ContainerStatus(TASK, 0)
LARGER = Resource(16384, 16000)


def report(node: RMNode, **more: Any) -> None:
    node.handle(event_for(node, "STATUS_UPDATE", **more))


def ended(container: str) -> ContainerStatus:
    return ContainerStatus(container, 0)


@pytest.fixture
def node(workshop: Workshop) -> RMNode:
    """A running node; the application of the containers is known."""
    workshop.app("RUNNING")
    return workshop.node("RUNNING")


# -- news for the scheduler -------------------------------------------------------------------------------------------


def test_reports_wait_for_the_scheduler_with_one_node_update(workshop: Workshop, node: RMNode) -> None:
    report(node, launched=(TASK,))
    report(node, finished=(DONE,))

    assert workshop.posted.news() == ["RMApp APP_RUNNING_ON_NODE", "Scheduler NODE_UPDATE"]
    assert node.pull_updates() == [((TASK,), ()), ((), (DONE,))]
    assert node.pull_updates() == []


def test_scheduler_is_told_again_once_it_has_fetched_the_reports(workshop: Workshop, node: RMNode) -> None:
    report(node)
    node.pull_updates()

    report(node)

    assert workshop.posted.news() == ["Scheduler NODE_UPDATE"] * 2


def test_report_during_a_pull_posts_its_own_node_update(workshop: Workshop, node: RMNode) -> None:
    """A report may be appended after the scheduler's thread has looked at the queue for the last time."""

    class Queue:
        """Empty when the scheduler looks at it; a report arrives directly afterwards."""

        def __bool__(self) -> bool:
            report(node, launched=(TASK,))
            return False

        def append(self, update: Any) -> None:
            appended.append(update)

    appended: list[Any] = []
    report(node)
    workshop.posted.events.clear()
    node.updates = Queue()  # type: ignore[assignment]

    assert node.pull_updates() == []

    assert (appended, workshop.posted.news()[-1]) == ([((TASK,), ())], "Scheduler NODE_UPDATE")


def test_pull_survives_a_queue_that_is_cleared_meanwhile(node: RMNode) -> None:
    class Queue:
        """Its report is dropped between the look and the pop."""

        def popleft(self) -> Any:
            raise IndexError

    node.updates = Queue()  # type: ignore[assignment]

    assert node.pull_updates() == []


def test_report_without_news_of_containers_is_not_queued(workshop: Workshop, node: RMNode) -> None:
    report(node)

    assert (node.pull_updates(), workshop.posted.news()) == ([], ["Scheduler NODE_UPDATE"])


def test_node_that_falls_ill_drops_its_reports_and_its_containers(workshop: Workshop, node: RMNode) -> None:
    report(node, launched=(TASK,))
    workshop.posted.events.clear()

    report(node, healthy=False)
    report(node, healthy=True)
    report(node)

    assert (node.pull_updates(), node.containers) == ([], set())
    assert workshop.posted.news()[-2:] == ["NodesListManager NODE_USABLE", "Scheduler NODE_UPDATE"]


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("state", ["RUNNING", "DECOMMISSIONING", "UNHEALTHY"])
def test_health_is_as_it_last_said(workshop: Workshop, state: str, healthy: bool) -> None:
    node = workshop.node(state)
    node.running_apps.add(APP)
    node.health = state != "UNHEALTHY"

    report(node, healthy=healthy)

    assert node.health is healthy


# -- containers -------------------------------------------------------------------------------------------------------


def test_node_knows_the_containers_that_it_said_to_run(node: RMNode) -> None:
    report(node, launched=(TASK, THIRD))
    report(node, finished=(DONE,))

    assert node.containers == {THIRD}


def test_container_that_is_reported_as_launched_again_is_no_news(node: RMNode) -> None:
    report(node, launched=(TASK,))
    node.pull_updates()

    report(node, launched=(TASK, THIRD))

    assert node.pull_updates() == [((THIRD,), ())]


@pytest.mark.parametrize("news", [{"launched": (TASK,)}, {"finished": (DONE,)}, {"running": frozenset({TASK})}])
def test_reported_container_expires_no_more(workshop: Workshop, node: RMNode, news: dict[str, Any]) -> None:
    expirer = workshop.context.container_allocation_expirer
    expirer.register(TASK)

    report(node, **news)

    assert TASK not in expirer


def test_news_of_a_container_to_be_cleaned_up_is_not_passed_on(node: RMNode) -> None:
    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))

    report(node, launched=(TASK, THIRD))
    report(node, finished=(DONE, ended(THIRD)))

    assert node.pull_updates() == [((THIRD,), ()), ((), (ended(THIRD),))]
    assert (node.to_clean, node.containers) == (set(), set())


def test_container_to_be_cleaned_up_runs_until_the_node_says_otherwise(node: RMNode) -> None:
    """Otherwise the next report of all containers would count it as launched again."""
    report(node, launched=(TASK,))
    node.pull_updates()

    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))
    node.to_clean.clear()  # the node has been told
    report(node, running=frozenset({TASK}))

    assert (node.containers, node.pull_updates()) == ({TASK}, [])


def test_news_of_an_ended_applications_containers_is_not_passed_on(node: RMNode) -> None:
    report(node, launched=(TASK,))
    node.pull_updates()
    node.handle(event_for(node, "CLEANUP_APP", about=APP))

    report(node, launched=(THIRD,), finished=(DONE,))

    assert (node.pull_updates(), node.containers) == ([], set())


def test_containers_that_only_a_full_report_names_are_launched(node: RMNode) -> None:
    report(node, running=frozenset({THIRD, TASK, MASTER}), launched=(THIRD,))

    assert node.pull_updates() == [((THIRD, MASTER, TASK), ())]
    assert node.containers == {MASTER, TASK, THIRD}


def test_container_that_a_full_report_omits_is_lost(node: RMNode) -> None:
    report(node, launched=(TASK, THIRD))
    node.pull_updates()

    report(node, running=frozenset(), finished=(ended(THIRD),))

    lost = ContainerStatus(TASK, EXIT_ABORTED, f"lost: {NODE} no longer reports it")
    assert node.pull_updates() == [((), (ended(THIRD), lost))]
    assert node.containers == set()


def test_container_that_the_node_has_never_reported_is_not_lost(workshop: Workshop, node: RMNode) -> None:
    """A report may have been made before the container was launched."""
    workshop.container("ACQUIRED")

    report(node, running=frozenset())

    assert node.pull_updates() == []


def test_full_report_without_changes_is_not_queued(node: RMNode) -> None:
    report(node, launched=(TASK,))
    node.pull_updates()

    report(node, running=frozenset({TASK}))

    assert node.pull_updates() == []


def test_container_with_an_invalid_id_is_logged_and_passed_on(node: RMNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "statemachines.resourcemanager.machines.rmnode"):
        report(node, launched=("nonsense", TASK))

    assert node.pull_updates() == [(("nonsense", TASK), ())]
    assert node.running_apps == {APP}
    assert f"{NODE} reports an invalid container: 'nonsense' is not the id of a container" in caplog.text


# -- applications -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("news", [{"launched": (TASK, THIRD)}, {"finished": (DONE, ended(THIRD))}])
def test_application_is_notified_once_that_it_runs_on_the_node(
    workshop: Workshop, node: RMNode, news: dict[str, Any]
) -> None:
    report(node, **news)

    running = workshop.posted.events[0]
    assert workshop.posted.news() == ["RMApp APP_RUNNING_ON_NODE", "Scheduler NODE_UPDATE"]
    assert (running.entity, running.node, node.running_apps) == (APP, NODE, {APP})


def test_unknown_application_is_cleaned_up(workshop: Workshop, node: RMNode) -> None:
    report(node, launched=("container_0_0009_01_000001",))

    assert (node.running_apps, node.apps_to_clean) == (set(), ["application_0_0009"])
    assert workshop.posted.news() == ["Scheduler NODE_UPDATE"]


def test_ended_application_no_longer_runs_here(node: RMNode) -> None:
    report(node, launched=(TASK,))

    node.handle(event_for(node, "CLEANUP_APP", about=APP))

    assert (node.running_apps, node.apps_to_clean) == (set(), [APP])


# -- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["RUNNING", "DECOMMISSIONING", "UNHEALTHY"])
def test_clean_ups_wait_for_the_next_heartbeat(workshop: Workshop, state: str) -> None:
    node = workshop.node(state)

    node.handle(event_for(node, "CLEANUP_APP", about=APP))
    node.handle(event_for(node, "CLEANUP_CONTAINER", about=TASK))
    node.handle(event_for(node, "FINISHED_CONTAINERS_PULLED_BY_AM", about=(MASTER, THIRD)))

    assert (node.apps_to_clean, node.to_clean, node.to_forget) == ([APP], {TASK}, [MASTER, THIRD])


def test_sizes_and_signals_wait_for_the_next_heartbeat(node: RMNode) -> None:
    node.handle(event_for(node, "UPDATE_CONTAINER", about=(TASK, Resource(1, 1))))
    node.handle(event_for(node, "UPDATE_CONTAINER", about=(TASK, Resource(2, 2))))
    node.handle(event_for(node, "SIGNAL_CONTAINER", about=(TASK, "GRACEFUL_SHUTDOWN")))

    assert node.to_update == {TASK: Resource(2, 2)}
    assert node.to_signal == [(TASK, "GRACEFUL_SHUTDOWN")]


def test_container_is_notified_of_the_size_that_its_node_reports(workshop: Workshop, node: RMNode) -> None:
    report(node, resized=((TASK, LARGER),))

    done = workshop.posted.events[-1]
    assert workshop.posted.news() == ["Scheduler NODE_UPDATE", "RMContainer NM_DONE_CHANGE_RESOURCE"]
    assert (done.entity, done.resource) == (TASK, LARGER)
