"""The service for clients: changes and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from dispatcher import DispatcherError
from statemachines.resourcemanager import (
    ApplicationNotFoundError,
    FinalApplicationStatus,
    QueueInfo,
    Resource,
    RMAppState,
)

from ..builders import NODE, TASK, event_for
from ..inner import SIGNALS, ApplicationUse, ClientRMService, InvalidRequestError, NodeUse, PendingRequests
from .desk import Desk, HandlerThread

APPLICATION_STATES = ["NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"]
ENDED = ["FINISHING", "FINISHED", "FAILED", "KILLED"]
NO_APP, NO_ATTEMPT = "application_0_0009", "appattempt_0_0009_000001"
NOTHING = Resource(0, 0)


# -- ids that are not known -------------------------------------------------------------------------------------------


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
        ("ContainerNotFoundError", f"container {TASK}", "signal_to_container", SIGNALS[:1]),
        ("QueueNotFoundError", "queue root.b", "get_queue_info", ()),
    ],
)
def test_unknown_id_is_told_so(
    desk: Desk, clients: ClientRMService, error: str, what: str, method: str, more: Sequence[object]
) -> None:
    with pytest.raises(DispatcherError, match=f"{what} does not exist or is no longer kept") as refused:
        getattr(clients, method)(what.partition(" ")[2], *more)

    assert (type(refused.value).__name__, desk.posted.events) == (error, [])


# -- killing ----------------------------------------------------------------------------------------------------------


def test_kill_posts_an_event_with_diagnostics(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")

    ended = clients.force_kill_application(app.entity, "because")

    (kill,) = desk.posted.events
    assert (ended, desk.posted.news(), kill.entity, kill.diagnostics) == (
        False,
        ["RMApp KILL"],
        app.entity,
        "because",
    )


@pytest.mark.parametrize("state", ENDED)
def test_kill_of_an_ended_application_changes_nothing(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)

    assert clients.force_kill_application(app.entity) is True
    assert desk.posted.events == []


@pytest.mark.parametrize("state", [state.name for state in RMAppState if state.name not in ENDED])
def test_kill_can_be_repeated_until_it_is_stored(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)

    assert clients.force_kill_application(app.entity) is False
    app.handle(desk.posted.events[0])

    assert desk.recorder.machines["RMApp"].invalid == 0


def test_attempt_can_be_failed(desk: Desk, clients: ClientRMService) -> None:
    attempt = desk.attempt("RUNNING")

    clients.fail_application_attempt(attempt.entity)

    (fail,) = desk.posted.events
    assert (desk.posted.news(), fail.entity) == (["RMAppAttempt FAIL"], attempt.entity)
    assert fail.diagnostics == "failed by its user"


@pytest.mark.parametrize("state", ENDED)
def test_attempt_of_an_ended_application_is_not_failed(desk: Desk, clients: ClientRMService, state: str) -> None:
    clients.fail_application_attempt(desk.app(state).attempts[0].entity)

    assert desk.posted.events == []


# -- changing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING"])
def test_priority_and_lifetime_of_an_active_application_change(
    desk: Desk, clients: ClientRMService, state: str
) -> None:
    app = desk.app(state)

    changed = clients.update_application_priority(app.entity, 7), clients.update_application_timeouts(app.entity, 60)

    assert changed == (7, app.submit_ms + 60_000)
    assert (app.submission.priority, app.submission.lifetime_s) == (7, 60)


@pytest.mark.parametrize("state", ENDED)
def test_priority_and_lifetime_of_an_ended_application_stay(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state, priority=3)

    kept = clients.update_application_priority(app.entity, 7), clients.update_application_timeouts(app.entity, 60)

    assert (kept, desk.posted.events) == ((3, None), [])


@pytest.mark.parametrize("state", ["NEW", "NEW_SAVING", "SUBMITTED", "FINAL_SAVING", "KILLING"])
def test_priority_and_lifetime_cannot_change_otherwise(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)

    with pytest.raises(InvalidRequestError, match=f"the priority of {app.entity} cannot be changed: it is {state}"):
        clients.update_application_priority(app.entity, 7)
    with pytest.raises(InvalidRequestError, match=f"the lifetime of {app.entity} cannot be changed: it is {state}"):
        clients.update_application_timeouts(app.entity, 60)

    assert desk.posted.events == []


def test_huge_priority_and_lifetime_are_refused(desk: Desk, clients: ClientRMService) -> None:
    """The store could not write such a priority, which ended the resource manager."""
    app = desk.app("RUNNING")

    with pytest.raises(InvalidRequestError, match="the priority must be"):
        clients.update_application_priority(app.entity, 10**5_000)
    with pytest.raises(InvalidRequestError, match="lifetime_s is a number of 16610 bits: it must be at most"):
        clients.update_application_timeouts(app.entity, 10**5_000)

    assert desk.posted.events == []


def test_lifetime_of_zero_is_refused(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")

    with pytest.raises(InvalidRequestError, match="cannot have a lifetime of 0 s"):
        clients.update_application_timeouts(app.entity, 0)


@pytest.mark.parametrize("signal", SIGNALS)
def test_signal_goes_to_the_node(desk: Desk, clients: ClientRMService, signal: str) -> None:
    container = desk.container("RUNNING")

    clients.signal_to_container(container.entity, signal)

    (event,) = desk.posted.events
    assert (desk.posted.news(), event.entity) == (["RMNode SIGNAL_CONTAINER"], container.node)
    assert event.about == (container.entity, signal)


def test_signal_that_there_is_not_is_refused(desk: Desk, clients: ClientRMService) -> None:
    with pytest.raises(
        InvalidRequestError, match="'SIGTERM' is not a valid signal; expected one of OUTPUT_THREAD_DUMP, GRACEFUL"
    ):
        clients.signal_to_container(desk.container("RUNNING").entity, "SIGTERM")


# -- applications -----------------------------------------------------------------------------------------------------


def test_report_has_all_that_is_known(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING", user="alice", queue="root.a", priority=2, tags=("nightly",), node_label="gpu")
    attempt = app.attempts[0]
    attempt.host, attempt.rpc_port, attempt.tracking_url, attempt.progress = "node1", 8030, "http://node1", 0.5
    attempt.master_container, attempt.master_node = "container_0_0001_01_000001", NODE
    app.launch_ms = 5
    desk.live(attempt.entity, 1)
    desk.live(attempt.entity, 2, resource=Resource(2048, 500, gpus=1, gpu_milli=500))
    desk.context.app_lifetime_monitor.register(app.entity, 99_000)

    report = clients.get_application_report(app.entity)

    assert (report.application_id, report.attempt_id, report.name) == (app.entity, attempt.entity, "wordcount")
    assert (report.user, report.queue, report.priority, report.tags) == ("alice", "root.a", 2, ("nightly",))
    assert (report.application_type, report.unmanaged_am, report.node_label) == ("YARN", False, "gpu")
    assert (report.state, report.final_status, report.progress) == ("RUNNING", "UNDEFINED", 0.5)
    assert (report.host, report.rpc_port, report.tracking_url) == ("node1", 8030, "http://node1")
    assert (report.master_container, report.master_node) == ("container_0_0001_01_000001", NODE)
    assert (report.submit_ms, report.start_ms, report.launch_ms) == (app.submit_ms, app.start_ms, 5)
    assert (report.finish_ms, report.deadline_ms) == (None, 99_000)
    assert (report.containers, report.allocated) == (2, Resource(3072, 1500, gpus=1, gpu_milli=500))
    assert (report.running_containers, report.as_of_ms, report.am_node_label) == (2, desk.context.now_ms(), None)


def test_report_has_what_the_scheduler_knows(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    small, large = Resource(1024, 1000), Resource(2048, 500)
    pending = PendingRequests(small, 3, 0, "", None, None), PendingRequests(large, 1, 0, "gpu", "host", None)
    desk.desk_scheduler.uses[app.attempts[0].entity] = ApplicationUse(
        reserved=(large, small), pending=pending, queue_share=1.5, cluster_share=0.25
    )

    report = clients.get_application_report(app.entity)

    assert (report.reserved, report.reserved_containers) == (Resource(3072, 1500), 2)
    assert (report.pending, report.pending_containers, report.requests) == (Resource(5120, 3500), 4, pending)
    assert (report.queue_share, report.cluster_share) == (1.5, 0.25)


def test_report_before_there_is_an_attempt(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("SUBMITTED")

    report = clients.get_application_report(app.entity)

    assert (report.attempt_id, report.master_container, report.master_node) == (None, None, None)
    assert (report.host, report.rpc_port, report.tracking_url, report.progress) == ("", -1, "", 0.0)
    assert (report.containers, report.allocated) == (0, NOTHING)


def test_report_of_an_ended_application(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("FAILED")
    app.diagnostics += ["one", "two"]
    app.finish_ms = 7

    report = clients.get_application_report(app.entity)

    assert (report.state, report.final_status, report.diagnostics) == ("FAILED", "FAILED", "one; two")
    assert report.finish_ms == 7


def test_usage_counts_what_has_ended_and_what_runs(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING", attempts=2)
    app.attempts[0].add_usage(Resource(1000, 1000, gpus=2), 3000, preempted=True, is_master=True)
    app.attempts[1].add_usage(Resource(1000, 1000), 1000, preempted=False)
    desk.live(app.attempts[1].entity, 2, resource=Resource(100, 500))
    desk.clock.advance(2000)

    usage = clients.get_application_report(app.entity).usage

    assert usage.memory_mb_seconds == 3000 + 1000 + 200
    assert (usage.vcore_seconds, usage.gpu_seconds, usage.preempted_containers) == (3 + 1 + 1, 6, 1)
    assert (usage.preempted_masters, usage.preempted) == (1, Resource(1000, 1000))
    assert (usage.preempted_memory_mb_seconds, usage.preempted_vcore_seconds) == (3000, 3)


@pytest.mark.parametrize("state", [state for state in RMAppState if state is not RMAppState.FINAL_SAVING])
def test_clients_know_eight_states(desk: Desk, clients: ClientRMService, state: RMAppState) -> None:
    app = desk.app(state.name)

    reported = clients.get_application_report(app.entity).state

    assert reported in APPLICATION_STATES
    if state.name in APPLICATION_STATES:
        assert reported == state.name


def test_end_is_reported_once_it_is_stored(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    states = []
    for event in ("ATTEMPT_UNREGISTERED", "APP_UPDATE_SAVED"):
        app.handle(event_for(app, event))
        states.append(clients.get_application_report(app.entity).state)

    assert states == ["RUNNING", "FINISHED"]


def test_what_a_master_says_is_the_final_status(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("FINISHED")
    app.attempts[0].final_status = FinalApplicationStatus.FAILED

    report = clients.get_application_report(app.entity)

    assert (report.state, report.final_status) == ("FINISHED", "FAILED")


@pytest.fixture
def crowd(desk: Desk) -> Desk:
    """Four applications that differ in all that can be filtered by."""
    desk.app("ACCEPTED", user="alice", queue="root.a", application_type="SPARK", tags=("nightly", "etl"))
    desk.app("RUNNING", user="bob", queue="root.a", application_type="MAPREDUCE", tags=("etl",))
    desk.app("RUNNING", user="alice", queue="root.b")
    desk.app("FINISHED", user="carol", queue="root.b", application_type="SPARK", tags=("adhoc",))
    return desk


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({}, [1, 2, 3, 4]),
        ({"states": ["RUNNING"]}, [2, 3]),
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
    crowd: Desk, clients: ClientRMService, filters: dict[str, Any], numbers: list[int]
) -> None:
    reports = clients.get_applications(**filters)

    assert [report.application_id for report in reports] == [f"application_0_000{number}" for number in numbers]


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        (
            {"states": ["RUNNING", "KILLING"]},
            "'KILLING' is not a valid application state; expected one of NEW, NEW_SAVING",
        ),
        ({"limit": 0}, "limit is 0: it must be at least 1"),
    ],
)
def test_invalid_filters_are_refused(clients: ClientRMService, filters: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        clients.get_applications(**filters)


# -- attempts and containers ------------------------------------------------------------------------------------------


def test_attempts_are_reported_in_their_order(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING", attempts=2)

    reports = clients.get_application_attempts(app.entity)

    assert [report.attempt_id for report in reports] == [attempt.entity for attempt in app.attempts]


def test_attempt_report_says_what_there_is(desk: Desk, clients: ClientRMService) -> None:
    attempt = desk.attempt("FAILED")
    attempt.host, attempt.rpc_port, attempt.tracking_url = "node1", 8030, "http://node1"
    attempt.exit_status, attempt.finish_ms, attempt.blacklist = 1, 9, {"node2", "node1"}
    attempt.diagnostics += ["one", "two"]
    attempt.master_http_address = "node1:8042"
    desk.desk_scheduler.uses[attempt.entity] = ApplicationUse(blacklist=frozenset({"node9"}))

    report = clients.get_application_attempt_report(attempt.entity)

    assert (report.attempt_id, report.state, report.final_status) == (attempt.entity, "FAILED", "UNDEFINED")
    assert (report.host, report.rpc_port, report.tracking_url) == ("node1", 8030, "http://node1")
    assert (report.master_container, report.master_node) == (attempt.master_container, NODE)
    assert (report.exit_status, report.diagnostics, report.system_blacklist) == (1, "one; two", ("node1", "node2"))
    assert (report.blacklist, report.node_http_address) == (("node9",), "node1:8042")
    assert (report.start_ms, report.finish_ms) == (attempt.start_ms, 9)


@pytest.mark.parametrize(("state", "news"), [("ALLOCATED", "NEW"), ("ACQUIRED", "NEW"), ("RUNNING", "RUNNING")])
def test_containers_of_an_attempt_are_reported(desk: Desk, clients: ClientRMService, state: str, news: str) -> None:
    attempt = desk.attempt("RUNNING")
    desk.clock.advance(5)
    container = desk.live(attempt.entity, 2, state, priority=3)

    (report,) = clients.get_containers(attempt.entity)

    assert report == clients.get_container_report(container.entity)
    assert (report.container_id, report.attempt_id, report.node) == (container.entity, attempt.entity, NODE)
    assert (report.state, report.priority, report.kind) == (news, 3, "map")
    assert (report.resource, report.created_ms) == (Resource(1024, 1000), 5)


# -- nodes, queues, the cluster ---------------------------------------------------------------------------------------


def test_node_report_has_capacity_and_use(desk: Desk, clients: ClientRMService) -> None:
    node = desk.node("RUNNING")
    reserved = Resource(2048, 2000)
    desk.scheduler.node_uses[NODE] = NodeUse(Resource(1024, 1000), 1, reserved, "container_0_0001_01_000003")
    desk.clock.advance(7)
    node.last_heartbeat_ms, node.health_report = 5, "one disk is full"

    (report,) = clients.get_cluster_nodes()

    assert (report.node_id, report.host, report.rack) == (NODE, "node1", "/default-rack")
    assert (report.http_address, report.state, report.is_healthy) == ("node1:8042", "RUNNING", True)
    assert (report.capacity, report.used, report.containers) == (node.capacity, Resource(1024, 1000), 1)
    assert (report.reserved, report.reserved_container) == (reserved, "container_0_0001_01_000003")
    assert (report.last_heartbeat_ms, report.health_report, report.version) == (5, "one disk is full", "")


@pytest.mark.parametrize(
    ("states", "news"), [(None, ["RUNNING", "LOST"]), (["LOST", "REBOOTED"], ["LOST"]), (["UNHEALTHY"], [])]
)
def test_nodes_by_state(desk: Desk, clients: ClientRMService, states: list[str] | None, news: list[str]) -> None:
    desk.node("LOST")
    desk.node("RUNNING")

    assert [report.state for report in clients.get_cluster_nodes(states)] == news


def test_unknown_node_state_is_refused(clients: ClientRMService) -> None:
    with pytest.raises(InvalidRequestError, match="'GONE' is not a valid node state; expected one of NEW, RUNNING"):
        clients.get_cluster_nodes(["GONE"])


def test_queue_is_found_by_its_path(desk: Desk, clients: ClientRMService) -> None:
    root, a = (
        QueueInfo(path, "RUNNING", 1.0, 1.0, 0.0, NOTHING, 0, 0, 0, children)
        for path, children in (("root", ("root.a",)), ("root.a", ()))
    )
    desk.desk_scheduler.known_queues = [root, a]

    assert (clients.get_queue_info(), clients.get_queue_info("root.a")) == (root, a)


def test_metrics_of_an_empty_cluster_are_zero(clients: ClientRMService) -> None:
    metrics = clients.get_cluster_metrics()

    assert (metrics.apps_submitted, metrics.containers_allocated, metrics.total_nodes) == (0, 0, 0)
    assert metrics.total == metrics.allocated == metrics.reserved == metrics.pending == NOTHING


def test_metrics_count_each_application_once(desk: Desk, clients: ClientRMService) -> None:
    for events in (
        [],
        ["START", "APP_NEW_SAVED", "APP_ACCEPTED"],
        ["START", "APP_NEW_SAVED", "APP_ACCEPTED", "ATTEMPT_REGISTERED"],
        ["START", "APP_NEW_SAVED", "APP_ACCEPTED", "ATTEMPT_REGISTERED", "KILL"],
        ["START", "APP_NEW_SAVED", "APP_ACCEPTED", "ATTEMPT_REGISTERED", "ATTEMPT_FINISHED"],
        ["START", "APP_SAVE_FAILED"],
        ["KILL"],
    ):
        app = desk.app()
        for event in events:
            app.handle(event_for(app, event))
    desk.recorder.forgotten("RMApp", RMAppState.KILLED)

    metrics = clients.get_cluster_metrics()

    assert (metrics.apps_submitted, metrics.apps_pending, metrics.apps_running) == (7, 2, 2)
    assert (metrics.apps_completed, metrics.apps_failed, metrics.apps_killed) == (1, 1, 1)


def test_metrics_add_up_containers_asks_and_nodes(desk: Desk, clients: ClientRMService) -> None:
    desk.node("LOST")
    desk.node("RUNNING")
    (root,) = desk.desk_scheduler.known_queues
    root = root._replace(used=Resource(5632, 2500, gpus=1), reserved=Resource(4096, 1000), pending=Resource(300, 3))
    desk.desk_scheduler.known_queues = [root._replace(containers=3, reserved_containers=1, pending_containers=3)]

    metrics = clients.get_cluster_metrics()

    assert (metrics.containers_allocated, metrics.containers_reserved, metrics.containers_pending) == (2, 1, 3)
    assert metrics.total == Resource(8192, 8000)
    assert metrics.allocated == Resource(1536, 1500, gpus=1)
    assert (metrics.reserved, metrics.pending) == (Resource(4096, 1000), Resource(300, 3))
    assert (metrics.nodes["RUNNING"], metrics.nodes["LOST"], metrics.total_nodes) == (1, 1, 2)
    assert "NEW" not in metrics.nodes


# -- threads ----------------------------------------------------------------------------------------------------------


def test_calls_of_other_threads_are_made_on_the_handler_thread(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    seen: list[bool] = []
    with HandlerThread().of(desk) as handler:
        app.acknowledge = None
        execute = desk.context.execute
        desk.context.execute = lambda function: execute(lambda: (seen.append(handler.is_current()), function())[1])

        report = clients.get_application_report(app.entity)
        with pytest.raises(ApplicationNotFoundError):
            clients.get_application_report(NO_APP)

    assert (report.application_id, seen) == (app.entity, [True, True])


def test_reports_are_immutable(desk: Desk, clients: ClientRMService) -> None:
    report = clients.get_application_report(desk.app("RUNNING").entity)

    for field in fields(report):
        with pytest.raises(AttributeError):
            setattr(report, field.name, None)
    assert hash(report) == hash(clients.get_application_report(report.application_id))
