"""Every arc of RMAppAttempt: where it leads, and what it posts."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.events import ContainerStatus
from statemachines.resourcemanager.services import UnknownAttemptError

from .builders import (
    MASTER,
    NODE,
    TASK,
    Case,
    Workshop,
    case_id,
    causes_of_final_saving,
    declared,
    event_for,
    targets,
)

SAVE = ("RMStateStore UPDATE_APP_ATTEMPT",)
PULLED = ("RMNode FINISHED_CONTAINERS_PULLED_BY_AM",)
CLEANUP = ("AMLauncher CLEANUP",)
FINISHED = ("RMApp ATTEMPT_FINISHED", "Scheduler APP_ATTEMPT_REMOVED")
FAILED = ("RMApp ATTEMPT_FAILED", "Scheduler APP_ATTEMPT_REMOVED")
KILLED = ("RMApp ATTEMPT_KILLED", "Scheduler APP_ATTEMPT_REMOVED")
ANOTHERS = "another container"
UNREGISTERED = "unregistered"

OUTCOMES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    # What is stored by an arc to FINAL_SAVING, and what is posted when the store has answered.
    ("NEW", "KILL"): ("KILLED", KILLED),
    ("NEW", "FAIL"): ("FAILED", FAILED),
    ("NEW", "REGISTERED"): ("FAILED", FAILED),
    ("SUBMITTED", "KILL"): ("KILLED", KILLED),
    ("SUBMITTED", "FAIL"): ("FAILED", FAILED),
    ("SUBMITTED", "REGISTERED"): ("FAILED", FAILED),
    ("SCHEDULED", "KILL"): ("KILLED", KILLED),
    ("SCHEDULED", "FAIL"): ("FAILED", FAILED),
    ("SCHEDULED", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("ALLOCATED_SAVING", "KILL"): ("KILLED", KILLED),
    ("ALLOCATED_SAVING", "FAIL"): ("FAILED", FAILED),
    ("ALLOCATED_SAVING", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("ALLOCATED", "LAUNCH_FAILED"): ("FAILED", FAILED),
    ("ALLOCATED", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("ALLOCATED", "FAIL"): ("FAILED", FAILED),
    ("ALLOCATED", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("LAUNCHED", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("LAUNCHED", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("LAUNCHED", "FAIL"): ("FAILED", FAILED),
    ("RUNNING", "UNREGISTERED"): ("FINISHING", ()),
    ("RUNNING", "CONTAINER_FINISHED"): ("FAILED", FAILED + CLEANUP),
    ("RUNNING", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("RUNNING", "FAIL"): ("FAILED", FAILED),
}
_ALSO_POSTED = {  # by an arc to FINAL_SAVING, beside what it stores
    ("LAUNCHED", "CONTAINER_FINISHED"): (*PULLED, *SAVE),
    ("RUNNING", "CONTAINER_FINISHED"): (*PULLED, *SAVE),
    ("RUNNING", "UNREGISTERED"): (*SAVE, "RMApp ATTEMPT_UNREGISTERED"),
}
_IGNORED = {
    "RUNNING": "LAUNCHED REGISTERED CONTAINER_ALLOCATED STATUS_UPDATE",
    "FINAL_SAVING": "UNREGISTERED STATUS_UPDATE LAUNCHED LAUNCH_FAILED CONTAINER_ALLOCATED ATTEMPT_NEW_SAVED KILL FAIL "
    "ATTEMPT_ADDED",
    "FINISHING": "LAUNCHED UNREGISTERED STATUS_UPDATE CONTAINER_ALLOCATED KILL FAIL",
    "FINISHED": "LAUNCHED UNREGISTERED CONTAINER_ALLOCATED KILL FAIL",
    "FAILED": "LAUNCHED LAUNCH_FAILED KILL FAIL REGISTERED UNREGISTERED STATUS_UPDATE CONTAINER_ALLOCATED",
    "KILLED": "ATTEMPT_ADDED LAUNCHED LAUNCH_FAILED REGISTERED CONTAINER_ALLOCATED UNREGISTERED KILL FAIL "
    "STATUS_UPDATE",
}
CASES = [
    Case("NEW", "START", "SUBMITTED", ("Scheduler APP_ATTEMPT_ADDED",)),
    Case("SUBMITTED", "ATTEMPT_ADDED", "SCHEDULED"),
    Case("SCHEDULED", "CONTAINER_ALLOCATED", "ALLOCATED_SAVING", ("RMStateStore STORE_APP_ATTEMPT",), "allocated"),
    Case("SCHEDULED", "CONTAINER_ALLOCATED", "SCHEDULED", (), "nothing allocated"),
    Case("ALLOCATED_SAVING", "ATTEMPT_NEW_SAVED", "ALLOCATED", ("AMLauncher LAUNCH",)),
    Case("ALLOCATED", "LAUNCHED", "LAUNCHED", ("RMApp ATTEMPT_LAUNCHED",)),
    Case("ALLOCATED", "REGISTERED", "RUNNING", ("RMApp ATTEMPT_LAUNCHED", "RMApp ATTEMPT_REGISTERED")),
    Case("LAUNCHED", "REGISTERED", "RUNNING", ("RMApp ATTEMPT_REGISTERED",)),
    Case("LAUNCHED", "CONTAINER_FINISHED", "LAUNCHED", (), ANOTHERS),
    Case("RUNNING", "CONTAINER_FINISHED", "RUNNING", (), ANOTHERS),
    *(Case(*pair, "FINAL_SAVING", _ALSO_POSTED.get(pair, SAVE)) for pair in OUTCOMES),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "KILLED"),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "FINISHING", (), UNREGISTERED),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", PULLED),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", PULLED, UNREGISTERED),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", (), ANOTHERS),
    Case("FINISHING", "CONTAINER_FINISHED", "FINISHED", FINISHED + CLEANUP + PULLED),
    Case("FINISHING", "CONTAINER_FINISHED", "FINISHING", (), ANOTHERS),
    Case("FINISHED", "CONTAINER_FINISHED", "FINISHED"),
    Case("FAILED", "CONTAINER_FINISHED", "FAILED"),
    Case("KILLED", "CONTAINER_FINISHED", "KILLED"),
    *(Case(state, event, state) for state, events in _IGNORED.items() for event in events.split()),
]


def send(attempt: RMAppAttempt, event: str, **more: Any) -> None:
    attempt.handle(event_for(attempt, event, **more))


def saving(workshop: Workshop, state: str, event: str, **more: Any) -> RMAppAttempt:
    """An attempt that is FINAL_SAVING because of `event` in `state`; nothing else is in what was posted."""
    attempt = workshop.attempt(state)
    send(attempt, event, **more)
    workshop.posted.events.clear()
    return attempt


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    if case.given == UNREGISTERED:
        attempt = saving(workshop, "RUNNING", "UNREGISTERED")
    else:
        attempt = workshop.attempt(case.state)
    if case.given == "allocated":
        workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]
    more = {"status": ContainerStatus(TASK, 0)} if case.given == ANOTHERS else {}

    send(attempt, case.event, **more)

    assert (attempt.state.name, workshop.recorder.machines["RMAppAttempt"].invalid) == (case.to, 0)
    assert workshop.posted.told() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case() -> None:
    tried = targets(CASES)
    tried["FINAL_SAVING", "ATTEMPT_UPDATE_SAVED"] |= {state for state, _ in OUTCOMES.values()} | {"FINISHED"}

    assert tried == declared("RMAppAttempt")


@pytest.mark.parametrize(("state", "event"), OUTCOMES, ids="-".join)
def test_final_state_is_stored_and_then_taken(workshop: Workshop, state: str, event: str) -> None:
    """For a master that unregistered, FINISHING was stored, which is no final state."""
    outcome, posts = OUTCOMES[state, event]
    attempt = workshop.attempt(state)
    send(attempt, event)
    stored = [posted.state.name for posted in workshop.posted.events if posted.type.name == "UPDATE_APP_ATTEMPT"]
    workshop.posted.events.clear()

    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert stored == ["FINISHED" if outcome == "FINISHING" else outcome]
    assert (attempt.state.name, attempt.pending) == (outcome, None)
    assert workshop.posted.told() == list(posts)


def test_all_arcs_that_store_a_final_state_have_an_outcome() -> None:
    assert set(OUTCOMES) == causes_of_final_saving("RMAppAttempt")


# -- what the events say, and what is kept ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["CONTAINER_FINISHED", "ATTEMPT_UPDATE_SAVED"])
def test_attempt_that_unregistered_finishes_whatever_comes_first(workshop: Workshop, first: str) -> None:
    """The end of the master's container, or the answer of the store."""
    attempt = saving(workshop, "RUNNING", "UNREGISTERED")
    second = ({"CONTAINER_FINISHED", "ATTEMPT_UPDATE_SAVED"} - {first}).pop()

    for event in (first, second):
        send(attempt, event)

    assert attempt.state is RMAppAttemptState.FINISHED
    assert sorted(workshop.posted.told()) == sorted(FINISHED + CLEANUP + PULLED)


