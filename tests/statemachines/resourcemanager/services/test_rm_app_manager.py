"""Which ended applications are kept, and what changes of those that have not ended."""

from __future__ import annotations

import logging

import pytest

from statemachines.resourcemanager import RMApp, RMAppState
from statemachines.resourcemanager.events.services import RMAppManagerEvent
from statemachines.resourcemanager.services.rm_app_manager import RMAppManager

from ..inner import ClientRMService, InvalidRequestError, RMAppManagerEventType
from .desk import Desk

MOVABLE = ["SUBMITTED", "ACCEPTED", "RUNNING"]


def stored(desk: Desk) -> list[RMApp]:
    """The submissions in the records that were posted to the store with `notify` False."""
    assert set(desk.posted.news()) <= {"RMStateStore UPDATE_APP"}
    assert not any(event.notify for event in desk.posted.events)
    return [event.state.submission for event in desk.posted.events]


# -- what is kept -----------------------------------------------------------------------------------------------------


def completed(manager: RMAppManager, *apps: RMApp) -> None:
    for app in apps:
        manager.handle(RMAppManagerEvent(RMAppManagerEventType.APP_COMPLETED, app.entity))


def test_oldest_ended_applications_beyond_the_limit_are_forgotten() -> None:
    desk = Desk(max_completed_applications=1)
    apps = [desk.app("FINISHED", attempts=2) for _ in range(3)]

    completed(RMAppManager(desk.context), *apps[:2])

    kept = [attempt.entity for app in apps[1:] for attempt in app.attempts]
    assert list(desk.context.apps) == [app.entity for app in apps[1:]]
    assert list(desk.context.attempts) == kept
    forgotten = {machine: dict(stats.forgotten) for machine, stats in desk.recorder.machines.items()}
    assert forgotten == {"RMApp": {"FINISHED": 1}, "RMAppAttempt": {"NEW": 2}}


def test_forgotten_applications_leave_the_store_with_their_attempts() -> None:
    desk = Desk(max_completed_applications=0)
    app = desk.app("KILLED", attempts=2)

    completed(RMAppManager(desk.context), app)

    (removal,) = desk.posted.events
    assert (desk.posted.news(), removal.entity, removal.notify) == (["RMStateStore REMOVE_APP"], app.entity, False)
    assert removal.state == ("appattempt_0_0001_000001", "appattempt_0_0001_000002")


def test_ended_applications_up_to_the_limit_are_kept() -> None:
    desk = Desk(max_completed_applications=2)
    apps = [desk.app("FINISHED") for _ in range(2)]

    completed(RMAppManager(desk.context), *apps)

    assert (list(desk.context.apps), desk.posted.events) == ([app.entity for app in apps], [])


# -- moving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", MOVABLE)
def test_move_changes_the_queue_everywhere(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)

    clients.move_application_across_queues(app.entity, "root.b")

    assert desk.desk_scheduler.moved == [(app.entity, "root.b")]
    assert app.submission.queue == "root.b"
    assert stored(desk) == [app.submission]


@pytest.mark.parametrize("state", [state.name for state in RMAppState if state.name not in MOVABLE])
def test_application_that_the_scheduler_does_not_have_is_not_moved(
    desk: Desk, clients: ClientRMService, state: str
) -> None:
    app = desk.app(state, queue="root.a")

    with pytest.raises(InvalidRequestError, match=f"it is {state}, and must be SUBMITTED, ACCEPTED or RUNNING"):
        clients.move_application_across_queues(app.entity, "root.b")

    assert (app.submission.queue, desk.desk_scheduler.moved, desk.posted.events) == ("root.a", [], [])


