"""The notify protocol's datagrams, sent to real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from dispatcher.supervision.systemd import NotifySocket, notify_socket, watchdog_s

from ...kit import TIMEOUT_S

ABSTRACT = pytest.param("abstract", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only"))


@pytest.fixture(params=["path", ABSTRACT])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and what NOTIFY_SOCKET says of it."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@dispatcher-test-{uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(TIMEOUT_S)
        listening.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        yield listening, address


def test_a_datagram_has_a_line_for_each_value(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    found = notify_socket({"NOTIFY_SOCKET": address})

    assert found is not None
    assert found.send(READY=1, STATUS="12 queued")
    assert listening.recv(4096) == b"READY=1\nSTATUS=12 queued"
    found.close()
    assert found.send(STOPPING=1)
    assert listening.recv(4096) == b"STOPPING=1"
    found.close()


def test_a_value_cannot_add_a_line_nor_grow_beyond_a_datagram(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(TIMEOUT_S)
        listening.bind(str(tmp_path / "notify"))
        sender = NotifySocket(str(tmp_path / "notify"))

        assert sender.send(STATUS="a\nWATCHDOG=1\udcff")
        assert listening.recv(4096) == b"STATUS=a\\nWATCHDOG=1\\udcff"
        assert sender.send(STATUS="x" * 100_000)
        assert len(listening.recv(1 << 20)) < 4096
        sender.close()


def test_a_service_manager_that_has_gone_costs_nothing_but_the_datagram(tmp_path: Path) -> None:
    for address in (str(tmp_path / "nobody"), str(tmp_path / ("x" * 200)), "@nobody"):
        sender = NotifySocket(address)
        assert not sender.send(READY=1)
        sender.close()


def test_a_service_manager_that_does_not_read_is_waited_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.supervision.systemd._LONGEST_SEND_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        sender = NotifySocket(str(tmp_path / "notify"))
        while sender.send(STATUS="x"):
            continue  # until the socket's buffer is full
        sender.close()


@pytest.mark.parametrize("value", [None, "", "/", "@", "relative", "vsock:2:1234"])
def test_without_a_unix_socket_nothing_is_sent(value: str | None) -> None:
    assert notify_socket({} if value is None else {"NOTIFY_SOCKET": value}) is None


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "9" * 5000}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": ""}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_s_time_is_this_process_s_own(environ: dict[str, str], seconds: float | None) -> None:
    assert watchdog_s(environ) == seconds


def test_systemd_s_own_tool_says_the_same(manager: tuple[socket.socket, str]) -> None:
    """What systemd-notify(1) sends for the same values."""
    listening, address = manager
    try:
        subprocess.run(
            ["systemd-notify", "--no-block", "--ready", "--status=12 queued"],
            env={**os.environ, "NOTIFY_SOCKET": address},
            check=True,
            timeout=TIMEOUT_S,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no systemd-notify on this machine")
    theirs = listening.recv(4096)

    sender = NotifySocket(address)
    sender.send(READY=1, STATUS="12 queued")
    sender.close()

    assert set(listening.recv(4096).split(b"\n")) <= set(theirs.split(b"\n"))
