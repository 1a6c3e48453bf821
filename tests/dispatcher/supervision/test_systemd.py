"""What systemd hears of a daemon: datagrams on a real socket, from a thread beside the daemon."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig
from dispatcher.supervision.systemd import NotifySocket, Supervision, notify_socket, status_line, watchdog_s

from ...kit import TIMEOUT_S, Gate, Numbered, until
from ...kit.dispatchers import hold, stopping
from ...kit.services import fail
from .asked import health_of

Make = Callable[..., AsyncDispatcher]
OFTEN_S = 0.005
FOR_EVER_S = 1e6


class Manager:
    """The service manager's end of the socket. The thread of the test."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.environ = {"NOTIFY_SOCKET": address}

    def next(self) -> dict[str, str]:
        lines = self.socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]

    def until(self, key: str, beginning: str = "") -> list[dict[str, str]]:
        """All that comes until a value of `key` begins so; that is the last one."""
        found = [self.next()]
        while key not in found[-1] or not found[-1][key].startswith(beginning):
            found.append(self.next())
        return found

    def forget(self) -> None:
        """Drop what has come so far."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(4096):
                continue
        except BlockingIOError:
            self.socket.settimeout(TIMEOUT_S)

    def await_silence(self, seconds: float) -> None:
        """Fail if more comes meanwhile than what was on its way and a status, of which there is one in ten seconds."""
        self.socket.settimeout(seconds)
        with suppress(TimeoutError):
            raise AssertionError([self.next() for _ in range(3)])
        self.socket.settimeout(TIMEOUT_S)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    with manager.socket:
        yield manager


def keys(datagrams: list[dict[str, str]]) -> set[str]:
    return {key for datagram in datagrams for key in datagram}


@contextmanager
def supervised(
    dispatcher: AsyncDispatcher, manager: Manager, *, watchdog: float | None = None, status_every_s: float = OFTEN_S
) -> Iterator[Supervision]:
    fed = {} if watchdog is None else {"WATCHDOG_USEC": str(int(watchdog * 1e6))}
    asked = health_of(dispatcher)
    with Supervision(
        dispatcher, asked, {**manager.environ, **fed}, status_every_s=status_every_s, extend_every_s=OFTEN_S
    ) as supervision:
        yield supervision


def assert_only_status_comes(manager: Manager) -> None:
    """But for one datagram whose thread had looked before."""
    assert sum(datagram.keys() != {"STATUS"} for datagram in (manager.next() for _ in range(20))) <= 1


def systemd_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("systemd-")}


def test_without_a_socket_no_thread_is_started_and_nothing_is_sent(make: Make) -> None:
    with Supervision(make(), health_of(), {"WATCHDOG_USEC": "1000"}) as supervision:
        supervision.started()
        supervision.stopping()

        assert systemd_threads() == set()


def test_ready_status_and_stopping_are_told_once_each_in_their_order(make: Make, manager: Manager) -> None:
    dispatcher = make(DispatcherConfig(measure_times="none"), name="central")  # it sends itself no mail
    with supervised(dispatcher, manager, status_every_s=FOR_EVER_S) as supervision:
        assert manager.next() == {"STATUS": "ok; central: 0 queued, 0 handled, 0 failed, idle"}
        supervision.started()
        assert manager.next() == {"READY": "1"}
        assert manager.next().keys() == {"STATUS"}
        supervision.stopping()
        assert manager.next() == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "15000000"}
        assert manager.next().keys() == {"STATUS"}

    assert systemd_threads() == set()


HANGS = DispatcherConfig(liveness_stuck_after_s=0.001, handler_warn_after_s=0.1)
TROUBLES: dict[str, tuple[Callable[[AsyncDispatcher, Gate], Any], str, str]] = {
    "an event hangs": (lambda each, gate: each.post(Numbered()), "stuck (central)", "Work.DO runs for "),
    "a mail hangs": (
        lambda each, gate: each.mailbox_executor.execute(lambda: gate.handle(None), "a call"),
        "stuck (central)",
        "a mail runs for ",
    ),
    "it has failed": (lambda each, gate: each.mailbox_executor.execute(fail), "failed (central)", ""),
}


@pytest.mark.parametrize(("cause", "status", "what_runs"), TROUBLES.values(), ids=TROUBLES)
def test_the_watchdog_is_fed_until_a_dispatcher_is_in_trouble(
    make: Make, manager: Manager, gate: Gate, cause: Callable[[AsyncDispatcher, Gate], Any], status: str, what_runs: str
) -> None:
    dispatcher = make(HANGS, name="central", handler=gate)
    with supervised(dispatcher, manager, watchdog=2 * OFTEN_S):
        for _ in range(5):
            manager.until("WATCHDOG", "1")

        cause(dispatcher, gate)
        last = manager.until("STATUS", status)[-1]  # it is not live by then: 1 ms have long passed
        assert what_runs in last["STATUS"]
        assert_only_status_comes(manager)

        gate.opened.set()
        if dispatcher.failure_cause is None:
            manager.until("WATCHDOG", "1")


def test_a_long_handler_keeps_the_watchdog_fed_unless_configured_otherwise(
    make: Make, manager: Manager, gate: Gate
) -> None:
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.001), name="central", handler=gate)
    with supervised(dispatcher, manager, watchdog=2 * OFTEN_S):
        assert dispatcher.post(Numbered())
        manager.until("STATUS", "stuck (central)")

        manager.until("WATCHDOG", "1")
        manager.until("WATCHDOG", "1")


def test_more_time_is_asked_for_as_long_as_a_dispatcher_drains(make: Make, manager: Manager, gate: Gate) -> None:
    dispatcher = make(name="central", handler=gate)
    with supervised(dispatcher, manager) as supervision:
        hold(dispatcher, gate)
        with stopping(dispatcher):
            supervision.stopping()
            assert "STOPPING" in keys(manager.until("STOPPING"))
            for _ in range(3):
                assert manager.until("EXTEND_TIMEOUT_USEC")[-1] == {"EXTEND_TIMEOUT_USEC": "15000000"}
            gate.opened.set()
        manager.until("STATUS", "stopped (central)")

        assert_only_status_comes(manager)


def test_an_event_whose_looks_hang_costs_status_lines_and_not_the_watchdog(
    make: Make, manager: Manager, gate: Gate
) -> None:
    looks = Gate()

    class Hanging(Numbered):
        @property
        def entity(self) -> str:
            looks.handle(self)
            return "job_1"

    dispatcher = make(name="central", handler=gate)
    try:
        with supervised(dispatcher, manager, watchdog=2 * OFTEN_S):
            assert dispatcher.post(Hanging())
            assert looks.entered.wait(TIMEOUT_S)
            manager.forget()

            assert keys([manager.next() for _ in range(5)]) == {"WATCHDOG"}
            looks.opened.set()
            manager.until("STATUS")
    finally:
        looks.opened.set()


def test_a_service_is_watched_while_it_is_supervised(make: Make, manager: Manager) -> None:
    daemon = CompositeService("daemon")
    asked = health_of()
    with Supervision(daemon, asked, manager.environ, status_every_s=FOR_EVER_S):
        assert asked.ready().status == "starting"

    assert asked.ready().is_ok


# -- the status line ---------------------------------------------------------------------------------------------------


def test_the_status_line_says_what_runs_and_what_waits(make: Make, gate: Gate) -> None:
    dispatcher = make(name="central", handler=gate)
    other = AsyncDispatcher(name="other\nline")
    asked = health_of(dispatcher, other)
    for _ in range(3):
        assert dispatcher.post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    assert re.sub(r"for [0-9.]+ s", "for <time> s", status_line(asked)) == (
        "starting (other\\nline); central: 2 queued, 0 handled, 0 failed, Work.DO runs for <time> s; "
        "other\\nline: 0 queued, 0 handled, 0 failed, notinited"
    )


def test_the_status_line_of_many_dispatchers_is_cut() -> None:
    many = [AsyncDispatcher(name=f"{number}" * 50) for number in range(20)]

    line = status_line(health_of(*many))

    assert len(line) < 520
    assert line.startswith("starting (")


# -- datagrams ---------------------------------------------------------------------------------------------------------

ABSTRACT = pytest.param("abstract", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only"))


@pytest.fixture(params=["path", ABSTRACT])
def bound(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify") if request.param == "path" else f"@dispatcher-test-{uuid4()}")
    with manager.socket:
        yield manager


def test_a_datagram_has_a_line_for_each_value(bound: Manager) -> None:
    found = notify_socket(bound.environ)

    assert found is not None
    assert found.send(READY=1, STATUS="12 queued")
    assert bound.socket.recv(4096) == b"READY=1\nSTATUS=12 queued"
    found.close()
    assert found.send(STOPPING=1)
    assert bound.socket.recv(4096) == b"STOPPING=1"
    found.close()


@pytest.fixture
def sender(manager: Manager) -> Iterator[NotifySocket]:
    sender = NotifySocket(manager.environ["NOTIFY_SOCKET"])
    yield sender
    sender.close()


def test_a_value_cannot_add_a_line_nor_grow_beyond_a_datagram(manager: Manager, sender: NotifySocket) -> None:
    assert sender.send(STATUS="a\nWATCHDOG=1\udcff")
    assert manager.socket.recv(4096) == b"STATUS=a\\nWATCHDOG=1\\udcff"
    assert sender.send(STATUS="x" * 100_000)
    assert len(manager.socket.recv(1 << 20)) < 4096


def test_a_service_manager_that_has_gone_costs_nothing_but_the_datagram(tmp_path: Path) -> None:
    for address in (str(tmp_path / "nobody"), str(tmp_path / ("x" * 200)), "@nobody"):
        sender = NotifySocket(address)
        assert not sender.send(READY=1)
        sender.close()


def test_a_service_manager_that_does_not_read_is_waited_for_a_bounded_time(
    sender: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.supervision.systemd._LONGEST_SEND_S", 0.01)

    while sender.send(STATUS="x"):
        continue  # until the socket's buffer is full


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


def test_systemd_s_own_tool_says_the_same(bound: Manager) -> None:
    """What systemd-notify(1) sends for the same values."""
    try:
        subprocess.run(
            ["systemd-notify", "--no-block", "--ready", "--status=12 queued"],
            env={**os.environ, **bound.environ},
            check=True,
            timeout=TIMEOUT_S,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no systemd-notify on this machine")
    theirs = bound.next()

    sender = NotifySocket(bound.environ["NOTIFY_SOCKET"])
    sender.send(READY=1, STATUS="12 queued")
    sender.close()

    assert bound.next().items() <= theirs.items()


# -- daemons as processes ----------------------------------------------------------------------------------------------

DAEMON = """
import signal, sys, threading
from enum import Enum
from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig, Event, MetricsServer, run_until_signal
class Work(Enum):
    HANG = 1
