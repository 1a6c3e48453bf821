"""Who enters by which door, with real clients: hosts, origins, tokens, passwords, headers, the audit."""

from __future__ import annotations

import base64
import logging
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from dispatcher import ConfigError
from dispatcher.web.origins import is_own_host

from ...kit import until
from .conftest import MakeHost, Users, add_user, ask, audited, by_socket, by_tcp, digest_of, error_of, raw

pytestmark = pytest.mark.long

OWN_NAME = pwd.getpwuid(os.geteuid()).pw_name


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


# -- hosts and origins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local", "is_own"),
    [
        ("127.0.0.1:8088", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1:9000", "127.0.0.1", True),  # a tunnel's other port
        ("localhost:8088", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("[::1]:8088", "::1", True),
        ("[::1]", "127.0.0.1", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7:8088", "192.0.2.7", True),
        ("ops.example", "192.0.2.7", True),
        ("OPS.example.:8443", "192.0.2.7", True),
        ("port.example:8088", "192.0.2.7", True),
        ("port.example:8089", "192.0.2.7", False),
        ("192.0.2.8", "192.0.2.7", False),
        ("192.0.2.7", "127.0.0.1", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("evil.example:8088", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("localhost:port", "127.0.0.1", False),
        ("user@localhost", "127.0.0.1", False),
        ("[::1", "::1", False),
        ("[::1]x", "::1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_a_host_is_our_own_by_the_address_that_was_reached_or_by_an_allowed_name(
    host: str | None, local: str, is_own: bool
) -> None:
    assert is_own_host(host, local, {"ops.example", "port.example:8088"}) is is_own


@pytest.mark.parametrize(
    ("host_header", "status"), [("localhost:4711", 200), ("ops.example", 200), ("evil.example:4711", 421), ("", 421)]
)
def test_a_foreign_host_is_421_on_tcp_and_not_asked_on_the_unix_socket(
    serve: MakeHost, host_header: str, status: int
) -> None:
    host = serve(allowed_hosts=["Ops.example"])

    found, body = ask(host, "GET /who", f"Host: {host_header}")

    assert found == status
    if status == 421:
        assert body == '{"error": "the Host header does not name this door; add its name to web.allowed_hosts"}\n'
    assert raw(host, b"GET /who HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 ")
    with by_socket(host, headers={"host": host_header or "evil.example"}) as client:
        assert client.get("/who").status_code == 200


@pytest.mark.parametrize(
    ("target", "host_header", "status"),
    [
        ("http://localhost/who?x=1", "localhost", 200),
        ("HTTP://LOCALHOST:80/who", "evil.example", 200),
        ("http://localhost/big%20one", "localhost", 404),
        ("http://localhost", "localhost", 404),
        ("http://evil.example/who", "localhost", 421),
        ("http:///who", "localhost", 421),
        ("http://localhost@evil.example/who", "localhost", 421),
    ],
)
def test_a_target_that_is_a_url_is_served_as_its_path_and_its_host_counts(
    serve: MakeHost, target: str, host_header: str, status: int
) -> None:
    """Each was 404: the whole URL was taken for the path."""
    assert ask(serve(), f"GET {target}", f"Host: {host_header}")[0] == status


def test_a_url_as_target_does_not_make_another_site_s_origin_our_own(serve: MakeHost) -> None:
    host = serve(anonymous_role="admin", allowed_hosts=["ops.example"])

    assert ask(host, "DELETE http://localhost/who", "Host: ops.example", "Origin: http://ops.example")[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X-ANY"])
@pytest.mark.parametrize(
    "header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"]
)
def test_another_web_site_may_change_nothing(serve: MakeHost, method: str, header: str) -> None:
    status, body = ask(serve(anonymous_role="admin"), f"{method} /who", header)

    assert status == 403
    assert "the request comes from another web site" in body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_another_web_site_may_link_here_but_not_read(serve: MakeHost, method: str) -> None:
    with by_tcp(serve(), headers={"origin": "http://evil.example", "sec-fetch-site": "cross-site"}) as client:
        answer = client.request(method, "/who")
        preflight = client.options("/who", headers={"access-control-request-method": "DELETE"})

    assert answer.status_code == 200
    assert preflight.status_code == 403
    assert not [name for each in (answer, preflight) for name in each.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        (["Sec-Fetch-Site: none"], 200),
        (["Sec-Fetch-Site: same-origin", "Origin: http://OWN"], 200),
        (["Sec-Fetch-Site: same-origin", "Origin: null"], 200),  # our page, whose policy is no-referrer
        (["Origin: HTTP://OWN"], 200),
        (["Origin: https://OWN"], 200),  # behind a proxy that ends TLS
        (["Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site:"], 403),
        (["Sec-Fetch-Site: none", "Origin: null"], 403),
        (["Sec-Fetch-Site: same-origin", "Origin: http://evil.example"], 403),
        (["Origin: http://127.0.0.1:1"], 403),
        (["Origin: http://127.0.0.1"], 403),
        (["Origin: ftp://OWN"], 403),
        (["Origin: http://["], 403),
        (["Origin: http://OWN", "Origin: http://evil.example"], 403),
    ],
)
def test_programs_and_our_own_pages_may_change_something(serve: MakeHost, headers: list[str], status: int) -> None:
    host = serve(anonymous_role="user")
    own = f"127.0.0.1:{host.port}"

    assert ask(host, "DELETE /who", f"Host: {own}", *(each.replace("OWN", own) for each in headers))[0] == status


def test_a_body_has_to_be_json(serve: MakeHost) -> None:
    host = serve(anonymous_role="user")

    assert ask(host, "POST /who", "Content-Type: Application/JSON; charset=utf-8", body="{}")[0] == 200
    assert ask(host, "POST /who")[0] == 200
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "",
    ):
        said = f"Content-Type: {content_type}"
        whole = ask(host, "POST /who", said, body="{}")
        chunked = ask(host, "POST /who", said, "Transfer-Encoding: chunked", body="2\r\n{}\r\n0\r\n\r\n")
        assert whole == chunked == (415, '{"error": "the body must be application/json"}\n')


# -- users -------------------------------------------------------------------------------------------------------------


def test_the_unix_socket_s_client_is_its_user_and_may_do_everything(serve: MakeHost, users: Users) -> None:
    with by_socket(serve(tokens_file=users.file)) as client:
        assert client.get("/who").json() == {"name": OWN_NAME, "role": "admin", "bytes": 0}
        assert client.post("/admin").status_code == 200


def test_without_tokens_clients_of_this_machine_have_the_role_of_the_configuration(serve: MakeHost) -> None:
    with by_tcp(serve()) as client:
        for value in (None, "Bearer x", "Basic eDp5", "Negotiate YII"):
            headers = {} if value is None else {"authorization": value}
            assert client.get("/who", headers=headers).json() == {"name": "anonymous", "role": "view", "bytes": 0}
        refused = client.get("/admin")
    assert refused.status_code == 403
    assert error_of(refused) == "role admin is required; anonymous has role view"
    assert ask(serve(anonymous_role="admin"), "GET /admin")[0] == 200


def test_with_tokens_only_those_enter_with_their_roles(serve: MakeHost, users: Users) -> None:
    boss = users.tokens["boss"]
    with by_tcp(serve(tokens_file=users.file)) as client:
        for value in (None, "Bearer x", "Bearer x y", f"Basic {boss}", boss):
            refused = client.get("/who", headers={} if value is None else {"authorization": value})
            assert refused.status_code == 401
            assert refused.headers.get_list("www-authenticate") == [
                'Basic realm="dispatcher", charset="UTF-8"',
                'Bearer realm="dispatcher"',
            ]
            assert "needs a token" in error_of(refused)
        assert client.get("/who", headers=users.bearer("alice")).json()["name"] == "alice"
        assert client.get("/admin", headers=users.bearer("alice")).status_code == 403
        assert client.get("/admin", headers=users.bearer("boss")).json() == {
            "name": "boss",
            "role": "admin",
            "bytes": 0,
        }


def test_a_new_token_enters_and_one_that_was_removed_does_not_without_a_restart(
    make_host: MakeHost, tokens_file: Path
) -> None:
    alice = add_user(tokens_file, "alice", "view")
    host = make_host(tokens_file=tokens_file)
    bob = add_user(tokens_file, "bob", "user")
    assert '"user"' in ask(host, "GET /who", f"Authorization: Bearer {bob}")[1]

    tokens_file.write_text(f"{tokens_file.read_text().splitlines()[1]}\n")

    assert [ask(host, "GET /who", f"Authorization: Bearer {each}")[0] for each in (alice, bob)] == [401, 200]


def test_a_tokens_file_that_others_may_read_stops_the_start(make_host: MakeHost, tokens_file: Path) -> None:
    add_user(tokens_file, "alice", "view")
    tokens_file.chmod(0o640)

    with pytest.raises(
        ConfigError, match=r"web\.tokens_file .*: mode 0640 gives other users access; run chmod 0600 on it"
    ):
        make_host(tokens_file=tokens_file)


def test_with_tokens_it_may_listen_beyond_this_machine(
    make_host: MakeHost, users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(tokens_file=users.file, host="0.0.0.0")

    assert "web.tls is not set, so tokens pass the network in plain text" in caplog.text
    assert ask(host, "GET /who")[0] == 401
    assert ask(host, "GET /who", f"Authorization: Bearer {users.tokens['alice']}")[0] == 200


@pytest.mark.parametrize("path", ["/events", "/silent"])
@pytest.mark.parametrize("lines", ["", "alice view {}"], ids=["revoked", "lowered"])
@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_an_open_stream_ends_when_its_token_is_revoked_or_its_role_lowered(
    make_host: MakeHost, tokens_file: Path, path: str, lines: str, scheme: str
) -> None:
    """It went on for as long as the client stayed."""
    alice = add_user(tokens_file, "alice", "admin")
    host = make_host(tokens_file=tokens_file)
    headers = {"authorization": f"Bearer {alice}"} if scheme == "Bearer" else basic(f"alice:{alice}")
    with by_tcp(host) as client, client.stream("GET", path, headers=headers) as stream:
        received = stream.iter_lines()
        assert next(received) == ": still here"
        tokens_file.write_text(lines.format(digest_of(alice)))

        for _ in received:  # until the server ends it
            pass


# -- browsers ----------------------------------------------------------------------------------------------------------


def test_a_browser_sends_the_token_as_its_password(serve: MakeHost, users: Users) -> None:
    host, token = serve(tokens_file=users.file), users.tokens["ursula"]
    own = {"origin": str(host.url), "sec-fetch-site": "same-origin"}
    with by_tcp(host) as client:
        for text in (f"ursula:{token}", f":{token}"):
            answer = client.get("/who", headers=basic(text))
            assert answer.json() == {"name": "ursula", "role": "user", "bytes": 0}
            assert "set-cookie" not in answer.headers
        assert client.post("/who", headers={**basic(f"ursula:{token}"), **own}).status_code == 200


WRONG = ["alice:wrong", "alice:", "alice", ":", "bob:TOKEN", "TOKEN:", "é:TOKEN", "alice:TOKEN:"]
NO_PASSWORD = ["Basic", "Basic =", "Basic \xff", "Basic /w==", "Basic YQ", "basic Og=="]


@pytest.mark.parametrize("text", [*WRONG, *NO_PASSWORD])
def test_a_wrong_name_or_password_and_what_is_none_is_401(serve: MakeHost, users: Users, text: str) -> None:
    given = basic(text.replace("TOKEN", users.tokens["alice"]))["authorization"] if text in WRONG else text

    assert ask(serve(tokens_file=users.file), "GET /who", f"Authorization: {given}")[0] == 401


@pytest.mark.parametrize("header", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_another_site_changes_nothing_with_a_password_that_the_browser_remembers(
    make_host: MakeHost, users: Users, header: dict[str, str]
) -> None:
    """A browser adds it to the requests of other sites, unlike a cookie that is SameSite=Strict."""
    host = make_host(tokens_file=users.file, takes_form=lambda _: True)
    with by_tcp(host, headers=basic(f"boss:{users.tokens['boss']}") | header) as client:
        assert client.post("/submit", data={"a": "b"}).status_code == 403
        assert client.delete("/who").status_code == 403
        assert client.get("/who").headers["cross-origin-resource-policy"] == "same-origin"


# -- headers and the audit ---------------------------------------------------------------------------------------------

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@pytest.mark.parametrize("path", ["/who", "/nothing", "/admin", "/fails"])
def test_every_answer_has_the_security_headers(serve: MakeHost, users: Users, path: str) -> None:
    with by_tcp(serve(tokens_file=users.file)) as client:
        for headers in (users.bearer("alice"), {}, {"host": "x"}):
            found: Mapping[str, str] = client.get(path, headers=headers).headers
            assert {name: found.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
            assert "server" not in found


def test_an_app_may_say_how_long_its_files_are_kept(serve: MakeHost) -> None:
    with by_tcp(serve()) as client:
        answer: httpx.Response = client.get("/cached")

    assert answer.headers.get_list("cache-control") == ["max-age=60"]
    assert answer.headers["content-security-policy"] == CSP


def test_each_write_has_a_line_in_the_audit_log(
    serve: MakeHost, users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    host, user = serve(tokens_file=users.file), f"Authorization: Bearer {users.tokens['ursula']}"
    ask(host, "GET /who", user)
    ask(host, "POST /who", user)
    ask(host, "POST /submit", user)
    ask(host, "DELETE /who")
    ask(host, "POST /admin", user)
    ask(host, "POST /who", user, "Origin: http://evil.example")
    ask(host, "POST /fails", user)
    ask(host, "POST /a%0Ab%09RESULT=SUCCESS", user)

    until(lambda: len(audited(caplog)) > 6, "the last line, which is written after its answer")
    ursula, nobody = "USER=ursula\tIP=127.0.0.1\t", "USER=-\tIP=127.0.0.1\t"
    assert audited(caplog) == [
        f"{ursula}OPERATION=POST\tTARGET=/who\tRESULT=SUCCESS",
        f"{ursula}OPERATION=Submit Application Request\tTARGET=app_17\tRESULT=SUCCESS",
        f"{nobody}OPERATION=DELETE\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=401: this door needs a token "
        "(Authorization: Bearer TOKEN, or your name and TOKEN as the password) or a client certificate",
        f"{ursula}OPERATION=POST\tTARGET=/admin\tRESULT=FAILURE\tDESCRIPTION=403: role admin is required; ursula has "
        "role user",
        f"{ursula}OPERATION=POST\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=403: Origin is http://evil.example: the "
        "request comes from another web site",
        f"{ursula}OPERATION=POST\tTARGET=/fails\tRESULT=FAILURE\tDESCRIPTION=500: RuntimeError: of the app",
        f"{ursula}OPERATION=POST\tTARGET=/a\\nb\\tRESULT=SUCCESS\tRESULT=FAILURE\tDESCRIPTION=404",
    ]
    assert users.tokens["ursula"] not in caplog.text


def test_the_audit_line_of_the_unix_socket_names_the_user(serve: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    with by_socket(serve()) as client:
        client.post("/who")

    until(lambda: audited(caplog), "the line, which is written after the answer")
    assert audited(caplog) == [f"USER={OWN_NAME}\tIP=local\tOPERATION=POST\tTARGET=/who\tRESULT=SUCCESS"]


def test_what_was_allowed_is_logged_although_the_root_logger_logs_warnings_only() -> None:
    assert logging.getLogger("dispatcher.audit").isEnabledFor(logging.INFO)


# -- forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/submit", {"Sec-Fetch-Site": "same-origin"}, 202),
        ("/submit", {"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 202),
        ("/submit", {"Origin": "OWN"}, 202),
        ("/submit", {}, 403),
        ("/submit", {"Sec-Fetch-Site": "none"}, 403),
        ("/submit", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/submit", {"Origin": "null"}, 403),
        ("/submit", {"Origin": "http://evil.example"}, 403),
        ("/who", {"Sec-Fetch-Site": "same-origin"}, 415),
    ],
)
def test_a_form_is_taken_on_declared_paths_and_only_from_our_own_pages(
    serve: MakeHost, path: str, headers: dict[str, str], status: int
) -> None:
    host = serve(forms="/submit")
    sent = {name: str(host.url) if value == "OWN" else value for name, value in headers.items()}

    with by_tcp(host) as client:
        answer = client.post(path, data={"a": "b"}, headers=sent)

    assert answer.status_code == status


# -- the page ----------------------------------------------------------------------------------------------------------


def test_each_threat_of_the_page_has_a_test() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "web.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)`", page.partition("## Threats")[2].partition("\n## ")[0])
    defined = re.findall(
        r"def (test_\w+)", "".join(each.read_text("utf-8") for each in Path(__file__).parent.glob("*.py"))
    )

    assert len(named) > 20
    assert set(named) <= set(defined)
