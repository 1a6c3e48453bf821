"""The service for clients: changes, and reports that pass filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest

from dispatcher import DispatcherError
from statemachines.resourcemanager import Resource, RMAppState

from ..builders import TASK
from ..inner import ApplicationUse, ClientRMService, InvalidRequestError, NodeUse, PendingRequests
from .desk import Desk

ENDED = ["FINISHING", "FINISHED", "FAILED", "KILLED"]
MOVABLE = ["SUBMITTED", "ACCEPTED", "RUNNING"]
NO_APP, NO_ATTEMPT = "application_0_0009", "appattempt_0_0009_000001"


@pytest.mark.parametrize(
    ("error", "what", "method", "more"),
    [
        *(
            ("ApplicationNotFoundError", f"application {NO_APP}", method, more)
            for method, *more in (
                ("force_kill_application",),
                ("move_application_across_queues", "b"),
                ("update_application_priority", 1),
                ("update_application_timeouts", 1),
                ("get_application_report",),
                ("get_application_attempts",),
            )
        ),
        *(
            ("ApplicationAttemptNotFoundError", f"attempt {NO_ATTEMPT}", method, ())
            for method in ("fail_application_attempt", "get_application_attempt_report", "get_containers")
        ),
        ("ContainerNotFoundError", f"container {TASK}", "get_container_report", ()),
        ("ContainerNotFoundError", f"container {TASK}", "signal_to_container", ("GRACEFUL_SHUTDOWN",)),
        ("QueueNotFoundError", "queue root.b", "get_queue_info", ()),
    ],
)
def test_unknown_id_is_told_so(
    desk: Desk, clients: ClientRMService, error: str, what: str, method: str, more: Sequence[object]
) -> None:
    with pytest.raises(DispatcherError, match=f"{what} does not exist or is no longer kept") as refused:
        getattr(clients, method)(what.partition(" ")[2], *more)

    assert (type(refused.value).__name__, desk.posted.events) == (error, [])


# -- changing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ENDED)
def test_an_application_that_has_ended_stays_as_it_is(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state, priority=3)

    clients.fail_application_attempt(app.attempts[0].entity)
    answers = [
        clients.force_kill_application(app.entity),
        clients.update_application_priority(app.entity, 7),
        clients.update_application_timeouts(app.entity, 60),
    ]

    assert (answers, desk.posted.events) == ([True, 3, None], [])


@pytest.mark.parametrize("state", ["NEW", "NEW_SAVING", "SUBMITTED", "FINAL_SAVING", "KILLING"])
def test_priority_and_lifetime_cannot_change_otherwise(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)

    with pytest.raises(InvalidRequestError, match=f"the priority of {app.entity} cannot be changed: it is {state}"):
        clients.update_application_priority(app.entity, 7)
    with pytest.raises(InvalidRequestError, match=f"the lifetime of {app.entity} cannot be changed: it is {state}"):
        clients.update_application_timeouts(app.entity, 60)

    assert desk.posted.events == []


@pytest.mark.parametrize("state", [state.name for state in RMAppState if state.name not in MOVABLE])
def test_application_that_the_scheduler_does_not_have_is_not_moved(
    desk: Desk, clients: ClientRMService, state: str
) -> None:
    app = desk.app(state, queue="root.a")

    with pytest.raises(InvalidRequestError, match=f"it is {state}, and must be SUBMITTED, ACCEPTED or RUNNING"):
        clients.move_application_across_queues(app.entity, "root.b")

    assert (app.submission.queue, desk.desk_scheduler.moved, desk.posted.events) == ("root.a", [], [])


def test_move_that_fails_after_the_check_changes_nothing(desk: Desk, clients: ClientRMService) -> None:
    """The scheduler, on a thread of its own, may fill the queue between the two."""
    app = desk.app("RUNNING", queue="root.a")
    desk.desk_scheduler.move_fails = "root.b is full"

    with pytest.raises(InvalidRequestError, match=r"root\.b is full"):
        clients.move_application_across_queues(app.entity, "root.b")

    assert (app.submission.queue, desk.posted.events) == ("root.a", [])


def test_lifetime_can_be_removed(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    clients.update_application_timeouts(app.entity, 60)

    assert clients.update_application_timeouts(app.entity, None) is None

    assert app.entity not in desk.context.app_lifetime_monitor
    assert app.submission.lifetime_s is None


Refused = Callable[[ClientRMService, str], object]
REFUSED: dict[str, Refused] = {
    # The store could not write such a priority, which ended the resource manager.
    "the priority must be": lambda clients, app: clients.update_application_priority(app, 10**5_000),
    "lifetime_s is a number of 16610 bits: it must be at most": lambda clients, app: (
        clients.update_application_timeouts(app, 10**5_000)
    ),
    "cannot have a lifetime of 0 s": lambda clients, app: clients.update_application_timeouts(app, 0),
    "'SIGTERM' is not a valid signal; expected one of OUTPUT_THREAD_DUMP, GRACEFUL": lambda clients, app: (
        clients.signal_to_container(TASK, "SIGTERM")
    ),
    "'KILLING' is not a valid application state; expected one of NEW, NEW_SAVING": lambda clients, app: (
        clients.get_applications(states=["RUNNING", "KILLING"])
    ),
    "limit is 0: it must be at least 1": lambda clients, app: clients.get_applications(limit=0),
    "'GONE' is not a valid node state; expected one of NEW, RUNNING": lambda clients, app: clients.get_cluster_nodes(
        ["GONE"]
    ),
}


@pytest.mark.parametrize(("problem", "call"), REFUSED.items(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(desk: Desk, clients: ClientRMService, problem: str, call: Refused) -> None:
    app = desk.app("RUNNING")

    with pytest.raises(InvalidRequestError, match=problem):
        call(clients, app.entity)

    assert desk.posted.events == []


# -- reports ----------------------------------------------------------------------------------------------------------


def test_reports_have_what_the_scheduler_knows(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    node = desk.node("RUNNING")
    small, large = Resource(1024, 1000), Resource(2048, 500)
    pending = PendingRequests(small, 3, 0, "", None, None), PendingRequests(large, 1, 0, "gpu", "host", None)
    desk.desk_scheduler.uses[app.attempts[0].entity] = ApplicationUse(
        reserved=(large, small),
        pending=pending,
        queue_share=1.5,
        cluster_share=0.25,
        blacklist=frozenset({"node9"}),
    )
    desk.scheduler.node_uses[node.entity] = NodeUse(small, 1, large, "container_0_0001_01_000003")

    report = clients.get_application_report(app.entity)
    (attempt,) = clients.get_application_attempts(app.entity)
    (reserving,) = clients.get_cluster_nodes()

    assert (report.reserved, report.reserved_containers) == (Resource(3072, 1500), 2)
    assert (report.pending, report.pending_containers, report.requests) == (Resource(5120, 3500), 4, pending)
    assert (report.queue_share, report.cluster_share) == (1.5, 0.25)
    assert attempt.blacklist == ("node9",)
    assert (reserving.reserved, reserving.reserved_container) == (large, "container_0_0001_01_000003")


def test_usage_counts_what_was_preempted(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    app.attempts[0].add_usage(Resource(1000, 1000, gpus=2), 3000, preempted=True, is_master=True)

    usage = clients.get_application_report(app.entity).usage

    assert (usage.preempted_containers, usage.preempted_masters, usage.preempted) == (1, 1, Resource(1000, 1000))
    assert (usage.preempted_memory_mb_seconds, usage.preempted_vcore_seconds, usage.gpu_seconds) == (3000, 3, 6)


@pytest.mark.parametrize("state", [state for state in RMAppState if state is not RMAppState.FINAL_SAVING])
def test_clients_know_eight_states(desk: Desk, clients: ClientRMService, state: RMAppState) -> None:
    known = ["NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"]

    reported = clients.get_application_report(desk.app(state.name).entity).state

    assert reported == state.name if state.name in known else reported in known


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({}, [1, 2, 3, 4]),
        ({"states": ["ACCEPTED", "FINISHED"]}, [1, 4]),
        ({"states": []}, []),
        ({"users": ["alice"]}, [1, 3]),
        ({"queues": {"root.b"}}, [3, 4]),
        ({"application_types": ["SPARK", "MAPREDUCE"]}, [1, 2, 4]),
        ({"tags": ["etl", "adhoc"]}, [1, 2, 4]),
        ({"tags": []}, []),
        ({"users": ["alice"], "states": ["RUNNING"]}, [3]),
        ({"limit": 3}, [1, 2, 3]),
        ({"states": ["RUNNING"], "limit": 1}, [2]),
    ],
)
def test_applications_that_pass_all_filters(
    desk: Desk, clients: ClientRMService, filters: dict[str, Any], numbers: list[int]
) -> None:
    desk.app("ACCEPTED", user="alice", queue="root.a", application_type="SPARK", tags=("nightly", "etl"))
    desk.app("RUNNING", user="bob", queue="root.a", application_type="MAPREDUCE", tags=("etl",))
    desk.app("RUNNING", user="alice", queue="root.b")
    desk.app("FINISHED", user="carol", queue="root.b", application_type="SPARK", tags=("adhoc",))

    reports = clients.get_applications(**filters)

    assert [report.application_id for report in reports] == [f"application_0_000{number}" for number in numbers]


@pytest.mark.parametrize(
    ("states", "news"), [(None, ["RUNNING", "LOST"]), (["LOST", "REBOOTED"], ["LOST"]), (["UNHEALTHY"], [])]
)
def test_nodes_by_state(desk: Desk, clients: ClientRMService, states: list[str] | None, news: list[str]) -> None:
    desk.node("LOST")
    desk.node("RUNNING")

    assert [report.state for report in clients.get_cluster_nodes(states)] == news


def test_reports_are_immutable(desk: Desk, clients: ClientRMService) -> None:
    report = clients.get_application_report(desk.app("RUNNING").entity)

    for field in fields(report):
        with pytest.raises(AttributeError):
            setattr(report, field.name, None)