opened = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: central.post(Event(Work.HANG)))
threading.Thread(target=lambda: sys.stdin.readline() and opened.set(), daemon=True).start()
config = DispatcherConfig(liveness_stuck_after_s=0.05, drain_timeout_s=60, handler_warn_after_s=None)
central = AsyncDispatcher(config, name="central")
central.register(Work, lambda event: opened.wait(60))
metrics = MetricsServer()
daemon = CompositeService("daemon")
daemon.add_service(metrics)
daemon.add_service(central)
daemon.register_service_listener(lambda _: print(metrics.url_of("/livez"), flush=True))
sys.exit(run_until_signal(daemon))
"""


@contextmanager
def process(
    command: list[str], manager: Manager, cwd: Path, watchdog_usec: int = 40_000
) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, **manager.environ, "WATCHDOG_USEC": str(watchdog_usec)}
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=environ)
    manager.socket.settimeout(60)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.long
def test_a_daemon_tells_its_life_to_systemd(tmp_path: Path, manager: Manager) -> None:
    with process([sys.executable, "-c", DAEMON], manager, tmp_path) as daemon:
        manager.until("READY", "1")
        for _ in range(3):
            manager.until("WATCHDOG", "1")
        assert daemon.stdout is not None
        url = next(line for line in daemon.stdout if ":0/" not in line).strip()

        daemon.send_signal(signal.SIGUSR1)  # a handler hangs
        until(lambda: livez(url) == "503")
        manager.forget()
        manager.await_silence(0.2)  # ten times the period in which it was fed
        assert livez(url) == "503"

        daemon.send_signal(signal.SIGTERM)
        stopping = manager.until("STOPPING")[-1]
        assert stopping["EXTEND_TIMEOUT_USEC"] == "15000000"
        assert daemon.poll() is None
        assert daemon.stdin is not None
        print(file=daemon.stdin, flush=True)  # the handler returns
        assert daemon.wait(60) == 143
        assert daemon.stderr is not None
        assert daemon.stderr.read() == ""


def livez(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)


@pytest.mark.long
def test_a_regular_expression_gone_wild_starves_the_watchdog(tmp_path: Path, manager: Manager) -> None:
    """It holds the interpreter's lock in C code, which stops every thread of the process."""
    wild = DAEMON.replace("opened.wait(60)", "__import__('re').match(r'(a+)+$', 'a' * 40 + 'b')")
    with process([sys.executable, "-c", wild], manager, tmp_path) as daemon:
        manager.until("READY", "1")
        manager.until("WATCHDOG", "1")

        daemon.send_signal(signal.SIGUSR1)
        manager.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            manager.until("never")
        assert daemon.poll() is None


@pytest.mark.long
def test_the_resource_manager_tells_its_life_to_systemd(tmp_path: Path, manager: Manager) -> None:
    pytest.importorskip("typer")
    (tmp_path / "rm.yaml").write_text("nodes: [{host: node1, memory_mb: 4096, vcores: 4}]")
    command = [sys.executable, "-c", "from dispatcher.cli import main; main()", "run", "rm.yaml"]
    with process(command, manager, tmp_path) as daemon:
        assert daemon.stdout is not None
        url = next(line for line in daemon.stdout if line.startswith("metrics: ")).split()[1]
        manager.until("READY", "1")
        manager.until("STATUS", "ok; ResourceManager: ")
        manager.until("WATCHDOG", "1")
        assert livez(url.replace("/metrics", "/readyz")) == "200"

        daemon.send_signal(signal.SIGTERM)
        manager.until("STOPPING", "1")
        assert daemon.wait(60) == 143
