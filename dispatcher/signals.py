"""SIGINT and SIGTERM as something the main thread waits for.

A signal handler may interrupt the main thread anywhere, also where it holds a lock; so all that ours does is to write a
byte to a pipe, which the wait reads.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, SIGINT and SIGTERM do not interrupt anything: `wait` returns, and `received` says which one came.

    Main thread only, except `notify`. On the way out the handlers from before are back.

    Raises:
        ValueError: entered on another thread than the main one, where Python takes no signals.
    """

    def __init__(self) -> None:
        self._received: int | None = None  # main thread only: Python runs signal handlers there
        self._previous: dict[int, Any] = {}
        # Held by whoever writes to the pipe or closes it: no byte must go to another file that is given its descriptor.
        # The signal handler does without: it may interrupt the holder, and it runs on the thread that closes.
        self._pipe_lock = threading.Lock()  # leaf lock
        self._read_end = self._write_end = -1  # no pipe while not entered; changed by the main thread under _pipe_lock

    @property
    def received(self) -> int | None:
        """The first signal that came, if any."""
        return self._received

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal ended: 128 + its number; 0 without one."""
        return 128 + self._received if self._received is not None else 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for a signal or a `notify`; says whether a signal has come."""
        if self._received is None and select.select([self._read_end], [], [], timeout)[0]:
            os.read(self._read_end, 4096)
        return self._received is not None

    def notify(self) -> None:
        """End a wait. Any thread."""
        with self._pipe_lock:
            self._write()

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        try:
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        except ValueError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        with self._pipe_lock:
            read_end, write_end = self._read_end, self._write_end
            self._read_end = self._write_end = -1
            os.close(read_end)
            os.close(write_end)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = number
        self._write()

    def _write(self) -> None:
        try:
            os.write(self._write_end, b"n")
        except OSError:
            return  # nobody waits (any more), or the pipe is full of reasons to wake up
