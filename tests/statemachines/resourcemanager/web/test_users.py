"""Users over HTTP: whom a client names, whom it proves to be, and what it may change."""

from __future__ import annotations

import asyncio
import getpass
import grp
import logging
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher import ConfigError, load_config
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.resourcemanager.web.groups import Groups, groups_of_machine

from ...simulation.replays import TIMEOUT_S
from .front import Front, bearer, front, message, submission, tokens_of, until

pytestmark = pytest.mark.long

NEW = "/apps/new-application"


@pytest.fixture(scope="module")
def simple() -> Iterator[Front]:
    with front() as made:
        yield made


@pytest.fixture
def fresh(simple: Front) -> Front:
    """Without cookies of the test before."""
    simple.http.cookies.clear()
    return simple


def owner(made: Front, app_id: str) -> str:
    return made.manager.clients.get_application_report(app_id).user


def submit_as_it_is(made: Front, **more: Any) -> str:
    """Submit with the client's own cookies and headers; returns the owner."""
    app_id = made.new_id(**more)
    answer = made.post("/apps", submission(app_id), **more)
    assert answer.status_code == 202, answer.text
    return owner(made, app_id)


# -- auth simple -------------------------------------------------------------------------------------------------------


COOKIES = [
    ('"u=ann&p=ann&t=simple&e=1&s=AAAA"', "ann"),  # as Hadoop, and earlier versions, made it
    ("u=nn/host@REALM", "nn/host@REALM"),
    *((cookie, "dr.who") for cookie in ("p=ann", "u=", "u=a b", "u=" + "x" * 256, "")),
]
CLIENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a client that names no user is the static user": ({}, "dr.who"),
    "the user is whom the address names": ({"params": {"user.name": "alice"}}, "alice"),
    **{
        f"by the cookie {cookie[:40]} the user is {user}": (
            {"headers": {"Cookie": f"a=b; hadoop.auth={cookie}"}}, user,
        )
        for cookie, user in COOKIES
    },
}  # fmt: skip


@pytest.mark.parametrize(("request_", "user"), CLIENTS.values(), ids=CLIENTS)
def test_client(fresh: Front, request_: dict[str, Any], user: str) -> None:
    assert submit_as_it_is(fresh, **request_) == user
    assert "set-cookie" not in fresh.http.get("/cluster").headers


@pytest.mark.parametrize("path", ["/cluster", "/ws/v1/cluster/info", "/nowhere"])
def test_a_client_that_names_its_user_gets_a_cookie_and_is_that_user_from_then_on(fresh: Front, path: str) -> None:
    answer = fresh.http.get(path, params={"user.name": "alice"})

    cookie = answer.headers["set-cookie"]
    assert cookie == "hadoop.auth=u=alice&p=alice&t=simple; Path=/; HttpOnly; SameSite=Strict"
    assert submit_as_it_is(fresh) == "alice"
    assert submit_as_it_is(fresh, params={"user.name": "bob"}) == "bob"  # the address goes first


@pytest.mark.parametrize("name", ["a b", "a;b", "é", "x" * 256, "\n", "a&b", 'a"b', "a,b", "a=b", "a%20", "\\"])
def test_what_is_no_user_s_name_is_an_error(fresh: Front, name: str) -> None:
    answer = fresh.post(NEW, params={"user.name": name})

    assert answer.status_code == 400
    assert "user.name" in message(answer)
    assert "set-cookie" not in answer.headers


def test_a_user_may_be_required() -> None:
    with front(web={"require_user": True}) as made:
        nobody = made.post(NEW)
        reading = made.get("/info")
        named = made.post(NEW, params={"user.name": "alice"})
        by_cookie = made.post(NEW)

    assert nobody.status_code == 401
    assert "user.name" in message(nobody)
    assert (reading.status_code, named.status_code, by_cookie.status_code) == (200, 200, 200)


@pytest.mark.parametrize(
    ("key", "what"), [("session_s", "browsers send the token"), ("cookie_secret_file", "needs no secret")]
)
def test_keys_of_logins_and_signed_cookies_say_that_they_are_gone(tmp_path: Path, key: str, what: str) -> None:
    (tmp_path / "rm.yaml").write_text(f"web: {{{key}: 1}}")
    with pytest.raises(ConfigError, match=rf"web\.{key} is no longer a key; .*{what}.*remove the key"):
        load_config(tmp_path / "rm.yaml", ResourceManagerConfig)


