"""RMApp after a failed attempt: whether there is another one, and what that takes over."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, RMApp
from statemachines.resourcemanager.events.records import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
)

from ..builders import NODE, TASK, Workshop, event_for

NOT_ITS_OWN_FAULT = [EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED, EXIT_KILLED_BY_RESOURCEMANAGER]


def fail(app: RMApp, **more: Any) -> None:
    app.handle(event_for(app, "ATTEMPT_FAILED", **more))


def failing_every(workshop: Workshop, ms: int, attempts: int, **submitted: Any) -> RMApp:
    """A running application whose attempts failed at these intervals, the last one now."""
    app = workshop.app("RUNNING", attempts=attempts, **submitted)
    for attempt in app.attempts:
        workshop.clock.advance(ms)
        attempt.finish_ms = workshop.context.now_ms()
    return app


@pytest.mark.parametrize("exit_status", NOT_ITS_OWN_FAULT)
@pytest.mark.parametrize(("max_attempts", "state"), [(1, "FINAL_SAVING"), (2, "ACCEPTED")])
def test_failure_that_is_not_the_applications_counts_only_where_one_is_allowed(
    exit_status: int, max_attempts: int, state: str
) -> None:
    """A master that was lost with its node used up an attempt."""
    app = Workshop().app("RUNNING", attempts=2, max_attempts=max_attempts)
    app.attempts[-1].exit_status = exit_status

    fail(app)

    assert app.state.name == state


@pytest.mark.parametrize("exit_status", [0, 1, EXIT_KILLED_AFTER_APP_COMPLETION, None])
def test_failure_of_its_own_counts(workshop: Workshop, exit_status: int | None) -> None:
    app = workshop.app("RUNNING", attempts=2, max_attempts=2)
    app.attempts[-1].exit_status = exit_status

    fail(app)

    assert app.state.name == "FINAL_SAVING"


@pytest.mark.parametrize(("submitted", "allowed"), [(None, 5), (0, 5), (3, 3), (9, 5)])
def test_application_may_have_as_many_attempts_as_it_wants_up_to_the_configured_number(
    submitted: int | None, allowed: int
) -> None:
    workshop = Workshop(max_attempts=5)

    app = workshop.app(max_attempts=submitted)

    assert app.max_attempts == allowed


def test_unmanaged_master_is_not_started_again(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1, max_attempts=2, unmanaged_am=True)

    fail(app, diagnostics="it was silent")

    assert app.state.name == "FINAL_SAVING"
    assert app.diagnostics == [
        f"{app.entity} failed; the resource manager does not restart an unmanaged master",
        "it was silent",
    ]


def test_failure_says_how_many_attempts_were_made(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=2)

    fail(app, diagnostics="the disk was full")

    assert app.diagnostics == [f"{app.entity} failed 2 times, of 2 allowed", "the disk was full"]
    assert workshop.posted.events[0].state.diagnostics == "; ".join(app.diagnostics)


@pytest.mark.parametrize(("attempts", "final"), [(1, "KILLED"), (2, "FAILED")])
def test_attempt_that_fails_while_killing_gives_killed_where_it_would_be_tried_again(
    workshop: Workshop, attempts: int, final: str
) -> None:
    app = workshop.app("KILLING", attempts=attempts, max_attempts=2)

    fail(app)
    app.handle(event_for(app, "APP_UPDATE_SAVED"))

    assert app.state.name == final


# -- the next attempt -------------------------------------------------------------------------------------------------


def test_next_attempt_has_the_next_number_and_is_known_by_its_id(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1)

    fail(app)

    assert app.current_attempt is not None
    assert (app.current_attempt.entity, app.current_attempt.number) == ("appattempt_0_0001_000002", 2)
    assert workshop.context.attempts[app.current_attempt.entity] is app.current_attempt
    assert [event.entity for event in workshop.posted.events] == ["appattempt_0_0001_000002"]


@pytest.mark.parametrize("keep_containers", [False, True])
def test_start_of_the_next_attempt_says_whether_it_takes_over_containers(
    workshop: Workshop, keep_containers: bool
) -> None:
    app = workshop.app("RUNNING", attempts=1)

    fail(app, keep_containers=keep_containers)

    (start,) = workshop.posted.events
    assert start.transfer_state is keep_containers


def test_next_attempt_takes_over_the_blacklist_and_what_was_not_fetched(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1)
    first, ended = app.attempts[0], (NODE, ContainerStatus(TASK, 0))
    first.blacklist.add("node7")
    first.finished_containers.append(ended)

    fail(app)

    second = app.attempts[1]
    assert (second.blacklist, second.finished_containers, first.finished_containers) == ({"node7"}, [ended], [])


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "FINISHED"])
def test_container_that_ends_after_its_attempt_is_noted_for_the_next_one(workshop: Workshop, state: str) -> None:
    first = workshop.attempt(state)
    app = first.app
    app.start_attempt()
    status = ContainerStatus(TASK, 0)

    first.handle(event_for(first, "CONTAINER_FINISHED", status=status))

    assert (first.finished_containers, app.attempts[1].finished_containers) == ([], [(NODE, status)])


# -- the validity interval --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval_ms", "state"), [(None, "FINAL_SAVING"), (100, "ACCEPTED"), (101, "FINAL_SAVING")])
def test_failures_count_within_the_interval(workshop: Workshop, interval_ms: int | None, state: str) -> None:
    """Two attempts are allowed; the first failed 100 ms ago."""
    app = failing_every(workshop, 100, attempts=2, max_attempts=2, attempt_failures_validity_interval_ms=interval_ms)

    fail(app)

    assert app.state.name == state


def test_attempts_that_are_too_old_leave_the_store_where_there_are_more_than_allowed(workshop: Workshop) -> None:
    app = failing_every(workshop, 100, attempts=4, max_attempts=2, attempt_failures_validity_interval_ms=50)

    fail(app)

    assert workshop.posted.news() == [*["RMStateStore REMOVE_APP_ATTEMPT"] * 2, "RMAppAttempt START"]
    removed = workshop.posted.events[:2]
    assert [event.entity for event in removed] == ["appattempt_0_0001_000001", "appattempt_0_0001_000002"]
    assert not any(event.notify for event in removed)


def test_attempts_that_are_too_old_leave_the_store_while_killing_too(workshop: Workshop) -> None:
    app = failing_every(workshop, 100, attempts=3, max_attempts=2, attempt_failures_validity_interval_ms=50)
    workshop._put(app, "KILLING")

    fail(app)

    assert workshop.posted.news() == ["RMStateStore REMOVE_APP_ATTEMPT", "RMStateStore UPDATE_APP"]


def test_attempt_leaves_the_store_once(workshop: Workshop) -> None:
    app = failing_every(workshop, 100, attempts=3, max_attempts=2, attempt_failures_validity_interval_ms=50)
    fail(app)
    workshop.posted.events.clear()
    app.attempts[-1].finish_ms = workshop.context.now_ms()
    workshop.clock.advance(100)

    fail(app)

    assert [event.entity for event in workshop.posted.events] == [
        "appattempt_0_0001_000002",
        "appattempt_0_0001_000005",
    ]


@pytest.mark.parametrize("submitted", [{"max_attempts": 3}, {"attempt_failures_validity_interval_ms": None}])
def test_attempts_stay_in_the_store_otherwise(submitted: dict[str, Any]) -> None:
    workshop = Workshop(max_attempts=3)
    settings = {"max_attempts": 2, "attempt_failures_validity_interval_ms": 50} | submitted
    app = failing_every(workshop, 100, attempts=3, **settings)

    fail(app)

    assert "RMStateStore REMOVE_APP_ATTEMPT" not in workshop.posted.news()


def test_attempt_that_is_not_too_old_stays_in_the_store_with_its_successors(workshop: Workshop) -> None:
    app = failing_every(workshop, 100, attempts=4, max_attempts=2, attempt_failures_validity_interval_ms=250)

    fail(app)

    removed = [event.entity for event in workshop.posted.events if event.type.name == "REMOVE_APP_ATTEMPT"]
    assert removed == ["appattempt_0_0001_000001"]