@pytest.mark.parametrize(("event", "final"), [("KILL", "KILLED"), ("FAIL", "FAILED")])
def test_masters_end_while_saving_does_not_change_another_outcome(workshop: Workshop, event: str, final: str) -> None:
    attempt = saving(workshop, "RUNNING", event)

    send(attempt, "CONTAINER_FINISHED")
    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert attempt.state.name == final


def test_start_opens_the_door_to_the_master_and_leaving_closes_it(workshop: Workshop) -> None:
    attempt = workshop.attempt()
    masters = workshop.context.master_service

    send(attempt, "START")
    masters.register_application_master(attempt.entity)
    for event in ("KILL", "ATTEMPT_UPDATE_SAVED"):
        send(attempt, event)

    with pytest.raises(UnknownAttemptError, match="not registered"):
        masters.register_application_master(attempt.entity)


def test_request_for_the_master_is_what_the_client_submitted(workshop: Workshop) -> None:
    attempt = workshop.attempt("SUBMITTED")
    submission = attempt.app.submission._replace(am_host="node7", gpu_models=frozenset({"T4"}))
    attempt.app.submission = submission

    send(attempt, "ATTEMPT_ADDED")

    ((asker, request),) = workshop.scheduler.asked
    assert asker == attempt.entity
    assert (request.resource, request.host) == (submission.am_resource, "node7")
    assert (request.priority, request.kind, request.gpu_models) == (0, "AM", submission.gpu_models)


