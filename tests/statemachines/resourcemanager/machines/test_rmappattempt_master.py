"""RMAppAttempt gets a container for its master: what it asks for, on which hosts, and what it does with it."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ContainerStatus, Resource, UnknownAttemptError
from statemachines.resourcemanager.events.records import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
)
from statemachines.simulation.workload import NodeSpec

from ..builders import MASTER, NODE, TASK, Workshop, send

FIRST = "appattempt_0_0001_000001"


def add_nodes(workshop: Workshop, *hosts: str, gpu_model: str | None = None) -> None:
    for host in hosts:
        workshop.node("RUNNING", NodeSpec(host, Resource(8192, 8000), gpu_model=gpu_model))


# -- the request for the master ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("transfer_state", [False, True])
def test_event_for_the_scheduler_says_whether_the_attempt_takes_over_containers(
    workshop: Workshop, transfer_state: bool
) -> None:
    attempt = workshop.attempt()

    send(attempt, "START", transfer_state=transfer_state)

    (added,) = workshop.posted.events
    assert (added.entity, added.transfer_state, added.is_recovering) == (FIRST, transfer_state, False)


def test_start_opens_the_door_to_the_master_and_leaving_closes_it(workshop: Workshop) -> None:
    attempt = workshop.attempt()
    masters = workshop.masters

    send(attempt, "START")
    masters.register_application_master(attempt.entity)
    for event in ("KILL", "ATTEMPT_UPDATE_SAVED"):
        send(attempt, event)

    with pytest.raises(UnknownAttemptError, match="not registered"):
        masters.register_application_master(attempt.entity)


def test_request_for_the_master_is_what_the_client_submitted(workshop: Workshop) -> None:
    models = frozenset({"T4"})
    attempt = workshop.attempt("SUBMITTED", am_host="node7", gpu_models=models, node_label="fast")

    send(attempt, "ATTEMPT_ADDED")

    ((asker, request),) = workshop.scheduler.asked
    assert asker == attempt.entity
    assert (request.resource, request.host) == (attempt.app.submission.am_resource, "node7")
    assert (request.priority, request.kind, request.gpu_models, request.node_label) == (0, "AM", models, "fast")
    assert workshop.scheduler.blacklisted == []


def test_scheduler_is_not_asked_for_an_unmanaged_master(workshop: Workshop) -> None:
    attempt = workshop.attempt("SUBMITTED", unmanaged_am=True)

    send(attempt, "ATTEMPT_ADDED")

    (store,) = workshop.posted.events
    assert (workshop.scheduler.asked, store.state.master_container) == ([], None)


def test_attempt_whose_queue_is_gone_fails_and_says_so(workshop: Workshop) -> None:
    attempt = workshop.attempt("SUBMITTED", queue="gone")
    workshop.scheduler.queue = None

    send(attempt, "ATTEMPT_ADDED")
    (fail,) = workshop.posted.events
    attempt.handle(fail)

    assert workshop.scheduler.asked == []
    assert (fail.entity, attempt.state.name) == (FIRST, "FINAL_SAVING")
    assert attempt.diagnostics == [f"queue gone of {attempt.app.entity} no longer exists"]


# -- its container ----------------------------------------------------------------------------------------------------


def test_allocated_container_is_the_masters_and_stored(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    container = workshop.container("ALLOCATED", MASTER)
    container.request = container.request._replace(resource=Resource(2048, 1000))  # rounded up by the scheduler
    add_nodes(workshop, "node1")
    workshop.scheduler.allocated = [container]

    send(attempt, "CONTAINER_ALLOCATED")

    assert (attempt.master_container, attempt.master_node) == (MASTER, NODE)
    store = workshop.posted.events[-1]
    assert store.state.master_container == (MASTER, NODE, Resource(2048, 1000), "node1:8042")
    assert (store.state.state, store.notify) == (None, True)


def test_missing_master_container_is_pulled_again_half_a_second_later(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    send(attempt, "CONTAINER_ALLOCATED")

    workshop.clock.advance(499)
    assert workshop.posted.news() == []
    workshop.clock.advance(1)

    assert workshop.posted.news() == ["RMAppAttempt CONTAINER_ALLOCATED"]


def test_master_is_not_fetched_again_when_the_attempt_has_gone_on(workshop: Workshop) -> None:
    """ALLOCATED has no row for CONTAINER_ALLOCATED."""
    attempt = workshop.attempt("SCHEDULED")
    add_nodes(workshop, "node1")
    send(attempt, "CONTAINER_ALLOCATED")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]
    send(attempt, "CONTAINER_ALLOCATED")
    workshop.posted.events.clear()

    workshop.clock.advance(500)

    assert workshop.posted.news() == []


def test_master_that_is_there_is_not_fetched_again(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    add_nodes(workshop, "node1")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]

    send(attempt, "CONTAINER_ALLOCATED")

    assert workshop.clock.pending_timers == 0


def test_container_of_a_node_that_is_gone_is_left_to_its_end(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]

    send(attempt, "CONTAINER_ALLOCATED")

    assert (attempt.master_container, workshop.clock.pending_timers) == (None, 0)


# -- the blacklist ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "exit_status", "is_avoided"),
    [
        ("LAUNCHED", 1, True),
        ("RUNNING", 1, True),
        ("FINAL_SAVING", 1, True),
        ("FINISHING", 1, True),
        ("RUNNING", EXIT_DISKS_FAILED, True),
        ("RUNNING", EXIT_SUCCESS, False),
        ("RUNNING", EXIT_ABORTED, False),
        ("RUNNING", EXIT_PREEMPTED, False),
        ("RUNNING", EXIT_KILLED_BY_RESOURCEMANAGER, False),
        ("RUNNING", EXIT_KILLED_AFTER_APP_COMPLETION, False),
    ],
)
def test_host_is_avoided_if_the_masters_end_may_be_its_fault(
    workshop: Workshop, state: str, exit_status: int, is_avoided: bool
) -> None:
    attempt = workshop.attempt(state)

    send(attempt, "CONTAINER_FINISHED", status=ContainerStatus(MASTER, exit_status))

    assert attempt.blacklist == ({"node1"} if is_avoided else set())


def test_end_of_another_container_is_no_reason_to_avoid_its_host(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")

    send(attempt, "CONTAINER_FINISHED", status=ContainerStatus(TASK, 1))

    assert attempt.blacklist == set()


@pytest.mark.parametrize(
    ("hosts", "avoided", "is_told_to_avoid"),
    [(5, 3, True), (5, 4, False), (2, 1, True), (1, 1, False)],
)
def test_blacklist_counts_as_long_as_enough_nodes_are_left(
    workshop: Workshop, hosts: int, avoided: int, is_told_to_avoid: bool
) -> None:
    """A master that fails on almost every node fails by itself."""
    names = [f"node{number}" for number in range(hosts)]
    add_nodes(workshop, *names)
    attempt = workshop.attempt("SUBMITTED")
    attempt.blacklist.update(reversed(names[:avoided]))

    send(attempt, "ATTEMPT_ADDED")

    news = (names[:avoided], []) if is_told_to_avoid else ([], names[:avoided])
    assert workshop.scheduler.blacklisted == [(FIRST, *news)]


def test_nodes_that_could_not_run_the_master_are_not_counted_as_left(workshop: Workshop) -> None:
    """Otherwise the attempt would wait forever for the only node with its GPU."""
    add_nodes(workshop, "node1", gpu_model="T4")
    add_nodes(workshop, "node2", "node3", "node4", gpu_model="P100")
    attempt = workshop.attempt("SUBMITTED", gpu_models=frozenset({"T4"}))
    attempt.blacklist.add("node1")

    send(attempt, "ATTEMPT_ADDED")

    assert workshop.scheduler.blacklisted == [(FIRST, [], ["node1"])]


def test_blacklist_is_lifted_when_the_master_has_its_container(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    attempt.blacklist.add("node7")
    add_nodes(workshop, "node1")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]

    send(attempt, "CONTAINER_ALLOCATED")

    assert workshop.scheduler.blacklisted == [(FIRST, [], ["node7"])]
