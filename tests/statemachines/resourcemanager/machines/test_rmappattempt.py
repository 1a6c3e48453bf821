"""Every arc of RMAppAttempt: where it leads, and what it posts."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import ContainerStatus, RMAppAttempt

from ..builders import MASTER, TASK, Case, Workshop, case_id, causes_of_final_saving, declared, send, targets
from ..inner import ApplicationAttemptStateData

SAVE = ("RMStateStore UPDATE_APP_ATTEMPT",)
STORE = ("RMStateStore STORE_APP_ATTEMPT",)
PULLED = ("RMNode FINISHED_CONTAINERS_PULLED_BY_AM",)
CLEANUP = ("AMLauncher CLEANUP",)
LAUNCHED, REGISTERED = ("RMApp ATTEMPT_LAUNCHED",), ("RMApp ATTEMPT_REGISTERED",)
FINISHED = ("RMApp ATTEMPT_FINISHED", "Scheduler APP_ATTEMPT_REMOVED")
FAILED = ("RMApp ATTEMPT_FAILED", "Scheduler APP_ATTEMPT_REMOVED")
KILLED = ("RMApp ATTEMPT_KILLED", "Scheduler APP_ATTEMPT_REMOVED")
ANOTHERS, UNMANAGED, NO_QUEUE, UNREGISTERED = "another container", "unmanaged", "no such queue", "unregistered"
ALLOCATED, NODE_GONE = "allocated", "allocated on a node that is gone"

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
    ("LAUNCHED_UNMANAGED_SAVING", "KILL"): ("KILLED", KILLED),
    ("LAUNCHED_UNMANAGED_SAVING", "FAIL"): ("FAILED", FAILED),
    ("LAUNCHED_UNMANAGED_SAVING", "REGISTERED"): ("FAILED", FAILED),
    ("ALLOCATED", "LAUNCH_FAILED"): ("FAILED", FAILED),
    ("ALLOCATED", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("ALLOCATED", "FAIL"): ("FAILED", FAILED),
    ("ALLOCATED", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("LAUNCHED", "CONTAINER_FINISHED"): ("FAILED", FAILED),
    ("LAUNCHED", "EXPIRE"): ("FAILED", FAILED + CLEANUP),
    ("LAUNCHED", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("LAUNCHED", "FAIL"): ("FAILED", FAILED + CLEANUP),
    ("RUNNING", "UNREGISTERED"): ("FINISHING", ()),
    ("RUNNING", "CONTAINER_FINISHED"): ("FAILED", FAILED + CLEANUP),
    ("RUNNING", "EXPIRE"): ("FAILED", FAILED + CLEANUP),
    ("RUNNING", "KILL"): ("KILLED", KILLED + CLEANUP),
    ("RUNNING", "FAIL"): ("FAILED", FAILED + CLEANUP),
}
_ALSO_POSTED = {  # by an arc to FINAL_SAVING, beside what it stores
    ("LAUNCHED", "CONTAINER_FINISHED"): (*PULLED, *SAVE),
    ("RUNNING", "CONTAINER_FINISHED"): (*PULLED, *SAVE),
    ("RUNNING", "UNREGISTERED"): (*SAVE, "RMApp ATTEMPT_UNREGISTERED"),
}
_IGNORED = {
    "RUNNING": "LAUNCHED REGISTERED CONTAINER_ALLOCATED",
    "FINAL_SAVING": "UNREGISTERED STATUS_UPDATE LAUNCHED LAUNCH_FAILED CONTAINER_ALLOCATED ATTEMPT_NEW_SAVED KILL FAIL "
    "ATTEMPT_ADDED REGISTERED",
    "FINISHING": "LAUNCHED UNREGISTERED STATUS_UPDATE CONTAINER_ALLOCATED KILL FAIL",
    "FINISHED": "LAUNCHED EXPIRE UNREGISTERED CONTAINER_ALLOCATED KILL FAIL",
    "FAILED": "LAUNCHED LAUNCH_FAILED EXPIRE KILL FAIL REGISTERED UNREGISTERED STATUS_UPDATE CONTAINER_ALLOCATED "
    "ATTEMPT_ADDED",
    "KILLED": "ATTEMPT_ADDED LAUNCHED LAUNCH_FAILED EXPIRE REGISTERED CONTAINER_ALLOCATED UNREGISTERED KILL FAIL "
    "STATUS_UPDATE",
}
CASES = [
    Case("NEW", "START", "SUBMITTED", ("Scheduler APP_ATTEMPT_ADDED",)),
    Case("NEW", "RECOVER", "LAUNCHED", LAUNCHED, "stored: no end"),
    Case("NEW", "RECOVER", "FINISHED", FINISHED, "stored: FINISHED"),
    Case("NEW", "RECOVER", "FAILED", FAILED, "stored: FAILED"),
    Case("NEW", "RECOVER", "KILLED", KILLED, "stored: KILLED"),
    Case("SUBMITTED", "ATTEMPT_ADDED", "SCHEDULED"),
    Case("SUBMITTED", "ATTEMPT_ADDED", "SCHEDULED", ("RMAppAttempt FAIL",), NO_QUEUE),
    Case("SUBMITTED", "ATTEMPT_ADDED", "LAUNCHED_UNMANAGED_SAVING", STORE, UNMANAGED),
    Case("SCHEDULED", "CONTAINER_ALLOCATED", "ALLOCATED_SAVING", STORE, ALLOCATED),
    Case("SCHEDULED", "CONTAINER_ALLOCATED", "SCHEDULED", (), "nothing allocated"),
    Case("SCHEDULED", "CONTAINER_ALLOCATED", "SCHEDULED", (), NODE_GONE),
    Case("ALLOCATED_SAVING", "ATTEMPT_NEW_SAVED", "ALLOCATED", ("AMLauncher LAUNCH",)),
    Case("LAUNCHED_UNMANAGED_SAVING", "ATTEMPT_NEW_SAVED", "LAUNCHED", LAUNCHED),
    Case("ALLOCATED", "LAUNCHED", "LAUNCHED", LAUNCHED),
    Case("ALLOCATED", "REGISTERED", "RUNNING", LAUNCHED + REGISTERED),
    Case("LAUNCHED", "REGISTERED", "RUNNING", REGISTERED),
    Case("LAUNCHED", "CONTAINER_FINISHED", "LAUNCHED", (), ANOTHERS),
    Case("RUNNING", "CONTAINER_FINISHED", "RUNNING", (), ANOTHERS),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING"),
    Case("RUNNING", "STATUS_UPDATE", "RUNNING", SAVE, "elsewhere"),
    *(Case(*pair, "FINAL_SAVING", _ALSO_POSTED.get(pair, SAVE)) for pair in OUTCOMES),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "KILLED", KILLED, "after SUBMITTED KILL"),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "FAILED", FAILED, "after SUBMITTED FAIL"),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "FINISHING", (), UNREGISTERED),
    Case("FINAL_SAVING", "ATTEMPT_UPDATE_SAVED", "FINISHED", FINISHED, f"{UNMANAGED}, {UNREGISTERED}"),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", PULLED),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", PULLED, UNREGISTERED),
    Case("FINAL_SAVING", "CONTAINER_FINISHED", "FINAL_SAVING", (), ANOTHERS),
    Case("FINAL_SAVING", "EXPIRE", "FINAL_SAVING"),
    Case("FINAL_SAVING", "EXPIRE", "FINAL_SAVING", (), UNREGISTERED),
    Case("FINISHING", "CONTAINER_FINISHED", "FINISHED", FINISHED + CLEANUP + PULLED),
    Case("FINISHING", "CONTAINER_FINISHED", "FINISHING", (), ANOTHERS),
    Case("FINISHING", "EXPIRE", "FINISHED", FINISHED + CLEANUP),
    *(Case(state, "CONTAINER_FINISHED", state) for state in ("FINISHED", "FAILED", "KILLED")),
    *(Case(state, event, state) for state, events in _IGNORED.items() for event in events.split()),
]


def saving(workshop: Workshop, state: str, event: str, **submitted: Any) -> RMAppAttempt:
    """An attempt that `event` in `state` has brought to FINAL_SAVING, with no other events posted."""
    attempt = workshop.attempt(state, **submitted)
    send(attempt, event)
    assert attempt.state.name == "FINAL_SAVING"
    workshop.posted.events.clear()
    return attempt


def _given(workshop: Workshop, case: Case) -> tuple[RMAppAttempt, dict[str, Any]]:
    """The attempt, and the event's attributes that are not the usual ones."""
    given = case.given
    if given.endswith(UNREGISTERED):
        return saving(workshop, "RUNNING", "UNREGISTERED", unmanaged_am=given.startswith(UNMANAGED)), {}
    if given.startswith("after "):
        return saving(workshop, *given.removeprefix("after ").split()), {}
    attempt, more = workshop.attempt(case.state, unmanaged_am=given == UNMANAGED), {}
    if given.startswith("stored: "):
        end = given.removeprefix("stored: ")
        more["state"] = ApplicationAttemptStateData(attempt.entity, None, 0, None if end == "no end" else end)
    elif given in (ALLOCATED, NODE_GONE):
        workshop.scheduler.allocated = [workshop.container("ALLOCATED", MASTER)]
        if given == ALLOCATED:
            workshop.node("RUNNING")
    elif given == NO_QUEUE:
        workshop.scheduler.queue = None
    elif given == ANOTHERS:
        more["status"] = ContainerStatus(TASK, 0)
    elif given == "elsewhere":
        more["tracking_url"] = "http://node1:8080/"
    workshop.posted.events.clear()
    return attempt, more


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    attempt, more = _given(workshop, case)

    send(attempt, case.event, **more)

    assert (attempt.state.name, workshop.recorder.machines["RMAppAttempt"].invalid) == (case.to, 0)
    assert workshop.posted.news() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case_for_each_state() -> None:
    assert targets(CASES) == declared("RMAppAttempt")


@pytest.mark.parametrize(("state", "event"), OUTCOMES)
def test_final_state_is_stored_and_then_taken(workshop: Workshop, state: str, event: str) -> None:
    """For a master that unregistered, FINISHING was stored, which is not a final state."""
    outcome, posts = OUTCOMES[state, event]
    attempt = workshop.attempt(state)
    send(attempt, event)
    (stored,) = [posted for posted in workshop.posted.events if posted.type.name == "UPDATE_APP_ATTEMPT"]
    workshop.posted.events.clear()

    send(attempt, "ATTEMPT_UPDATE_SAVED")

    assert (stored.entity, stored.state.state, stored.notify) == (attempt.entity, outcome.replace("ING", "ED"), True)
    assert (attempt.state.name, attempt.pending) == (outcome, None)
    assert workshop.posted.news() == list(posts)


def test_all_arcs_that_store_a_final_state_have_an_outcome() -> None:
    assert set(OUTCOMES) == causes_of_final_saving("RMAppAttempt")
