"""Every arc of RMApp: where it leads, and what it posts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import RMApp, RMAppState

from ..builders import Case, Workshop, case_id, causes_of_final_saving, declared, send, targets
from ..inner import EXIT_ABORTED, ApplicationAttemptStateData, RecoveredApplication

NODES = ("node1:45454", "node2:45454")
CLEAN_UP = ("RMNode CLEANUP_APP", "RMNode CLEANUP_APP")  # the application ran on two
COMPLETED = ("RMAppManager APP_COMPLETED",)
FINISH = ("Scheduler APP_REMOVED", *COMPLETED)
SAVE = ("RMStateStore UPDATE_APP",)
RETRY = ("RMAppAttempt START",)
KILL = ("RMAppAttempt KILL",)
ONE, TWO, ABORTED = "one attempt of two", "two attempts of two", "two attempts of two, one aborted"
ON_NODES = "ran on two nodes"
LAUNCHED_BEFORE = "launched before"
_IGNORED = {
    "FINAL_SAVING": "NODE_UPDATE KILL APP_NEW_SAVED APP_ACCEPTED APP_REJECTED APP_SAVE_FAILED ATTEMPT_LAUNCHED",
    "FINISHING": "NODE_UPDATE KILL",
    "KILLING": "NODE_UPDATE ATTEMPT_REGISTERED ATTEMPT_LAUNCHED APP_UPDATE_SAVED KILL",
    "FINISHED": "NODE_UPDATE ATTEMPT_UNREGISTERED ATTEMPT_FINISHED KILL",
    "FAILED": "KILL NODE_UPDATE",
    "KILLED": "APP_ACCEPTED APP_REJECTED KILL ATTEMPT_FINISHED ATTEMPT_FAILED NODE_UPDATE START",
}
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
CASES = [
    *(Case(state, "NODE_UPDATE", state) for state in ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")),
    Case("NEW", "START", "NEW_SAVING", ("RMStateStore STORE_APP",)),
    Case("NEW", "RECOVER", "SUBMITTED", (), "stored: no attempt"),
    Case("NEW", "RECOVER", "ACCEPTED", ("RMApp ATTEMPT_LAUNCHED",), "stored: an attempt"),
    Case("NEW", "RECOVER", "FINISHED", COMPLETED, "stored: FINISHED"),
    Case("NEW", "RECOVER", "FAILED", COMPLETED, "stored: FAILED"),
    Case("NEW", "RECOVER", "KILLED", COMPLETED, "stored: KILLED"),
    Case("NEW", "KILL", "KILLED", FINISH),
    Case("NEW_SAVING", "APP_NEW_SAVED", "SUBMITTED", ("Scheduler APP_ADDED",)),
    Case("NEW_SAVING", "APP_SAVE_FAILED", "FAILED", FINISH),
    Case("SUBMITTED", "APP_ACCEPTED", "ACCEPTED", RETRY),
    Case("ACCEPTED", "ATTEMPT_REGISTERED", "RUNNING"),
    Case("ACCEPTED", "ATTEMPT_FAILED", "ACCEPTED", RETRY, ONE),
    Case("ACCEPTED", "ATTEMPT_FAILED", "ACCEPTED", RETRY, ABORTED),
    Case("ACCEPTED", "KILL", "KILLING", KILL),
    Case("ACCEPTED", "APP_RUNNING_ON_NODE", "ACCEPTED"),
    Case("ACCEPTED", "ATTEMPT_LAUNCHED", "ACCEPTED", SAVE),
    Case("ACCEPTED", "ATTEMPT_LAUNCHED", "ACCEPTED", (), LAUNCHED_BEFORE),
    Case("RUNNING", "ATTEMPT_FINISHED", "FINISHED", (*CLEAN_UP, *FINISH), ON_NODES),
    Case("RUNNING", "APP_RUNNING_ON_NODE", "RUNNING"),
    Case("RUNNING", "ATTEMPT_FAILED", "ACCEPTED", RETRY, ONE),
    Case("RUNNING", "ATTEMPT_FAILED", "ACCEPTED", RETRY, ABORTED),
    Case("RUNNING", "KILL", "KILLING", KILL),
    *(Case(*pair, "FINAL_SAVING", SAVE, TWO) for pair in OUTCOMES),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FINISHING", (), "after RUNNING ATTEMPT_UNREGISTERED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FINISHED", FINISH, "after ACCEPTED ATTEMPT_FINISHED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "FAILED", FINISH, "after SUBMITTED APP_REJECTED"),
    Case("FINAL_SAVING", "APP_UPDATE_SAVED", "KILLED", FINISH, "after SUBMITTED KILL"),
    Case("FINAL_SAVING", "ATTEMPT_FINISHED", "FINAL_SAVING"),
    Case("FINAL_SAVING", "ATTEMPT_FINISHED", "FINAL_SAVING", (), "after RUNNING ATTEMPT_UNREGISTERED"),
    Case("FINAL_SAVING", "APP_RUNNING_ON_NODE", "FINAL_SAVING"),
    Case("FINISHING", "ATTEMPT_FINISHED", "FINISHED", (*CLEAN_UP, *FINISH), ON_NODES),
    Case("FINISHING", "APP_RUNNING_ON_NODE", "FINISHING"),
    Case("KILLING", "APP_RUNNING_ON_NODE", "KILLING"),
    Case("KILLING", "ATTEMPT_FINISHED", "FINISHED", (*CLEAN_UP, *FINISH), ON_NODES),
    Case("KILLING", "ATTEMPT_FAILED", "FINAL_SAVING", SAVE, ONE),
    *(Case(state, "APP_RUNNING_ON_NODE", state, CLEAN_UP[:1]) for state in ("FINISHED", "FAILED", "KILLED")),
    *(Case(state, event, state) for state, events in _IGNORED.items() for event in events.split()),
]
UNREACHABLE = {("NEW", "RECOVER"): {"FINAL_SAVING"}}  # YARN declares it; no path through its hook returns it


def saving(workshop: Workshop, state: str, event: str, **more: Any) -> RMApp:
    """An application that `event` in `state` has brought to FINAL_SAVING, with no other events posted."""
    app = workshop.app(state)
    send(app, event, **more)
    assert app.state is RMAppState.FINAL_SAVING
    workshop.posted.events.clear()
    return app


def _two_attempts_one_aborted(workshop: Workshop, state: str) -> RMApp:
    app = workshop.app(state, attempts=2)
    app.attempts[0].exit_status = EXIT_ABORTED
    return app


def _ran_on_nodes(workshop: Workshop, state: str) -> RMApp:
    app = workshop.app(state)
    app.nodes.update(reversed(NODES))
    return app


def _launched_before(workshop: Workshop, state: str) -> RMApp:
    app = workshop.app(state)
    app.launch_ms = 0
    return app


GIVEN: dict[str, Callable[[Workshop, str], RMApp]] = {
    "": lambda workshop, state: workshop.app(state),
    ONE: lambda workshop, state: workshop.app(state, attempts=1),
    TWO: lambda workshop, state: workshop.app(state, attempts=2),
    ABORTED: _two_attempts_one_aborted,
    ON_NODES: _ran_on_nodes,
    LAUNCHED_BEFORE: _launched_before,
}


def _given(workshop: Workshop, case: Case) -> tuple[RMApp, dict[str, Any]]:
    """The application, and the event's attributes that are not the usual ones."""
    if case.given.startswith("after "):
        return saving(workshop, *case.given.removeprefix("after ").split()), {}
    if case.given.startswith("stored: "):
        app, stored = workshop.app(), case.given.removeprefix("stored: ")
        recovered = RecoveredApplication(app.record())
        if stored == "an attempt":
            recovered.attempts["appattempt_0_0001_000001"] = ApplicationAttemptStateData(
                "appattempt_0_0001_000001", None, start_ms=0
            )
        elif stored != "no attempt":
            recovered.data = recovered.data._replace(state=stored)
        return app, {"state": recovered}
    return GIVEN[case.given](workshop, case.state), {}


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    app, more = _given(workshop, case)

    send(app, case.event, **more)

    assert (app.state.name, workshop.recorder.machines["RMApp"].invalid) == (case.to, 0)
    assert workshop.posted.news() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case_for_each_state_that_they_can_reach() -> None:
    reached = {pair: to | UNREACHABLE.get(pair, set()) for pair, to in targets(CASES).items()}

    assert reached == declared("RMApp")
    assert all(not states & targets(CASES)[pair] for pair, states in UNREACHABLE.items())


@pytest.mark.parametrize(("state", "event"), OUTCOMES)
def test_final_state_is_stored_and_then_taken(workshop: Workshop, state: str, event: str) -> None:
    """For an attempt that unregistered, FINISHING was stored, which is not a final state."""
    app, outcome = workshop.app(state, attempts=2), OUTCOMES[state, event]
    send(app, event)
    (update,) = workshop.posted.events
    workshop.posted.events.clear()

    send(app, "APP_UPDATE_SAVED")

    assert (update.entity, update.state.state, update.notify) == (app.entity, outcome.replace("ING", "ED"), True)
    assert (app.state.name, app.pending) == (outcome, None)
    assert workshop.posted.news() == ([] if outcome == "FINISHING" else list(FINISH))


def test_all_arcs_that_store_a_final_state_have_an_outcome() -> None:
    assert set(OUTCOMES) == {pair for pair in causes_of_final_saving("RMApp") if pair not in UNREACHABLE}
