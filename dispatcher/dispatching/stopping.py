"""How dispatching ends: an event that fails, a queue that is drained, a stop that waits for both.

`ErrorPolicy` reacts to a handler that raises and to an event without a handler (invariant 6); `Failures` keeps the last
ones as text. `Drain` tells waiters when the queue is empty and no event is in hand (invariant 3). `StopWait` is the
wait of a stop: for the drain, within its timeout, whatever a handler or a coroutine does (invariant 7).
"""

from __future__ import annotations

import linecache
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from time import monotonic, time
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from dispatcher.dispatching.failure_log import FailureLog
from dispatcher.dispatching.times import Progress
from dispatcher.queue.entries import ABANDONED
from dispatcher.queue.posting import EventQueue
from dispatcher.routes import Route, RoutingTable
from dispatcher.service import Service
from dispatcher.util.foreign import class_name, cut_text, entity_of, tell, type_name, type_of
from dispatcher.util.histogram import snapshot
from dispatcher.util.threads import try_to_start

log = logging.getLogger("dispatcher.async_dispatcher")

GRACE_S: Final = 0.5
"""The longest wait for a handler that is about to return."""
_KEPT: Final = 100
_LONGEST_MESSAGE: Final = 500
_MOST_FRAMES: Final = 20


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """An event whose handler raised, or that has none."""

    number: int
    """Counts the failures of a dispatcher, from 1."""
    at: float
    """Unix seconds."""
    event_class: str
    event_type: str
    entity: str | None
    error_class: str
    message: str
    """At most 500 characters."""
    frames: tuple[str, ...]
    """The last 20 frames of the traceback as text, outermost first."""


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    def text(self) -> str:
        """As in a traceback, with the line of source if the file can be read."""
        code = linecache.getline(self.file, self.line).strip()
        where = f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{where}\n    {code}" if code else where


