"""Every arc of RMApp: where it leads, and what it posts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import RMApp, RMAppState
from statemachines.resourcemanager.events import EXIT_ABORTED, EXIT_KILLED_BY_RESOURCEMANAGER

from .builders import NODE, Case, Workshop, case_id, causes_of_final_saving, declared, event_for, targets

NODES = ("node1:45454", "node2:45454")
CLEAN_UP = ("RMNode CLEANUP_APP", "RMNode CLEANUP_APP")  # the application of `ended_on_nodes` ran on two
FINISH = ("Scheduler APP_REMOVED", "RMAppManager APP_COMPLETED")
SAVE = ("RMStateStore UPDATE_APP",)
RETRY = ("RMAppAttempt START",)
KILL = ("RMAppAttempt KILL",)
CASES = [
    Case("NEW", "START", "NEW_SAVING", ("RMStateStore STORE_APP",)),
    Case("NEW", "KILL", "KILLED", FINISH),
    Case("NEW", "APP_REJECTED", "FINAL_SAVING", SAVE),
    Case("NEW_SAVING", "APP_NEW_SAVED", "SUBMITTED", ("Scheduler APP_ADDED",)),
    Case("NEW_SAVING", "KILL", "FINAL_SAVING", SAVE),
    Case("NEW_SAVING", "APP_REJECTED", "FINAL_SAVING", SAVE),
    Case("NEW_SAVING", "APP_SAVE_FAILED", "FAILED", FINISH),
    Case("SUBMITTED", "APP_REJECTED", "FINAL_SAVING", SAVE),
    Case("SUBMITTED", "APP_ACCEPTED", "ACCEPTED", RETRY),
    Case("SUBMITTED", "KILL", "FINAL_SAVING", SAVE),
    Case("ACCEPTED", "ATTEMPT_REGISTERED", "RUNNING"),
    Case("ACCEPTED", "ATTEMPT_FAILED", "ACCEPTED", RETRY, "one attempt of two"),
    Case("ACCEPTED", "ATTEMPT_FAILED", "FINAL_SAVING", SAVE, "two attempts of two"),
    Case("ACCEPTED", "ATTEMPT_FAILED", "ACCEPTED", RETRY, "two attempts of two, one aborted"),
    Case("ACCEPTED", "ATTEMPT_FINISHED", "FINAL_SAVING", SAVE),
    Case("ACCEPTED", "KILL", "KILLING", KILL),
    Case("ACCEPTED", "ATTEMPT_KILLED", "FINAL_SAVING", SAVE),
    Case("ACCEPTED", "APP_RUNNING_ON_NODE", "ACCEPTED"),
    Case("ACCEPTED", "ATTEMPT_LAUNCHED", "ACCEPTED"),
    Case("RUNNING", "ATTEMPT_UNREGISTERED", "FINAL_SAVING", SAVE),
    Case("RUNNING", "ATTEMPT_FINISHED", "FINISHED", (*CLEAN_UP, *FINISH), "ran on two nodes"),
    Case("RUNNING", "APP_RUNNING_ON_NODE", "RUNNING"),
    Case("RUNNING", "ATTEMPT_FAILED", "ACCEPTED", RETRY, "one attempt of two"),
    Case("RUNNING", "ATTEMPT_FAILED", "ACCEPTED", RETRY, "two attempts of two, one aborted"),
    Case("RUNNING", "ATTEMPT_FAILED", "FINAL_SAVING", SAVE, "two attempts of two"),
    Case("RUNNING", "KILL", "KILLING", KILL),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FINISHING", (), "RUNNING ATTEMPT_UNREGISTERED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FINISHED", FINISH, "ACCEPTED ATTEMPT_FINISHED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FAILED", FINISH, "SUBMITTED APP_REJECTED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "KILLED", FINISH, "SUBMITTED KILL"),
    Case("FINAL_SAVING", "ATTEMPT_FINISHED", "FINAL_SAVING"),
    Case("FINAL_SAVING", "APP_RUNNING_ON_NODE", "FINAL_SAVING"),
    Case("FINAL_SAVING", "KILL", "FINAL_SAVING"),
    Case("FINAL_SAVING", "APP_NEW_SAVED", "FINAL_SAVING"),
    Case("FINISHING", "ATTEMPT_FINISHED", "FINISHED", (*CLEAN_UP, *FINISH), "ran on two nodes"),
    Case("FINISHING", "APP_RUNNING_ON_NODE", "FINISHING"),
    Case("FINISHING", "KILL", "FINISHING"),
    Case("KILLING", "APP_RUNNING_ON_NODE", "KILLING"),
    Case("KILLING", "ATTEMPT_KILLED", "FINAL_SAVING", SAVE),
    Case("KILLING", "ATTEMPT_UNREGISTERED", "FINAL_SAVING", SAVE),
    Case("KILLING", "ATTEMPT_FINISHED", "FINISHED", FINISH),
    Case("KILLING", "ATTEMPT_FAILED", "FINAL_SAVING", SAVE, "one attempt of two"),
    Case("KILLING", "ATTEMPT_FAILED", "FINAL_SAVING", SAVE, "two attempts of two"),
    Case("KILLING", "ATTEMPT_REGISTERED", "KILLING"),
    Case("KILLING", "APP_UPDATE_SAVED", "KILLING"),
    Case("KILLING", "KILL", "KILLING"),
    Case("FINISHED", "APP_RUNNING_ON_NODE", "FINISHED", ("RMNode CLEANUP_APP",)),
    Case("FINISHED", "ATTEMPT_UNREGISTERED", "FINISHED"),
    Case("FINISHED", "ATTEMPT_FINISHED", "FINISHED"),
    Case("FINISHED", "KILL", "FINISHED"),
    Case("FAILED", "APP_RUNNING_ON_NODE", "FAILED", ("RMNode CLEANUP_APP",)),
    Case("FAILED", "KILL", "FAILED"),
    Case("KILLED", "APP_RUNNING_ON_NODE", "KILLED", ("RMNode CLEANUP_APP",)),
    Case("KILLED", "APP_ACCEPTED", "KILLED"),
    Case("KILLED", "APP_REJECTED", "KILLED"),
    Case("KILLED", "KILL", "KILLED"),
    Case("KILLED", "ATTEMPT_FINISHED", "KILLED"),
    Case("KILLED", "ATTEMPT_FAILED", "KILLED"),
    Case("KILLED", "START", "KILLED"),
]

OUTCOMES = {  # what is stored, and taken after that; of two attempts, two were made
    ("NEW", "APP_REJECTED"): "FAILED",
    ("NEW_SAVING", "KILL"): "KILLED",
    ("NEW_SAVING", "APP_REJECTED"): "FAILED",
    ("SUBMITTED", "KILL"): "KILLED",
    ("SUBMITTED", "APP_REJECTED"): "FAILED",
    ("ACCEPTED", "ATTEMPT_FAILED"): "FAILED",
    ("ACCEPTED", "ATTEMPT_FINISHED"): "FINISHED",
    ("ACCEPTED", "ATTEMPT_KILLED"): "KILLED",
    ("RUNNING", "ATTEMPT_FAILED"): "FAILED",
    ("RUNNING", "ATTEMPT_UNREGISTERED"): "FINISHING",
    ("KILLING", "ATTEMPT_FAILED"): "FAILED",
    ("KILLING", "ATTEMPT_KILLED"): "KILLED",
    ("KILLING", "ATTEMPT_UNREGISTERED"): "FINISHING",
}


def two_attempts_one_aborted(workshop: Workshop, state: str) -> RMApp:
    app = workshop.app(state, attempts=2)
    app.attempts[0].exit_status = EXIT_ABORTED
    return app


def ran_on_nodes(workshop: Workshop, state: str) -> RMApp:
    app = workshop.app(state)
    app.nodes.update(reversed(NODES))
    return app


GIVEN: dict[str, Callable[[Workshop, str], RMApp]] = {
    "": lambda workshop, state: workshop.app(state),
    "one attempt of two": lambda workshop, state: workshop.app(state, attempts=1),
    "two attempts of two": lambda workshop, state: workshop.app(state, attempts=2),
    "two attempts of two, one aborted": two_attempts_one_aborted,
    "ran on two nodes": ran_on_nodes,
}


def saving(workshop: Workshop, state: str, event: str, **more: Any) -> RMApp:
    """An application that is FINAL_SAVING because of `event` in `state`."""
    app = workshop.app(state)
    app.handle(event_for(app, event, **more))
    assert app.state is RMAppState.FINAL_SAVING
    workshop.posted.events.clear()
    return app


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    make = GIVEN.get(case.given) or (lambda workshop, _: saving(workshop, *case.given.split()))
    app = make(workshop, case.state)

    app.handle(event_for(app, case.event))

    assert (app.state.name, workshop.recorder.machines["RMApp"].invalid) == (case.to, 0)
    assert workshop.posted.told() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case() -> None:
    assert targets(CASES) == declared("RMApp")


# -- what the events say, and what is kept ----------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), OUTCOMES, ids="-".join)
def test_final_state_is_stored_and_then_taken(workshop: Workshop, state: str, event: str) -> None:
    """For an attempt that unregistered, FINISHING was stored, which is no final state."""
    app, outcome = workshop.app(state, attempts=2), OUTCOMES[state, event]
    app.handle(event_for(app, event))
    (update,) = workshop.posted.events
    workshop.posted.events.clear()

    app.handle(event_for(app, "APP_UPDATE_SAVED"))

    assert (update.entity, update.state.name) == (app.entity, "FINISHED" if outcome == "FINISHING" else outcome)
    assert app.state.name == outcome
    assert workshop.posted.told() == ([] if outcome == "FINISHING" else list(FINISH))


def test_all_arcs_that_store_a_final_state_have_an_outcome() -> None:
    assert set(OUTCOMES) == causes_of_final_saving("RMApp")


def test_submission_is_what_is_stored_first(workshop: Workshop) -> None:
    app = workshop.app()

    app.handle(event_for(app, "START"))

    (store,) = workshop.posted.events
    assert store.state is app.submission


def test_hook_that_was_put_off_runs_with_the_event_that_caused_it(workshop: Workshop) -> None:
    app = saving(workshop, "SUBMITTED", "KILL", diagnostics="by its user")

    app.handle(event_for(app, "APP_UPDATE_SAVED", diagnostics="stored"))

    assert app.diagnostics == ["by its user"]
    assert app.pending is None


@pytest.mark.parametrize("then", ["ATTEMPT_FINISHED", "APP_UPDATE_SAVED"])
def test_application_that_unregistered_finishes_whatever_comes_first(workshop: Workshop, then: str) -> None:
    """The end of the attempt, or the answer of the store."""
    app = saving(workshop, "RUNNING", "ATTEMPT_UNREGISTERED")
    other = ({"ATTEMPT_FINISHED", "APP_UPDATE_SAVED"} - {then}).pop()

    for event in (then, other):
        app.handle(event_for(app, event))

    assert app.state is RMAppState.FINISHED
    assert workshop.posted.told() == list(FINISH)


@pytest.mark.parametrize(("event", "final"), [("KILL", "KILLED"), ("APP_REJECTED", "FAILED")])
def test_attempt_that_finishes_late_does_not_change_another_outcome(workshop: Workshop, event: str, final: str) -> None:
    app = saving(workshop, "SUBMITTED", event)

    for late in ("ATTEMPT_FINISHED", "APP_UPDATE_SAVED"):
        app.handle(event_for(app, late))

    assert app.state.name == final


@pytest.mark.parametrize(("attempts", "final"), [(1, "KILLED"), (2, "FAILED")])
def test_attempt_that_fails_while_killing_gives_killed_where_it_would_be_tried_again(
    workshop: Workshop, attempts: int, final: str
) -> None:
    app = workshop.app("KILLING", attempts=attempts, max_attempts=2)

    for event in ("ATTEMPT_FAILED", "APP_UPDATE_SAVED"):
        app.handle(event_for(app, event))

    assert app.state.name == final


@pytest.mark.parametrize("exit_status", [EXIT_ABORTED, EXIT_KILLED_BY_RESOURCEMANAGER])
@pytest.mark.parametrize(("max_attempts", "state"), [(1, "FINAL_SAVING"), (2, "ACCEPTED")])
def test_failure_that_is_not_the_applications_counts_only_where_one_is_allowed(
    workshop: Workshop, exit_status: int, max_attempts: int, state: str
) -> None:
    """A master that was lost with its node used up an attempt."""
    app = workshop.app("RUNNING", attempts=2, max_attempts=max_attempts)
    app.attempts[-1].exit_status = exit_status

    app.handle(event_for(app, "ATTEMPT_FAILED"))

    assert app.state.name == state


def test_next_attempt_has_the_next_number_and_is_known_by_its_id(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1)

    app.handle(event_for(app, "ATTEMPT_FAILED"))

    assert app.current_attempt is not None
    assert app.current_attempt.entity == "appattempt_0_0001_000002"
    assert workshop.context.attempts[app.current_attempt.entity] is app.current_attempt
    assert [event.entity for event in workshop.posted.events] == ["appattempt_0_0001_000002"]


def test_failure_says_how_many_attempts_were_made(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=2)

    for event in ("ATTEMPT_FAILED", "APP_UPDATE_SAVED"):
        app.handle(event_for(app, event, diagnostics="the disk was full"))

    assert app.diagnostics == [f"{app.entity} failed 2 times, of 2 allowed", "the disk was full"]


def test_kill_goes_to_the_current_attempt_with_its_reason(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=2)

    app.handle(event_for(app, "KILL", diagnostics="by its user"))

    (kill,) = workshop.posted.events
    assert (kill.entity, kill.diagnostics) == ("appattempt_0_0001_000002", "by its user")


def test_nodes_are_cleaned_up_in_order_of_their_names(workshop: Workshop) -> None:
    app = ran_on_nodes(workshop, "FINISHING")

    app.handle(event_for(app, "ATTEMPT_FINISHED"))

    clean_ups = [event for event in workshop.posted.events if event.type.name == "CLEANUP_APP"]
    assert [(event.entity, event.about) for event in clean_ups] == [(node, app.entity) for node in NODES]


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING"])
def test_node_that_the_application_uses_is_noted_while_it_has_not_ended(workshop: Workshop, state: str) -> None:
    app = workshop.app(state)

    app.handle(event_for(app, "APP_RUNNING_ON_NODE"))

    assert app.nodes == {NODE}


def test_times_of_launch_and_end_are_those_of_the_first_such_event(workshop: Workshop) -> None:
    app = workshop.app("ACCEPTED")
    events = ["ATTEMPT_LAUNCHED", "ATTEMPT_LAUNCHED", "ATTEMPT_REGISTERED", "ATTEMPT_UNREGISTERED"]

    for event in [*events, "APP_UPDATE_SAVED", "ATTEMPT_FINISHED"]:
        workshop.clock.advance(10)
        app.handle(event_for(app, event))

    assert (app.start_ms, app.launch_ms, app.finish_ms) == (0, 10, 40)


@pytest.mark.parametrize(("state", "event"), [("NEW", "KILL"), ("RUNNING", "ATTEMPT_FINISHED")])
def test_application_that_ends_without_a_write_notes_the_time(workshop: Workshop, state: str, event: str) -> None:
    app = workshop.app(state)
    workshop.clock.advance(10)

    app.handle(event_for(app, event))

    assert app.finish_ms == 10


def test_application_may_have_its_own_number_of_attempts_or_the_configured_one() -> None:
    workshop = Workshop(max_attempts=5)

    assert [workshop.app(max_attempts=own).max_attempts for own in (0, 3)] == [5, 3]