def test_move_that_the_scheduler_refuses_changes_nothing(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING", queue="root.a")
    desk.desk_scheduler.why_not_moved = "root.b is STOPPED"

    with pytest.raises(InvalidRequestError, match=r"cannot be moved to queue root\.b: root\.b is STOPPED"):
        clients.move_application_across_queues(app.entity, "root.b")

    assert (app.submission.queue, desk.desk_scheduler.moved, desk.posted.events) == ("root.a", [], [])


def test_move_that_fails_after_the_check_changes_nothing(desk: Desk, clients: ClientRMService) -> None:
    """The scheduler, on a thread of its own, may fill the queue between the two."""
    app = desk.app("RUNNING", queue="root.a")
    desk.desk_scheduler.move_fails = "root.b is full"

    with pytest.raises(InvalidRequestError, match=r"root\.b is full"):
        clients.move_application_across_queues(app.entity, "root.b")

    assert (app.submission.queue, desk.posted.events) == ("root.a", [])


@pytest.mark.parametrize("queue", ["default", "root.default"], ids=["as submitted", "its path"])
def test_move_to_the_current_queue_does_nothing(desk: Desk, clients: ClientRMService, queue: str) -> None:
    app = desk.app("RUNNING", queue="default")

    clients.move_application_across_queues(app.entity, queue)

    assert (app.submission.queue, desk.desk_scheduler.moved, desk.posted.events) == ("default", [], [])


def test_move_by_event(desk: Desk) -> None:
    app = desk.app("RUNNING")

    RMAppManager(desk.context).handle(RMAppManagerEvent(RMAppManagerEventType.APP_MOVE, app.entity, "root.b"))

    assert desk.desk_scheduler.moved == [(app.entity, "root.b")]


def test_move_by_event_that_fails_is_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app = desk.app("FINISHED")

    with caplog.at_level(logging.WARNING):
        RMAppManager(desk.context).handle(RMAppManagerEvent(RMAppManagerEventType.APP_MOVE, app.entity, "root.b"))

    assert f"{app.entity} cannot be moved to queue root.b" in caplog.text


def test_move_by_event_of_an_application_that_is_forgotten_does_nothing(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    RMAppManager(desk.context).handle(RMAppManagerEvent(RMAppManagerEventType.APP_MOVE, "application_0_0009", "root.b"))

    assert (desk.desk_scheduler.moved, desk.posted.events, caplog.text) == ([], [], "")


# -- priority and lifetime --------------------------------------------------------------------------------------------


def test_priority_changes_everywhere(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")

    clients.update_application_priority(app.entity, 7)

    assert desk.desk_scheduler.priorities == [(app.entity, 7)]
    assert app.submission.priority == 7
    assert stored(desk) == [app.submission]


def test_lifetime_counts_from_the_submission(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    desk.clock.advance(20_000)

    deadline_ms = clients.update_application_timeouts(app.entity, 60)

    assert deadline_ms == app.submit_ms + 60_000
    assert desk.context.app_lifetime_monitor.deadline_ms(app.entity) == deadline_ms
    assert app.submission.lifetime_s == 60
    assert stored(desk) == [app.submission]


def test_lifetime_is_no_longer_than_the_queue_allows(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    desk.desk_scheduler.longest_lifetime_s = 30

    deadlines_ms = [clients.update_application_timeouts(app.entity, lifetime_s) for lifetime_s in (60, None)]

    assert deadlines_ms == [app.submit_ms + 30_000] * 2
    assert app.submission.lifetime_s == 30


def test_lifetime_can_be_removed(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    clients.update_application_timeouts(app.entity, 60)

    assert clients.update_application_timeouts(app.entity, None) is None

    assert app.entity not in desk.context.app_lifetime_monitor
    assert app.submission.lifetime_s is None


def test_lifetime_that_is_over_is_refused(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("RUNNING")
    clients.update_application_timeouts(app.entity, 60)
    desk.clock.advance(20_000)
    desk.posted.events.clear()

    with pytest.raises(InvalidRequestError, match="cannot have a lifetime of 20 s: it was submitted longer ago"):
        clients.update_application_timeouts(app.entity, 20)

    assert desk.context.app_lifetime_monitor.deadline_ms(app.entity) == app.submit_ms + 60_000
    assert (app.submission.lifetime_s, desk.posted.events) == (60, [])