def test_a_read_only_address_changes_nothing() -> None:
    with front(web={"read_only": True}) as made:
        app_id = made.manager.clients.get_new_application()
        answers = [
            made.post(NEW),
            made.post("/apps", submission(app_id)),
            made.put(f"/apps/{app_id}/state", {"state": "KILLED"}),
            made.http.post("/ops/v1/stop"),
            made.http.delete("/ws/v1/cluster/delegation-token"),
        ]
        reading = made.get("/info")
        apps = made.apps()

    assert [each.status_code for each in answers] == [403] * len(answers)
    assert "web.read_only" in message(answers[0])
    assert (reading.status_code, apps) == (200, set())


def test_reading_changes_nothing_whatever_the_address_says(fresh: Front) -> None:
    app_id = fresh.submit()
    before = fresh.apps()

    for path in (NEW, "/apps", f"/apps/{app_id}/state", f"/apps/{app_id}/timeout"):
        fresh.get(path, params={"state": "KILLED", "_method": "PUT", "user.name": "alice"})

    assert fresh.apps() == before
    assert fresh.state(app_id) != "KILLED"


# -- auth token --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, dict[str, str]]]:
    """A door that wants tokens, and the tokens by user."""
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens = tokens_of(path, {"viewer": "view", "ann": "user", "root": "admin", "dr.who": "user"})
    with front(web={"tokens_file": str(path)}, token=tokens["root"]) as made:
        yield made, tokens


TOKENS: dict[str, tuple[str | None, dict[str, str], int, str]] = {
    "without a token nothing is answered": (None, {}, 401, ""),
    "a name is no token": (None, {"user.name": "root"}, 401, ""),
    "the role view may change nothing": ("viewer", {}, 403, "role user is required; viewer has role view"),
    "the static user may change nothing": ("dr.who", {}, 403, "default static user"),
    "nobody may act for the static user": ("root", {"user.name": "dr.who"}, 403, "default static user"),
}


@pytest.mark.parametrize(("token", "params", "status", "said"), TOKENS.values(), ids=TOKENS)
def test_token(
    proven: tuple[Front, dict[str, str]], token: str | None, params: dict[str, str], status: int, said: str
) -> None:
    made, tokens = proven

    answer = made.post(NEW, params=params, headers=bearer(tokens[token]) if token is not None else {})

    assert (answer.status_code, said in answer.text) == (status, True)


@pytest.mark.parametrize(
    "more",
    [{"params": {"user.name": "root"}}, {"headers": {"Cookie": "hadoop.auth=u=root&p=root&t=simple"}}],
    ids=["user.name", "Hadoop's cookie"],
)
def test_the_user_is_the_token_s_whomever_the_request_names(
    proven: tuple[Front, dict[str, str]], more: dict[str, dict[str, str]]
) -> None:
    made, tokens = proven
    more = {**more, "headers": {**bearer(tokens["ann"]), **more.get("headers", {})}}

    answer = made.http.get("/cluster", **more)  # type: ignore[arg-type]

    assert submit_as_it_is(made, **more) == "ann"
    assert "set-cookie" not in answer.headers


