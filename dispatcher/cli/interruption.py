"""How a signal ends the command: with one line, exit code 130 or 143, no traceback and no process left behind.

The first SIGINT or SIGTERM prints the line, silences standard error, ends the processes that the command has started,
such as Spark's, and then raises KeyboardInterrupt on the main thread, so that `with` and `finally` remove what is
unfinished. Further signals change nothing, and whatever hangs, the process ends after `_LONGEST_S`.

A command that ends in good order replaces the handlers meanwhile, with `dispatcher.supervision.signals.StopSignals`.

This is imported before anything else, so that a signal during the imports finds it: it imports only what is quick.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from dispatcher.util.threads import try_to_start

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from types import FrameType
    from typing import Final, NoReturn, TypeAlias

    Process: TypeAlias = tuple[int, bytes]
    """Its id, and its start in the system's ticks, which tells it from a later process with its id."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LINE: Final = b"dispatcher: interrupted\n"
_LONGEST_S: Final = 10.0
_TERMINATION_S: Final = 4.0
"""How long the started processes have to end by themselves."""
_POLL_S: Final = 0.02


class Interruption:
    """The command's handler of SIGINT and SIGTERM. Main thread, except where a method says otherwise."""

    def __init__(self) -> None:
        self.number: int | None = None  # the first signal; main thread
        self._is_over = False  # the command has ended: nothing is left to unwind; main thread
        self._pid = os.getpid()  # read only: a fork inherits the handler
        self._read_end = self._write_end = -1  # set by `install`, before its thread starts
        self._ended = threading.Event()  # the started processes have ended

    def install(self) -> None:
        """Handle the signals from now on, except ignored ones, and only on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._read_end, self._write_end = os.pipe()
        if not try_to_start(threading.Thread(target=self._end_processes, name="interruption", daemon=True)):
            os.close(self._read_end)
            os.close(self._write_end)
            return  # the signals do what Python lets them: the command still runs
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def over(self) -> None:
        """A signal from now on ends the process at once."""
        self._is_over = True

    def end(self) -> NoReturn:
        """End the process once what it has started has ended. Called after a signal."""
        assert self.number is not None, "called after a signal"
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(128 + self.number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # May interrupt the main thread anywhere, so it takes no lock.
        if os.getpid() != self._pid:
            os._exit(128 + number)
        if self.number is not None:
            return
        self.number = number
        with contextlib.suppress(OSError):
            os.write(2, _LINE)
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(self._write_end, b"x")
        # First, so that nothing still writes what the interrupted thread removes.
        self._ended.wait(_LONGEST_S)
        if self._is_over:
            os._exit(128 + number)
        raise KeyboardInterrupt

    def _end_processes(self) -> None:
        """Wait for a signal, end the started processes, and end this one if it has not ended in time. Own thread."""
        os.read(self._read_end, 1)
        until_s = time.monotonic() + _LONGEST_S
        try:
            end_descendants(self._pid)
        finally:
            self._ended.set()
            self._end_late(until_s)

    def _end_late(self, until_s: float) -> NoReturn:
        time.sleep(max(0.0, until_s - time.monotonic()))
        os._exit(128 + (self.number or signal.SIGINT))


def end_descendants(pid: int) -> None:
    """End the processes that the process has started, and those that they have started: politely, then by force.

    A process is asked before those that it has started, which may end with it, and whose end it might report.

    Blocks for `_TERMINATION_S` at most, and a moment. Does nothing without /proc: Spark's JVM then ends by itself once
    the process does.
    """
    until_s = time.monotonic() + _TERMINATION_S
    found: dict[Process, bool] = {}  # whether it was asked to end
    while True:
        parents = _parents()
        for process in _below(pid, parents):
            found.setdefault(process, False)
        living = [process for process in found if process in parents]
        if not living:
            return
        by_force = time.monotonic() > until_s
        ids = {process[0] for process in living}
        for process in living:
            if by_force or not (found[process] or parents[process] in ids):
                found[process] = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process[0], signal.SIGKILL if by_force else signal.SIGTERM)
        if by_force and time.monotonic() > until_s + 1.0:
            return
        time.sleep(_POLL_S)


def _parents() -> dict[Process, int]:
    """Every living process with its parent's id."""
    # Imports nothing: the interrupted thread may be in the middle of that import.
    parents: dict[Process, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for entry in entries:
            stat = _stat(entry.name) if entry.name.isdigit() else None
            if stat is not None:
                # The name, in parentheses, may contain anything.
                state, parent, *rest = stat.rpartition(b")")[2].split()
                if state not in (b"Z", b"X"):
                    parents[int(entry.name), rest[17]] = int(parent)
    return parents


def _stat(pid: str) -> bytes | None:
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            return os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return None  # it has ended


def _below(pid: int, parents: dict[Process, int]) -> list[Process]:
    """The processes below `pid`, parents first."""
    children = [process for process, parent in parents.items() if parent == pid]
    return [each for child in children for each in (child, *_below(child[0], parents))]
