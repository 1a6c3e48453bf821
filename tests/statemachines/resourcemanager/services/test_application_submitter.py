"""Submissions: how applications begin, and how waiting clients are answered."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from statemachines.resourcemanager import (
    ApplicationRejectedError,
    ApplicationSubmission,
    InvalidResourceRequestError,
    Resource,
)

from ..builders import event_for
from ..inner import ClientRMService, InvalidRequestError, MaximumAllocation
from .desk import TIMEOUT_S, Desk, HandlerThread

SUBMISSION = ApplicationSubmission("wordcount", Resource(1024, 1000), "alice", "root.a")
FIRST = "application_0_0001"


# -- on the handler thread --------------------------------------------------------------------------------------------


def test_submission_begins_an_application(desk: Desk, clients: ClientRMService) -> None:
    ids = [clients.submit_application(SUBMISSION) for _ in range(2)]

    assert ids == [FIRST, "application_0_0002"]
    assert [(app.entity, app.state.name) for app in desk.context.apps.values()] == [(id, "NEW") for id in ids]
    assert desk.posted.news() == ["RMApp START", "RMApp START"]
    start = desk.posted.events[0]
    assert (start.entity, start.payload) == (FIRST, {"name": "wordcount", "user": "alice", "queue": "root.a"})


@pytest.mark.parametrize("unmanaged", [False, True])
def test_master_beyond_the_maximum_allocation_is_refused_unless_it_needs_no_container(
    desk: Desk, clients: ClientRMService, unmanaged: bool
) -> None:
    desk.scheduler.largest = MaximumAllocation(vcores_milli=500)
    submission = SUBMISSION._replace(unmanaged_am=unmanaged)

    if unmanaged:
        clients.submit_application(submission)
    else:
        with pytest.raises(InvalidResourceRequestError, match=r"vCores:1> is larger than .* queue root.a"):
            clients.submit_application(submission)

    assert (len(desk.context.apps), len(desk.posted.events)) == (unmanaged, unmanaged)


@pytest.mark.parametrize("id", ["application_1234_0042", "application_1_1", f"application_{2**63 - 1}_12345"])
def test_id_of_an_earlier_resource_manager_is_taken(desk: Desk, clients: ClientRMService, id: str) -> None:
    """Its client got no answer, and the application was not stored."""
    assert clients.submit_application(SUBMISSION._replace(application_id=id)) == id
    assert clients.get_new_application() == FIRST


@pytest.mark.parametrize(
    "id",
    [
        *("", "application_1", "application_0_x", "appattempt_0_0001_000001", "application_1_0001\n"),
        *(" application_1_0001", "application_1_\u0661", "application_\uff11_0001", "application_1_0001_1"),
        *("application_-1_0001", f"application_{'9' * 5000}_0001"),  # Python refuses to read so long a number
    ],
    ids=ascii,
)
def test_what_is_no_id_is_refused(desk: Desk, clients: ClientRMService, id: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not the id of an application: use one from get_new") as refused:
        clients.submit_application(SUBMISSION._replace(application_id=id))

    assert str(refused.value).startswith(ascii(id)[:13])
    assert (desk.context.apps, desk.posted.events) == ({}, [])


HUGE = 10**5_000  # has more digits than Python writes, and no float


@pytest.mark.parametrize(
    "changes",
    [
        {"am_resource": Resource(HUGE, 1)},
        {"am_resource": Resource(1, HUGE)},
        {"am_resource": Resource(1, 1, gpus=HUGE)},
        {"am_resource": Resource(1, 1, others=(("fpga", 2**63),))},
        {"priority": HUGE},
        {"priority": -(2**31) - 1},
        {"lifetime_s": HUGE},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_numbers_that_no_float_or_store_can_have_are_refused(
    desk: Desk, clients: ClientRMService, changes: dict[str, Any]
) -> None:
    """The first such request made the scheduler or every report fail; a priority ended the resource manager."""
    with pytest.raises(InvalidRequestError):
        clients.submit_application(SUBMISSION._replace(**changes))

    assert desk.context.apps == {}


@pytest.mark.parametrize("lifetime_s", [0, -1])
def test_lifetime_of_nothing_is_refused(desk: Desk, clients: ClientRMService, lifetime_s: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"lifetime_s is {lifetime_s}: it must be at least 1"):
        clients.submit_application(SUBMISSION._replace(lifetime_s=lifetime_s))

    assert (desk.context.apps, desk.posted.events) == ({}, [])


def test_a_huge_number_that_a_client_made_up_uses_up_no_ids(desk: Desk, clients: ClientRMService) -> None:
    """Numbers are Java's int: after the greatest one, no id could be submitted any more."""
    clients.submit_application(SUBMISSION._replace(application_id=f"application_0_{2**31 - 1}"))

    assert clients.get_new_application() == "application_0_0001"


def test_new_ids_pass_over_one_that_a_client_made_up(desk: Desk, clients: ClientRMService) -> None:
    """The next application with that id was taken for a repetition, and never started."""
    clients.get_new_application()
    clients.submit_application(SUBMISSION._replace(application_id="application_0_0002"))

    assert clients.get_new_application() == "application_0_0003"


# -- on other threads -------------------------------------------------------------------------------------------------


