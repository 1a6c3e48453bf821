"""Callers of the services: what they may do, what they are told otherwise, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import (
    AccessDeniedError,
    ApplicationNotFoundError,
    ApplicationSubmission,
    Caller,
    LaunchContext,
    Resource,
    ResourceManagerConfig,
)

from ..builders import NODE
from ..inner import SIGNALS, AdminService, ClientRMService, InvalidRequestError, NodesListManager, QueueACLs
from .desk import TIMEOUT_S, Desk, HandlerThread

OWNER, FRIEND, QUEUE_ADMIN = Caller("ann"), Caller("carl", frozenset({"friends"})), Caller("quinn")
ADMIN, STRANGER = Caller("root", is_admin=True), Caller("eve")
SUBMISSION = ApplicationSubmission("job", Resource(1024, 1000), "mallory", "a")

Change = Callable[[ClientRMService, str, Caller | None], Any]
CHANGES: dict[str, Change] = {
    "kill": lambda clients, app, caller: clients.force_kill_application(app, caller=caller),
    "fail": lambda clients, app, caller: clients.fail_application_attempt(
        app.replace("application", "appattempt") + "_000001", caller=caller
    ),
    "move": lambda clients, app, caller: clients.move_application_across_queues(app, "root.b", caller=caller),
    "priority": lambda clients, app, caller: clients.update_application_priority(app, 7, caller=caller),
    "lifetime": lambda clients, app, caller: clients.update_application_timeouts(app, 60, caller=caller),
    "signal": lambda clients, app, caller: clients.signal_to_container(
        app.replace("application", "container") + "_01_000002", SIGNALS[0], caller=caller
    ),
}


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    config = {
        "web": {"tokens_file": Path("tokens")},
        "scheduler": {
            "kind": "capacity",
            "queues": [
                {"name": "a", "capacity": 50, "acl_administer_queue": "quinn"},
                {"name": "b", "capacity": 50, "acl_submit_applications": "ann,carl,quinn"},
                {"name": "c", "capacity": 0, "acl_submit_applications": " "},
            ],
        },
    }
    desk.context.acls = QueueACLs(ResourceManagerConfig.model_validate(config))
    return desk


@pytest.fixture
def app_id(desk: Desk) -> str:
    """Ann's application, which carl's group may modify, with a live container."""
    app = desk.app("RUNNING", user="ann", queue="a", launch=LaunchContext(acls={"MODIFY_APP": " friends"}))
    desk.live(app.attempts[0].entity, 2)
    return app.entity


# -- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("caller", [OWNER, FRIEND, QUEUE_ADMIN, ADMIN, None])
def test_owner_friends_and_administrators_change_an_application(
    clients: ClientRMService, app_id: str, change: Change, caller: Caller | None
) -> None:
    change(clients, app_id, caller)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_strangers_change_nothing(desk: Desk, clients: ClientRMService, app_id: str, change: Change) -> None:
    submission = desk.context.apps[app_id].submission

    with pytest.raises(AccessDeniedError, match=f"User eve cannot perform operation MODIFY_APP on {app_id}"):
        change(clients, app_id, STRANGER)

    assert (desk.posted.events, desk.desk_scheduler.moved, desk.desk_scheduler.priorities) == ([], [], [])
    assert desk.context.apps[app_id].submission is submission


@pytest.mark.parametrize("change", ["kill", "priority", "lifetime"])
def test_that_an_application_has_ended_is_not_told_to_strangers_either(
    desk: Desk, clients: ClientRMService, change: str
) -> None:
    with pytest.raises(AccessDeniedError):
        CHANGES[change](clients, desk.app("FINISHED", user="ann", queue="a").entity, STRANGER)


def test_move_needs_the_right_to_submit_to_the_target(desk: Desk, clients: ClientRMService, app_id: str) -> None:
    refusal = r"User quinn cannot submit applications to target queue or the target queue doesn't exist: root\.c while"

    with pytest.raises(AccessDeniedError, match=refusal):
        clients.move_application_across_queues(app_id, "root.c", caller=QUEUE_ADMIN)

    assert desk.desk_scheduler.moved == []


# -- submissions ------------------------------------------------------------------------------------------------------


def test_submission_is_its_caller_s(desk: Desk, clients: ClientRMService) -> None:
    ids = clients.submit_application(SUBMISSION, caller=OWNER), clients.submit_application(SUBMISSION)

    assert [desk.context.apps[id].submission.user for id in ids] == ["ann", "mallory"]


@pytest.mark.parametrize("id", [None, "application_0_0042"])
def test_queue_refuses_those_who_may_not_submit_to_it(desk: Desk, clients: ClientRMService, id: str | None) -> None:
    shown = id or "application_0_0001"

    with pytest.raises(AccessDeniedError, match=f"User eve does not have permission to submit {shown} to queue root.b"):
        clients.submit_application(SUBMISSION._replace(queue="root.b", application_id=id), caller=STRANGER)

    assert (desk.context.apps, desk.posted.events) == ({}, [])


def test_repeated_submission_is_answered_though_its_queue_is_full_now(desk: Desk, clients: ClientRMService) -> None:
    app_id = clients.submit_application(SUBMISSION, caller=OWNER)
    desk.desk_scheduler.why_refused = "queue root.a already has 1 application, its maximum"

    assert clients.submit_application(SUBMISSION._replace(application_id=app_id), caller=OWNER) == app_id


def test_refusals_are_in_the_future(desk: Desk, clients: ClientRMService, handler: HandlerThread) -> None:
    answers = [
        clients.submit_application_later(SUBMISSION._replace(queue="b"), caller=STRANGER),
        clients.submit_application_later(SUBMISSION._replace(tags=("é",)), caller=OWNER),
        clients.submit_application_later(SUBMISSION._replace(application_id="x"), caller=OWNER),
        clients.force_kill_application_later("application_0_0009", caller=OWNER),
    ]

    errors = [answer.exception(TIMEOUT_S) for answer in answers]

    assert [type(error) for error in errors] == [
        AccessDeniedError,
        InvalidRequestError,
        InvalidRequestError,
        ApplicationNotFoundError,
    ]
    assert (desk.context.apps, desk.posted.events) == ({}, [])


def test_tags_and_type_are_kept_as_yarn_keeps_them(desk: Desk, clients: ClientRMService) -> None:
    tags = ("Nightly", "nightly ", "x" * 100, *(f"t{number}" for number in range(8)))
    app_id = clients.submit_application(SUBMISSION._replace(tags=tags, application_type="T" * 30))
    plain = clients.submit_application(SUBMISSION._replace(application_type=""))

    kept = desk.context.apps[app_id].submission
    assert (kept.tags[:3], kept.application_type) == (("nightly", "x" * 100, "t0"), "T" * 20)
    assert desk.context.apps[plain].submission.application_type == "YARN"
    assert [report.application_id for report in clients.get_applications(tags=["NIGHTLY"])] == [app_id]


# -- administrators ---------------------------------------------------------------------------------------------------

OF_ADMINISTRATORS: dict[str, Callable[[AdminService, Caller], Any]] = {
    "exclude": lambda admin, caller: admin.refresh_nodes(["node1"], caller=caller),
    "recommission": lambda admin, caller: admin.recommission(["node1"], caller=caller),
    "resize": lambda admin, caller: admin.update_node_resource(NODE, Resource(1, 1), caller=caller),
    "label": lambda admin, caller: admin.replace_labels_on_node(NODE, "gpu", caller=caller),
}


@pytest.mark.parametrize("change", OF_ADMINISTRATORS.values(), ids=OF_ADMINISTRATORS)
def test_nodes_are_changed_by_administrators_only(desk: Desk, change: Callable[[AdminService, Caller], Any]) -> None:
    desk.node("RUNNING")
    admin = AdminService(desk.context, NodesListManager(desk.context))

    with pytest.raises(AccessDeniedError, match="User quinn doesn't have permission to call"):
        change(admin, QUEUE_ADMIN)
    assert desk.posted.events == []
    change(admin, ADMIN)
