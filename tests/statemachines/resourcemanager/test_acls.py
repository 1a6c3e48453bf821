"""Access control lists: YARN's syntax, queues, administrators, owners, and the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import (
    AccessDeniedError,
    ApplicationSubmission,
    Caller,
    LaunchContext,
    Resource,
    ResourceManager,
    ResourceManagerConfig,
)

from .inner import AccessControlList, QueueACL, QueueACLs

ANN, BOB = Caller("ann"), Caller("bob")
ETL = Caller("carl", frozenset({"etl"}))
ADMIN = Caller("root", is_admin=True)
SUBMIT, ADMINISTER = QueueACL.SUBMIT_APPLICATIONS, QueueACL.ADMINISTER_QUEUE


def acls(*queues: dict[str, Any], token: bool = False, admin_acl: str | None = None, **scheduler: Any) -> QueueACLs:
    """`token`: callers prove who they are."""
    kind = "capacity" if queues else "fifo"
    values: dict[str, Any] = {"scheduler": {"kind": kind, **scheduler}, "admin_acl": admin_acl}
    if queues:
        values["scheduler"]["queues"] = queues
    if token:
        values["web"] = {"tokens_file": Path("tokens")}
    return QueueACLs(ResourceManagerConfig.model_validate(values))


def job(user: str = "ann", queue: str = "default", **lists: str) -> ApplicationSubmission:
    launch = LaunchContext(acls=lists) if lists else None
    return ApplicationSubmission("job", Resource(1, 1), user, queue, launch=launch)


# -- the syntax -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("*", "ann bob carl"),
        (" * ", "ann bob carl"),
        ("ann *", "ann bob carl"),
        ("* etl", "ann bob carl"),
        (" ", ""),
        ("", ""),
        ("ann", "ann"),
        ("ann,bob", "ann bob"),
        (" etl", "carl"),
        ("ann etl,dev", "ann carl"),
        ("ann  dev, etl ", "ann carl"),
        ("ann, bob", "ann"),  # bob is a group, as in Hadoop
        (",,ann,, ,etl,", "ann carl"),
        ("ANN", ""),
        ("ann,*", "ann"),
    ],
)
def test_list_allows_its_users_and_the_members_of_its_groups(text: str, allowed: str) -> None:
    acl = AccessControlList.parse(text)

    assert [caller.user for caller in (ANN, BOB, ETL) if acl.allows(caller)] == allowed.split()
    assert AccessControlList.parse(str(acl)) == acl


# -- queues -----------------------------------------------------------------------------------------------------------

TREE = (
    {
        "name": "research",
        "capacity": 50,
        "acl_submit_applications": "ann",
        "queues": [
            {"name": "day", "capacity": 50},
            {"name": "night", "capacity": 50, "acl_submit_applications": " etl", "acl_administer_queue": "bob"},
        ],
    },
    {"name": "open", "capacity": 50},
)


@pytest.mark.parametrize(
    ("queue", "submitters", "administrators"),
    [
        ("root.research.day", "ann", "ann bob carl"),
        ("day", "ann", "ann bob carl"),
        ("research.night", "ann carl", "bob"),
        ("night", "ann carl", "bob"),
        ("root.open", "ann bob carl", "ann bob carl"),
        ("root", "ann bob carl", "ann bob carl"),
        ("nowhere", "ann bob carl", "ann bob carl"),
    ],
)
def test_lists_of_a_queue_grant_for_its_children(queue: str, submitters: str, administrators: str) -> None:
    lists = acls(*TREE)

    granted = [[each.user for each in (ANN, BOB, ETL) if lists.check(queue, acl, each)] for acl in (SUBMIT, ADMINISTER)]

    assert granted == [submitters.split(), administrators.split()]


def test_lists_of_the_root_grant_everywhere() -> None:
    lists = acls(*TREE, acl_submit_applications="bob", acl_administer_queue=" ")

    assert all(lists.check(queue, SUBMIT, BOB) for queue in ("root", "open", "night"))
    assert [lists.check(queue, SUBMIT, ANN) for queue in ("root", "open", "night")] == [False, False, True]
    assert [lists.check(queue, ADMINISTER, BOB) for queue in ("root", "open", "night")] == [False, False, True]


def test_lists_of_the_root_count_for_the_one_queue_of_the_fifo_scheduler() -> None:
    lists = acls(acl_submit_applications="ann", acl_administer_queue=" ")

    assert [lists.may_submit("whatever", caller) for caller in (ANN, BOB)] == [True, False]
    assert [lists.path_of(name) for name in ("default", "root.default", "whatever")] == ["root.default"] * 2 + [None]


def queue(name: str, **lists: str) -> dict[str, Any]:
    return {"name": name, "capacity": 50, **{f"acl_{key}": text for key, text in lists.items()}}


@pytest.mark.parametrize(
    ("lists", "is_open"),
    [
        ({}, False),
        ({"submit_applications": "*"}, False),
        ({"submit_applications": "ann"}, True),
        ({"submit_applications": "ann", "administer_queue": " "}, False),
    ],
)
def test_list_of_submitters_without_one_of_administrators_leaves_the_queue_open(
    lists: dict[str, str], is_open: bool
) -> None:
    of_queue = acls(queue("etl", **lists), queue("other"))

    assert of_queue.open_to_all() == ["root.etl"] * is_open
    assert of_queue.may_submit("etl", BOB) == (is_open or lists.get("submit_applications") != "ann")
    assert acls(queue("etl", **lists), queue("other"), token=True).open_to_all() == []


def test_list_of_submitters_above_leaves_those_queues_open_that_have_no_administrators() -> None:
    queues = queue("etl"), queue("closed", administer_queue="ann")

    assert acls(*queues, acl_submit_applications="ann").open_to_all() == ["root.etl"]
    assert acls(acl_submit_applications="ann").open_to_all() == ["root.default"]


OF_STARTS = "statemachines.resourcemanager.resource_manager"


def test_start_warns_once_of_queues_that_are_open_to_all(caplog: pytest.LogCaptureFixture) -> None:
    queues = [queue("etl", submit_applications="ann"), queue("ml", submit_applications="ann")]
    config = {"scheduler": {"kind": "capacity", "queues": queues}}

    with ResourceManager(ResourceManagerConfig.model_validate(config)):
        warnings = [record.getMessage() for record in caplog.records if record.name == OF_STARTS]

    assert len(warnings) == 1
    assert "everyone may submit to root.etl, root.ml, whatever acl_submit_applications says" in warnings[0]


# -- administrators ---------------------------------------------------------------------------------------------------


CLOSED = acls({"name": "a", "acl_submit_applications": " ", "acl_administer_queue": " "}, admin_acl=" etl")
OPEN, PROVEN = acls(), acls(token=True)
EVERYTHING = "administer submit modify view"
MAY: dict[str, tuple[QueueACLs, str, Caller | None, str]] = {
    "an administrator by its role may do everything": (CLOSED, "a", ADMIN, EVERYTHING),
    "an administrator of the cluster may do everything": (CLOSED, "a", ETL, EVERYTHING),
    "another user may do nothing": (CLOSED, "a", BOB, ""),
    "by default everyone may do everything where callers may claim any name": (OPEN, "default", BOB, EVERYTHING),
    "by default all may submit where callers prove who they are": (PROVEN, "default", BOB, "submit"),
    "by default what it submits is its own": (PROVEN, "default", ANN, "submit modify view"),
    "by default administrators may do everything": (PROVEN, "default", ADMIN, EVERYTHING),
    "this process may do everything": (CLOSED, "a", None, EVERYTHING),
}


@pytest.mark.parametrize(("lists", "queue", "caller", "may"), MAY.values(), ids=MAY)
def test_what_a_caller_may_do(lists: QueueACLs, queue: str, caller: Caller | None, may: str) -> None:
    """With ann's application in a queue."""
    app = job(queue=queue)
    allowed = {
        "submit": lists.may_submit(queue, caller),
        "modify": lists.may_modify(app, caller),
        "view": lists.may_view(app, caller),
    }

    assert [what for what, is_allowed in allowed.items() if is_allowed] == may.removeprefix("administer ").split()
    if "administer" in may:
        lists.check_administrator(caller, "refreshNodes")
        return
    assert caller is not None
    denied = f"User {caller.user} doesn't have permission to call 'refreshNodes'"
    with pytest.raises(AccessDeniedError, match=denied) as raised:
        lists.check_administrator(caller, "refreshNodes")
    assert raised.value.user == caller.user
