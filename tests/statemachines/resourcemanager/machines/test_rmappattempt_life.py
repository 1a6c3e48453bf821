"""RMAppAttempt from its launch to its end: what it posts, stores and keeps."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import (
    ContainerStatus,
    FinalApplicationStatus,
    Resource,
    RMAppAttempt,
    RMAppAttemptState,
)

from ..builders import MASTER, NODE, TASK, Workshop, send

FIRST, SECOND = "appattempt_0_0001_000001", "appattempt_0_0001_000002"


def ended(workshop: Workshop, state: str, event: str, **more: object) -> RMAppAttempt:
    """An attempt that `event` ended in `state`; only the events posted after the store's answer are left."""
    attempt = workshop.attempt(state)
    send(attempt, event, **more)
    workshop.posted.events.clear()
    send(attempt, "ATTEMPT_UPDATE_SAVED")
    return attempt


# -- while the master lives -------------------------------------------------------------------------------------------


def test_registration_says_where_the_master_is(workshop: Workshop) -> None:
    attempt = workshop.attempt("LAUNCHED")

    send(attempt, "REGISTERED", host="node1", rpc_port=4711, tracking_url="http://node1:8080/")

    assert (attempt.host, attempt.rpc_port, attempt.tracking_url) == ("node1", 4711, "http://node1:8080/")


