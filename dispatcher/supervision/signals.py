"""Waiting for SIGINT and SIGTERM on the main thread.

A signal handler may interrupt the main thread anywhere, even while it holds a lock. So the handlers here only write a
byte to a pipe, which the wait reads. The system may give a signal to any thread, and Python's handlers run on the main
thread alone, which the signal then does not wake: so Python's wakeup descriptor is the same pipe.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from dispatcher.errors import InvalidValueError
from dispatcher.service import Service, ServiceState
from dispatcher.supervision.health import parts_of
from dispatcher.supervision.systemd import Supervision
from dispatcher.util.foreign import tell
from dispatcher.util.functions import require_kind

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

log: logging.Logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, SIGINT and SIGTERM interrupt nothing: `wait` returns, and `received` is the signal.

    Use it on the main thread only, except `notify`. When you exit, the previous handlers are restored. Set
    `ends_process` if your process ends after a signal. Further signals are then ignored, and the first
    one decides its exit code.

    Raises:
        ValueError: you're not on the main thread, the only one where Python handles signals.
    """

    def __init__(self, *, ends_process: bool = False) -> None:
        self._ends_process = ends_process
        self.received: int | None = None  # the first signal; main thread only: Python runs signal handlers there
        self._previous: dict[int, Any] = {}  # main thread only: the previous handlers, by signal
        # Held to write to the pipe or to close it: a byte must not go to another file that reuses the descriptor. The
        # signal handler writes without it: it may interrupt the holder, and it runs on the thread that closes.
        self._pipe_lock = threading.Lock()  # leaf lock
        self._read_end = self._write_end = -1  # no pipe while not entered; changed by the main thread under _pipe_lock
        self._previous_wakeup: int | None = None  # main thread only: the descriptor from before; None: not replaced

    @property
    def exit_code(self) -> int:
        """The exit code for a shell: 128 + the signal's number, or 0 without a signal."""
        return 128 + self.received if self.received is not None else 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for a signal or a `notify`, and return whether a signal has come."""
        if self.received is None:
            reading = select.poll()  # `select` takes no descriptor from 1024 on
            reading.register(self._read_end, select.POLLIN)
            if reading.poll(None if timeout is None else timeout * 1000):
                os.read(self._read_end, 4096)
        return self.received is not None

    def notify(self) -> None:
        """End a wait. Thread-safe."""
        with self._pipe_lock:
            self._write()

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        try:
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
            self._previous_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        except ValueError as error:
            self.__exit__()
            raise InvalidValueError(
                "only the main thread can handle signals: call run_until_signal there, and do the rest of your "
                "program's work on other threads"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        is_ending = self._ends_process and self.received is not None
        if is_ending:
            _expect_late_signals()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)
        if self._previous_wakeup is not None:
            signal.set_wakeup_fd(self._previous_wakeup)
            self._previous_wakeup = None
        with self._pipe_lock:
            read_end, write_end = self._read_end, self._write_end
            self._read_end = self._write_end = -1
            os.close(read_end)
            os.close(write_end)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        self._write()

    def _write(self) -> None:
        try:
            os.write(self._write_end, b"n")
        except OSError:
            return  # the pipe is closed, or full: then a byte to read is already there


def _expect_late_signals() -> None:
    """Print nothing of a signal that comes while its handler gives way to SIG_IGN: Python reports it as an error."""
    report = sys.unraisablehook

    def report_others(unraisable: UnraisableHookArgs) -> None:
        if not str(unraisable.exc_value).endswith("ignored due to race condition"):
            report(unraisable)

    sys.unraisablehook = report_others


def run_until_signal(service: Service) -> int:
    """Start `service` if needed, wait for SIGINT, SIGTERM or its end, stop it, and return an exit code.

    The code is 128 + the signal's number, or 0 if a caller or a handler stopped the service. It's 1 if the service or
    one of its parts failed, which also ends the wait. A second signal during the stop changes nothing:
    `drain_timeout_s` bounds it.

    While it runs, the health of the process (`dispatcher.supervision.health`) covers the service and its parts. If
    systemd started the process (NOTIFY_SOCKET), this reports the start, the health and the stop to it, and with
    WATCHDOG_USEC also liveness.

    Raises:
        ValueError: you're not on the main thread, the only one where Python handles signals.
        Exception: `init` or `start` raised it.
    """
    require_kind(service, "service", Service)
    with StopSignals() as signals, Supervision(service) as supervision:
        parts = parts_of(service)
        for part in parts:
            part.register_service_listener(lambda _: signals.notify())
        try:
            if service.in_state(ServiceState.NOTINITED):
                service.init()
            service.start()
            if service.in_state(ServiceState.STARTED):
                supervision.started()
            while not (service.in_state(ServiceState.STOPPED) or has_failed(parts) or signals.wait()):
                continue
        finally:
            supervision.stopping()
            service.stop()
            service.wait_for_service_to_stop()  # a handler or another thread may have begun the stop
        if signals.received is not None:
            tell(log, logging.INFO, "%s: stopped by signal %d", service.name, signals.received)
            return signals.exit_code
        return 1 if has_failed(parts) else 0


def has_failed(parts: list[Service]) -> bool:
    """Whether one of the services has failed."""
    return any(part.failure_cause is not None for part in parts)
