"""Reporting to systemd by its notify protocol (sd_notify(3)).

    READY=1       once the service and all its parts are started
    STATUS=       the status of the process in one line, every 10 seconds
    WATCHDOG=1    twice per WatchdogSec, while the process is live (`Health.live`)
    STOPPING=1    when the stop begins
    EXTEND_TIMEOUT_USEC=   every 5 seconds while a dispatcher drains

Each repeated message has a daemon thread of its own: an event whose `repr` hangs may cost a status line, but not the
watchdog. Without NOTIFY_SOCKET, no thread starts and nothing is sent. A datagram that cannot be sent is no error: a
daemon also works without a service manager.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

from dispatcher.service import Service, ServiceState
from dispatcher.supervision.health import Health
from dispatcher.supervision.health import health as health_of_process
from dispatcher.util.terminal import one_line, printable
from dispatcher.util.threads import start_or_postpone
from dispatcher.view import DispatcherView

STATUS_EVERY_S: Final = 10.0
EXTEND_EVERY_S: Final = 5.0
_EXTEND_BY_USEC: Final = 15_000_000
"""The time to stop that each request asks for; the next request comes well before it is over."""
_END_S: Final = 1.0
_LONGEST_STATUS: Final = 500
_LONGEST_SEND_S: Final = 1.0
_LONGEST_VALUE: Final = 1000
"""Characters of a value that are sent. systemd refuses datagrams of more than 4,096 bytes."""


class NotifySocket:
    """Sends datagrams to the socket at `address`: a path, or an abstract name with a leading @. Any thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()  # held while a datagram is sent: a second at most
        self._socket: socket.socket | None = None  # guarded by _lock; made with the first datagram

    def send(self, **values: object) -> bool:
        """Send a datagram with a line KEY=VALUE for each value; returns whether the system accepted it.

        If the service manager does not read, this waits for at most a second.
        """
        lines = (f"{key}={printable(str(value)[:_LONGEST_VALUE])}" for key, value in values.items())
        name = os.fsencode(self.address)
        with self._lock:
            try:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    self._socket.settimeout(_LONGEST_SEND_S)
                self._socket.sendto("\n".join(lines).encode(), b"\0" + name[1:] if name[:1] == b"@" else name)
            except OSError:  # also TimeoutError: the service manager is gone, unreachable or not reading
                return False
        return True

    def close(self) -> None:
        """Close the socket. A later `send` opens a new one."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def notify_socket(environ: Mapping[str, str] = os.environ) -> NotifySocket | None:
    """The socket that NOTIFY_SOCKET names; None: the variable is unset, or does not name a Unix socket."""
    address = environ.get("NOTIFY_SOCKET", "")
    return NotifySocket(address) if address[:1] in ("/", "@") and len(address) > 1 else None


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """The watchdog's timeout in seconds (WATCHDOG_USEC): systemd expects a sign of life within it.

    None: the watchdog is off, or WATCHDOG_PID names another process.
    """
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (usec.isascii() and usec.isdigit() and len(usec) < 20 and int(usec)) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 1e6


class Supervision:
    """While entered, `health` watches `service`, and systemd, if it started this process, is kept informed.

    The caller reports that the service has `started` and that it begins `stopping`. Any thread.
    """

    def __init__(
        self,
        service: Service,
        health: Health = health_of_process,
        environ: Mapping[str, str] = os.environ,
        *,
        status_every_s: float = STATUS_EVERY_S,
        extend_every_s: float = EXTEND_EVERY_S,
    ) -> None:
        self._service = service
        self._health = health
        self._socket = notify_socket(environ)
        self._watchdog_s = watchdog_s(environ)
        self._status_every_s = status_every_s
        self._extend_every_s = extend_every_s
        # The thread that enters, starts the stop and leaves; another one appends what was postponed.
        self._repeated: list[_Repeated] = []
        self._is_over = False  # set by the thread that leaves

    def started(self) -> None:
        """The service and all its parts are started."""
        if self._socket is not None:
            self._socket.send(READY=1)
            self._repeat_now()

    def stopping(self) -> None:
        """The stop begins. From now on, systemd is asked for more time while a dispatcher drains."""
        if self._socket is not None:
            self._socket.send(STOPPING=1, EXTEND_TIMEOUT_USEC=_EXTEND_BY_USEC)
            self._repeat_now()
            self._repeat("extend", self._extend_every_s, self._extend)

    def __enter__(self) -> Self:
        self._health.watch(self._service)
        if self._socket is not None:
            self._repeat("status", self._status_every_s, self._tell_status)
            if self._watchdog_s is not None:
                self._repeat("watchdog", self._watchdog_s / 2, self._feed_watchdog)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True  # before the look: a postponed start appends and then looks at this
        for each in self._repeated:
            each.end()
        for each in self._repeated:
            each.join(_END_S)  # it may look at an event whose `repr` hangs
        if self._socket is not None:
            self._socket.close()
        self._health.forget(self._service)

    def _repeat(self, name: str, every_s: float, action: Callable[[], None]) -> None:
        def start() -> None:
            if not self._is_over:
                repeated = _Repeated(f"systemd-{name}", every_s, action)
                repeated.start()
                self._repeated.append(repeated)
                if self._is_over:
                    repeated.end()

        start_or_postpone(f"the messages to systemd ({name})", start)

    def _repeat_now(self) -> None:
        for each in self._repeated:
            each.due.set()

    def _tell_status(self) -> None:
        if self._socket is not None:
            self._socket.send(STATUS=status_line(self._health))

    def _feed_watchdog(self) -> None:
        if self._socket is not None and self._health.live().is_ok:
            self._socket.send(WATCHDOG=1)

    def _extend(self) -> None:
        if self._socket is not None and self._health.is_draining():
            self._socket.send(EXTEND_TIMEOUT_USEC=_EXTEND_BY_USEC)


class _Repeated(threading.Thread):
    """Calls `action` now, every `every_s` seconds, and whenever it is `due`, until the end."""

    def __init__(self, name: str, every_s: float, action: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._every_s = every_s
        self._action = action
        self._has_ended = False  # written by the thread that ends it, before it is due
        self.due = threading.Event()

    def run(self) -> None:
        while not self._has_ended:
            self._action()
            self.due.wait(self._every_s)
            self.due.clear()

    def end(self) -> None:
        self._has_ended = True
        self.due.set()


def status_line(health: Health) -> str:
    """Such as `stuck (central); central: 12 queued, 345 handled, 1 failed, Job.SUBMITTED runs for 61.2 s`.

    At most about 500 characters, printable. Any thread; waits for no check.
    """
    answer = health.ready(waits_for_checks=False)
    first = [reason for reason in answer.reasons if reason.reason == answer.status]
    names = ", ".join(name for reason in first if (name := reason.dispatcher or reason.service))
    status = f"{answer.status} ({names})" if names else answer.status
    return one_line("; ".join([status, *map(_line_of, health.views())]), _LONGEST_STATUS)


def _line_of(view: DispatcherView) -> str:
    stats = view.stats()
    counts = f"{view.name}: {stats.queue_size:,} queued, {stats.handled:,} handled, {stats.failed:,} failed"
    return f"{counts}, {_doing(view)}"


def _doing(view: DispatcherView) -> str:
    running = view.running()
    if running is not None:
        what = "a mail" if running.kind == "mail" else f"{running.event_class}.{running.event_type}"
        return f"{what} runs for {running.running_s:.1f} s"
    if view.is_draining():
        return "draining"
    return "idle" if view.state is ServiceState.STARTED else view.state.name.lower()