def test_allocated_container_is_the_masters(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]

    send(attempt, "CONTAINER_ALLOCATED")

    assert attempt.master_container == MASTER


def test_master_that_is_not_there_yet_is_fetched_again_half_a_second_later(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    send(attempt, "CONTAINER_ALLOCATED")

    workshop.clock.advance(499)
    assert workshop.posted.told() == []
    workshop.clock.advance(1)

    assert workshop.posted.told() == ["RMAppAttempt CONTAINER_ALLOCATED"]


def test_master_that_is_there_is_not_fetched_again(workshop: Workshop) -> None:
    attempt = workshop.attempt("SCHEDULED")
    workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]

    send(attempt, "CONTAINER_ALLOCATED")

    assert workshop.clock.pending_timers() == 0


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING", "FINISHING", "FINAL_SAVING", "FINISHED", "FAILED", "KILLED"])
def test_end_of_another_container_is_kept_for_the_master(workshop: Workshop, state: str) -> None:
    attempt, status = workshop.attempt(state), ContainerStatus(TASK, 3)

    send(attempt, "CONTAINER_FINISHED", status=status, node=NODE)

    assert attempt.finished_containers == [(NODE, status)]


def test_node_may_forget_the_masters_container_when_it_has_ended(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")

    send(attempt, "CONTAINER_FINISHED")

    pulled = workshop.posted.events[0]
    assert (pulled.entity, pulled.about) == (NODE, (MASTER,))


@pytest.mark.parametrize("state", ["SCHEDULED", "ALLOCATED_SAVING", "ALLOCATED", "LAUNCHED", "RUNNING"])
def test_crash_of_the_master_is_told_with_its_status(workshop: Workshop, state: str) -> None:
    attempt = saving(workshop, state, "CONTAINER_FINISHED")

    send(attempt, "ATTEMPT_UPDATE_SAVED")

    failed = workshop.posted.events[0]
    assert failed.entity == attempt.app.entity
    assert failed.diagnostics == f"the master's container {MASTER} exited with 1: it crashed"
    assert attempt.exit_status == 1


@pytest.mark.parametrize(("state", "event"), [("RUNNING", "KILL"), ("RUNNING", "FAIL"), ("ALLOCATED", "LAUNCH_FAILED")])
def test_reason_for_the_end_reaches_the_application(workshop: Workshop, state: str, event: str) -> None:
    attempt = saving(workshop, state, event, diagnostics="because")

    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert workshop.posted.events[0].diagnostics == "because"


def test_reason_for_a_master_that_registers_too_early_is_told(workshop: Workshop) -> None:
    attempt = saving(workshop, "SUBMITTED", "REGISTERED")

    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert workshop.posted.events[0].diagnostics == "the master registered before it was launched"


def test_progress_is_what_the_master_says_and_whole_when_it_has_ended(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")
    progress = [attempt.progress]

    send(attempt, "STATUS_UPDATE", progress=0.5)
    progress.append(attempt.progress)
    for event in ("UNREGISTERED", "ATTEMPT_UPDATE_SAVED", "CONTAINER_FINISHED"):
        send(attempt, event)
    progress.append(attempt.progress)

    assert progress == [0.0, 0.5, 1.0]
