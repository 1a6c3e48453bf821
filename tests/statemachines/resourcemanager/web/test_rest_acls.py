"""Who may do what over HTTP: one table for each way to know users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .front import BASE, NODE, NODE_ID, Front, bearer, front, submission, tokens_of, until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("patient_waits")]

QUEUES = {
    "kind": "capacity",
    "acl_submit_applications": " ",
    "acl_administer_queue": " ",
    "queues": [
        {
            "name": "a",
            "capacity": 50,
            "acl_submit_applications": "owner,other,modifier",
            "acl_administer_queue": "queue-admin",
        },
        {"name": "b", "capacity": 50, "acl_submit_applications": "owner,modifier"},
    ],
}
ADMINS = "cluster-admin"
TOKENS = {
    **dict.fromkeys(("owner", "other", "modifier", "viewer", "queue-admin", "cluster-admin"), "user"),
    "looker": "view",
    "admin-by-role": "admin",
}
ACLS = {"VIEW_APP": "viewer", "MODIFY_APP": "modifier"}
LIFETIME = {"timeout": {"type": "LIFETIME", "expiryTime": "2099-01-01T00:00:00.000Z"}}

LOOK = {"queue-acl-type": "SUBMIT_APPLICATIONS", "user": "owner"}
TRIED: list[tuple[str, str, Any]] = [
    ("PUT", f"{BASE}/apps/{{app}}/state", {"state": "KILLED"}),
    ("PUT", f"{BASE}/apps/{{app}}/priority", {"priority": 5}),
    ("PUT", f"{BASE}/apps/{{app}}/timeout", LIFETIME),
    ("PUT", f"{BASE}/apps/{{app}}/queue", {"queue": "b"}),
    ("POST", f"{BASE}/apps", {"queue": "a"}),
    ("POST", f"{BASE}/nodes/{NODE_ID}/resource", {"resource": {"memory": 4096, "vCores": 4}}),
    ("GET", "/api/v1/apps/{app}/waiting", None),
    ("GET", f"{BASE}/queues/a/access", None),
]
"""In the order of a table's columns."""

SIMPLE = {
    #                 kill prio time move subm node wait access
    "owner": "        yes  yes  yes  yes  yes  no   yes  no",
    "other": "        no   no   no   no   yes  no   no   no",
    "viewer": "       no   no   no   no   no   no   yes  no",
    "modifier": "     yes  yes  yes  yes  yes  no   no   no",
    "queue-admin": "  yes  yes  yes  no   yes  no   yes  yes",
    "cluster-admin": "yes  yes  yes  yes  yes  yes  yes  yes",
    "stranger": "     no   no   no   no   no   no   no   no",
}
TOKEN = {
    **{name: row for name, row in SIMPLE.items() if name != "stranger"},
    "looker": "       no   no   no   no   no   no   no   no",
    "admin-by-role": "yes  yes  yes  yes  yes  yes  yes  yes",
}

Access = Callable[[str], dict[str, Any]]
"""What makes a request one of this user."""


@pytest.fixture(scope="module", params=["simple", "token"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Access]]:
    web: dict[str, Any] = {}
    tokens: dict[str, str] = {}
    if request.param == "token":
        path: Path = tmp_path_factory.mktemp("tokens") / "tokens"
        tokens = tokens_of(path, TOKENS)
        web = {"tokens_file": str(path)}

    def access(user: str) -> dict[str, Any]:
        return {"headers": bearer(tokens[user])} if tokens else {"params": {"user.name": user}}

    with front(NODE, scheduler=QUEUES, admin_acl=ADMINS, web=web, token=tokens.get("admin-by-role")) as made:
        yield made, access


def rows() -> Iterator[tuple[str, str, str]]:
    for kind, table in (("simple", SIMPLE), ("token", TOKEN)):
        for user, row in table.items():
            yield kind, user, row


@pytest.mark.parametrize(("cluster", "user", "row"), list(rows()), indirect=["cluster"])
def test_what_a_user_may_do(cluster: tuple[Front, Access], user: str, row: str) -> None:
    made, access = cluster
    expected = [each == "yes" for each in row.split()]

    found = [_may(made, access, user, *what) for what in TRIED]

    assert found == expected


def _may(made: Front, access: Access, user: str, method: str, path: str, body: Any) -> bool:
    """Try it; refusals are 403 and change nothing."""
    app_id = _waiting_app(made, access)
    as_user = access(user)
    params = {**as_user.pop("params", {}), **(LOOK if path.endswith("access") else {})}
    if path.endswith("/apps"):  # the id is not the user's to get, where its role lets it only view
        body = submission(made.manager.clients.get_new_application(), **body)
    answer = made.http.request(method, path.format(app=app_id), json=body, params=params, **as_user)
    made.http.cookies.clear()
    report = made.manager.clients.get_application_report(app_id)
    if answer.status_code == 403:
        assert (report.state, report.priority, report.queue, report.deadline_ms) == ("ACCEPTED", 0, "a", None)
    else:
        assert answer.status_code in (200, 202), answer.text
    made.manager.clients.force_kill_application(app_id)
    return answer.status_code != 403


def _waiting_app(made: Front, access: Access) -> str:
    """An application of `owner` in queue a, which waits: its master registers by itself, and never does."""
    app_id = made.manager.clients.get_new_application()
    acls = {"entry": [{"key": key, "value": value} for key, value in ACLS.items()]}
    spec = {"am-container-spec": {"application-acls": acls}, "unmanaged-AM": True}
    answer = made.post("/apps", submission(app_id, queue="a", **spec), **access("owner"))
    assert answer.status_code == 202, answer.text
    made.http.cookies.clear()
    until(lambda: made.door.app.state.rm.model.apps[app_id].state == "ACCEPTED", "it waits")
    return app_id