class Failures:
    """A ring of the last 100 failures. The handler thread adds, any thread reads."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock  # never changes
        self._count = 0  # handler thread
        # Frames are made text when they are read, which reads files. Handler thread appends, any copies.
        self._ring: deque[tuple[FailureRecord, tuple[_Frame, ...]]] = deque(maxlen=_KEPT)

    def add(self, event: Any, error: BaseException) -> None:
        """Handling the event failed with that error. Raises nothing, whatever the two raise. Handler thread."""
        self._count += 1
        event_type = type_of(event)
        record = FailureRecord(
            number=self._count,
            at=self._clock(),
            event_class=class_name(event_type),
            event_type=type_name(event_type),
            entity=entity_of(event),
            error_class=class_name(error),
            message=cut_text(lambda: str(error), _LONGEST_MESSAGE - len("..."))[:_LONGEST_MESSAGE],
            frames=(),
        )
        self._ring.append((record, _last_frames(error.__traceback__)))

    def newest_first(self) -> list[FailureRecord]:
        """Any thread; reads the source files of the frames, unless they are cached."""
        return [
            replace(record, frames=tuple(frame.text() for frame in frames))
            for record, frames in reversed(snapshot(self._ring.copy))
        ]


def _last_frames(traceback: TracebackType | None) -> tuple[_Frame, ...]:
    frames: deque[TracebackType] = deque(maxlen=_MOST_FRAMES)
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return tuple(
        _Frame(each.tb_frame.f_code.co_filename, each.tb_lineno, each.tb_frame.f_code.co_qualname) for each in frames
    )


class ErrorPolicy:
    """Counts and logs a failed event, then follows the `on_error` of its class. Handler thread, but for `failures` and
    `log`."""

    def __init__(self, dispatcher: Service, routes: RoutingTable, exit_action: Callable[[int], Any]) -> None:
        self._dispatcher = dispatcher
        self._routes = routes
        self._exit_action = exit_action
        self.failures = Failures()  # the last ones; it says who may touch it
        self.log = FailureLog(dispatcher.name)  # never changes
        self.is_ending = False  # `end` is to be called; handler thread
        self.is_exiting = False  # it will end the process; handler thread
        self._ended_by: BaseException | None = None  # the error with which `end` is to be called; handler thread

    def failed(
        self, event: Any, error: BaseException, taken_by: Route | None = None, *, ends_later: bool = False
    ) -> tuple[str, BaseException]:
        """The event's handler raised `error`, or it has none. Returns the outcome and the error for the journal.

        `taken_by`: the route whose coroutine raised it; its handler may have been unregistered since. `ends_later`: the
        caller calls `end` once the event has its row, if the event `is_ending` the dispatcher.
        It counts the event first, and raises nothing, whatever the event, a logging handler or a listener raises.
        """
        event_type = type_of(event)
        route = taken_by or self._routes.find(event_type)
        route.failed += 1
        is_handled = route.registered or taken_by is not None
        if not is_handled:
            error = self._routes.unregistered(event_type)
        self.failures.add(event, error)
        self.log.failed(event, error, route.event_class, route.name)
        if route.on_error != "continue":
            self._dispatcher.note_failure(error)
            self._ended_by = self._ended_by or error
            self.is_ending, self.is_exiting = True, self.is_exiting or route.on_error == "exit"
            if not ends_later:
                self.end()
        return "failed" if is_handled else "unregistered", error

    def end(self) -> None:
        """Stop the dispatcher, and, if it `is_exiting`, end the process. Raises nothing."""
        exits, error = self.is_exiting, self._ended_by
        self.is_ending, self.is_exiting, self._ended_by = False, False, None
        try:
            self._end(error, exits=exits)
        except BaseException as raised:
            name = self._dispatcher.name
            tell(log, logging.CRITICAL, "%s: the stop failed", name, error=raised, extra={"dispatcher": name})

    def _end(self, error: BaseException | None, *, exits: bool) -> None:
        name = self._dispatcher.name
        if exits and not sys.is_finalizing():
            self.log.tell_all()
            message = "%s: exiting the process, as registered for this event class"
            tell(log, logging.CRITICAL, message, name, extra={"dispatcher": name})
            # On a thread of its own: exit hooks may stop this dispatcher, and the stop waits for this handler.
            exiting = threading.Thread(target=self._exit_action, args=(-1,), name=f"{name}-exit", daemon=True)
            if not try_to_start(exiting):
                self._exit_action(-1)
        if error is not None:
            self._dispatcher.stop_on_failure(error)


class Drain:
    """The waiters for one dispatcher to be drained, and the end of its handler thread. Any thread."""

    def __init__(self, queue: EventQueue, progress: Progress) -> None:
        self._under_way = queue.shutdown.under_way
        self._entries = queue.entries
        self._progress = progress
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self.waiters: list[Future[bool]] = []  # guarded by _lock; the handler thread reads it without
        self.finished = threading.Event()  # set by the handler thread as its last act; replaced in a forked child

    def is_drained(self) -> bool:
        """The queue is empty and no event is in hand: both hold at one moment during this call.

        `done` is read before the queue and `begun` after it. If they are equal, the handler thread took nothing in
        between, so no event was in hand when the queue was empty. (The flag of YARN-3878 could be wrong here.)

        An event of `post_later` leaves `under_way` only once it is queued. That is read first, so no such post that
        returned before this call is still on its way.
        """
        if self._under_way:
            return False
        done = self._progress.done
        return not self._entries and self._progress.begun == done

    def wait(self, timeout: float | None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever); returns whether it is."""
        drained = self.future()
        try:
            return drained.result(timeout)
        except FutureTimeoutError:
            return False
        finally:
            drained.cancel()

    def future(self) -> Future[bool]:
        """A future: True once drained, False if the handler thread ends first. Does not block."""
        drained: Future[bool] = Future()
        with self._lock:
            # Forget waiters that gave up: it may be long until the queue is empty.
            self.waiters = [waiter for waiter in self.waiters if not waiter.cancelled()]
            # Append before the look at the queue: a thread that empties it after the look sees this waiter.
            self.waiters.append(drained)
        self.notify()
        return drained

    def notify(self) -> None:
        """Complete the futures if drained or ended. After a post meanwhile, the handler thread calls this again."""
        with self._lock:
            # Look under the lock that waiters register under: a waiter may have posted before it began to wait.
            finished, drained = self.finished.is_set(), self.is_drained()
            if not (drained or finished):
                return
            waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(drained)

    def finish(self) -> None:
        self.finished.set()
        self.notify()

    def after_fork(self) -> None:
        """In a child process, which has no handler thread and no waiters."""
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.finished.set()


