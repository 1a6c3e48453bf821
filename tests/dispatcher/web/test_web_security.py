"""Who enters by which door, with real clients: hosts, origins, tokens, cookies, headers, the audit."""

from __future__ import annotations

import logging
import os
import pwd
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from dispatcher import ConfigError
from dispatcher.web import WebHost
from dispatcher.web.config import RoleName
from dispatcher.web.tokens import add_line, new_token

from ..conftest import TIMEOUT_S
from ..waiting import until
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
            assert refused.headers["www-authenticate"] == 'Bearer realm="dispatcher"'
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


# -- browsers ----------------------------------------------------------------------------------------------------------


def test_a_browser_logs_in_with_a_token_and_gets_a_cookie(make_host: MakeHost, tokens_file: Path) -> None:
    alice = token_of(tokens_file, "alice", "user")
    host = make_host(tokens_file=tokens_file)
    own = {"origin": str(host.url), "sec-fetch-site": "same-origin"}
    with by_tcp(host) as client:
        sent = client.get("/who?a=1", headers={"accept": "text/html,*/*"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/who")
        page = client.get(sent.headers["location"])
        assert page.status_code == 200
        assert 'name="next" value="/who"' in page.text
        assert "<script" not in page.text

        done = client.post("/login", data={"token": alice, "next": "/who"}, headers=own)

        assert (done.status_code, done.headers["location"]) == (303, "/who")
        [cookie] = done.headers.get_list("set-cookie")
        assert cookie.startswith(f"dispatcher_session_{host.port}=")
        assert cookie.partition(";")[2] == " Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"
        assert alice not in cookie
        assert client.get("/who").json() == {"name": "alice", "role": "user", "bytes": 0}
        assert client.post("/who", headers=own).status_code == 200
        assert client.post("/who", headers={"origin": "http://evil.example"}).status_code == 403


def test_a_session_ends_with_its_token_and_with_its_time(make_host: MakeHost, tokens_file: Path) -> None:
    alice, bob = token_of(tokens_file, "alice", "user"), token_of(tokens_file, "bob", "user")
    long, short = (
        make_host(name="long", tokens_file=tokens_file),
        make_host(name="short", tokens_file=tokens_file, session_s=1e-6),
    )
    with by_tcp(long) as client, by_tcp(short) as other:
        assert client.post("/login", json={"token": alice}).status_code == 303
        assert other.post("/login", json={"token": bob}).status_code == 303
        assert client.get("/who").status_code == 200
        assert other.get("/who").status_code == 401

        tokens_file.write_text("")

        assert client.get("/who").status_code == 401


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ('{"token": "wrong"}', "application/json", 401),
        ("token=wrong", "application/x-www-form-urlencoded", 401),
        ('{"tok": 1}', "application/json", 400),
        ('{"token": 1}', "application/json", 400),
        ("[" * 4000, "application/json", 400),
        ("[]", "application/json", 400),
        ("\xff", "application/x-www-form-urlencoded", 400),
        ("", "application/x-www-form-urlencoded", 400),
        ("token=x", "text/plain", 415),
        ("token=" + "x" * 5000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_a_login_that_fails_sets_no_cookie(
    make_host: MakeHost, tokens_file: Path, body: str, content_type: str, status: int
) -> None:
    token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        answer = client.post("/login", content=body.encode("latin-1"), headers={"content-type": content_type})

    assert answer.status_code == status
    assert error_of(answer)
    assert "set-cookie" not in answer.headers


def test_a_form_that_fails_is_shown_again_with_the_error(make_host: MakeHost, tokens_file: Path) -> None:
    """A browser showed the error as a line of JSON."""
    token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        browser = {"accept": "text/html", "sec-fetch-site": "same-origin"}
        answer = client.post("/login", data={"token": "wrong", "next": "/who"}, headers=browser)

    assert answer.status_code == 401
    assert '<p class="alert" id="problem" role="alert">This token is not valid.</p>' in answer.text
    assert 'name="next" value="/who"' in answer.text
    assert "set-cookie" not in answer.headers


def test_the_login_page_has_the_style_of_its_site(make_host: MakeHost, tokens_file: Path) -> None:
    token_of(tokens_file, "alice", "user")
    host = make_host(name="central", tokens_file=tokens_file, style_sheet="h1 { color: red }")
    with by_tcp(host) as client:
        page = client.get("/login")
        [address] = re.findall(r'<link rel="stylesheet" href="([^"]*)">', page.text)
        sheet = client.get(address)

    assert "<title>Log in - central</title>" in page.text
    assert (sheet.text, sheet.headers["content-type"]) == ("h1 { color: red }", "text/css; charset=utf-8")


def test_a_log_out_ends_the_session_and_leads_to_the_form(
    make_host: MakeHost, tokens_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = token_of(tokens_file, "alice", "user")
    host = make_host(tokens_file=tokens_file)
    own = {"origin": str(host.url), "sec-fetch-site": "same-origin"}
    with by_tcp(host) as client:
        client.post("/login", json={"token": alice})
        session = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        before = client.get("/login").text

        done = client.post("/logout", headers=own)

        assert "You are logged in as alice." in before
        assert (done.status_code, done.headers["location"]) == (303, "/login")
        assert dict(client.cookies) == {}
        assert client.get("/who", headers={"cookie": session}).status_code == 401
        assert 'name="token"' in client.get("/login").text
    until(lambda: len(audited(caplog)) >= 2, "the line, which is written after the answer")
    assert audited(caplog)[-1] == "USER=alice\tIP=127.0.0.1\tOPERATION=logout\tTARGET=/logout\tRESULT=SUCCESS"


def test_another_site_logs_no_user_out(make_host: MakeHost, tokens_file: Path) -> None:
    alice = token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        client.post("/login", json={"token": alice})

        foreign = client.post("/logout", headers={"origin": "http://evil.example"})
        by_link = client.get("/logout")

        assert (foreign.status_code, by_link.status_code) == (403, 405)
        assert client.get("/who").status_code == 200


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "evil", "/a\r\nX: 1"])
def test_a_login_leads_nowhere_else(make_host: MakeHost, tokens_file: Path, target: str) -> None:
    alice = token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        page = client.get("/login", params={"next": target})
        done = client.post("/login", json={"token": alice, "next": target})

    assert 'value="/"' in page.text
    assert done.headers["location"] == "/"
    assert "x" not in done.headers


def test_a_login_from_another_site_is_refused(make_host: MakeHost, tokens_file: Path) -> None:
    alice = token_of(tokens_file, "alice", "user")
    with by_tcp(make_host(tokens_file=tokens_file)) as client:
        answer = client.post("/login", data={"token": alice}, headers={"origin": "http://evil.example"})

    assert answer.status_code == 403


def test_there_is_no_login_without_tokens(make_host: MakeHost) -> None:
    with by_tcp(make_host()) as client:
        assert client.get("/login").status_code == 404


# -- headers and the audit ---------------------------------------------------------------------------------------------

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("path", ["/who", "/nothing", "/login", "/admin", "/fails"])
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
        client.post("/login", json={"token": "wrong"})
        client.post("/login", json={"token": alice})
        client.post("/a%0Ab%09RESULT=SUCCESS", headers=bearer(alice))

    until(lambda: len(audited(caplog)) >= 9, "the last line, which is written after its answer")
    alices, nobodys = "USER=alice\tIP=127.0.0.1\t", "USER=-\tIP=127.0.0.1\t"
    assert audited(caplog) == [
        f"{alices}OPERATION=POST\tTARGET=/who\tRESULT=SUCCESS",
        f"{alices}OPERATION=Submit Application Request\tTARGET=app_17\tRESULT=SUCCESS",
        f"{nobodys}OPERATION=DELETE\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=401: this door needs a token "
        "(Authorization: Bearer TOKEN) or a client certificate",
        f"{alices}OPERATION=POST\tTARGET=/admin\tRESULT=FAILURE\tDESCRIPTION=403: role admin is required; alice has "
        "role user",
        f"{alices}OPERATION=POST\tTARGET=/who\tRESULT=FAILURE\tDESCRIPTION=403: Origin is http://evil.example: the "
        "request comes from another web site",
        f"{alices}OPERATION=POST\tTARGET=/fails\tRESULT=FAILURE\tDESCRIPTION=500: RuntimeError: of the app",
        f"{nobodys}OPERATION=login\tTARGET=/login\tRESULT=FAILURE\tDESCRIPTION=401: this token is not valid",
        f"{alices}OPERATION=login\tTARGET=/login\tRESULT=SUCCESS",
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
