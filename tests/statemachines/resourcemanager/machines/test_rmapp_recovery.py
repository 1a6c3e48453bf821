"""RMApp and RMAppAttempt after a restart: from what the store holds to where they go on."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, Resource, RMApp, UnknownAttemptError

from ..builders import MASTER, NODE, Workshop, send
from ..inner import ApplicationAttemptStateData, MasterContainerData, RecoveredApplication

MASTERS = MasterContainerData(MASTER, NODE, Resource(2048, 1000))
COMPLETED = ["RMAppManager APP_COMPLETED"]


def attempt_record(number: int, state: str | None = None, **more: Any) -> ApplicationAttemptStateData:
    return ApplicationAttemptStateData(f"appattempt_0_0001_{number:06d}", MASTERS, start_ms=number, state=state, **more)


def recover(
    workshop: Workshop,
    *attempts: ApplicationAttemptStateData,
    submitted: dict[str, Any] | None = None,
    **stored: Any,
) -> RMApp:
    """An application recovered with these attempts; `stored` overrides fields of its own record."""
    app = workshop.app(**(submitted or {}))
    record = app.record()._replace(**stored)
    send(app, "RECOVER", state=RecoveredApplication(record, {attempt.attempt_id: attempt for attempt in attempts}))
    assert workshop.recorder.machines["RMApp"].invalid == 0
    return app


def told_directly(workshop: Workshop) -> list[tuple[str, str, bool]]:
    """The direct calls of the scheduler: (type, entity, is_recovering)."""
    return [(event.type.name, event.entity, event.is_recovering) for event in workshop.scheduler.news]  # type: ignore[attr-defined]


def states(app: RMApp) -> list[str]:
    return [attempt.state.name for attempt in app.attempts]


# -- an application that had ended ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["FINISHED", "FAILED", "KILLED"])
def test_ended_application_is_recovered_without_the_scheduler(workshop: Workshop, end: str) -> None:
    app = recover(workshop, attempt_record(1, "FAILED"), attempt_record(2, end), state=end, finish_ms=70)
    send(app, "APP_RUNNING_ON_NODE")

    assert (app.state.name, states(app), app.finish_ms) == (end, ["FAILED", end], 70)
    assert workshop.posted.news() == [*COMPLETED, "RMNode CLEANUP_APP"]
    assert told_directly(workshop) == []


def test_attempt_without_a_stored_end_takes_the_end_of_its_application(workshop: Workshop) -> None:
    """The application's end was stored, and the attempt's was not."""
    app = recover(workshop, attempt_record(1), state="KILLED", finish_ms=70)

    assert (app.state.name, states(app)) == ("KILLED", ["KILLED"])
    assert workshop.posted.news() == COMPLETED


def test_record_of_a_recovered_application_is_what_was_stored(workshop: Workshop) -> None:
    stored = {"start_ms": 2, "submit_ms": 0, "launch_ms": 5, "finish_ms": 70, "diagnostics": "it was killed"}

    app = recover(workshop, state="KILLED", **stored)

    record = app.record()
    assert {name: getattr(record, name) for name in stored} == stored
    assert record.state == "KILLED"


# -- one that had not -------------------------------------------------------------------------------------------------


def test_application_without_an_attempt_goes_on_as_a_new_one(workshop: Workshop) -> None:
    """The scheduler answers, and that starts the first attempt."""
    app = recover(workshop)

    assert (app.state.name, workshop.posted.news()) == ("SUBMITTED", [])
    assert told_directly(workshop) == [("APP_ADDED", app.entity, False)]


def test_live_attempt_waits_for_its_master_which_may_register_at_once(workshop: Workshop) -> None:
    app = recover(workshop, attempt_record(1, "FAILED"), attempt_record(2), launch_ms=3)

    assert (app.state.name, states(app)) == ("ACCEPTED", ["FAILED", "LAUNCHED"])
    assert told_directly(workshop) == [
        ("APP_ADDED", app.entity, True),
        ("APP_ATTEMPT_ADDED", "appattempt_0_0001_000002", True),
    ]
    assert workshop.posted.news() == ["RMApp ATTEMPT_LAUNCHED"]
    assert "appattempt_0_0001_000002" in workshop.context.am_liveliness_monitor
    workshop.masters.register_application_master("appattempt_0_0001_000002")


def test_time_of_the_first_launch_stays(workshop: Workshop) -> None:
    workshop.clock.advance(50)
    app = recover(workshop, attempt_record(1), launch_ms=3)
    workshop.posted.events.clear()

    send(app, "ATTEMPT_LAUNCHED")

    assert (app.launch_ms, workshop.posted.news()) == (3, [])


def test_without_work_preserving_recovery_the_scheduler_does_not_get_the_live_attempt() -> None:
    workshop = Workshop(work_preserving_recovery=False)

    app = recover(workshop, attempt_record(1))

    assert (app.state.name, states(app)) == ("ACCEPTED", ["LAUNCHED"])
    assert told_directly(workshop) == [("APP_ADDED", app.entity, True)]
    assert app.attempts[0].entity in workshop.context.am_liveliness_monitor
    with pytest.raises(UnknownAttemptError):
        workshop.masters.register_application_master(app.attempts[0].entity)


@pytest.mark.parametrize(
    ("end", "then"), [("FAILED", "ACCEPTED"), ("FINISHED", "FINAL_SAVING"), ("KILLED", "FINAL_SAVING")]
)
def test_application_learns_of_an_end_that_only_its_attempt_had_stored(workshop: Workshop, end: str, then: str) -> None:
    app = recover(workshop, attempt_record(1, end, diagnostics="because"))
    news, removed = workshop.posted.events

    app.handle(news)

    assert told_directly(workshop)[-1] == ("APP_ATTEMPT_ADDED", "appattempt_0_0001_000001", True)
    assert (news.type.name, news.diagnostics) == (f"ATTEMPT_{end}", "because")
    assert (removed.type.name, removed.entity) == ("APP_ATTEMPT_REMOVED", "appattempt_0_0001_000001")
    assert app.state.name == then


def test_containers_of_a_failed_attempt_are_kept_for_the_next_one_across_a_restart(workshop: Workshop) -> None:
    recover(workshop, attempt_record(1, "FAILED"), submitted={"keep_containers_across_attempts": True})

    failed, removed = workshop.posted.events
    assert (failed.keep_containers, removed.keep_containers) == (True, True)


def test_older_attempt_without_an_end_has_failed(workshop: Workshop) -> None:
    """A later attempt exists, so this one has ended; its last write was lost."""
    app = recover(workshop, attempt_record(1), attempt_record(2))

    assert states(app) == ["FAILED", "LAUNCHED"]


def test_failures_before_the_restart_count(workshop: Workshop) -> None:
    app = recover(workshop, attempt_record(1, "FAILED", exit_status=1), attempt_record(2))
    app.attempts[1].exit_status = 1

    send(app, "ATTEMPT_FAILED")

    assert app.state.name == "FINAL_SAVING"


def test_next_attempt_is_numbered_after_the_stored_ones(workshop: Workshop) -> None:
    settings = {"attempt_failures_validity_interval_ms": 10, "max_attempts": 2}
    app = recover(
        workshop, attempt_record(3, "FAILED", finish_ms=0), attempt_record(4), submitted=settings, launch_ms=3
    )
    workshop.posted.events.clear()
    workshop.clock.advance(100)

    send(app, "ATTEMPT_FAILED")

    (start,) = workshop.posted.events
    assert start.entity == "appattempt_0_0001_000005"


def test_lifetime_goes_on_from_the_submission(workshop: Workshop) -> None:
    workshop.clock.advance(5000)

    app = recover(workshop, submitted={"lifetime_s": 60})

    assert workshop.context.app_lifetime_monitor.deadline_ms(app.entity) == app.submit_ms + 60_000


# -- attempts ---------------------------------------------------------------------------------------------------------


def test_record_of_a_recovered_attempt_is_what_was_stored(workshop: Workshop) -> None:
    record = attempt_record(
        1,
        "FINISHED",
        final_status="SUCCEEDED",
        exit_status=0,
        diagnostics="all done",
        tracking_url="http://history/1",
        finish_ms=60,
    )

    app = recover(workshop, record, state="FINISHED", finish_ms=70)

    attempt = app.attempts[0]
    assert attempt.record() == record
    assert (attempt.master_container, attempt.master_node) == (MASTER, NODE)
    assert app.final_status is FinalApplicationStatus.SUCCEEDED


def test_unmanaged_attempt_has_no_container_after_a_restart_either(workshop: Workshop) -> None:
    record = attempt_record(1)._replace(master_container=None)

    app = recover(workshop, record, submitted={"unmanaged_am": True})

    attempt = app.attempts[0]
    assert (attempt.state.name, attempt.master_container, attempt.record()) == ("LAUNCHED", None, record)


def test_attempt_is_found_by_its_id_after_a_restart(workshop: Workshop) -> None:
    app = recover(workshop, attempt_record(1, "FAILED"), attempt_record(2))

    assert workshop.context.attempts == {attempt.entity: attempt for attempt in app.attempts}