def grace_s(drain_timeout_s: float) -> float:
    """The part of the drain timeout that a stop keeps for a handler that is about to return."""
    return min(GRACE_S, drain_timeout_s / 2)


class OpenCoroutines(Protocol):
    """The coroutines of one dispatcher's handlers that have not ended."""

    count: int

    def describe(self) -> str: ...

    def give_up_soon(self) -> None:
        """Cancel them. Any thread."""


class StopWait:
    """Waits for one dispatcher's handler thread to end. Any thread that the drain does not need.

    `nudge()` makes that thread look at the queue's phase, `describe()` tells what it is doing. `end_asks()` tells the
    callers of asks that no answer comes.
    """

    def __init__(
        self,
        name: str,
        queue: EventQueue,
        drain: Drain,
        coroutines: OpenCoroutines,
        nudge: Callable[[], None],
        describe: Callable[[], str],
        end_asks: Callable[[], None],
    ) -> None:
        self._name = name
        self._queue = queue
        self._drain = drain
        self._coroutines = coroutines
        self._nudge = nudge
        self._describe = describe
        self._end_asks = end_asks
        self._has_given_up = False  # a wait has ended, and the thread had not; any thread sets it

    @staticmethod
    def wait_for_all(waits: Sequence[StopWait], timeout_s: float) -> None:
        """Wait until all is handled and the threads have ended; after the timeout, discard and report what is left.

        A thread that an earlier wait has given up on is not waited for.
        """
        waits = [each for each in waits if not each._has_given_up]
        started, grace, late = monotonic(), grace_s(timeout_s), waits
        for each in waits:
            each._nudge()
        try:
            late = _wait(waits, timeout_s - grace)
        finally:  # a KeyboardInterrupt also ends the wait
            for each in late:
                each._abandon()
            left_s = started + timeout_s - monotonic()  # to discard a long queue takes time
            _give_up(late, started, max(0.0, min(grace, left_s)))

    def _abandon(self) -> None:
        self._queue.shutdown.shut(ABANDONED)
        self._queue.shutdown.discard()
        self._nudge()

    def _give_up_on_coroutines(self, waited_s: float) -> None:
        message = "%s: stop gave up after %.3g s and cancels the coroutines of %d events:\n%s"
        count, what = self._coroutines.count, self._coroutines.describe()
        self._coroutines.give_up_soon()
        fields = {"dispatcher": self._name, "seconds": waited_s, "count": count}
        tell(log, logging.ERROR, message, self._name, waited_s, count, what, extra=fields)

    def _give_up_on_handler(self, waited_s: float) -> None:
        """Log where the handler hangs, and leave it."""
        self._has_given_up = True
        message = "%s: stop gave up after %.3g s: a handler is still %s"
        fields = {"dispatcher": self._name, "seconds": waited_s}
        tell(log, logging.ERROR, message, self._name, waited_s, self._describe(), extra=fields)
        self._end_asks()


def _wait(waits: Sequence[StopWait], timeout_s: float) -> list[StopWait]:
    """Wait for the threads; returns those that have not ended."""
    left_s, deadline = timeout_s, monotonic() + timeout_s
    for each in waits:
        each._drain.finished.wait(left_s)
        left_s = max(0.0, deadline - monotonic())
    return [each for each in waits if not each._drain.finished.is_set()]


def _give_up(late: Sequence[StopWait], started: float, grace: float) -> None:
    """Wait for coroutines and handlers that are about to end, and report the others."""
    if any(each._coroutines.count for each in late):
        grace /= 2  # one half for coroutines that are about to end, one for the threads that give up on the others
        late = _wait(late, grace)
        for each in late:
            if each._coroutines.count:
                each._give_up_on_coroutines(monotonic() - started)
    for each in _wait(late, grace):
        each._give_up_on_handler(monotonic() - started)
