"""What clients are told about why applications wait: by the application's state, and for each of its requests."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import Resource

from ..builders import MASTER, NODE
from ..inner import ClientRMService, WaitCause, WaitingAsk, WaitReason
from .desk import Desk

ASKS = [
    WaitingAsk(Resource(1, 1), 3, 0, "", (), 5, WaitReason(WaitCause.NO_ROOM, "no node has 1 MB free")),
    WaitingAsk(Resource(2, 1), 1, 1, "", ("n1",), 7, WaitReason(WaitCause.NEVER_FITS, "no node could ever take it")),
]


def sentence(clients: ClientRMService, app: Any) -> str | None:
    (report,) = clients.get_waiting([app.entity])
    assert report.application_id == app.entity
    return report.sentence


@pytest.mark.parametrize("state", ["ACCEPTED", "RUNNING"])
def test_first_ask_speaks_for_the_application(desk: Desk, clients: ClientRMService, state: str) -> None:
    app = desk.app(state)
    desk.desk_scheduler.waits[app.attempts[0].entity] = ASKS
    desk.clock.advance(9)

    (report,) = clients.get_waiting([app.entity])

    assert (report.sentence, report.asks, report.as_of_ms) == ("no node has 1 MB free", tuple(ASKS), 9)


SENTENCES = {
    **dict.fromkeys(("RUNNING", "FINISHED", "FAILED", "KILLED", "KILLING", "FINISHING"), None),
    **dict.fromkeys(("NEW", "NEW_SAVING"), "its submission is being stored"),
}
OF_ATTEMPTS = {
    **dict.fromkeys(
        ("ALLOCATED", "LAUNCHED"), f"its master has container {MASTER} on node {NODE} and has not registered yet"
    ),
    # It was said to wait for the scheduler, which had taken it long before.
    **dict.fromkeys(("FINAL_SAVING", "LAUNCHED_UNMANAGED_SAVING"), "the state of its attempt is being stored"),
}


@pytest.mark.parametrize(
    ("machine", "state", "said"),
    [
        *(("RMApp", *row) for row in SENTENCES.items()),
        *(("RMAppAttempt", *row) for row in OF_ATTEMPTS.items()),
    ],
)
def test_without_asks_the_state_says_why_it_waits(
    desk: Desk, clients: ClientRMService, machine: str, state: str, said: str | None
) -> None:
    made = desk.make(machine, state)

    assert sentence(clients, made if machine == "RMApp" else made.app) == said


def test_stopped_queue_is_named_until_the_scheduler_refuses(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("SUBMITTED")
    desk.scheduler.queue = None
    stopped = "queue root.a is stopped and does not accept new applications"
    desk.desk_scheduler.why_refused = stopped

    (closed,) = clients.get_waiting([app.entity])
    desk.desk_scheduler.why_refused = None
    open_ = sentence(clients, app)

    assert closed.reason is not None
    assert (closed.sentence, closed.reason.cause) == (stopped, WaitCause.QUEUE_CLOSED)
    assert open_ == "the scheduler has not taken it yet"


def test_queue_that_the_application_fills_itself_is_no_reason(desk: Desk, clients: ClientRMService) -> None:
    app = desk.app("SUBMITTED")
    desk.scheduler.queue = "root.a"
    desk.desk_scheduler.why_refused = "queue root.a already has 1 application, its maximum"

    assert sentence(clients, app) == "the scheduler has not taken it yet"


def test_answers_keep_the_order_and_leave_out_unknown_ones(desk: Desk, clients: ClientRMService) -> None:
    first, second = desk.app("RUNNING"), desk.app("NEW")

    reports = clients.get_waiting_later([second.entity, "application_0_0099", first.entity]).result(10)

    assert [report.application_id for report in reports] == [second.entity, first.entity]
