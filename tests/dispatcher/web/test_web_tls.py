"""TLS of a web host, with an authority that the test makes."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from dispatcher import ConfigError
from dispatcher.web import TLSConfig, WebHost

from ...kit import TIMEOUT_S, until
from ...kit.certificates import NEEDS_OPENSSL, Authority, openssl
from .conftest import MakeHost, add_user, by_socket, connect, read_to_end

pytestmark = [pytest.mark.long, NEEDS_OPENSSL]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca").make()


@pytest.fixture(scope="module")
def tls(ca: Authority) -> TLSConfig:
    cert, key = ca.sign("door")
    return TLSConfig(cert=cert, key=key)


def client_of(host: WebHost, ca: Authority, name: str | None = None) -> httpx.Client:
    """A client that trusts the CA, with a certificate of its own if it has a name."""
    trust = ssl.create_default_context(cafile=str(ca.cert))
    if name is not None:
        trust.load_cert_chain(*ca.sign(name))
    return httpx.Client(base_url=str(host.url), verify=trust, timeout=TIMEOUT_S, trust_env=False)


def curl(host: WebHost, ca: Authority, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "-sS", "--cacert", str(ca.cert), *options, f"{host.url}/who"]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_tcp_is_https_and_the_unix_socket_is_not(make_host: MakeHost, ca: Authority, tls: TLSConfig) -> None:
    host = make_host(tls=tls, anonymous_role="user")

    assert str(host.url).startswith("https://127.0.0.1:")
    with client_of(host, ca) as client, by_socket(host) as local:
        assert client.get("/who").json()["name"] == "anonymous"
        assert local.get("/who").json()["role"] == "admin"
        for scheme, status in (("http", 403), ("https", 200)):  # a plain page changes nothing here
            origin = f"{scheme}://127.0.0.1:{host.port}"
            assert client.delete("/who", headers={"origin": origin}).status_code == status
    assert '"anonymous"' in curl(host, ca).stdout


def test_plain_http_and_old_tls_get_no_answer(make_host: MakeHost, ca: Authority, tls: TLSConfig) -> None:
    host = make_host(tls=tls)
    with connect(host, "/who") as connection:
        assert b"HTTP/" not in read_to_end(connection)

    assert curl(host, ca, "--tls-max", "1.1").returncode == 35


def test_a_client_s_certificate_names_its_user(make_host: MakeHost, ca: Authority, tls: TLSConfig) -> None:
    host = make_host(tls=tls.model_copy(update={"client_ca": ca.cert}))

    with client_of(host, ca, "alice") as client:
        assert client.get("/who").json() == {"name": "alice", "role": "user", "bytes": 0}


def test_without_a_certificate_of_the_authority_nobody_enters(
    make_host: MakeHost, ca: Authority, tls: TLSConfig, tmp_path: Path
) -> None:
    host = make_host(tls=tls.model_copy(update={"client_ca": ca.cert}))
    other = Authority(tmp_path / "other").make()
    stranger = ssl.create_default_context(cafile=str(ca.cert))
    stranger.load_cert_chain(*other.sign("alice"))

    with client_of(host, ca) as client, pytest.raises(httpx.TransportError):
        client.get("/who")
    with httpx.Client(base_url=str(host.url), verify=stranger) as client, pytest.raises(httpx.TransportError):
        client.get("/who")


def test_a_user_by_certificate_has_the_role_of_its_line_and_a_token_comes_first(
    make_host: MakeHost, ca: Authority, tls: TLSConfig, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    add_user(tokens, "alice", "admin")
    token = add_user(tokens, "bob", "view")
    host = make_host(tokens_file=tokens, tls=tls.model_copy(update={"client_ca": ca.cert}))

    with client_of(host, ca, "alice") as client:
        assert client.get("/who").json()["role"] == "admin"
        assert client.get("/who", headers={"authorization": f"Bearer {token}"}).json()["name"] == "bob"
        assert client.get("/who", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_beyond_this_machine_it_needs_certificates_of_clients_and_not_its_own_alone(
    make_host: MakeHost, ca: Authority, tls: TLSConfig
) -> None:
    assert make_host(host="0.0.0.0", tls=tls.model_copy(update={"client_ca": ca.cert})).port

    with pytest.raises(ConfigError, match=r"needs web\.tokens_file or web\.tls\.client_ca"):
        make_host(name="other", host="0.0.0.0", tls=tls)


def test_clients_that_begin_tls_and_stop_take_no_place_and_end(
    make_host: MakeHost, ca: Authority, tls: TLSConfig
) -> None:
    host = make_host(tls=tls, connections=2, request_deadline_s=0.5)
    silent = [connect(host) for _ in range(200)]

    until(lambda: is_answered(host, ca), "an answer beside clients that do not finish their handshake")

    for each in silent:
        read_to_end(each)
        each.close()


def test_clients_that_begin_tls_and_stop_yield_to_one_that_goes_on(
    make_host: MakeHost, ca: Authority, tls: TLSConfig
) -> None:
    """Until the deadline of their handshake, every other client lost its connection."""
    host = make_host(tls=tls, connections=2)
    silent = [connect(host) for _ in range(200)]

    assert is_answered(host, ca)

    host.stop()
    for each in silent:
        each.close()


def is_answered(host: WebHost, ca: Authority) -> bool:
    try:
        with client_of(host, ca) as client:
            return client.get("/who").status_code == 200
    except httpx.TransportError:
        return False


def test_a_stop_waits_for_no_client_of_tls(make_host: MakeHost, ca: Authority, tls: TLSConfig) -> None:
    from .test_web_host import MOST_S, stop_timed

    host = make_host(tls=tls)
    halfway = connect(host)
    with client_of(host, ca) as client, client.stream("GET", "/events") as stream:
        next(stream.iter_text())
        assert stop_timed(host) < MOST_S
    read_to_end(halfway)
    halfway.close()


def test_files_that_are_missing_or_wrong_are_refused_in_one_line(
    make_host: MakeHost, ca: Authority, tls: TLSConfig, tmp_path: Path
) -> None:
    gone, text = tmp_path / "gone.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", tls.key, "-aes256", "-passout", "pass:secret", "-out", locked)
    wrong = {
        "web.tls.cert .*gone.pem: does not exist": {"cert": gone},
        "web.tls.key .*gone.pem: does not exist": {"key": gone},
        "web.tls.client_ca .*gone.pem: does not exist": {"client_ca": gone},
        "web.tls.client_ca .*text.pem: no certificates in PEM": {"client_ca": text},
        "web.tls.cert .*text.pem, .*not a certificate and its key in PEM": {"cert": text},
        "web.tls.key .*ca.key: not a certificate and its key": {"key": ca.key("ca")},
        "web.tls.key .*locked.key: not a certificate and its key in PEM, without a password": {"key": locked},
    }
    for problem, change in wrong.items():
        with pytest.raises(ConfigError, match=problem) as caught:
            make_host(tls=tls.model_copy(update=change))
        assert "\n" not in str(caught.value)
