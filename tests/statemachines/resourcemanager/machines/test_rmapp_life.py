"""RMApp from its submission to its end: what it posts, stores and keeps."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, RMApp, RMAppState

from ..builders import NODE, Workshop, send

NODES = ("node1:45454", "node2:45454")


# -- submission -------------------------------------------------------------------------------------------------------


def test_new_application_is_stored_with_its_submission_and_no_end(workshop: Workshop) -> None:
    workshop.clock.advance(5)
    app = workshop.app()

    send(app, "START")

    (store,) = workshop.posted.events
    assert store.state == (app.entity, app.submission, 5, 5, None, "", None, None)


@pytest.mark.parametrize(
    ("own_s", "queues_s", "settled_s"), [(60, None, 60), (60, 10, 10), (None, 10, 10), (None, None, None)]
)
def test_lifetime_is_settled_with_the_queue_and_runs_from_the_submission(
    workshop: Workshop, own_s: int | None, queues_s: int | None, settled_s: int | None
) -> None:
    workshop.clock.advance(1500)
    app = workshop.app(lifetime_s=own_s)
    workshop.scheduler.longest_lifetime_s = queues_s

    send(app, "START")

    (store,) = workshop.posted.events
    assert store.state.submission.lifetime_s == app.submission.lifetime_s == settled_s
    deadline_ms = workshop.context.app_lifetime_monitor.deadline_ms(app.entity)
    assert deadline_ms == (None if settled_s is None else 1500 + settled_s * 1000)


def test_time_of_submission_may_be_given(workshop: Workshop) -> None:
    workshop.clock.advance(10)
    given = workshop.app()

    app = RMApp(workshop.context, "application_0_0042", given.submission, submit_ms=3)

    assert (app.entity, app.submit_ms, app.start_ms) == ("application_0_0042", 3, 10)


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("SUBMITTED", ["APP_REJECTED", "APP_UPDATE_SAVED"]),
        ("FINISHING", ["ATTEMPT_FINISHED"]),
        ("RUNNING", ["ATTEMPT_FINISHED"]),
        ("NEW", ["KILL"]),
        ("RUNNING", ["ATTEMPT_UNREGISTERED", "APP_UPDATE_SAVED"]),
    ],
)
def test_lifetime_is_not_monitored_when_the_end_is_stored(workshop: Workshop, state: str, events: list[str]) -> None:
    app = workshop.app(state, lifetime_s=60)
    app.register_lifetime()

    for event in events:
        assert app.entity in workshop.context.app_lifetime_monitor
        send(app, event)

    assert app.entity not in workshop.context.app_lifetime_monitor


@pytest.mark.parametrize(
    ("state", "events"),
    [
        ("NEW_SAVING", ["APP_NEW_SAVED"]),
        ("NEW_SAVING", ["APP_SAVE_FAILED"]),
        ("NEW", ["KILL"]),
        ("NEW_SAVING", ["KILL", "APP_NEW_SAVED", "APP_UPDATE_SAVED"]),
        ("NEW", ["APP_REJECTED", "APP_UPDATE_SAVED"]),
    ],
)
def test_client_is_answered_once_when_its_application_is_stored_or_has_ended(
    workshop: Workshop, state: str, events: list[str]
) -> None:
    app, answered = workshop.app(state), []
    app.acknowledge = answered.append

    for event in events:
        assert answered == []
        send(app, event)

    assert (answered, app.acknowledge) == ([app], None)


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_nodes_are_cleaned_up_in_order_of_their_names(workshop: Workshop) -> None:
    app = workshop.app("FINISHING")
    app.nodes.update(reversed(NODES))

    send(app, "ATTEMPT_FINISHED")

    clean_ups = [event for event in workshop.posted.events if event.type.name == "CLEANUP_APP"]
    assert [(event.entity, event.about) for event in clean_ups] == [(node, app.entity) for node in NODES]


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING"])
def test_node_that_the_application_uses_is_noted_while_it_has_not_ended(workshop: Workshop, state: str) -> None:
    app = workshop.app(state)

    send(app, "APP_RUNNING_ON_NODE")

    assert app.nodes == {NODE}


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "KILLED"])
def test_node_that_is_used_after_the_end_is_cleaned_up(workshop: Workshop, state: str) -> None:
    app = workshop.app(state)

    send(app, "APP_RUNNING_ON_NODE")

    (clean_up,) = workshop.posted.events
    assert (clean_up.entity, clean_up.about, app.nodes) == (NODE, app.entity, set())


# -- launch -----------------------------------------------------------------------------------------------------------


def test_launch_is_stored_without_an_answer(workshop: Workshop) -> None:
    app = workshop.app("ACCEPTED")
    workshop.clock.advance(7)

    send(app, "ATTEMPT_LAUNCHED")

    (update,) = workshop.posted.events
    assert (update.state.launch_ms, update.state.state, update.notify) == (7, None, False)


def test_scheduler_is_told_of_the_application_as_a_new_one(workshop: Workshop) -> None:
    app = workshop.app("NEW_SAVING")

    send(app, "APP_NEW_SAVED")

    (added,) = workshop.posted.events
    assert (added.entity, added.is_recovering) == (app.entity, False)


def test_first_attempt_takes_nothing_over(workshop: Workshop) -> None:
    app = workshop.app("SUBMITTED")

    send(app, "APP_ACCEPTED")

    (start,) = workshop.posted.events
    assert (start.entity, start.transfer_state) == ("appattempt_0_0001_000001", False)
    assert workshop.context.attempts == {start.entity: app.current_attempt}


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING"])
def test_kill_goes_to_the_current_attempt_with_its_reason(workshop: Workshop, state: str) -> None:
    app = workshop.app(state, attempts=2)

    send(app, "KILL", diagnostics="by its user")

    (kill,) = workshop.posted.events
    assert (kill.entity, kill.diagnostics) == ("appattempt_0_0001_000002", "by its user")


KILLS = {  # state: what the killed application then needs, what it is in the end
    "NEW": ([], "KILLED"),
    "NEW_SAVING": (["APP_UPDATE_SAVED"], "KILLED"),
    "SUBMITTED": (["APP_UPDATE_SAVED"], "KILLED"),
    "ACCEPTED": (["ATTEMPT_KILLED", "APP_UPDATE_SAVED"], "KILLED"),
    "RUNNING": (["ATTEMPT_KILLED", "APP_UPDATE_SAVED"], "KILLED"),
    "FINAL_SAVING": (["APP_UPDATE_SAVED"], "KILLED"),
    "FINISHING": (["ATTEMPT_FINISHED"], "FINISHED"),
    "KILLING": (["ATTEMPT_KILLED", "APP_UPDATE_SAVED"], "KILLED"),
    "FINISHED": ([], "FINISHED"),
    "FAILED": ([], "FAILED"),
    "KILLED": ([], "KILLED"),
}


@pytest.mark.parametrize("state", [state.name for state in RMAppState])
def test_kill_in_any_state_leads_to_an_end(workshop: Workshop, state: str) -> None:
    app = workshop.app(state)
    events, end = KILLS[state]

    for event in ["KILL", *events]:
        send(app, event)

    assert (app.state.name, workshop.recorder.machines["RMApp"].invalid) == (end, 0)


@pytest.mark.parametrize("event", ["ATTEMPT_UNREGISTERED", "ATTEMPT_FINISHED"])
def test_attempt_that_is_faster_than_the_kill_finishes(workshop: Workshop, event: str) -> None:
    app = workshop.app("KILLING")

    for each in [event, "APP_UPDATE_SAVED", "ATTEMPT_FINISHED"]:
        if app.state is not RMAppState.FINISHED:
            send(app, each)

    assert app.state is RMAppState.FINISHED


@pytest.mark.parametrize("then", ["ATTEMPT_FINISHED", "APP_UPDATE_SAVED"])
def test_application_that_unregistered_finishes_whatever_comes_first(workshop: Workshop, then: str) -> None:
    """The end of the attempt, or the answer of the store."""
    app = workshop.app("RUNNING")
    send(app, "ATTEMPT_UNREGISTERED")
    workshop.posted.events.clear()
    other = ({"ATTEMPT_FINISHED", "APP_UPDATE_SAVED"} - {then}).pop()

    for event in (then, other):
        send(app, event)

    assert app.state is RMAppState.FINISHED
    assert workshop.posted.news() == ["Scheduler APP_REMOVED", "RMAppManager APP_COMPLETED"]


@pytest.mark.parametrize(("event", "final"), [("KILL", "KILLED"), ("APP_REJECTED", "FAILED")])
def test_attempt_that_finishes_late_does_not_change_another_outcome(workshop: Workshop, event: str, final: str) -> None:
    app = workshop.app("SUBMITTED")

    for each in (event, "ATTEMPT_FINISHED", "APP_UPDATE_SAVED"):
        send(app, each)

    assert app.state.name == final


def test_diagnostics_of_the_end_are_stored_and_kept_once(workshop: Workshop) -> None:
    """A master's diagnostics arrive when it unregisters, and again when its attempt ends."""
    app = workshop.app("RUNNING")

    send(app, "ATTEMPT_UNREGISTERED", diagnostics="all done")
    stored = workshop.posted.events[0].state
    for event in ("APP_UPDATE_SAVED", "ATTEMPT_FINISHED"):
        send(app, event, diagnostics="all done")

    assert (stored.diagnostics, app.diagnostics) == ("all done", ["all done"])