class Submitters:
    """Clients on other threads, and a handler thread that does what the test says."""

    def __init__(self, desk: Desk, clients: ClientRMService, handler: HandlerThread) -> None:
        self.desk = desk
        self.clients = clients
        self.handler = handler

    def submit(self, submission: ApplicationSubmission = SUBMISSION) -> Future[str]:
        """On return the application exists."""
        answer = self.clients.submit_application_later(submission)
        self.handler.flush()
        return answer

    def handle(self, *events: str) -> None:
        """Have the first application handle events of these types."""
        app = self.desk.context.apps[FIRST]
        for event in events:
            self.handler.call(lambda event=event: app.handle(event_for(app, event)))


@pytest.fixture
def submitters(desk: Desk, clients: ClientRMService, handler: HandlerThread) -> Submitters:
    return Submitters(desk, clients, handler)


def test_client_is_answered_when_its_application_is_stored(submitters: Submitters) -> None:
    answer = submitters.submit()
    submitters.handle("START")
    before = answer.done()

    submitters.handle("APP_NEW_SAVED")

    assert (before, answer.result(TIMEOUT_S)) == (False, FIRST)


@pytest.mark.parametrize(
    "events",
    [["KILL"], ["START", "KILL", "APP_UPDATE_SAVED"], ["START", "APP_REJECTED", "APP_UPDATE_SAVED"]],
    ids=["killed at once", "killed while it is stored", "rejected while it is stored"],
)
def test_client_of_an_application_that_ends_before_it_is_stored_gets_an_error(
    submitters: Submitters, events: list[str]
) -> None:
    answer = submitters.submit()
    submitters.desk.context.apps[FIRST].diagnostics.append("the queue is full")

    submitters.handle(*events)

    with pytest.raises(ApplicationRejectedError, match=f"{FIRST} was rejected: the queue is full") as raised:
        answer.result(TIMEOUT_S)
    assert (raised.value.application_id, raised.value.diagnostics) == (FIRST, "the queue is full")


def test_repetition_waits_as_the_first_one_does(submitters: Submitters) -> None:
    repeated = SUBMISSION._replace(application_id=FIRST)
    answers = [submitters.submit(repeated), submitters.submit(repeated)]
    submitters.handle("START")
    answers.append(submitters.submit(repeated))
    before = [answer.done() for answer in answers]

    submitters.handle("APP_NEW_SAVED")

    assert (before, [answer.result(TIMEOUT_S) for answer in answers]) == ([False] * 3, [FIRST] * 3)
    assert submitters.desk.posted.news().count("RMApp START") == 1


def test_repetition_waits_for_what_was_submitted_on_the_handler_thread(submitters: Submitters) -> None:
    submitters.handler.call(lambda: submitters.clients.submit_application(SUBMISSION))
    answer = submitters.submit(SUBMISSION._replace(application_id=FIRST))
    before = answer.done()

    submitters.handle("START", "APP_NEW_SAVED")

    assert (before, answer.result(TIMEOUT_S)) == (False, FIRST)


@pytest.mark.parametrize("state", ["SUBMITTED", "RUNNING", "FINAL_SAVING", "FINISHED"])
def test_repetition_of_what_is_stored_is_answered_at_once(submitters: Submitters, state: str) -> None:
    app = submitters.desk.app(state)

    answer = submitters.submit(SUBMISSION._replace(application_id=app.entity))

    assert answer.result(TIMEOUT_S) == app.entity


def test_client_waits_at_most_for_its_timeout(submitters: Submitters) -> None:
    submission = SUBMISSION._replace(application_id=FIRST)
    patient = submitters.submit(submission)

    with pytest.raises(TimeoutError, match=r"^submit_application: .* within 0 s; .*: submit it again with the same id"):
        submitters.clients.submit_application(submission, timeout=0)
    submitters.handle("START", "APP_NEW_SAVED")

    assert patient.result(TIMEOUT_S) == FIRST


def test_client_waits_at_most_for_its_timeout_while_the_handler_thread_is_busy(submitters: Submitters) -> None:
    with (
        submitters.handler.held(),
        pytest.raises(TimeoutError, match=r"within 0\.001 s; nothing was done: look for it among the applications"),
    ):
        submitters.clients.submit_application(SUBMISSION, timeout=0.001)
    submitters.handler.flush()

    assert not submitters.desk.context.apps


@pytest.mark.parametrize(
    ("before", "after"),
    [(["KILL"], []), (["START", "APP_SAVE_FAILED"], []), (["START", "KILL"], ["APP_UPDATE_SAVED"])],
    ids=["killed at once", "not stored", "its end is being stored"],
)
def test_repetition_of_what_the_store_does_not_have_is_told_so(
    submitters: Submitters, before: list[str], after: list[str]
) -> None:
    """It was acknowledged, and after a restart the application did not exist."""
    first = submitters.submit()
    submitters.desk.context.apps[FIRST].diagnostics.append("the disk is full")
    submitters.handle(*before)

    second = submitters.submit(SUBMISSION._replace(application_id=FIRST))
    submitters.handle(*after)

    for answer in (first, second):
        with pytest.raises(ApplicationRejectedError, match="was rejected: the disk is full"):
            answer.result(TIMEOUT_S)


def test_submission_that_fails_fails_its_client_only(submitters: Submitters, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(event: object) -> bool:
        raise OSError("no room")

    monkeypatch.setattr(submitters.desk.context, "post", full)

    with pytest.raises(OSError, match="no room"):
        submitters.clients.submit_application(SUBMISSION, TIMEOUT_S)
    submitters.handler.flush()
