"""Log files that cannot be written: the daemon goes on, counts the lines that are lost, and says so.

For each line that they cannot write, Python's handlers print a traceback, or raise the error where the line was logged.
To a deleted file they write on. Here a lost line is counted, standard error gets up to one line a second, and the file
is opened again for the next line. A named pipe stays open: opening it again would wait for a reader.

Threading: a handler calls its guard under its own lock. `family` and `warnings` are for any thread, and take none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dispatcher.util.figures import counted
from dispatcher.util.foreign import cut_text
from dispatcher.util.terminal import one_line

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SAY_EVERY_NS: Final = 1_000_000_000
"""How often standard error gets a line about a file, at most."""


class _Guard:
    """Writes the lines of one handler."""

    def __init__(self, handler: logging.StreamHandler[Any], clock_ns: Callable[[], int]) -> None:
        self.handler: logging.StreamHandler[Any] = handler  # never changes, like the next four
        self.name: str = _name_of(handler)
        self._emit = handler.emit  # of its class
        self._report = handler.handleError
        self._clock_ns = clock_ns
        # Under the handler's lock; any thread reads the first two:
        self.lost: int = 0
        self.reason: str | None = None  # why the last line could not be written; None: it was
        self._has_failed = False  # with the present line
        self._lost_until_written = 0
        self._said_ns: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """In place of the handler's. Raises nothing."""
        self._has_failed = False
        try:
            self._leave_deleted()
            self._emit(record)
        except Exception:
            self.handle_error(record)
        if not self._has_failed and self.reason is not None:
            self._go_on()

    def handle_error(self, record: logging.LogRecord) -> None:
        """In place of the handler's. Called while the line's error is handled."""
        error, self._has_failed = sys.exc_info()[1], True
        if not isinstance(error, OSError) or not self._can_format(record):  # the line is wrong, not the file
            self._report(record)
            return
        self.lost += 1
        self._lost_until_written += 1
        self.reason = error.strerror or cut_text(lambda: str(error))
        self._drop_stream()
        now_ns = self._clock_ns()
        if self._said_ns is None or now_ns - self._said_ns >= SAY_EVERY_NS:
            self._said_ns, lost = now_ns, counted(self._lost_until_written, "line")
            with contextlib.suppress(Exception):
                sys.stderr.write(
                    one_line(f"log file {self.name}: cannot be written: {self.reason}; {lost} lost") + "\n"
                )
                sys.stderr.flush()

    def _can_format(self, record: logging.LogRecord) -> bool:
        """False if the line itself raises, for example in an argument's `__str__`."""
        try:
            self.handler.format(record)
        except Exception:
            return False
        return True

    def _go_on(self) -> None:
        """A line was written again: say in the file that some before it are missing."""
        lost, self._lost_until_written, self.reason = self._lost_until_written, 0, None
        text = f"{counted(lost, 'line', 'was')} lost before the last one: this file could not be written"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
        with contextlib.suppress(Exception):
            self._emit(record)

    def _leave_deleted(self) -> None:
        """Reopen a log file that was deleted. Lines written to the deleted file would be lost to every reader."""
        handler = self.handler
        if not isinstance(handler, logging.FileHandler) or handler.stream is None:
            return
        status = os.fstat(handler.stream.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            self._drop_stream()

    def _drop_stream(self) -> None:
        """Have the handler open the file again: what is left in the buffer would come late, and fail the next lines."""
        handler = self.handler
        if isinstance(handler, logging.FileHandler) and handler.stream is not None:
            stream, handler.stream = handler.stream, None  # as its `close` does
            handler.mode = "a"  # it was opened before, so what it has is of this run
            with contextlib.suppress(OSError, ValueError):  # it is closed
                if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):  # opening it by its name would wait for a reader
                    same = os.dup(stream.fileno())
                    handler.stream = os.fdopen(same, "a", encoding=handler.encoding, errors=handler.errors)
            with contextlib.suppress(Exception):
                stream.close()


def _name_of(handler: logging.StreamHandler[Any]) -> str:
    if isinstance(handler, logging.FileHandler):
        return handler.baseFilename
    return "standard output" if handler.stream is sys.stdout else "standard error"


_guards: Final[list[_Guard]] = []
"""Also of replaced handlers, for their counts. The thread that configures logging appends; other threads copy."""


def guard_handlers(clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
    """Guard the handlers of this process that write to files or to standard streams. One thread."""
    found: list[Any] = [
        each for each in _handlers() if isinstance(each, logging.FileHandler) or type(each) is logging.StreamHandler
    ]
    for guard in _guards:
        if guard.handler not in found:
            guard.reason = None
    for handler in found:
        if not any(guard.handler is handler for guard in _guards):
            guard = _Guard(handler, clock_ns)
            _guards.append(guard)
            handler.emit = guard.emit
            handler.handleError = guard.handle_error


def _handlers() -> Iterator[Any]:
    """The handlers of all loggers, and the handlers behind them, such as a MemoryHandler's target."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    found = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    for handler in found:  # it grows meanwhile
        yield handler
        listener = getattr(handler, "listener", None)  # a QueueHandler's
        behind: Iterable[Any] = (getattr(handler, "target", None), *getattr(listener, "handlers", ()))
        found += [each for each in behind if isinstance(each, logging.Handler) and each not in found]


def family() -> Metric:
    """The lost lines as a metric. Any thread."""
    from prometheus_client.core import CounterMetricFamily

    lost = CounterMetricFamily(
        "dispatcher_log_lines_lost", "Lines that could not be written to a log file.", labels=["file"]
    )
    for name, count in _sums().items():
        lost.add_metric([name], count)
    return lost


def warnings() -> list[str]:
    """A line for each log file whose last line could not be written. Any thread."""
    failing = {guard.name: guard for guard in _guards.copy() if guard.reason is not None}
    return [f"{name}: cannot be written: {guard.reason}; {guard.lost:,} lost" for name, guard in failing.items()]


def _sums() -> dict[str, int]:
    sums: dict[str, int] = {}
    for guard in _guards.copy():
        sums[guard.name] = sums.get(guard.name, 0) + guard.lost
    return sums