def test_an_administrator_acts_for_another_user_and_the_audit_log_says_so(
    proven: tuple[Front, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    made, tokens = proven
    access = bearer(tokens["root"])

    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        found = submit_as_it_is(made, params={"user.name": "bob"}, headers=access)
        until(lambda: "Submit" in caplog.text, "it is logged")

    [line] = [each.message for each in caplog.records if "Submit" in each.message]
    assert found == "bob"
    assert line.startswith("USER=bob\tBY=root\tIP=127.0.0.1\tOPERATION=Submit Application Request\tTARGET=application_")
    assert line.endswith("RESULT=SUCCESS")


def test_one_who_acts_for_another_user_has_that_user_s_rights(proven: tuple[Front, dict[str, str]]) -> None:
    made, tokens = proven
    app_id = made.submit(headers=bearer(tokens["ann"]))

    as_bob = made.put(
        f"/apps/{app_id}/state", {"state": "KILLED"}, params={"user.name": "bob"}, headers=bearer(tokens["root"])
    )
    as_root = made.put(f"/apps/{app_id}/state", {"state": "KILLED"}, headers=bearer(tokens["root"]))

    assert as_bob.status_code == 403
    assert as_root.status_code in (200, 202)  # 202: it is not done yet


# -- the audit log -----------------------------------------------------------------------------------------------------


def test_refusals_are_in_the_audit_log_with_user_target_and_reason(
    fresh: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        fresh.put("/apps/application_1_0001/state", {"state": "KILLED"}, params={"user.name": "eve"})
        until(lambda: "Kill" in caplog.text, "it is logged")

    [line] = [each.message for each in caplog.records if "Kill" in each.message]
    assert "USER=eve\t" in line
    assert "TARGET=application_1_0001\tRESULT=FAILURE\tDESCRIPTION=404: app with id" in line


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def patient_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups of groups may take longer than usual, as they do on a busy machine."""
    monkeypatch.setattr("statemachines.resourcemanager.web.groups._LONGEST_S", TIMEOUT_S)


@pytest.mark.usefixtures("patient_look_ups")
def test_a_group_in_a_list_lets_its_members_in() -> None:
    with front(scheduler={"acl_submit_applications": " etl", "acl_administer_queue": " "}) as made:
        members = {"ann": frozenset({"etl"})}
        made.door.app.state.rm.users.groups = Groups(lambda user: members.get(user, frozenset()))
        answers = []
        for user in ("ann", "bob"):
            app_id = made.new_id()
            answers.append(made.post("/apps", submission(app_id), params={"user.name": user}))
            made.http.cookies.clear()

    assert [each.status_code for each in answers] == [202, 403]
    assert "User bob does not have permission to submit" in message(answers[1])


@pytest.mark.usefixtures("patient_look_ups")
def test_all_that_ask_at_once_get_their_groups_and_one_user_is_looked_up_once() -> None:
    looked_up: list[str] = []

    def look_up(user: str) -> frozenset[str]:
        looked_up.append(user)
        return frozenset({f"group-of-{user}"})

    async def ask() -> list[frozenset[str]]:
        groups = Groups(look_up)
        return await asyncio.gather(*(groups.of(f"user{number % 20}") for number in range(100)))

    found = asyncio.run(ask())

    assert found == [{f"group-of-user{number % 20}"} for number in range(100)]
    assert sorted(looked_up) == sorted({f"user{number}" for number in range(20)})


@pytest.mark.usefixtures("patient_look_ups")
def test_groups_are_looked_up_anew_after_five_minutes() -> None:
    now_s, answers = [0.0], [frozenset({"old"}), frozenset({"new"})]

    async def ask() -> list[frozenset[str]]:
        groups, found = Groups(lambda _: answers.pop(0), lambda: now_s[0]), []
        for at_s in (0.0, 299.0, 301.0):
            now_s[0] = at_s
            found.append(await groups.of("ann"))
        return found

    assert asyncio.run(ask()) == [{"old"}, {"old"}, {"new"}]


def test_this_machine_knows_the_groups_of_its_users_only() -> None:
    me = getpass.getuser()

    assert grp.getgrgid(pwd.getpwnam(me).pw_gid).gr_name in groups_of_machine(me)
    assert groups_of_machine("nobody-has-this-name") == frozenset()


# -- the Unix socket ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient_kills")
def test_on_the_unix_socket_the_user_is_the_peer_s_an_administrator() -> None:
    with front(web={"unix_socket": True}, scheduler={"acl_administer_queue": " "}, admin_acl=" ") as made:
        app_id = made.submit("ann")
        transport = httpx.HTTPTransport(uds=str(made.door.socket_path))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=TIMEOUT_S) as local:
            path, kill = f"/ws/v1/cluster/apps/{app_id}/state", {"state": "KILLED"}
            as_bob = local.put(path, json=kill, params={"user.name": "bob"})
            local.cookies.clear()
            as_peer = local.put(path, json=kill)
        diagnostics = made.manager.clients.get_application_report(app_id).diagnostics

    assert (as_bob.status_code, as_peer.status_code) == (403, 200)
    assert f"killed by user {getpass.getuser()}" in diagnostics