@pytest.mark.parametrize(
    ("state", "event", "end"),
    [("NEW", "APP_REJECTED", "FAILED"), ("NEW_SAVING", "APP_SAVE_FAILED", "FAILED"), ("SUBMITTED", "KILL", "KILLED")],
)
def test_reason_for_the_end_is_kept(workshop: Workshop, state: str, event: str, end: str) -> None:
    app = workshop.app(state)

    send(app, event, diagnostics="because")
    if app.state is RMAppState.FINAL_SAVING:
        send(app, "APP_UPDATE_SAVED", diagnostics="stored")

    assert (app.state.name, app.diagnostics) == (end, ["because"])


def test_first_launch_and_first_end_set_their_times(workshop: Workshop) -> None:
    app = workshop.app("ACCEPTED")
    events = ["ATTEMPT_LAUNCHED", "ATTEMPT_LAUNCHED", "ATTEMPT_REGISTERED", "ATTEMPT_UNREGISTERED"]

    for event in [*events, "APP_UPDATE_SAVED", "ATTEMPT_FINISHED"]:
        workshop.clock.advance(10)
        send(app, event)

    assert (app.start_ms, app.launch_ms, app.finish_ms) == (0, 10, 40)


@pytest.mark.parametrize(("state", "event"), [("NEW", "KILL"), ("RUNNING", "ATTEMPT_FINISHED")])
def test_application_that_ends_without_a_write_notes_the_time(workshop: Workshop, state: str, event: str) -> None:
    app = workshop.app(state)
    workshop.clock.advance(10)

    send(app, event)

    assert app.finish_ms == 10


def test_end_that_is_not_stored_is_not_reported(workshop: Workshop) -> None:
    app = workshop.app("RUNNING")
    reported = []

    for event in ("KILL", "ATTEMPT_KILLED", "APP_UPDATE_SAVED"):
        send(app, event)
        reported.append(app.reported_state.name)

    assert reported == ["RUNNING", "RUNNING", "KILLED"]


@pytest.mark.parametrize(
    ("state", "said", "final_status"),
    [
        ("RUNNING", "UNDEFINED", "UNDEFINED"),
        ("FINISHED", "UNDEFINED", "SUCCEEDED"),
        ("FAILED", "UNDEFINED", "FAILED"),
        ("KILLED", "UNDEFINED", "KILLED"),
        ("FINISHED", "FAILED", "FAILED"),
    ],
)
def test_final_status_is_what_the_master_said_or_else_what_the_end_says(
    workshop: Workshop, state: str, said: str, final_status: str
) -> None:
    app = workshop.app(state)
    app.attempts[-1].final_status = FinalApplicationStatus[said]

    assert app.final_status.name == final_status
