"""RMApp from its submission to its end: what it posts, stores and keeps."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, RMApp

from ....kit.scenarios import play
from ..builders import NODE, Workshop, send
from .stage import MachineStage

FIRST, SECOND = "appattempt_0_0001_000001", "appattempt_0_0001_000002"
APP = "application_0_0001"

SCENARIOS = {
    "the scheduler is told of the application as a new one": (
        f"app NEW_SAVING | APP_NEW_SAVED -> APP_ADDED.entity {APP} ; APP_ADDED.is_recovering False"
    ),
    "the first attempt takes nothing over": (
        f"app SUBMITTED | APP_ACCEPTED -> START.entity {FIRST} ; START.transfer_state False"
        f"; entity.current_attempt.entity {FIRST}"
    ),
    "a launch is stored without an answer": (
        "app ACCEPTED | +7 | ATTEMPT_LAUNCHED -> UPDATE_APP.state.launch_ms 7 ; UPDATE_APP.state.state None"
        "; UPDATE_APP.notify False"
    ),
    "the first launch and the first end set their times": (
        "app ACCEPTED | +10 | ATTEMPT_LAUNCHED | +10 | ATTEMPT_LAUNCHED | +10 | ATTEMPT_REGISTERED | +10"
        "| ATTEMPT_UNREGISTERED | +10 | APP_UPDATE_SAVED | +10 | ATTEMPT_FINISHED"
        "-> entity.start_ms 0 ; entity.launch_ms 10 ; entity.finish_ms 40"
    ),
    "an application that is killed before it is stored notes the time": "app NEW | +10 | KILL -> entity.finish_ms 10",
    "an application whose master just ends notes the time": (
        "app RUNNING | +10 | ATTEMPT_FINISHED -> entity.finish_ms 10"
    ),
    "a kill of an accepted application goes to the current attempt with its reason": (
        f"app ACCEPTED attempts=2 | KILL diagnostics=by_its_user -> KILL.entity {SECOND} ; KILL.diagnostics by_its_user"
    ),
    "a kill of a running application goes to the current attempt with its reason": (
        f"app RUNNING attempts=2 | KILL diagnostics=by_its_user -> KILL.entity {SECOND} ; KILL.diagnostics by_its_user"
    ),
    "an application that unregistered finishes if its attempt ends before the store answers": (
        "app RUNNING | ATTEMPT_UNREGISTERED | ATTEMPT_FINISHED -> posted"
        "| APP_UPDATE_SAVED -> state FINISHED ; posted APP_REMOVED APP_COMPLETED"
    ),
    "an application that unregistered finishes if the store answers before its attempt ends": (
        "app RUNNING | ATTEMPT_UNREGISTERED | APP_UPDATE_SAVED -> posted"
        "| ATTEMPT_FINISHED -> state FINISHED ; posted APP_REMOVED APP_COMPLETED"
    ),
    "an attempt that finishes late does not change that the application was killed": (
        "app SUBMITTED | KILL | ATTEMPT_FINISHED | APP_UPDATE_SAVED -> state KILLED"
    ),
    "an attempt that finishes late does not change that the application was rejected": (
        "app SUBMITTED | APP_REJECTED | ATTEMPT_FINISHED | APP_UPDATE_SAVED -> state FAILED"
    ),
    # A master's diagnostics arrive when it unregisters, and again when its attempt ends.
    "the diagnostics of the end are stored and kept once": (
        "app RUNNING | ATTEMPT_UNREGISTERED diagnostics=all_done -> UPDATE_APP.state.diagnostics all_done"
        "| APP_UPDATE_SAVED diagnostics=all_done | ATTEMPT_FINISHED diagnostics=all_done -> entity.diagnostics all_done"
    ),
    "the reason for a rejection is kept": (
        "app NEW | APP_REJECTED diagnostics=because | APP_UPDATE_SAVED diagnostics=stored -> state FAILED"
        "; entity.diagnostics because"
    ),
    "the reason for a failure to store is kept": (
        "app NEW_SAVING | APP_SAVE_FAILED diagnostics=because -> state FAILED ; entity.diagnostics because"
    ),
    "the reason for a kill is kept": (
        "app SUBMITTED | KILL diagnostics=because | APP_UPDATE_SAVED diagnostics=stored -> state KILLED"
        "; entity.diagnostics because"
    ),
    "an end that is not stored is not reported": (
        "app RUNNING | KILL -> entity.reported_state RUNNING | ATTEMPT_KILLED -> entity.reported_state RUNNING"
        "| APP_UPDATE_SAVED -> entity.reported_state KILLED"
    ),
    **{
        f"a node that the application uses while {state} is noted": (
            f"app {state} | APP_RUNNING_ON_NODE -> entity.nodes {NODE}"
        )
        for state in ("ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING")
    },
    **{
        f"a node that is used once the application is {state} is cleaned up": (
            f"app {state} | APP_RUNNING_ON_NODE -> entity.nodes ; CLEANUP_APP.entity {NODE} ; CLEANUP_APP.about {APP}"
        )
        for state in ("FINISHED", "FAILED", "KILLED")
    },
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_application(script: str) -> None:
    play(MachineStage(), script)


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


def test_nodes_are_cleaned_up_in_order_of_their_names(workshop: Workshop) -> None:
    app = workshop.app("FINISHING")
    app.nodes.update(("node2:45454", "node1:45454"))

    send(app, "ATTEMPT_FINISHED")

    clean_ups = [event for event in workshop.posted.events if event.type.name == "CLEANUP_APP"]
    assert [(event.entity, event.about) for event in clean_ups] == [
        ("node1:45454", app.entity),
        ("node2:45454", app.entity),
    ]


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
