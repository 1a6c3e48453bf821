"""The configurations of the page on proxies, run by nginx in front of a door."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from dispatcher.web import WebHost

from ...kit import TIMEOUT_S, until
from ...kit.certificates import NEEDS_OPENSSL, Authority
from .conftest import MakeHost, add_user, answering

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light"),
    NEEDS_OPENSSL,
]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "behind-a-proxy.md"
AROUND = """daemon off; master_process off; pid {0}/nginx.pid; error_log stderr; events {{}}
http {{
access_log off; client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c; uwsgi_temp_path {0}/d;
scgi_temp_path {0}/e;
{1}
}}
"""


def configuration(number: int) -> str:
    return re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Proxy = Callable[..., httpx.Client]


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxy]:
    """Makes a client of an nginx that has a configuration of the page; `others` are further texts to replace."""
    clients: list[httpx.Client] = []
    servers: list[subprocess.Popen[bytes]] = []
    ca = Authority(tmp_path / "ca").make()
    cert, key = ca.sign("proxy")

    def make(number: int, host: WebHost, **others: object) -> httpx.Client:
        port = free_port()
        replaced = {
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:8088": f"127.0.0.1:{host.port}",
            "/etc/nginx/ops.pem": cert,
            "/etc/nginx/ops.key": key,
            **others,
        }
        text = configuration(number)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, str(new))
        file = tmp_path / "nginx.conf"
        file.write_text(AROUND.format(tmp_path, text))
        servers.append(subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(file)]))
        until(lambda: is_listening(port), "nginx")
        trust = ssl.create_default_context(cafile=str(ca.cert))
        client = httpx.Client(
            base_url=f"https://127.0.0.1:{port}",
            headers={"host": f"ops.example:{port}"},
            verify=trust,
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
    for server in servers:
        server.terminate()
        server.wait(TIMEOUT_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def host(make_host: MakeHost, tmp_path: Path) -> WebHost:
    add_user(tmp_path / "tokens", "carol", "admin")
    return make_host(tokens_file=tmp_path / "tokens", allowed_hosts=["ops.example"])


@pytest.fixture
def alice(host: WebHost, tmp_path: Path) -> str:
    return add_user(tmp_path / "tokens", "alice", "user")


def test_the_checks_of_the_door_hold_behind_nginx(host: WebHost, alice: str, proxied: Proxy) -> None:
    client = proxied(0, host)
    own, user = f"https://{client.headers['host']}", ("alice", alice)

    asked = client.get("/who")
    entered = client.get("/who", auth=user)
    changed = client.post("/who", auth=user, headers={"origin": own, "sec-fetch-site": "same-origin"})
    foreign = client.post("/who", auth=user, headers={"origin": "https://evil.example"})
    rebound = client.get("/who", auth=user, headers={"host": "evil.example"})

    assert (asked.status_code, asked.headers["www-authenticate"][:6]) == (401, "Basic ")
    assert entered.json()["name"] == "alice"
    assert [each.status_code for each in (changed, foreign, rebound)] == [200, 403, 421]


def test_events_come_through_nginx_as_they_are_sent(host: WebHost, alice: str, proxied: Proxy) -> None:
    client = proxied(0, host)
    with client.stream("GET", "/silent", auth=("alice", alice)) as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(6)] == [": still here", ""] * 3


def single_sign_on(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
    """As oauth2-proxy: the cookie is the user; without one, there is a page to sign in."""
    user = (request.headers.get("Cookie") or "").removeprefix("user=")
    headers = {"X-Auth-Request-Email": user}
    if request.path == "/oauth2/auth":
        return 202 if user else 401, headers, b""
    return 200, headers, b"sign in"


@pytest.fixture
def sign_on() -> Iterator[int]:
    with answering(single_sign_on) as port:
        yield port


def test_nginx_gives_the_door_the_token_of_whom_oauth2_proxy_knows(
    host: WebHost, alice: str, proxied: Proxy, sign_on: int, tmp_path: Path
) -> None:
    (tmp_path / "door-tokens").write_text(f"alice@example.org {alice};\n")
    others = {"127.0.0.1:4180": f"127.0.0.1:{sign_on}", "/etc/nginx/door-tokens": tmp_path / "door-tokens"}
    client = proxied(1, host, **others)

    nobody = client.get("/who")
    known = client.get("/who", headers={"cookie": "user=alice@example.org", "authorization": "Bearer wrong"})
    unknown = client.get("/who", headers={"cookie": "user=eve@example.org", "authorization": f"Bearer {alice}"})
    asked = client.get("/oauth2/auth", headers={"cookie": "user=alice@example.org"})

    assert nobody.text == "sign in"
    assert known.json()["name"] == "alice"
    assert (unknown.status_code, "www-authenticate" in unknown.headers) == (401, False)
    assert asked.status_code == 404
