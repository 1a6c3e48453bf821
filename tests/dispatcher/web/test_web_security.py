"""Who enters by which door, with real clients: hosts, origins, tokens, passwords, headers, the audit."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pwd
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher import ConfigError
from dispatcher.web import Principal, WebHost, event_stream
from dispatcher.web.config import RoleName
from dispatcher.web.events import CHECK_S, COMMENT
from dispatcher.web.tokens import add_line, digest_of, new_token

from ...kit import TIMEOUT_S, until
from .conftest import MakeHost, by_socket, by_tcp, connect, error_of, read_to_end

pytestmark = pytest.mark.long

OWN_NAME = pwd.getpwuid(os.geteuid()).pw_name


def curl(host: WebHost, path: str, *options: str) -> tuple[int, str]:
    """Status and body, as curl prints them."""
    done = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", *options, f"{host.url}{path}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def token_of(path: Path, name: str, role: RoleName) -> str:
    token, line = new_token(name, role)
    add_line(path, line)
    return token


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# -- hosts and origins -------------------------------------------------------------------------------------------------


def test_a_foreign_host_is_421_on_tcp_and_not_asked_on_the_unix_socket(make_host: MakeHost) -> None:
    host = make_host(allowed_hosts=["Ops.example"])

    assert curl(host, "/who")[0] == 200
    assert curl(host, "/who", "-H", f"Host: localhost:{host.port}")[0] == 200
    assert curl(host, "/who", "-H", "Host: ops.example")[0] == 200
    status, body = curl(host, "/who", "-H", f"Host: evil.example:{host.port}")
    assert (status, body) == (
        421,
        '{"error": "the Host header does not name this door; add its name to web.allowed_hosts"}\n',
    )
    assert curl(host, "/who", "--http1.0", "-H", "Host:")[0] == 421
    with by_socket(host, headers={"host": "evil.example"}) as client:
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
    make_host: MakeHost, target: str, host_header: str, status: int
) -> None:
    """Each was 404: the whole URL was taken for the path."""
    host = make_host()
    with connect(host) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host_header}\r\nConnection: close\r\n\r\n".encode())
        answer = read_to_end(connection)

    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_a_url_as_target_does_not_make_another_site_s_origin_our_own(make_host: MakeHost) -> None:
    host = make_host(anonymous_role="admin", allowed_hosts=["ops.example"])
    head = "DELETE http://localhost/who HTTP/1.1\r\nHost: ops.example\r\nOrigin: http://ops.example\r\n"
    with connect(host) as connection:
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        answer = read_to_end(connection)

    assert answer.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X-ANY"])
@pytest.mark.parametrize(
    "header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"]
)
def test_another_web_site_may_change_nothing(make_host: MakeHost, method: str, header: str) -> None:
    host = make_host(anonymous_role="admin")

    status, body = curl(host, "/who", "-X", method, "-H", header)

    assert status == 403
    assert "the request comes from another web site" in body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_another_web_site_may_link_here_but_not_read(make_host: MakeHost, method: str) -> None:
    host = make_host()
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    with by_tcp(host, headers=headers) as client:
        answer = client.request(method, "/who")
        preflight = client.options("/who", headers={"access-control-request-method": "DELETE"})

    assert answer.status_code == 200
    assert preflight.status_code == 403
    assert not [name for each in (answer, preflight) for name in each.headers if name.startswith("access-control")]


def test_our_own_page_and_programs_may_change_something(make_host: MakeHost) -> None:
    host = make_host(anonymous_role="user")
    own = ["-H", f"Origin: {host.url}", "-H", "Sec-Fetch-Site: same-origin"]

    assert curl(host, "/who", "-X", "DELETE", *own)[0] == 200
    assert curl(host, "/who", "-X", "DELETE")[0] == 200


def test_a_body_has_to_be_json(make_host: MakeHost) -> None:
    host = make_host(anonymous_role="user")

    assert curl(host, "/who", "-d", "{}", "-H", "Content-Type: application/json; charset=utf-8")[0] == 200
    assert curl(host, "/who", "-X", "POST")[0] == 200
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        for chunked in ([], ["-H", "Transfer-Encoding: chunked"]):
            status, body = curl(host, "/who", "-d", "{}", "-H", f"Content-Type: {content_type}", *chunked)
            assert (status, body) == (415, '{"error": "the body must be application/json"}\n')


# -- users -------------------------------------------------------------------------------------------------------------


def test_the_unix_socket_s_client_is_its_user_and_may_do_everything(make_host: MakeHost, tokens_file: Path) -> None:
    token_of(tokens_file, "alice", "view")
    host = make_host(tokens_file=tokens_file)
    with by_socket(host) as client:
        assert client.get("/who").json() == {"name": OWN_NAME, "role": "admin", "bytes": 0}
        assert client.post("/admin").status_code == 200


def test_without_tokens_clients_of_this_machine_have_the_role_of_the_configuration(make_host: MakeHost) -> None:
    with by_tcp(make_host(name="first")) as client:
        for headers in ({}, bearer("x"), {"authorization": "Basic eDp5"}, {"authorization": "Negotiate YII"}):
            assert client.get("/who", headers=headers).json() == {"name": "anonymous", "role": "view", "bytes": 0}
        refused = client.get("/admin")
        assert refused.status_code == 403
        assert error_of(refused) == "role admin is required; anonymous has role view"
    with by_tcp(make_host(name="second", anonymous_role="admin")) as client:
        assert client.get("/admin").status_code == 200


def test_with_tokens_only_those_enter_with_their_roles(make_host: MakeHost, tokens_file: Path) -> None:
    alice, boss = token_of(tokens_file, "alice", "view"), token_of(tokens_file, "boss", "admin")
    host = make_host(tokens_file=tokens_file)
    with by_tcp(host) as client:
        for headers in ({}, bearer("x"), bearer("x y"), {"authorization": f"Basic {boss}"}, {"authorization": boss}):
            refused = client.get("/who", headers=headers)
            assert refused.status_code == 401
            assert refused.headers.get_list("www-authenticate") == [
                'Basic realm="dispatcher", charset="UTF-8"',
                'Bearer realm="dispatcher"',
            ]
            assert "needs a token" in error_of(refused)
        assert client.get("/who", headers=bearer(alice)).json()["name"] == "alice"
        assert client.get("/admin", headers=bearer(alice)).status_code == 403
        assert client.get("/admin", headers=bearer(boss)).json() == {"name": "boss", "role": "admin", "bytes": 0}


def test_a_new_token_enters_and_one_that_was_removed_does_not_without_a_restart(
    make_host: MakeHost, tokens_file: Path
) -> None:
    alice = token_of(tokens_file, "alice", "view")
    host = make_host(tokens_file=tokens_file)
    with by_tcp(host) as client:
        bob = token_of(tokens_file, "bob", "user")
        assert client.get("/who", headers=bearer(bob)).json()["role"] == "user"

        tokens_file.write_text(f"{tokens_file.read_text().splitlines()[1]}\n")

        assert client.get("/who", headers=bearer(alice)).status_code == 401
        assert client.get("/who", headers=bearer(bob)).status_code == 200


def test_a_tokens_file_that_others_may_read_stops_the_start(make_host: MakeHost, tokens_file: Path) -> None:
    token_of(tokens_file, "alice", "view")
    tokens_file.chmod(0o640)

    with pytest.raises(
        ConfigError, match=r"web\.tokens_file .*: mode 0640 gives other users access; run chmod 0600 on it"
    ):
        make_host(tokens_file=tokens_file)


def test_with_tokens_it_may_listen_beyond_this_machine(
    make_host: MakeHost, tokens_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = token_of(tokens_file, "alice", "view")
    host = make_host(tokens_file=tokens_file, host="0.0.0.0")

    assert "web.tls is not set, so tokens pass the network in plain text" in caplog.text
    with httpx.Client(base_url=f"http://127.0.0.1:{host.port}", trust_env=False) as client:
        assert client.get("/who").status_code == 401
        assert client.get("/who", headers=bearer(alice)).status_code == 200


@pytest.mark.parametrize("path", ["/events", "/silent"])
@pytest.mark.parametrize("lines", ["", "alice view {}"], ids=["revoked", "lowered"])
@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_an_open_stream_ends_when_its_token_is_revoked_or_its_role_lowered(
    make_host: MakeHost, tokens_file: Path, path: str, lines: str, scheme: str
) -> None:
    """It went on for as long as the client stayed."""
    alice = token_of(tokens_file, "alice", "admin")
    host = make_host(tokens_file=tokens_file)
    headers = bearer(alice) if scheme == "Bearer" else basic(f"alice:{alice}")
    with by_tcp(host) as client, client.stream("GET", path, headers=headers) as stream:
        received = stream.iter_lines()
        assert next(received) == ": still here"
        tokens_file.write_text(lines.format(digest_of(alice)))

        for _ in received:  # until the server ends it
            pass


def test_a_stream_that_sends_nothing_is_checked_too() -> None:
    alice = Principal("alice", "view")
    users = iter([alice, None])
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()
        yield b""

    async def follow() -> None:
        scope = {"type": "http", "method": "GET", "principal": alice, "identify": lambda: next(users)}
        response = event_stream(asyncio.Event(), never())
        await asyncio.wait_for(response(scope, asyncio.Event().wait, append), TIMEOUT_S)  # type: ignore[arg-type]

    async def append(message: Any) -> None:
        sent.append(message)

    asyncio.run(follow())

    assert CHECK_S < 1
    assert [each.get("body") for each in sent] == [None, COMMENT, b""]
    assert next(users, "all were asked for") == "all were asked for"


# -- browsers ----------------------------------------------------------------------------------------------------------


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def test_a_browser_sends_the_token_as_its_password(make_host: MakeHost, tokens_file: Path) -> None:
    alice = token_of(tokens_file, "alice", "user")
    host = make_host(tokens_file=tokens_file)
    own = {"origin": str(host.url), "sec-fetch-site": "same-origin"}
    with by_tcp(host) as client:
        for text in (f"alice:{alice}", f":{alice}"):
            answer = client.get("/who", headers=basic(text))
            assert answer.json() == {"name": "alice", "role": "user", "bytes": 0}
            assert "set-cookie" not in answer.headers
        assert client.post("/who", headers={**basic(f"alice:{alice}"), **own}).status_code == 200

    assert curl(host, "/who", "-u", f"alice:{alice}", "--anyauth")[0] == 200


@pytest.mark.parametrize(
    "text", ["alice:wrong", "alice:", "alice", ":", "bob:TOKEN", "TOKEN:", "é:TOKEN", "alice:TOKEN:"]
)
def test_a_wrong_name_or_password_is_401(make_host: MakeHost, tokens_file: Path, text: str) -> None:
    alice = token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        assert client.get("/who", headers=basic(text.replace("TOKEN", alice))).status_code == 401


@pytest.mark.parametrize("value", ["Basic", "Basic =", "Basic \xff", "Basic /w==", "Basic YQ", "basic Og=="])
def test_what_is_no_password_is_401(make_host: MakeHost, tokens_file: Path, value: str) -> None:
    token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        answer = client.get("/who", headers=[(b"authorization", value.encode("latin-1"))])

    assert answer.status_code == 401


@pytest.mark.parametrize("header", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_another_site_changes_nothing_with_a_password_that_the_browser_remembers(
    make_host: MakeHost, tokens_file: Path, header: dict[str, str]
) -> None:
    """A browser adds it to the requests of other sites, unlike a cookie that is SameSite=Strict."""
    alice = token_of(tokens_file, "alice", "admin")
    host = make_host(tokens_file=tokens_file, takes_form=lambda _: True)
    with by_tcp(host, headers=basic(f"alice:{alice}") | header) as client:
        assert client.post("/submit", data={"a": "b"}).status_code == 403
        assert client.delete("/who").status_code == 403
        assert client.get("/who").headers["cross-origin-resource-policy"] == "same-origin"


# -- headers and the audit ---------------------------------------------------------------------------------------------

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("path", ["/who", "/nothing", "/admin", "/fails"])
def test_every_answer_has_the_security_headers(make_host: MakeHost, tokens_file: Path, path: str) -> None:
    token = token_of(tokens_file, "alice", "view")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        for answer in (
            client.get(path, headers=bearer(token)),
            client.get(path),
            client.get(path, headers={"host": "x"}),
        ):
            assert answer.headers["content-security-policy"] == CSP
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers


def test_an_app_may_say_how_long_its_files_are_kept(make_host: MakeHost) -> None:
    with by_tcp(make_host()) as client:
        answer = client.get("/cached")

    assert answer.headers.get_list("cache-control") == ["max-age=60"]
    assert answer.headers["content-security-policy"] == CSP


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dispatcher.audit"]


def test_each_write_has_a_line_in_the_audit_log(
    make_host: MakeHost, tokens_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = token_of(tokens_file, "alice", "user")
    host = make_host(tokens_file=tokens_file)
    with by_tcp(host) as client:
        client.get("/who", headers=bearer(alice))
        client.post("/who", headers=bearer(alice))
        client.post("/submit", headers=bearer(alice))
        client.delete("/who")
        client.post("/admin", headers=bearer(alice))
        client.post("/who", headers=bearer(alice) | {"origin": "http://evil.example"})
        client.post("/fails", headers=bearer(alice))
        client.post("/a%0Ab%09RESULT=SUCCESS", headers=bearer(alice))

    until(lambda: len(audited(caplog)) > 6, "the last line, which is written after its answer")
    alices, nobodys = "USER=alice\tIP=127.0.0.1\t", "USER=-\tIP=127.0.0.1\t"
    assert audited(caplog) == [
        f"{alices}OPERATION=POST\tTARGET=/who\tRESULT=SUCCESS",
        f"{alices}OPERATION=Submit Application Request\tTARGET=app_17\tRESULT=SUCCESS",
        f"{nobodys}OPERATION=DELETE\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=401: this door needs a token "
        "(Authorization: Bearer TOKEN, or your name and TOKEN as the password) or a client certificate",
        f"{alices}OPERATION=POST\tTARGET=/admin\tRESULT=FAILURE\tDESCRIPTION=403: role admin is required; alice has "
        "role user",
        f"{alices}OPERATION=POST\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=403: Origin is http://evil.example: the "
        "request comes from another web site",
        f"{alices}OPERATION=POST\tTARGET=/fails\tRESULT=FAILURE\tDESCRIPTION=500: RuntimeError: of the app",
        f"{alices}OPERATION=POST\tTARGET=/a\\nb\\tRESULT=SUCCESS\tRESULT=FAILURE\tDESCRIPTION=404",
    ]
    assert alice not in caplog.text


def test_the_audit_line_of_the_unix_socket_names_the_user(
    make_host: MakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    with by_socket(make_host()) as client:
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
    make_host: MakeHost, path: str, headers: dict[str, str], status: int
) -> None:
    host = make_host(takes_form=lambda each: each == "/submit")
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