def test_new_tracking_url_is_stored_without_an_answer_and_one_that_is_known_is_not(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")

    for url in ("http://node1:8080/", "http://node1:8080/", None):
        send(attempt, "STATUS_UPDATE", tracking_url=url)

    (update,) = workshop.posted.events
    assert (update.state.tracking_url, update.state.state, update.notify) == ("http://node1:8080/", None, False)


def test_progress_is_what_the_master_says_and_whole_when_it_has_ended(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")
    progress = [attempt.progress]

    send(attempt, "STATUS_UPDATE", progress=0.5)
    progress.append(attempt.progress)
    for event in ("UNREGISTERED", "ATTEMPT_UPDATE_SAVED", "CONTAINER_FINISHED"):
        send(attempt, event)
    progress.append(attempt.progress)

    assert progress == [0.0, 0.5, 1.0]


def test_usage_is_the_sum_over_containers(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")

    attempt.add_usage(Resource(1024, 1500), 2000, preempted=False)
    attempt.add_usage(Resource(512, 500, gpus=2, gpu_milli=250), 4000, preempted=True)

    usage = attempt.usage
    assert (usage.memory_mb_seconds, usage.vcore_seconds) == (4096.0, 5.0)
    assert (usage.gpu_seconds, attempt.preempted.count) == (2.0, 1)


# -- monitors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "event"),
    [("ALLOCATED", "LAUNCHED"), ("ALLOCATED", "REGISTERED"), ("LAUNCHED_UNMANAGED_SAVING", "ATTEMPT_NEW_SAVED")],
)
def test_master_is_monitored_from_its_launch(workshop: Workshop, state: str, event: str) -> None:
    attempt = workshop.attempt(state)

    send(attempt, event)

    assert FIRST in workshop.context.am_liveliness_monitor


def test_master_that_unregistered_moves_to_the_finishing_monitor_when_that_is_stored(workshop: Workshop) -> None:
    attempt, monitors = workshop.attempt("RUNNING"), workshop.context
    monitors.am_liveliness_monitor.register(FIRST)

    send(attempt, "UNREGISTERED")
    before = (FIRST in monitors.am_liveliness_monitor, FIRST in monitors.am_finishing_monitor)
    send(attempt, "ATTEMPT_UPDATE_SAVED")
    after = (FIRST in monitors.am_liveliness_monitor, FIRST in monitors.am_finishing_monitor)

    assert (before, after) == ((True, False), (False, True))


@pytest.mark.parametrize(
    ("state", "event"),
    [
        *((state, event) for state in ("LAUNCHED", "RUNNING") for event in ("KILL", "FAIL", "CONTAINER_FINISHED")),
        ("FINISHING", "EXPIRE"),
        ("FINISHING", "CONTAINER_FINISHED"),
    ],
)
def test_no_monitor_waits_for_an_attempt_that_has_ended(workshop: Workshop, state: str, event: str) -> None:
    attempt, context = workshop.attempt(state), workshop.context
    monitor = context.am_finishing_monitor if state == "FINISHING" else context.am_liveliness_monitor
    monitor.register(FIRST)

    send(attempt, event)
    if attempt.state is RMAppAttemptState.FINAL_SAVING:
        send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert FIRST not in monitor


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING"])
def test_silent_master_expires_and_its_attempt_fails(state: str) -> None:
    workshop = Workshop(am_expiry_interval_s=10)
    attempt = workshop.attempt(state)
    workshop.context.am_liveliness_monitor.register(FIRST)
    workshop.clock.advance(10_000)

    workshop.context.am_liveliness_monitor.expire_due()
    (expire,) = workshop.posted.events
    attempt.handle(expire)
    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert (attempt.state.name, attempt.diagnostics) == ("FAILED", ["the master was silent for too long"])


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["SCHEDULED", "ALLOCATED_SAVING", "ALLOCATED", "LAUNCHED", "RUNNING"])
def test_crash_of_the_master_is_stored_and_told_with_its_status(workshop: Workshop, state: str) -> None:
    attempt = workshop.attempt(state)
    reason = f"the master's container {MASTER} exited with 1: it crashed"

    send(attempt, "CONTAINER_FINISHED")
    stored = workshop.posted.events[-1].state
    workshop.posted.events.clear()
    send(attempt, "ATTEMPT_UPDATE_SAVED")

    failed = workshop.posted.events[0]
    assert (stored.state, stored.exit_status, stored.diagnostics) == ("FAILED", 1, reason)
    assert (failed.entity, failed.diagnostics, attempt.exit_status) == (attempt.app.entity, reason, 1)


@pytest.mark.parametrize(
    ("state", "event"), [("RUNNING", "KILL"), ("RUNNING", "FAIL"), ("ALLOCATED", "LAUNCH_FAILED"), ("NEW", "KILL")]
)
def test_reason_for_the_end_reaches_the_application(workshop: Workshop, state: str, event: str) -> None:
    ended(workshop, state, event, diagnostics="because")

    assert workshop.posted.events[0].diagnostics == "because"


@pytest.mark.parametrize("state", ["NEW", "SUBMITTED", "LAUNCHED_UNMANAGED_SAVING"])
def test_reason_for_a_master_that_registers_too_early_is_told(workshop: Workshop, state: str) -> None:
    ended(workshop, state, "REGISTERED")

    assert workshop.posted.events[0].diagnostics == "the master registered before it was launched"


def test_last_words_of_the_master_are_stored_and_told(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")
    workshop.clock.advance(9)

    send(
        attempt,
        "UNREGISTERED",
        final_status=FinalApplicationStatus.FAILED,
        diagnostics="3 maps failed",
        tracking_url="http://history/1",
    )

    update, unregistered = workshop.posted.events
    stored = update.state
    assert (stored.final_status, stored.diagnostics, stored.finish_ms) == ("FAILED", "3 maps failed", 9)
    assert (stored.tracking_url, attempt.tracking_url) == ("http://history/1", "http://history/1")
    assert (unregistered.entity, unregistered.diagnostics) == (attempt.app.entity, "3 maps failed")


@pytest.mark.parametrize("first", ["CONTAINER_FINISHED", "EXPIRE", "ATTEMPT_UPDATE_SAVED"])
def test_attempt_that_unregistered_finishes_whatever_comes_first(workshop: Workshop, first: str) -> None:
    """The end of the master's container, its silence, or the answer of the store."""
    attempt = workshop.attempt("RUNNING")
    second = "CONTAINER_FINISHED" if first == "ATTEMPT_UPDATE_SAVED" else "ATTEMPT_UPDATE_SAVED"

    for event in ("UNREGISTERED", first, second):
        send(attempt, event)

    assert attempt.state is RMAppAttemptState.FINISHED
    news = workshop.posted.news()
    assert [news.count(name) for name in ("RMApp ATTEMPT_FINISHED", "AMLauncher CLEANUP")] == [1, 1]


@pytest.mark.parametrize(("event", "final"), [("KILL", "KILLED"), ("FAIL", "FAILED")])
@pytest.mark.parametrize("late", ["CONTAINER_FINISHED", "EXPIRE"])
def test_masters_end_while_saving_does_not_change_another_outcome(
    workshop: Workshop, event: str, final: str, late: str
) -> None:
    attempt = workshop.attempt("RUNNING")

    for each in (event, late, "ATTEMPT_UPDATE_SAVED"):
        send(attempt, each)

    assert attempt.state.name == final


@pytest.mark.parametrize(("state", "event"), [("RUNNING", "KILL"), ("RUNNING", "EXPIRE"), ("RUNNING", "UNREGISTERED")])
def test_unmanaged_master_is_not_cleaned_up(workshop: Workshop, state: str, event: str) -> None:
    attempt = workshop.attempt(state, unmanaged_am=True)

    for each in (event, "ATTEMPT_UPDATE_SAVED"):
        send(attempt, each)

    assert "AMLauncher CLEANUP" not in workshop.posted.news()
    assert attempt.state.name in ("KILLED", "FAILED", "FINISHED")


@pytest.mark.parametrize(("event", "host"), [("KILL", ""), ("FAIL", ""), ("UNREGISTERED", "node1")])
def test_host_of_the_master_is_forgotten_unless_it_finished(workshop: Workshop, event: str, host: str) -> None:
    attempt = workshop.attempt("LAUNCHED")
    send(attempt, "REGISTERED", host="node1", rpc_port=4711, tracking_url="http://node1:8080/")

    for each in (event, "ATTEMPT_UPDATE_SAVED", "CONTAINER_FINISHED"):
        send(attempt, each)

    assert (attempt.host, attempt.rpc_port) == (host, 4711 if host else -1)
    assert attempt.tracking_url == ""


KEEP = {"keep_containers_across_attempts": True}


@pytest.mark.parametrize(
    ("event", "submitted", "keeps"),
    [
        ("FAIL", KEEP, True),
        ("EXPIRE", KEEP, True),
        ("FAIL", {}, False),
        ("KILL", KEEP, False),
        ("FAIL", KEEP | {"unmanaged_am": True}, False),
        ("FAIL", KEEP | {"max_attempts": 1}, False),
    ],
)
def test_containers_are_kept_on_request_when_another_attempt_follows(
    workshop: Workshop, event: str, submitted: dict[str, object], keeps: bool
) -> None:
    attempt = workshop.attempt("RUNNING", **submitted)

    for each in (event, "ATTEMPT_UPDATE_SAVED"):
        send(attempt, each)

    news = {posted.type.name: posted for posted in workshop.posted.events}
    app_news = news.get("ATTEMPT_FAILED") or news["ATTEMPT_KILLED"]
    assert (app_news.keep_containers, news["APP_ATTEMPT_REMOVED"].keep_containers) == (keeps, keeps)


def test_containers_of_the_last_attempt_are_not_kept(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=2, max_attempts=2, **KEEP)
    attempt = workshop._put(app.attempts[1], "RUNNING")

    for each in ("FAIL", "ATTEMPT_UPDATE_SAVED"):
        send(attempt, each)

    (removed,) = [event for event in workshop.posted.events if event.type.name == "APP_ATTEMPT_REMOVED"]
    assert (removed.entity, removed.keep_containers) == (SECOND, False)


# -- containers that end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING", "FINISHING", "FINAL_SAVING", "FINISHED", "FAILED", "KILLED"])
def test_end_of_another_container_is_kept_for_the_master(workshop: Workshop, state: str) -> None:
    attempt, status = workshop.attempt(state), ContainerStatus(TASK, 3)

    send(attempt, "CONTAINER_FINISHED", status=status, node=NODE)

    assert attempt.finished_containers == [(NODE, status)]


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING", "FINISHING", "FINAL_SAVING"])
def test_nodes_forget_unpulled_containers_when_the_master_has_ended(workshop: Workshop, state: str) -> None:
    attempt = workshop.attempt(state)
    attempt.finished_containers = [(NODE, ContainerStatus(TASK, 0)), ("node2:45454", ContainerStatus("c2", 0))]

    send(attempt, "CONTAINER_FINISHED")

    pulled = [event for event in workshop.posted.events if event.type.name == "FINISHED_CONTAINERS_PULLED_BY_AM"]
    assert [(event.entity, event.about) for event in pulled] == [(NODE, (MASTER, TASK)), ("node2:45454", ("c2",))]
    assert attempt.finished_containers == []


def test_unpulled_containers_wait_for_the_next_master_if_containers_are_kept(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING", **KEEP)
    unfetched = [(NODE, ContainerStatus(TASK, 0))]
    attempt.finished_containers = list(unfetched)

    send(attempt, "CONTAINER_FINISHED")

    assert workshop.posted.events[0].about == (MASTER,)
    assert attempt.finished_containers == unfetched
